package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// maxWords is the longest error message of an answer, in bytes. With it, an answer
// fits into 4096 bytes, which a pipe takes all at once.
const maxWords = 2048

// Serve reads requests from r and writes m's answers to w, one after the other. It
// returns nil when r ends between two requests, and an error when the stream is lost or
// ctx ends. A frame that holds no request is answered, as a failure.
//
// When ctx ends, so does the action under way; and to end a read or write under way,
// Serve sets a deadline on r and w that has passed, or closes them if they have no
// deadlines. Those that have neither must be ended by the caller.
func Serve(ctx context.Context, r io.Reader, w io.Writer, m *Machine) error {
	stop := context.AfterFunc(ctx, func() { interrupt(r, w) })
	defer stop()
	err := serve(ctx, tpuwire.NewReader(r), w, m)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func serve(ctx context.Context, r *tpuwire.Reader, w io.Writer, m *Machine) error {
	for {
		request := new(controlpb.ControlRequest)
		var response *controlpb.ControlResponse
		switch err := r.ReadMessage(request); {
		case err == nil:
			response = m.Answer(ctx, request)
		case errors.Is(err, tpuwire.ErrNotMessage):
			response = m.notUnderstood(err)
		case errors.Is(err, tpuwire.ErrClosed):
			return nil
		default:
			return fmt.Errorf("read request: %w", err)
		}
		if err := tpuwire.WriteMessage(w, response); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
}

// notUnderstood is the answer to a frame that holds no request.
func (m *Machine) notUnderstood(err error) *controlpb.ControlResponse {
	return &controlpb.ControlResponse{
		Success:      proto.Bool(false),
		CurrentState: m.State().Enum(),
		ErrorMessage: proto.String(words(err)),
	}
}

// words makes an error fit for an answer: UTF-8, and not too long.
func words(err error) string {
	text := strings.ToValidUTF8(err.Error(), "?")
	if len(text) <= maxWords {
		return text
	}
	end := maxWords
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// interrupt makes reads from r and writes to w fail.
func interrupt(r io.Reader, w io.Writer) {
	past := time.Unix(1, 0)
	if d, ok := r.(interface{ SetReadDeadline(time.Time) error }); !ok || d.SetReadDeadline(past) != nil {
		closeIt(r)
	}
	if d, ok := w.(interface{ SetWriteDeadline(time.Time) error }); !ok || d.SetWriteDeadline(past) != nil {
		closeIt(w)
	}
}

func closeIt(stream any) {
	if c, ok := stream.(io.Closer); ok {
		c.Close()
	}
}
