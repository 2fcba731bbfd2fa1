package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pushfx/pushfx/module/redistest"
)

const (
	chaosUsers   = 6 // in a round
	chaosClients = 4 // of each user
)

// chaosRound is one fault and what clients did meanwhile. Its times are
// nanoseconds since the start.
type chaosRound struct {
	strike
	team    *team
	lossy   bool // whether replies get lost, too
	users   []*chaosUser
	players []*player
	start   time.Time
	struck  int64 // when the fault began
	over    int64 // when it was over
	whole   int64 // when nothing was left of it
}

func newChaosRound(team *team, random *rand.Rand) *chaosRound {
	return &chaosRound{
		strike: strike{random: random, homes: map[string]*redistest.Server{}, links: team.links},
		team:   team,
		start:  time.Now(),
	}
}

func (r *chaosRound) addUser(name string, of estate, home *redistest.Server) {
	u := &chaosUser{name: name, estate: of}
	u.exists.Store(of == pusherEstate{}) // which nobody has to create
	r.users = append(r.users, u)
	r.names = append(r.names, name)
	r.homes[name] = home
	for number := range chaosClients {
		r.addPlayer(u, number)
	}
}

func (r *chaosRound) addPlayer(u *chaosUser, number int) *player {
	source := rand.NewPCG(r.random.Uint64(), r.random.Uint64())
	p := &player{
		actor:   actor{user: u.name, number: number, random: rand.New(source)},
		of:      u,
		client:  len(r.players),
		hosts:   r.team.hosts,
		start:   r.start,
		account: newAccount(),
	}
	r.players = append(r.players, p)
	return p
}

// now is the time since the start.
func (r *chaosRound) now() int64 { return int64(time.Since(r.start)) }

// aroundFault is how long clients are at work before and after a fault.
const aroundFault = 250 * time.Millisecond

// play has the players at work from before the fault until nothing is left of it
// and every user is served.
func (r *chaosRound) play(ctx context.Context, fault chaosFault, waitWhole func(context.Context) error) error {
	playing, stop := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for _, p := range r.players {
		working.Go(func() { p.play(playing) })
	}
	pause := func(ctx context.Context) error { return sleep(ctx, aroundFault) }
	for _, step := range []func(context.Context) error{
		r.waitServed, pause, func(ctx context.Context) error { return r.suffer(ctx, fault) }, r.waitServed, waitWhole,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.whole = r.now()
	return pause(ctx)
}

// suffer lets the fault strike.
func (r *chaosRound) suffer(ctx context.Context, fault chaosFault) error {
	if r.lossy {
		defer r.loseReplies()()
	}
	r.struck = r.now()
	err := fault.strike(ctx, &r.strike)
	r.over = r.now()
	return err
}

// servedLimit is many times what it takes until all users are served.
const servedLimit = time.Minute

// waitServed waits until every user has had a change made that was sent from now
// on.
func (r *chaosRound) waitServed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	now := r.now()
	for {
		i := slices.IndexFunc(r.users, func(u *chaosUser) bool { return u.changed.Load() < now })
		if i < 0 {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no change of %s was acknowledged: %w", r.users[i].name, err)
		}
	}
}

// lookAtAll reads everything once more, on every host.
func (r *chaosRound) lookAtAll(ctx context.Context) error {
	for _, u := range r.users {
		for _, h := range r.team.hosts {
			p := r.addPlayer(u, chaosClients)
			o := p.send(ctx, h, u.estate.all(&p.actor))
			for o.Output == unknown {
				if err := sleep(ctx, 50*time.Millisecond); err != nil {
					return err
				}
				o = p.send(ctx, h, u.estate.all(&p.actor))
			}
			p.history = []porcupine.Operation{o}
			final, err := u.estate.read(o.Output.(string))
			if err != nil {
				return err
			}
			u.final = final
		}
	}
	return nil
}

// playersOf are the clients of a user.
func (r *chaosRound) playersOf(u *chaosUser) []*player {
	return slices.DeleteFunc(slices.Clone(r.players), func(p *player) bool { return p.of != u })
}

// historyOf is what the clients of a user did.
func (r *chaosRound) historyOf(u *chaosUser) (history []porcupine.Operation) {
	for _, p := range r.playersOf(u) {
		history = append(history, p.history...)
	}
	return withEnds(history, len(r.players), r.now())
}

// outage is the longest time since the fault began in which no change of a user
// was acknowledged.
func (r *chaosRound) outage(history []porcupine.Operation) (longest time.Duration) {
	times := []int64{r.struck}
	for _, o := range history {
		if o.Output == done && o.Return > r.struck {
			times = append(times, o.Return)
		}
	}
	slices.Sort(times)
	for i := range times[1:] {
		longest = max(longest, time.Duration(times[i+1]-times[i]))
	}
	return longest.Round(time.Millisecond)
}

// circumstances are what the round differs in from others with the same fault.
func (r *chaosRound) circumstances() string {
	parts := append(slices.Clone(r.notes), "durability "+r.team.durability.String())
	if r.lossy {
		parts = append(parts, "lost replies")
	}
	return strings.Join(parts, ", ")
}
