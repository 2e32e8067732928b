package libtpusim

import (
	"context"
	"sync"
)

// LocalMesh is a Mesh of runtimes in one process.
type LocalMesh struct {
	mu       sync.Mutex
	detached map[int]bool
	waiting  map[int]bool
	open     chan struct{} // closed when the rendezvous that is being waited for takes place
}

// NewMesh returns a mesh; its members need no introduction.
func NewMesh() *LocalMesh {
	return &LocalMesh{detached: make(map[int]bool), waiting: make(map[int]bool), open: make(chan struct{})}
}

// Detached implements Mesh.
func (m *LocalMesh) Detached(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.detached[rank] = true
}

// Restore implements Mesh.
func (m *LocalMesh) Restore(ctx context.Context, rank int) error {
	m.mu.Lock()
	m.waiting[rank] = true
	open := m.open
	m.meet()
	m.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Gone takes a member that has died out of the mesh: nobody waits for it.
func (m *LocalMesh) Gone(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.detached, rank)
	delete(m.waiting, rank)
	m.meet()
}

// meet lets the waiting members go if all detached members are among them. The
// caller holds m.mu.
func (m *LocalMesh) meet() {
	if len(m.waiting) == 0 {
		return
	}
	for rank := range m.detached {
		if !m.waiting[rank] {
			return
		}
	}
	clear(m.detached)
	clear(m.waiting)
	close(m.open)
	m.open = make(chan struct{})
}
