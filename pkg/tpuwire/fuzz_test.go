package tpuwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// FuzzFrame reads a stream of anything. Whatever comes, the reader does not panic,
// takes no more memory than what arrived and the header's word both allow, and gives
// messages that survive being written and read again.
func FuzzFrame(f *testing.F) {
	for _, v := range readVectors(f) {
		f.Add(v.stream)
		f.Add(append(bytes.Clone(v.stream), v.stream...))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		source := bytes.NewReader(stream)
		r := NewReader(source)
		for {
			before := source.Len()
			frame, err := r.ReadFrame()
			wantModest(t, r, stream[len(stream)-before:])
			if err != nil {
				wantEnd(t, err, stream[len(stream)-before:])
				return
			}
			if used := before - source.Len(); used != headerSize+len(frame) {
				t.Fatalf("%d bytes were read for a message of %d", used, len(frame))
			}
			roundTrip(t, frame, new(controlpb.ControlRequest), new(controlpb.ControlRequest))
			roundTrip(t, frame, new(controlpb.ControlResponse), new(controlpb.ControlResponse))
		}
	})
}

// wantModest fails if r holds more memory than a frame at the start of rest allows.
// r has read one frame at a time, so what earlier frames left is in its buffer too.
func wantModest(t *testing.T, r *Reader, rest []byte) {
	t.Helper()
	if cap(r.buffer) > MaxMessage {
		t.Fatalf("a buffer of %d bytes", cap(r.buffer))
	}
	fresh := NewReader(bytes.NewReader(rest))
	fresh.ReadFrame()
	arrived := max(len(rest)-headerSize, 0)
	claimed := 0
	if len(rest) >= headerSize {
		claimed = int(binary.BigEndian.Uint32(rest))
	}
	if most := max(firstBuffer, min(claimed, 2*arrived)); cap(fresh.buffer) > most {
		t.Fatalf("a buffer of %d bytes for %d claimed and %d arrived", cap(fresh.buffer), claimed, arrived)
	}
}

// wantEnd fails unless err is the right one for a stream that goes on with rest, and
// that holds no whole frame.
func wantEnd(t *testing.T, err error, rest []byte) {
	t.Helper()
	want := ErrTruncated
	switch {
	case len(rest) == 0:
		want = ErrClosed
	case len(rest) >= headerSize && binary.BigEndian.Uint32(rest) > MaxMessage:
		want = ErrTooLarge
	}
	wantKind(t, err, want)
}

// roundTrip decodes frame; if that works, it writes the message and reads it back
// from all of what was written, and from parts of it.
func roundTrip(t *testing.T, frame []byte, m, again proto.Message) {
	t.Helper()
	if proto.Unmarshal(frame, m) != nil {
		return
	}
	written, err := AppendFrame(nil, m)
	if errors.Is(err, ErrTooLarge) && len(frame) > MaxMessage/2 {
		return // numbers that came in fewer bytes than they are written in
	}
	if err != nil {
		t.Fatalf("a message that was read cannot be written: %v", err)
	}
	if err := ReadMessage(bytes.NewReader(written), again); err != nil {
		t.Fatalf("a message that was written cannot be read: %v", err)
	}
	wantEqual(t, again, m)
	step := 1 + len(written)/64
	for n := 0; n < len(written); n += step {
		err := ReadMessage(bytes.NewReader(written[:n]), again)
		wantEnd(t, err, written[:n])
	}
	wantEnd(t, ReadMessage(bytes.NewReader(written[:len(written)-1]), again), written[:len(written)-1])
}

// TestRead_MemoryFollowsWhatArrives claims 1 MiB and gives little of it.
func TestRead_MemoryFollowsWhatArrives(t *testing.T) {
	header := binary.BigEndian.AppendUint32(nil, MaxMessage)
	for _, arrived := range []int{0, 1, 100, 5000, 100_000} {
		stream := append(bytes.Clone(header), make([]byte, arrived)...)
		got := bytesPerRun(func() {
			_, err := NewReader(bytes.NewReader(stream)).ReadFrame()
			wantKind(t, err, ErrTruncated)
		})
		// Every doubling is garbage until it is collected: 2+1+1/2+… of what arrived.
		if most := uint64(4*arrived + 4096); got > most {
			t.Errorf("%d bytes taken for %d that arrived, want at most %d", got, arrived, most)
		}
	}
}

// bytesPerRun is the memory that f takes, in bytes, on average.
func bytesPerRun(f func()) uint64 {
	const runs = 50
	f()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / runs
}
