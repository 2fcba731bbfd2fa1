package delivery

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/fault"
)

const (
	maxCollected = 1000 // notifications that are sent at once; further ones wait for the next time

	// askAll bounds the time for each question to the host about what is sent at once: all of them
	// are asked within a lease.
	askAll = time.Second

	// retrySlow is the longest wait after an error of the host, about pushers that wait anyway.
	retrySlow = time.Minute
)

// collection is what waits for the pusher of a [channel.Collector], to be sent at once.
type collection struct {
	*sending
	note       string // of what was sent last
	id         string
	place, end int64 // of the notifications that it has
	all        []channel.Notification
	dropped    map[DropReason]int
}

// collect sends what waits at once, drops it or postpones it, and reports whether to go on.
//
// The trouble of the pusher has the end of the collection before it is sent. So after the death of the
// host another one sends the same again, with the same id, which follows from the pusher's place.
func (s *sending) collect(life context.Context) bool {
	if goOn := s.readTarget(life); s.target == nil {
		return goOn
	}
	if s.target.Collector == nil { // it was set again, with another kind
		return true
	}
	if !s.takeTurn(life) {
		return false
	}
	note, err := s.d.queue.Sent(life, s.claim.User, s.claim.Pusher)
	if err != nil {
		s.releaseAfter("read what was sent", err)
		return false
	}
	c := &collection{sending: s, note: note, place: s.claim.Number, dropped: map[DropReason]int{}}
	switch {
	case s.trouble.End == 0 && c.isTooSoon(life), !c.read(life):
		return false
	case len(c.all) == 0:
		return c.complete(life, module.Done{})
	}
	if wait := c.wait(life); wait > 0 {
		s.postpone(wait)
		return false
	}
	if err := s.keep(life); err != nil {
		s.releaseAfter("renew a claim", err)
		return false
	}
	isConfirmed, err := c.isConfirmed(life)
	switch {
	case err != nil:
		return c.postponeAfter(life, "confirm that a pusher is the user's", err)
	case !isConfirmed:
		isStopped := s.isLimited()
		s.leaveTurn() // the gateway has not answered
		return s.removeRejected(life, posted{Answer: channel.Answer{Outcome: module.Gone, Class: channel.ClassStatus}}, c.place, isStopped)
	}
	return c.send(life)
}

func (c *collection) isConfirmed(life context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(life, maxAwait)
	defer cancel()
	return c.target.Collector.Confirm(ctx)
}

// isTooSoon postpones the collection if its channel wants a pause, and the user has read nothing of
// what was sent last.
func (c *collection) isTooSoon(life context.Context) bool {
	wait, until := c.target.Collector.Pause(c.note, c.d.clock())
	if wait <= 0 {
		return false
	}
	if c.d.hasUnread && len(until) > 0 {
		read, err := c.areRead(life, until)
		switch {
		case err != nil:
			c.postponeAfter(life, "read which events are read", err)
			return true
		case slices.Contains(read, true):
			return false
		}
		wait = min(wait, c.d.channels.Delay(c.target.Kind)) // the user may read it at any time
	}
	c.postpone(wait)
	return true
}

// postponeAfter makes the pusher due within a minute, after an error of the host.
func (c *collection) postponeAfter(life context.Context, doing string, err error) bool {
	if life.Err() != nil {
		c.release()
		return false
	}
	c.d.failures.add(doing, err)
	c.postpone(retrySlow/2 + rand.N(retrySlow/2))
	return false
}

// areRead returns which events are read. Events with unreadable counts are unread.
func (c *collection) areRead(life context.Context, events []content.Meta) (read []bool, err error) {
	read = make([]bool, len(events))
	if !c.d.hasUnread {
		return read, nil
	}
	var questions []*question[module.Result[module.UnreadState]]
	for _, m := range events {
		questions = append(questions, c.d.states.add(c.eventOf(m)))
	}
	ctx, cancel := context.WithTimeout(life, askAll)
	defer cancel()
	for i, q := range questions {
		state, found := q.wait(ctx, askAll)
		switch {
		case !found:
			return nil, module.Unavailable(errNoResult)
		case state.Err != nil && fault.KindOf(state.Err) != fault.Database:
			return nil, state.Err
		}
		read[i] = state.Err == nil && state.Value.IsRead
	}
	return read, nil
}

