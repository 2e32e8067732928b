package commands

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd"
)

// upstream reads the table of gVisor's main: its commands by the names of their
// types, with their groups, and its help topics. The table is not exported.
func upstream(t *testing.T) (commands map[string]string, topics []string) {
	t.Helper()
	path := filepath.Join("..", "..", "vendor", "gvisor.dev", "gvisor", "runsc", "cli", "maincli", "maincli.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]string{}
	commands = map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if len(n.Values) == 1 {
				if lit, ok := n.Values[0].(*ast.BasicLit); ok {
					constants[n.Names[0].Name], _ = strconv.Unquote(lit.Value)
				}
			}
		case *ast.KeyValueExpr:
			if name := newed(n.Key); name != "" {
				commands[name] = constants[n.Value.(*ast.Ident).Name]
			}
		case *ast.CompositeLit:
			for _, e := range n.Elts {
				if name := newed(e); name != "" {
					topics = append(topics, name)
				}
			}
		}
		return true
	})
	return commands, topics
}

// newed is the type of new(pkg.Type), as "pkg.Type".
func newed(e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok || fmt.Sprint(call.Fun) != "new" {
		return ""
	}
	sel := call.Args[0].(*ast.SelectorExpr)
	return fmt.Sprintf("%v.%s", sel.X, sel.Sel.Name)
}

// replaced are the commands of ours that stand in for one of gVisor's.
var replaced = map[string]string{
	"commands.checkpoint": "cmd.Checkpoint", "commands.create": "cmd.Create", "commands.kill": "cmd.Kill", "commands.pause": "cmd.Pause", "commands.remove": "cmd.Delete",
	"commands.restore": "cmd.Restore", "commands.resume": "cmd.Resume", "commands.run": "cmd.Run", "commands.wait": "cmd.Wait",
}

// TestAllCommands wants every command and topic of gVisor's, in its group, and two
// more.
func TestAllCommands(t *testing.T) {
	want, wantTopics := upstream(t)
	want["tpucmd.TPU"] = forUsers
	want["commands.cleanup"] = forInternal
	want["bwrap.Cli"] = "" // an alias, which gVisor adds by itself
	all, topics := All()
	got := map[string]string{}
	for c, group := range all {
		if h, ok := c.(*helpful); ok {
			c = h.SubCommand
		}
		name := strings.TrimPrefix(reflect.TypeOf(c).String(), "*")
		if theirs, ok := replaced[name]; ok {
			name = theirs
		}
		got[name] = group
	}
	if !maps.Equal(got, want) {
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if g, ok := got[name]; !ok || g != want[name] {
				t.Errorf("%s: gVisor has it in group %q, here it is in %q (there: %v)", name, want[name], g, ok)
			}
		}
		for name := range got {
			if _, ok := want[name]; !ok {
				t.Errorf("%s is none of gVisor's", name)
			}
		}
	}
	var gotTopics []string
	for _, c := range topics {
		gotTopics = append(gotTopics, strings.TrimPrefix(reflect.TypeOf(c).String(), "*"))
	}
	if !slices.Equal(gotTopics, wantTopics) {
		t.Errorf("the topics are %v, want %v", gotTopics, wantTopics)
	}
}

// TestReplacementsTakeTheSameFlags wants gVisor's flags, with their defaults, where a
// command of ours is not made of gVisor's.
func TestReplacementsTakeTheSameFlags(t *testing.T) {
	ours, theirs := flag.NewFlagSet("", flag.ContinueOnError), flag.NewFlagSet("", flag.ContinueOnError)
	new(checkpoint).SetFlags(ours)
	new(cmd.Checkpoint).SetFlags(theirs)
	theirs.VisitAll(func(f *flag.Flag) {
		mine := ours.Lookup(f.Name)
		switch {
		case mine == nil:
			t.Errorf("checkpoint has no flag -%s", f.Name)
		case f.Name == "compression": // gVisor's shows no default
		case mine.DefValue != f.DefValue:
			t.Errorf("-%s is %q by default, and %q in gVisor", f.Name, mine.DefValue, f.DefValue)
		}
	})
	for _, c := range []interface{ SetFlags(*flag.FlagSet) }{new(cmd.Pause), new(cmd.Resume)} {
		c.SetFlags(flag.NewFlagSet("", flag.ContinueOnError))
	}
}

func TestSignalOf(t *testing.T) {
	for word, want := range map[string]unix.Signal{
		"": unix.SIGTERM, "KILL": unix.SIGKILL, "sigint": unix.SIGINT, "15": unix.SIGTERM, "SIGRTMIN": 0, "0": 0, "x": 0,
	} {
		if sig, ok := signalOf(word); ok != (want != 0) || ok && sig != want {
			t.Errorf("signalOf(%q) = %v, %t, want %v", word, sig, ok, want)
		}
	}
}
