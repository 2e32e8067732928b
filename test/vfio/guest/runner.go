package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
	"tpuvisor.dev/tpuvisor/test/vfio/guest/session"
	"tpuvisor.dev/tpuvisor/test/vfio/guest/vfio"
)

// runner holds the TPUs. It is also the device of the control thread's machine.
type runner struct {
	hold bool

	mu       sync.Mutex
	sessions map[int]*session.Session // by what N stands for
	saved    map[int][]byte           // HBM of those that CHECKPOINT has closed
	actions  []string
}

func newRunner(hold bool) *runner {
	return &runner{hold: hold, sessions: make(map[int]*session.Session), saved: make(map[int][]byte)}
}

// Topology implements guest.Device.
func (r *runner) Topology() *controlpb.TpuTopology { return nil }

// Detach implements guest.Device.
func (r *runner) Detach(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.actions = append(r.actions, "checkpoint")
	if r.hold {
		return nil
	}
	for n, s := range r.sessions {
		hbm, err := s.Save()
		if err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
		r.saved[n] = hbm
		delete(r.sessions, n)
	}
	return nil
}

// Attach implements guest.Device.
func (r *runner) Attach(context.Context, *controlpb.TpuTopology) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.actions = append(r.actions, "restore")
	for _, n := range slices.Sorted(maps.Keys(r.saved)) {
		if err := r.open(n); err != nil {
			return err
		}
		if err := r.sessions[n].Load(r.saved[n]); err != nil {
			return err
		}
		delete(r.saved, n)
	}
	return nil
}

func (r *runner) open(n int) error {
	tpus, err := look()
	if err != nil {
		return err
	}
	if n >= len(tpus) {
		return fmt.Errorf("there are %d TPUs", len(tpus))
	}
	return r.openAt(n, session.TPU{Group: tpus[n].Group, Address: tpus[n].Address})
}

func (r *runner) openAt(n int, tpu session.TPU) error {
	s, err := session.Open(tpu)
	if err != nil {
		return err
	}
	r.sessions[n] = s
	return nil
}

// do carries out one command.
func (r *runner) do(words []string) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var a answer
	if err := r.try(words, &a); err != nil {
		a.Error = err.Error()
	}
	return a
}

func (r *runner) try(words []string, a *answer) (err error) {
	if len(words) == 0 {
		return errors.New("no command")
	}
	verb, args := words[0], words[1:]
	switch verb {
	case "look":
		a.Nodes, err = nodes()
		if err != nil {
			return err
		}
		a.TPUs, err = look()
		return err
	case "actions":
		a.Text = fmt.Sprint(r.actions)
		return nil
	case "openat":
		if len(args) != 2 {
			return errors.New("openat GROUP ADDRESS")
		}
		group, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return r.openAt(0, session.TPU{Group: group, Address: args[1]})
	}
	numbers, rest := numbers(args)
	if len(numbers) == 0 {
		return fmt.Errorf("%s: which TPU?", verb)
	}
	if verb == "open" {
		return r.open(numbers[0])
	}
	s, ok := r.sessions[numbers[0]]
	if !ok {
		return fmt.Errorf("TPU %d is not open", numbers[0])
	}
	if verb == "close" {
		delete(r.sessions, numbers[0])
		return s.Close()
	}
	return use(s, verb, append(numbers[1:], 0, 0), rest, a)
}

// use does something with an open TPU.
func use(s *session.Session, verb string, n []int, rest string, a *answer) (err error) {
	switch verb {
	case "dma":
		return s.DMA(uint64(n[0]), n[1])
	case "fill":
		return s.Fill(uint64(n[0]))
	case "verify":
		return s.Verify(uint64(n[0]))
	case "arm":
		return s.Arm()
	case "interrupt":
		return s.Interrupt()
	case "interrupts":
		a.Count, err = s.Interrupts(5 * time.Second)
		return err
	case "status":
		a.State = s.Status()
		return nil
	case "reattach":
		return s.Reattach(rest)
	case "reset":
		return vfio.Reset(s.Device)
	}
	return fmt.Errorf("unknown command %q", verb)
}

// numbers takes the leading numbers off; rest is the first word after them.
func numbers(args []string) (n []int, rest string) {
	for _, arg := range args {
		v, err := strconv.Atoi(arg)
		if err != nil {
			return n, arg
		}
		n = append(n, v)
	}
	return n, ""
}
