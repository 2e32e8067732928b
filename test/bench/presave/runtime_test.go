package presave

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/devices/tpuproxy/vfio"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// The FDs of a process with a runtime.
const (
	requestFD, responseFD       = 4, 5
	ownRequestFD, ownResponseFD = 6, 7
	tpuFD                       = 8
	firstFree                   = 16
)

// makeTPU makes the kernel know /dev/vfio/0 of the host, and returns what opens it:
// upstream knows its own files only.
func makeTPU(b *testing.B, k *kerneltest.Kernel) func() *vfs.FileDescription {
	b.Helper()
	if err := errors.Join(vfio.Register(k.VFS(), false), vfio.RegisterTPUDevice(k.VFS(), 0, 0, false)); err != nil {
		b.Fatal(err)
	}
	major, err := vfio.GetTPUDeviceMajor(k.VFS())
	if err != nil {
		b.Fatal(err)
	}
	return func() *vfs.FileDescription {
		vd := k.VFS().NewAnonVirtualDentry("tpu")
		defer vd.DecRef(k.Ctx)
		file, err := k.VFS().OpenDeviceSpecialFile(k.Ctx, vd.Mount(), vd.Dentry(), vfs.CharDevice, major, 0, &vfs.OpenOptions{Flags: linux.O_RDWR})
		if err != nil {
			b.Skipf("no TPU to open; run this on a host that test/cmd/tpuhost makes: %v", err)
		}
		return file
	}
}

// runtime is a process with a TPU and a control thread, played by a goroutine that
// answers at once.
type runtime struct {
	b       *testing.B
	k       *kerneltest.Kernel
	process *kernel.ThreadGroup
	open    func() *vfs.FileDescription
	in, out end
}

func newRuntime(b *testing.B, k *kerneltest.Kernel, open func() *vfs.FileDescription) *runtime {
	b.Helper()
	r := &runtime{b: b, k: k, process: k.Process(b, "runtime", "c1"), open: open}
	leader := r.process.Leader()
	requestsOut, requestsIn := k.Pipe(b)
	answersOut, answersIn := k.Pipe(b)
	for fd, file := range map[int32]*vfs.FileDescription{
		requestFD: requestsIn, responseFD: answersOut, ownRequestFD: requestsOut, ownResponseFD: answersIn,
	} {
		k.Install(b, leader, fd, file)
	}
	k.Install(b, leader, tpuFD, open())
	r.in, r.out = end{k, requestsOut, nil}, end{k, answersIn, nil}
	name := tpuwire.ThreadName{RequestFD: requestFD, ResponseFD: responseFD}
	k.Thread(b, r.process, name.String(), nil)
	stop := make(chan struct{})
	r.in.stop = stop
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.serve()
	}()
	b.Cleanup(func() { close(stop); <-done })
	return r
}

func (r *runtime) serve() {
	reader := tpuwire.NewReader(&r.in)
	for {
		var request controlpb.ControlRequest
		if err := reader.ReadMessage(&request); err != nil {
			if !errors.Is(err, errStopped) {
				r.b.Errorf("the runtime reads a request: %v", err)
			}
			return
		}
		table := kerneltest.TableOf(r.process.Leader())
		state := controlpb.RuntimeState_STATE_DETACHED
		if request.GetAction() == controlpb.ControlAction_ACTION_RESTORE {
			state = controlpb.RuntimeState_STATE_RUNNING
			r.k.Install(r.b, r.process.Leader(), tpuFD, r.open())
		} else if file := table.Remove(r.k.Ctx, tpuFD); file != nil {
			file.DecRef(r.k.Ctx)
		}
		err := tpuwire.WriteMessage(&r.out, &controlpb.ControlResponse{Success: proto.Bool(true), CurrentState: state.Enum()})
		if err != nil {
			r.b.Errorf("the runtime writes an answer: %v", err)
			return
		}
	}
}

var errStopped = errors.New("the benchmark is over")

// end is a runtime's own end of a pipe.
type end struct {
	k    *kerneltest.Kernel
	file *vfs.FileDescription
	stop <-chan struct{}
}

func (e *end) Read(p []byte) (int, error) {
	entry, notify := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp)
	if err := e.file.EventRegister(&entry); err != nil {
		return 0, err
	}
	defer e.file.EventUnregister(&entry)
	for {
		n, err := e.file.Read(e.k.Ctx, usermem.BytesIOSequence(p), vfs.ReadOptions{})
		switch {
		case n > 0:
			return int(n), nil
		case err == nil:
			return 0, io.EOF
		case !linuxerr.Equals(linuxerr.ErrWouldBlock, err):
			return 0, err
		}
		select {
		case <-notify:
		case <-e.stop:
			return 0, errStopped
		}
	}
}

// Write writes what always fits.
func (e *end) Write(p []byte) (int, error) {
	n, err := e.file.Write(e.k.Ctx, usermem.BytesIOSequence(p), vfs.WriteOptions{})
	return int(n), err
}
