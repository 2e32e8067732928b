//go:build race || lockdep

package inprocess

const slow = true
