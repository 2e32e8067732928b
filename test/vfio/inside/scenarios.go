package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// scenario is one thing that must be true. docs/devices.md lists them; what a device
// must have seen at the end of each is in the bench's test.
type scenario struct {
	name string
	do   func(*rig)
}

var scenarios = []scenario{
	{"first-use", firstUse},
	{"leave-running", leaveRunning},
	{"held-open", heldOpen},
	{"same-group", sameGroup},
	{"other-group", otherGroup},
	{"busy-group", busyGroup},
	{"held-and-busy", heldAndBusy},
	{"busy-for-good", busyForGood},
	{"overlapping-groups", overlappingGroups},
	{"permuted-groups", permutedGroups},
	{"refusals", refusals},
}

// Seeds of the patterns that are written.
const (
	pattern1 = iota + 1
	pattern2
)

// firstUse is all that a runtime does, twice, on a host with another VFIO group and a
// directory /dev/vfio/devices.
func firstUse(r *rig) {
	t := r.tpus[0]
	b := r.run(false, t)
	a := b.do("look")
	want := fmt.Sprintf("[%d vfio]", t.group())
	r.want(fmt.Sprint(a.Nodes) == want, "the guest has the nodes %v, wanted %s", a.Nodes, want)
	b.sees(t)
	for range 2 {
		b.do("open 0")
		b.do("dma 0 %d 1", pattern1)
		b.do("fill 0 %d", pattern1)
		b.do("verify 0 %d", pattern1)
		b.do("arm 0")
		b.do("interrupt 0")
		a := b.do("interrupts 0")
		r.want(a.Count == 1, "%d interrupts, wanted 1", a.Count)
		r.allOK(b)
		b.do("close 0")
		r.free(t)
	}
	b.do("open 0")
	b.do("fill 0 %d", pattern1)
	b.do("reset 0")
	r.want(b.try("verify 0 %d", pattern1).Error != "", "HBM has outlived a reset")
	b.end()
	r.free(t)
}

// allOK wants every file and mapping of the first TPU to work.
func (r *rig) allOK(b *box) {
	for what, state := range b.do("status 0").State {
		r.want(state == "ok", "%s: %s", what, state)
	}
}

// leaveRunning: a runtime that closes its TPU has it back, with what was in it.
func leaveRunning(r *rig) {
	b := r.run(false, r.tpus[0])
	b.do("open 0")
	b.do("fill 0 %d", pattern1)
	b.leave()
	b.acted("checkpoint restore")
	b.do("verify 0 %d", pattern1)
	b.do("dma 0 %d 1", pattern2)
	r.allOK(b)
}

// heldOpen: a runtime that does not close its TPU, as it should, goes on with it, and
// loses no DMA and no interrupt. After a restore from the second image its device is
// gone, and group and container can be used again.
func heldOpen(r *rig) {
	const untouched = 300 // a page that the guest has not written yet
	t := r.tpus[0]
	b := r.run(true, t)
	b.do("open 0")
	b.do("arm 0")
	b.do("fill 0 %d", pattern1)
	b.do("interrupt 0")
	b.leave()
	b.acted("checkpoint restore")
	a := b.do("interrupts 0")
	r.want(a.Count == 1, "%d interrupts from before the checkpoint, wanted 1", a.Count)
	b.do("verify 0 %d", pattern1)
	b.do("dma 0 %d %d", pattern1, untouched)
	b.do("interrupt 0")
	a = b.do("interrupts 0")
	r.want(a.Count == 1, "%d interrupts, wanted 1", a.Count)
	r.allOK(b)

	image := b.save()
	r.free(t)
	b = r.restore(image, true, t)
	b.acted("checkpoint restore checkpoint restore")
	for what, want := range map[string]string{
		"device": "no such device", "device read": "no such device", "device mmap": "no such device",
		"registers": "fault", "container": "ok", "map": "",
	} {
		state := b.do("status 0").State[what]
		r.want(strings.Contains(state, want) && (want == "ok" || state != "ok"), "%s after the restore: %q, wanted %q", what, state, want)
	}
	b.do("reattach 0 %s", t.address)
	b.do("dma 0 %d 1", pattern2)
	r.allOK(b)
	b.do("close 0")
	r.free(t)
	b.do("open 0")
	b.do("dma 0 %d 1", pattern1)
}

// sameGroup: two checkpoints, each restored where it was made.
func sameGroup(r *rig) {
	t := r.tpus[0]
	b := r.run(false, t)
	b.do("open 0")
	b.do("fill 0 %d", pattern1)
	want := ""
	for range 2 {
		image := b.save()
		r.free(t)
		b = r.restore(image, false, t)
		want = strings.TrimSpace(want + " checkpoint restore")
		b.acted(want)
		b.do("verify 0 %d", pattern1)
		r.allOK(b)
	}
	b.do("close 0")
	r.free(t)
}

