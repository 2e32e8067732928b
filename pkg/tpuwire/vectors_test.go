package tpuwire

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

const vectorFolder = "testdata/vectors"

// A vector is a row of vectors.tsv; the README beside it explains them.
type vector struct {
	file, message, class, content string
	stream                        []byte
}

func readVectors(t testing.TB) []vector {
	t.Helper()
	table, err := os.ReadFile(filepath.Join(vectorFolder, "vectors.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	for line := range strings.Lines(string(table)) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 4 {
			t.Fatalf("vectors.tsv: %q has %d columns, want 4", line, len(columns))
		}
		if columns[0] == "file" {
			continue
		}
		vectors = append(vectors, vector{columns[0], columns[1], columns[2], columns[3], readHex(t, columns[0])})
	}
	return vectors
}

func readHex(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(vectorFolder, file))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		code, _, _ := strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(code), ""))
	}
	stream, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return stream
}

func (v vector) newMessage(t *testing.T) proto.Message {
	t.Helper()
	switch v.message {
	case "ControlRequest":
		return new(controlpb.ControlRequest)
	case "ControlResponse":
		return new(controlpb.ControlResponse)
	}
	t.Fatalf("unknown message %q", v.message)
	return nil
}

func TestVectors(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(strings.TrimSuffix(v.file, ".hex"), func(t *testing.T) {
			for _, wrap := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.DataErrReader} {
				v.run(t, wrap(bytes.NewReader(v.stream)))
			}
		})
	}
}

func (v vector) run(t *testing.T, r io.Reader) {
	t.Helper()
	got := v.newMessage(t)
	err := ReadMessage(r, got)
	kinds := map[string]error{
		"closed":      ErrClosed,
		"truncated":   ErrTruncated,
		"too-large":   ErrTooLarge,
		"not-message": ErrNotMessage,
	}
	switch v.class {
	case "exact", "accept":
		if err != nil {
			t.Fatal(err)
		}
		v.compare(t, got)
	default:
		kind := kinds[v.class]
		if kind == nil {
			t.Fatalf("unknown class %q", v.class)
		}
		wantKind(t, err, kind)
	}
}

func (v vector) compare(t *testing.T, got proto.Message) {
	t.Helper()
	want := v.newMessage(t)
	if err := prototext.Unmarshal([]byte(v.content), want); err != nil {
		t.Fatalf("content: %v", err)
	}
	if v.class == "accept" {
		dropUnknown(got.ProtoReflect())
	}
	wantEqual(t, got, want)
	again := mustFrame(t, want)
	if same := bytes.Equal(again, v.stream); same != (v.class == "exact") {
		t.Errorf("written again: % x, same: %t, in class %s", again, same, v.class)
	}
}

func dropUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() != nil && !field.IsList() && !field.IsMap() {
			dropUnknown(value.Message())
		}
		return true
	})
}

func TestVectors_NoneForgotten(t *testing.T) {
	listed := map[string]bool{}
	for _, v := range readVectors(t) {
		if listed[v.file] {
			t.Errorf("%s is listed twice", v.file)
		}
		listed[v.file] = true
	}
	files, err := filepath.Glob(filepath.Join(vectorFolder, "*.hex"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if !listed[filepath.Base(path)] {
			t.Errorf("%s is not in vectors.tsv", path)
		}
	}
}
