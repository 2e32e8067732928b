package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// preSave measures a row's pre-save alone, in a test binary that has gVisor's kernel
// and one of the two control packages.
func (r *run) preSave(ctx context.Context, name string, aim float64) error {
	args := []string{
		"-processes", strconv.Itoa(r.processes), "-threads", strconv.Itoa(r.threads), "-files", strconv.Itoa(r.files),
		"-crowd-threads", strconv.Itoa(r.crowdThreads), "-crowd-files", strconv.Itoa(r.crowdFiles),
	}
	const alone = "pre-save alone"
	aims := map[string]float64{alone: aim, alone + ": allocations": aim}
	return r.inPairs(ctx, name, r.pairs, aims, func(ctx context.Context, b *binary) ([]value, error) {
		lines, err := r.goBench(ctx, "presave-"+b.name+".test", "^BenchmarkPreSave$/^"+name+"$", r.preSaveTime, args...)
		if err != nil {
			return nil, err
		}
		if len(lines) != 1 {
			return nil, fmt.Errorf("presave-%s.test has measured %d things of %s, and not 1", b.name, len(lines), name)
		}
		return []value{
			{alone, "s", lines[0].nanoseconds / 1e9},
			{alone + ": allocations", "", lines[0].allocations},
		}, nil
	})
}

// wire compares framings, which are both in the same test binary.
func (r *run) wire(ctx context.Context) error {
	for range r.pairs {
		lines, err := r.goBench(ctx, "framing.test", ".", r.wireTime)
		if err != nil {
			return err
		}
		for _, line := range lines {
			r.keepFraming(line)
		}
		r.say(".")
	}
	return nil
}

func (r *run) keepFraming(line benchLine) {
	what, framing, ok := cutLast(line.name, "/")
	if !ok {
		return
	}
	way, message, _ := strings.Cut(what, "/")
	what = strings.ToLower(way) + ", " + strings.ReplaceAll(message, "_", " ")
	b := r.ours
	if framing == "protodelim" {
		b = r.upstream
	}
	r.keep("wire", b, map[string]float64{"": 1}, []value{
		{what, "s", line.nanoseconds / 1e9},
		{what + ": allocations", "", line.allocations},
	})
	r.results.find("wire", what, "s").Note = "the second column is protodelim"
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// benchLine is one line of a Go benchmark.
type benchLine struct {
	name                     string // without Benchmark and the number of CPUs
	nanoseconds, allocations float64
}

var benchPattern = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(\S+) ns/op.*?\s(\d+) allocs/op`)

func (r *run) goBench(ctx context.Context, program, pattern, benchtime string, args ...string) ([]benchLine, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, program), append([]string{
		"-test.run=^$", "-test.bench=" + pattern, "-test.benchtime=" + benchtime, "-test.benchmem",
	}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+r.scratch)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", program, err, lastLine(out), lastLine(stderr.Bytes()))
	}
	var lines []benchLine
	for _, m := range benchPattern.FindAllSubmatch(out, -1) {
		line := benchLine{name: string(m[1])}
		var err1, err2 error
		line.nanoseconds, err1 = strconv.ParseFloat(string(m[2]), 64)
		line.allocations, err2 = strconv.ParseFloat(string(m[3]), 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%s: %q is no line of a benchmark", program, m[0])
		}
		lines = append(lines, line)
	}
	return lines, nil
}
