package main

import (
	"context"
	"fmt"
	"time"
)

// A measured value, and what it is of.
type value struct {
	series string // "N runtimes: runsc checkpoint"
	unit   string // "s", "B" or ""
	amount float64
}

func seconds(series string, d time.Duration) value { return value{series, "s", d.Seconds()} }

// A series is one thing that is measured, of both binaries or of two ways.
type series struct {
	Row, Name, Unit string
	Aim             float64   // of the ratio; 0 if there is none
	Ours, Upstream  []float64 // value i of both is of pair i
	Note            string    `json:",omitempty"`
	// How it ended, by the binary's name, where not all ends are the same.
	Outcomes map[string]string `json:",omitempty"`
}

func (s *series) says(b *binary, outcome string) {
	if s.Outcomes == nil {
		s.Outcomes = map[string]string{}
	}
	s.Outcomes[b.name] = outcome
}

// results are all series of a run, in the order of their first values.
type results struct {
	Machine machine
	Series  []*series
}

func (r *results) find(row, name, unit string) *series {
	for _, s := range r.Series {
		if s.Row == row && s.Name == name {
			return s
		}
	}
	s := &series{Row: row, Name: name, Unit: unit}
	r.Series = append(r.Series, s)
	return s
}

// inPairs measures both binaries in turn, first the one and then the other, and the
// other way round in every second pair: what changes on the machine meanwhile is the
// same for both then.
func (r *run) inPairs(ctx context.Context, row string, n int, aims map[string]float64, measure func(context.Context, *binary) ([]value, error)) error {
	both := []*binary{r.ours, r.upstream}
	for i := range n {
		for j := range both {
			b := both[(i+j)%2]
			values, err := measure(ctx, b)
			if err != nil {
				return fmt.Errorf("pair %d: %w", i+1, err)
			}
			r.keep(row, b, aims, values)
		}
		r.say(".")
	}
	return nil
}

func (r *run) keep(row string, b *binary, aims map[string]float64, values []value) {
	for _, v := range values {
		s := r.results.find(row, v.series, v.unit)
		if aim, ok := aims[v.series]; ok {
			s.Aim = aim
		} else {
			s.Aim = aims[""]
		}
		if b == r.ours {
			s.Ours = append(s.Ours, v.amount)
		} else {
			s.Upstream = append(s.Upstream, v.amount)
		}
	}
}
