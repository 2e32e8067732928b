package remap

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var groupNode = regexp.MustCompile(`^/dev/vfio/([0-9]+)$`)

// GroupOfNode is the number of the IOMMU group whose node has this path. Only a
// number directly in /dev/vfio is one: the container /dev/vfio/vfio and what lies
// in the directory /dev/vfio/devices are not.
func GroupOfNode(path string) (group uint32, ok bool) {
	m := groupNode.FindStringSubmatch(path)
	if m == nil {
		return 0, false
	}
	v, err := strconv.ParseUint(m[1], 10, 32)
	return uint32(v), err == nil
}

// GroupsInSpec are the IOMMU groups that a container is given, in ascending order.
func GroupsInSpec(spec *specs.Spec) []uint32 {
	var groups []uint32
	if spec == nil || spec.Linux == nil {
		return nil
	}
	for _, dev := range spec.Linux.Devices {
		if group, ok := GroupOfNode(dev.Path); ok {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// GroupsInSpecs are the IOMMU groups of all containers.
func GroupsInSpecs(all map[string]*specs.Spec) []uint32 {
	var groups []uint32
	for _, spec := range all {
		groups = append(groups, GroupsInSpec(spec)...)
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// Shares pairs the saved specs and the present ones by container name.
func Shares(saved, now map[string]*specs.Spec) map[string]Container {
	shares := make(map[string]Container)
	for name, spec := range now {
		c := Container{Saved: GroupsInSpec(saved[name]), Now: GroupsInSpec(spec)}
		if len(c.Saved)+len(c.Now) > 0 {
			shares[name] = c
		}
	}
	return shares
}

// WithoutGroups copies specs and leaves out the nodes of the given IOMMU groups: the
// numbers of a TPU's may differ between a save and a restore. The originals are not
// changed, nor shared with the copies.
func WithoutGroups(all map[string]*specs.Spec, groups []uint32) (map[string]*specs.Spec, error) {
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	var out map[string]*specs.Spec
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, err
	}
	for _, spec := range out {
		if spec == nil || spec.Linux == nil {
			continue
		}
		spec.Linux.Devices = slices.DeleteFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool {
			group, ok := GroupOfNode(d.Path)
			return ok && slices.Contains(groups, group)
		})
	}
	return out, nil
}
