package delivery

import (
	"slices"
	"sync"
)

// steps bounds how many steps of fan-outs run at once. Senders take turns, a step each, so
// a sender with many large rooms delays another sender by one step. It is safe for
// concurrent use.
type steps struct {
	mu      sync.Mutex
	free    int
	waiting map[string][]chan struct{} // by sender, in order
	senders []string                   // of waiting, in the order of their turns
}

func newSteps(atOnce int) steps { return steps{free: atOnce, waiting: map[string][]chan struct{}{}} }

// await returns a channel that is closed when the step may run. The caller calls end after
// the step, or leave to give up before the step runs.
func (s *steps) await(sender string) (ready chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready = make(chan struct{})
	if len(s.waiting[sender]) == 0 {
		s.senders = append(s.senders, sender)
	}
	s.waiting[sender] = append(s.waiting[sender], ready)
	s.begin()
	return ready
}

// end ends a step that ran.
func (s *steps) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	s.begin()
}

// leave ends a step that did not run. If its turn has come, another step gets the turn.
func (s *steps) leave(sender string, ready chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting[sender], ready); i >= 0 {
		s.set(sender, slices.Delete(s.waiting[sender], i, i+1))
		return
	}
	s.free++
	s.begin()
}

func (s *steps) begin() {
	for ; s.free > 0 && len(s.senders) > 0; s.free-- {
		sender := s.senders[0]
		close(s.waiting[sender][0])
		s.senders = append(s.senders[1:], sender)
		s.set(sender, s.waiting[sender][1:])
	}
}

func (s *steps) set(sender string, waiting []chan struct{}) {
	if s.waiting[sender] = waiting; len(waiting) == 0 {
		delete(s.waiting, sender)
		s.senders = slices.DeleteFunc(s.senders, func(other string) bool { return other == sender })
	}
}
