package kerneltest

import (
	"encoding/binary"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/pipefs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/kernel/sched"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/sentry/loader"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// Process makes a process with an empty FD table, in a container of that ID. The
// first one becomes the sandbox's init. It can be saved with the kernel.
func (k *Kernel) Process(tb testing.TB, name, container string) *kernel.ThreadGroup {
	tb.Helper()
	k.writeExecutable(tb, name)
	fds := k.NewFDTable()
	defer fds.DecRef(k.Ctx)
	ls, err := limits.NewLinuxLimitSet()
	if err != nil {
		tb.Fatal(err)
	}
	k.mounts.IncRef()
	tg, _, err := k.CreateProcess(kernel.CreateProcessArgs{
		Filename:             "/" + name,
		Argv:                 []string{name},
		Credentials:          k.creds(),
		FDTable:              fds,
		Limits:               ls,
		MaxSymlinkTraversals: 8,
		UTSNamespace:         k.RootUTSNamespace(),
		IPCNamespace:         k.RootIPCNamespace(),
		PIDNamespace:         k.RootPIDNamespace(),
		MountNamespace:       k.mounts,
		ContainerID:          container,
	})
	if err != nil {
		tb.Fatalf("creating process %q: %v", name, err)
	}
	return tg
}

// Thread adds a thread of that name to tg. It shares the leader's FD table,
// unless fds says another, of which it takes over the reference.
func (k *Kernel) Thread(tb testing.TB, tg *kernel.ThreadGroup, name string, fds *kernel.FDTable) *kernel.Task {
	tb.Helper()
	links := uint(8)
	image, creds, _, serr := k.LoadTaskImage(k.Ctx, loader.LoadArgs{
		Root: k.root, WorkingDir: k.root, RemainingTraversals: &links, ResolveFinal: true,
		Filename: k.executable(tb), Argv: []string{name}, Features: k.FeatureSet(),
	})
	if serr != nil {
		tb.Fatalf("loading the image of thread %q: %v", name, serr)
	}
	image.Name = name
	if fds == nil {
		fds = TableOf(tg.Leader())
		fds.IncRef()
	}
	k.mounts.IncRef()
	k.RootUTSNamespace().IncRef()
	k.RootIPCNamespace().IncRef()
	k.RootCgroupNamespace().IncRef()
	k.RootNetworkNamespace().IncRef()
	creds.UserNamespace.IncRef()
	t, err := k.TaskSet().NewTask(k.Ctx, &kernel.TaskConfig{
		Kernel: k.Kernel, ThreadGroup: tg, TaskImage: image, FDTable: fds, Credentials: creds,
		FSContext: kernel.NewFSContext(k.root, k.root, 0o22), MountNamespace: k.mounts,
		NetworkNamespace: k.RootNetworkNamespace(), UTSNamespace: k.RootUTSNamespace(),
		IPCNamespace: k.RootIPCNamespace(), CgroupNamespace: k.RootCgroupNamespace(),
		AllowedCPUMask: sched.NewFullCPUSet(k.ApplicationCores()),
		UserCounters:   k.GetUserCounters(creds.RealKUID), ContainerID: tg.Leader().ContainerID(),
	})
	if err != nil {
		tb.Fatalf("creating thread %q: %v", name, err)
	}
	return t
}

// exit is the system call, for a table of which it is the only one.
func exit(t *kernel.Task, _ uintptr, _ arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	t.PrepareExit(linux.WaitStatusExit(0))
	return 0, kernel.CtrlDoExit, nil
}

// Exit makes one thread of a started kernel exit, and returns when it has.
func (k *Kernel) Exit(tb testing.TB, t *kernel.Task) {
	tb.Helper()
	c, ok := k.Platform.(parkedPlatform).contexts.Load(t)
	if !ok {
		tb.Fatalf("thread %q was not started", t.Name())
	}
	close(c.(*parkedContext).exit)
	for start := time.Now(); t.ExitState() == kernel.TaskExitNone; time.Sleep(time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			tb.Fatalf("thread %q does not exit", t.Name())
		}
	}
}