// otherGroup: restored onto another TPU, with everything there.
func otherGroup(r *rig) {
	from, to := r.tpus[0], r.tpus[1]
	b := r.run(false, from)
	b.do("open 0")
	b.do("fill 0 %d", pattern1)
	b = r.restore(b.save(), false, to)
	b.acted("checkpoint restore")
	b.sees(to)
	b.do("verify 0 %d", pattern1)
	r.allOK(b)
	nodes := fmt.Sprint(b.do("look").Nodes)
	want := fmt.Sprintf("[%d %d vfio]", from.group(), to.group())
	r.want(nodes == want, "the guest has the nodes %s, wanted %s", nodes, want)
	b.do("close 0")
	// The path of the group that is gone leads to its successor.
	b.do("openat %d %s", from.group(), to.address)
	b.do("dma 0 %d 1", pattern2)
}

// busyGroup: the TPU that is restored onto is held by somebody else at first.
func busyGroup(r *rig) {
	from, to := r.tpus[0], r.tpus[1]
	b := r.run(false, from)
	b.do("open 0")
	b.do("fill 0 %d", pattern1)
	image := b.save()
	holder, err := unix.Open(to.node(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	r.must(err)
	b = r.restore(image, false, to)
	// The guest runs again, and its first answer means that the wait has begun or is
	// about to: an exchange begins as soon as the tasks run.
	a := b.do("actions")
	r.want(a.Text == "[checkpoint]", "sent although the group is busy: %s", a.Text)
	r.must(unix.Close(holder))
	b.acted("checkpoint restore")
	b.do("verify 0 %d", pattern1)
	r.allOK(b)
}

// heldAndBusy: the group that was open at the save is somebody else's at the restore.
// What was open then fails, and can be opened anew once the group is free.
func heldAndBusy(r *rig) {
	t := r.tpus[0]
	b := r.run(true, t)
	b.do("open 0")
	image := b.save()
	holder, err := unix.Open(t.node(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	r.must(err)
	b = r.restore(image, true, t)
	a := b.try("reattach 0 %s", t.address)
	r.want(strings.Contains(a.Error, "inappropriate ioctl"), "a group that is somebody else's: %q", a.Error)
	a = b.do("actions")
	r.want(a.Text == "[checkpoint]", "sent although the group is busy: %s", a.Text)
	r.must(unix.Close(holder))
	b.acted("checkpoint restore")
	b.do("close 0")
	b.do("open 0")
	b.do("dma 0 %d 1", pattern1)
}

// busyForGood: nobody lets the group go. The restore fails when its time is over, says
// which group it is, and sends nothing.
func busyForGood(r *rig) {
	from, to := r.tpus[0], r.tpus[1]
	r.annotations = map[string]string{"dev.gvisor.internal.tpu.restore-timeout": "5s"}
	b := r.run(false, from)
	b.do("open 0")
	image := b.save()
	holder, err := unix.Open(to.node(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	r.must(err)
	defer unix.Close(holder)
	r.refused(image, fmt.Sprintf("%s still in use after", to.node()), to)
}

// overlappingGroups: two TPUs become two others, one of which is an old one.
func overlappingGroups(r *rig) {
	b := r.run(false, r.tpus[0], r.tpus[1])
	r.twoTPUs(b, r.tpus[1], r.tpus[2])
}

// permutedGroups: the kernel has given the two groups the numbers of each other.
func permutedGroups(r *rig) {
	first, second := r.tpus[0], r.tpus[1]
	b := r.run(false, first, second)
	before := [2]int{first.group(), second.group()}
	b.do("open 0")
	b.do("fill 0 %d", pattern1)
	image := b.save()
	r.must(first.remove())
	r.must(second.remove())
	r.must(second.plugIn())
	r.must(first.plugIn())
	after := [2]int{first.group(), second.group()}
	r.note("groups were %v and are %v", before, after)
	r.want(after == [2]int{before[1], before[0]}, "the groups are not permuted")
	b = r.restore(image, false, first, second)
	b.acted("checkpoint restore")
	b.sees(first, second)
	b.do("verify 0 %d", pattern1)
	r.allOK(b)
}

// twoTPUs writes to two TPUs, restores onto two others, and reads.
func (r *rig) twoTPUs(b *box, first, second *tpu) {
	b.do("open 0")
	b.do("open 1")
	b.do("fill 0 %d", pattern1)
	b.do("fill 1 %d", pattern2)
	b = r.restore(b.save(), false, first, second)
	b.acted("checkpoint restore")
	b.sees(first, second)
	b.do("verify 0 %d", pattern1)
	b.do("verify 1 %d", pattern2)
	b.do("dma 1 %d 1", pattern1)
}

// refusals: too few TPUs, and one of another architecture. Nothing is touched.
func refusals(r *rig) {
	b := r.run(false, r.tpus[0], r.tpus[1])
	b.do("open 0")
	image := b.save()
	r.refused(image, "too few TPUs here: saved 2", r.tpus[0])
	r.refused(image, "TPUs of another architecture here: saved 2", r.tpus[0], r.other)
	_, err := os.Stat(r.tpus[0].node())
	r.must(err)
	r.free(r.tpus[0])
}
