package receiver

import (
	"slices"
	"sync"
)

// Recorder keeps what arrives, for tests. The zero Recorder is empty. It is safe
// for concurrent use.
type Recorder struct {
	mu      sync.Mutex
	all     []Notification
	changed chan struct{} // closed when the next one arrives; nil if nobody waits
}

// Add adds a notification; see [New].
func (r *Recorder) Add(n Notification) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, n)
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// All returns what has arrived so far, in the order in which it was answered, and
// a channel that is closed when more does.
func (r *Recorder) All() ([]Notification, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return slices.Clone(r.all), r.changed
}
