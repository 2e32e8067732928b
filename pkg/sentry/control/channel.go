package control

import (
	"errors"
	"fmt"
	"maps"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// A channel is the pair of pipes to one runtime, for the length of one operation.
type channel struct {
	k                         *kernel.Kernel
	requestFile, responseFile *vfs.FileDescription
	requestPipe, responsePipe *pipe.Pipe
	requestEnd, responseEnd   *stream

	// line is what outlasts the operation.
	line *line
}

// A line is what has to be remembered of a channel from one operation to the next:
// answers come in the order of the requests and carry no number, so one that was
// given up on is still to come, perhaps in the middle of a frame.
type line struct {
	reader *tpuwire.Reader
	unread int   // requests whose answers have not been read
	broken error // why no answer can be read any more
	cut    error // why no request can be written any more
}

func (l *line) clean() bool {
	return l.unread == 0 && l.broken == nil && l.cut == nil && !l.reader.Partial()
}

// openChannel finds the ends that a control thread's name tells, in that thread's
// own table.
func openChannel(k *kernel.Kernel, t *kernel.Task, fds tpuwire.ThreadName) (*channel, error) {
	c := &channel{k: k}
	var err error
	if c.requestFile, c.requestPipe, err = openEnd(k, t, fds.RequestFD, true); err != nil {
		return nil, err
	}
	if c.responseFile, c.responsePipe, err = openEnd(k, t, fds.ResponseFD, false); err != nil {
		c.release()
		return nil, err
	}
	if c.requestPipe == c.responsePipe {
		c.release()
		return nil, fmt.Errorf("FDs %d and %d are ends of one pipe", fds.RequestFD, fds.ResponseFD)
	}
	sctx := k.SupervisorContext()
	c.requestEnd = &stream{sctx: sctx, file: c.requestFile, mask: waiter.WritableEvents}
	c.responseEnd = &stream{sctx: sctx, file: c.responseFile, mask: waiter.ReadableEvents}
	c.attach(&line{reader: tpuwire.NewReader(nil)})
	return c, nil
}

func openEnd(k *kernel.Kernel, t *kernel.Task, fd int32, write bool) (*vfs.FileDescription, *pipe.Pipe, error) {
	file := openFile(k, t, fd)
	if file == nil {
		return nil, nil, fmt.Errorf("FD %d is not open", fd)
	}
	p, err := pipeEnd(file, write)
	if err != nil {
		file.DecRef(k.SupervisorContext())
		return nil, nil, fmt.Errorf("FD %d %w", fd, err)
	}
	return file, p, nil
}

// attach makes the channel go on with what is remembered of it.
func (c *channel) attach(l *line) {
	c.line = l
	l.reader.SetSource(c.responseEnd)
}

// release drops the references to the files. It may be called more than once.
func (c *channel) release() {
	sctx := c.k.SupervisorContext()
	for _, file := range []**vfs.FileDescription{&c.requestFile, &c.responseFile} {
		if *file != nil {
			(*file).DecRef(sctx)
			*file = nil
		}
	}
	if c.line != nil {
		c.line.reader.SetSource(nil)
	}
}

// maxStale is how many old answers are read and dropped before a request.
const maxStale = 64

// drain reads what is in the response pipe before anything is asked, and returns
// how many answers it dropped. It does not wait. An error says that the channel
// cannot be used.
func (c *channel) drain() (dropped int, err error) {
	if err := errors.Join(c.line.broken, c.line.cut); err != nil {
		return 0, fmt.Errorf("the channel to it is lost since an earlier checkpoint: %w", err)
	}
	c.responseEnd.wait = nil
	for {
		_, err := c.line.reader.ReadFrame()
		switch {
		case errors.Is(err, errNothing):
			if c.line.unread > 0 {
				return dropped, ErrUnread
			}
			if c.line.reader.Partial() {
				return dropped, c.fail(fmt.Errorf("%w: the beginning of an answer that nobody asked for is in its response pipe", tpuwire.ErrNotMessage))
			}
			return dropped, nil
		case err != nil:
			return dropped, c.fail(err)
		}
		dropped++
		c.line.unread = max(0, c.line.unread-1)
		if dropped > maxStale {
			return dropped, c.fail(fmt.Errorf("%w: more than %d answers that nobody asked for are in its response pipe", tpuwire.ErrNotMessage, maxStale))
		}
	}
}

// fail remembers that no answer can be read any more: where the next frame starts
// is unknown.
func (c *channel) fail(err error) error {
	c.line.broken = err
	return err
}

// A memory holds the lines of channels that were left with something to remember.
// Its key is the response pipe, which lives as long as the runtime's.
type memory map[*pipe.Pipe]*line

// recall gives each runtime's channel what is remembered of it, and forgets the
// rest: channels whose runtimes are gone.
func (m memory) recall(runtimes []*runtime) {
	left := make(memory, len(m))
	for _, r := range runtimes {
		if l := m[r.channel.responsePipe]; l != nil {
			left[r.channel.responsePipe] = l
			r.channel.attach(l)
		}
	}
	clear(m)
	maps.Copy(m, left)
}

// keep remembers the channels that need it.
func (m memory) keep(runtimes []*runtime) {
	for _, r := range runtimes {
		if r.channel.line.clean() {
			delete(m, r.channel.responsePipe)
		} else {
			m[r.channel.responsePipe] = r.channel.line
		}
	}
}
