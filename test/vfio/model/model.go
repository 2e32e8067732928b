// Package model is the bench's TPU: a PCI device with the ids of any TPU, registers,
// memory of its own that can be mapped, DMA and an interrupt. It checks every access
// and counts what happens to it.
package model

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/test/vfio/chip"
	"tpuvisor.dev/tpuvisor/test/vfio/guest/vfio"
	"tpuvisor.dev/tpuvisor/test/vfio/vfiouser"
)

// Counts is what a TPU has seen since it was made.
type Counts struct {
	Maps, Unmaps int // of memory that it may reach
	Live         int // how many of these there are now
	In, Out      int // DMAs to HBM, and from it
	Faults       int // DMAs to memory that it may not reach
	Interrupts   int
	Lost         int // interrupts that nobody listened for
	Resets       int
	Violations   int // accesses that make no sense
}

// Sub is what has happened since an earlier count; Live stays what it is.
func (c Counts) Sub(before Counts) Counts {
	return Counts{
		c.Maps - before.Maps, c.Unmaps - before.Unmaps, c.Live, c.In - before.In, c.Out - before.Out,
		c.Faults - before.Faults, c.Interrupts - before.Interrupts, c.Lost - before.Lost,
		c.Resets - before.Resets, c.Violations - before.Violations,
	}
}

// TPU is one chip. It keeps its memory until it is reset.
type TPU struct {
	server *vfiouser.Server
	hbm    []byte
	file   *os.File // of hbm

	mu        sync.Mutex
	config    [configSize]byte
	registers [chip.RegistersSize / 8]uint64
	counts    Counts
	complaint string // about the first violation
}

// New makes a chip with these ids.
func New(vendor, device uint16) (*TPU, error) {
	fd, err := unix.MemfdCreate("hbm", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "hbm")
	if err := file.Truncate(chip.HBMSize); err != nil {
		return nil, err
	}
	hbm, err := unix.Mmap(fd, 0, chip.HBMSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	t := &TPU{file: file, hbm: hbm, config: configSpace(vendor, device)}
	t.server = vfiouser.New(t)
	return t, nil
}

// Close gives back the chip's memory. Nobody may serve it any more.
func (t *TPU) Close() error {
	unix.Munmap(t.hbm)
	return t.file.Close()
}

// Serve plugs the chip in: it serves the first client of a socket until that goes away.
func (t *TPU) Serve(l *net.UnixListener) error {
	conn, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer conn.Close()
	return t.server.Serve(conn)
}

// Counts gives the counts so far, and what was wrong with the first access that made
// no sense.
func (t *TPU) Counts() (Counts, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.Maps, c.Unmaps, c.Live = t.server.Memory().Counts()
	return c, t.complaint
}

// Region implements vfiouser.Device.
func (t *TPU) Region(index int) (size uint64, fd int) {
	switch index {
	case vfio.BAR0:
		return chip.RegistersSize, -1
	case vfio.BAR2:
		return chip.HBMSize, int(t.file.Fd())
	case vfio.Config:
		return configSize, -1
	}
	return 0, -1
}

// Vectors implements vfiouser.Device.
func (t *TPU) Vectors() int { return 1 }

// Reset implements vfiouser.Device. HBM is lost by it.
func (t *TPU) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset()
}

func (t *TPU) reset() {
	t.counts.Resets++
	t.registers = [len(t.registers)]uint64{}
	clear(t.hbm)
}

// Read implements vfiouser.Device.
func (t *TPU) Read(region int, offset uint64, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch region {
	case vfio.Config:
		copy(b, t.config[offset:])
	case vfio.BAR2:
		copy(b, t.hbm[offset:])
	case vfio.BAR0:
		if t.whole("read", offset, len(b)) {
			le.PutUint64(b, t.register(offset))
		}
	}
}

// Write implements vfiouser.Device.
func (t *TPU) Write(region int, offset uint64, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch region {
	case vfio.Config:
		t.configure(int(offset), b)
	case vfio.BAR2:
		copy(t.hbm[offset:], b)
	case vfio.BAR0:
		if t.whole("write", offset, len(b)) {
			t.setRegister(offset, le.Uint64(b))
		}
	}
}

func (t *TPU) whole(what string, offset uint64, n int) bool {
	if n == 8 && offset%8 == 0 {
		return true
	}
	t.violate("%s of %d bytes of the register at %#x", what, n, offset)
	return false
}

func (t *TPU) violate(format string, args ...any) {
	if t.counts.Violations++; t.complaint == "" {
		t.complaint = fmt.Sprintf(format, args...)
	}
}

func (t *TPU) configure(offset int, b []byte) {
	for i, v := range b {
		if writable(offset + i) {
			t.config[offset+i] = v
		}
	}
	if le.Uint16(t.config[deviceControl:])&startReset != 0 {
		le.PutUint16(t.config[deviceControl:], le.Uint16(t.config[deviceControl:])&^startReset)
		t.reset()
	}
}

func (t *TPU) register(offset uint64) uint64 {
	if offset == chip.ID {
		return chip.Magic
	}
	return t.registers[offset/8]
}

func (t *TPU) setRegister(offset, v uint64) {
	switch offset {
	case chip.Address, chip.Offset, chip.Length, chip.Scratch:
		t.registers[offset/8] = v
	case chip.Command:
		t.registers[chip.Status/8] = t.dma(v)
	case chip.Interrupt:
		if t.counts.Interrupts++; !t.server.Signal(0) {
			t.counts.Lost++
		}
	default:
		t.violate("write of the register at %#x, which can only be read", offset)
	}
}

func (t *TPU) dma(command uint64) (status uint64) {
	at, offset, n := t.registers[chip.Address/8], t.registers[chip.Offset/8], t.registers[chip.Length/8]
	if le.Uint16(t.config[cfgCommand:])&commandMaster == 0 {
		t.violate("DMA by a chip that is not bus master")
		return chip.Denied
	}
	if n > chip.MaxTransfer || offset > chip.HBMSize || n > chip.HBMSize-offset || command != chip.ToHBM && command != chip.FromHBM {
		t.violate("DMA %d of %d bytes at %#x of HBM", command, n, offset)
		return chip.Denied
	}
	if !t.server.Memory().Copy(at, t.hbm[offset:][:n], command == chip.ToHBM) {
		t.counts.Faults++
		return chip.Fault
	}
	if command == chip.ToHBM {
		t.counts.In++
	} else {
		t.counts.Out++
	}
	return chip.OK
}
