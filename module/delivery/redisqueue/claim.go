package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// sentLasts is how long a pusher's last counts are kept, also if the pusher is gone. After that a
// pusher may get the same counts once more.
const sentLasts = 24 * time.Hour

// Claim implements [module.DeliveryQueue]. Each request has a nonce of its own: a user who is
// listed in two shards may be in two requests, and the second one must not claim again.
func (q *Queue) Claim(ctx context.Context, requests []module.ClaimRequest) []module.Result[module.Claimed] {
	results, nonces := make([]module.Result[module.Claimed], len(requests)), make([]string, len(requests))
	calls, numbers, commands := []*redisclient.Call{}, []int{}, []*redisclient.Command{}
	known := make([]*listing, len(requests))
	var settlements []settlement
	for i, r := range requests {
		known[i] = q.known(r)
		if r.Limit == 0 {
			settlements = append(settlements, known[i].settlement(r, 0, r.Fails)...)
			continue
		}
		nonces[i] = newNonce()
		call := q.claimCall(r, nonces[i])
		calls, numbers, commands = append(calls, call), append(numbers, i), append(commands, call.Command())
	}
	for n, err := range q.writer.Do(ctx, commands...) {
		i := numbers[n]
		var reply []any
		if err == nil {
			reply, err = sliceOf(calls[n])
		}
		var s []settlement
		if err == nil {
			results[i].Value, s, err = q.readClaimed(ctx, requests[i], known[i], nonces[i], reply)
		}
		if results[i].Err = unlessUnreadable(err); fault.KindOf(results[i].Err) == fault.Database {
			s = known[i].settlement(requests[i], remove, requests[i].Fails)
		}
		settlements = append(settlements, s...)
	}
	q.Index.settle(ctx, settlements)
	for i, r := range requests {
		q.Index.listings.set(r.User, r.Gate, *known[i])
	}
	return results
}

// known returns what the host knows of the user of a request.
func (q *Queue) known(r module.ClaimRequest) *listing {
	l := q.Index.listings.at(r.User, r.Gate)
	l.names = nil
	for _, p := range r.Pushers {
		l.names = append(l.names, p.Pusher)
	}
	return &l
}

// settlement settles the listing that a look took, if it is known.
func (l *listing) settlement(r module.ClaimRequest, delay time.Duration, fails bool) []settlement {
	if l.place.score == 0 {
		return nil
	}
	return []settlement{{user: r.User, gate: r.Gate, place: &l.place, delay: delay, fails: fails}}
}

// unlessUnreadable returns another error than that of a script on a log that cannot be read: its key
// has another type, or Lua cannot calculate with what it has read.
func unlessUnreadable(err error) error {
	var refusal redis.Error
	if redisclient.IsWrongType(err) || errors.As(err, &refusal) && strings.Contains(refusal.Error(), "attempt to ") {
		return fault.Wrap(fault.Database, "The stored notifications cannot be read.", err)
	}
	return err
}

func (q *Queue) claimCall(r module.ClaimRequest, nonce string) *redisclient.Call {
	args := []any{nonce, microseconds(r.Lease), stored.GateDigest(r.Gate), r.Limit, r.Read}
	for _, p := range r.Pushers {
		args = append(args, p.Pusher, oneIf(p.Gate == r.Gate))
	}
	return claim.Call([]string{q.keys.UserLog(r.User)}, args...)
}

