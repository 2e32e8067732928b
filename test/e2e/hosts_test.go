package e2e

import (
	"testing"

	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestOtherGroups restores onto a host whose TPUs are in other IOMMU groups, some
// of which were another TPU's before.
func TestOtherGroups(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2, Groups: []int{0, 1}})
	image := r.checkpoint()
	r.must(r.Wipe())
	r.must(r.Restore(t.Context(), image, 1, 17))
	r.goesOn()
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")
}

// TestClutteredHost has other devices bound to VFIO beside the TPU, and a folder
// where only groups are expected.
func TestClutteredHost(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Groups: []int{5}, OtherGroups: []int{2, 9}, Clutter: true})
	r.move(r.checkpoint())
	r.goesOn()
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
}

// TestTPUv4 has chips that are /dev/accel* and not VFIO groups.
func TestTPUv4(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2, Arch: "v4", Accel: true})
	r.move(r.checkpoint())
	r.goesOn()
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")
}
