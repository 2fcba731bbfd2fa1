package receiver

import (
	"slices"
	"sync"
)

// Recorder records notifications, for tests. The zero Recorder is empty. It is safe for
// concurrent use.
type Recorder struct {
	mu      sync.Mutex
	all     []Notification
	changed chan struct{} // closes when the next notification arrives; nil: not waited for
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

// All returns all notifications in the order of their answers, and a channel that closes when
// another arrives.
func (r *Recorder) All() ([]Notification, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return slices.Clone(r.all), r.changed
}
