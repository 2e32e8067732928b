package model

import "encoding/binary"

var le = binary.LittleEndian

const configSize = 256

// Places in the configuration space.
const (
	cfgVendor     = 0x00
	cfgDevice     = 0x02
	cfgCommand    = 0x04
	cfgStatus     = 0x06
	cfgClass      = 0x09
	cfgBAR2       = 0x18
	cfgSubsystem  = 0x2c
	cfgCapability = 0x34
	cfgLine       = 0x3c
	cfgPCIe       = 0x40
	cfgMSI        = 0x90

	commandMaster = 1 << 2
)

// configSpace is a PCI Express endpoint that is an accelerator, with two memory
// regions, one message interrupt, and a reset of its own.
func configSpace(vendor, device uint16) (c [configSize]byte) {
	le.PutUint16(c[cfgVendor:], vendor)
	le.PutUint16(c[cfgDevice:], device)
	le.PutUint16(c[cfgStatus:], 1<<4) // has capabilities
	copy(c[cfgClass:], []byte{0, 0, 0x12})
	le.PutUint32(c[cfgBAR2:], 1<<3) // prefetchable
	le.PutUint16(c[cfgSubsystem:], vendor)
	c[cfgCapability] = cfgPCIe

	const express, version2 = 0x10, 2
	copy(c[cfgPCIe:], []byte{express, cfgMSI, version2, 0})
	le.PutUint32(c[cfgPCIe+4:], 1<<28|1<<15) // function level reset, role-based errors
	le.PutUint32(c[cfgPCIe+0xc:], 1|1<<4)    // link: 2.5 GT/s, one lane
	le.PutUint16(c[cfgPCIe+0x12:], 1|1<<4)

	const message, wide = 0x05, 1 << 7
	copy(c[cfgMSI:], []byte{message, 0, wide, 0})
	return c
}

// writable tells which bytes of the configuration space a write changes.
func writable(at int) bool {
	switch {
	case at == cfgCommand, at == cfgCommand+1, at == cfgLine:
		return true
	case at >= cfgPCIe+8 && at < cfgPCIe+0xa: // device control
		return true
	case at >= cfgMSI+2 && at < cfgMSI+0xe:
		return true
	}
	return false
}

const (
	deviceControl = cfgPCIe + 8
	startReset    = 1 << 15
)
