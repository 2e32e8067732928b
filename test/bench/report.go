package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"tpuvisor.dev/tpuvisor/test/bench/plot"
	"tpuvisor.dev/tpuvisor/test/bench/stats"
)

// render writes the documents from the results that there are.
func render(o *options) error {
	r, err := load(o)
	if err != nil {
		return err
	}
	return writeDocs(o, r)
}

// writeDocs writes the tables into performance.md, and the plots beside it.
func writeDocs(o *options, r *results) error {
	if o.docs == "" {
		return nil
	}
	page := filepath.Join(o.docs, "performance.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	parts := map[string]string{"machine": r.Machine.String()}
	for _, w := range rows {
		parts[w.name] = r.table(w, markdown)
	}
	for name, part := range parts {
		if text, err = replacePart(text, name, part); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	plots := filepath.Join(o.docs, "performance")
	return errors.Join(
		os.WriteFile(page, text, 0o644),
		os.MkdirAll(plots, 0o755),
		os.WriteFile(filepath.Join(plots, "ratios.svg"), r.ratiosPlot(), 0o644),
		os.WriteFile(filepath.Join(plots, "quiesce.svg"), r.growthPlot(), 0o644),
	)
}

// replacePart replaces what is between two marks of a page.
func replacePart(page []byte, name, part string) ([]byte, error) {
	begin, end := fmt.Sprintf("<!-- measured: %s -->\n", name), fmt.Sprintf("<!-- end: %s -->\n", name)
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return nil, fmt.Errorf("the marks of the part %q are not there", name)
	}
	return []byte(before + begin + "\n" + part + "\n" + end + after), nil
}

func (m machine) String() string {
	s := fmt.Sprintf("Measured on %s: %d CPUs (%s), Linux %s, %s, load average %s at the beginning.", m.Date, m.CPUs, m.CPU, m.Kernel, m.Go, m.Load)
	if m.Note != "" {
		s += " " + m.Note
	}
	return s + "\n"
}

// A form is what a table is for.
type form int

const (
	terminal form = iota
	unjudged      // for a terminal, and for sizes that say nothing
	markdown
)

// table is a row's table.
func (r *results) table(w row, form form) string {
	lines := [][]string{{"what", "ours", "upstream", "ratio", "middle half", "pairs", "aim", "met"}}
	var notes []string
	for _, s := range r.Series {
		if s.Row != w.name {
			continue
		}
		lines = append(lines, s.cells(form != unjudged))
		if s.Note != "" && (len(notes) == 0 || notes[len(notes)-1] != s.Note) {
			notes = append(notes, s.Note)
		}
	}
	if len(lines) == 1 {
		return ""
	}
	if form == markdown {
		return tableOf(lines) + remark(notes)
	}
	return fmt.Sprintf("\n%s: %s\n%s%s", w.name, w.work, columns(lines), remark(notes))
}

func remark(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return "\nHere " + strings.Join(notes, "; ") + ".\n"
}

// cells are the cells of a series' line.
func (s *series) cells(judge bool) []string {
	ours, upstream := stats.Summarize(s.Ours), stats.Summarize(s.Upstream)
	line := []string{
		s.Name,
		s.withOutcome(ours, "ours"), s.withOutcome(upstream, "upstream"),
		"", "", fmt.Sprint(min(ours.N, upstream.N)), "", "",
	}
	ratio, ok := s.ratio()
	if !judge {
		return line
	}
	if !ok {
		if s.Aim > 0 && ours.N > 0 && upstream.N > 0 && ours.Median == 0 {
			line[3], line[6], line[7] = "none of it", aimText(s.Aim), string(stats.Met)
		}
		return line
	}
	line[3], line[4] = fmt.Sprintf("%.3g", ratio.Median), fmt.Sprintf("%.3g to %.3g", ratio.Low, ratio.High)
	if s.Aim > 0 {
		line[6], line[7] = aimText(s.Aim), string(ratio.Judge(s.Aim))
	}
	return line
}

func aimText(aim float64) string { return fmt.Sprintf("≤ %.3g", aim) }

// ratio sums up the ratios. There are none where one side did not do the work, or
// where it costs nothing.
func (s *series) ratio() (stats.Summary, bool) {
	sum := stats.Summarize(stats.Ratios(s.Ours, s.Upstream))
	one := len(s.Outcomes) == 0 || s.Outcomes["ours"] == s.Outcomes["upstream"]
	return sum, one && sum.N > 0 && sum.Median > 0 && !math.IsInf(sum.High, 0) && !math.IsNaN(sum.High)
}

func (s *series) withOutcome(sum stats.Summary, which string) string {
	text := "–"
	if sum.N > 0 {
		text = amount(sum.Median, s.Unit)
	}
	if outcome := s.Outcomes[which]; outcome != "" {
		text += ", " + outcome
	}
	return text
}

// amount is a value with a unit that suits it.
func amount(v float64, unit string) string {
	scales := map[string][]struct {
		of   float64
		name string
	}{
		"s": {{1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}},
		"B": {{1 << 20, " MiB"}, {1 << 10, " KiB"}, {1, " B"}},
		"":  {{1, ""}},
	}[unit]
	for i, scale := range scales {
		if math.Abs(v) >= scale.of || i == len(scales)-1 {
			return digits(v/scale.of) + scale.name
		}
	}
	return digits(v)
}

// digits writes three digits, and all of a whole number.
func digits(v float64) string {
	switch {
	case v == math.Trunc(v), math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func tableOf(lines [][]string) string {
	var b strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(line)) + "\n")
		}
	}
	return b.String()
}

func columns(lines [][]string) string {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			b.WriteString("  " + cell + strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// ratiosPlot shows the ratios of everything that has an aim.
func (r *results) ratiosPlot() []byte {
	var p plot.Ratios
	for _, s := range r.Series {
		if sum, ok := s.ratio(); ok && s.Aim > 0 {
			p.Add(s.Row+": "+strings.ReplaceAll(s.Name, "`", ""), sum.Median, sum.Low, sum.High, s.Aim)
		}
	}
	return p.SVG()
}

// growthPlot shows how the row quiesce grows with the number of runtimes.
func (r *results) growthPlot() []byte {
	p := plot.Growth{
		Title: "first request to last answer", X: "runtimes", Y: "ms",
		Lines: []plot.Line{{Name: "ours"}, {Name: "upstream"}},
	}
	for _, s := range r.Series {
		what, ok := strings.CutSuffix(s.Name, firstToLast)
		var n float64
		if s.Row != "quiesce" || !ok {
			continue
		}
		if _, err := fmt.Sscanf(what, "%f runtime", &n); err != nil {
			continue
		}
		for i, values := range [][]float64{s.Ours, s.Upstream} {
			sum := stats.Summarize(values)
			if sum.N > 0 {
				p.Lines[i].Points = append(p.Lines[i].Points, plot.Point{X: n, Y: sum.Median * 1e3, Low: sum.Low * 1e3, High: sum.High * 1e3})
			}
		}
	}
	return p.SVG()
}
