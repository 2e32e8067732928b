// Package job is the work that a simulated TPU does: a small training loop whose
// weights can be foretold, step by step, by anyone. The trainer runs it inside a
// sandbox; tests and the demo run it beside, and compare checksums.
//
// The package imports the standard library alone.
package job

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrNoJob says that bytes read from a TPU's memory hold no training job.
var ErrNoJob = errors.New("the TPU's memory holds no training job")

// mark begins the memory that holds a job, so that memory of nothing is noticed.
const mark = "TPUJOB01"

// State is a member's part of the job: what lies in its TPU's memory.
type State struct {
	Rank    uint64
	Step    uint64 // steps done
	Weights []uint64
}

// New returns the member's state before the first step, with size bytes of weights.
func New(rank, size int) *State {
	s := &State{Rank: uint64(rank), Weights: make([]uint64, size/8)}
	for i := range s.Weights {
		s.Weights[i] = mix(uint64(rank)<<32 + uint64(i))
	}
	return s
}

// Train does one step.
func (s *State) Train() {
	s.Step++
	push := mix(s.Step<<16 + s.Rank)
	for i, w := range s.Weights {
		s.Weights[i] = mix(w+push) + uint64(i)
	}
}

// mix spreads every bit of x over the whole word (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Sum is the checksum of the weights and of what belongs to them.
func (s *State) Sum() string {
	sum := sha256.Sum256(s.Bytes())
	return hex.EncodeToString(sum[:])
}

// Bytes is the state as it lies in a TPU's memory.
func (s *State) Bytes() []byte {
	b := make([]byte, 0, len(mark)+8*(2+len(s.Weights)))
	b = append(b, mark...)
	b = binary.LittleEndian.AppendUint64(b, s.Rank)
	b = binary.LittleEndian.AppendUint64(b, s.Step)
	for _, w := range s.Weights {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// Parse reads a state from a TPU's memory; ErrNoJob if there is none.
func Parse(b []byte) (*State, error) {
	rest, ok := strings.CutPrefix(string(b), mark)
	if !ok || len(rest) < 16 || len(rest)%8 != 0 {
		return nil, ErrNoJob
	}
	words := make([]uint64, len(rest)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64([]byte(rest[8*i:]))
	}
	return &State{Rank: words[0], Step: words[1], Weights: words[2:]}, nil
}

// Line is what a member says after a step.
type Line struct {
	Rank int
	Step int
	Sum  string
}

func (l Line) String() string {
	return fmt.Sprintf("rank %d step %d sha256 %s", l.Rank, l.Step, l.Sum)
}

// ParseLine reads a Line and reports whether it is one.
func ParseLine(text string) (Line, bool) {
	var l Line
	n, err := fmt.Sscanf(text, "rank %d step %d sha256 %s", &l.Rank, &l.Step, &l.Sum)
	return l, n == 3 && err == nil && l.String() == text
}

// Reference runs the member's job without interruption, and returns its checksum
// after each step: the element n is that after n steps.
func Reference(rank, size, steps int) []string {
	s := New(rank, size)
	sums := []string{s.Sum()}
	for range steps {
		s.Train()
		sums = append(sums, s.Sum())
	}
	return sums
}
