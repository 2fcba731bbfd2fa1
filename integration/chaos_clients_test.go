package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// estate is one of the two things that are stored for a user. Part of it all
// clients of the user share; of the rest each changes only what it made itself,
// under ids that are never used again: what is lost of that, no later change
// hides.
type estate struct {
	shared func(*actor) request         // makes up a request to what all share
	set    func(*actor, string) request // adds or changes what is the client's own
	remove func(*actor, string) request // deletes that
	all    func(*actor) request         // reads everything
}

// ruleEstate is the push rules. Own rules are of the kind room; the others do not
// have that kind.
var ruleEstate = estate{
	nextForRules,
	func(a *actor, id string) request { return a.putAt(pushrule.Room, id, pushrule.Position{}) },
	func(a *actor, id string) request { return a.removeAt(pushrule.Room, id) },
	(*actor).readAll,
}

// pusherEstate is the pushers. Own pushers are of the app "own".
var pusherEstate = estate{
	nextForPushers,
	func(a *actor, id string) request { return a.setPusherAt(ownKey(id)) },
	func(a *actor, id string) request { return a.deletePusherAt(ownKey(id)) },
	(*actor).listPushers,
}

func ownKey(id string) pusher.Key { return pusher.Key{AppID: "own", Pushkey: id} }

// ownID is a new id for something of the client.
func ownID(a *actor) string { return fmt.Sprintf("own-%d-%d", a.number, a.sent) + a.user }

// chaosUser is a user and what all clients of the user know.
type chaosUser struct {
	name    string
	estate  *estate
	exists  atomic.Bool  // whether the whole was read once, which creates the rules
	changed atomic.Int64 // when a change that succeeded was sent, one of the last
}

// player is a client of a user.
type player struct {
	actor
	of      *chaosUser
	client  int // among all players
	hosts   []*host
	start   time.Time
	mine    []string // the ids of what is the client's own
	history []porcupine.Operation

	// inDoubt is whether a change had no answer and nothing was read since. An
	// outage would otherwise leave more changes open than can be checked.
	inDoubt bool
}

// longestPause is how long a player waits between two requests at most: so long
// that the history of a fault is not too long to be checked.
const longestPause = 30 * time.Millisecond

// hangUps is of how many changes one is left without waiting for the answer.
const hangUps = 200

// play sends requests until the context ends.
func (p *player) play(ctx context.Context) {
	for ctx.Err() == nil {
		p.turn()
		_ = sleep(ctx, rand.N(longestPause))
	}
}

// turn sends one request. A read that fails is no part of the history, since it
// changes nothing, unless it may have created the rules.
func (p *player) turn() {
	r, id := p.choose()
	p.sent++
	creates := r.path == "/pushrules/"
	mayCreate := creates && !p.of.exists.Load()
	ctx := context.Background()
	if r.method != http.MethodGet && p.random.IntN(hangUps) == 0 {
		ctx = untilSent(ctx)
	}
	o := p.send(ctx, one(&p.actor, p.hosts...), r)
	isRead, failed := r.method == http.MethodGet, o.Output == unknown
	if !isRead || !failed || mayCreate {
		p.history = append(p.history, o)
	}
	if id != "" && o.Output != done { // whatever became of it, it stays as it is
		p.mine = slices.DeleteFunc(p.mine, func(known string) bool { return known == id })
	}
	switch {
	case failed:
		p.inDoubt = p.inDoubt || !isRead
	case isRead:
		p.inDoubt = false
		if creates {
			p.of.exists.Store(true)
		}
	case o.Output == done:
		p.of.changed.Store(o.Call)
	}
}

// choose makes up a request. For a change of something that is the client's own,
// id is its id.
func (p *player) choose() (r request, id string) {
	switch {
	case p.inDoubt:
		return p.of.estate.all(&p.actor), ""
	case p.of.exists.Load() && p.random.IntN(5) < 2:
		return p.own()
	}
	return p.of.estate.shared(&p.actor), ""
}

// own makes up a change of something that is the client's own, or a new one. It
// has a few, so that all are changed more than once.
func (p *player) own() (r request, id string) {
	if n := len(p.mine); n < 2 || n < 5 && p.random.IntN(3) == 0 {
		id = ownID(&p.actor)
		p.mine = append(p.mine, id)
		return p.of.estate.set(&p.actor, id), id
	}
	n := p.random.IntN(len(p.mine))
	id = p.mine[n]
	if p.random.IntN(2) == 0 {
		return p.of.estate.set(&p.actor, id), id
	}
	p.mine = slices.Delete(p.mine, n, n+1)
	return p.of.estate.remove(&p.actor, id), id
}

// send sends a request and returns it as a part of the history.
func (p *player) send(ctx context.Context, h *host, r request) porcupine.Operation {
	o := porcupine.Operation{ClientId: p.client, Input: r, Call: int64(time.Since(p.start))}
	o.Output = h.send(ctx, r)
	o.Return = int64(time.Since(p.start))
	return o
}
