package remap

import "os"

// HostSysfs reads the sysfs of a process that may use every system call. Root is
// put before each path; "" is the machine's own.
type HostSysfs struct{ Root string }

// ReadDir implements Sysfs.
func (h HostSysfs) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(h.Root + dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// ReadFile implements Sysfs.
func (h HostSysfs) ReadFile(file string) ([]byte, error) { return os.ReadFile(h.Root + file) }
