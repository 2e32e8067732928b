// Package engines holds the tests with real container engines: Docker, containerd
// and Podman from Debian's packages, and Kubernetes' interface to containerd. Each
// is started by the test, on a TPU host without hardware, with folders of its own in
// place of the system's, and ended with it. What the tests run is what
// docs/engines.md tells its readers to run.
//
// They have the build tag engines, and take root, the engines' packages, and the
// binaries that `make test-engines` builds; without these they fail.
package engines
