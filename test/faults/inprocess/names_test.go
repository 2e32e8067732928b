package inprocess

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sockfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/timerfd"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

var _ = add(map[string]scenario{
	"names/wrong-hex":             named("libtpu0004000g"),
	"names/sign":                  named("libtpu+004-005"),
	"names/too-long":              named("libtpu000400050"),
	"names/not-open":              named("libtpu00400005"),
	"names/wrong-direction":       named("libtpu00050004"),
	"names/one-pipe":              named("libtpu00040006"),
	"names/above-1023":            movedFDs(1024, 0x4ff),
	"names/highest":               movedFDs(0xfffe, 0xffff, 0x10000, 0x12345),
	"names/own-table":             ownTable,
	"names/inherited-by-threads":  inheritedByThreads(3),
	"names/thousands-of-threads":  inheritedByThreads(3000),
	"names/inherited-by-children": inheritedByChild,
	"names/two-in-one-process":    twoInOne,
	"names/too-many-runtimes":     manyRuntimes,
	"names/closed-meanwhile":      closedMeanwhile,
	"names/reused-meanwhile":      reusedMeanwhile,
	"names/reused-after":          reusedAfter,
	"names/regular-file":          notAPipe(regularFile),
	"names/directory":             notAPipe(directory),
	"names/memfd":                 notAPipe(memfd),
	"names/eventfd":               notAPipe(eventFD),
	"names/timerfd":               notAPipe(timerFD),
	"names/epoll":                 notAPipe(epoll),
	"names/inotify":               notAPipe(inotify),
	"names/socket":                notAPipe(socket),
	"names/tpu":                   named("libtpu00090005"),
})

// named gives the control thread another name.
func named(name string) scenario {
	return func(_ *testing.T, s *scene) func(*testing.T) error {
		s.bad.thread.SetName(name)
		return func(*testing.T) error { return s.checkpoint() }
	}
}

// odd is where an odd file is in the table of the member.
const odd int32 = 0x30

// notAPipe has a file there where a pipe is expected, once for requests and once for
// answers, and wants nothing to happen to it.
func notAPipe(open func(t *testing.T, s *scene) *vfs.FileDescription) scenario {
	return func(t *testing.T, s *scene) func(*testing.T) error {
		file := open(t, s)
		s.k.Install(t, s.bad.tg.Leader(), odd, file)
		was := looks(s, file)
		return func(t *testing.T) error {
			s.bad.thread.SetName(tpuwire.ThreadName{RequestFD: requestFD, ResponseFD: odd}.String())
			first := s.checkpoint()
			s.bad.thread.SetName(tpuwire.ThreadName{RequestFD: odd, ResponseFD: responseFD}.String())
			second := s.checkpoint()
			if first == nil {
				t.Error("a checkpoint read answers from it")
			}
			if is := looks(s, file); is != was {
				t.Errorf("the file was %s, and is %s", was, is)
			}
			return second
		}
	}
}

// looks tells what can be seen of a file from outside.
func looks(s *scene, file *vfs.FileDescription) string {
	stat, err := file.Stat(s.k.Ctx, vfs.StatOptions{Mask: linux.STATX_SIZE})
	at, seekErr := file.Seek(s.k.Ctx, 0, linux.SEEK_CUR)
	return fmt.Sprint(stat.Size, err, at, seekErr, file.Readiness(waiter.ReadableEvents|waiter.WritableEvents))
}

func regularFile(t *testing.T, s *scene) *vfs.FileDescription {
	return s.k.Open(t, "odd", linux.O_CREAT|linux.O_RDWR)
}

func directory(t *testing.T, s *scene) *vfs.FileDescription {
	return s.k.Open(t, "", linux.O_RDONLY|linux.O_DIRECTORY)
}

func memfd(t *testing.T, s *scene) *vfs.FileDescription {
	return opened(t)(tmpfs.NewMemfd(s.k.Ctx, auth.CredentialsFromContext(s.k.Ctx), s.k.ShmMount(), false, "odd"))
}

