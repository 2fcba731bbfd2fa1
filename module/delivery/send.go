package delivery

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

const (
	fresh   = time.Second // how long a pusher is not read again
	maxRead = 16          // notifications of a backlog that are read at once

	// maxDelay bounds the delay of a notification by module.Attention, since Notify.
	maxDelay = 5 * time.Minute
)

var errNoResult = errors.New("delivery: no result")

// sending sends a claimed backlog, one notification after the other.
type sending struct {
	*claimed
	d       *Delivery
	user    mxid.UserID
	target  *content.Target // nil until it is read
	readAt  time.Time       // of target
	turn    *turns.Turn     // of the next request, nil until it has one
	trouble content.Trouble
	known   []module.Notification // the first notifications of the backlog
	meta    content.Meta          // of the notification with the ID metaOf
	metaOf  string
	wait    pastWait
}

func (d *Delivery) newSending(claim module.Claim, claimedAt time.Time) *sending {
	return &sending{claimed: d.claims.add(claim, claimedAt), d: d}
}

// run sends until the backlog is empty or has to wait.
func (s *sending) run(life context.Context) {
	defer s.begin()()
	defer s.leaveTurn()
	if s.turn != nil && !s.awaitTurn(life) {
		return
	}
	for life.Err() == nil && !s.d.isStopping() {
		if len(s.known) == 0 && !s.readMore(life) {
			return
		}
		if !s.sendFirst(life) {
			return
		}
	}
	s.postpone(0, s.kept())
}

func (s *sending) kept() *module.Trouble {
	trouble := s.trouble.Stored()
	return &trouble
}

// readMore reads the next notifications. If the first one has failed before, it reads this
// one only, since it may fail again.
func (s *sending) readMore(life context.Context) bool {
	limit := maxRead
	if s.trouble.ID != "" && !s.trouble.Ahead && (!s.d.hasDelays || s.trouble.Delayed == s.trouble.ID) {
		limit = 1
	}
	known, err := s.d.queue.Read(life, s.claim, limit)
	if err != nil || len(known) == 0 {
		s.release(err)
		return false
	}
	s.known = known
	return true
}

// sendFirst sends, drops or postpones the first notification, and reports whether to go
// on.
func (s *sending) sendFirst(life context.Context) bool {
	n := s.known[0]
	m, err := s.readMeta(n)
	if err != nil {
		return s.drop(life, n.ID, DropUnreadable)
	}
	s.user = m.User
	if !s.d.clock().Before(time.UnixMilli(m.Expires)) {
		return s.drop(life, n.ID, DropExpired)
	}
	if !s.readTarget(life) || !s.takeTurn(life) {
		return false
	}
	if n.Priority == module.CountsOnly {
		return s.sendCounts(life, n, m)
	}
	if s.d.hasUnread {
		isRead, _ := s.d.read.get(life, module.UserEvent{User: m.User, RoomID: m.Room, EventID: m.Event, Position: m.Position, Thread: m.Thread})
		if isRead {
			return s.drop(life, n.ID, DropRead)
		}
	}
	if delay := s.delay(life, n, m); delay > 0 {
		s.trouble.Generation, s.trouble.Delayed = s.target.SetAt, n.ID
		s.postpone(delay, s.kept())
		return false
	}
	return s.sendNow(life, n, m, s.countsFor(life))
}

func (s *sending) readMeta(n module.Notification) (m content.Meta, err error) {
	if n.ID != s.metaOf {
		if m, err = content.ReadMeta(n.Meta); err != nil {
			return m, err
		}
		s.meta, s.metaOf = m, n.ID
	}
	return s.meta, nil
}

// readTarget reads the pusher, unless the last read is fresh. It reports whether to go on.
func (s *sending) readTarget(life context.Context) bool {
	if s.target != nil && time.Since(s.readAt) <= fresh {
		return true
	}
	began := time.Now()
	result, found := s.d.pushers.get(life, s.user)
	if !found || result.Err != nil && fault.KindOf(result.Err) != fault.Database {
		if life.Err() == nil {
			s.d.failures.add("read pushers", errors.Join(result.Err, missing(found)))
			s.postpone(retryQueue, nil)
		}
		return false
	}
	s.target, s.readAt = nil, began
	for _, p := range result.Value.All() {
		if content.PusherID(s.user, p.Key) == s.claim.Target.Name {
			s.target, _ = content.ReadTarget(s.user, p, s.d.limits)
			break
		}
	}
	if s.target == nil || s.target.URL == "" {
		s.dropAll(life)
		return false
	}
	s.gate = s.target.Gate()
	if s.trouble.Generation < s.target.SetAt {
		s.trouble = content.Trouble{Generation: s.target.SetAt}
	}
	return true
}

