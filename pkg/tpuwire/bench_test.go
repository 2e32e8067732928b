package tpuwire

import (
	"bytes"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// The comparison with protobuf's own delimited frames is in tools/framingbench.

func TestFraming_TakesNoMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector drops pooled buffers at random")
	}
	m, got := request(), new(controlpb.ControlRequest)
	frame := mustFrame(t, m)
	body := frame[headerSize:]
	decoding := testing.AllocsPerRun(100, func() { proto.Unmarshal(body, got) })

	source := bytes.NewReader(nil)
	r := NewReader(source)
	for name, tc := range map[string]struct {
		run  func() error
		want float64
	}{
		"WriteMessage": {func() error { return WriteMessage(io.Discard, m) }, 0},
		"ReadFrame": {func() error {
			source.Reset(frame)
			_, err := r.ReadFrame()
			return err
		}, 0},
		"Reader.ReadMessage": {func() error {
			source.Reset(frame)
			return r.ReadMessage(got)
		}, decoding},
		"ReadMessage": {func() error {
			source.Reset(frame)
			return ReadMessage(source, got)
		}, decoding},
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if err := tc.run(); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > tc.want {
			t.Errorf("%s: %v allocations, want %v", name, allocs, tc.want)
		}
	}
}

func BenchmarkWriteMessage(b *testing.B) {
	m := request()
	b.ReportAllocs()
	for b.Loop() {
		if err := WriteMessage(io.Discard, m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadFrame(b *testing.B) {
	frame := mustFrame(b, request())
	source := bytes.NewReader(nil)
	r := NewReader(source)
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(frame)
		if _, err := r.ReadFrame(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadMessage(b *testing.B) {
	frame := mustFrame(b, request())
	source := bytes.NewReader(nil)
	var m controlpb.ControlRequest
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(frame)
		if err := ReadMessage(source, &m); err != nil {
			b.Fatal(err)
		}
	}
}
