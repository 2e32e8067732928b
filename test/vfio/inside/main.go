// Command inside is the first program of the bench's machine. It gets the machine
// ready, carries out the scenarios, says on the console how each went, and turns the
// machine off. Every line that it says begins with "bench " and is JSON; before and
// after each scenario it waits for a line, so that the bench can look at the devices.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if _, err := os.Stat(switched); err != nil {
		die(switchRoot())
	}
	if err := mountAll(); err != nil {
		die(err)
	}
	console, err := os.OpenFile("/dev/ttyS0", os.O_RDWR, 0)
	if err != nil {
		die(err)
	}
	b := &bench{console: console, lines: bufio.NewScanner(console), start: time.Now()}
	if err := b.run(); err != nil {
		b.say(event{Event: "failed", Error: err.Error()})
	}
	b.say(event{Event: "off"})
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func die(err error) {
	fmt.Println("inside:", err)
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// event is one line for the bench.
type event struct {
	Event    string  `json:"event"` // begin, end, note, failed, off
	Scenario string  `json:"scenario,omitempty"`
	Error    string  `json:"error,omitempty"`
	Text     string  `json:"text,omitempty"`
	Seconds  float64 `json:"seconds"` // since the machine was ready
}

// bench is the conversation with the outside.
type bench struct {
	console *os.File
	lines   *bufio.Scanner
	start   time.Time
}

func (b *bench) say(e event) {
	e.Seconds = time.Since(b.start).Round(100 * time.Millisecond).Seconds()
	text, err := json.Marshal(e)
	if err != nil {
		text = []byte(err.Error())
	}
	fmt.Fprintf(b.console, "\nbench %s\n", text)
}

func (b *bench) note(format string, args ...any) {
	b.say(event{Event: "note", Text: fmt.Sprintf(format, args...)})
}

// sync waits until the bench has looked at the devices.
func (b *bench) sync() { b.lines.Scan() }

func (b *bench) run() error {
	if err := loadModules(); err != nil {
		return err
	}
	h, err := findHardware()
	if err != nil {
		return err
	}
	b.note("%v", h)
	only, err := wanted()
	if err != nil {
		return err
	}
	for _, s := range scenarios {
		if len(only) > 0 && !slices.Contains(only, s.name) {
			continue
		}
		b.say(event{Event: "begin", Scenario: s.name})
		b.sync()
		e := event{Event: "end", Scenario: s.name}
		if err := b.scenario(h, s); err != nil {
			e.Error = err.Error()
		}
		b.say(e)
		b.sync()
	}
	return nil
}

// wanted are the scenarios that the kernel's arguments name; none stands for all.
func wanted() (names []string, err error) {
	args, err := os.ReadFile("/proc/cmdline")
	for arg := range strings.FieldsSeq(string(args)) {
		if list, ok := strings.CutPrefix(arg, "bench.only="); ok && list != "" {
			names = strings.Split(list, ",")
		}
	}
	return names, err
}

func (b *bench) scenario(h *hardware, s scenario) (err error) {
	r := &rig{bench: b, hardware: h, dir: "/tmp/" + s.name}
	defer func() {
		if p := recover(); p != nil {
			failure, ok := p.(failed)
			if !ok {
				panic(p)
			}
			err = failure
			b.note("%s", r.logs())
		}
		r.cleanUp()
	}()
	r.must(os.MkdirAll(r.dir, 0o755))
	s.do(r)
	return nil
}
