package delivery

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

const (
	fresh   = time.Second // how long a pusher is not read again
	maxRead = 16          // notifications that are read at once

	// maxDelay bounds the delay of a notification by module.Attention, since Notify.
	maxDelay = 5 * time.Minute
)

// beforeFor is how long a notification waits for what [module.Unread] says about it.
const beforeFor = 200 * time.Millisecond

// sending sends for a claimed pusher, one notification after the other.
type sending struct {
	*claimed
	d      *Delivery
	target *channel.Target       // nil until it is read
	readAt time.Time             // of target
	turn   *turns.Turn           // of the next request, nil until it has one
	known  []module.Notification // the next notifications
	counts *module.Notification  // counts before the first of them, which has counts, too; nil for none
	end    int64                 // of the log, read before target
	left   int                   // notifications up to end
	meta   content.Meta          // of the notification with the number metaOf
	metaOf int64
	asked  asked // about the next notification
	wait   pastWait
}

// asked is a question that was asked before it was needed.
type asked struct {
	about module.UserEvent
	at    time.Time
	*question[module.Result[module.UnreadState]]
}

func (d *Delivery) newSending(claim *module.Claim, claimedAt time.Time) *sending {
	return &sending{claimed: d.claims.add(claim, claimedAt), d: d}
}

func (d *Delivery) newSendingOf(p module.ClaimedPusher, end int64, claimedAt time.Time) *sending {
	s := d.newSending(p.Claim, claimedAt)
	s.trouble = readTrouble(p.Trouble)
	s.known, s.end, s.left = p.Notifications, end, p.Waiting
	return s
}

// run sends until nothing is left or the pusher has to wait.
func (s *sending) run(life context.Context) {
	defer s.begin()()
	defer s.leaveTurn()
	if s.left == 0 { // claimed with the last notification
		s.left = int(s.end - s.claim.Number)
	}
	if s.turn != nil && !s.awaitTurn(life) {
		return
	}
	for life.Err() == nil && !s.d.isStopping() {
		var goOn bool
		switch {
		case s.target != nil && !s.target.IsSent(): // claimed at another gate: the pusher was set again since
			s.postpone(retrySlow) // for another host
		case s.target != nil && s.target.Collector != nil:
			goOn = s.collect(life)
		case len(s.known) == 0:
			goOn = s.readMore(life)
		default:
			goOn = s.sendFirst(life)
		}
		if !goOn {
			return
		}
	}
	s.release()
}

// readMore reads the next notifications, and reports whether to go on. If the first one has
// failed before, it reads this one only, since it may fail again.
func (s *sending) readMore(life context.Context) bool {
	limit := maxRead
	if s.trouble.Of != 0 && (!s.d.hasDelays || s.trouble.Delayed == s.trouble.Of) {
		limit = 1
	}
	all, end, err := s.d.queue.Read(life, s.claim, limit)
	if err != nil {
		s.releaseAfter("read a log", err)
		return false
	}
	s.left += int(end - max(s.end, s.claim.Number))
	if s.known, s.end = all, end; len(all) > 0 {
		return true
	}
	left, ok := s.complete(life, module.Done{To: end}) // the rest was cut
	return ok && left > 0
}

// sendFirst sends, drops or postpones the first notification, and reports whether to go
// on.
func (s *sending) sendFirst(life context.Context) bool {
	n := s.known[0]
	m, err := s.readMeta(n)
	if s.target != nil && (s.target.Inactive || n.Priority == module.CountsOnly && s.target.Kind.NeedsAck()) {
		s.readAt = time.Time{} // since then, it may have been activated, or set again and invited
	}
	switch {
	case err != nil:
		return s.drop(life, DropUnreadable)
	case !s.d.clock().Before(time.UnixMilli(m.Expires)):
		return s.drop(life, DropExpired)
	case n.Priority == module.CountsOnly && len(s.known) > 1: // they go when the next one is delivered
		s.counts, s.known = &n, s.known[1:]
		return true
	}
	if goOn := s.readTarget(life); s.target == nil {
		return goOn
	}
	switch {
	case s.target.Poster == nil:
		return true
	case s.target.Inactive && n.Priority != module.CountsOnly: // of a subscription that is replaced
		return s.drop(life, DropGone)
	case !s.takeTurn(life):
		return false
	case s.target.Inactive:
		return s.sendNow(life, n, m, nil)
	case n.Priority == module.CountsOnly:
		return s.sendCounts(life, n, m)
	}
	state := s.stateOf(life, s.eventOf(m))
	if state.Value.IsRead {
		return s.drop(life, DropRead)
	}
	if delay := s.delay(life, n, m); delay > 0 {
		s.trouble.Generation, s.trouble.Delayed = s.target.SetAt, n.Number
		s.postpone(delay)
		return false
	}
	return s.sendNow(life, n, m, state.Value.Counts)
}

