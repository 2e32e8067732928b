package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
)

// SchemaVersion is the version of Report that this code writes, and the latest that
// it reads. docs/schema/tpu.schema.json describes it.
const SchemaVersion = 1

// A Report is what tpu.json says about an image. Times are in seconds.
type Report struct {
	SchemaVersion int         `json:"schemaVersion"`
	RunscVersion  string      `json:"runscVersion"`
	Created       time.Time   `json:"created"`
	Container     string      `json:"container"` // the ID that was checkpointed
	LeaveRunning  bool        `json:"leaveRunning"`
	Containers    []Container `json:"containers"`
	TPUs          []TPU       `json:"tpus"`
	Runtimes      []Runtime   `json:"runtimes"`
	Timings       Timings     `json:"timings"`
	Files         []File      `json:"files"`

	// Operation is the checkpoint with all its steps, for the trace; none if the
	// sandbox held no TPU.
	Operation *api.Operation `json:"operation,omitempty"`
}

// A Container is one that was saved.
type Container struct {
	Name     string            `json:"name"`
	Settings map[string]string `json:"settings"` // its annotations, without their prefix
}

// A TPU is one that the sandbox had.
type TPU struct {
	Address      string `json:"address"` // PCI address
	IOMMUGroup   uint32 `json:"iommuGroup"`
	DeviceID     string `json:"deviceID"` // PCI device ID, such as "0x0063"
	Architecture string `json:"architecture"`
}

// A Runtime is one that was detached.
type Runtime struct {
	api.Runtime
	Topology *api.Topology `json:"topology,omitempty"`
}

// Timings is how long the checkpoint took, in seconds.
type Timings struct {
	Total  float64 `json:"totalSeconds"`
	Detach float64 `json:"detachSeconds"`
	Save   float64 `json:"saveSeconds"`
}

// A File is one of the image's.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// SetOperation takes what the sandbox has told about the checkpoint. The end of the
// save it could not tell.
func (r *Report) SetOperation(op *api.Operation, end time.Time) {
	r.Runtimes = []Runtime{}
	r.Timings.Total = end.Sub(r.Created).Seconds()
	if op == nil {
		r.Timings.Save = r.Timings.Total
		return
	}
	r.Operation = op
	for i := range op.Phases {
		p := &op.Phases[i]
		if p.End.IsZero() {
			p.End = end
		}
		switch took := p.End.Sub(p.Start).Seconds(); p.Name {
		case api.PhaseDetach:
			r.Timings.Detach += took
		case api.PhaseSave:
			r.Timings.Save += took
		}
	}
	if op.End.IsZero() {
		op.End = end
	}
	for _, s := range op.Steps {
		if s.Action == "CHECKPOINT" && s.State != "" && s.Error == "" {
			r.Runtimes = append(r.Runtimes, Runtime{Runtime: s.Runtime, Topology: s.Topology})
		}
	}
}

// SetContainers takes what is said in the containers' specs.
func (r *Report) SetContainers(all map[string]*specs.Spec) {
	r.Containers = []Container{}
	for name, spec := range all {
		c := Container{Name: name, Settings: map[string]string{}}
		for key, value := range spec.Annotations {
			if setting, ours := strings.CutPrefix(key, settings.Prefix); ours {
				c.Settings[setting] = value
			}
		}
		r.Containers = append(r.Containers, c)
	}
	slices.SortFunc(r.Containers, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
}

// Write completes the report with what is in the directory, and writes it there:
// whole or not at all.
func (d *Dir) Write(r *Report) error {
	head, err := readHeader(d.path)
	if err != nil {
		return err
	}
	r.SchemaVersion = SchemaVersion
	r.RunscVersion = head.version
	r.SetContainers(head.specs)
	r.TPUs = []TPU{}
	for _, t := range head.tpus {
		r.TPUs = append(r.TPUs, TPU{
			Address: t.Address, IOMMUGroup: t.Group, DeviceID: fmt.Sprintf("%#04x", t.ID), Architecture: t.Architecture(),
		})
	}
	if r.Files, err = sizes(d.path); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", ReportName, err)
	}
	return d.writeAtomically(append(data, '\n'))
}

func sizes(dir string) ([]File, error) {
	files := []File{}
	for _, name := range savedNames {
		info, err := os.Stat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("looking at the image's files: %w", err)
		default:
			files = append(files, File{Name: name, Size: info.Size()})
		}
	}
	return files, nil
}

func (d *Dir) writeAtomically(data []byte) error {
	f, err := os.CreateTemp(d.path, ".tpuvisor-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", ReportName, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.path, ReportName))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", ReportName, err)
	}
	return d.lock.Sync()
}

// Read returns the report of an image, or nil if it has none.
func Read(dir string) (*Report, error) {
	data, err := os.ReadFile(filepath.Join(dir, ReportName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ReportName), err)
	}
	return r, nil
}
