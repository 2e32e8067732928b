// Package session holds a TPU of the bench open, and uses it as a runtime does.
package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/test/vfio/chip"
	"tpuvisor.dev/tpuvisor/test/vfio/guest/vfio"
)

const (
	memorySize = 2 << 20
	memoryAt   = 0x10_0000 // its address for the device
	spareAt    = 0x90_0000 // for a mapping that is tried out
	page       = 4096
)

// Session is one TPU in use.
type Session struct {
	Container, Group, Device int

	registers, window []byte // BAR0, and the window onto HBM
	memory            []byte // what the device can reach
	events            int    // eventfd of the interrupt, or -1
}

// TPU says which one to open.
type TPU struct {
	Group   int
	Address string
}

// Open goes through the whole sequence. What it has opened when it fails, it closes.
func Open(tpu TPU) (*Session, error) {
	s := &Session{Container: -1, Group: -1, Device: -1, events: -1}
	if err := s.attach(tpu); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Session) attach(tpu TPU) (err error) {
	if s.Container, err = vfio.OpenContainer(); err != nil {
		return err
	}
	if s.Group, err = vfio.OpenGroup(tpu.Group); err != nil {
		return err
	}
	if err := vfio.Join(s.Group, s.Container); err != nil {
		return err
	}
	if err := vfio.SetIOMMU(s.Container); err != nil {
		return err
	}
	if s.Device, err = vfio.OpenDevice(s.Group, tpu.Address); err != nil {
		return err
	}
	if err := s.mapRegions(); err != nil {
		return err
	}
	s.memory, err = unix.Mmap(-1, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	return vfio.MapDMA(s.Container, s.memory, memoryAt)
}

func (s *Session) mapRegions() error {
	config, err := vfio.RegionOf(s.Device, vfio.Config)
	if err != nil {
		return err
	}
	const command, memoryAndMaster = 4, 0x0006
	if _, err := unix.Pwrite(s.Device, binary.LittleEndian.AppendUint16(nil, memoryAndMaster), int64(config.Offset)+command); err != nil {
		return fmt.Errorf("writing the command register: %w", err)
	}
	if s.registers, err = s.mapRegion(vfio.BAR0); err != nil {
		return err
	}
	s.window, err = s.mapRegion(vfio.BAR2)
	return err
}

func (s *Session) mapRegion(index int) ([]byte, error) {
	r, err := vfio.RegionOf(s.Device, index)
	if err != nil {
		return nil, err
	}
	m, err := unix.Mmap(s.Device, int64(r.Offset), int(r.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping region %d: %w", index, err)
	}
	return m, nil
}

// Close closes and unmaps all of it, in the order of a runtime.
func (s *Session) Close() error {
	var errs []error
	for _, m := range []*[]byte{&s.registers, &s.window, &s.memory} {
		if *m != nil {
			errs = append(errs, unix.Munmap(*m))
			*m = nil
		}
	}
	for _, fd := range []*int{&s.events, &s.Device, &s.Group, &s.Container} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// touch does what reaches the device by a mapping: where that is gone, it is an error
// and not the end of the process.
func touch(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("fault: %v", r)
		}
	}()
	f()
	return nil
}

// The registers are read and written whole, which the compiler must not change.
//
//go:noinline
func load(b []byte, at int) uint64 { return *(*uint64)(unsafe.Pointer(&b[at])) }

//go:noinline
func store(b []byte, at int, v uint64) { *(*uint64)(unsafe.Pointer(&b[at])) = v }

// copyDMA lets the device copy between our memory and its own.
func (s *Session) copyDMA(command uint64, offset, hbm, n int) error {
	var status uint64
	err := touch(func() {
		store(s.registers, chip.Address, memoryAt+uint64(offset))
		store(s.registers, chip.Offset, uint64(hbm))
		store(s.registers, chip.Length, uint64(n))
		store(s.registers, chip.Command, command)
		status = load(s.registers, chip.Status)
	})
	if err == nil && status != chip.OK {
		err = fmt.Errorf("the device reports status %d for a DMA", status)
	}
	return err
}

func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), seed))).Read(b)
	return b
}