func (s *sending) readMeta(n module.Notification) (m content.Meta, err error) {
	if n.Number != s.metaOf {
		if m, err = content.ReadMeta(n.Meta); err != nil {
			return m, err
		}
		s.meta, s.metaOf = m, n.Number
	}
	return s.meta, nil
}

// readTarget reads the pusher, unless the last read is fresh. The read is not cached: a cached
// list may lack a pusher that was just set. If the user has the pusher no more, or it cannot
// be read, target is nil, and readTarget reports whether to go on.
func (s *sending) readTarget(life context.Context) (goOn bool) {
	if s.target != nil && time.Since(s.readAt) <= fresh {
		return true
	}
	s.target, s.readAt = nil, time.Now()
	list, found := s.d.pushers.get(life, s.claim.User, maxAwait)
	if !found {
		list.Err = module.Unavailable(errNoResult)
	}
	if list.Err != nil && fault.KindOf(list.Err) != fault.Database {
		if life.Err() == nil {
			s.releaseAfter("read pushers", list.Err)
		}
		return false
	}
	for _, target := range s.d.readTargets(s.claim.User, list.Value) {
		if target.ID == s.claim.Pusher {
			s.setTarget(target)
			return true
		}
	}
	return s.dropAll(life)
}

func (s *sending) setTarget(target *channel.Target) {
	s.target, s.claim.Gate = target, target.Gate()
	if s.trouble.Generation < target.SetAt {
		s.trouble = trouble{Generation: target.SetAt}
	}
}

// try returns what is known before the next request.
func (s *sending) try() turns.Try {
	switch {
	case s.claim.Fails:
		return turns.RetryOfFailing
	case s.trouble.Attempts > 0:
		return turns.Retry
	}
	return turns.FirstTry
}

// takeTurn takes a turn for the pusher's gate, or postpones the pusher.
func (s *sending) takeTurn(life context.Context) bool {
	gate := s.target.Gate()
	if s.turn != nil && s.turn.Gate == gate {
		return true
	}
	s.leaveTurn()
	turn, delay := s.d.gates.admit(s.claim.User, gate, s.try())
	if turn == nil {
		s.postpone(delay)
		return false
	}
	s.turn = turn
	if turn.Ready == nil {
		return true
	}
	if err := s.keep(life); err != nil {
		s.releaseAfter("renew a claim", err)
		return false
	}
	return s.awaitTurn(life)
}

// maxAwait is how long a claimed pusher may wait for its turn. Then this host releases it,
// since another host may have a place.
const maxAwait = lease / 2

// awaitTurn waits until the turn has its place, or postpones the pusher.
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
	s.postpone(delay)
	return false
}

// leaveTurn ends a turn in which nothing was sent.
func (s *sending) leaveTurn() { s.endTurnAfter(channel.Answer{}) }

func (s *sending) endTurnAfter(a channel.Answer) {
	if s.turn == nil {
		return
	}
	result := turns.Neutral
	switch {
	case a.Outcome == "":
		result = turns.Unused
	case a.IsAlive():
		result = turns.Taken
	case a.Class == channel.ClassBlocked:
		result = turns.Blocked
	case a.Outcome == module.Failed && (a.Class == channel.ClassDNS || a.Class == channel.ClassRefused) && channel.IsNamedByUsers(s.turn.Gate):
		result = turns.Unreached // a server of the host's own is no sign that this host is cut off
	case a.Outcome == module.Failed, a.Outcome == module.Throttled, a.Outcome == module.Blocked:
		result = turns.Failed
		if a.Class == channel.ClassStatus {
			result = turns.Answered
		}
	}
	s.d.gates.end(s.turn, result)
	s.turn = nil
}

