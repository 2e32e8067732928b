// Package framingbench compares the framing of pkg/tpuwire with protobuf's own
// delimited frames, which the main module does not need:
//
//	go -C tools test -bench . ./framingbench
package framingbench

import (
	"bufio"
	"bytes"
	"io"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

func messages() map[string]proto.Message {
	answer := func(words int) *controlpb.ControlResponse {
		return &controlpb.ControlResponse{
			Success:      proto.Bool(true),
			CurrentState: controlpb.RuntimeState_STATE_DETACHED.Enum(),
			ErrorMessage: proto.String(string(bytes.Repeat([]byte("w"), words))),
		}
	}
	return map[string]proto.Message{
		"empty": &controlpb.ControlResponse{},
		"request": &controlpb.ControlRequest{
			Action:      controlpb.ControlAction_ACTION_CHECKPOINT.Enum(),
			TimeoutSecs: proto.Int32(180),
		},
		"answer": answer(30), "answer of 4 KiB": answer(4 << 10), "answer of 512 KiB": answer(512 << 10),
	}
}

func BenchmarkWrite(b *testing.B) {
	for name, m := range messages() {
		for framing, write := range map[string]func(io.Writer, proto.Message) error{
			"tpuwire": tpuwire.WriteMessage,
			"protodelim": func(w io.Writer, m proto.Message) error {
				_, err := protodelim.MarshalTo(w, m)
				return err
			},
		} {
			b.Run(name+"/"+framing, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := write(io.Discard, m); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for name, m := range messages() {
		b.Run(name+"/tpuwire", func(b *testing.B) { readOurs(b, m) })
		b.Run(name+"/protodelim", func(b *testing.B) { readDelimited(b, m) })
	}
}

func readOurs(b *testing.B, m proto.Message) {
	frame, err := tpuwire.AppendFrame(nil, m)
	if err != nil {
		b.Fatal(err)
	}
	source := bytes.NewReader(nil)
	r := tpuwire.NewReader(source)
	got := m.ProtoReflect().New().Interface()
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(frame)
		if err := r.ReadMessage(got); err != nil {
			b.Fatal(err)
		}
	}
}

func readDelimited(b *testing.B, m proto.Message) {
	var frame bytes.Buffer
	if _, err := protodelim.MarshalTo(&frame, m); err != nil {
		b.Fatal(err)
	}
	source := bytes.NewReader(nil)
	r := bufio.NewReader(source)
	got := m.ProtoReflect().New().Interface()
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(frame.Bytes())
		r.Reset(source)
		if err := protodelim.UnmarshalFrom(r, got); err != nil {
			b.Fatal(err)
		}
	}
}
