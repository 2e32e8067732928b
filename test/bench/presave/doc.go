// Package presave measures gVisor's pre-save of TPUs alone, on a kernel inside the
// test process. Its test binary is built twice, with the seam and without it: the one
// measures ours, the other upstream's. Only exported functions of gVisor's are used.
package presave
