package kerneltest

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/platform"
)

// parkedPlatform is a platform on which guest code does nothing until it is
// interrupted: enough for tasks to be started, paused, signalled and killed.
// Whatever would need a real platform reaches the nil interface and panics.
type parkedPlatform struct{ platform.Platform }

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

func (parkedPlatform) NewContext(context.Context) platform.Context {
	return &parkedContext{wake: make(chan struct{}, 1)}
}

type parkedContext struct {
	platform.Context
	wake chan struct{}
}

func (c *parkedContext) Switch(context.Context, platform.MemoryManager, *arch.Context64, int32) (*linux.SignalInfo, hostarch.AccessType, error) {
	<-c.wake
	return nil, hostarch.NoAccess, platform.ErrContextInterrupt
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
