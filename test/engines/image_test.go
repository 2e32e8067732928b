//go:build engines

package engines

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// imageTime is when all that is in an image was made.
var imageTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// archive writes an image of the trainer, as `docker save` would, to the place, and
// returns its path. The entry point is the trainer and the words given.
func (p *place) archive(name string, words ...string) string {
	p.t.Helper()
	layer := trainerLayer(p.t)
	sum := sha256.Sum256(layer)
	layerName := hex.EncodeToString(sum[:]) + "/layer.tar"
	config := encode(p.t, map[string]any{
		"architecture": "amd64",
		"os":           "linux",
		"created":      imageTime,
		"config":       map[string]any{"Entrypoint": append([]string{"/trainer"}, words...), "Env": []string{"PATH=/"}, "WorkingDir": "/"},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	sum = sha256.Sum256(config)
	configName := hex.EncodeToString(sum[:]) + ".json"
	manifest := encode(p.t, []any{map[string]any{"Config": configName, "RepoTags": []string{name}, "Layers": []string{layerName}}})
	var image pack
	image.add(p.t, layerName, 0o644, layer)
	image.add(p.t, configName, 0o644, config)
	image.add(p.t, "manifest.json", 0o644, manifest)
	path := filepath.Join(p.dir, "image"+hex.EncodeToString(sum[:4])+".tar")
	if err := os.WriteFile(path, image.bytes(p.t), 0o644); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// trainerLayer holds the program, and the folders that are mounted over.
func trainerLayer(t *testing.T) []byte {
	program, err := os.ReadFile(trainer)
	if err != nil {
		t.Fatal(err)
	}
	var layer pack
	for _, folder := range []string{"dev/", "etc/", "hbm/", "log/", "proc/", "sys/", "tmp/"} {
		layer.add(t, folder, 0o755, nil)
	}
	layer.add(t, "trainer", 0o755, program)
	return layer.bytes(t)
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pack is a tar archive in memory; a name that ends in a slash is a folder.
type pack struct {
	b bytes.Buffer
	w *tar.Writer
}

func (p *pack) add(t *testing.T, name string, mode int64, content []byte) {
	t.Helper()
	if p.w == nil {
		p.w = tar.NewWriter(&p.b)
	}
	err := p.w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: imageTime})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.w.Write(content); err != nil {
		t.Fatal(err)
	}
}

func (p *pack) bytes(t *testing.T) []byte {
	t.Helper()
	if err := p.w.Close(); err != nil {
		t.Fatal(err)
	}
	return p.b.Bytes()
}