// DMA sends a pattern to the device and gets it back in another place of the memory,
// at the given page of a fresh part.
func (s *Session) DMA(seed uint64, into int) error {
	want := pattern(seed, page)
	copy(s.memory, want)
	if err := s.copyDMA(chip.ToHBM, 0, 0, page); err != nil {
		return err
	}
	at := into * page
	if err := s.copyDMA(chip.FromHBM, at, 0, page); err != nil {
		return err
	}
	if !slices.Equal(s.memory[at:at+page], want) {
		return fmt.Errorf("DMA came back different into page %d", into)
	}
	return nil
}

// Fill writes HBM through the window.
func (s *Session) Fill(seed uint64) error {
	return touch(func() { copy(s.window, pattern(seed, len(s.window))) })
}

// Verify reads HBM through the window.
func (s *Session) Verify(seed uint64) error {
	var got []byte
	if err := touch(func() { got = slices.Clone(s.window) }); err != nil {
		return err
	}
	if !slices.Equal(got, pattern(seed, len(got))) {
		return errors.New("HBM holds something else")
	}
	return nil
}

// Arm makes the device's interrupt signal an eventfd.
func (s *Session) Arm() (err error) {
	if s.events, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return err
	}
	return vfio.ArmMSI(s.Device, s.events)
}

// Interrupt asks the device for one.
func (s *Session) Interrupt() error {
	return touch(func() { store(s.registers, chip.Interrupt, 1) })
}

// Interrupts waits for one, and gives how many there were.
func (s *Session) Interrupts(limit time.Duration) (uint64, error) {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.events), Events: unix.POLLIN}}, int(limit/time.Millisecond))
	if err != nil || n == 0 {
		return 0, err
	}
	buf := make([]byte, 8)
	if _, err := unix.Read(s.events, buf); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(buf), nil
}

// Save copies HBM into the process by DMA.
func (s *Session) Save() ([]byte, error) {
	hbm := make([]byte, 0, chip.HBMSize)
	for at := 0; at < chip.HBMSize; at += memorySize / 2 {
		if err := s.copyDMA(chip.FromHBM, memorySize/2, at, memorySize/2); err != nil {
			return nil, err
		}
		hbm = append(hbm, s.memory[memorySize/2:]...)
	}
	return hbm, nil
}

// Load is the inverse of Save.
func (s *Session) Load(hbm []byte) error {
	for at := 0; at < len(hbm); at += memorySize / 2 {
		copy(s.memory[memorySize/2:], hbm[at:])
		if err := s.copyDMA(chip.ToHBM, memorySize/2, at, memorySize/2); err != nil {
			return err
		}
	}
	return nil
}

// Status tries each file and mapping, and tells what each answers.
func (s *Session) Status() map[string]string {
	word := func(err error) string {
		if err == nil {
			return "ok"
		}
		return err.Error()
	}
	out := make(map[string]string)
	_, _, err := vfio.Info(s.Device)
	out["device"] = word(err)
	_, err = unix.Pread(s.Device, make([]byte, 8), 0)
	out["device read"] = word(err)
	m, err := unix.Mmap(s.Device, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	out["device mmap"] = word(err)
	if err == nil {
		unix.Munmap(m)
	}
	out["registers"] = word(touch(func() {
		if load(s.registers, chip.ID) != chip.Magic {
			panic("not the device's")
		}
	}))
	_, err = vfio.Extension(s.Container)
	out["container"] = word(err)
	err = vfio.MapDMA(s.Container, s.memory[:page], spareAt)
	out["map"] = word(err)
	if err == nil {
		_, err = vfio.UnmapDMA(s.Container, spareAt, page)
		out["unmap"] = word(err)
	}
	return out
}

// Reattach makes the open container and group useful again after a restore, and opens
// the device anew.
func (s *Session) Reattach(address string) error {
	old := *s
	if err := vfio.Join(s.Group, s.Container); err != nil {
		return err
	}
	if err := vfio.SetIOMMU(s.Container); err != nil {
		return err
	}
	var err error
	if s.Device, err = vfio.OpenDevice(s.Group, address); err != nil {
		return err
	}
	if err := s.mapRegions(); err != nil {
		return err
	}
	return errors.Join(
		vfio.MapDMA(s.Container, s.memory, memoryAt),
		unix.Munmap(old.registers), unix.Munmap(old.window), unix.Close(old.Device))
}
