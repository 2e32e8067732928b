// Command tpuhost runs a command on a TPU host without hardware.
//
//	tpuhost -arch v5e -groups 0,1,2,3 -- runsc run -bundle b c1
//	tpuhost -addresses 0000:00:05.0,0000:00:06.0 -groups 7,7 -- sh
//
// It takes root. Nothing is left on the machine when the command has ended.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

func main() {
	err := run()
	fmt.Fprintln(os.Stderr, err) // run returns only if the command could not be started
	os.Exit(125)
}

func run() error {
	var (
		arch      = flag.String("arch", "v5e", "chip architecture: "+strings.Join(tpuhost.Architectures(), ", "))
		chips     = flag.Int("chips", 1, "number of chips, each in a group of its own: 0, 1, …; without -groups")
		groups    = flag.String("groups", "", "IOMMU group of each chip, separated by commas")
		addresses = flag.String("addresses", "", "PCI address of each chip, separated by commas")
		accel     = flag.Bool("accel", false, "chips are driven through /dev/accelN and not through VFIO")
		other     = flag.String("other", "", "IOMMU groups, separated by commas, that hold a device which is no TPU")
		clutter   = flag.Bool("clutter", false, "make a directory /dev/vfio/devices")
	)
	flag.Parse()
	if flag.NArg() == 0 {
		return fmt.Errorf("tpuhost: no command given")
	}
	numbers, err := numberList(*groups)
	if err != nil {
		return err
	}
	if *groups == "" {
		for i := range *chips {
			numbers = append(numbers, i)
		}
	}
	h, err := tpuhost.New(*arch, numbers...)
	if err != nil {
		return err
	}
	h.Clutter = *clutter
	if err := place(&h, *addresses, *accel); err != nil {
		return err
	}
	others, err := numberList(*other)
	if err != nil {
		return err
	}
	for i, group := range others {
		h.Chips = append(h.Chips, tpuhost.OtherDevice(i, group))
	}
	return h.Exec(flag.Args(), os.Environ())
}

func place(h *tpuhost.Host, addresses string, accel bool) error {
	list := strings.Split(addresses, ",")
	if addresses != "" && len(list) != len(h.Chips) {
		return fmt.Errorf("tpuhost: %d addresses for %d chips", len(list), len(h.Chips))
	}
	for i := range h.Chips {
		if addresses != "" {
			h.Chips[i].Address = list[i]
		}
		h.Chips[i].Accel = accel
	}
	return nil
}

func numberList(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var numbers []int
	for word := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("tpuhost: %q is no number of an IOMMU group", word)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
