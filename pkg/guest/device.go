package guest

import (
	"context"
	"errors"
	"fmt"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// ErrFaulted is wrapped by an error of a Device that cannot be used any more, and by
// the errors of Do from then on.
var ErrFaulted = errors.New("TPU cannot be used any more")

// A Device is the hardware behind a runtime. A Machine calls its methods one at a time.
//
// The context of Detach and Attach ends when the time is over that the driver gave, or
// when the runtime is being shut down.
type Device interface {
	// Topology describes the open devices; while none is open, those that Attach
	// would open. What is not known is left out; nil is fine.
	Topology() *controlpb.TpuTopology

	// Detach copies the devices' memory into the process and closes them all. After
	// an error they must be as before, unless the error wraps ErrFaulted. No
	// operation is in flight.
	Detach(ctx context.Context) error

	// Attach opens the devices and copies the memory back. If the process is one of
	// several in a mesh, Attach waits for the others. expected is what the driver
	// expects, whose fields Topology has been compared with; it may be nil. After an
	// error the device is taken for lost.
	Attach(ctx context.Context, expected *controlpb.TpuTopology) error
}

// CheckTopology returns an error that names the first field in which have differs from
// want. Fields that want leaves out may have any value.
func CheckTopology(want, have *controlpb.TpuTopology) error {
	if want == nil {
		return nil
	}
	for _, field := range []struct {
		name       string
		expected   bool
		want, have any
	}{
		{"chip_architecture", want.ChipArchitecture != nil, want.GetChipArchitecture(), have.GetChipArchitecture()},
		{"num_chips", want.NumChips != nil, want.GetNumChips(), have.GetNumChips()},
		{"mesh_shape", want.MeshShape != nil, want.GetMeshShape(), have.GetMeshShape()},
		{"pjrt_version", want.PjrtVersion != nil, want.GetPjrtVersion(), have.GetPjrtVersion()},
	} {
		if field.expected && field.want != field.have {
			return fmt.Errorf("topology differs in %s: expected %s, found %s", field.name, show(field.want), show(field.have))
		}
	}
	return nil
}

// show writes a field's value; text is cut, since the driver may have it from anyone.
func show(value any) string {
	if text, ok := value.(string); ok {
		return tpuwire.Quote(text, 64)
	}
	return fmt.Sprint(value)
}
