package tpuwire

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

func request() *controlpb.ControlRequest {
	return &controlpb.ControlRequest{
		Action:      controlpb.ControlAction_ACTION_RESTORE.Enum(),
		TimeoutSecs: proto.Int32(180),
		ExpectedTopology: &controlpb.TpuTopology{
			ChipArchitecture: proto.String("v5e"),
			NumChips:         proto.Int32(4),
			MeshShape:        proto.String("2x2x1"),
			PjrtVersion:      proto.String("0.112"),
		},
	}
}

// answerOf is an answer whose encoding has exactly size bytes, from 4 on.
func answerOf(t testing.TB, size int) *controlpb.ControlResponse {
	t.Helper()
	for words := size; words >= 0; words-- {
		m := &controlpb.ControlResponse{ErrorMessage: proto.String(strings.Repeat("x", words))}
		switch proto.Size(m) {
		case size:
			return m
		case size - 2:
			m.Success = proto.Bool(false)
			return m
		}
	}
	t.Fatalf("no answer of %d bytes", size)
	return nil
}

func mustFrame(t testing.TB, m proto.Message) []byte {
	t.Helper()
	frame, err := AppendFrame(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	for _, other := range []error{ErrTooLarge, ErrTruncated, ErrNotMessage, ErrNoAnswer, ErrClosed, ErrRefused} {
		if !errors.Is(other, kind) && errors.Is(err, other) {
			t.Fatalf("error %v is of kind %v, and of %v too", err, kind, other)
		}
	}
}

func wantEqual(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAppendFrame_Bytes(t *testing.T) {
	m := &controlpb.ControlRequest{
		Action:      controlpb.ControlAction_ACTION_CHECKPOINT.Enum(),
		TimeoutSecs: proto.Int32(180),
	}
	got := mustFrame(t, m)
	want := []byte{0, 0, 0, 5, 0x08, 2, 0x10, 0xb4, 0x01}
	if !bytes.Equal(got, want) {
		t.Errorf("frame % x, want % x", got, want)
	}
}

func TestAppendFrame_KeepsWhatIsThere(t *testing.T) {
	before := []byte("before")
	got, err := AppendFrame(before, request())
	if err != nil || !bytes.HasPrefix(got, before) {
		t.Fatalf("frame %q, error %v", got, err)
	}
	for name, bad := range map[string]proto.Message{
		"too large": answerOf(t, MaxMessage+1),
		"not UTF-8": &controlpb.ControlResponse{ErrorMessage: proto.String("\xff")},
	} {
		if got, err := AppendFrame(before, bad); err == nil || string(got) != "before" {
			t.Errorf("%s: frame %.20q, error %v; want the buffer as it was and an error", name, got, err)
		}
	}
}

func TestLimit_BothWays(t *testing.T) {
	largest := answerOf(t, MaxMessage)
	var stream bytes.Buffer
	if err := WriteMessage(&stream, largest); err != nil {
		t.Fatalf("write of %d bytes: %v", MaxMessage, err)
	}
	var got controlpb.ControlResponse
	if err := ReadMessage(&stream, &got); err != nil {
		t.Fatalf("read of %d bytes: %v", MaxMessage, err)
	}
	wantEqual(t, &got, largest)

	err := WriteMessage(&stream, answerOf(t, MaxMessage+1))
	wantSize(t, err, MaxMessage+1)
	if stream.Len() != 0 {
		t.Errorf("%d bytes of a message that is too large were written", stream.Len())
	}
	wantSize(t, ReadMessage(strings.NewReader("\x00\x10\x00\x01"), &got), MaxMessage+1)
	wantSize(t, ReadMessage(strings.NewReader("\xff\xff\xff\xff"), &got), 1<<32-1)
}

func wantSize(t *testing.T, err error, size uint64) {
	t.Helper()
	wantKind(t, err, ErrTooLarge)
	var tooLarge *SizeError
	if !errors.As(err, &tooLarge) || tooLarge.Size != size {
		t.Fatalf("error %v, want a SizeError of %d", err, size)
	}
}

func TestRead_SplitAtEveryByte(t *testing.T) {
	frame := mustFrame(t, request())
	for at := range len(frame) + 1 {
		var got controlpb.ControlRequest
		r := io.MultiReader(bytes.NewReader(frame[:at]), bytes.NewReader(frame[at:]))
		if err := ReadMessage(r, &got); err != nil {
			t.Fatalf("split at %d: %v", at, err)
		}
		wantEqual(t, &got, request())
	}
}

func TestRead_SlowSources(t *testing.T) {
	frames := bytes.Repeat(mustFrame(t, request()), 3)
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"one byte at a time": iotest.OneByteReader,
		"half of it":         iotest.HalfReader,
		"error with data":    iotest.DataErrReader,
		"empty reads":        func(r io.Reader) io.Reader { return &hesitant{source: iotest.OneByteReader(r)} },
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(wrap(bytes.NewReader(frames)))
			for range 3 {
				var got controlpb.ControlRequest
				if err := r.ReadMessage(&got); err != nil {
					t.Fatal(err)
				}
				wantEqual(t, &got, request())
			}
			wantKind(t, r.ReadMessage(&controlpb.ControlRequest{}), ErrClosed)
		})
	}
}

