package guest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// pipes are the pipes of a control thread: this side's ends as files, the driver's as
// numbers.
type pipes struct {
	requests, answers *os.File
	toSend, toReceive int // the driver's ends
}

// openPipes makes the pipes, with the driver's ends at lowest or above.
func openPipes(lowest int) (*pipes, error) {
	requests, toSend, err := openPipe()
	if err != nil {
		return nil, err
	}
	toReceive, answers, err := openPipe()
	if err != nil {
		return nil, errors.Join(err, unix.Close(requests), unix.Close(toSend))
	}
	p := &pipes{toSend: toSend, toReceive: toReceive}
	p.requests = os.NewFile(uintptr(requests), "requests")
	p.answers = os.NewFile(uintptr(answers), "answers")
	if err := p.place(lowest); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// openPipe returns a pipe's read and write end. They do not survive an exec, and do
// not block: this side waits in the Go runtime, where a deadline can end the wait.
func openPipe() (int, int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, -1, fmt.Errorf("make a pipe: %w", err)
	}
	return ends[0], ends[1], nil
}

// place moves the driver's ends to where the name can tell them.
func (p *pipes) place(lowest int) error {
	for _, fd := range []*int{&p.toSend, &p.toReceive} {
		if *fd < lowest {
			moved, err := unix.FcntlInt(uintptr(*fd), unix.F_DUPFD_CLOEXEC, lowest)
			if err != nil {
				return fmt.Errorf("move a pipe to descriptor %d or above: %w", lowest, err)
			}
			unix.Close(*fd)
			*fd = moved
		}
		if *fd > tpuwire.MaxFD {
			return fmt.Errorf("descriptor %d does not fit into a thread's name: the largest is %d", *fd, tpuwire.MaxFD)
		}
	}
	return nil
}

func (p *pipes) name() tpuwire.ThreadName {
	return tpuwire.ThreadName{RequestFD: int32(p.toSend), ResponseFD: int32(p.toReceive)}
}

func (p *pipes) close() {
	p.requests.Close()
	p.answers.Close()
	unix.Close(p.toSend)
	unix.Close(p.toReceive)
}
