package delivery

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/retry"
)

// How long a host waits between two looks for due pushers. Pushers that Notify claims
// need no look.
const (
	lookEvery  = time.Second
	lookSoon   = 50 * time.Millisecond // pushers were put off, and are soon due again
	lookGap    = 20 * time.Millisecond // the least wait
	retryQueue = time.Second           // after an error of the queue or the host

	// claimFor is how long a look waits for the claims of what it has found. Claims at a partition
	// of the queue that takes longer go on beside the next looks.
	claimFor = 100 * time.Millisecond
)

// What a look claims of a user.
const (
	claimPushers = 16 // at once; one of a user who fails, or at a closed gate
	claimRead    = 4  // notifications of each pusher
	claimStray   = 16 // pushers that the user may have no more

	// claimRest is the time until a host claims more of a user: by then, the first request hangs,
	// or was answered. No other host tries the user meanwhile.
	claimRest = hangAfter + 500*time.Millisecond
)

// look claims due pushers and sends for them, until ctx ends.
func (d *Delivery) look(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		timer := time.NewTimer(d.lookOnce(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-d.gates.wake:
		}
		timer.Stop()
		_ = retry.Sleep(ctx, time.Until(began.Add(lookGap)))
	}
}

// lookOnce claims due pushers and sends for them. It returns when to look again.
func (d *Delivery) lookOnce(ctx context.Context) (wait time.Duration) {
	wait = lookEvery/2 + rand.N(lookEvery/2)
	began := time.Now()
	allowed := map[string]module.GateLimit{}
	found, err := d.queue.Look(ctx, module.Look{Limit: d.gates.capacity(), Lease: lease, Gate: func(gate string) module.GateLimit {
		if !d.channels.Sends(gate) { // other hosts do
			return module.GateLimit{IsClosed: true}
		}
		allowed[gate] = d.gates.claimable(gate)
		return allowed[gate]
	}})
	if err != nil {
		if ctx.Err() == nil {
			d.failures.add("look for what is due", err)
		}
		return wait
	}
	isCutOff := d.gates.looked(found, allowed)
	d.mu.Lock()
	d.late, d.lookedAt = found.Late, began
	d.mu.Unlock()
	d.claimAll(ctx, found.Users)
	switch {
	case isCutOff: // other hosts send what is due
		return wait
	case found.More:
		return lookGap
	case d.gates.hasPutOff():
		return lookSoon
	}
	return wait
}

// claimAll claims the due pushers of users, by partitions, and begins to send. It returns
// after claimFor at the latest.
func (d *Delivery) claimAll(ctx context.Context, due []module.DueUser) {
	if len(due) == 0 {
		return
	}
	partitions := byPartition(ctx, d.queue, due, func(u module.DueUser) mxid.UserID { return u.User })
	ended := make(chan struct{}, len(partitions))
	for _, some := range partitions {
		started := d.start(func(life context.Context) {
			for chunk := range slices.Chunk(some, chunkUsers) {
				d.claimSome(life, chunk)
			}
			ended <- struct{}{}
		})
		if !started {
			ended <- struct{}{}
		}
	}
	timeout := time.NewTimer(claimFor)
	defer timeout.Stop()
	for range partitions {
		select {
		case <-ended:
		case <-timeout.C:
			return
		}
	}
}