// hesitant gives nothing at every second read.
type hesitant struct {
	source io.Reader
	gave   bool
}

func (h *hesitant) Read(p []byte) (int, error) {
	h.gave = !h.gave
	if !h.gave {
		return 0, nil
	}
	return h.source.Read(p)
}

func TestRead_NotAByteMore(t *testing.T) {
	rest := bytes.NewReader(append(mustFrame(t, request()), "rest"...))
	var got controlpb.ControlRequest
	if err := ReadMessage(rest, &got); err != nil {
		t.Fatal(err)
	}
	if left, _ := io.ReadAll(rest); string(left) != "rest" {
		t.Errorf("%q is left in the source, want \"rest\"", left)
	}
}

func TestRead_EveryPrefixIsTruncated(t *testing.T) {
	frame := mustFrame(t, request())
	for n := range len(frame) {
		kind := ErrTruncated
		if n == 0 {
			kind = ErrClosed
		}
		wantKind(t, ReadMessage(bytes.NewReader(frame[:n]), &controlpb.ControlRequest{}), kind)
	}
}

func TestRead_EmptyFrame(t *testing.T) {
	got := request()
	if err := ReadMessage(bytes.NewReader(make([]byte, 4)), got); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, &controlpb.ControlRequest{})
}

func TestRead_GoesOnAfterGarbage(t *testing.T) {
	r := NewReader(bytes.NewReader(append([]byte{0, 0, 0, 2, 0xff, 0xff}, mustFrame(t, request())...)))
	var got controlpb.ControlRequest
	wantKind(t, r.ReadMessage(&got), ErrNotMessage)
	if err := r.ReadMessage(&got); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, &got, request())
}

func TestRead_TooLargeStays(t *testing.T) {
	r := NewReader(strings.NewReader("\xff\xff\xff\xff" + "\x00\x00\x00\x00"))
	for range 2 {
		_, err := r.ReadFrame()
		wantKind(t, err, ErrTooLarge)
	}
}

func TestReader_GoesOnAfterAnError(t *testing.T) {
	blocked := errors.New("would block")
	source := &stuttering{rest: bytes.Repeat(mustFrame(t, request()), 2), err: blocked}
	r := NewReader(source)
	for range 2 {
		var got controlpb.ControlRequest
		err := r.ReadMessage(&got)
		for errors.Is(err, blocked) {
			err = r.ReadMessage(&got)
		}
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, &got, request())
	}
}

// stuttering gives one byte, then an error, then the next byte; some bytes come
// together with the error.
type stuttering struct {
	rest  []byte
	err   error
	turns int
}

func (s *stuttering) Read(p []byte) (int, error) {
	s.turns++
	if s.turns%3 == 0 || len(s.rest) == 0 {
		return 0, s.err
	}
	p[0], s.rest = s.rest[0], s.rest[1:]
	if s.turns%3 == 1 {
		return 1, s.err
	}
	return 1, nil
}

