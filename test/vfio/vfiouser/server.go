// Package vfiouser serves a PCI device over the vfio-user protocol: QEMU attaches it
// as if it were plugged in.
package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Device is what a server serves. It is called by one goroutine at a time.
type Device interface {
	// Region tells of one of the nine regions of a PCI device; a size of 0 means
	// that there is none. fd is a file to map the region from, or -1.
	Region(index int) (size uint64, fd int)
	// Read and Write access a region. The range lies inside of it.
	Read(region int, offset uint64, b []byte)
	Write(region int, offset uint64, b []byte)
	// Vectors is the number of message interrupts.
	Vectors() int
	// Reset puts the device into the state it had at first.
	Reset()
}

// Server serves one device to one client.
type Server struct {
	device Device
	stream stream
	memory Memory

	mu     sync.Mutex
	events []int // eventfds of the message interrupts, or -1
}

// New makes a server. The device reaches the client's memory through Memory.
func New(d Device) *Server {
	s := &Server{device: d}
	for range d.Vectors() {
		s.events = append(s.events, -1)
	}
	return s
}

// Memory is the memory that the device can reach.
func (s *Server) Memory() *Memory { return &s.memory }

// Signal raises a message interrupt. It reports whether somebody listens.
func (s *Server) Signal(vector int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if vector >= len(s.events) || s.events[vector] < 0 {
		return false
	}
	_, err := unix.Write(s.events[vector], le.AppendUint64(nil, 1))
	return err == nil
}

// Serve talks to the client until it goes away, which is no error.
func (s *Server) Serve(conn *net.UnixConn) error {
	s.stream.conn = conn
	defer s.release()
	for {
		m, err := s.stream.receive()
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("vfio-user: %w", err)
		}
		body, fd, err := s.answer(m)
		m.closeFDs()
		if err := s.stream.reply(m, body, fd, err); err != nil {
			return fmt.Errorf("vfio-user: %w", err)
		}
	}
}

func (s *Server) release() {
	s.memory.unmapAll()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		s.setEvent(i, -1)
	}
}

// least is how many bytes the body of each command has at least.
var least = map[uint16]int{
	cmdVersion: 4, cmdDMAMap: 32, cmdDMAUnmap: 24, cmdDeviceInfo: 16, cmdRegionInfo: 32,
	cmdIRQInfo: 16, cmdSetIRQs: 20, cmdRead: 16, cmdWrite: 16, cmdReset: 0,
}

func (s *Server) answer(m *message) (body []byte, fd int, err error) {
	n, known := least[m.command]
	if !known {
		return nil, -1, unix.ENOSYS
	}
	if len(m.body) < n {
		return nil, -1, unix.EINVAL
	}
	switch m.command {
	case cmdVersion:
		return version(m.body), -1, nil
	case cmdDMAMap:
		return nil, -1, s.memory.handleMap(m)
	case cmdDMAUnmap:
		return m.body[:least[cmdDMAUnmap]], -1, s.memory.handleUnmap(m.body)
	case cmdDeviceInfo:
		return deviceInfo(), -1, nil
	case cmdRegionInfo:
		body, fd := s.regionInfo(m.body)
		return body, fd, nil
	case cmdIRQInfo:
		return s.irqInfo(m.body), -1, nil
	case cmdSetIRQs:
		return nil, -1, s.setIRQs(m)
	case cmdReset:
		s.device.Reset()
		return nil, -1, nil
	}
	body, err = s.access(m)
	return body, -1, err
}

// version answers with the client's minor version and our limits.
func version(body []byte) []byte {
	const capabilities = `{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576}}`
	out := append([]byte{0, 0, body[2], body[3]}, capabilities...)
	return append(out, 0)
}

const (
	regions = 9
	irqs    = 5
)

func deviceInfo() []byte {
	const resettable, pci = 1, 2
	return words(16, resettable|pci, regions, irqs)
}

func (s *Server) regionInfo(body []byte) (out []byte, fd int) {
	const readable, writable, mappable = 1, 2, 4
	index := int(le.Uint32(body[8:]))
	size, fd := s.device.Region(index)
	flags := uint32(0)
	if size > 0 {
		flags = readable | writable
	}
	offset := uint64(index) << 40
	if fd >= 0 {
		flags, offset = flags|mappable, 0
	}
	out = words(32, flags, uint32(index), 0)
	out = le.AppendUint64(out, size)
	return le.AppendUint64(out, offset), fd
}

const (
	msi         = 1
	irqEventFD  = 1 << 0
	irqNoResize = 1 << 3
)

func (s *Server) irqInfo(body []byte) []byte {
	index := le.Uint32(body[8:])
	if index != msi {
		return words(16, 0, index, 0)
	}
	return words(16, irqEventFD|irqNoResize, index, uint32(len(s.events)))
}

// setIRQs takes the eventfds of message interrupts, or takes them away.
func (s *Server) setIRQs(m *message) error {
	const dataNone, dataEventFD = 1 << 0, 1 << 2
	flags, index := le.Uint32(m.body[4:]), le.Uint32(m.body[8:])
	start, count := int(le.Uint32(m.body[12:])), int(le.Uint32(m.body[16:]))
	if index != msi {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if flags&dataNone != 0 && count == 0 {
		start, count = 0, len(s.events)
	}
	if start < 0 || count < 0 || start+count > len(s.events) {
		return unix.EINVAL
	}
	for i := start; i < start+count; i++ {
		fd := -1
		if flags&dataEventFD != 0 && len(m.fds) > 0 {
			fd, m.fds = m.fds[0], m.fds[1:]
		}
		s.setEvent(i, fd)
	}
	return nil
}

// setEvent must be called with mu held.
func (s *Server) setEvent(vector, fd int) {
	if old := s.events[vector]; old >= 0 {
		unix.Close(old)
	}
	s.events[vector] = fd
}

func (s *Server) access(m *message) ([]byte, error) {
	offset, region, n := le.Uint64(m.body), int(le.Uint32(m.body[8:])), uint64(le.Uint32(m.body[12:]))
	size, _ := s.device.Region(region)
	if n > maxBody/2 || offset > size || n > size-offset {
		return nil, unix.EINVAL
	}
	head := m.body[:least[cmdRead]]
	if m.command == cmdRead {
		data := make([]byte, n)
		s.device.Read(region, offset, data)
		return append(slices.Clip(head), data...), nil
	}
	if uint64(len(m.body)) < uint64(len(head))+n {
		return nil, unix.EINVAL
	}
	s.device.Write(region, offset, m.body[len(head):][:n])
	return head, nil
}

func words(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = le.AppendUint32(b, v)
	}
	return b
}
