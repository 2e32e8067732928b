package savehook

import (
	"encoding/json"
	"fmt"
	"sync"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// CallMethod is the control-socket method that the seam adds to gVisor's own.
const CallMethod = "State.TPU"

// A Request is a call from the host over the control socket. The host is trusted,
// and still of another process: a sandbox may be older or newer than the caller.
type Request struct {
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args,omitempty"`
}

// A Response is the answer to a Request.
type Response struct {
	Result json.RawMessage `json:"result,omitempty"`
}

// A Handler answers one operation. It runs on the goroutine of the call, beside
// whatever else goes on in the sandbox.
type Handler func(k *kernel.Kernel, args json.RawMessage) (result any, err error)

var handlers struct {
	mu sync.Mutex
	// +checklocks:mu
	by map[string]Handler
}

// Handle makes h answer the operation op. It panics when op has a handler: a
// mistake in main.
func Handle(op string, h Handler) {
	handlers.mu.Lock()
	defer handlers.mu.Unlock()
	if handlers.by[op] != nil {
		panic(fmt.Sprintf("savehook: operation %q has two handlers", op))
	}
	if handlers.by == nil {
		handlers.by = map[string]Handler{}
	}
	handlers.by[op] = h
}

// Call is called by the seam for each call from the host.
func Call(k *kernel.Kernel, request *Request, response *Response) error {
	handlers.mu.Lock()
	h := handlers.by[request.Op]
	handlers.mu.Unlock()
	if h == nil {
		return fmt.Errorf("this sandbox does not know the operation %q; it was started by another version of runsc", request.Op)
	}
	result, err := h(k, request.Args)
	if err != nil {
		return err
	}
	response.Result, err = json.Marshal(result)
	return err
}
