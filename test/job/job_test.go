package job

import (
	"bytes"
	"errors"
	"testing"
)

func TestStateSurvivesTheTPUsMemory(t *testing.T) {
	s := New(3, 256)
	s.Train()
	got, err := Parse(s.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), s.Bytes()) || got.Rank != 3 || got.Step != 1 {
		t.Errorf("parsed %+v, want %+v", got, s)
	}
	got.Train()
	if want := Reference(3, 256, 2)[2]; got.Sum() != want {
		t.Errorf("checksum after the second step is %s, want %s", got.Sum(), want)
	}
}

func TestParseRefusesOtherMemory(t *testing.T) {
	whole := New(0, 64).Bytes()
	flipped := bytes.Clone(whole)
	flipped[0] ^= 1
	for name, memory := range map[string][]byte{
		"empty":     nil,
		"wiped":     make([]byte, len(whole)),
		"cut":       whole[:20],
		"odd":       whole[:len(whole)-1],
		"no mark":   flipped,
		"mark only": []byte(mark),
	} {
		if _, err := Parse(memory); !errors.Is(err, ErrNoJob) {
			t.Errorf("%s: error is %v, want ErrNoJob", name, err)
		}
	}
}

func TestEveryStepAndRankDiffers(t *testing.T) {
	seen := make(map[string]bool)
	for rank := range 4 {
		for step, sum := range Reference(rank, 64, 50) {
			if seen[sum] {
				t.Fatalf("rank %d step %d: checksum came before", rank, step)
			}
			seen[sum] = true
		}
	}
}

func TestLine(t *testing.T) {
	want := Line{Rank: 2, Step: 41, Sum: "ab12"}
	if got, ok := ParseLine(want.String()); !ok || got != want {
		t.Errorf("ParseLine(%q) = %v, %v", want.String(), got, ok)
	}
	for _, text := range []string{"", "rank 1", want.String() + " more", "rank x step 1 sha256 a", "rank 1 step 2 sha256"} {
		if _, ok := ParseLine(text); ok {
			t.Errorf("ParseLine(%q) takes it for a line", text)
		}
	}
}
