// Package stats sums up pairs of measurements: the ratio of each pair, their median,
// how far they spread, and how sure the median is. It assumes nothing about how they
// are distributed.
//
// It imports the standard library alone.
package stats

import (
	"math"
	"slices"
)

// Summary is what is said about a sample.
type Summary struct {
	N         int
	Median    float64
	Low, High float64 // the middle half lies between them
	// The median of all that could be measured lies between these with a
	// probability of 95 %. Of fewer than six, they are the extremes, and that is
	// not so sure.
	SureLow, SureHigh float64
}

// Summarize sums up a sample. Of an empty one, all is NaN.
func Summarize(sample []float64) Summary {
	s := slices.Sorted(slices.Values(sample))
	low, high := sureRanks(len(s))
	return Summary{
		N:      len(s),
		Median: quantile(s, 0.5), Low: quantile(s, 0.25), High: quantile(s, 0.75),
		SureLow: at(s, low), SureHigh: at(s, high),
	}
}

// Ratios returns a[i]/b[i] for each pair that both have.
func Ratios(a, b []float64) []float64 {
	ratios := make([]float64, min(len(a), len(b)))
	for i := range ratios {
		ratios[i] = a[i] / b[i]
	}
	return ratios
}

// quantile interpolates between the two nearest values of a sorted sample.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	place := q * float64(len(sorted)-1)
	below := int(place)
	above := min(below+1, len(sorted)-1)
	rest := place - float64(below)
	return sorted[below]*(1-rest) + sorted[above]*rest
}

func at(sorted []float64, i int) float64 {
	if i < 0 || i >= len(sorted) {
		return math.NaN()
	}
	return sorted[i]
}

// sureRanks are the ranks, of n sorted values, between which the median lies with a
// probability of at least 95 %: that of n tosses of a coin so few are heads.
func sureRanks(n int) (low, high int) {
	const tail = 0.025
	toss := math.Pow(0.5, float64(n)) // of exactly k heads
	sum := toss
	for k := 0; sum <= tail && k < n/2; k++ {
		low = k
		toss *= float64(n-k) / float64(k+1)
		sum += toss
	}
	return low, n - 1 - low
}

// Verdict says what a sample of ratios tells about an aim.
type Verdict string

// The verdicts.
const (
	Met     Verdict = "yes"
	Missed  Verdict = "no"
	Unclear Verdict = "within the noise"
)

// Judge compares ratios with the aim that they should not exceed. Where the median
// exceeds it, that counts only if it is sure to.
func (s Summary) Judge(aim float64) Verdict {
	switch {
	case s.Median <= aim:
		return Met
	case s.SureLow <= aim:
		return Unclear
	}
	return Missed
}
