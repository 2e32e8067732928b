package remap

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The kinds of refusal, for errors.Is.
var (
	ErrTooFew       = errors.New("too few TPUs here")
	ErrArchitecture = errors.New("TPUs of another architecture here")
	ErrSplit        = errors.New("TPUs that shared an IOMMU group, or did not, are grouped otherwise here")
	ErrContainer    = errors.New("a container is not given the TPUs that take the place of its own")
)

// RefusedError says that the TPUs here cannot take the place of the saved ones. Its
// text is one line that names both.
type RefusedError struct {
	Kind       error // one of the kinds above
	Saved, Now Inventory
	Detail     string // what more is to be said, or ""
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("cannot restore the TPUs: %v", e.Kind)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return fmt.Sprintf("%s: saved %v; here %v", text, e.Saved, e.Now)
}

// Unwrap gives the kind.
func (e *RefusedError) Unwrap() error { return e.Kind }

// Container is one container's share: the numbers of the IOMMU groups in its spec,
// at the save and now.
type Container struct {
	Saved, Now []uint32
}

// Plan says what became of the devices of a restored sandbox.
type Plan struct {
	Saved, Now Inventory
	Containers map[string]Container

	groups    map[uint32]uint32 // saved to present
	addresses map[string]string
}

// New assigns a TPU that is here to each of the saved ones. Both inventories are
// taken group by group, in the order of the lowest address in the group: a saved
// group gets the first group that is not taken yet and holds as many TPUs of the
// same architectures; inside a group the order of addresses decides. So the same
// two inventories always give the same plan, and equal ones give one that changes
// nothing.
func New(saved, now Inventory, containers map[string]Container) (*Plan, error) {
	p := &Plan{
		Saved: saved, Now: now, Containers: containers,
		groups: make(map[uint32]uint32), addresses: make(map[string]string),
	}
	free := now.byGroup()
	for _, old := range saved.byGroup() {
		i := slices.IndexFunc(free, old.sameShape)
		if i < 0 {
			return nil, &RefusedError{Kind: refusal(saved, now), Saved: saved, Now: now}
		}
		p.assign(old, free[i])
		free = slices.Delete(free, i, i+1)
	}
	return p, p.checkContainers()
}

func (p *Plan) assign(old, present Inventory) {
	p.groups[old[0].Group] = present[0].Group
	for i := range old {
		p.addresses[old[i].Address] = present[i].Address
	}
}

// byGroup splits an inventory, which is in the order of addresses.
func (inv Inventory) byGroup() []Inventory {
	var groups []Inventory
	for _, d := range inv {
		i := slices.IndexFunc(groups, func(g Inventory) bool { return g[0].Group == d.Group })
		if i < 0 {
			groups = append(groups, Inventory{d})
			continue
		}
		groups[i] = append(groups[i], d)
	}
	return groups
}

func (inv Inventory) sameShape(other Inventory) bool {
	return slices.EqualFunc(inv, other, func(a, b Device) bool { return a.Architecture() == b.Architecture() })
}

// refusal finds out why there is no plan.
func refusal(saved, now Inventory) error {
	if len(now) < len(saved) {
		return ErrTooFew
	}
	here := now.count()
	for arch, n := range saved.count() {
		if here[arch] < n {
			return ErrArchitecture
		}
	}
	return ErrSplit
}

func (inv Inventory) count() map[string]int {
	n := make(map[string]int)
	for _, d := range inv {
		n[d.Architecture()]++
	}
	return n
}

// checkContainers wants each container to be given the successors of the groups
// that it had: it could open no others.
func (p *Plan) checkContainers() error {
	for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
		c := p.Containers[name]
		for _, old := range c.Saved {
			present, ok := p.groups[old]
			if ok && !slices.Contains(c.Now, present) {
				return &RefusedError{
					Kind: ErrContainer, Saved: p.Saved, Now: p.Now,
					Detail: fmt.Sprintf("container %q had group %d, and its spec does not list group %d", name, old, present),
				}
			}
		}
	}
	return nil
}

// Successor is the group that takes the place of a saved one; ok is false for a
// group without saved TPUs.
func (p *Plan) Successor(group uint32) (present uint32, ok bool) {
	present, ok = p.groups[group]
	return present, ok
}

// SuccessorAddress is the PCI address that takes the place of a saved one.
func (p *Plan) SuccessorAddress(address string) (present string, ok bool) {
	present, ok = p.addresses[address]
	return present, ok
}

// Target is the group that a node which led to a saved group leads to now: the
// group itself, if the sandbox has a TPU group of that number, and else its
// successor. A group without TPUs stays what it is.
func (p *Plan) Target(group uint32) uint32 {
	if slices.Contains(p.Now.Groups(), group) {
		return group
	}
	if present, ok := p.groups[group]; ok {
		return present
	}
	return group
}

// Identity reports whether nothing has changed: same addresses, groups and ids.
func (p *Plan) Identity() bool { return slices.Equal(p.Saved, p.Now) }

// String lists what goes where, for the log.
func (p *Plan) String() string {
	var parts []string
	for _, d := range p.Saved {
		parts = append(parts, fmt.Sprintf("%v -> %s in group %d", d, p.addresses[d.Address], p.groups[d.Group]))
	}
	return strings.Join(parts, ", ")
}
