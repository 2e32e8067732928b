// Package plot draws the plots of the measurements, as SVG that can be looked at on a
// light and on a dark page. It imports the standard library alone.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// svg is a drawing that grows.
type svg struct{ bytes.Buffer }

func newSVG(width, height float64) *svg {
	s := &svg{}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%[1]g" height="%[2]g" font-family="sans-serif" font-size="12">`+"\n", width, height)
	s.WriteString(`<style>
text { fill: #333 } .axis { stroke: #999 } .grid { stroke: #ddd } .one { stroke: #333 }
.s0 { stroke: #06c; fill: #06c } .s1 { stroke: #c50; fill: #c50 } .aim { stroke: #090 } path { fill: none }
@media (prefers-color-scheme: dark) {
 text { fill: #ccc } .axis { stroke: #777 } .grid { stroke: #444 } .one { stroke: #ccc }
 .s0 { stroke: #6af; fill: #6af } .s1 { stroke: #f95; fill: #f95 } .aim { stroke: #5d5 }
}
</style>
`)
	return s
}

func (s *svg) end() []byte {
	s.WriteString("</svg>\n")
	return s.Bytes()
}

func (s *svg) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(s, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func (s *svg) dot(class string, x, y float64) {
	fmt.Fprintf(s, `<circle class="%s" cx="%.1f" cy="%.1f" r="3.5"/>`+"\n", class, x, y)
}

// text writes at a point; anchor is start, middle or end.
func (s *svg) text(anchor string, x, y float64, text string) {
	fmt.Fprintf(s, `<text text-anchor="%s" x="%.1f" y="%.1f">%s</text>`+"\n", anchor, x, y, html.EscapeString(text))
}

// scale maps the logarithm of values to places.
type scale struct{ low, high, from, to float64 }

func (s scale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	return s.from + (s.to-s.from)*math.Log(v/s.low)/math.Log(s.high/s.low)
}

// Ratios is a plot of ratios, one below the other.
type Ratios struct{ rows []ratio }

type ratio struct {
	name                   string
	median, low, high, aim float64
}

// Add adds a ratio: its median, the middle half of the pairs, and its aim.
func (r *Ratios) Add(name string, median, low, high, aim float64) {
	r.rows = append(r.rows, ratio{name, median, low, high, aim})
}

// SVG draws the plot.
func (r *Ratios) SVG() []byte {
	const width, names, top, step = 900, 470, 34, 20
	bottom := top + step*float64(len(r.rows))
	s := newSVG(width, bottom+34)
	x := scale{1.0 / 8, 4, names + 10, width - 20}
	for v := x.low; v <= x.high; v *= 2 {
		class := "grid"
		if v == 1 {
			class = "one"
		}
		s.line(class, x.at(v), top-8, x.at(v), bottom)
		s.text("middle", x.at(v), bottom+16, fmt.Sprintf("%g", v))
	}
	s.text("middle", x.at(1), 14, "ours / upstream")
	s.text("start", 8, 14, "less is better; the green mark is the aim")
	for i, row := range r.rows {
		y := top + step*(float64(i)+0.3)
		s.text("end", names, y+4, row.name)
		s.line("aim", x.at(row.aim), y-7, x.at(row.aim), y+7)
		s.line("s0", x.at(row.low), y, x.at(row.high), y)
		s.dot("s0", x.at(row.median), y)
	}
	return s.end()
}

// Growth is a plot of how something grows, with both axes logarithmic, so that what
// is linear has a slope of one: the grey lines have.
type Growth struct {
	Title, X, Y string
	Lines       []Line
}

// Line is one curve.
type Line struct {
	Name   string
	Points []Point
}

// Point is a median, and what the middle half lies between.
type Point struct{ X, Y, Low, High float64 }

// SVG draws the plot. Without points it is empty.
func (g Growth) SVG() []byte {
	const width, height, left, right, top, bottom = 640, 420, 60, 110, 40, 50
	s := newSVG(width, height)
	xs, ys, ok := g.ranges()
	if !ok {
		return s.end()
	}
	x := scale{xs.low, xs.high, left, width - right}
	y := scale{ys.low, ys.high, height - bottom, top}
	s.text("start", left, 18, g.Title)
	s.text("middle", (left+width-right)/2, height-12, g.X)
	s.text("end", left-8, top-10, g.Y)
	for v := y.low; v <= y.high*1.001; v *= 10 {
		s.line("axis", left-4, y.at(v), left, y.at(v))
		s.text("end", left-8, y.at(v)+4, fmt.Sprintf("%g", v))
		// What is linear, from here on.
		end := min(x.high, x.low*y.high/v)
		s.line("grid", x.at(x.low), y.at(v), x.at(end), y.at(v*end/x.low))
	}
	s.line("axis", left, top, left, height-bottom)
	s.line("axis", left, height-bottom, width-right, height-bottom)
	for i, line := range g.Lines {
		s.curve(fmt.Sprintf("s%d", i%2), line, x, y)
	}
	for _, p := range g.Lines[0].Points {
		s.line("axis", x.at(p.X), height-bottom, x.at(p.X), height-bottom+4)
		s.text("middle", x.at(p.X), height-bottom+18, fmt.Sprintf("%g", p.X))
	}
	return s.end()
}

func (s *svg) curve(class string, line Line, x, y scale) {
	var path bytes.Buffer
	for i, p := range line.Points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", command, x.at(p.X), y.at(p.Y))
		s.line(class, x.at(p.X), y.at(p.Low), x.at(p.X), y.at(p.High))
		s.dot(class, x.at(p.X), y.at(p.Y))
		if i == len(line.Points)-1 {
			s.text("start", x.at(p.X)+10, y.at(p.Y)+4, line.Name)
		}
	}
	if path.Len() > 0 {
		fmt.Fprintf(s, `<path class="%s" style="fill:none" d="%s"/>`+"\n", class, &path)
	}
}

// ranges are what the axes have to hold: whole powers of ten of what grows.
func (g Growth) ranges() (xs, ys scale, ok bool) {
	xs, ys = scale{low: math.Inf(1)}, scale{low: math.Inf(1)}
	for _, line := range g.Lines {
		for _, p := range line.Points {
			xs.low, xs.high = min(xs.low, p.X), max(xs.high, p.X)
			ys.low, ys.high = min(ys.low, p.Low), max(ys.high, p.High)
		}
	}
	if xs.low >= xs.high || ys.low <= 0 || len(g.Lines) == 0 {
		return xs, ys, false
	}
	ys.low = math.Pow(10, math.Floor(math.Log10(ys.low)))
	ys.high = math.Pow(10, math.Ceil(math.Log10(ys.high)))
	return xs, ys, true
}