func eventFD(t *testing.T, s *scene) *vfs.FileDescription {
	return opened(t)(eventfd.New(s.k.Ctx, s.k.VFS(), 0, false, linux.O_RDWR))
}

func timerFD(t *testing.T, s *scene) *vfs.FileDescription {
	return opened(t)(timerfd.New(s.k.Ctx, s.k.VFS(), s.k.MonotonicClock(), linux.O_RDWR))
}

func epoll(t *testing.T, s *scene) *vfs.FileDescription {
	return opened(t)(s.k.VFS().NewEpollInstanceFD(s.k.Ctx))
}

func inotify(t *testing.T, s *scene) *vfs.FileDescription {
	return opened(t)(vfs.NewInotifyFD(s.k.Ctx, s.k.VFS(), 0))
}

// socket has its peer's readiness looked at too: what was written would lie there.
func socket(t *testing.T, s *scene) *vfs.FileDescription {
	leader := s.bad.tg.Leader()
	a, b := transport.NewPair(s.k.Ctx, linux.SOCK_STREAM, s.k.Kernel)
	peer := socketFile(t, s, b)
	s.k.Install(t, leader, odd+1, peer)
	t.Cleanup(func() {
		if peer.Readiness(waiter.ReadableEvents) != 0 {
			t.Error("something was written to the socket")
		}
	})
	return socketFile(t, s, a)
}