// delay returns how long to delay a notification. It asks the host once for each.
func (s *sending) delay(life context.Context, n module.Notification, m content.Meta) time.Duration {
	if !s.d.hasDelays || m.Rings(s.d.clock()) || s.trouble.Delayed == n.Number || s.hasCall() {
		return 0
	}
	delay, _ := s.d.delays.get(life, module.UserDevice{User: s.claim.User, Device: s.target.Device}, maxAwait)
	return min(delay, maxDelay-s.d.clock().Sub(time.UnixMilli(m.Added)))
}

// hasCall reports whether a call waits after the first notification.
func (s *sending) hasCall() bool {
	for _, n := range s.known[1:] {
		if m, err := content.ReadMeta(n.Meta); err == nil && m.Rings(s.d.clock()) {
			return true
		}
	}
	return false
}

func (s *sending) eventOf(m content.Meta) module.UserEvent {
	return module.UserEvent{User: s.claim.User, RoomID: m.Room, EventID: m.Event, Position: m.Position, Thread: m.Thread}
}

// askNext asks about the next notification while a request for the first one is under way.
func (s *sending) askNext() {
	if !s.d.hasUnread || len(s.known) < 2 || s.known[1].Priority == module.CountsOnly {
		return
	}
	if m, err := content.ReadMeta(s.known[1].Meta); err == nil {
		about := s.eventOf(m)
		s.asked = asked{about, time.Now(), s.d.states.add(about)}
	}
}

// stateOf returns the state of an event. Its counts are nil if they are unknown or
// unwanted.
func (s *sending) stateOf(life context.Context, about module.UserEvent) (state module.Result[module.UnreadState]) {
	if !s.d.hasUnread {
		return state
	}
	asked := s.asked.question
	if asked == nil || s.asked.about != about || time.Since(s.asked.at) > fresh {
		asked = s.d.states.add(about)
	}
	s.asked.question = nil
	state, found := asked.wait(life, beforeFor)
	if !found {
		state.Err = module.Unavailable(errNoResult)
	}
	if state.Err != nil {
		state.Value = module.UnreadState{}
	}
	if s.target.NoCounts {
		state.Value.Counts = nil
	}
	return state
}

// sendCounts sends counts without an event, unless the pusher already has them.
func (s *sending) sendCounts(life context.Context, n module.Notification, m content.Meta) bool {
	if s.target.NoCounts {
		return s.drop(life, DropCoalesced)
	}
	state := s.stateOf(life, module.UserEvent{User: s.claim.User})
	counts := state.Value.Counts
	switch {
	case fault.KindOf(state.Err) == fault.Unavailable:
		s.postpone(retryQueue)
		return false
	case counts == nil:
		return s.drop(life, DropCoalesced)
	}
	sent, err := s.d.queue.Sent(life, s.claim.User, s.claim.Pusher)
	if err != nil {
		s.releaseAfter("read which counts were sent", err)
		return false
	}
	if sent == s.target.Sent(*counts) {
		return s.drop(life, DropCoalesced)
	}
	return s.sendNow(life, n, m, counts)
}

func (s *sending) sendNow(life context.Context, n module.Notification, m content.Meta, counts *module.Counts) bool {
	if s.trouble.Of == n.Number && s.trouble.IDOnly {
		n.Text = ""
	}
	if err := s.keep(life); err != nil || s.turn == nil {
		s.releaseAfter("renew a claim", err)
		return false
	}
	s.askNext()
	p := s.request(life, m.Trace, func(ctx context.Context) channel.Answer {
		return s.target.Poster.Post(ctx, channel.Notification{Notification: n, Meta: m, Counts: counts})
	})
	if s.d.gates.isGone(s.target.Gate(), p.Answer, s.trouble, s.d.clock()) {
		p.Outcome = module.Gone
		return s.reject(life, p, n.Number)
	}
	s.endTurnAfter(p.Answer)
	switch p.Outcome {
	case module.Delivered:
		return s.delivered(life, m, counts, p.took)
	case "":
		if !p.isLost {
			s.release()
		}
		return false
	}
	return s.notDelivered(life, p, n.Number)
}

