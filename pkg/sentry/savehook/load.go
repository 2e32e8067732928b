package savehook

import (
	"sync/atomic"
	"time"
)

var loadBegan atomic.Pointer[time.Time]

// LoadBegins is called when the loading of an image begins. A process loads one
// sandbox at the most.
func LoadBegins() {
	now := time.Now()
	loadBegan.CompareAndSwap(nil, &now)
}

// LoadBegan returns when the loading of the sandbox's image began, or zero.
func LoadBegan() time.Time {
	if t := loadBegan.Load(); t != nil {
		return *t
	}
	return time.Time{}
}
