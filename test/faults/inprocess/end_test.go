package inprocess

import (
	gocontext "context"
	"errors"
	"io"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
)

// errIdle ends a control thread that waits for a request; errOver one that does
// anything else.
var (
	errIdle = errors.New("no request any more")
	errOver = errors.New("the guest's time is over")
)

// An end is a guest's own end of a pipe. It waits as a guest's thread would, and holds
// a reference.
type end struct {
	k    *kerneltest.Kernel
	ctx  gocontext.Context // the guest's time
	file *vfs.FileDescription
	mask waiter.EventMask
	shut func() // closes the guest's FD

	mu sync.Mutex // of changes to file, which its own thread alone makes
}

// peek returns the file for somebody else than its thread, with a reference, or nil.
func (e *end) peek() *vfs.FileDescription {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file != nil {
		e.file.IncRef()
	}
	return e.file
}

func (e *end) wait(try func() (int64, error)) (int, error) {
	entry, notify := waiter.NewChannelEntry(e.mask | waiter.EventHUp | waiter.EventErr)
	if err := e.file.EventRegister(&entry); err != nil {
		return 0, err
	}
	defer e.file.EventUnregister(&entry)
	for {
		// A paused guest does nothing.
		for e.k.IsPaused() && e.ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		if n, err := try(); n > 0 || !linuxerr.Equals(linuxerr.ErrWouldBlock, err) {
			if linuxerr.Equals(linuxerr.ErrWouldBlock, err) {
				err = nil
			}
			return int(n), err
		}
		select {
		case <-notify:
		case <-e.ctx.Done():
			return 0, errIdle
		}
	}
}

func (e *end) Read(p []byte) (int, error) {
	n, err := e.wait(func() (int64, error) {
		return e.file.Read(e.k.Ctx, usermem.BytesIOSequence(p), vfs.ReadOptions{})
	})
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

func (e *end) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := e.wait(func() (int64, error) {
			return e.file.Write(e.k.Ctx, usermem.BytesIOSequence(p[done:]), vfs.WriteOptions{})
		})
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Close closes the guest's FD, and drops the reference.
func (e *end) Close() error {
	if e.file != nil {
		e.shut()
		e.drop()
	}
	return nil
}

// drop drops the reference alone.
func (e *end) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file != nil {
		e.file.DecRef(e.k.Ctx)
		e.file = nil
	}
}

// left reads what is in the pipe, without waiting.
func left(k *kerneltest.Kernel, file *vfs.FileDescription) []byte {
	var all []byte
	buf := make([]byte, 64<<10)
	for {
		n, _ := file.Read(k.Ctx, usermem.BytesIOSequence(buf), vfs.ReadOptions{})
		if n <= 0 {
			return all
		}
		all = append(all, buf[:n]...)
	}
}