// readClaimed reads the reply of claimScript, and says how to settle the listing that the
// look took, if it is too early or too late.
func (q *Queue) readClaimed(
	ctx context.Context, r module.ClaimRequest, l *listing, nonce string, reply []any,
) (claimed module.Claimed, s []settlement, err error) {
	if len(reply) < 4 {
		return claimed, nil, unavailable("claim", fmt.Errorf("%d replies", len(reply)))
	}
	claimed.End, claimed.Unknown = number(reply[0]), number(reply[1]) > 0
	left, gates := time.Duration(number(reply[2]))*time.Microsecond, text(reply[3])
	fails := strings.Contains(gates, ","+stored.GateDigest(r.Gate))
	for _, pusher := range reply[4:] {
		fields, _ := pusher.([]any)
		if len(fields) != 6 {
			return claimed, nil, unavailable("claim", fmt.Errorf("%d replies", len(fields)))
		}
		one := module.ClaimedPusher{Claim: &module.Claim{
			User: r.User, Pusher: text(fields[0]), Gate: r.Gate, Number: number(fields[1]), Nonce: nonce, Fails: fails,
		}}
		one.Trouble.Generation, one.Trouble.Text = stored.ReadTroubleText(text(fields[2]))
		one.Waiting = int(number(fields[3]))
		numbers, _ := fields[4].([]any)
		pairs, _ := fields[5].([]any)
		one.Notifications = notifications(pairs, func(i int) int64 { return number(numbers[i]) })
		if len(one.Notifications) == 0 && one.Claim.Number < claimed.End {
			if one.Notifications, _, err = q.Read(ctx, one.Claim, r.Read); err != nil {
				return claimed, nil, err
			}
		}
		claimed.Pushers = append(claimed.Pushers, one)
	}
	switch isListed, claims := number(reply[2]) >= 0, len(claimed.Pushers) > 0; {
	case isListed && !claims:
		s = l.settlement(r, left, fails)
	case isListed && left < r.Lease:
		s = l.settlement(r, max(left, r.Rest), fails)
	case claims && fails != r.Fails:
		s = l.settlement(r, max(r.Rest, r.Lease/2), fails)
	case !claims && !claimed.Unknown: // nothing is left
		s = l.settlement(r, remove, fails)
	}
	return claimed, s, nil
}

// notifications reads pairs of an entry and a text.
func notifications(pairs []any, numberOf func(int) int64) (all []module.Notification) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if e, found := stored.ReadLogEntry(text(pairs[i])); found {
			all = append(all, notification(numberOf(i/2), e, text(pairs[i+1])))
		}
	}
	return all
}

func notification(number int64, e stored.LogEntry, text string) module.Notification {
	return module.Notification{
		Number: number, ID: e.ID, Priority: module.Priority(e.Priority), Room: e.Room, Added: time.UnixMilli(e.Added), Meta: e.Meta, Text: text,
	}
}

func text(reply any) string {
	s, _ := reply.(string)
	return s
}

// readAtOnce is how many numbers are read before it is known which ones a pusher has.
const readAtOnce = 16

// Read implements [module.DeliveryQueue]. Most pushers have all numbers from their place on, so
// it reads some of these with what the pusher has, and the right ones if that is something else.
// If one of them is not there, the pusher was cut meanwhile, or the log is damaged: it reads all.
func (q *Queue) Read(ctx context.Context, c *module.Claim, limit int) (all []module.Notification, end int64, err error) {
	key := q.keys.UserLog(c.User)
	numbers := stored.Kept{}.From(c.Number, math.MaxInt64, min(limit, readAtOnce))
	values, err := q.readNumbers(ctx, key, []string{stored.LogField, stored.KeptField(c.Pusher)}, numbers)
	if err != nil {
		return nil, 0, err
	}
	head, found := stored.ReadLogHead(text(values[0]))
	if !found {
		return nil, 0, nil
	}
	kept, _ := stored.ReadKept(text(values[1]))
	has := kept.From(c.Number, head.Next, limit)
	if values = values[2:]; len(has) <= len(numbers) && slices.Equal(has, numbers[:len(has)]) {
		values = values[:2*len(has)]
	} else if values, err = q.readNumbers(ctx, key, nil, has); err != nil {
		return nil, 0, err
	}
	if all = notifications(values, func(i int) int64 { return has[i] }); len(all) == len(has) {
		return all, head.Next, nil
	}
	log, err := q.Log(ctx, c.User)
	if at := slices.IndexFunc(log.Pushers, func(p module.LogPusher) bool { return p.Pusher == c.Pusher }); at >= 0 {
		kept.Numbers, kept.Place = log.Pushers[at].Waiting, math.MaxInt64
	}
	all = slices.DeleteFunc(log.Notifications, func(n module.Notification) bool { return !kept.Has(c.Number, n.Number) })
	return all[:min(limit, len(all))], head.Next, err
}

// readNumbers reads fields of a log, then the entries and texts of numbers.
func (q *Queue) readNumbers(ctx context.Context, key string, fields []string, numbers []int64) ([]any, error) {
	for _, n := range numbers {
		fields = append(fields, stored.EntryField(n), stored.TextField(n))
	}
	if len(fields) == 0 {
		return nil, nil
	}
	var values *redis.SliceCmd
	if err := q.read(ctx, readFields(key, &values, fields)); err != nil {
		return nil, err
	}
	return values.Val(), nil
}

func readFields(key string, reply **redis.SliceCmd, fields []string) *redisclient.Command {
	return command(key, reply, func(ctx context.Context, to redisclient.Sender) *redis.SliceCmd { return to.HMGet(ctx, key, fields...) })
}

