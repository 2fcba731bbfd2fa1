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

// dataset is one kind of stored data: the rules or the pushers of a user. Clients share some entries. Each client
// also has own entries, with ids that are never used twice, so that no later change hides a lost one.
type dataset struct {
	shared func(*randomClient) request         // makes up a request for a shared entry
	set    func(*randomClient, string) request // adds or changes an own entry
	remove func(*randomClient, string) request // deletes an own entry
	all    func(*randomClient) request         // reads everything
}

// Own rules have the kind room; shared rules have other kinds.
var ruleDataset = dataset{
	nextForRules,
	func(a *randomClient, id string) request { return a.putAt(pushrule.Room, id, pushrule.Position{}) },
	func(a *randomClient, id string) request { return a.removeAt(pushrule.Room, id) },
	(*randomClient).readAll,
}

// Own pushers have the app "own".
var pusherDataset = dataset{
	nextForPushers,
	func(a *randomClient, id string) request { return a.setPusherAt(ownKey(id)) },
	func(a *randomClient, id string) request { return a.deletePusherAt(ownKey(id)) },
	(*randomClient).listPushers,
}

func ownKey(id string) pusher.Key { return pusher.Key{AppID: "own", Pushkey: id} }

func ownID(a *randomClient) string { return fmt.Sprintf("own-%d-%d", a.number, a.sent) + a.user }

type chaosUser struct {
	name    string
	dataset *dataset
	exists  atomic.Bool  // a read of the whole set has created the rules
	changed atomic.Int64 // sending time of a recent successful change
}

type chaosClient struct {
	randomClient
	of      *chaosUser
	client  int // among all clients
	hosts   []*host
	start   time.Time
	mine    []string // ids of own entries
	history []porcupine.Operation

	// inDoubt reports whether a change had no answer and no read followed. Otherwise an outage would leave more
	// open changes than the check can handle.
	inDoubt bool
}

// maxPause is the longest wait between two requests. Longer waits would make histories too long to check.
const maxPause = 30 * time.Millisecond

// A client hangs up once in so many changes.
const hangUps = 200

func (p *chaosClient) play(ctx context.Context) {
	for ctx.Err() == nil {
		p.turn()
		_ = sleep(ctx, rand.N(maxPause))
	}
}

// turn sends one request. A failed read is part of the history only if it may have created the rules.
func (p *chaosClient) turn() {
	r, id := p.choose()
	p.sent++
	creates := r.path == "/pushrules/"
	mayCreate := creates && !p.of.exists.Load()
	ctx := context.Background()
	if r.method != http.MethodGet && p.random.IntN(hangUps) == 0 {
		ctx = untilSent(ctx)
	}
	o := p.send(ctx, one(&p.randomClient, p.hosts...), r)
	isRead, failed := r.method == http.MethodGet, o.Output == unknown
	if !isRead || !failed || mayCreate {
		p.history = append(p.history, o)
	}
	if id != "" && o.Output != done { // the client does not change it again, whatever its outcome
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

// choose returns a random request. id is set for a change of an own entry.
func (p *chaosClient) choose() (r request, id string) {
	switch {
	case p.inDoubt:
		return p.of.dataset.all(&p.randomClient), ""
	case p.of.exists.Load() && p.random.IntN(5) < 2:
		return p.own()
	}
	return p.of.dataset.shared(&p.randomClient), ""
}

// own returns a change of an own entry. A client has few own entries, so that each changes several times.
func (p *chaosClient) own() (r request, id string) {
	if n := len(p.mine); n < 2 || n < 5 && p.random.IntN(3) == 0 {
		id = ownID(&p.randomClient)
		p.mine = append(p.mine, id)
		return p.of.dataset.set(&p.randomClient, id), id
	}
	n := p.random.IntN(len(p.mine))
	id = p.mine[n]
	if p.random.IntN(2) == 0 {
		return p.of.dataset.set(&p.randomClient, id), id
	}
	p.mine = slices.Delete(p.mine, n, n+1)
	return p.of.dataset.remove(&p.randomClient, id), id
}

func (p *chaosClient) send(ctx context.Context, h *host, r request) porcupine.Operation {
	o := porcupine.Operation{ClientId: p.client, Input: r, Call: int64(time.Since(p.start))}
	o.Output = h.send(ctx, r)
	o.Return = int64(time.Since(p.start))
	return o
}
