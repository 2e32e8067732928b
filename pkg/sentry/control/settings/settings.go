// Package settings holds what an operator can set, as annotations of a container.
// One table makes the parser, the validation, the help text and the documentation.
//
// The sentry and the command line share it; it imports the standard library only.
package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Prefix begins every annotation of ours. gVisor lets annotations under
// dev.gvisor.internal differ between a checkpoint and a restore, and no others.
const Prefix = "dev.gvisor.internal.tpu."

// The limits between which a limit may be set.
const (
	MinLimit = time.Second
	MaxLimit = time.Hour
)

// Handshake is the sequence of actions of a checkpoint.
type Handshake string

// The handshakes.
const (
	// HandshakeCheckpoint sends CHECKPOINT, and later RESTORE.
	HandshakeCheckpoint Handshake = "checkpoint"
	// HandshakeLock sends LOCK before CHECKPOINT, and UNLOCK after RESTORE.
	HandshakeLock Handshake = "lock"
)

// Settings rule the processes of one container.
type Settings struct {
	// CheckpointLimit is how long a runtime may take for LOCK and CHECKPOINT
	// together, RestoreLimit for RESTORE and UNLOCK together.
	CheckpointLimit, RestoreLimit time.Duration

	// AllowUnmanaged makes a process that holds a TPU without a runtime a warning
	// instead of a refusal.
	AllowUnmanaged bool

	Handshake Handshake

	// WarnTopology makes a topology that differs after a restore a warning
	// instead of an error.
	WarnTopology bool
}

// Default returns the settings of a container without annotations.
func Default() Settings {
	return Settings{
		CheckpointLimit: 3 * time.Minute,
		RestoreLimit:    3 * time.Minute,
		Handshake:       HandshakeCheckpoint,
	}
}

// A Setting is one annotation.
type Setting struct {
	Name    string // without Prefix
	Allowed string // what its values are, in words
	Default string
	Help    string

	set func(*Settings, string) error
}

const limits = "a Go duration from 1s to 1h"

// Table lists every setting, in the order in which they take effect.
var Table = []Setting{
	{
		Name: "timeout", Allowed: limits, Default: "3m",
		Help: "how long a runtime may take to checkpoint, and how long to restore",
		set: func(s *Settings, v string) (err error) {
			s.CheckpointLimit, err = parseLimit(v)
			s.RestoreLimit = s.CheckpointLimit
			return err
		},
	},
	{
		Name: "checkpoint-timeout", Allowed: limits, Default: "the value of timeout",
		Help: "how long a runtime may take to checkpoint",
		set:  func(s *Settings, v string) (err error) { s.CheckpointLimit, err = parseLimit(v); return err },
	},
	{
		Name: "restore-timeout", Allowed: limits, Default: "the value of timeout",
		Help: "how long a runtime may take to restore",
		set:  func(s *Settings, v string) (err error) { s.RestoreLimit, err = parseLimit(v); return err },
	},
	{
		Name: "unmanaged", Allowed: `"refuse" or "allow"`, Default: "refuse",
		Help: "what a checkpoint does about a process that holds a TPU and has no runtime to ask: refuse, or warn and go on",
		set: func(s *Settings, v string) (err error) {
			s.AllowUnmanaged, err = parseChoice(v, "refuse", "allow")
			return err
		},
	},
	{
		Name: "handshake", Allowed: `"checkpoint" or "lock"`, Default: "checkpoint",
		Help: "whether runtimes are locked before they are asked to checkpoint, and unlocked after they are restored",
		set: func(s *Settings, v string) error {
			lock, err := parseChoice(v, string(HandshakeCheckpoint), string(HandshakeLock))
			if lock {
				s.Handshake = HandshakeLock
			}
			return err
		},
	},
	{
		Name: "topology", Allowed: `"enforce" or "warn"`, Default: "enforce",
		Help: "what a restore does about a topology that is not the saved one: fail, or warn and go on",
		set: func(s *Settings, v string) (err error) {
			s.WarnTopology, err = parseChoice(v, "enforce", "warn")
			return err
		},
	},
}

// Parse reads the settings out of a container's annotations. Annotations without
// Prefix are not ours. The error names every bad one, its value and what is
// allowed.
func Parse(annotations map[string]string) (Settings, error) {
	s := Default()
	var errs []error
	known := map[string]bool{}
	for _, setting := range Table {
		known[setting.Name] = true
		value, ok := annotations[Prefix+setting.Name]
		if !ok {
			continue
		}
		if err := setting.set(&s, value); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s%s is %q: %w", Prefix, setting.Name, value, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if name, ours := strings.CutPrefix(key, Prefix); ours && !known[name] {
			errs = append(errs, fmt.Errorf("annotation %q is unknown; known are %s", key, names()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Default(), err
	}
	return s, nil
}

func names() string {
	all := make([]string, len(Table))
	for i, s := range Table {
		all[i] = Prefix + s.Name
	}
	return strings.Join(all, ", ")
}

func parseLimit(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil || d < MinLimit || d > MaxLimit {
		return 0, fmt.Errorf("allowed is %s, such as 90s or 10m", limits)
	}
	return d, nil
}

func parseChoice(v, first, second string) (bool, error) {
	switch v {
	case first:
		return false, nil
	case second:
		return true, nil
	}
	return false, fmt.Errorf("allowed is %q or %q", first, second)
}