func (s *sending) delivered(life context.Context, m content.Meta, counts *module.Counts, took time.Duration) bool {
	d := module.Done{Answered: true}
	if counts != nil {
		d.Sent = s.target.Sent(*counts)
	}
	if m.Event != "" {
		s.checkAge(time.UnixMilli(m.Added), took)
		s.d.observer.Took(observe.DeliveryAge, "", max(0, s.d.clock().Sub(time.UnixMilli(m.Added))), true)
	}
	return s.remove(life, d)
}

// notDelivered decides what follows a failure of the first notification: another attempt, a
// drop, or a wait. It reports whether to go on sending.
func (s *sending) notDelivered(life context.Context, p posted, number int64) bool {
	now, last := s.d.clock(), time.Duration(0)
	if s.trouble.Last > 0 {
		last = now.Sub(time.UnixMilli(s.trouble.Last))
	}
	isWell, isCutOff := s.d.gates.state(s.target.Gate(), last)
	trouble, step := s.trouble.after(failure{
		Answer: p.Answer, Of: number, Gate: s.target.Gate(), IsWell: isWell && !isCutOff, Now: now,
	})
	trouble.Generation = s.target.SetAt
	if step == stepWait && (!isWell || isCutOff) { // does not count as an attempt
		trouble.Attempts = max(1, s.trouble.Attempts)
	}
	// At a gate that all users share, those who fail go behind others at all hosts.
	isShared := !channel.IsNamedByUsers(s.target.Gate())
	s.claim.Fails = s.claim.Fails || isShared && (p.Outcome == module.Failed || p.Outcome == module.Throttled)
	s.trouble = trouble
	switch step {
	case stepAgain:
		return true
	case stepDrop:
		if s.counts != nil {
			return s.drop(life, DropRefused)
		}
		s.d.dropped(DropRefused, 1)
		return s.remove(life, module.Done{Answered: true})
	}
	if isCutOff { // other hosts may reach the gateway
		s.postpone(retryQueue)
		return false
	}
	failedFor := now.Sub(time.UnixMilli(trouble.Since))
	s.postpone(p.RetryIn(trouble.Attempts, failedFor, rand.Float64()))
	return false
}

// drop drops the first notification. If counts stand before it, they are sent in its place.
func (s *sending) drop(life context.Context, reason DropReason) bool {
	s.d.dropped(reason, 1)
	if s.counts == nil {
		return s.remove(life, module.Done{})
	}
	counts := *s.counts
	counts.Number = s.known[0].Number
	s.known[0], s.counts, s.metaOf = counts, nil, 0
	s.left--
	return true
}

// remove removes the first notification, and counts before it. It reports whether there are more.
func (s *sending) remove(life context.Context, d module.Done) bool {
	s.left--
	if s.counts != nil {
		s.d.dropped(DropCoalesced, 1)
		s.counts = nil
		s.left--
	}
	d.To = s.known[0].Number + 1
	if len(s.known) > 1 { // the ones between were cut
		d.To = s.known[1].Number
	}
	s.trouble, s.claim.Fails = trouble{}, s.claim.Fails && !d.Answered
	left, ok := s.complete(life, d)
	for len(s.known) > 0 && s.known[0].Number < max(d.To, s.claim.Number) { // another host may have sent some
		s.known = s.known[1:]
	}
	return ok && left > 0
}

// dropAll drops what the pusher had to send before its list of pushers was read, and reports
// whether there is more.
func (s *sending) dropAll(life context.Context) bool {
	s.d.dropped(DropGone, max(0, s.left))
	s.known, s.counts, s.trouble = nil, nil, trouble{}
	left, ok := s.complete(life, module.Done{To: s.end})
	return ok && left > 0
}
