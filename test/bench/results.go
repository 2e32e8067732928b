package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// machine is what a run was made on.
type machine struct {
	CPU    string
	CPUs   int
	Kernel string
	Go     string
	Date   string
	Load   string // average, when the run began
	Note   string `json:",omitempty"`
}

func thisMachine(note string) machine {
	return machine{
		CPU: lineOf("/proc/cpuinfo", "model name"), CPUs: runtime.NumCPU(),
		Kernel: firstWord("/proc/sys/kernel/osrelease"), Go: runtime.Version(),
		Date: time.Now().UTC().Format(time.DateOnly), Load: firstWord("/proc/loadavg"), Note: note,
	}
}

func firstWord(path string) string {
	text, err := os.ReadFile(path)
	words := strings.Fields(string(text))
	if err != nil || len(words) == 0 {
		return "unknown"
	}
	return words[0]
}

func lineOf(path, name string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if what, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(what) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func (o *options) resultsFile() string { return filepath.Join(o.dir, "results.json") }

// load reads the results of earlier runs. Those of a short run are of no use later.
func load(o *options) (*results, error) {
	r := &results{}
	text, err := os.ReadFile(o.resultsFile())
	switch {
	case o.short, errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("%s: %w", o.resultsFile(), err)
		}
	}
	if !o.render {
		r.Machine = thisMachine(o.note)
	}
	return r, nil
}

// forget drops what there is of a row.
func (r *results) forget(row string) {
	r.Series = slices.DeleteFunc(r.Series, func(s *series) bool { return s.Row == row })
}

// finish keeps the results, and says what they are.
func finish(o *options, r *results) error {
	slices.SortStableFunc(r.Series, func(a, b *series) int { return rowIndex(a.Row) - rowIndex(b.Row) })
	form := terminal
	if o.short {
		form = unjudged
	}
	for _, w := range rows {
		fmt.Print(r.table(w, form))
	}
	if o.short {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.resultsFile(), text, 0o644); err != nil {
		return err
	}
	for _, which := range []string{"ours", "upstream"} {
		name := filepath.Join(o.dir, "results-"+which+".txt")
		if err := os.WriteFile(name, []byte(r.benchformat(which)), 0o644); err != nil {
			return err
		}
	}
	return writeDocs(o, r)
}

func rowIndex(name string) int {
	return slices.IndexFunc(rows, func(w row) bool { return w.name == name })
}

// benchformat is what benchstat reads.
func (r *results) benchformat(which string) string {
	var b strings.Builder
	for _, s := range r.Series {
		values := s.Ours
		if which == "upstream" {
			values = s.Upstream
		}
		name := strings.Map(func(c rune) rune {
			switch {
			case c == ' ':
				return '_'
			case strings.ContainsRune("`,:", c):
				return -1
			}
			return c
		}, s.Row+"/"+s.Name)
		unit := map[string]string{"s": "sec", "B": "B", "": "n"}[s.Unit] + "/op"
		for _, v := range values {
			fmt.Fprintf(&b, "Benchmark%s 1 %g %s\n", name, v, unit)
		}
	}
	return b.String()
}
