// Program upstream is gVisor's own runsc, from the same vendored module as ours: it is
// what tpuvisor is measured against. It imports gVisor's runsc and nothing of this
// module, and is built without the seam.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
