// Package savehook is the registry between gVisor's save and restore code and
// whoever has work to do around it.
//
// gVisor calls it through the seam (see the folder seam/). It may import gVisor's
// kernel and nothing else of this module.
package savehook

import "gvisor.dev/gvisor/pkg/sentry/kernel"

var seamLaid bool

// SeamLaid reports whether the seam is in this binary.
func SeamLaid() bool { return seamLaid }

// MarkSeamLaid is called by the seam's init.
func MarkSeamLaid() { seamLaid = true }

// PreSave is called before a save.
func PreSave(k *kernel.Kernel) error { return nil }

// PostResume is called after a resume.
func PostResume(k *kernel.Kernel) error { return nil }

// PostRestore is called after a restore.
func PostRestore(k *kernel.Kernel) error { return nil }
