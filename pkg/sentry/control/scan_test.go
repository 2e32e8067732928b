package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// find surveys the world and returns the runtimes' thread names and process IDs.
func (w *world) find(t *testing.T) ([]string, error) {
	t.Helper()
	s, err := w.plane.survey(w.k.Kernel)
	if err != nil {
		return nil, err
	}
	defer s.release()
	var found []string
	for _, r := range s.runtimes {
		found = append(found, fmt.Sprintf("%d:%d/%d x%d", r.process.pid, r.fds.RequestFD, r.fds.ResponseFD, len(r.tasks)))
	}
	return found, nil
}

func (w *world) expectFound(t *testing.T, want ...string) {
	t.Helper()
	got, err := w.find(t)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestFind(t *testing.T) {
	w := newWorld(t)
	w.k.Process(t, "bystander", "c1")
	w.guest(t, "a")
	w.guest(t, "b")
	w.expectFound(t, "2:4/5 x1", "4:4/5 x1")
}

func TestFind_NamesAreInherited(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	w.k.Thread(t, g.tg, g.thread.Name(), nil)
	// A child that shares the very same pipes and devices.
	child := w.k.Process(t, "child", "c1")
	copyFDs(t, w.k, g.tg.Leader(), child.Leader())
	w.k.Thread(t, child, g.thread.Name(), nil)
	w.expectFound(t, "1:4/5 x3")
}

func TestFind_TwoRuntimesInOneProcess(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	for _, fd := range []int32{0x400, 0xfffe} {
		r, reqW := w.k.Pipe(t)
		rspR, wr := w.k.Pipe(t)
		w.k.Install(t, g.tg.Leader(), fd, reqW)
		w.k.Install(t, g.tg.Leader(), fd+1, rspR)
		w.k.Install(t, g.tg.Leader(), fd/2, r)
		w.k.Install(t, g.tg.Leader(), fd/2+1, wr)
		w.k.Thread(t, g.tg, tpuwire.ThreadName{RequestFD: fd, ResponseFD: fd + 1}.String(), nil)
	}
	w.expectFound(t, "1:4/5 x1", "1:1024/1025 x1", "1:65534/65535 x1")
}

func TestFind_TableOfTheThread(t *testing.T) {
	w := newWorld(t)
	tg := w.k.Process(t, "a", "c1")
	table := w.k.NewFDTable()
	thread := w.k.Thread(t, tg, "libtpu0004000A", table)
	r, reqW := w.k.Pipe(t)
	rspR, wr := w.k.Pipe(t)
	for fd, file := range map[int32]kerneltest.File{4: reqW, 10: rspR, 20: r, 21: wr, 30: w.k.Device(t, 0)} {
		w.k.Install(t, thread, fd, file)
	}
	w.expectFound(t, "1:4/10 x1")
}

func TestFind_LeaderHasExited(t *testing.T) {
	w := newWorld(t)
	w.k.Process(t, "init", "c1")
	g := w.guest(t, "a")
	table := kerneltest.TableOf(g.thread)
	if err := w.k.Start(); err != nil {
		t.Fatal(err)
	}
	w.k.Exit(t, g.tg.Leader())
	w.expectFound(t, "2:4/5 x1")
	if got := kerneltest.TableOf(g.thread); got != table {
		t.Error("the thread's table is another")
	}
}

func TestFind_NotARuntime(t *testing.T) {
	for _, tc := range []struct {
		name   string
		thread string
		spoil  func(t *testing.T, w *world, g *guest)
		want   string
	}{
		{name: "no control thread", thread: "worker", want: "LIBTPU_CHECKPOINTING_ENABLED"},
		{name: "signs", thread: "libtpu+004-005", want: "LIBTPU_CHECKPOINTING_ENABLED"},
		{name: "too long", thread: "libtpu000400050", want: "LIBTPU_CHECKPOINTING_ENABLED"},
		{name: "not open", thread: "libtpu00400005", want: "FD 64 is not open"},
		{name: "wrong direction", thread: "libtpu00050004", want: "FD 5 is not the write end of a pipe"},
		{name: "one pipe", thread: "libtpu00040006", want: "ends of one pipe"},
		{name: "device", thread: "libtpu00090005", want: "FD 9 is not a pipe"},
		{name: "file", thread: "libtpu00040030", want: "FD 48 is not a pipe", spoil: func(t *testing.T, w *world, g *guest) {
			w.k.Install(t, g.tg.Leader(), 48, w.k.Open(t, "f", linux.O_CREAT|linux.O_RDWR))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			g := w.guest(t, "a")
			g.thread.SetName(tc.thread)
			if tc.spoil != nil {
				tc.spoil(t, w, g)
			}
			_, err := w.find(t)
			failure := wantKind(t, err, ErrNoRuntime)
			if failure.PID != 1 || failure.Command != "a" || failure.Container != "c1" {
				t.Errorf("the error says %+v", failure)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error does not tell %q: %v", tc.want, err)
			}
		})
	}
}

func TestUnmanaged(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	helper := w.k.Process(t, "helper", "c1")
	device, _ := kerneltest.TableOf(g.tg.Leader()).Get(deviceFD)
	w.k.Install(t, helper.Leader(), 3, device)
	w.expectFound(t, "1:4/5 x1") // inherited

	w.k.Install(t, helper.Leader(), 4, w.k.Device(t, 1))
	_, err := w.find(t)
	if failure := wantKind(t, err, ErrNoRuntime); failure.Command != "helper" {
		t.Errorf("the error says %+v", failure)
	}
	w.specs.annotate(settings.Prefix+"unmanaged", "allow")
	w.expectFound(t, "1:4/5 x1")
	w.specs.annotate(settings.Prefix+"unmanaged", "perhaps")
	if _, err := w.find(t); err == nil {
		t.Error("a bad annotation was taken")
	}
}

func TestTooManyRuntimes(t *testing.T) {
	w := newWorld(t)
	tg := w.k.Process(t, "a", "c1")
	w.k.Install(t, tg.Leader(), 1, w.k.Device(t, 0))
	for i := range maxRuntimes + 1 {
		fd := int32(10 + 4*i)
		r, reqW := w.k.Pipe(t)
		rspR, wr := w.k.Pipe(t)
		for j, file := range []kerneltest.File{reqW, rspR, r, wr} {
			w.k.Install(t, tg.Leader(), fd+int32(j), file)
		}
		w.k.Thread(t, tg, tpuwire.ThreadName{RequestFD: fd, ResponseFD: fd + 1}.String(), nil)
	}
	if _, err := w.find(t); !errors.Is(err, ErrTooMany) {
		t.Errorf("got %v, want ErrTooMany", err)
	}
}

// TestFind_WhileTasksComeAndGo looks for runtimes while processes are made: a walk
// that asks for the task set's lock twice deadlocks here.
func TestFind_WhileTasksComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.guest(t, "a")
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				w.k.Process(t, "churn", "c1")
			}
		}
	})
	for range 200 {
		w.expectFound(t, "1:4/5 x1")
	}
	close(stop)
	churn.Wait()
}

