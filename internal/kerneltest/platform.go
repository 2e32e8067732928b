package kerneltest

import (
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/platform"
)

// parkedPlatform is a platform on which guest code does nothing until it is
// interrupted, or told to exit: enough for tasks to be started, paused, signalled
// and killed. Whatever would need a real platform reaches the nil interface and
// panics.
type parkedPlatform struct {
	platform.Platform
	contexts *sync.Map // *kernel.Task to *parkedContext
}

func newPlatform() parkedPlatform { return parkedPlatform{contexts: new(sync.Map)} }

func (parkedPlatform) SupportsAddressSpaceIO() bool  { return false }
func (parkedPlatform) DetectsCPUPreemption() bool    { return false }
func (parkedPlatform) HaveGlobalMemoryBarrier() bool { return false }
func (parkedPlatform) HasCPUNumbers() bool           { return false }
func (parkedPlatform) NumCPUs() int                  { return 0 }
func (parkedPlatform) ConcurrencyCount() int         { return 1 }
func (parkedPlatform) MapUnit() uint64               { return 0 }
func (parkedPlatform) MinUserAddress() hostarch.Addr { return hostarch.PageSize }
func (parkedPlatform) MaxUserAddress() hostarch.Addr { return 1 << 46 }
func (parkedPlatform) PreemptAllCPUs() error         { return nil }

func (parkedPlatform) NewAddressSpace() (platform.AddressSpace, error) { return emptySpace{}, nil }

func (p parkedPlatform) NewContext(ctx context.Context) platform.Context {
	c := &parkedContext{wake: make(chan struct{}, 1), exit: make(chan struct{})}
	p.contexts.Store(kernel.TaskFromContext(ctx), c)
	return c
}

type parkedContext struct {
	platform.Context
	wake chan struct{}
	exit chan struct{} // closed when the task is to exit
}

func (c *parkedContext) Switch(_ context.Context, _ platform.MemoryManager, ac *arch.Context64, _ int32) (*linux.SignalInfo, hostarch.AccessType, error) {
	select {
	case <-c.wake:
		return nil, hostarch.NoAccess, platform.ErrContextInterrupt
	case <-c.exit:
		ac.Regs.Orig_rax, ac.Regs.Rax, ac.Regs.Rdi = unix.SYS_EXIT, unix.SYS_EXIT, 0
		return nil, hostarch.NoAccess, nil
	}
}

func (c *parkedContext) Interrupt() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (*parkedContext) Preempt()                                                   {}
func (*parkedContext) Release()                                                   {}
func (*parkedContext) PullFullState(platform.AddressSpace, *arch.Context64) error { return nil }
func (*parkedContext) FullStateChanged()                                          {}
func (*parkedContext) PrepareSleep()                                              {}
func (*parkedContext) PrepareUninterruptibleSleep()                               {}
func (*parkedContext) PrepareStop()                                               {}
func (*parkedContext) PrepareExecve()                                             {}
func (*parkedContext) PrepareExit()                                               {}
func (*parkedContext) LastCPUNumber() int32                                       { return 0 }

// emptySpace is an address space into which nothing is ever mapped.
type emptySpace struct{ platform.AddressSpace }

func (emptySpace) Release()                    {}
func (emptySpace) PreFork()                    {}
func (emptySpace) PostFork()                   {}
func (emptySpace) Unmap(hostarch.Addr, uint64) {}
