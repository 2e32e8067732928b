package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAmount(t *testing.T) {
	for _, tc := range []struct {
		v    float64
		unit string
		want string
	}{
		{1.5, "s", "1.50 s"}, {0.0123, "s", "12.3 ms"}, {250e-6, "s", "250 µs"}, {3e-9, "s", "3 ns"}, {0, "s", "0 ns"},
		{3 << 20, "B", "3 MiB"}, {1.5 * (1 << 10), "B", "1.50 KiB"}, {7, "B", "7 B"}, {-5 << 20, "B", "-5 MiB"},
		{2487, "", "2487"}, {0.5, "", "0.50"},
	} {
		if got := amount(tc.v, tc.unit); got != tc.want {
			t.Errorf("%v %q: got %q, want %q", tc.v, tc.unit, got, tc.want)
		}
	}
}

func TestCells(t *testing.T) {
	for name, tc := range map[string]struct {
		s    series
		want string
	}{
		"a ratio":       {series{Name: "x", Unit: "s", Aim: 1, Ours: []float64{1, 1}, Upstream: []float64{2, 2}}, "x|1 s|2 s|0.5|0.5 to 0.5|2|≤ 1|yes"},
		"nothing of it": {series{Name: "x", Aim: 1, Ours: []float64{0}, Upstream: []float64{3}}, "x|0|3|none of it||1|≤ 1|yes"},
		"one side only": {series{Name: "x", Unit: "s", Aim: 1, Ours: []float64{1}}, "x|1 s|–|||0||"},
		"no aim":        {series{Name: "x", Ours: []float64{1}, Upstream: []float64{2}}, "x|1|2|0.5|0.5 to 0.5|1||"},
		"other ends": {
			series{Name: "x", Unit: "s", Ours: []float64{1}, Upstream: []float64{2}, Outcomes: map[string]string{"ours": "saved", "upstream": "refused"}},
			"x|1 s, saved|2 s, refused|||1||",
		},
	} {
		if got := strings.Join(tc.s.cells(true), "|"); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tc.want)
		}
	}
}

func TestReplacePart(t *testing.T) {
	const page = "before\n<!-- measured: a -->\nold\n<!-- end: a -->\nafter\n"
	got, err := replacePart([]byte(page), "a", "new\n")
	if want := "before\n<!-- measured: a -->\n\nnew\n\n<!-- end: a -->\nafter\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := replacePart([]byte(page), "b", ""); err == nil {
		t.Error("a part without marks was replaced")
	}
}

func TestBenchPattern(t *testing.T) {
	const out = "goos: linux\nBenchmarkPreSave/scan-2 \t 30\t     28305.5 ns/op\t    3088 B/op\t      67 allocs/op\nPASS\n"
	m := benchPattern.FindStringSubmatch(out)
	if len(m) != 4 || m[1] != "PreSave/scan" || m[2] != "28305.5" || m[3] != "67" {
		t.Errorf("got %q", m)
	}
}

func TestPlots(t *testing.T) {
	r := &results{Series: []*series{
		{Row: "quiesce", Name: "1 runtime: " + firstToLast, Unit: "s", Aim: 1, Ours: []float64{0.001, 0.002}, Upstream: []float64{0.002, 0.003}},
		{Row: "quiesce", Name: "8 runtimes: " + firstToLast, Unit: "s", Aim: 1, Ours: []float64{0.01}, Upstream: []float64{0.02}},
		{Row: "plain", Name: "`a` & <b>", Unit: "s", Aim: 1.01, Ours: []float64{1}, Upstream: []float64{1}},
	}}
	for name, plot := range map[string][]byte{
		"ratios": r.ratiosPlot(), "growth": r.growthPlot(), "nothing to plot": new(results).growthPlot(),
	} {
		d := xml.NewDecoder(strings.NewReader(string(plot)))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: no XML: %v", name, err)
			}
		}
	}
	if got := strings.Count(string(r.growthPlot()), "<circle"); got != 4 {
		t.Errorf("the plot of 2 sizes and 2 binaries has %d points", got)
	}
}