// A File is an open file of the kernel.
type File = *vfs.FileDescription

// Pipe returns the ends of a new kernel pipe; the caller owns both references.
func (k *Kernel) Pipe(tb testing.TB) (r, w *vfs.FileDescription) {
	tb.Helper()
	r, w, err := pipefs.NewConnectedPipeFDs(k.Ctx, k.PipeMount(), 0)
	if err != nil {
		tb.Fatal(err)
	}
	return r, w
}

// Install puts file at fd into the task's table, which takes a reference of its
// own, and drops the caller's.
func (k *Kernel) Install(tb testing.TB, t *kernel.Task, fd int32, file *vfs.FileDescription) {
	tb.Helper()
	old, err := TableOf(t).NewFDAt(k.Ctx, fd, file, kernel.FDFlags{})
	if err != nil {
		tb.Fatalf("FD %d: %v", fd, err)
	}
	if old != nil {
		old.DecRef(k.Ctx)
	}
	file.DecRef(k.Ctx)
}

// Close closes fd in the task's table.
func (k *Kernel) Close(tb testing.TB, t *kernel.Task, fd int32) {
	tb.Helper()
	file := TableOf(t).Remove(k.Ctx, fd)
	if file == nil {
		tb.Fatalf("FD %d is not open", fd)
	}
	file.DecRef(k.Ctx)
}

// TableOf returns the task's FD table, without a reference.
func TableOf(t *kernel.Task) (fds *kernel.FDTable) {
	t.WithMuLocked(func(t *kernel.Task) { fds = t.FDTable() })
	return fds
}

func (k *Kernel) creds() *auth.Credentials { return auth.NewRootCredentials(k.RootUserNamespace()) }

func (k *Kernel) executable(tb testing.TB) string {
	const name = "thread"
	k.writeExecutable(tb, name)
	return "/" + name
}

func (k *Kernel) writeExecutable(tb testing.TB, name string) {
	tb.Helper()
	f := k.Open(tb, name, linux.O_RDWR|linux.O_CREAT|linux.O_TRUNC)
	defer f.DecRef(k.Ctx)
	if _, err := f.Write(k.Ctx, usermem.BytesIOSequence(smallestELF()), vfs.WriteOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// Open opens a file in the root file system.
func (k *Kernel) Open(tb testing.TB, name string, flags uint32) *vfs.FileDescription {
	tb.Helper()
	f, err := k.VFS().OpenAt(k.Ctx, k.creds(),
		&vfs.PathOperation{Root: k.root, Start: k.root, Path: fspath.Parse("/" + name)},
		&vfs.OpenOptions{Flags: flags, Mode: 0o755})
	if err != nil {
		tb.Fatalf("opening %s: %v", name, err)
	}
	return f
}

// smallestELF is a static executable of one segment that jumps to itself.
func smallestELF() []byte {
	const base, headers = 0x400000, 64 + 56
	b := make([]byte, headers+16)
	le := binary.LittleEndian
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 2)            // executable
	le.PutUint16(b[18:], 62)           // amd64
	le.PutUint32(b[20:], 1)            // version
	le.PutUint64(b[24:], base+headers) // entry
	le.PutUint64(b[32:], 64)           // where the program header is
	le.PutUint16(b[52:], 64)           // size of this header
	le.PutUint16(b[54:], 56)           // size of a program header
	le.PutUint16(b[56:], 1)            // one of them
	p := b[64:]
	le.PutUint32(p[0:], 1) // to load
	le.PutUint32(p[4:], 5) // read, execute
	le.PutUint64(p[16:], base)
	le.PutUint64(p[24:], base)
	le.PutUint64(p[32:], uint64(len(b)))
	le.PutUint64(p[40:], uint64(len(b)))
	le.PutUint64(p[48:], 0x1000)
	copy(b[headers:], "\xeb\xfe")
	return b
}