// Complete implements [module.DeliveryQueue].
func (q *Queue) Complete(ctx context.Context, c *module.Claim, d module.Done) (left int, err error) {
	answered := ""
	if d.Answered {
		answered = stored.GateDigest(c.Gate)
	}
	l := q.Index.listings.at(c.User, c.Gate)
	args := []any{c.Pusher, c.Nonce, c.Number, d.To, stored.TroubleText(d.Trouble.Generation, d.Trouble.Text), answered, stored.GateDigest(c.Gate)}
	if len(l.names) <= maxOthers && l.place.score > 0 {
		for _, name := range l.names {
			if name != c.Pusher {
				args = append(args, name)
			}
		}
	}
	one := newListedCall(complete.Call([]string{q.keys.UserLog(c.User)}, args...), nil)
	if d.Sent != "" {
		one.command = withSent(one.command, q.keys.Sent(c.User, c.Pusher), d.Sent)
	}
	if err := q.end(ctx, one); err != nil {
		return 0, err
	}
	reply, err := sliceOf(one.call)
	if err != nil || len(reply) != 2 {
		return 0, unavailable("complete", fmt.Errorf("%d replies: %w", len(reply), err))
	}
	if left = int(number(reply[0])); left < 0 {
		return 0, module.ErrFenced
	}
	if number(reply[1]) == 1 && l.place.score > 0 {
		q.Index.removals.add(nil, settlement{user: c.User, gate: c.Gate, place: &l.place, delay: remove}, removeAfter, q.Index.settle)
	}
	c.Number = d.To
	return left, nil
}

// maxOthers bounds the pushers that a completion looks at, to find out whether anything is left at
// the gate. For a user with more, a look finds it out.
const maxOthers = 16

// withSent returns a command that first stores what a pusher got.
func withSent(c *redisclient.Command, key, sent string) *redisclient.Command {
	queue := c.Queue
	return &redisclient.Command{Key: key, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		set, check := to.Set(ctx, key, sent, sentLasts), queue(ctx, to)
		return func() error { return cmp.Or(set.Err(), check()) }
	}}
}

// Sent implements [module.DeliveryQueue].
func (q *Queue) Sent(ctx context.Context, user mxid.UserID, pusher string) (string, error) {
	key := q.keys.Sent(user, pusher)
	var sent *redis.StringCmd
	err := q.read(ctx, command(key, &sent, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd { return to.Get(ctx, key) }))
	if err != nil {
		return "", err
	}
	return sent.Val(), nil
}

// Postpone implements [module.DeliveryQueue]. The listing may say the end of the claim, which
// is later than the delay, so Postpone lists the user again.
func (q *Queue) Postpone(ctx context.Context, c *module.Claim, delay time.Duration, trouble module.Trouble, fails bool) error {
	call := q.postponeCall(c, delay, stored.GateDigest(c.Gate), stored.TroubleText(trouble.Generation, trouble.Text), fails)
	return q.end(ctx, newListedCall(call, fencedUnlessOne, &listRequest{user: c.User, gate: c.Gate, delay: delay, fails: fails}))
}

// Renew implements [module.DeliveryQueue].
func (q *Queue) Renew(ctx context.Context, c *module.Claim, lease time.Duration, fails bool) error {
	one := newListedCall(q.postponeCall(c, lease, "", "", fails), fencedUnlessOne)
	q.Index.sendListed(ctx, q.writer.Do, []*listedCall{one})
	return one.err
}

func (q *Queue) postponeCall(c *module.Claim, delay time.Duration, digest, trouble string, fails bool) *redisclient.Call {
	marked := ""
	if fails {
		marked = stored.GateDigest(c.Gate)
	}
	return postpone.Call([]string{q.keys.UserLog(c.User)}, c.Pusher, c.Nonce, c.Number, microseconds(delay), digest, trouble, marked)
}

func fencedUnlessOne(reply []any) error {
	if number(reply[0]) != 1 {
		return module.ErrFenced
	}
	return nil
}

