// Package image knows the directory that a checkpoint is saved to: who may write to
// it, what is left in it by a failure, and what its tpu.json says.
package image
