// Package vfio is a user of VFIO in plain system calls: a container, a group in it,
// the device of the group, its regions, DMA and interrupts. It does nothing clever, so
// that what it is answered can be told exactly.
package vfio

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The requests of VFIO, from linux/vfio.h.
const (
	base           = ';'<<8 + 100
	getAPIVersion  = base + 0
	checkExtension = base + 1
	setIOMMU       = base + 2
	groupStatus    = base + 3
	setContainer   = base + 4
	getDeviceFD    = base + 6
	deviceInfo     = base + 7
	regionInfo     = base + 8
	irqInfo        = base + 9
	setIRQs        = base + 10
	deviceReset    = base + 11
	mapDMA         = base + 13
	unmapDMA       = base + 14

	type1v2 = 3

	dmaRead, dmaWrite = 1, 2
	irqData, irqSet   = 1 << 2, 1 << 5 // eventfds; trigger
	msi               = 1
)

// Regions of a PCI device.
const (
	BAR0   = 0
	BAR2   = 2
	Config = 7
)

// Region is one of a device: where it begins in the device's file, and its size.
type Region struct{ Offset, Size uint64 }

// ioctl keeps arg, to which the argument points, where it is.
func ioctl[T any](fd int, request uintptr, arg *T) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg)))
	runtime.KeepAlive(arg)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func ioctlValue(fd int, request, value uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, value)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// OpenContainer opens /dev/vfio/vfio.
func OpenContainer() (int, error) { return open("/dev/vfio/vfio") }

// OpenGroup opens the node of an IOMMU group.
func OpenGroup(group int) (int, error) { return open("/dev/vfio/" + strconv.Itoa(group)) }

func open(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// Join puts a group into a container.
func Join(group, container int) error {
	c := int32(container)
	_, err := ioctl(group, setContainer, &c)
	return named("VFIO_GROUP_SET_CONTAINER", err)
}

// SetIOMMU gives the container its IOMMU. A group must have joined it.
func SetIOMMU(container int) error {
	_, err := ioctlValue(container, setIOMMU, type1v2)
	return named("VFIO_SET_IOMMU", err)
}

// Extension asks a container whether it has the IOMMU that is used here.
func Extension(container int) (bool, error) {
	n, err := ioctlValue(container, checkExtension, type1v2)
	return n > 0, named("VFIO_CHECK_EXTENSION", err)
}

// OpenDevice opens the device of a group by its PCI address.
func OpenDevice(group int, address string) (int, error) {
	name, err := unix.ByteSliceFromString(address)
	if err != nil {
		return -1, err
	}
	fd, err := ioctl(group, getDeviceFD, &name[0])
	if err != nil {
		return -1, named("VFIO_GROUP_GET_DEVICE_FD "+address, err)
	}
	return fd, nil
}

// Info asks a device how many regions and interrupts it has.
func Info(device int) (regions, irqs int, err error) {
	arg := struct{ size, flags, regions, irqs uint32 }{size: 16}
	_, err = ioctl(device, deviceInfo, &arg)
	return int(arg.regions), int(arg.irqs), named("VFIO_DEVICE_GET_INFO", err)
}

// RegionOf asks a device for one of its regions.
func RegionOf(device, index int) (Region, error) {
	arg := struct {
		size, flags, index, caps uint32
		length, offset           uint64
	}{size: 32, index: uint32(index)}
	_, err := ioctl(device, regionInfo, &arg)
	return Region{arg.offset, arg.length}, named(fmt.Sprintf("VFIO_DEVICE_GET_REGION_INFO %d", index), err)
}

// MapDMA lets the devices of a container reach memory at an address of their own.
func MapDMA(container int, memory []byte, at uint64) error {
	arg := struct {
		size, flags         uint32
		vaddr, iova, length uint64
	}{32, dmaRead | dmaWrite, uint64(uintptr(unsafe.Pointer(&memory[0]))), at, uint64(len(memory))}
	_, err := ioctl(container, mapDMA, &arg)
	runtime.KeepAlive(memory)
	return named("VFIO_IOMMU_MAP_DMA", err)
}

// UnmapDMA takes that back, and gives the number of bytes that were mapped.
func UnmapDMA(container int, at, length uint64) (uint64, error) {
	arg := struct {
		size, flags  uint32
		iova, length uint64
	}{24, 0, at, length}
	_, err := ioctl(container, unmapDMA, &arg)
	return arg.length, named("VFIO_IOMMU_UNMAP_DMA", err)
}

// ArmMSI makes the device's first message interrupt signal an eventfd.
func ArmMSI(device, eventfd int) error {
	count := struct{ size, flags, index, count uint32 }{size: 16, index: msi}
	if _, err := ioctl(device, irqInfo, &count); err != nil {
		return named("VFIO_DEVICE_GET_IRQ_INFO", err)
	}
	if count.count == 0 {
		return fmt.Errorf("the device has no message interrupt")
	}
	arg := struct {
		size, flags, index, start, count uint32
		fd                               int32
	}{24, irqData | irqSet, msi, 0, 1, int32(eventfd)}
	_, err := ioctl(device, setIRQs, &arg)
	return named("VFIO_DEVICE_SET_IRQS", err)
}

// Reset resets a device.
func Reset(device int) error {
	_, err := ioctlValue(device, deviceReset, 0)
	return named("VFIO_DEVICE_RESET", err)
}

func named(request string, err error) error {
	if err == nil {
		return nil
	}
	return os.NewSyscallError(request, err)
}