// claimSome claims the due pushers of users of a partition of the queue, and begins to
// send.
func (d *Delivery) claimSome(life context.Context, due []module.DueUser) {
	readAt, read := time.Now(), claimRead
	if d.hasDelays { // before it delays a notification, a host needs to know whether a call follows
		read = maxRead
	}
	requests := make([]module.ClaimRequest, 0, len(due))
	var probing []module.DueUser
	for _, u := range due {
		if d.gates.mayProbe(u) {
			probing = append(probing, u)
		} else { // the user is due again at once
			requests = append(requests, module.ClaimRequest{DueUser: u})
		}
	}
	targets := d.targetsOf(life, probing)
	for _, u := range probing {
		of, known := targets[u.User]
		if !known { // the user is due again after the lease
			continue
		}
		r := module.ClaimRequest{DueUser: u, Lease: lease, Rest: claimRest, Limit: claimPushers, Read: read}
		if u.Fails || !d.gates.isOpen(u.Gate) {
			r.Limit = 1
		}
		for _, target := range of {
			r.Pushers = append(r.Pushers, module.PusherGate{Pusher: target.ID, Gate: target.Gate()})
		}
		requests = append(requests, r)
	}
	if len(requests) == 0 {
		return
	}
	claimedAt := time.Now()
	var all []*sending
	for i, result := range d.queue.Claim(retry.LeaveSilent(life), requests) {
		r, claimed := requests[i], result.Value
		if result.Err != nil {
			d.failures.add("claim what is due", result.Err)
			continue
		}
		if len(claimed.Pushers) == 0 && claimed.Unknown {
			all = append(all, d.claimStrays(life, r)...)
		}
		if len(claimed.Pushers) == claimPushers { // the user may have more
			d.gates.expectMore()
		}
		for _, p := range claimed.Pushers {
			s := d.newSendingOf(p, claimed.End, claimedAt)
			s.readAt = readAt
			if d.hasDelays && p.Trouble != (module.Trouble{}) { // run reads as many as it needs
				s.known = nil
			}
			if at := slices.IndexFunc(targets[r.User], func(t *channel.Target) bool { return t.ID == p.Claim.Pusher }); at >= 0 {
				s.setTarget(targets[r.User][at])
			}
			all = append(all, s)
		}
	}
	// Pushers without failures begin first: one of them should try a closed gate.
	slices.SortStableFunc(all, func(a, b *sending) int { return min(1, a.trouble.Attempts) - min(1, b.trouble.Attempts) })
	for _, s := range all {
		d.begin(s)
	}
}

// targetsOf returns the pushers of users that get notifications. It leaves out users whose
// pushers cannot be read now.
func (d *Delivery) targetsOf(ctx context.Context, due []module.DueUser) map[mxid.UserID][]*channel.Target {
	var users []mxid.UserID
	for _, u := range due {
		users = append(users, u.User)
	}
	slices.Sort(users)
	users = slices.Compact(users)
	targets := map[mxid.UserID][]*channel.Target{}
	for i, list := range d.pushersOf(ctx, users) {
		if list.Err != nil && fault.KindOf(list.Err) != fault.Database {
			d.failures.add("read pushers", list.Err)
			continue
		}
		targets[users[i]] = d.readTargets(users[i], list.Value)
	}
	return targets
}

func (d *Delivery) readTargets(user mxid.UserID, list pusher.List) (all []*channel.Target) {
	for _, p := range list.All() {
		if target, ok := d.channels.Read(user, p); ok {
			all = append(all, target)
		}
	}
	return all
}

// claimStrays claims pushers of the log that the request lacks. Their senders find out whether
// the user still has them.
func (d *Delivery) claimStrays(life context.Context, r module.ClaimRequest) (all []*sending) {
	log, err := d.queue.Log(life, r.User)
	if err != nil {
		d.failures.add("read a log", err)
		return nil
	}
	known := r.Pushers
	r.Pushers, r.Limit, r.Read = nil, claimStray, 1
	for _, p := range log.Pushers {
		if !slices.ContainsFunc(known, func(of module.PusherGate) bool { return of.Pusher == p.Pusher }) {
			r.Pushers = append(r.Pushers, module.PusherGate{Pusher: p.Pusher, Gate: r.Gate})
		}
	}
	claimedAt := time.Now()
	result := d.queue.Claim(life, []module.ClaimRequest{r})[0]
	if result.Err != nil {
		d.failures.add("claim what is due", result.Err)
		return nil
	}
	for _, p := range result.Value.Pushers {
		all = append(all, d.newSendingOf(p, result.Value.End, claimedAt))
	}
	return all
}

// begin sends for a claimed pusher, unless this host does so already.
func (d *Delivery) begin(s *sending) {
	switch {
	case d.claims.claimAgain(s.claimed):
	case s.target == nil || len(s.known) == 0: // run finds out what to do
		d.startOrRelease(s)
	default:
		d.beginInTurn(s)
	}
}

// beginInTurn sends for a claimed pusher when its turn comes, or postpones it.
func (d *Delivery) beginInTurn(s *sending) {
	turn, delay := d.gates.admit(s.claim.User, s.target.Gate(), s.try())
	if turn == nil {
		d.start(func(context.Context) { s.postpone(delay) })
		return
	}
	if s.turn = turn; !d.startOrRelease(s) {
		s.leaveTurn()
	}
}
