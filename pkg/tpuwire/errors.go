package tpuwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// The kinds of failure, for errors.Is. The errors that this package returns wrap
// one of them and, where there is one, the error of the reader or writer.
var (
	// ErrTooLarge: a message is larger than MaxMessage. The error is a *SizeError.
	// A stream that gave it is lost: where the next frame starts is unknown.
	ErrTooLarge = errors.New("message too large")

	// ErrTruncated: the stream ended inside a frame.
	ErrTruncated = errors.New("frame truncated")

	// ErrNotMessage: a whole frame arrived, and what it holds is not the message
	// that was expected; or a message cannot be encoded. After a read, the stream
	// stands at the next frame.
	ErrNotMessage = errors.New("not a message of the protocol")

	// ErrNoAnswer: the other end did not read or write in time.
	ErrNoAnswer = errors.New("no answer in time")

	// ErrClosed: the other end has closed the stream, and no frame is cut by that.
	ErrClosed = errors.New("stream closed")

	// ErrRefused: the runtime answered, and the answer is no. The error is a
	// *RefusedError.
	ErrRefused = errors.New("refused by the runtime")
)

// A SizeError says that a message is, or claims to be, larger than MaxMessage.
// errors.Is tells it to be ErrTooLarge.
type SizeError struct {
	Size uint64 // bytes, without the header
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("message of %d bytes is larger than the limit of %d", e.Size, MaxMessage)
}

// Is reports whether target is ErrTooLarge.
func (e *SizeError) Is(target error) bool { return target == ErrTooLarge }

// maxWords is how many bytes of a runtime's own words an error shows.
const maxWords = 512

// A RefusedError is an answer of a runtime that says no. errors.Is tells it to be
// ErrRefused.
type RefusedError struct {
	Action controlpb.ControlAction // what was asked
	State  controlpb.RuntimeState  // the state that the answer gave
	Words  string                  // the runtime's words, as they came: a stranger's text
}

// Error is safe to print: the runtime's words are quoted, and cut to 512 bytes.
func (e *RefusedError) Error() string {
	text := fmt.Sprintf("runtime refused %s", ActionName(e.Action))
	if e.State != controlpb.RuntimeState_STATE_UNSPECIFIED {
		text += ", state " + StateName(e.State)
	}
	if e.Words != "" {
		text += ": " + Quote(e.Words, maxWords)
	}
	return text
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// ActionName is the word that documents and messages use for a: "CHECKPOINT". An
// action that the protocol does not know is its number.
func ActionName(a controlpb.ControlAction) string {
	return strings.TrimPrefix(a.String(), "ACTION_")
}

// StateName is the word that documents and messages use for s: "DETACHED". A state
// that the protocol does not know is its number.
func StateName(s controlpb.RuntimeState) string {
	return strings.TrimPrefix(s.String(), "STATE_")
}

// streamError wraps an error of a reader or writer and adds its kind, if it has one.
func streamError(what string, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w: %w", what, ErrNoAnswer, err)
	case errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
		return fmt.Errorf("%s: %w: %w", what, ErrClosed, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
