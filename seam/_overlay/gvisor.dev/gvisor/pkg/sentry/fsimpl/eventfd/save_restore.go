package eventfd

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
)

// A device of the host signals an interrupt by writing to the host's eventfd behind
// ours. What is pending there at a save goes into the image, and stays where it is:
// the sandbox may go on running, and would wait for ever for an interrupt that was
// taken away.

// maxTaken bounds how often a semaphore is read for a save: each read takes one.
const maxTaken = 4096

func (efd *EventFileDescription) beforeSave() {
	clear(efd.hostfdState[:])
	if efd.hostfd < 0 {
		return
	}
	if !efd.sentryOwnedHostfd {
		panic("an eventfd that belongs to somebody outside the sandbox cannot be saved")
	}
	reads := 1
	if efd.semMode {
		reads = maxTaken
	}
	var pending uint64
	for range reads {
		var buf [8]byte
		if _, err := unix.Read(efd.hostfd, buf[:]); err != nil {
			if !errors.Is(err, unix.EAGAIN) {
				log.Warningf("an eventfd cannot be read for a save: %v", err)
			}
			break
		}
		pending += binary.NativeEndian.Uint64(buf[:])
	}
	binary.NativeEndian.PutUint64(efd.hostfdState[:], pending)
	efd.putBack()
}

func (efd *EventFileDescription) afterLoad(context.Context) {
	if efd.hostfd < 0 {
		return
	}
	efd.hostfd = -1
	efd.val = 0 // all that is pending is in hostfdState
	if _, err := efd.HostFD(); err != nil {
		log.Warningf("no eventfd of the host for a restored one: %v", err)
		return
	}
	efd.putBack()
}

// putBack makes pending on the host what hostfdState says.
func (efd *EventFileDescription) putBack() {
	if binary.NativeEndian.Uint64(efd.hostfdState[:]) == 0 {
		return
	}
	if _, err := unix.Write(efd.hostfd, efd.hostfdState[:]); err != nil {
		log.Warningf("an eventfd cannot be written after a save or load: %v", err)
	}
}
