package vfiouser

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Memory is what the client lets the device reach: pieces of its memory, at the
// addresses that the IOMMU gives them.
type Memory struct {
	mu     sync.Mutex
	pieces []piece

	maps, unmaps int
}

type piece struct {
	at   uint64
	data []byte
}

const pageSize = 4096

// Counts tells how often pieces came and went, and how many there are.
func (m *Memory) Counts() (maps, unmaps, live int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.maps, m.unmaps, len(m.pieces)
}

// Copy copies between b and the memory at an address, from it if out is set. It
// reports false when some of that cannot be reached; the rest may have been copied.
// It goes page by page, since the IOMMU may hand over single pages.
func (m *Memory) Copy(at uint64, b []byte, out bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(b) > 0 {
		n := min(uint64(len(b)), pageSize-at%pageSize)
		p := m.find(at, n)
		if p == nil {
			return false
		}
		if out {
			copy(b[:n], p)
		} else {
			copy(p, b[:n])
		}
		at, b = at+n, b[n:]
	}
	return true
}

func (m *Memory) find(at, n uint64) []byte {
	for _, p := range m.pieces {
		if at >= p.at && at-p.at+n <= uint64(len(p.data)) {
			return p.data[at-p.at:][:n]
		}
	}
	return nil
}

func (m *Memory) handleMap(msg *message) error {
	const writable = 2
	flags := le.Uint32(msg.body[4:])
	offset, at, size := le.Uint64(msg.body[8:]), le.Uint64(msg.body[16:]), le.Uint64(msg.body[24:])
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maps++
	if len(msg.fds) != 1 {
		return nil // memory that cannot be shared: the device cannot reach it
	}
	prot := unix.PROT_READ
	if flags&writable != 0 {
		prot |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(msg.fds[0], int64(offset), int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.pieces = append(m.pieces, piece{at, data})
	return nil
}

func (m *Memory) handleUnmap(body []byte) error {
	const all = 2
	flags := le.Uint32(body[4:])
	at, size := le.Uint64(body[8:]), le.Uint64(body[16:])
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unmaps++
	m.drop(func(p piece) bool {
		return flags&all != 0 || p.at >= at && p.at-at+uint64(len(p.data)) <= size
	})
	return nil
}

func (m *Memory) unmapAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(func(piece) bool { return true })
}

// drop must be called with mu held.
func (m *Memory) drop(which func(piece) bool) {
	kept := m.pieces[:0]
	for _, p := range m.pieces {
		if which(p) {
			unix.Munmap(p.data)
		} else {
			kept = append(kept, p)
		}
	}
	m.pieces = kept
}
