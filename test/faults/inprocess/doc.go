// Package inprocess runs the fault matrix on a real kernel in the test process: guests
// are goroutines on kernel pipes, and time is virtual wherever no task has to end. It
// holds tests alone.
package inprocess