// read reads what waits, and leaves out what needs not be sent.
func (c *collection) read(life context.Context) (ok bool) {
	waiting, end := c.known, c.sending.end
	if len(waiting) == 0 || len(waiting) < c.left { // otherwise the claim came with all
		var err error
		if waiting, end, err = c.d.queue.Read(life, c.claim, maxCollected); err != nil {
			c.releaseAfter("read a log", err)
			return false
		}
	}
	if c.known, c.sending.end, c.end = nil, end, end; len(waiting) == maxCollected {
		c.end = waiting[maxCollected-1].Number + 1
	}
	if len(waiting) > 0 {
		c.id = collectionID(c.claim.Pusher, c.place, waiting[0].ID)
	}
	if c.trouble.End > 0 { // what a host has begun to send
		c.end = min(c.end, c.trouble.End)
	}
	var events []content.Meta
	for _, n := range waiting {
		meta, err := content.ReadMeta(n.Meta)
		switch {
		case n.Number >= c.end:
		case err != nil:
			c.dropped[DropUnreadable]++
		case n.Priority == module.CountsOnly:
		case !c.d.clock().Before(time.UnixMilli(meta.Expires)):
			c.dropped[DropExpired]++
		default:
			c.all, events = append(c.all, channel.Notification{Notification: n, Meta: meta}), append(events, meta)
		}
	}
	read, err := c.areRead(life, events)
	if err != nil {
		return c.postponeAfter(life, "read which events are read", err)
	}
	c.drop(DropRead, read)
	muted, err := c.areMuted(life)
	if err != nil {
		return c.postponeAfter(life, "read push rules", err)
	}
	c.drop(DropMuted, muted)
	return true
}

// areMuted returns which notifications the user's push rules want no more. Unreadable rules mute none.
func (c *collection) areMuted(life context.Context) (muted []bool, err error) {
	if len(c.all) == 0 {
		return nil, nil
	}
	rules, found := c.d.rules.get(life, c.claim.User, askAll)
	switch {
	case !found:
		return nil, module.Unavailable(errNoResult)
	case fault.KindOf(rules.Err) == fault.Database:
		return make([]bool, len(c.all)), nil
	case rules.Err != nil:
		return nil, rules.Err
	}
	return c.target.Collector.Muted(rules.Value.Rules, c.all), nil
}

// drop leaves out some notifications.
func (c *collection) drop(reason DropReason, isDropped []bool) {
	var left []channel.Notification
	for i, one := range c.all {
		if !isDropped[i] {
			left = append(left, one)
		}
	}
	c.dropped[reason], c.all = len(c.all)-len(left), left
}

// collectionID returns the id of what a pusher sends next, from its place in the log and the id of
// the first notification there: a log that begins anew may have the same numbers.
func collectionID(pusher string, place int64, first string) string {
	return content.Digest(pusher, strconv.FormatInt(place, 10), first)
}

// wait returns how long to wait until the oldest notification is old enough, or because the user is
// active. It asks the host about that once.
func (c *collection) wait(life context.Context) time.Duration {
	if c.trouble.End > 0 {
		return 0
	}
	if wait := time.UnixMilli(c.all[0].Meta.Added).Add(c.d.channels.Delay(c.target.Kind)).Sub(c.d.clock()); wait > 0 {
		return wait
	}
	if !c.d.hasDelays || c.trouble.Delayed == c.place {
		return 0
	}
	wait, _ := c.d.delays.get(life, module.UserDevice{User: c.claim.User}, askAll)
	if wait > 0 {
		c.trouble.Generation, c.trouble.Delayed = c.target.SetAt, c.place
	}
	return min(wait, maxDelay)
}

// send composes and sends the collection, and reports whether to go on.
func (c *collection) send(life context.Context) bool {
	isShort := c.trouble.IDOnly && c.trouble.Of == c.place
	send, err := c.target.Collector.Compose(c.id, c.all, isShort)
	if err != nil {
		c.d.failures.add("compose a mail", err)
		c.dropped[DropRefused] += len(c.all)
		return c.complete(life, module.Done{})
	}
	c.trouble.Generation, c.trouble.End = c.target.SetAt, c.end
	if _, ok := c.sending.complete(life, module.Done{To: c.place}); !ok || c.claim.Number != c.place {
		return ok // another host has sent it meanwhile
	}
	if err := c.keep(life); err != nil {
		c.releaseAfter("renew a claim", err)
		return false
	}
	p := c.request(life, "", send) // it has no span: it is about many events, hours after them
	if p.Outcome == module.Failed || p.Outcome == module.Blocked {
		c.d.failures.report(c.target.Collector.Delayed(), "send a mail", p.Err)
	}
	if p.Outcome == module.Gone {
		c.trouble.End = endFailed
		return c.reject(life, p, c.place)
	}
	c.endTurnAfter(p.Answer)
	switch p.Outcome {
	case module.Delivered:
		return c.complete(life, module.Done{Answered: true, Sent: c.target.Collector.Note(c.note, c.all, c.d.clock())})
	case module.Unfit:
		trouble, step := c.trouble.after(failure{Answer: p.Answer, Of: c.place})
		if step == stepAgain {
			c.trouble = trouble
			return true
		}
		c.dropped[DropRefused] += len(c.all)
		return c.complete(life, module.Done{Answered: true})
	case "":
		if !p.isLost {
			c.release()
		}
		return false
	}
	c.trouble.End = endFailed
	return c.notDelivered(life, p, c.place)
}

// complete removes what the collection was about.
func (c *collection) complete(life context.Context, d module.Done) bool {
	for reason, n := range c.dropped {
		c.d.dropped(reason, n)
	}
	d.To = max(c.end, c.place)
	c.left = max(0, c.left-len(c.all))
	c.trouble, c.claim.Fails = trouble{}, c.claim.Fails && !d.Answered
	left, ok := c.sending.complete(life, d)
	return ok && left > 0
}
