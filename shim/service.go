package main

import (
	"context"
	"fmt"
	"sync"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"gvisor.dev/gvisor/pkg/shim/v1/extension"
	"gvisor.dev/gvisor/pkg/shim/v1/runsc"
	pb "gvisor.dev/gvisor/pkg/shim/v1/taskserver/task_server_go_proto"
	"gvisor.dev/gvisor/pkg/shim/v1/utils"
	"gvisor.dev/gvisor/runsc/specutils"
)

// saver saves a container. gVisor's shim has one, for clients that talk to it past
// containerd.
type saver func(context.Context, *pb.CheckpointRequest) (*pb.CheckpointResponse, error)

// service is gVisor's service, but for what engines ask about checkpoints.
type service struct {
	extension.TaskServiceExt
	save saver

	mu     sync.Mutex
	images map[string]string // of containers that are to start from one, by their ids
}

// extend is an extension.NewExtension.
func extend(_ context.Context, next extension.TaskServiceExt, _ *task.CreateTaskRequest) (extension.TaskServiceExt, error) {
	server := runsc.NewGvisorTaskServer(next)
	if server == nil {
		return nil, fmt.Errorf("gVisor's shim offers no checkpoint: its service is a %T", next)
	}
	return newService(next, server.Checkpoint), nil
}

func newService(next extension.TaskServiceExt, save saver) *service {
	return &service{TaskServiceExt: next, save: save, images: make(map[string]string)}
}

// Checkpoint saves the container to the folder that containerd has chosen. Of the
// options, which are made for CRIU, all but one are about what gVisor always does, or
// never can.
func (s *service) Checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) (*emptypb.Empty, error) {
	exit, err := endsContainer(r.Options)
	if err != nil {
		return nil, err
	}
	_, err = s.save(ctx, &pb.CheckpointRequest{
		Id:           r.ID,
		ImagePath:    r.Path,
		LeaveRunning: !exit,
	})
	return &emptypb.Empty{}, err
}

// endsContainer tells whether a checkpoint with these options ends the container.
func endsContainer(options *anypb.Any) (bool, error) {
	if options == nil {
		return false, nil
	}
	var o runcoptions.CheckpointOptions
	if err := typeurl.UnmarshalTo(options, &o); err != nil {
		return false, fmt.Errorf("options of a checkpoint: %w", err)
	}
	return o.Exit, nil
}

// Create makes a container, and keeps in mind what it is to start from: an image is
// restored when the engine starts the container.
func (s *service) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	if err := markSandbox(r.Bundle); err != nil {
		return nil, err
	}
	if r.Options.GetTypeUrl() == "" {
		r.Options = nil // as a container has it that containerd made from a checkpoint
	}
	resp, err := s.TaskServiceExt.Create(ctx, r)
	if err == nil && r.Checkpoint != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.images[r.ID] = r.Checkpoint
	}
	return resp, err
}

// markSandbox says in the spec of a container that is in no pod that it is the first
// of its sandbox, as Kubernetes says it of a pod's. Without, gVisor's shim waits for
// the end of the sandbox's output before it says that the container is made.
func markSandbox(bundle string) error {
	spec, err := utils.ReadSpec(bundle)
	if err != nil || specutils.SpecContainerType(spec) != specutils.ContainerTypeUnspecified {
		return err
	}
	if spec.Annotations == nil {
		spec.Annotations = make(map[string]string)
	}
	spec.Annotations[specutils.ContainerdContainerTypeAnnotation] = specutils.ContainerdContainerTypeSandbox
	return utils.WriteSpec(bundle, spec)
}

// Start starts a container, or a process in one.
func (s *service) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	if r.ExecID == "" {
		if image, ok := s.takeImage(r.ID); ok {
			return s.TaskServiceExt.Restore(ctx, &extension.RestoreRequest{
				Start: r,
				Conf:  extension.RestoreConfig{ImagePath: image},
			})
		}
	}
	return s.TaskServiceExt.Start(ctx, r)
}

// Delete takes a container away, or a process in one.
func (s *service) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	resp, err := s.TaskServiceExt.Delete(ctx, r)
	if err == nil && r.ExecID == "" {
		s.takeImage(r.ID)
	}
	return resp, err
}

func (s *service) takeImage(id string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	image, ok := s.images[id]
	delete(s.images, id)
	return image, ok
}
