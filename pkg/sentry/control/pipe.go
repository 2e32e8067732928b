package control

import (
	gocontext "context"
	"errors"
	"fmt"
	"io"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// errNothing is what a read or write that may not wait says when it would have to.
var errNothing = errors.New("nothing to read")

// A stream makes an io.ReadWriter of one end of a guest's pipe. Guest pipes never
// block the sentry: they say that they would, and are waited for here.
type stream struct {
	sctx context.Context // the kernel's supervisor context
	file *vfs.FileDescription
	mask waiter.EventMask

	// wait bounds the waiting; nil does not wait at all.
	wait gocontext.Context
}

// attempt is a read or a write that may say that it would block. The waiter's
// entry is registered before the first try, so that nothing is missed.
func (s *stream) attempt(try func() (int64, error)) (int, error) {
	n, err := try()
	if n > 0 || !linuxerr.Equals(linuxerr.ErrWouldBlock, err) {
		return int(n), plain(n, err)
	}
	if s.wait == nil {
		return 0, errNothing
	}
	entry, notify := waiter.NewChannelEntry(s.mask | waiter.EventHUp | waiter.EventErr)
	if err := s.file.EventRegister(&entry); err != nil {
		return 0, fmt.Errorf("waiting for the pipe: %w", err)
	}
	defer s.file.EventUnregister(&entry)
	for {
		n, err := try()
		if n > 0 || !linuxerr.Equals(linuxerr.ErrWouldBlock, err) {
			return int(n), plain(n, err)
		}
		select {
		case <-notify:
		case <-s.wait.Done():
			// What came with the last tick of the clock still counts.
			if n, err := try(); n > 0 {
				return int(n), plain(n, err)
			}
			return 0, gocontext.Cause(s.wait)
		}
	}
}

// plain drops the would-block that comes with a partial transfer: io has no word
// for it.
func plain(n int64, err error) error {
	if n > 0 && linuxerr.Equals(linuxerr.ErrWouldBlock, err) {
		return nil
	}
	return err
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.attempt(func() (int64, error) {
		return s.file.Read(s.sctx, usermem.BytesIOSequence(p), vfs.ReadOptions{})
	})
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	return n, err
}

func (s *stream) Write(p []byte) (int, error) {
	n, err := s.attempt(func() (int64, error) {
		return s.file.Write(s.sctx, usermem.BytesIOSequence(p), vfs.WriteOptions{})
	})
	if linuxerr.Equals(linuxerr.EPIPE, err) {
		return n, fmt.Errorf("%w: the runtime has closed its request pipe", tpuwire.ErrClosed)
	}
	if n < len(p) && err == nil {
		err = io.ErrShortWrite
	}
	return n, err
}

// pipeEnd returns the pipe behind an open file that is the wanted end of one.
// Nothing else may ever be read or written.
func pipeEnd(file *vfs.FileDescription, write bool) (*pipe.Pipe, error) {
	fd, ok := file.Impl().(*pipe.VFSPipeFD)
	switch {
	case !ok:
		return nil, errors.New("is not a pipe")
	case write && !file.IsWritable():
		return nil, errors.New("is not the write end of a pipe")
	case !write && !file.IsReadable():
		return nil, errors.New("is not the read end of a pipe")
	}
	return fd.Pipe(), nil
}

// inode returns the pipe's inode number, which stays the same over a save.
func inode(sctx context.Context, file *vfs.FileDescription) (uint64, error) {
	stat, err := file.Stat(sctx, vfs.StatOptions{})
	if err != nil {
		return 0, err
	}
	return stat.Ino, nil
}
