// Package state saves the kernel into an image, and opens one.
//
// It stands in for gVisor's file of this name for one difference: a save that
// fails, of a sandbox that was to stop after it, leaves the sandbox running.
// gVisor kills it, and the work with it.
package state

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/watchdog"
	"gvisor.dev/gvisor/pkg/state/statefile"
)

// The image's metadata in which the time of all the runs before is added up.
const (
	GvisorCPUUsageKey = "gvisor_cpu_usage"
	GvisorWallTimeKey = "gvisor_wall_time"
)

// previousMetadata is that of the image which this sandbox was restored from.
var previousMetadata map[string]string

// SaveOpts says what to save, and whereto.
type SaveOpts struct {
	// Destination takes the image; PagesMetadata and PagesFile, if set, take the
	// application's memory in its place.
	Destination   io.Writer
	PagesMetadata io.WriteCloser
	PagesFile     stateio.AsyncWriter

	// Key, if set, makes the image's integrity checkable.
	Key      []byte
	Metadata map[string]string

	AppMFExcludeCommittedZeroPages bool

	// Resume keeps the sandbox running after it is saved.
	Resume bool
	// Autosave says that nobody asked for this save.
	Autosave bool
	// StartTime is when the sandbox's process started.
	StartTime time.Time

	CudaCheckpointPath       string
	CudaCheckpointSequential bool
}

// Close closes what Save has not taken over.
func (o *SaveOpts) Close() error {
	var errs []error
	if c, ok := o.Destination.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	if o.PagesMetadata != nil {
		errs = append(errs, o.PagesMetadata.Close())
	}
	if o.PagesFile != nil {
		errs = append(errs, o.PagesFile.Close())
	}
	return errors.Join(errs...)
}

// Save saves the kernel. If that succeeds and Resume is not set, every task of the
// sandbox is killed; in any other case they go on.
func (o *SaveOpts) Save(ctx context.Context, k *kernel.Kernel, dog *watchdog.Watchdog) error {
	k.Pause()
	defer k.Unpause()
	k.ReceiveTaskStates()
	dog.Stop()
	defer dog.Start()

	o.addUsage()
	if err := o.write(ctx, k); err != nil {
		log.Warningf("Save failed, the sandbox goes on: %v", err)
		k.BeforeResume(ctx)
		return err
	}
	k.SetSaveSuccess(o.Autosave)
	if o.Resume {
		k.BeforeResume(ctx)
		return nil
	}
	k.Kill(linux.WaitStatusExit(0))
	return nil
}

// write writes the image as of a sandbox that goes on: else the network is taken
// down before it is known whether the save succeeds. gVisor ends the connections
// of such an image when it is restored.
func (o *SaveOpts) write(ctx context.Context, k *kernel.Kernel) error {
	file := &closedOnce{Writer: o.Destination}
	image, err := statefile.NewWriter(file, o.Key, o.Metadata)
	if err != nil {
		return fmt.Errorf("writing the image's header: %w", err)
	}
	meta, pages := o.PagesMetadata, o.PagesFile
	o.Destination, o.PagesMetadata, o.PagesFile = nil, nil, nil // SaveTo closes them
	const goesOn = true
	err = k.SaveTo(ctx, image, meta, pages, o.AppMFExcludeCommittedZeroPages, goesOn)
	// The image's writer does not close the file under it when what it still holds
	// cannot be written, and a full disk stays full then as long as the sandbox lives.
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("closing the image: %w", closeErr)
	}
	return err
}

// A closedOnce closes its writer, if that can be closed, and only once: not every
// writer bears a second time.
type closedOnce struct {
	io.Writer
	once sync.Once
	err  error
}

// Close implements io.Closer.
func (c *closedOnce) Close() error {
	c.once.Do(func() {
		if closer, ok := c.Writer.(io.Closer); ok {
			c.err = closer.Close()
		}
	})
	return c.err
}

// addUsage adds the time that this run has taken to that of the runs before.
func (o *SaveOpts) addUsage() {
	if o.Metadata == nil {
		o.Metadata = map[string]string{}
	}
	cpu, err := CPUTime()
	if err != nil {
		log.Warningf("Reading the CPU time used: %v", err)
	}
	o.Metadata[GvisorCPUUsageKey] = (cpu + previously(GvisorCPUUsageKey)).String()
	if !o.StartTime.IsZero() {
		wall := time.Since(o.StartTime) + previously(GvisorWallTimeKey)
		o.Metadata[GvisorWallTimeKey] = wall.String()
	}
	addSaveMetadata(o.Metadata)
}

func previously(key string) time.Duration {
	text, ok := previousMetadata[key]
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		log.Warningf("The image that this sandbox was restored from has %s %q: %v", key, text, err)
	}
	return d
}

// NewStatefileReader returns a reader of the image behind its metadata, and these.
// It takes over source if it succeeds.
func NewStatefileReader(source io.ReadCloser, key []byte) (io.ReadCloser, map[string]string, error) {
	r, metadata, err := statefile.NewReader(source, key)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the image's header: %w", err)
	}
	previousMetadata = metadata
	return r, metadata, nil
}
