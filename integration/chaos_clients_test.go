package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// estate is one of the two things that are stored for a user. Part of it all
// clients of the user share; of the rest each changes only what it made itself,
// under ids that are never used again.
type estate interface {
	// shared makes up a request to what all share.
	shared(a *actor) request

	// own makes up a change of something that is the client's own, or a new one.
	// Mine are the ids of those that there are.
	own(a *actor, mine []string) (r request, id string)

	// all is the read of everything, and read takes its answer apart.
	all(a *actor) request
	read(answer string) (userState, error)

	// ids are those of what clients own, in order.
	ids(s *userState) []string

	// text is what is stored under an id, "" if nothing is.
	text(s *userState, id string) string

	remove(s *userState, id string)
}

// ownID is a new id for something of the client.
func ownID(a *actor) string { return fmt.Sprintf("own-%d-%d", a.number, a.sent) + a.user }

// wantsNew decides whether a client gets something new. It has a few things, so
// that all of them are changed more than once.
func wantsNew(a *actor, mine []string) bool {
	return len(mine) < 2 || len(mine) < 5 && a.random.IntN(3) == 0
}

// ruleEstate is the push rules. Own rules are those of the kind room; the others
// do not have that kind.
type ruleEstate struct{}

func (ruleEstate) shared(a *actor) request { return nextForRules(a) }

func (ruleEstate) own(a *actor, mine []string) (request, string) {
	if wantsNew(a, mine) {
		id := ownID(a)
		return a.putAt(pushrule.Room, id, a.beside(mine)), id
	}
	id := one(a, mine...)
	switch a.random.IntN(6) {
	case 0:
		return a.setEnabledAt(pushrule.Room, id), id
	case 1, 2:
		return a.setActionsAt(pushrule.Room, id), id
	case 3:
		return a.putAt(pushrule.Room, id, a.beside(mine)), id
	}
	return a.removeAt(pushrule.Room, id), id
}

// beside is a position relative to one of some rules, or none.
func (a *actor) beside(ids []string) pushrule.Position {
	if len(ids) == 0 {
		return pushrule.Position{}
	}
	id := one(a, ids...)
	return one(a, pushrule.Position{}, pushrule.Position{Before: id}, pushrule.Position{After: id})
}

func (ruleEstate) all(a *actor) request { return a.readAll() }

func (ruleEstate) read(answer string) (userState, error) {
	text, found := strings.CutPrefix(answer, `200 {"global":`)
	if !found {
		return userState{}, fmt.Errorf("no rules in %q", answer)
	}
	rules, err := pushrule.Read(strings.TrimSuffix(text, "}"))
	return userState{found: true, rules: rules}, err
}

func (ruleEstate) ids(s *userState) (ids []string) {
	for _, rule := range s.rules.List(pushrule.Room) {
		ids = append(ids, rule.ID)
	}
	return ids
}

func (ruleEstate) text(s *userState, id string) string {
	rule, found := s.rules.Rule(pushrule.Room, id)
	if !found {
		return ""
	}
	return string(rule.AppendJSON(nil, pushrule.Room))
}

func (ruleEstate) remove(s *userState, id string) { _ = s.rules.Delete(pushrule.Room, id) }

// pusherEstate is the pushers. Own pushers are those of the app "own".
type pusherEstate struct{}

func ownKey(id string) pusher.Key { return pusher.Key{AppID: "own", Pushkey: id} }

func (pusherEstate) shared(a *actor) request { return nextForPushers(a) }

func (pusherEstate) own(a *actor, mine []string) (request, string) {
	if wantsNew(a, mine) {
		id := ownID(a)
		return a.setPusherAt(ownKey(id)), id
	}
	id := one(a, mine...)
	return one(a, (*actor).setPusherAt, (*actor).deletePusherAt)(a, ownKey(id)), id
}

func (pusherEstate) all(a *actor) request { return a.listPushers() }

func (pusherEstate) read(answer string) (s userState, err error) {
	var body struct{ Pushers []json.RawMessage }
	if err := json.Unmarshal([]byte(strings.TrimPrefix(answer, "200 ")), &body); err != nil {
		return userState{}, fmt.Errorf("no pushers in %q: %w", answer, err)
	}
	for i, text := range body.Pushers {
		p, err := pusher.ReadStored(strings.TrimSuffix(string(text), "}") + fmt.Sprintf(`,"created":%d,"device_id":"","claim":{"number":0,"removes":0,"set_at":0}}`, i+1))
		if err != nil {
			return userState{}, err
		}
		s.pushers.Set(p)
	}
	return s, nil
}

