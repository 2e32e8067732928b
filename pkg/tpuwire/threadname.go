package tpuwire

import (
	"fmt"
	"strings"
)

const (
	namePrefix = "libtpu"
	nameDigits = 4 // of each descriptor
	nameLength = len(namePrefix) + 2*nameDigits
)

// MaxFD is the largest descriptor that a control thread's name can tell.
const MaxFD = 1<<(4*nameDigits) - 1

// A ThreadName is what the name of a runtime's control thread tells: where, in that
// thread's descriptor table, the ends of its pipes are that the driver uses.
type ThreadName struct {
	RequestFD  int32 // the write end of the request pipe
	ResponseFD int32 // the read end of the response pipe
}

// ParseThreadName reads the name of a thread: "libtpu", then exactly eight hex
// digits of either case. It reports false for every other name.
func ParseThreadName(comm string) (ThreadName, bool) {
	digits, ok := strings.CutPrefix(comm, namePrefix)
	if !ok || len(comm) != nameLength {
		return ThreadName{}, false
	}
	request, ok := parseFD(digits[:nameDigits])
	if !ok {
		return ThreadName{}, false
	}
	response, ok := parseFD(digits[nameDigits:])
	if !ok {
		return ThreadName{}, false
	}
	return ThreadName{RequestFD: request, ResponseFD: response}, true
}

// parseFD is stricter than strconv, which takes signs and underscores.
func parseFD(digits string) (int32, bool) {
	var fd int32
	for i := range len(digits) {
		var digit byte
		switch c := digits[i]; {
		case '0' <= c && c <= '9':
			digit = c - '0'
		case 'a' <= c && c <= 'f':
			digit = c - 'a' + 10
		case 'A' <= c && c <= 'F':
			digit = c - 'A' + 10
		default:
			return 0, false
		}
		fd = fd<<4 | int32(digit)
	}
	return fd, true
}

// String is the thread's name. ParseThreadName reads it if both descriptors are in
// [0, MaxFD]; others have no name.
func (n ThreadName) String() string {
	return fmt.Sprintf("%s%04x%04x", namePrefix, n.RequestFD, n.ResponseFD)
}
