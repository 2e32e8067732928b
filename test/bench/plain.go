package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// plain is what everybody pays who has no TPU.
func (r *run) plain(ctx context.Context) error {
	err := r.inPairs(ctx, "plain", r.pairs, map[string]float64{"": 1.01}, func(ctx context.Context, b *binary) ([]value, error) {
		values, err := r.runTrue(ctx, b)
		if err != nil {
			return nil, err
		}
		more, err := r.plainBox(ctx, b)
		return append(values, more...), err
	})
	if err != nil {
		return err
	}
	for _, b := range []*binary{r.ours, r.upstream} {
		info, err := os.Stat(b.path)
		if err != nil {
			return err
		}
		r.keep("plain", b, map[string]float64{"": 1.01}, []value{{"size of the binary", "B", float64(info.Size())}})
	}
	return nil
}

func (r *run) runTrue(ctx context.Context, b *binary) ([]value, error) {
	x, err := b.newBox(r, workload{args: []string{"true"}})
	if err != nil {
		return nil, err
	}
	took, err := x.do(ctx, "run", "-bundle="+x.bundle(), x.id)
	return []value{seconds("`runsc run` of `true`", took)}, errors.Join(err, x.removeFiles())
}

// plainBox runs, saves and restores a sandbox without TPUs.
func (r *run) plainBox(ctx context.Context, b *binary) (values []value, err error) {
	x, err := b.newBox(r, workload{args: []string{"idle", "-memory", strconv.Itoa(r.memory)}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.remove()) }()
	running, err := x.start(ctx)
	if err != nil {
		return nil, err
	}
	saving, err := x.checkpoint(ctx, "-leave-running")
	if err != nil {
		return nil, err
	}
	before, err := x.peak(ctx)
	if err != nil {
		return nil, err
	}
	image, err := size(x.image())
	if err != nil {
		return nil, err
	}
	if _, err := x.do(ctx, "delete", "-force", x.id); err != nil {
		return nil, err
	}
	restoring, err := x.restore(ctx)
	if err != nil {
		return nil, err
	}
	loading, err := x.do(ctx, "wait", "-restore", x.id)
	if err != nil {
		return nil, err
	}
	after, err := x.peak(ctx)
	return []value{
		seconds("`runsc run`, detached", running),
		seconds("`runsc checkpoint`", saving),
		seconds("`runsc restore`, until all is there", restoring+loading),
		{"size of the image", "B", float64(image)},
		{"peak memory of the sandbox, run and saved", "B", before},
		{"peak memory of the sandbox, restored", "B", after},
	}, err
}

// peak is the most memory that the sandbox's process has had, its guest's included.
func (x *box) peak(ctx context.Context) (float64, error) { return x.memory(ctx, "VmHWM") }

// memory reads a line of the sandbox's process's status.
func (x *box) memory(ctx context.Context, field string) (float64, error) {
	pid, err := x.pid(ctx)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			return float64(kib) * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}
