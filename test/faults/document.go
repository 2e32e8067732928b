package faults

import (
	"fmt"
	"strings"
)

// about says what a kind of row is.
var about = map[string]string{
	"answers":   "The runtime answers, but not as it should.",
	"silence":   "The runtime does not answer.",
	"lock":      "The same with the lock handshake, at LOCK on the way there and at UNLOCK on the way back.",
	"names":     "How runtimes are found: by the names of threads, which are a stranger's words.",
	"who":       "Who holds TPUs, and who comes and goes.",
	"operator":  "What the operator does.",
	"host":      "What the host has or lacks.",
	"restoring": "The end of a sandbox that is being restored. Nothing of it is left on the host, and whoever restores is told why.",
}

// Document is the table for people, in Markdown.
func Document() string {
	var b strings.Builder
	kind := ""
	for _, r := range Table {
		if r.Kind() != kind {
			kind = r.Kind()
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", kind, about[kind])
			b.WriteString("| fault | what is done | on the way there | on the way back | run |\n|---|---|---|---|---|\n")
		}
		_, name, _ := strings.Cut(r.ID, "/")
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, r.What, r.Detach, r.Attach, r.In)
	}
	return b.String()
}

func (o *Outcome) String() string {
	if o == nil {
		return ""
	}
	told := "succeeds"
	if o.Error != None {
		told = "fails: " + string(o.Error)
	}
	if o.Later {
		told += ", or the next operation does"
	}
	if o.Then != "" {
		told += "; " + string(o.Then)
	}
	if o.Others != "" {
		told += "; the others: " + string(o.Others)
	}
	return told
}

func (in Runners) String() string {
	switch in {
	case InProcess:
		return "in process"
	case Sandboxed:
		return "in a sandbox"
	case Both:
	}
	return "both"
}
