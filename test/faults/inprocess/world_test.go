package inprocess

import (
	gocontext "context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// patience is the limit of whatever waits in real time: it is there against hangs.
const patience = time.Minute

// A world is a kernel with a plane, and the members of a job.
type world struct {
	t       *testing.T
	k       *kerneltest.Kernel
	plane   *control.Plane
	specs   specMap
	limit   time.Duration // of each runtime
	real    bool          // time is real
	started bool
	members []*member
	oneMesh bool           // all are members of one mesh
	mesh    libtpusim.Mesh // nil: each is alone

	outside chan func() // done by a goroutine in real time
	back    chan bool   // it has done it

	ctx  gocontext.Context // the guests' time
	stop gocontext.CancelCauseFunc
	done sync.WaitGroup
}

// specMap is a Saver that knows containers' specs, as gVisor's loader does. The test
// kernel has no container names, so that every container is named "".
type specMap map[string]*specs.Spec

func (specMap) SaveAsync() error                            { return errors.New("not in tests") }
func (specMap) SpecEnviron(string) []string                 { return nil }
func (specMap) FSSave() error                               { return errors.New("not in tests") }
func (m specMap) GetContainerSpecs() map[string]*specs.Spec { return m }

func alwaysOpen(*vfs.VirtualFilesystem) bool { return true }

func init() { log.SetTarget(&log.Writer{Next: io.Discard}) }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, k: kerneltest.Boot(t), limit: 3 * time.Minute,
		plane: &control.Plane{Devices: control.Devices{MayBeOpen: alwaysOpen}},
		specs: specMap{"": {Annotations: map[string]string{}}},
	}
	w.k.SetSaver(w.specs)
	w.k.Process(t, "init", "c1") // if it ended, so would all others
	w.outside, w.back = make(chan func()), make(chan bool)
	go func() {
		for f := range w.outside {
			w.doOutside(f)
		}
	}()
	t.Cleanup(func() {
		close(w.outside)
		w.start(t) // what was never started would never end
	})
	return w
}

// setLimit gives each runtime another time limit.
func (w *world) setLimit(limit time.Duration) {
	w.limit = limit
	w.annotate("timeout", limit.String())
}

// lock makes the handshake that with locks.
func (w *world) lock(lock bool) {
	if lock {
		w.annotate("handshake", "lock")
	}
}

func (w *world) annotate(name, value string) { w.specs[""].Annotations[settings.Prefix+name] = value }

// realTime starts the kernel's tasks, which makes time real.
func (w *world) realTime(t *testing.T) {
	t.Helper()
	w.real = true
	w.setLimit(patience)
	w.start(t)
}

func (w *world) start(t *testing.T) {
	t.Helper()
	if !w.started {
		w.started = true
		if err := w.k.Start(); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs f with virtual time, unless that is real, while guests act.
func (w *world) run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	within := func(t *testing.T) {
		if w.oneMesh {
			w.mesh = libtpusim.NewMesh()
		}
		for _, m := range w.members {
			m.begin()
		}
		w.open()
		defer w.close()
		f(t)
	}
	if w.real {
		within(t)
		return
	}
	synctest.Test(t, within)
}

// open lets the guests act; close ends that.
func (w *world) open() {
	w.ctx, w.stop = gocontext.WithCancelCause(gocontext.Background())
	for _, m := range w.members {
		m.serve()
	}
	w.rest()
}

func (w *world) close() {
	w.stop(errOver)
	w.done.Wait()
	for _, m := range w.members {
		m.dropEnds()
	}
}

// rest returns when all that can be done has been done, without the passing of time.
func (w *world) rest() {
	if !w.real {
		synctest.Wait()
	}
}

// settle lets so much time pass that whatever is late has come.
func (w *world) settle() {
	if !w.real {
		time.Sleep(5 * w.limit)
		synctest.Wait()
	}
}

// doOutside does f, which may end its goroutine as a failing test does.
func (w *world) doOutside(f func()) {
	done := make(chan bool)
	go func() {
		ok := false
		defer func() { done <- ok }()
		f()
		ok = true
	}()
	w.back <- <-done
}

// inReal does what must not be done in a bubble: the kernel's own goroutines must be
// part of none.
func (w *world) inReal(t *testing.T, f func()) {
	t.Helper()
	if w.real {
		f()
		return
	}
	w.outside <- f
	if !<-w.back {
		t.FailNow()
	}
}

// move saves the kernel and makes the world that of a new one, loaded from the image.
func (w *world) move(t *testing.T) {
	t.Helper()
	w.close()
	w.inReal(t, func() {
		w.start(w.t)
		w.k = kerneltest.Load(w.t, w.k.Save(w.t))
	})
	w.k.SetSaver(w.specs)
	w.plane = &control.Plane{Devices: w.plane.Devices}
	for _, m := range w.members {
		if err := m.moveTo(w.k); err != nil {
			t.Fatal(err)
		}
	}
	w.open()
}

// A count is what must be the same before and after.
type count struct {
	refs   map[*member]map[int32]int64
	paused bool
}

func (w *world) count() count {
	w.rest()
	c := count{
		refs:   map[*member]map[int32]int64{},
		paused: w.k.IsPaused(),
	}
	for _, m := range w.members {
		if !m.dead.Load() {
			c.refs[m] = w.refs(kerneltest.TableOf(m.thread))
		}
	}
	return c
}

// refs tells the references to each open file of a table, and to the table as FD -1.
func (w *world) refs(table *kernel.FDTable) map[int32]int64 {
	all := map[int32]int64{-1: table.ReadRefs()}
	for _, fd := range table.GetFDs(w.k.Ctx) {
		if file, _ := table.Get(fd); file != nil {
			all[fd] = file.ReadRefs()
			file.DecRef(w.k.Ctx)
		}
	}
	return all
}
