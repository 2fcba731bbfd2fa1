package redisqueue

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/stored"
)

// newNonce returns the nonce of a claim.
func newNonce() string { return rand.Text()[:13] }

// Append implements [module.DeliveryQueue].
func (q *Queue) Append(ctx context.Context, requests []module.AppendRequest) []module.Result[module.Appended] {
	results, calls, nonce := make([]module.Result[module.Appended], len(requests)), make([]*listedCall, len(requests)), newNonce()
	for i, a := range requests {
		calls[i] = q.appendCall(a, nonce, &results[i].Value)
	}
	q.Index.sendListed(ctx, q.writer.DoDurably, calls)
	for i, one := range calls {
		if results[i].Err = cmp.Or(one.err, one.unconfirmed); one.err == nil {
			names := make([]string, len(requests[i].Pushers))
			for n, r := range requests[i].Pushers {
				names[n] = r.Pusher
			}
			for _, e := range one.entries {
				q.Index.listings.set(e.user, e.gate, listing{e.place, names, e.isBehind})
			}
			continue
		}
		results[i] = module.Result[module.Appended]{Err: unlessUnreadable(one.err)}
	}
	return results
}

func (q *Queue) appendCall(a module.AppendRequest, nonce string, done *module.Appended) *listedCall {
	n := a.Notification
	head, _ := stored.LogEntry{Priority: byte(n.Priority), ID: n.ID, Room: n.Room}.Head()
	one, args := &listedCall{}, []any{head, n.Meta, n.Text, nonce, microseconds(a.Lease), a.MaxUserBytes, oneIf(a.Urgent), a.MaxClaims}
	for _, r := range a.Pushers {
		delay, wait := microseconds(r.Delay), r.Delay
		if r.Claim {
			delay, wait = -1, a.Lease
		}
		args = append(args, r.Pusher, stored.GateDigest(r.Gate), delay, r.Generation)
		e := requestAt(one.entries, r.Gate)
		if e == nil {
			e = &listRequest{user: a.User, gate: r.Gate, delay: wait}
			one.entries = append(one.entries, e)
		}
		// A host does not claim at a gate that fails. Most pushers there wait for their next
		// try, so a listing that is due now would make a look claim in vain.
		e.afterReply = e.afterReply || wait == 0 || q.Index.listings.at(a.User, r.Gate).isBehind
		e.delay = min(e.delay, wait)
	}
	one.call = appendTo.Call([]string{q.keys.UserLog(a.User)}, args...)
	one.command = one.call.Command()
	one.replied = func(reply []any) error { return readAppended(a, nonce, one, reply, done) }
	return one
}

func requestAt(entries []*listRequest, gate string) *listRequest {
	if i := slices.IndexFunc(entries, func(e *listRequest) bool { return e.gate == gate }); i >= 0 {
		return entries[i]
	}
	return nil
}

// readAppended reads the reply of appendScript, and what it means for the listings.
func readAppended(a module.AppendRequest, nonce string, one *listedCall, reply []any, done *module.Appended) error {
	if len(reply) != 4+3*len(a.Pushers) {
		return unavailable("append", fmt.Errorf("%d replies", len(reply)))
	}
	gates, _ := reply[3].(string)
	done.Again, done.Length, done.End = number(reply[0]) > 0, int(number(reply[1])), number(reply[2])
	done.Claims = make([]*module.Claim, len(a.Pushers))
	for _, e := range one.entries {
		if e.fails = strings.Contains(gates, ","+stored.GateDigest(e.gate)); e.fails {
			e.isListed = false // it is listed as a user that does not fail
		}
	}
	for i, r := range a.Pushers {
		kind, place, wait := number(reply[4+3*i]), number(reply[5+3*i]), time.Duration(number(reply[6+3*i]))*time.Microsecond
		e := requestAt(one.entries, r.Gate)
		switch kind {
		case 0:
			continue
		case 1:
			done.Claims[i] = &module.Claim{User: a.User, Pusher: r.Pusher, Gate: r.Gate, Number: place, Nonce: nonce, Fails: e.fails}
		case 3:
			done.Hastened = true
		}
		if wait < e.delay || e.afterReply && !e.waits {
			e.delay, e.isListed = max(0, wait), false
		}
		e.waits, e.isBehind = true, e.isBehind || kind != 1
	}
	one.entries = slices.DeleteFunc(one.entries, func(e *listRequest) bool { return e.afterReply && !e.waits })
	return nil
}

// number reads a number of a reply.
func number(reply any) int64 {
	n, _ := reply.(int64)
	return n
}
