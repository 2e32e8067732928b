package savehook

import "gvisor.dev/gvisor/pkg/sentry/kernel"

// defaultRegistry is the one that the seam calls: a sandbox process has one
// kernel, and gVisor offers no place to keep anything by kernel.
var defaultRegistry Registry

var seamLaid bool

// MarkSeamLaid is called by the seam's init.
func MarkSeamLaid() { seamLaid = true }

// SeamLaid reports whether the seam is in this binary: without it gVisor's own
// code runs in place of the callbacks.
func SeamLaid() bool { return seamLaid }

// Register adds callbacks to the registry that the seam calls.
func Register(h Hooks) { defaultRegistry.Register(h) }

// PreSave is called by the seam before a save.
func PreSave(k *kernel.Kernel) error { return defaultRegistry.PreSave(k) }

// PostResume is called by the seam when the kernel runs again.
func PostResume(k *kernel.Kernel) error { return defaultRegistry.PostResume(k) }

// PostRestore is called by the seam after a restore.
func PostRestore(k *kernel.Kernel) error { return defaultRegistry.PostRestore(k) }