func TestRead_ErrorsOfTheSource(t *testing.T) {
	broken := errors.New("broken")
	header := []byte{0, 0, 0, 9, 1}
	for _, sofar := range [][]byte{nil, header[:2], header} {
		r := io.MultiReader(bytes.NewReader(sofar), iotest.ErrReader(broken))
		if err := ReadMessage(r, &controlpb.ControlRequest{}); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: error %v, want it to wrap the source's", len(sofar), err)
		}
		r = io.MultiReader(bytes.NewReader(sofar), iotest.ErrReader(os.ErrDeadlineExceeded))
		err := ReadMessage(r, &controlpb.ControlRequest{})
		wantKind(t, err, ErrNoAnswer)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %d bytes: error %v, want it to wrap the deadline", len(sofar), err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestRead_BrokenSources(t *testing.T) {
	for name, read := range map[string]readerFunc{
		"never anything": func([]byte) (int, error) { return 0, nil },
		"too many":       func(p []byte) (int, error) { return len(p) + 1, nil },
		"negative":       func([]byte) (int, error) { return -1, nil },
	} {
		if err := ReadMessage(read, &controlpb.ControlRequest{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestWrite_OneWrite(t *testing.T) {
	writes := 0
	err := WriteMessage(writerFunc(func(p []byte) (int, error) {
		writes++
		return len(p), nil
	}), request())
	if err != nil || writes != 1 {
		t.Errorf("%d writes, error %v; want one", writes, err)
	}
}

func TestWrite_ShortWrites(t *testing.T) {
	frame := mustFrame(t, request())
	for _, short := range []error{nil, io.ErrShortWrite} {
		for most := 1; most <= len(frame); most++ {
			var got bytes.Buffer
			err := WriteMessage(writerFunc(func(p []byte) (int, error) {
				if len(p) <= most {
					return got.Write(p)
				}
				n, _ := got.Write(p[:most])
				return n, short
			}), request())
			if err != nil {
				t.Fatalf("at most %d bytes a write, error %v: %v", most, short, err)
			}
			if !bytes.Equal(got.Bytes(), frame) {
				t.Fatalf("at most %d bytes a write: % x, want % x", most, got.Bytes(), frame)
			}
		}
	}
}

func TestWrite_ErrorsOfTheWriter(t *testing.T) {
	broken := errors.New("broken")
	write := func(n int, err error) error {
		return WriteMessage(writerFunc(func([]byte) (int, error) { return n, err }), request())
	}
	if err := write(3, broken); !errors.Is(err, broken) {
		t.Errorf("error %v, want it to wrap the writer's", err)
	}
	wantKind(t, write(0, syscall.EPIPE), ErrClosed)
	wantKind(t, write(0, io.ErrClosedPipe), ErrClosed)
	wantKind(t, write(0, os.ErrDeadlineExceeded), ErrNoAnswer)
	for name, err := range map[string]error{
		"no progress":            write(0, nil),
		"no progress, as short":  write(0, io.ErrShortWrite),
		"takes more than it got": write(1<<20, nil),
		"negative":               write(-1, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWrite_ClosedPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	wantKind(t, WriteMessage(w, request()), ErrClosed)
}

func TestReader_GoesOnWithAnotherSource(t *testing.T) {
	frame := mustFrame(t, request())
	blocked := errors.New("would block")
	for at := range len(frame) {
		r := NewReader(io.MultiReader(bytes.NewReader(frame[:at]), iotest.ErrReader(blocked)))
		if _, err := r.ReadFrame(); !errors.Is(err, blocked) {
			t.Fatalf("after %d bytes: error %v, want %v", at, err, blocked)
		}
		if r.Partial() != (at > 0) {
			t.Fatalf("after %d bytes: partial: %t", at, r.Partial())
		}
		r.SetSource(bytes.NewReader(frame[at:]))
		var got controlpb.ControlRequest
		if err := r.ReadMessage(&got); err != nil {
			t.Fatalf("after %d bytes: %v", at, err)
		}
		wantEqual(t, &got, request())
		if r.Partial() {
			t.Fatalf("after a whole frame: partial")
		}
	}
}
