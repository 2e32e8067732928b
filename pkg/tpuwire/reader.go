package tpuwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
)

const (
	// firstBuffer is what a Reader takes before anything of a message has arrived,
	// in bytes. It holds every message of today.
	firstBuffer = 512

	// maxEmptyReads is how often in a row a reader may give nothing, and no error.
	maxEmptyReads = 100
)

// A Reader reads frames. It asks its source for no byte beyond the frame that it
// reads, takes memory as bytes arrive (never more than twice as much, or 512 bytes),
// and uses it again for the next frame.
//
// An error of the source that is no end of file leaves the Reader where it was: the
// next call goes on with the same frame. So a source that would block, or that ran
// into a deadline, may be asked again.
type Reader struct {
	source io.Reader
	header [headerSize]byte
	have   int    // bytes of header that have arrived
	buffer []byte // bytes of the message that have arrived
	whole  bool   // the last call returned a frame, which buffer still holds
}

// NewReader returns a Reader of the frames that r gives.
func NewReader(r io.Reader) *Reader { return &Reader{source: r} }

// SetSource makes r go on with another source, in the middle of a frame if it
// stands there. nil lets go of the old one; reading then panics.
func (r *Reader) SetSource(source io.Reader) { r.source = source }

// Partial reports whether r holds the beginning of a frame whose rest is still to
// come.
func (r *Reader) Partial() bool { return r.have > 0 && !r.whole }

// ReadFrame returns the next message's bytes, which are valid until the next call.
//
// Its errors: ErrClosed at an end of file before the first byte of a frame,
// ErrTruncated at one inside it, a *SizeError for a header over MaxMessage, and
// anything else that the source says, wrapped; a deadline is ErrNoAnswer as well.
func (r *Reader) ReadFrame() ([]byte, error) {
	if r.whole {
		r.reset()
	}
	if err := r.readHeader(); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(r.header[:])
	if size > MaxMessage {
		return nil, &SizeError{Size: uint64(size)}
	}
	if err := r.readBody(int(size)); err != nil {
		return nil, err
	}
	r.whole = true
	return r.buffer, nil
}

// ReadMessage reads the next frame into m, which it resets first. Its errors are
// those of ReadFrame, and ErrNotMessage.
func (r *Reader) ReadMessage(m proto.Message) error {
	frame, err := r.ReadFrame()
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(frame, m); err != nil {
		return fmt.Errorf("decode: %w: %w", ErrNotMessage, err)
	}
	return nil
}

func (r *Reader) reset() {
	r.have, r.buffer, r.whole = 0, r.buffer[:0], false
}

func (r *Reader) readHeader() error {
	for r.have < headerSize {
		n, err := r.read(r.header[r.have:])
		r.have += n
		if r.have == headerSize || err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			return streamError("read header", err)
		}
		if r.have == 0 {
			return ErrClosed
		}
		return fmt.Errorf("%w: stream ended after %d of %d header bytes", ErrTruncated, r.have, headerSize)
	}
	return nil
}

func (r *Reader) readBody(size int) error {
	for len(r.buffer) < size {
		r.makeRoom(size)
		have := len(r.buffer)
		n, err := r.read(r.buffer[have:min(size, cap(r.buffer))])
		r.buffer = r.buffer[:have+n]
		if have+n == size || err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			return streamError("read message", err)
		}
		return fmt.Errorf("%w: stream ended after %d of %d message bytes", ErrTruncated, have+n, size)
	}
	return nil
}

// makeRoom grows a full buffer, on the word of what has arrived rather than of the
// header.
func (r *Reader) makeRoom(size int) {
	have := len(r.buffer)
	if have < cap(r.buffer) {
		return
	}
	grown := make([]byte, have, max(firstBuffer, min(size, 2*have)))
	copy(grown, r.buffer)
	r.buffer = grown
}

// read reads something into p, or gives an error.
func (r *Reader) read(p []byte) (int, error) {
	for range maxEmptyReads {
		n, err := r.source.Read(p)
		if n < 0 || n > len(p) {
			return 0, fmt.Errorf("reader says that it gave %d of %d bytes", n, len(p))
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// readers holds Readers for ReadMessage, so that reading takes no memory beyond the
// message's own.
var readers = sync.Pool{New: func() any { return new(Reader) }}

// ReadMessage reads exactly one frame from r, not a byte more, into m, which it
// resets first. Its errors are those of Reader.ReadMessage; but what has been read
// of a frame is lost with an error. To go on after one, use a Reader.
func ReadMessage(r io.Reader, m proto.Message) error {
	reader := readers.Get().(*Reader)
	reader.reset()
	reader.source = r
	err := reader.ReadMessage(m)
	reader.source = nil
	readers.Put(reader)
	return err
}
