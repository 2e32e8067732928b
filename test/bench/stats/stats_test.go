package stats

import (
	"math"
	"testing"
)

func upTo(n int) []float64 {
	sample := make([]float64, n)
	for i := range sample {
		sample[(i*7)%n] = float64(i + 1)
	}
	return sample
}

func TestSummarize(t *testing.T) {
	for _, tc := range []struct {
		sample []float64
		want   Summary
	}{
		{[]float64{3}, Summary{1, 3, 3, 3, 3, 3}},
		{[]float64{2, 1}, Summary{2, 1.5, 1.25, 1.75, 1, 2}},
		{upTo(5), Summary{5, 3, 2, 4, 1, 5}},
		// The ranks are those of the usual tables of the sign test.
		{upTo(6), Summary{6, 3.5, 2.25, 4.75, 1, 6}},
		{upTo(9), Summary{9, 5, 3, 7, 2, 8}},
		{upTo(11), Summary{11, 6, 3.5, 8.5, 2, 10}},
		{upTo(20), Summary{20, 10.5, 5.75, 15.25, 6, 15}},
	} {
		if got := Summarize(tc.sample); got != tc.want {
			t.Errorf("%v:\ngot  %+v\nwant %+v", tc.sample, got, tc.want)
		}
	}
	if got := Summarize(nil); !math.IsNaN(got.Median) || !math.IsNaN(got.SureLow) {
		t.Errorf("of nothing: got %+v", got)
	}
}

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		ratios []float64
		want   Verdict
	}{
		{[]float64{0.9, 1.0, 1.1}, Met},
		{[]float64{0.9, 1.1, 1.2}, Unclear},
		{[]float64{1.1, 1.2, 1.3}, Missed},
	} {
		if got := Summarize(tc.ratios).Judge(1); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.ratios, got, tc.want)
		}
	}
}

func TestRatios(t *testing.T) {
	got := Ratios([]float64{1, 6, 7}, []float64{2, 3})
	if len(got) != 2 || got[0] != 0.5 || got[1] != 2 {
		t.Errorf("got %v, want [0.5 2]", got)
	}
}
