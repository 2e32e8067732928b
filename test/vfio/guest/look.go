package main

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// seen is a TPU as the sandbox's /sys shows it.
type seen struct {
	Address string `json:"address"`
	Group   int    `json:"group"`
	ID      string `json:"id"`
}

const pciDevices = "/sys/bus/pci/devices"

// look finds the TPUs, by address.
func look() ([]seen, error) {
	entries, err := os.ReadDir(pciDevices)
	if err != nil {
		return nil, err
	}
	var tpus []seen
	for _, e := range entries {
		dir := filepath.Join(pciDevices, e.Name())
		if vendor, _ := os.ReadFile(filepath.Join(dir, "vendor")); strings.TrimSpace(string(vendor)) != "0x1ae0" {
			continue
		}
		id, err := os.ReadFile(filepath.Join(dir, "device"))
		if err != nil {
			return nil, err
		}
		link, err := os.Readlink(filepath.Join(dir, "iommu_group"))
		if err != nil {
			return nil, err
		}
		group, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			return nil, err
		}
		tpus = append(tpus, seen{e.Name(), group, strings.TrimSpace(string(id))})
	}
	slices.SortFunc(tpus, func(a, b seen) int { return cmp.Compare(a.Address, b.Address) })
	return tpus, nil
}

func nodes() ([]string, error) {
	entries, err := os.ReadDir("/dev/vfio")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}
