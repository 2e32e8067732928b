package model

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/test/vfio/chip"
	"tpuvisor.dev/tpuvisor/test/vfio/guest/vfio"
)

// client speaks the protocol as QEMU does, as far as is needed here.
type client struct {
	*testing.T
	conn *net.UnixConn
	id   uint16
}

// attach makes a chip and a client of it.
func attach(t *testing.T) (*TPU, *client) {
	t.Helper()
	tpu, err := New(0x1ae0, 0x0063)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- tpu.Serve(l) }()
	conn, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		l.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		tpu.Close()
	})
	return tpu, &client{T: t, conn: conn}
}

// call makes one request, with files, and gives the body of the answer.
func (c *client) call(command uint16, body []byte, fds ...int) (answer []byte, errno unix.Errno) {
	c.Helper()
	c.id++
	b := le.AppendUint16(nil, c.id)
	b = le.AppendUint16(b, command)
	b = le.AppendUint32(b, uint32(16+len(body)))
	b = append(b, make([]byte, 8)...)
	if _, _, err := c.conn.WriteMsgUnix(append(b, body...), unix.UnixRights(fds...), nil); err != nil {
		c.Fatal(err)
	}
	head := make([]byte, 16)
	if _, err := io.ReadFull(c.conn, head); err != nil {
		c.Fatal(err)
	}
	answer = make([]byte, le.Uint32(head[4:])-16)
	if _, err := io.ReadFull(c.conn, answer); err != nil {
		c.Fatal(err)
	}
	if le.Uint16(head) != c.id || le.Uint32(head[8:])&1 == 0 {
		c.Fatalf("answer %x to request %d", head, c.id)
	}
	return answer, unix.Errno(le.Uint32(head[12:]))
}

func access(region int, offset, n uint64, data ...byte) []byte {
	b := le.AppendUint64(nil, offset)
	b = le.AppendUint32(b, uint32(region))
	return append(le.AppendUint32(b, uint32(n)), data...)
}

func (c *client) load(register uint64) uint64 {
	c.Helper()
	out, errno := c.call(9, access(vfio.BAR0, register, 8))
	if errno != 0 || len(out) != 24 {
		c.Fatalf("read: %v, %d bytes", errno, len(out))
	}
	return le.Uint64(out[16:])
}

func (c *client) store(region int, offset uint64, data []byte) {
	c.Helper()
	if _, errno := c.call(10, access(region, offset, uint64(len(data)), data...)); errno != 0 {
		c.Fatal(errno)
	}
}

func (c *client) set(register, v uint64) {
	c.Helper()
	c.store(vfio.BAR0, register, le.AppendUint64(nil, v))
}

const memoryAt = 0x10_0000

// share lets the chip reach some new memory.
func (c *client) share(size int) []byte {
	c.Helper()
	fd, err := unix.MemfdCreate("memory", 0)
	if err != nil {
		c.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		c.Fatal(err)
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { unix.Munmap(data) })
	body := le.AppendUint32(le.AppendUint32(nil, 32), 3)
	for _, v := range []uint64{0, memoryAt, uint64(size)} {
		body = le.AppendUint64(body, v)
	}
	if _, errno := c.call(2, body, fd); errno != 0 {
		c.Fatal(errno)
	}
	return data
}

func (c *client) dma(command, at, n uint64) (status uint64) {
	c.Helper()
	c.set(chip.Address, at)
	c.set(chip.Offset, 0)
	c.set(chip.Length, n)
	c.set(chip.Command, command)
	return c.load(chip.Status)
}