// socketFile is unix.NewSockfsFile, which has to run on the task's own goroutine.
func socketFile(t *testing.T, s *scene, ep transport.Endpoint) *vfs.FileDescription {
	leader := s.bad.tg.Leader()
	mnt := s.k.SocketMount()
	d := sockfs.NewDentry(s.k.Ctx, mnt)
	defer d.DecRef(s.k.Ctx)
	file, err := unix.NewFileDescription(ep, linux.SOCK_STREAM, linux.O_RDWR, leader.GetNetworkNamespace(), mnt, d, &vfs.FileLocks{}, leader.Credentials())
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func opened(t *testing.T) func(*vfs.FileDescription, error) *vfs.FileDescription {
	return func(file *vfs.FileDescription, err error) *vfs.FileDescription {
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
}

// movedFDs has the named ends at other numbers, and files at some more.
func movedFDs(request, response int32, more ...int32) scenario {
	return func(t *testing.T, s *scene) func(*testing.T) error {
		table := kerneltest.TableOf(s.bad.thread)
		for from, to := range map[int32]int32{requestFD: request, responseFD: response} {
			file, _ := table.Get(from)
			s.k.Install(t, s.bad.thread, to, file)
			s.k.Close(t, s.bad.thread, from)
		}
		for _, fd := range more {
			s.k.Install(t, s.bad.thread, fd, s.k.Open(t, "more", linux.O_CREAT|linux.O_RDWR))
		}
		s.bad.thread.SetName(tpuwire.ThreadName{RequestFD: request, ResponseFD: response}.String())
		return func(*testing.T) error { return s.checkpoint() }
	}
}

// ownTable gives the control thread a table of its own, which alone has the pipes and
// the TPU.
func ownTable(t *testing.T, s *scene) func(*testing.T) error {
	m := s.bad
	shared := kerneltest.TableOf(m.thread)
	m.thread.SetName("worker")
	thread := s.k.Thread(t, m.tg, tpuwire.ThreadName{RequestFD: requestFD, ResponseFD: responseFD}.String(), s.k.NewFDTable())
	for _, fd := range shared.GetFDs(s.k.Ctx) {
		file, _ := shared.Get(fd)
		s.k.Install(t, thread, fd, file)
		s.k.Close(t, m.thread, fd)
	}
	m.thread = thread
	return func(*testing.T) error { return s.checkpoint() }
}

func inheritedByThreads(n int) scenario {
	return func(t *testing.T, s *scene) func(*testing.T) error {
		for range n {
			s.k.Thread(t, s.bad.tg, s.bad.thread.Name(), nil)
		}
		return func(*testing.T) error { return s.checkpoint() }
	}
}

// inherit makes a process that has all open files of the member.
func (s *scene) inherit(t *testing.T, name string, fds ...int32) *kernel.ThreadGroup {
	t.Helper()
	child := s.k.Process(t, name, "c1")
	table := kerneltest.TableOf(s.bad.thread)
	if fds == nil {
		fds = table.GetFDs(s.k.Ctx)
	}
	for _, fd := range fds {
		file, _ := table.Get(fd)
		s.k.Install(t, child.Leader(), fd, file)
	}
	return child
}

// inheritedByChild leaves the TPU open in the child, which has not let go of it: the
// control plane takes the runtime's word, and says so in the log.
func inheritedByChild(t *testing.T, s *scene) func(*testing.T) error {
	child := s.inherit(t, "child")
	s.k.Thread(t, child, s.bad.thread.Name(), nil)
	return func(*testing.T) error { return s.checkpoint() }
}

// twoInOne makes the second member a runtime of the first one's process.
func twoInOne(t *testing.T, s *scene) func(*testing.T) error {
	const move = 0x100
	first, second := s.members[0], s.members[1]
	table := kerneltest.TableOf(second.thread)
	for _, fd := range slices.Sorted(maps.Keys(s.refs(table))) {
		if fd < 0 {
			continue
		}
		file, _ := table.Get(fd)
		s.k.Install(t, first.thread, fd+move, file)
		s.k.Close(t, second.thread, fd)
	}
	second.thread.SetName("worker")
	second.tg, second.pid = first.tg, first.pid
	second.thread = s.k.Thread(t, first.tg, tpuwire.ThreadName{RequestFD: requestFD + move, ResponseFD: responseFD + move}.String(), nil)
	second.tpu.fd = deviceFD + move
	return func(*testing.T) error { return s.checkpoint() }
}

func manyRuntimes(t *testing.T, s *scene) func(*testing.T) error {
	for i := range int32(1100) {
		fd := 0x100 + 4*i
		r, sendRequests := s.k.Pipe(t)
		receiveAnswers, w := s.k.Pipe(t)
		for j, file := range []kerneltest.File{sendRequests, receiveAnswers, r, w} {
			s.k.Install(t, s.bad.thread, fd+int32(j), file)
		}
		s.k.Thread(t, s.bad.tg, tpuwire.ThreadName{RequestFD: fd, ResponseFD: fd + 1}.String(), nil)
	}
	return func(*testing.T) error { return s.checkpoint() }
}

// closedMeanwhile closes the descriptor while the member is asked to let go.
func closedMeanwhile(t *testing.T, s *scene) func(*testing.T) error {
	s.bad.tpu.detach = func() { s.k.Close(t, s.bad.thread, requestFD) }
	return func(*testing.T) error { return s.checkpoint() }
}

// other puts the write end of another pipe there where the member's requests are
// written to, and wants nothing to be written to it.
func (s *scene) other(t *testing.T) (install func(), look func()) {
	t.Helper()
	r, w := s.k.Pipe(t)
	t.Cleanup(func() { r.DecRef(s.k.Ctx) })
	install = func() { s.k.Install(t, s.bad.thread, requestFD, w) }
	look = func() {
		if bytes := left(s.k, r); len(bytes) > 0 {
			t.Errorf("written to a pipe that is no runtime's: %x", bytes)
		}
	}
	return install, look
}

func reusedMeanwhile(t *testing.T, s *scene) func(*testing.T) error {
	install, look := s.other(t)
	s.bad.tpu.detach = install
	return func(*testing.T) error {
		defer look()
		return s.checkpoint()
	}
}

func reusedAfter(t *testing.T, s *scene) func(*testing.T) error {
	file := regularFile(t, s)
	was := looks(s, file)
	return func(t *testing.T) error {
		if err := s.plane.PreSave(s.k.Kernel); err != nil {
			t.Fatal(err)
		}
		s.k.Install(t, s.bad.thread, requestFD, file)
		err := s.plane.PostResume(s.k.Kernel)
		if is := looks(s, file); is != was {
			t.Errorf("the file was %s, and is %s", was, is)
		}
		delete(s.before.refs[s.bad], requestFD)
		return err
	}
}
