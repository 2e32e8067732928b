// Command probe looks at the TPUs of its sandbox and holds them open, for the tests of
// the device side.
//
//	probe look             prints the nodes in /dev/vfio and the TPUs in /sys as JSON
//	probe hold PATH…       opens the paths anew at each SIGUSR1, until it is killed
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// View is what look prints.
type View struct {
	Nodes []string          // names in /dev/vfio
	TPUs  map[string]string // group by PCI address
	Class []string          // names in /sys/class/vfio-dev
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "hold" {
		hold(os.Args[2:])
	}
	if err := look(); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func look() (err error) {
	v := View{TPUs: make(map[string]string)}
	if v.Nodes, err = names("/dev/vfio"); err != nil {
		return err
	}
	if v.Class, err = names("/sys/class/vfio-dev"); err != nil {
		return err
	}
	const devices = "/sys/bus/pci/devices"
	addresses, err := names(devices)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		vendor, err := os.ReadFile(filepath.Join(devices, address, "vendor"))
		if err != nil {
			return err
		}
		group, err := os.Readlink(filepath.Join(devices, address, "iommu_group"))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(vendor)) == "0x1ae0" {
			v.TPUs[address] = filepath.Base(group)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(v)
}

func names(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func hold(paths []string) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGUSR1)
	var files []*os.File
	for fmt.Println("ready"); ; {
		<-again
		for _, f := range files {
			f.Close()
		}
		files = files[:0]
		for _, path := range paths {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				files = append(files, f)
			}
			fmt.Println("opened", path, err)
		}
		fmt.Println("held")
	}
}