func (pusherEstate) ids(s *userState) (ids []string) {
	for _, p := range s.pushers.All() {
		if p.AppID == "own" {
			ids = append(ids, p.Pushkey)
		}
	}
	return ids
}

func (pusherEstate) text(s *userState, id string) string {
	for _, p := range s.pushers.All() {
		if p.Key == ownKey(id) {
			return string(p.AppendJSON(nil))
		}
	}
	return ""
}

func (pusherEstate) remove(s *userState, id string) { s.pushers.Delete(ownKey(id)) }

// chaosUser is a user and what all clients of the user know.
type chaosUser struct {
	name    string
	estate  estate
	exists  atomic.Bool  // whether the whole was read once, which creates the rules
	changed atomic.Int64 // when a change that succeeded was sent, one of the last
	final   userState    // what is there at the end
}

// player is a client of a user.
type player struct {
	actor
	of      *chaosUser
	client  int // among all players
	hosts   []*host
	start   time.Time
	account account
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
	if id != "" {
		p.account.enter(p.of.estate, id, r, o.Output.(string))
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

// choose makes up a request. For a change of something that the client owns, id
// is its id.
func (p *player) choose() (r request, id string) {
	e := p.of.estate
	switch {
	case p.inDoubt:
		return e.all(&p.actor), ""
	case p.of.exists.Load() && p.random.IntN(5) < 2:
		return e.own(&p.actor, p.account.mine(e))
	}
	return e.shared(&p.actor), ""
}

// send sends a request and returns it as a part of the history.
func (p *player) send(ctx context.Context, h *host, r request) porcupine.Operation {
	o := porcupine.Operation{ClientId: p.client, Input: r, Call: int64(time.Since(p.start))}
	o.Output = h.send(ctx, r)
	o.Return = int64(time.Since(p.start))
	return o
}

// account is what one client did to what only it changes. What had no answer, or
// not the right one, it changes no more.
type account struct {
	there   userState           // what must be there
	past    map[string][]string // what was there under an id, from "" on, after each change
	unsure  map[string]bool     // the ids of changes without an answer
	refused map[string]string   // by id, the method of a change that should not have been refused
}

func newAccount() account {
	return account{
		there: userState{found: true}, past: map[string][]string{}, unsure: map[string]bool{}, refused: map[string]string{},
	}
}

// mine are the ids of what the client has.
func (a *account) mine(e estate) []string { return e.ids(&a.there) }

// enter notes the answer to a change.
func (a *account) enter(e estate, id string, r request, got string) {
	if a.past[id] == nil {
		a.past[id] = []string{""}
	}
	after := a.there
	switch want := r.effect(&after); got {
	case want:
		a.there = after
		a.past[id] = append(a.past[id], e.text(&after, id))
		return
	case unknown:
		a.unsure[id] = true
	default:
		a.refused[id] = r.method
	}
	e.remove(&a.there, id)
}

// close compares the account with what is there at the end, and describes the
// acknowledged changes that are not right. None goes unnoticed; which of the two
// happened cannot always be told. Where the state before the last change is back,
// that change counts as lost, though one before it may have been made again.
// Where an earlier state is back, or an order, a change counts as doubled, though
// several may have been lost. A delete is doubled that was told that there is
// nothing, when it has left nothing.
func (a *account) close(e estate, final userState) (lost, doubled []string) {
	for id, past := range a.past {
		if a.unsure[id] {
			continue
		}
		got, last := e.text(&final, id), len(past)-1
		line := fmt.Sprintf("%s is %q after %q", id, got, past)
		switch {
		case got == past[last]:
		case got == "" && a.refused[id] == http.MethodDelete:
			doubled = append(doubled, line+" and a delete that was refused")
		case got == past[last-1], got == "" && !slices.Contains(past[1:], ""):
			lost = append(lost, line)
		default:
			doubled = append(doubled, line)
		}
	}
	mine := a.mine(e)
	order := slices.DeleteFunc(e.ids(&final), func(id string) bool { return !slices.Contains(mine, id) })
	if len(order) == len(mine) && !slices.Equal(order, mine) {
		doubled = append(doubled, fmt.Sprintf("the order is %v, not %v", order, mine))
	}
	return lost, doubled
}
