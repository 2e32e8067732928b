// Package sandboxed runs the fault matrix with a real runsc, on a TPU host without
// hardware and with simulated runtimes: every kind of row. It takes root, and the
// runsc that the environment variable TPUVISOR_RUNSC names. It holds tests alone.
package sandboxed
