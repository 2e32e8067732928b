//go:build engines

package engines

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// block is a piece of the document that a test makes use of:
//
//	```sh NAME            commands, run as they are
//	```json NAME PATH     a file that they need, and where it lies
type block struct {
	name string
	path string // of a file; "" for commands
	text string
}

// document is docs/engines.md: what it tells its readers to do is what the tests do.
type document []block

func readDocument(path string) (document, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var d document
	var current *block
	for line := range strings.Lines(string(b)) {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && current == nil:
			words := strings.Fields(fence)
			current = &block{}
			if len(words) > 1 {
				current.name = words[1]
			}
			if len(words) > 2 {
				current.path = words[2]
			}
		case isFence:
			if current.name != "" {
				d = append(d, *current)
			}
			current = nil
		case current != nil:
			current.text += line
		}
	}
	for i, b := range d {
		for _, other := range d[:i] {
			if b.name == other.name {
				return nil, fmt.Errorf("%s: two blocks have the name %q", path, b.name)
			}
		}
	}
	return d, nil
}

// usedBlocks are those that a test has asked for.
var usedBlocks = make(map[string]bool)

func (d document) block(t *testing.T, name string) block {
	t.Helper()
	for _, b := range d {
		if b.name == name {
			usedBlocks[name] = true
			return b
		}
	}
	t.Fatalf("docs/engines.md has no block with the name %q", name)
	return block{}
}

// unused lists the blocks that no test has asked for.
func (d document) unused() []string {
	var names []string
	for _, b := range d {
		if !usedBlocks[b.name] {
			names = append(names, b.name)
		}
	}
	return names
}

// follow does what a block of the document says, and returns what its commands say.
func (p *place) follow(name string, words ...string) string {
	p.t.Helper()
	b := guide.block(p.t, name)
	if b.path != "" {
		p.write(b.path, b.text)
		return ""
	}
	return p.do(b.text, words...)
}
