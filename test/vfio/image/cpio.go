// Package image makes the initramfs of the bench's machine.
package image

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
)

// Archive writes an initramfs: a cpio archive in the format "newc".
type Archive struct {
	w     io.Writer
	inode int
	dirs  []string
	err   error
}

// New begins an archive.
func New(w io.Writer) *Archive { return &Archive{w: w} }

const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// Dir adds a folder and those above it.
func (a *Archive) Dir(name string) {
	if name == "." || slices.Contains(a.dirs, name) {
		return
	}
	a.Dir(path.Dir(name))
	a.dirs = append(a.dirs, name)
	a.entry(name, modeDir, nil)
}

// File adds a file that can be run.
func (a *Archive) File(name string, data []byte) {
	a.Dir(path.Dir(name))
	a.entry(name, modeFile, data)
}

// Copy adds a file of the machine that the archive is made on.
func (a *Archive) Copy(name, from string) {
	data, err := os.ReadFile(from)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.File(name, data)
}

// Close ends the archive, and gives the first error of all that was done.
func (a *Archive) Close() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *Archive) entry(name string, mode int, data []byte) {
	a.inode++
	var b bytes.Buffer
	b.WriteString("070701")
	for _, field := range []int{a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0} {
		fmt.Fprintf(&b, "%08X", field)
	}
	b.WriteString(name + "\x00")
	pad(&b)
	a.write(b.Bytes())
	a.write(data)
	a.write(make([]byte, (4-len(data)%4)%4))
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}

func (a *Archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
	}
}
