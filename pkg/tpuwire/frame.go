package tpuwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
)

// MaxMessage is the largest message that the protocol allows, in bytes, without
// its header.
const MaxMessage = 1 << 20

// headerSize is the length, in bytes, of the big-endian number before a message.
const headerSize = 4

// AppendFrame appends m's frame, header and message, to dst. If m is larger than
// MaxMessage (a *SizeError) or cannot be encoded (ErrNotMessage), dst is returned
// as it was.
func AppendFrame(dst []byte, m proto.Message) ([]byte, error) {
	size := proto.Size(m)
	if size > MaxMessage {
		return dst, &SizeError{Size: uint64(size)}
	}
	frame := binary.BigEndian.AppendUint32(dst, uint32(size))
	frame, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(frame, m)
	if err != nil {
		return dst, fmt.Errorf("encode: %w: %w", ErrNotMessage, err)
	}
	return frame, nil
}

// frames holds buffers for WriteMessage, so that writing takes no memory.
var frames = sync.Pool{New: func() any { return new([]byte) }}

// WriteMessage writes one frame to w, with one Write if w takes all of it, and goes
// on where w stopped if it does not. Nothing is written if m is too large or cannot
// be encoded; after any other error a part of the frame may have been written, and
// the stream is lost.
func WriteMessage(w io.Writer, m proto.Message) error {
	buffer := frames.Get().(*[]byte)
	defer frames.Put(buffer)
	frame, err := AppendFrame((*buffer)[:0], m)
	*buffer = frame[:0]
	if err != nil {
		return err
	}
	return writeAll(w, frame)
}

// writeAll goes on after a short write that took something, whether w calls it an
// error or not.
func writeAll(w io.Writer, frame []byte) error {
	for rest := frame; len(rest) > 0; {
		n, err := w.Write(rest)
		if n < 0 || n > len(rest) {
			return fmt.Errorf("write frame: writer says that it took %d of %d bytes", n, len(rest))
		}
		rest = rest[n:]
		if n > 0 && (err == nil || errors.Is(err, io.ErrShortWrite)) {
			continue
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		return streamError(fmt.Sprintf("write frame, %d of %d bytes done", len(frame)-len(rest), len(frame)), err)
	}
	return nil
}
