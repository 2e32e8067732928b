// Program lint is the tool that `make lint` hands to go vet beside go vet's own checks:
// locks held as annotated, errors wrapped and compared as they should be, switches over
// enums complete, nothing that is plainly nil or written in vain, and Go as it is written
// today. It imports analyzers alone.
package main

import (
	"slices"

	"github.com/nishanths/exhaustive/passes/exhaustive"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/modernize"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/unitchecker"
	"gvisor.dev/gvisor/tools/checklocks"
)

func main() {
	set(exhaustive.Analyzer, "d", "true") // a switch with a default has thought of the rest
	set(exhaustive.Analyzer, "constignore", `\.num[A-Z]`)
	// The enums of the protocol grow, and most places ask about one value of them.
	set(exhaustive.Analyzer, "typeignore", `/controlpb\.`)
	set(checklocks.Analyzer, "inferred", "false") // what a mutex guards is said, not guessed
	// proto.String and its like say more than new does where a message is filled.
	modern := slices.DeleteFunc(slices.Clone(modernize.Suite), func(a *analysis.Analyzer) bool {
		return a == modernize.NewExprAnalyzer
	})
	unitchecker.Main(append(modern,
		checklocks.Analyzer,
		errorlint.NewAnalyzer(),
		exhaustive.Analyzer,
		nilness.Analyzer,
		unusedwrite.Analyzer,
	)...)
}

func set(a *analysis.Analyzer, name, value string) {
	if err := a.Flags.Set(name, value); err != nil {
		panic(err)
	}
}
