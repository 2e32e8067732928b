package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/guest"
	"tpuvisor.dev/tpuvisor/test/job"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// follow is a process of the job: it runs its members, and ends when they all
// have done their steps, or with the first that cannot.
func follow(o *options) int {
	go stayAlive()
	var wait sync.WaitGroup
	for i := range o.runtimes {
		m, err := newMember(o, i)
		if err != nil {
			fmt.Fprintln(os.Stderr, "trainer:", err)
			return exitOther
		}
		wait.Go(m.run)
	}
	wait.Wait()
	return 0
}

// stayAlive keeps the Go runtime from ending a process in which every goroutine
// waits: one whose runtime never answers, and whose job is held.
func stayAlive() {
	for {
		time.Sleep(time.Hour)
	}
}

// member is one TPU's part of the job.
type member struct {
	*options
	rank   int
	memory memory
	do     func(ctx context.Context, op func() error) error
}

// memory is where a member's weights lie.
type memory interface {
	read() ([]byte, error)
	write([]byte) error
}

// ram is the memory of a job that uses no TPU.
type ram struct{ bytes []byte }

func (r *ram) read() ([]byte, error) { return r.bytes, nil }
func (r *ram) write(b []byte) error  { r.bytes = b; return nil }

func newMember(o *options, index int) (*member, error) {
	m := &member{options: o, rank: o.process*o.runtimes + index}
	if o.cpu {
		m.memory = &ram{}
		m.do = func(_ context.Context, op func() error) error { return op() }
		return m, m.memory.write(job.New(m.rank, o.size).Bytes())
	}
	tpu := newTPU(o, m.rank)
	m.memory = tpu
	faults, err := libtpusim.ParseFaults(o.fault)
	if err != nil {
		return nil, err
	}
	runtime := libtpusim.New(libtpusim.Config{
		Rank:   m.rank,
		TPU:    tpu,
		Mesh:   newRemoteMesh(index),
		Hold:   libtpusim.Hold(o.hold),
		Faults: faults,
		Log:    func(q libtpusim.Request) { m.note("requests", q.String()) },
		Wedged: func(why error) { m.note("end", fmt.Sprintf("trainer: rank %d: %v", m.rank, why)) },
		Abort:  func(reason string) { m.end(exitAbort, errors.New(reason)) },
	})
	m.do = runtime.Do
	if err := startControl(o, m, runtime, tpu); err != nil {
		return nil, err
	}
	return m, m.memory.write(job.New(m.rank, o.size).Bytes())
}

// run does the member's steps.
func (m *member) run() {
	for step := 1; m.steps == 0 || step <= m.steps; step++ {
		var line job.Line
		err := m.do(context.Background(), func() (err error) {
			line, err = m.step()
			return err
		})
		switch {
		case errors.Is(err, guest.ErrDetached), errors.Is(err, guest.ErrCancelled):
			m.end(exitAbort, err)
		case errors.Is(err, job.ErrNoJob):
			m.end(exitNoJob, err)
		case err != nil:
			m.end(exitOther, err)
		}
		fmt.Println(line)
		m.note("steps", line.String())
		time.Sleep(m.pace)
	}
}

// step does one step in the TPU's memory.
func (m *member) step() (job.Line, error) {
	b, err := m.memory.read()
	if err != nil {
		return job.Line{}, err
	}
	state, err := job.Parse(b)
	if err != nil {
		return job.Line{}, err
	}
	if int(state.Rank) != m.rank {
		return job.Line{}, fmt.Errorf("%w of this member, but of member %d", job.ErrNoJob, state.Rank)
	}
	state.Train()
	line := job.Line{Rank: m.rank, Step: int(state.Step), Sum: state.Sum()}
	return line, m.memory.write(state.Bytes())
}

// note appends a line to one of the member's logs. The file is opened each time:
// after a restore it may be another one.
func (m *member) note(kind, line string) {
	name := filepath.Join(m.log, fmt.Sprintf("rank%d.%s", m.rank, kind))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "trainer: rank %d: log %q: %v\n", m.rank, line, err)
	}
}

// end ends the whole process, as a runtime that aborts does.
func (m *member) end(status int, why error) {
	text := fmt.Sprintf("trainer: rank %d: %v; the process ends with status %d", m.rank, why, status)
	m.note("end", text)
	fmt.Fprintln(os.Stderr, text)
	os.Exit(status)
}