func missing(found bool) error {
	if found {
		return nil
	}
	return errNoResult
}

// takeTurn takes a turn for the pusher's gate, or postpones the backlog.
func (s *sending) takeTurn(life context.Context) bool {
	gate := s.target.Gate()
	if s.turn != nil && s.turn.Gate == gate {
		return true
	}
	s.leaveTurn()
	turn, delay := s.d.gates.admit(s.user, gate)
	if turn == nil {
		s.postpone(delay, s.kept())
		return false
	}
	s.turn = turn
	if turn.Ready == nil {
		return true
	}
	if err := s.keep(life); err != nil {
		s.releaseUnlessFenced(err)
		return false
	}
	return s.awaitTurn(life)
}

// maxAwait is how long a claimed backlog may wait for its turn. Then this host releases it,
// since another host may have a place.
const maxAwait = lease / 2

// awaitTurn waits until the turn has its place, or postpones the backlog.
func (s *sending) awaitTurn(life context.Context) bool {
	if s.turn.Ready == nil {
		return true
	}
	timeout := time.NewTimer(maxAwait - time.Since(s.renewedAt))
	defer timeout.Stop()
	delay := time.Duration(0)
	select {
	case <-s.turn.Ready:
		return true
	case <-timeout.C:
		delay = s.d.gates.putOff(s.turn)
	case <-s.d.stopping:
	case <-life.Done():
	}
	s.leaveTurn()
	s.postpone(delay, s.kept())
	return false
}

func (s *sending) releaseUnlessFenced(err error) {
	if !errors.Is(err, module.ErrFenced) {
		s.release(err)
	}
}

// leaveTurn ends a turn in which nothing was sent.
func (s *sending) leaveTurn() { s.endTurnAfter(content.Unsent, "", 0) }

func (s *sending) endTurnAfter(v content.Verdict, class content.Class, wait time.Duration) {
	if s.turn == nil {
		return
	}
	result := turns.Neutral
	switch {
	case v == content.Unsent:
		result = turns.Unused
	case v.IsAlive():
		result = turns.Taken
	case v == content.Throttled:
		result = turns.Throttled
	case v == content.Blocked:
		result = turns.Blocked
	case v == content.Failed && (class == content.ClassDNS || class == content.ClassRefused):
		result = turns.Unreached
	case v == content.Failed:
		result = turns.Failed
	}
	s.d.gates.end(s.turn, result, wait)
	s.turn = nil
}

// delay returns how long to delay a notification. It asks the host once for each.
func (s *sending) delay(life context.Context, n module.Notification, m content.Meta) time.Duration {
	if !s.d.hasDelays || m.Call || s.trouble.Delayed == n.ID || s.hasCall() {
		return 0
	}
	delay, _ := s.d.delays.get(life, module.UserDevice{User: m.User, Device: s.target.Name})
	return min(delay, maxDelay-s.d.clock().Sub(time.UnixMilli(m.Added)))
}

// hasCall reports whether a call waits after the first notification.
func (s *sending) hasCall() bool {
	for _, n := range s.known[1:] {
		if m, err := content.ReadMeta(n.Meta); err == nil && m.Call {
			return true
		}
	}
	return false
}

// countsFor returns the user's counts, nil if they are unknown or unwanted.
func (s *sending) countsFor(life context.Context) *module.Counts {
	if !s.d.hasUnread || s.target.NoCounts {
		return nil
	}
	result, found := s.d.counts.get(life, s.user)
	if !found || result.Err != nil {
		return nil
	}
	return &result.Value
}

// sendCounts sends counts without an event, unless the pusher already has them.
func (s *sending) sendCounts(life context.Context, n module.Notification, m content.Meta) bool {
	counts := s.countsFor(life)
	if counts == nil {
		return s.drop(life, n.ID, DropCoalesced)
	}
	sent, err := s.d.queue.Sent(life, s.claim.Target)
	if err != nil {
		s.release(err)
		return false
	}
	if sent == s.target.Sent(*counts) {
		return s.drop(life, n.ID, DropCoalesced)
	}
	return s.sendNow(life, n, m, counts)
}

