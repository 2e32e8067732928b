// Package kerneltest boots a real gVisor kernel inside a test process, without a
// sandbox: it makes processes, threads, pipes and stand-in devices, and saves and
// loads the kernel. Only the platform is invented, so guest code does not run;
// tests play the guest on the pipes.
//
// For tests only. It may import gVisor, and nothing of this module but what a
// stand-in device has to satisfy.
package kerneltest

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/memutil"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/cgroup2fs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/loader"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	sentrytime "gvisor.dev/gvisor/pkg/sentry/time"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

var once = sync.OnceValue(func() error {
	log.SetLevel(log.Warning) // the clocks' calibration would drown the tests' own lines
	cpuid.Initialize()
	seccheck.Initialize()
	// Importing gVisor's pkg/sentry/control registers the real table.
	if _, ok := kernel.LookupSyscallTable(abi.Linux, arch.Host); !ok {
		kernel.RegisterSyscallTable(&kernel.SyscallTable{OS: abi.Linux, Arch: arch.Host, Table: map[uintptr]kernel.Syscall{unix.SYS_EXIT: {Name: "exit", Fn: exit}}})
	}
	return usage.Init()
})

// Kernel is a booted kernel with a root file system in memory.
type Kernel struct {
	*kernel.Kernel

	// Ctx is the kernel's supervisor context.
	Ctx context.Context

	mounts *vfs.MountNamespace
	root   vfs.VirtualDentry
}

// Boot boots a kernel and has it torn down at the end of the test. Call it
// outside a testing/synctest bubble: the kernel's own goroutines keep real time.
func Boot(tb testing.TB) *Kernel {
	tb.Helper()
	if runtime.GOARCH != "amd64" {
		tb.Fatalf("kerneltest makes amd64 executables; this is %s", runtime.GOARCH)
	}
	k, err := boot()
	if err != nil {
		tb.Fatalf("booting a kernel: %v", err)
	}
	tb.Cleanup(k.shutdown)
	return k
}

func boot() (*Kernel, error) {
	if err := once(); err != nil {
		return nil, err
	}
	k := &kernel.Kernel{Platform: newPlatform()}
	mf, err := newMemoryFile()
	if err != nil {
		return nil, err
	}
	k.SetMemoryFile(mf)
	vdso, err := loader.PrepareVDSO(mf)
	if err != nil {
		return nil, fmt.Errorf("vdso: %w", err)
	}
	params := kernel.NewVDSOParamPage(mf, vdso.ParamPage.FileRange())
	timekeeper := kernel.NewTimekeeper()
	timekeeper.SetClocks(sentrytime.NewCalibratedClocks(false), params)
	users := auth.NewRootUserNamespace()
	err = k.Init(kernel.InitKernelArgs{
		ApplicationCores:  1,
		FeatureSet:        cpuid.HostFeatureSet(),
		Timekeeper:        timekeeper,
		RootUserNamespace: users,
		Vdso:              vdso,
		VdsoParams:        params,
		RootUTSNamespace:  kernel.NewUTSNamespace("test", "test", users),
		RootIPCNamespace:  kernel.NewIPCNamespace(users),
		RootPIDNamespace:  kernel.NewRootPIDNamespace(users),
		Cgroup2FSInit:     cgroup2fs.NewFilesystem,
	})
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	return mountRoot(k)
}

func newMemoryFile() (*pgalloc.MemoryFile, error) {
	fd, err := memutil.CreateMemFD("kerneltest", 0)
	if err != nil {
		return nil, err
	}
	return pgalloc.NewMemoryFile(os.NewFile(uintptr(fd), "kerneltest"), pgalloc.MemoryFileOpts{DisableMemoryAccounting: true})
}

func mountRoot(k *kernel.Kernel) (*Kernel, error) {
	k.VFS().MustRegisterFilesystemType(tmpfs.Name, &tmpfs.FilesystemType{}, &vfs.RegisterFilesystemTypeOptions{})
	hostFS, err := host.NewFilesystem(k.VFS())
	if err != nil {
		return nil, fmt.Errorf("hostfs: %w", err)
	}
	// Kernel.Release needs one.
	k.SetHostMount(k.VFS().NewDisconnectedMount(hostFS, nil, &vfs.MountOptions{}))
	ctx := k.SupervisorContext()
	creds := auth.NewRootCredentials(k.RootUserNamespace())
	mounts, err := k.VFS().NewMountNamespace(ctx, creds, "", tmpfs.Name, &vfs.MountOptions{}, k)
	if err != nil {
		return nil, fmt.Errorf("root file system: %w", err)
	}
	return &Kernel{Kernel: k, Ctx: ctx, mounts: mounts, root: mounts.Root(ctx)}, nil
}

// shutdown ends what started tasks there are. A kernel that was never started
// has no goroutine of its own but its clocks' one.
func (k *Kernel) shutdown() {
	for k.IsPaused() {
		k.Unpause()
	}
	k.Kill(linux.WaitStatusExit(0))
	k.Timekeeper().Destroy()
}

// HostFDs returns how many file descriptors this process has open, for tests
// that compare before and after.
func HostFDs(tb testing.TB) int {
	tb.Helper()
	d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", unix.Getpid()))
	if err != nil {
		tb.Fatal(err)
	}
	return len(d)
}