// Log implements [module.DeliveryQueue].
func (q *Queue) Log(ctx context.Context, user mxid.UserID) (log module.Log, err error) {
	key := q.keys.UserLog(user)
	var all *redis.MapStringStringCmd
	if err := q.read(ctx, command(key, &all, func(ctx context.Context, to redisclient.Sender) *redis.MapStringStringCmd {
		return to.HGetAll(ctx, key)
	})); err != nil {
		return log, err
	}
	head, found := stored.ReadLogHead(all.Val()[stored.LogField])
	if !found {
		return log, nil
	}
	log.Bytes, log.Failing, log.Cuts = head.Bytes, head.Failing, head.Cuts
	var numbers []int64
	for field, value := range all.Val() {
		if number, isEntry := stored.ReadEntryField(field); isEntry {
			if e, found := stored.ReadLogEntry(value); found {
				log.Notifications = append(log.Notifications, notification(number, e, all.Val()[stored.TextField(number)]))
				numbers = append(numbers, number)
			}
		}
	}
	slices.SortFunc(log.Notifications, func(a, b module.Notification) int { return cmp.Compare(a.Number, b.Number) })
	slices.Sort(numbers)
	for field, value := range all.Val() {
		if s, found := stored.ReadPusherState(value); found && stored.IsPusherField(field) {
			kept, _ := stored.ReadKept(all.Val()[stored.KeptField(field)])
			log.Pushers = append(log.Pushers, module.LogPusher{
				Pusher: field, Number: s.Number, Waiting: waitingOf(s, kept, numbers), Claimed: s.IsClaimed(), Due: time.UnixMicro(s.Until),
				Trouble: module.Trouble{Generation: s.Generation, Text: s.Trouble},
			})
		}
	}
	slices.SortFunc(log.Pushers, func(a, b module.LogPusher) int { return strings.Compare(a.Pusher, b.Pusher) })
	return log, nil
}

// waitingOf returns the numbers of a log that a pusher has before it.
func waitingOf(s stored.PusherState, kept stored.Kept, numbers []int64) (waiting []int64) {
	first, _ := slices.BinarySearch(numbers, s.Number)
	for _, n := range numbers[first:] {
		if kept.Has(s.Number, n) {
			waiting = append(waiting, n)
		}
	}
	return waiting
}

// cutAtOnce bounds the numbers of a script.
const cutAtOnce = 100

// Cut implements [module.DeliveryQueue]. While it is under way, a pusher may move, or begin behind
// the last notification that the caller has read, or with it: what nobody had before it then,
// but the last one, nobody has later, unless another host has cut the log.
func (q *Queue) Cut(ctx context.Context, user mxid.UserID, log module.Log) (done bool, err error) {
	if len(log.Notifications) == 0 {
		return true, nil
	}
	last := log.Notifications[len(log.Notifications)-1].Number
	has := map[int64]bool{last: true}
	args := []any{log.Cuts, rand.Int64N(1 << 53), len(log.Pushers)}
	for _, p := range log.Pushers {
		for _, n := range p.Waiting {
			has[n] = true
		}
		text := ""
		if kept := keptOf(log.Notifications, p.Waiting); len(kept.Numbers) > 0 || kept.Place > p.Number {
			text = kept.Text()
		}
		args = append(args, p.Pusher, text)
	}
	var gone []int64
	for _, n := range log.Notifications {
		if !has[n.Number] {
			gone = append(gone, n.Number)
		}
	}
	for {
		some := gone[:min(cutAtOnce, len(gone))]
		for _, n := range some {
			args = append(args, n)
		}
		call := cut.Call([]string{q.keys.UserLog(user)}, args...)
		if err := q.writer.Do(ctx, call.Command())[0]; err != nil {
			return false, err
		}
		if n, err := call.Reply.Int64(); err != nil || n == 0 {
			return false, err
		}
		if gone = gone[len(some):]; len(gone) == 0 {
			return true, nil
		}
		args = append(args[:2:2], 0)
	}
}

// keptOf returns the stored form of what a pusher has: all notifications from a place on, at most
// the last one's, and some before it. From the place on, no number is missing.
func keptOf(all []module.Notification, waiting []int64) stored.Kept {
	i := len(all) - 1
	for ; i > 0 && all[i-1].Number == all[i].Number-1; i-- {
		if _, found := slices.BinarySearch(waiting, all[i-1].Number); !found {
			break
		}
	}
	kept := stored.Kept{Place: all[i].Number}
	first, _ := slices.BinarySearch(waiting, kept.Place)
	kept.Numbers = waiting[:first]
	return kept
}

// Forget implements [module.DeliveryQueue]. A look removes the listings.
func (q *Queue) Forget(ctx context.Context, user mxid.UserID) error {
	key := q.keys.UserLog(user)
	var removed *redis.IntCmd
	return q.writer.Do(ctx, command(key, &removed, func(ctx context.Context, to redisclient.Sender) *redis.IntCmd { return to.Unlink(ctx, key) }))[0]
}
