package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/job"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// show is the demo while it runs.
type show struct {
	*trial.Trial
	options
	began   time.Time
	stopped []job.Line // the last step of each member on the first host
}

// say prints a line with the time since the beginning.
func (s *show) say(format string, args ...any) {
	fmt.Printf("%6.2f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// add prints a line that belongs to the one before.
func (s *show) add(format string, args ...any) {
	fmt.Printf("%10s%s\n", "", fmt.Sprintf(format, args...))
}

func (s *show) play(ctx context.Context) error {
	if err := s.runOnA(ctx); err != nil {
		return err
	}
	image, err := s.checkpoint(ctx)
	if err != nil {
		return err
	}
	if err := s.Wipe(); err != nil {
		return err
	}
	s.say("The memory of host A's TPUs is overwritten: what the job had there is in the image, or nowhere.")
	if err := s.restoreOnB(ctx, image); err != nil {
		return err
	}
	if err := s.finish(ctx); err != nil {
		return err
	}
	return s.compare()
}

func (s *show) runOnA(ctx context.Context) error {
	s.say("Host A has %d TPUs, in the IOMMU groups %v.", s.members, s.Groups)
	if err := s.Start(ctx); err != nil {
		return err
	}
	s.say("A sandbox runs the job there. After each step, each process tells a checksum of its weights, which lie in its TPU's memory.")
	return s.Advance(ctx, min(20, s.steps/4))
}

func (s *show) checkpoint(ctx context.Context) (image string, err error) {
	s.say("$ runsc checkpoint")
	begin := time.Now()
	if image, err = s.Checkpoint(ctx); err != nil {
		return "", err
	}
	s.say("Done, after %.2f s.", time.Since(begin).Seconds())
	if err := s.tellRequests(begin, "copies the TPU's memory into its own, and closes the TPU"); err != nil {
		return "", err
	}
	size, err := sizeOf(image)
	if err != nil {
		return "", err
	}
	s.add("The image takes %.1f MB. The sandbox has ended.", size/1e6)
	for rank := range s.members {
		lines, err := s.Lines(rank)
		if err != nil {
			return "", err
		}
		s.stopped = append(s.stopped, lines[len(lines)-1])
		s.add("Process %d stopped after step %d.", rank, s.stopped[rank].Step)
	}
	return image, nil
}

func (s *show) restoreOnB(ctx context.Context, image string) error {
	groups := groupsFrom(7, s.members)
	s.say("Host B has %d TPUs, in the IOMMU groups %v. Their memory holds noise.", s.members, groups)
	s.say("$ runsc restore")
	begin := time.Now()
	if err := s.RestoreOnly(ctx, image, groups...); err != nil {
		return err
	}
	took := time.Since(begin)
	if err := s.Advance(ctx, 1); err != nil {
		return err
	}
	s.say("Done, after %.2f s.", took.Seconds())
	if err := s.tellRequests(begin, "opens the TPU, and copies the memory back"); err != nil {
		return err
	}
	for rank := range s.members {
		next, err := s.firstOnB(rank)
		if err != nil {
			return err
		}
		s.add("Process %d goes on with step %d.", rank, next.Step)
	}
	return nil
}

// firstOnB is the first step that a member has done on the second host.
func (s *show) firstOnB(rank int) (job.Line, error) {
	lines, err := s.Lines(rank)
	if err != nil {
		return job.Line{}, err
	}
	for i, line := range lines {
		if line == s.stopped[rank] && i+1 < len(lines) {
			return lines[i+1], nil
		}
	}
	return job.Line{}, fmt.Errorf("process %d did nothing after step %d", rank, s.stopped[rank].Step)
}

func (s *show) finish(ctx context.Context) error {
	if err := s.Finish(ctx); err != nil {
		return err
	}
	s.say("The job has done its %d steps.", s.steps)
	return nil
}

// tellRequests prints the requests that the runtimes have received since begin, and
// what they do about them.
func (s *show) tellRequests(begin time.Time, does string) error {
	for rank := range s.members {
		requests, err := s.Requests(rank)
		if err != nil {
			return err
		}
		for _, q := range requests {
			if q.Time.After(begin) {
				s.add("%.2f s into it, the runtime of process %d receives %s: it %s.",
					q.Time.Sub(begin).Seconds(), rank, tpuwire.ActionName(q.Action), does)
			}
		}
	}
	return nil
}

func sizeOf(dir string) (bytes float64, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		bytes += float64(info.Size())
	}
	return bytes, nil
}

// compare shows the checksums of before and after, and is an error if one step is
// not what it would have been.
func (s *show) compare() error {
	fmt.Printf("\nChecksums of the weights (their beginnings):\n\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintf(w, "  \tlast on host A\tfirst on host B\tat the end\tat the end, without interruption\n")
	for rank := range s.members {
		next, err := s.firstOnB(rank)
		if err != nil {
			return err
		}
		lines, err := s.Lines(rank)
		if err != nil {
			return err
		}
		want := s.Reference(rank, s.steps)
		fmt.Fprintf(w, "  process %d\t%s\t%s\t%s\t%s\n", rank, brief(s.stopped[rank]), brief(next), brief(lines[len(lines)-1]), brief(want))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	if err := s.Verify(); err != nil {
		return err
	}
	done, err := s.Progress()
	if err != nil {
		return err
	}
	for rank, steps := range done {
		if steps != s.steps {
			return fmt.Errorf("process %d did %d steps, and not %d", rank, steps, s.steps)
		}
	}
	fmt.Printf("All %d steps of all %d processes are those of an uninterrupted job.\n", s.steps, s.members)
	return nil
}

func brief(l job.Line) string { return fmt.Sprintf("%3d: %.12s", l.Step, l.Sum) }