// ahead returns a later notification, or the first one if there is none. It prefers other
// rooms, because the notifications of a room have an order.
func (s *sending) ahead(first module.Notification, of content.Meta) (module.Notification, content.Meta) {
	for _, isSameRoom := range []bool{false, true} {
		for _, n := range s.known[1:] {
			if n.Priority == module.CountsOnly || (n.Room == first.Room) != isSameRoom {
				continue
			}
			if m, err := content.ReadMeta(n.Meta); err == nil && s.d.clock().Before(time.UnixMilli(m.Expires)) {
				return n, m
			}
		}
		if !s.trouble.MayOvertake() {
			break
		}
	}
	return first, of
}

// sendNow sends the first notification, or a later one if the first may be at fault.
func (s *sending) sendNow(life context.Context, n module.Notification, m content.Meta, counts *module.Counts) bool {
	first := n.ID
	if s.trouble.ID == n.ID {
		if s.trouble.IDOnly {
			n.Text = ""
		}
		if s.trouble.Ahead {
			n, m = s.ahead(n, m)
		}
	}
	if err := s.keep(life); err != nil || s.turn == nil {
		s.releaseUnlessFenced(err)
		return false
	}
	p := s.post(life, content.Body(n, m, s.target, counts, s.d.limits), m.Trace)
	if p.verdict == content.Rejected {
		return s.reject(life, p, first, n.ID)
	}
	s.endTurnAfter(p.verdict, p.class, p.answer.RetryAfter)
	switch p.verdict {
	case content.Delivered:
		return s.delivered(life, n, m, first, counts, p.took)
	case content.Unsent:
		if !p.isLost {
			s.postpone(0, s.kept())
		}
		return false
	}
	return s.notDelivered(life, p, first, n.ID)
}

func (s *sending) delivered(life context.Context, n module.Notification, m content.Meta, first string, counts *module.Counts, took time.Duration) bool {
	sent := ""
	if counts != nil {
		sent = s.target.Sent(*counts)
	}
	if m.Event != "" {
		s.checkAge(time.UnixMilli(m.Added), took)
		s.d.observer.Took(observe.DeliveryAge, "", max(0, s.d.clock().Sub(time.UnixMilli(m.Added))), true)
	}
	if n.ID != first {
		s.trouble = s.trouble.TookAhead()
	} else {
		s.trouble = content.Trouble{}
	}
	return s.remove(life, n.ID, sent)
}

// notDelivered decides what follows a failure: another attempt, a drop, or a wait. First
// and of are the ids of the first notification and of the sent one. It reports whether to
// go on sending.
func (s *sending) notDelivered(life context.Context, p posted, first, of string) bool {
	now := s.d.clock()
	isOpen, isCutOff := s.d.gates.state(s.target.Gate())
	trouble, step := s.trouble.After(content.Failure{
		ID: first, Of: of, Verdict: p.verdict, Status: p.answer.Status, Class: p.class, Gate: s.target.Gate(), IsOpen: isOpen && !isCutOff,
		Now: now,
	})
	trouble.Generation = s.target.SetAt
	if step == content.Wait && (!isOpen || isCutOff) { // does not count as an attempt
		trouble.Attempts = max(1, s.trouble.Attempts)
	}
	s.trouble = trouble
	switch step {
	case content.Again:
		return true
	case content.Drop:
		s.d.dropped(DropRefused, 1)
		s.trouble = content.Trouble{}
		return s.remove(life, of, "")
	}
	if isCutOff { // other hosts may reach the gateway
		s.postpone(retryQueue, s.kept())
		return false
	}
	failing := now.Sub(time.UnixMilli(trouble.Since))
	s.postpone(content.RetryIn(p.verdict, p.answer, trouble.Attempts, failing, rand.Float64()), s.kept())
	return false
}

func (s *sending) drop(life context.Context, id string, reason DropReason) bool {
	s.d.dropped(reason, 1)
	s.trouble = content.Trouble{}
	return s.remove(life, id, "")
}

// remove removes a notification, and reports whether the backlog has more.
func (s *sending) remove(life context.Context, id, sent string) bool {
	left, ok := s.complete(life, id, s.trouble.Stored(), sent)
	for i, n := range s.known {
		if n.ID == id {
			s.known = append(s.known[:i:i], s.known[i+1:]...)
			break
		}
	}
	return ok && left > 0
}

func (s *sending) dropAll(life context.Context) {
	n, err := s.d.queue.Drop(life, s.claim)
	if err != nil {
		if !errors.Is(err, module.ErrFenced) {
			s.d.failures.add("drop a backlog", err)
		}
		return
	}
	s.d.dropped(DropGone, n)
}
