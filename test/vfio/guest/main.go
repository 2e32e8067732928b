// Command guest is what runs in the bench's sandboxes: a runtime that holds TPUs, and
// does what it is told on its standard input, one command per line. It answers each
// with one line of JSON.
//
//	look                       the nodes in /dev/vfio, and the TPUs in /sys
//	open N                     opens the N-th TPU, by address
//	openat GROUP ADDRESS       opens a TPU as N = 0
//	dma N SEED PAGE            a pattern to the device and back, into that page
//	fill N SEED, verify N SEED all of HBM through its window
//	arm N, interrupt N, interrupts N
//	status N                   what each file and mapping answers
//	reattach N ADDRESS         uses the open container and group again
//	reset N, close N
//	actions                    which requests a driver has sent
//
// With -hold it keeps its TPUs open when it is asked to checkpoint, which a runtime
// must not do.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"tpuvisor.dev/tpuvisor/pkg/guest"
)

func main() {
	hold := flag.Bool("hold", false, "keep the TPUs open at CHECKPOINT")
	flag.Parse()
	if err := run(*hold); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(hold bool) error {
	r := newRunner(hold)
	machine := guest.NewMachine(guest.Config{Device: r})
	if _, err := guest.StartControlThread(context.Background(), machine, guest.ThreadOptions{}); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(answer{Text: "ready"}); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := out.Encode(r.do(strings.Fields(lines.Text()))); err != nil {
			return err
		}
	}
	return lines.Err()
}

// answer is what is said to a command.
type answer struct {
	Text  string            `json:"text,omitempty"`
	Error string            `json:"error,omitempty"`
	Count uint64            `json:"count,omitempty"`
	Nodes []string          `json:"nodes,omitempty"`
	TPUs  []seen            `json:"tpus,omitempty"`
	State map[string]string `json:"state,omitempty"`
}