// TestFind_WhileFilesComeAndGo has a guest's table grow and change during the scan. The
// race detector sees whether it is read as it must be.
func TestFind_WhileFilesComeAndGo(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	wg.Go(func() {
		for fd := int32(100); ; fd = 100 + (fd+97)%5000 {
			select {
			case <-stop:
				return
			default:
			}
			r, other := w.k.Pipe(t)
			other.DecRef(w.k.Ctx)
			w.k.Install(t, g.thread, fd, r)
			w.k.Close(t, g.thread, fd)
		}
	})
	for range 200 {
		w.expectFound(t, "1:4/5 x1")
	}
}

func TestReferences(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	leader := g.tg.Leader()
	table := kerneltest.TableOf(leader)
	refs := func() (all []int64) {
		for _, fd := range table.GetFDs(w.k.Ctx) {
			file, _ := table.Get(fd)
			all = append(all, file.ReadRefs())
			file.DecRef(w.k.Ctx)
		}
		return append(all, table.ReadRefs())
	}
	before := refs()
	w.expectFound(t, "1:4/5 x1")
	w.open()
	g.play(instead(actCheckpoint, refuse(0, "no")))
	wantKind(t, w.plane.PreSave(w.k.Kernel), tpuwire.ErrRefused)
	w.close()
	if after := refs(); !slices.Equal(before, after) {
		t.Errorf("references before %v, after %v", before, after)
	}
}

func copyFDs(t *testing.T, k *kerneltest.Kernel, from, to *kernel.Task) {
	t.Helper()
	table := kerneltest.TableOf(from)
	for _, fd := range table.GetFDs(k.Ctx) {
		file, _ := table.Get(fd)
		k.Install(t, to, fd, file)
	}
}
