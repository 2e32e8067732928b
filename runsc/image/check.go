package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/specutils"
	"gvisor.dev/gvisor/runsc/version"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// A header is what the image itself says before the sandbox's state begins.
type header struct {
	version string
	specs   map[string]*specs.Spec // by container name
	tpus    remap.Inventory
}

func readHeader(dir string) (*header, error) {
	f, err := os.Open(filepath.Join(dir, checkpointfiles.StateFileName))
	if err != nil {
		return nil, fmt.Errorf("opening the image: %w", err)
	}
	defer f.Close()
	metadata, err := statefile.MetadataUnsafe(f)
	if err != nil {
		return nil, fmt.Errorf("%s is no image of runsc, or is cut off: %w", f.Name(), err)
	}
	h := &header{version: metadata[boot.VersionKey]}
	if text := metadata[boot.ContainerSpecsKey]; text != "" {
		if h.specs, err = specutils.GetSpecsFromString(text); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
	}
	h.tpus, err = remap.Recorded(metadata)
	return h, err
}

// A Host is where an image is to be restored.
type Host struct {
	Sysfs remap.Sysfs
	// Spec is that of the container. It is nil if the container may be given any TPU
	// of the host.
	Spec *specs.Spec
}

// specs are the present ones, by the names that the saved ones have; nil if they are
// not all known: that of a sandbox's first container says little about the others.
func (h Host) specs(saved map[string]*specs.Spec) map[string]*specs.Spec {
	if h.Spec == nil || len(saved) != 1 {
		return nil
	}
	now := map[string]*specs.Spec{}
	for name := range saved {
		now[name] = h.Spec
	}
	return now
}

// A Summary is what was saved, and what would take its place.
type Summary struct {
	Report       *Report         // nil if there is no tpu.json
	RunscVersion string          // that saved it
	Containers   int             // that were saved
	Saved, Here  remap.Inventory // TPUs
}

// Check says whether an image can be restored on a host, by this runsc, as far as
// that can be known beforehand. The summary holds what could be found out.
func Check(dir string, host Host) (*Summary, error) {
	s := &Summary{}
	if exists(filepath.Join(dir, remoteName)) {
		return s, errors.New("the image is not on this host, so that it cannot be looked at")
	}
	head, err := readHeader(dir)
	if err != nil {
		return s, err
	}
	s.RunscVersion, s.Containers, s.Saved = head.version, len(head.specs), head.tpus
	if s.Report, err = Read(dir); err != nil {
		return s, err
	}
	if s.Report != nil {
		if err := s.Report.checkFiles(dir); err != nil {
			return s, err
		}
	}
	if head.version != version.Version() {
		return s, fmt.Errorf("the image was saved by runsc %s, and can be restored by that version only; this is %s", head.version, version.Version())
	}
	return s, s.checkTPUs(head, host)
}

// checkFiles finds an image of which something is missing.
func (r *Report) checkFiles(dir string) error {
	if r.SchemaVersion > SchemaVersion {
		return nil // a later runsc knows better
	}
	for _, file := range r.Files {
		info, err := os.Stat(filepath.Join(dir, filepath.Base(file.Name)))
		if err != nil {
			return fmt.Errorf("the image is not whole: %w", err)
		}
		if info.Size() != file.Size {
			return fmt.Errorf("the image is not whole: %s has %d bytes, and had %d when it was saved", file.Name, info.Size(), file.Size)
		}
	}
	return nil
}

func (s *Summary) checkTPUs(head *header, host Host) error {
	if len(head.tpus) == 0 {
		return nil
	}
	var groups []uint32
	var shares map[string]remap.Container
	var err error
	if now := host.specs(head.specs); now != nil {
		groups, shares = remap.GroupsInSpecs(now), remap.Shares(head.specs, now)
	} else {
		groups, err = allGroups(host.Sysfs)
	}
	if err != nil {
		return fmt.Errorf("listing this host's TPUs: %w", err)
	}
	if s.Here, err = remap.Read(host.Sysfs, groups); err != nil {
		return fmt.Errorf("listing this host's TPUs: %w", err)
	}
	_, err = remap.New(head.tpus, s.Here, shares)
	return err
}

// allGroups lists every IOMMU group of a host.
func allGroups(sysfs remap.Sysfs) ([]uint32, error) {
	names, err := sysfs.ReadDir("/sys/kernel/iommu_groups")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var groups []uint32
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 32); err == nil {
			groups = append(groups, uint32(n))
		}
	}
	slices.Sort(groups)
	return groups, err
}
