package main

import (
	"flag"
	"os"
	"os/exec"
)

// idle is any number of processes that do nothing.
func idle(fs *flag.FlagSet) func() error {
	var l load
	l.flags(fs)
	processes := fs.Int("processes", 1, "how many processes there are")
	return func() error {
		if err := l.take(); err != nil {
			return err
		}
		return l.others(*processes)
	}
}

// others starts the other processes, and says that all is set up. In those, processes
// is 0, and they say it to the first one.
func (l *load) others(processes int) error {
	if processes == 0 {
		_, err := os.Stdout.Write([]byte{'.'})
		return err
	}
	for range processes - 1 {
		if err := startProcess(); err != nil {
			return err
		}
	}
	return l.ready()
}

// startProcess starts one more process, and returns when it is set up.
func startProcess() error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	cmd := exec.Command("/proc/self/exe", append(os.Args[1:], "-processes=0")...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	err = cmd.Start()
	out.Close()
	if err != nil {
		return err
	}
	_, err = in.Read(make([]byte, 1))
	return err
}
