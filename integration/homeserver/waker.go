package main

import (
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// maxWaiting is how many syncs of one user may wait at a time.
const maxWaiting = 100

// waker wakes waiting syncs when a session ends and when the host stops. The module wakes syncs when rules change.
type waker struct {
	mu      sync.Mutex
	waiting map[mxid.UserID]map[chan struct{}]bool

	stopped chan struct{}
	stop    func() // closes stopped
}

func newWaker() *waker {
	stopped := make(chan struct{})
	return &waker{
		waiting: map[mxid.UserID]map[chan struct{}]bool{},
		stopped: stopped,
		stop:    sync.OnceFunc(func() { close(stopped) }),
	}
}

// wait returns a channel that receives a value when the user's syncs must wake. A sync calls wait before it polls, so
// that it misses nothing, and leave at its end.
func (w *waker) wait(user mxid.UserID) (woken <-chan struct{}, leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting[user]) >= maxWaiting {
		return nil, nil, tooMany(time.Second)
	}
	if w.waiting[user] == nil {
		w.waiting[user] = map[chan struct{}]bool{}
	}
	channel := make(chan struct{}, 1)
	w.waiting[user][channel] = true
	return channel, func() { w.leave(user, channel) }, nil
}

func (w *waker) leave(user mxid.UserID, channel chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting[user], channel)
	if len(w.waiting[user]) == 0 {
		delete(w.waiting, user)
	}
}

func (w *waker) wake(user mxid.UserID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel := range w.waiting[user] {
		select {
		case channel <- struct{}{}:
		default: // a value is waiting already
		}
	}
}
