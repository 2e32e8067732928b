package control

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"gvisor.dev/gvisor/pkg/log"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// maxTopologyText is how long a text in a topology may be, in bytes. It is sent
// back in a RESTORE request, which has to fit into one atomic write to a pipe.
const maxTopologyText = 256

func checkTopologySize(t *controlpb.TpuTopology) (err error) {
	t.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if field.Kind() == protoreflect.StringKind && len(v.String()) > maxTopologyText {
			err = fmt.Errorf("%w: %s of its topology has %d bytes, more than %d", tpuwire.ErrNotMessage, field.Name(), len(v.String()), maxTopologyText)
		}
		return err == nil
	})
	return err
}

// knownTopology returns a copy without fields that this side does not know.
func knownTopology(t *controlpb.TpuTopology) *controlpb.TpuTopology {
	if t == nil {
		return nil
	}
	known := proto.CloneOf(t)
	known.ProtoReflect().SetUnknown(nil)
	return known
}

// compareTopology compares what a runtime sits on now with what it had. Only what
// both of them say is compared.
func (m *member) compareTopology(now *controlpb.TpuTopology) error {
	saved := m.topology.ProtoReflect()
	var err error
	now.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if saved.Has(field) && !saved.Get(field).Equal(v) {
			err = fmt.Errorf("%w: %s was %s and is now %s", ErrTopology, field.Name(), show(saved.Get(field)), show(v))
		}
		return err == nil
	})
	if err != nil && m.settings.WarnTopology {
		log.Warningf("tpu: pid %d: %v", m.process.pid, err)
		return nil
	}
	return err
}

func show(v protoreflect.Value) string {
	if s, ok := v.Interface().(string); ok {
		return tpuwire.Quote(s, maxTopologyText)
	}
	return v.String()
}
