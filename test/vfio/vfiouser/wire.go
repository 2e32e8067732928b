package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Commands, from the protocol's specification.
const (
	cmdVersion    = 1
	cmdDMAMap     = 2
	cmdDMAUnmap   = 3
	cmdDeviceInfo = 4
	cmdRegionInfo = 5
	cmdIRQInfo    = 7
	cmdSetIRQs    = 8
	cmdRead       = 9
	cmdWrite      = 10
	cmdReset      = 13
)

// Flags of a header.
const (
	flagReply   = 1
	flagNoReply = 1 << 4
	flagError   = 1 << 5
)

const (
	headerSize = 16
	maxBody    = 2 << 20
	maxFDs     = 8
)

var le = binary.LittleEndian

// message is one of either direction. The files of one that was received belong to
// whoever has it.
type message struct {
	id, command uint16
	flags       uint32
	body        []byte
	fds         []int
}

func (m *message) closeFDs() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// stream reads messages with their files from a socket.
type stream struct {
	conn *net.UnixConn
	fds  []int // received and not part of a message yet
}

func (s *stream) receive() (*message, error) {
	var head [headerSize]byte
	if err := s.fill(head[:]); err != nil {
		return nil, err
	}
	size := le.Uint32(head[4:])
	if size < headerSize || size > headerSize+maxBody {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	m := &message{id: le.Uint16(head[:]), command: le.Uint16(head[2:]), flags: le.Uint32(head[8:]), body: make([]byte, size-headerSize)}
	if err := s.fill(m.body); err != nil {
		return nil, err
	}
	m.fds, s.fds = s.fds, nil
	return m, nil
}

func (s *stream) fill(b []byte) error {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for len(b) > 0 {
		n, oobn, _, _, err := s.conn.ReadMsgUnix(b, oob)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		if err := s.keepFDs(oob[:oobn]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (s *stream) keepFDs(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return err
		}
		s.fds = append(s.fds, fds...)
	}
	return nil
}

// reply answers m, with a file if fd is not negative.
func (s *stream) reply(m *message, body []byte, fd int, err error) error {
	if m.flags&flagNoReply != 0 {
		return nil
	}
	flags, errno := uint32(flagReply), uint32(0)
	if err != nil {
		number := syscall.EINVAL
		errors.As(err, &number)
		flags, errno, body = flags|flagError, uint32(number), nil
	}
	b := le.AppendUint16(nil, m.id)
	b = le.AppendUint16(b, m.command)
	b = le.AppendUint32(b, uint32(headerSize+len(body)))
	b = le.AppendUint32(b, flags)
	b = le.AppendUint32(b, errno)
	b = append(b, body...)
	var oob []byte
	if fd >= 0 && err == nil {
		oob = unix.UnixRights(fd)
	}
	_, _, err = s.conn.WriteMsgUnix(b, oob, nil)
	return err
}
