// Package chip says how the bench's TPU is laid out: what its model and its users have
// to agree on.
package chip

// HBMSize is the size of the chip's own memory, all of which its second region shows.
const HBMSize = 4 << 20

// MaxTransfer is what one DMA copies at most.
const MaxTransfer = 1 << 20

// Registers of the first region: where they begin. Each has 8 bytes, and is read and
// written whole.
const (
	ID        = 0x00 // reads as Magic
	Address   = 0x08 // of the host's memory, for a DMA
	Offset    = 0x10 // in HBM, for a DMA
	Length    = 0x18 // of a DMA
	Command   = 0x20 // starts a DMA, which has ended when the write is done
	Status    = 0x28 // of the last DMA
	Interrupt = 0x30 // any write signals the message interrupt
	Scratch   = 0x38

	RegistersSize = 0x1000
)

// Magic is what ID reads as.
const Magic = 0x3155_5054_4543_4146

// Commands.
const (
	ToHBM   = 1
	FromHBM = 2
)

// Values of Status.
const (
	OK     = 0
	Fault  = 1 // the IOMMU does not let the chip reach that memory
	Denied = 2 // the chip may not be a bus master, or the request makes no sense
)
