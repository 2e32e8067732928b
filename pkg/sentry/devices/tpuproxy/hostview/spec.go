package hostview

import (
	"encoding/json"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// podAnnotations say that a sandbox is one of several containers. Those that come
// later may be given any TPU, and only what is in the chroot by then can be shown.
var podAnnotations = []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"}

// givenTo reads from the arguments which groups a sandbox is given, or nil if that
// cannot be known.
func givenTo(args []string) []uint32 {
	spec := specOf(args)
	if spec == nil {
		return nil
	}
	for _, name := range podAnnotations {
		if spec.Annotations[name] != "" {
			return nil
		}
	}
	return remap.GroupsInSpec(spec)
}

// specOf reads the spec that runsc has passed on. Its file is left as it is: gVisor
// reads it again.
func specOf(args []string) *specs.Spec {
	for _, arg := range args {
		number, ok := strings.CutPrefix(arg, "--spec-fd=")
		if !ok {
			continue
		}
		fd, err := strconv.Atoi(number)
		if err != nil {
			return nil
		}
		spec := new(specs.Spec)
		if json.Unmarshal(readAll(fd), spec) != nil {
			return nil
		}
		return spec
	}
	return nil
}

func readAll(fd int) (data []byte) {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Pread(fd, buf, int64(len(data)))
		if n <= 0 || err != nil {
			return data
		}
		data = append(data, buf[:n]...)
	}
}