func TestDMA(t *testing.T) {
	tpu, c := attach(t)
	memory := c.share(8192)
	copy(memory, "from the host")
	if got := c.dma(chip.ToHBM, memoryAt, 64); got != chip.Denied {
		t.Errorf("DMA of a chip that is not bus master: status %d", got)
	}
	c.store(vfio.Config, cfgCommand, []byte{commandMaster | 2, 0})
	if got := c.dma(chip.ToHBM, memoryAt, 64); got != chip.OK {
		t.Fatalf("DMA: status %d", got)
	}
	if got := c.dma(chip.FromHBM, memoryAt+4096, 64); got != chip.OK || !slices.Equal(memory[:64], memory[4096:4160]) {
		t.Errorf("DMA back: status %d, %q", got, memory[4096:4160])
	}
	if got := c.dma(chip.ToHBM, memoryAt+8192-32, 64); got != chip.Fault {
		t.Errorf("DMA past the memory: status %d", got)
	}
	if got := c.dma(chip.ToHBM, memoryAt, chip.MaxTransfer+1); got != chip.Denied {
		t.Errorf("DMA of too much: status %d", got)
	}
	counts, complaint := tpu.Counts()
	want := Counts{Maps: 1, Live: 1, In: 1, Out: 1, Faults: 1, Violations: 2}
	if counts != want || complaint == "" {
		t.Errorf("counts %+v, want %+v; %q", counts, want, complaint)
	}
}

func TestUnmap(t *testing.T) {
	tpu, c := attach(t)
	c.share(8192)
	c.store(vfio.Config, cfgCommand, []byte{commandMaster, 0})
	body := le.AppendUint32(le.AppendUint32(nil, 24), 0)
	body = le.AppendUint64(le.AppendUint64(body, memoryAt), 8192)
	if _, errno := c.call(3, body); errno != 0 {
		t.Fatal(errno)
	}
	if got := c.dma(chip.ToHBM, memoryAt, 8); got != chip.Fault {
		t.Errorf("DMA to memory that was taken away: status %d", got)
	}
	if counts, _ := tpu.Counts(); counts.Unmaps != 1 || counts.Live != 0 {
		t.Errorf("counts %+v", counts)
	}
}

func TestInterrupt(t *testing.T) {
	tpu, c := attach(t)
	c.set(chip.Interrupt, 1)
	fd, err := unix.Eventfd(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var body []byte
	for _, v := range []uint32{24, 1<<2 | 1<<5, 1, 0, 1} {
		body = le.AppendUint32(body, v)
	}
	if _, errno := c.call(8, append(body, 0, 0, 0, 0), fd); errno != 0 {
		t.Fatal(errno)
	}
	c.set(chip.Interrupt, 1)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute/time.Millisecond))
	if err != nil || n != 1 {
		t.Fatalf("no interrupt: %v", err)
	}
	if counts, _ := tpu.Counts(); counts.Interrupts != 2 || counts.Lost != 1 {
		t.Errorf("counts %+v", counts)
	}
}

func TestReset(t *testing.T) {
	tpu, c := attach(t)
	c.set(chip.Scratch, 7)
	c.store(vfio.BAR2, 0, []byte("model"))
	if _, errno := c.call(13, nil); errno != 0 {
		t.Fatal(errno)
	}
	if c.load(chip.Scratch) != 0 || tpu.hbm[0] != 0 {
		t.Error("a reset leaves something")
	}
	c.set(chip.Scratch, 8)
	c.store(vfio.Config, deviceControl, binary.LittleEndian.AppendUint16(nil, startReset))
	if c.load(chip.Scratch) != 0 {
		t.Error("a function level reset leaves something")
	}
	if counts, _ := tpu.Counts(); counts.Resets != 2 {
		t.Errorf("counts %+v", counts)
	}
}

func TestNonsense(t *testing.T) {
	tpu, c := attach(t)
	if c.load(chip.ID) != chip.Magic {
		t.Error("not the chip")
	}
	for name, request := range map[string]struct {
		command uint16
		body    []byte
	}{
		"unknown command":    {99, nil},
		"read past the end":  {9, access(vfio.BAR0, chip.RegistersSize-4, 8)},
		"no such region":     {9, access(5, 0, 4)},
		"write without data": {10, access(vfio.BAR0, 0, 8)},
		"short request":      {2, []byte{1}},
	} {
		if _, errno := c.call(request.command, request.body); errno == 0 {
			t.Errorf("%s: no error", name)
		}
	}
	c.call(9, access(vfio.BAR0, 4, 4))
	c.set(chip.ID, 1)
	if counts, complaint := tpu.Counts(); counts.Violations != 2 || complaint != "read of 4 bytes of the register at 0x4" {
		t.Errorf("counts %+v, %q", counts, complaint)
	}
}
