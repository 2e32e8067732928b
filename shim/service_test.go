package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/shim/v1/extension"
	pb "gvisor.dev/gvisor/pkg/shim/v1/taskserver/task_server_go_proto"
	"gvisor.dev/gvisor/pkg/shim/v1/utils"
)

// recorder stands for gVisor's shim, and notes what it is asked to do.
type recorder struct {
	extension.TaskServiceExt // nil: what is not below must not be called
	calls                    []string
	err                      error
}

func (r *recorder) note(call string) error {
	r.calls = append(r.calls, call)
	return r.err
}

func (r *recorder) Create(_ context.Context, q *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	return nil, r.note("create " + q.ID)
}

func (r *recorder) Start(_ context.Context, q *task.StartRequest) (*task.StartResponse, error) {
	return nil, r.note("start " + q.ID + q.ExecID)
}

func (r *recorder) Delete(_ context.Context, q *task.DeleteRequest) (*task.DeleteResponse, error) {
	return nil, r.note("delete " + q.ID + q.ExecID)
}

func (r *recorder) Restore(_ context.Context, q *extension.RestoreRequest) (*task.StartResponse, error) {
	return nil, r.note("restore " + q.Start.ID + " from " + q.Conf.ImagePath)
}

func (r *recorder) save(_ context.Context, q *pb.CheckpointRequest) (*pb.CheckpointResponse, error) {
	call := "checkpoint " + q.GetId() + " to " + q.GetImagePath()
	if q.GetLeaveRunning() {
		call += " and go on"
	}
	return nil, r.note(call)
}

func (r *recorder) wants(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(r.calls, want) {
		t.Errorf("gVisor's shim was asked to %q, want %q", r.calls, want)
	}
}

func TestCheckpoint(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options *runcoptions.CheckpointOptions
		want    string
	}{
		{"no options", nil, "checkpoint c to /image and go on"},
		{"options of CRIU", &runcoptions.CheckpointOptions{FileLocks: true, OpenTcp: true}, "checkpoint c to /image and go on"},
		{"exit", &runcoptions.CheckpointOptions{Exit: true}, "checkpoint c to /image"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &task.CheckpointTaskRequest{ID: "c", Path: "/image"}
			if tt.options != nil {
				var err error
				if r.Options, err = typeurl.MarshalAnyToProto(tt.options); err != nil {
					t.Fatal(err)
				}
			}
			next := &recorder{}
			if _, err := newService(next, next.save).Checkpoint(t.Context(), r); err != nil {
				t.Error(err)
			}
			next.wants(t, tt.want)
		})
	}
}

func TestCheckpointFails(t *testing.T) {
	next := &recorder{err: errors.New("refused")}
	s := newService(next, next.save)
	if _, err := s.Checkpoint(t.Context(), &task.CheckpointTaskRequest{ID: "c"}); !errors.Is(err, next.err) {
		t.Errorf("Checkpoint() = %v, want %v", err, next.err)
	}
	strange, err := typeurl.MarshalAnyToProto(&task.StartRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkpoint(t.Context(), &task.CheckpointTaskRequest{ID: "c", Options: strange}); err == nil {
		t.Error("Checkpoint() took options of another kind")
	}
}

func TestStartFromImage(t *testing.T) {
	next := &recorder{}
	s := newService(next, next.save)
	dir := bundle(t, nil)
	s.Create(t.Context(), &task.CreateTaskRequest{ID: "a", Bundle: dir})
	s.Create(t.Context(), &task.CreateTaskRequest{ID: "b", Bundle: dir, Checkpoint: "/image"})
	s.Start(t.Context(), &task.StartRequest{ID: "a"})
	s.Start(t.Context(), &task.StartRequest{ID: "b"})
	s.Start(t.Context(), &task.StartRequest{ID: "b", ExecID: "/ps"})
	next.wants(t, "create a", "create b", "start a", "restore b from /image", "start b/ps")
}

// TestImageIsForgotten wants nothing of a container that is gone to be left to the
// next with its name.
func TestImageIsForgotten(t *testing.T) {
	next := &recorder{}
	s := newService(next, next.save)
	dir := bundle(t, nil)
	s.Create(t.Context(), &task.CreateTaskRequest{ID: "a", Bundle: dir, Checkpoint: "/image"})
	s.Delete(t.Context(), &task.DeleteRequest{ID: "a", ExecID: "/ps"})
	s.Delete(t.Context(), &task.DeleteRequest{ID: "a"})
	s.Create(t.Context(), &task.CreateTaskRequest{ID: "a", Bundle: dir})
	next.err = errors.New("no")
	s.Create(t.Context(), &task.CreateTaskRequest{ID: "a", Bundle: dir, Checkpoint: "/image"})
	next.err = nil
	s.Start(t.Context(), &task.StartRequest{ID: "a"})
	next.wants(t, "create a", "delete a/ps", "delete a", "create a", "create a", "start a")
}

// TestCreateMarksSandbox wants a container of no pod to be called the first of its
// sandbox, and no other.
func TestCreateMarksSandbox(t *testing.T) {
	const label, pod = "io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"
	for _, tt := range []struct {
		name       string
		have, want map[string]string
	}{
		{"no pod", nil, map[string]string{label: "sandbox"}},
		{"no pod, and another annotation", map[string]string{"a": "b"}, map[string]string{"a": "b", label: "sandbox"}},
		{"in a pod", map[string]string{label: "container"}, map[string]string{label: "container"}},
		{"in a pod of CRI-O", map[string]string{pod: "container"}, map[string]string{pod: "container"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := &recorder{}
			dir := bundle(t, tt.have)
			if _, err := newService(next, next.save).Create(t.Context(), &task.CreateTaskRequest{ID: "c", Bundle: dir}); err != nil {
				t.Fatal(err)
			}
			spec, err := utils.ReadSpec(dir)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(spec.Annotations, tt.want) {
				t.Errorf("the annotations are %v, want %v", spec.Annotations, tt.want)
			}
			next.wants(t, "create c")
		})
	}
}

// bundle makes one with the annotations, and returns its folder.
func bundle(t *testing.T, annotations map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := utils.WriteSpec(dir, &specs.Spec{Annotations: annotations, Linux: &specs.Linux{}}); err != nil {
		t.Fatal(err)
	}
	return dir
}
