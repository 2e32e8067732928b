package tpucmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
)

// lock locks the runtimes.
type lock struct {
	output
	lease time.Duration
	keep  bool
}

func (*lock) Name() string     { return "lock" }
func (*lock) Synopsis() string { return "hold the work of all TPU runtimes, for a time" }
func (*lock) Usage() string {
	return `lock [-lease 10m] [-keep] [-format table|json] <container id> - lock all TPU runtimes
of the container's sandbox: they finish what they do, and begin nothing. They are
unlocked by "runsc tpu unlock", or when the lease has run out. Locked again, the
lease begins anew, and runtimes that have come since are locked too.

A checkpoint leaves the runtimes locked. The restored sandbox unlocks them when they
have their TPUs back, or with -keep begins the lease anew.
`
}

func (l *lock) SetFlags(f *flag.FlagSet) {
	l.setFlags(f)
	f.DurationVar(&l.lease, "lease", 10*time.Minute, "time after which the runtimes are unlocked by themselves, from 1s to 24h")
	f.BoolVar(&l.keep, "keep", false, "keep the lock over a checkpoint and a restore")
}

func (l *lock) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	l.check()
	c := load(f, args)
	var held api.Locked
	if err := client.Call(c, api.OpLock, api.Lock{Lease: l.lease, Keep: l.keep}, &held); err != nil {
		util.Fatalf("locking the TPU runtimes: %v", err)
	}
	l.show(held, func(w io.Writer) { lockedTable(w, held) })
	return subcommands.ExitSuccess
}

// unlock ends a lock.
type unlock struct{ output }

func (*unlock) Name() string     { return "unlock" }
func (*unlock) Synopsis() string { return "let all TPU runtimes go on with their work" }
func (*unlock) Usage() string {
	return `unlock [-format table|json] <container id> - unlock the TPU runtimes that "runsc tpu lock"
has locked.
`
}
func (u *unlock) SetFlags(f *flag.FlagSet) { u.setFlags(f) }

func (u *unlock) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	u.check()
	c := load(f, args)
	var was api.Locked
	if err := client.Call(c, api.OpUnlock, nil, &was); err != nil {
		util.Fatalf("unlocking the TPU runtimes: %v", err)
	}
	u.show(was, func(w io.Writer) { lockedTable(w, was) })
	return subcommands.ExitSuccess
}

func lockedTable(w io.Writer, l api.Locked) {
	fmt.Fprintln(w, "CONTAINER\tPID\tCOMMAND\tTHREAD")
	for _, r := range l.Runtimes {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\n", orDash(r.Container), r.PID, quote(r.Command), r.TID)
	}
	if l.Lease != nil {
		fmt.Fprintf(w, "locked until %s\n", clock(l.Lease.Until))
	}
}
