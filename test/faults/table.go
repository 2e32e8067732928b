package faults

import "slices"

// Table lists every fault.
var Table = slices.Concat(answers, silence, lock, names, who, operator, host, restoring)
