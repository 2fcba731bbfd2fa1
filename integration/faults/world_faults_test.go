package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

type chaosFault struct {
	name  string
	cause func(ctx context.Context, s *strike) error

	// crash reports whether the fault replaces a master that cannot hand over. Redis may then lose changes that
	// only this master had, after clients read them.
	crash bool
}

// The faults of the world. Faults of masters need a cluster with a replica for each master.
var (
	noFault          = chaosFault{name: "none", cause: func(_ context.Context, s *strike) error { <-s.done; return nil }}
	repliesLost      = chaosFault{name: "replies lost", cause: loseReplies}
	scriptsForgotten = chaosFault{name: "scripts forgotten", cause: forgetScripts}

	serverKilled        = chaosFault{name: "server killed", cause: killServer}
	serverFrozen        = chaosFault{name: "server frozen", cause: freezeServer(500*time.Millisecond, 3*time.Second)} // longer than hosts wait for replies
	serverFrozenForLong = chaosFault{name: "server frozen for long", cause: freezeServer(2*time.Second, 2500*time.Millisecond)}

	serverFrozenTooLong = chaosFault{name: "server frozen for longer than a request may take", cause: freezeServer(handlers.DefaultConfig().RequestTimeout+calm, handlers.DefaultConfig().RequestTimeout+2*calm)}
	allRestarted        = chaosFault{name: "all servers stopped and started", cause: restartAll}
	masterGone          = chaosFault{name: "master killed until the hosts have come back", crash: true, cause: loseMaster((*redistest.Server).Stop, (*redistest.Server).Start)}
	masterHangs         = chaosFault{name: "master frozen until the hosts have come back", crash: true, cause: loseMaster((*redistest.Server).Pause, (*redistest.Server).Resume)}

	slotsMoved      = chaosFault{name: "slots moved", cause: moveSlots}
	masterAdded     = chaosFault{name: "master added that gets slots and gives them back", cause: addMaster}
	slotMovedAgain  = chaosFault{name: "slot moved again and again", cause: moveOn}
	failoverByHand  = chaosFault{name: "failover by hand", cause: failOver}
	replicaFrozen   = chaosFault{name: "replica frozen", cause: freezeReplica}
	masterFrozen    = chaosFault{name: "master frozen briefly", cause: freezeMaster(200*time.Millisecond, 1200*time.Millisecond)}
	masterMayRevive = chaosFault{name: "master frozen, maybe for long enough", crash: true, cause: freezeMaster(1800*time.Millisecond, 4500*time.Millisecond)}
	masterReplaced  = chaosFault{name: "master frozen until it is replaced", crash: true, cause: freezeUntilReplaced}
	masterKilled    = chaosFault{name: "master killed", crash: true, cause: killMaster}
	masterAhead     = chaosFault{name: "master killed that is ahead of its replica", crash: true, cause: killMasterAhead}
	sourceKilled    = chaosFault{name: "source killed in a move", crash: true, cause: killInMove(source)}
	targetKilled    = chaosFault{name: "target killed in a move", crash: true, cause: killInMove(target)}
	bothKilled      = chaosFault{name: "source, then target killed in a move", crash: true, cause: killInMove(source, target)}

	hostKilled             = chaosFault{name: "host killed", cause: stopHost(syscall.SIGKILL, 2*time.Second)}
	hostGone               = chaosFault{name: "host killed until the others have its work", cause: stopHost(syscall.SIGKILL, hostPause)}
	hostStopped            = chaosFault{name: "host stopped in order", cause: stopHost(syscall.SIGTERM, 2*time.Second)}
	hostPaused             = chaosFault{name: "host paused", cause: pauseHost(func(context.Context, *strike) error { return nil })}
	hostPausedMasterKilled = chaosFault{name: "master killed that is ahead of its replica, beside a paused host", crash: true, cause: pauseHost(killMasterAhead)}
)

// strike is one fault of a world. Its times are nanoseconds since the start.
type strike struct {
	*world
	chaosFault
	number  int
	random  *rand.Rand
	around  time.Duration // how long the work goes on before and after the fault
	lossy   bool          // replies get lost, too
	history history
	places  []*place
	hit     []*place // those of the faulty server
	resumed []int64  // when hosts resumed that were paused
	repair  func()   // brings a lost master back after the hosts have come back; nil for none

	// ahead waits while only the master gets changes; nil means a random time.
	ahead func(context.Context) error

	start               time.Time
	struck, over, whole int64         // start and end of the fault, and the end of its effects
	noticed             int64         // when the servers could first notice the fault
	done                chan struct{} // closed at the end of the work
}

func (s *strike) String() string { return fmt.Sprintf("round %d, %s", s.number, s.name) }

func (s *strike) now() int64 { return int64(time.Since(s.start)) }

func (s *strike) somewhere() *place { return s.places[s.random.IntN(len(s.places))] }

// at returns the time at so many nanoseconds after the start.
func (s *strike) at(since int64) time.Time { return s.start.Add(time.Duration(since)) }

// on returns the places on a server.
func (s *strike) on(server *redistest.Server) (there []*place) {
	for _, p := range s.places {
		if p.home == server {
			there = append(there, p)
		}
	}
	return there
}

// replaced records a takeover; nil means unknown.
func replaced(hit []*place, by *redistest.Server) {
	for _, p := range hit {
		p.home = by
	}
}

func (s *strike) hold(ctx context.Context, least, most time.Duration) error {
	return sleep(ctx, least+time.Duration(s.random.Int64N(int64(most-least))))
}

func loseReplies(ctx context.Context, s *strike) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.hit = s.places
	s.way.LoseReplies(ctx, 3, either...)
	<-ctx.Done()
	return nil
}

func forgetScripts(ctx context.Context, s *strike) error {
	s.hit = s.places
	flush := func(ctx context.Context, node *redis.Client) error { return node.ScriptFlush(ctx).Err() }
	for range 5 + s.random.IntN(10) {
		var err error
		if all, is := s.admin.(*redis.ClusterClient); is {
			err = all.ForEachShard(ctx, flush)
		} else {
			err = flush(ctx, s.admin.(*redis.Client))
		}
		if err = errors.Join(err, s.hold(ctx, 20*time.Millisecond, 150*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

func killServer(ctx context.Context, s *strike) error {
	s.hit = s.places
	for range 1 + s.random.IntN(3) {
		s.nodes[0].Stop()
		err := s.hold(ctx, 0, 500*time.Millisecond)
		s.nodes[0].Start()
		if err = errors.Join(err, s.hold(ctx, 0, 500*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

func freezeServer(least, most time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		s.hit = s.places
		s.nodes[0].Pause()
		err := s.hold(ctx, least, most)
		s.nodes[0].Resume()
		s.noticed = s.now()
		return err
	}
}

// restartAll stops all servers for longer than clients retry.
func restartAll(ctx context.Context, s *strike) error {
	s.hit = s.places
	atAll := func(do func(*redistest.Server)) {
		var all sync.WaitGroup
		for _, server := range s.nodes {
			all.Go(func() { do(server) })
		}
		all.Wait()
	}
	atAll((*redistest.Server).Stop)
	err := sleep(ctx, time.Second)
	atAll((*redistest.Server).Start)
	s.noticed = s.now()
	return errors.Join(err, s.waitWhole(ctx))
}

// loseMaster loses a master. Another server has replaced it when loseMaster returns.
func loseMaster(lose, repair func(*redistest.Server)) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		master := s.somewhere().home
		s.hit = s.on(master)
		lose(master)
		if s.cluster != nil {
			s.repair = func() { repair(master) }
		}
		next, err := s.waitTakeover(ctx, s.hit[0].slot(), master)
		replaced(s.hit, next)
		return err
	}
}

func moveSlots(ctx context.Context, s *strike) error {
	s.hit = slices.Clone(s.places)
	s.random.Shuffle(len(s.hit), func(i, j int) { s.hit[i], s.hit[j] = s.hit[j], s.hit[i] })
	s.hit = s.hit[:min(len(s.hit), 1+s.random.IntN(2))]
	for _, p := range s.hit {
		from := p.home
		if err := moveSlot(ctx, s, p, nil); err != nil {
			return err
		}
		if s.random.IntN(2) == 0 {
			if err := moveSlot(ctx, s, p, from); err != nil {
				return err
			}
		}
	}
	return nil
}

// moveSlot keeps the slot's move open for a while before and after the keys move. The target is another master unless
// the caller names one.
func moveSlot(ctx context.Context, s *strike, p *place, to *redistest.Server) (err error) {
	if to == nil {
		if to, err = hosttest.OtherMaster(ctx, s.cluster, p.slot()); err != nil {
			return err
		}
	}
	move, err := s.cluster.BeginMove(ctx, p.slot(), to)
	if err != nil {
		return err
	}
	hold := func(ctx context.Context) error { return s.hold(ctx, 0, 400*time.Millisecond) }
	if err := inTurn(ctx, hold, func(ctx context.Context) error { return move.MoveKeys(ctx, p.keys...) }, hold); err != nil {
		return err
	}
	p.home = to
	return inTurn(ctx, move.MoveRest, move.Finish) // hosts have created keys during the move
}

// addMaster adds a master, which no list of slots has while its first slot moves.
func addMaster(ctx context.Context, s *strike) error {
	newcomer, moved := s.cluster.Newcomer(s.t), s.places[:3]
	homes := map[*place]*redistest.Server{}
	for _, p := range moved {
		homes[p] = p.home
		if err := moveSlot(ctx, s, p, newcomer); err != nil {
			return err
		}
	}
	for _, p := range moved {
		if err := moveSlot(ctx, s, p, homes[p]); err != nil {
			return err
		}
	}
	return nil
}

// moveOn moves a slot to one master after the other until the work is done.
func moveOn(ctx context.Context, s *strike) error {
	masters := s.cluster.Masters()
	for n := 0; ; n++ {
		if err := s.cluster.MoveSlot(ctx, s.places[0].slot(), masters[n%len(masters)]); err != nil {
			return err
		}
		select {
		case <-s.done:
			if n == 0 {
				return errors.New("the slot has moved only once")
			}
			return nil
		default:
		}
	}
}

// shard picks a random master with its only replica, and records its contents.
func shard(ctx context.Context, s *strike) (master, replica *redistest.Server, err error) {
	master = s.somewhere().home
	s.hit = s.on(master)
	replica, err = s.replicaOf(ctx, master)
	return master, replica, err
}

// failoverRest is the pause between two manual failovers. A replica that won an election keeps its votes for two
// node timeouts. If it is asked again within that time, Redis up to 8 counts the old votes and makes it a master
// that no other node knows.
const failoverRest = 5 * time.Second

func failOver(ctx context.Context, s *strike) error {
	if err := sleep(ctx, time.Until(s.failover.Add(failoverRest))); err != nil {
		return err
	}
	_, replica, err := shard(ctx, s)
	if err != nil {
		return err
	}
	replaced(s.hit, replica)
	err = s.cluster.Failover(ctx, replica)
	s.failover = time.Now()
	return err
}

func freezeReplica(ctx context.Context, s *strike) error {
	_, replica, err := shard(ctx, s)
	if err != nil {
		return err
	}
	replica.Pause()
	defer replica.Resume()
	return s.hold(ctx, 500*time.Millisecond, 2500*time.Millisecond)
}

// freezeMaster freezes a master. Its replica may take over after one and a half seconds.
func freezeMaster(least, most time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		master, _, err := shard(ctx, s)
		if err != nil {
			return err
		}
		if most > 1500*time.Millisecond {
			replaced(s.hit, nil)
		}
		master.Pause()
		defer master.Resume()
		return s.hold(ctx, least, most)
	}
}

// freezeUntilReplaced freezes a master until a replica has replaced it. Afterwards it acts as a master for a while.
func freezeUntilReplaced(ctx context.Context, s *strike) error {
	master, _, err := shard(ctx, s)
	if err != nil {
		return err
	}
	master.Pause()
	defer master.Resume()
	next, err := s.waitTakeover(ctx, s.hit[0].slot(), master)
	if err != nil {
		return err
	}
	replaced(s.hit, next)
	return s.hold(ctx, 0, 500*time.Millisecond)
}

// killMaster kills a master. In half the cases its replica lags behind.
func killMaster(ctx context.Context, s *strike) error {
	if s.random.IntN(2) == 0 {
		return killMasterAhead(ctx, s)
	}
	master, _, err := shard(ctx, s)
	if err != nil {
		return err
	}
	_, err = replace(ctx, s, master)
	return err
}

// killMasterAhead freezes the replica of a master that continues, before it kills the master. Otherwise a crash on one
// machine loses almost no change, because the kernel still delivers the bytes that a killed process sent.
func killMasterAhead(ctx context.Context, s *strike) error {
	master, replica, err := shard(ctx, s)
	if err != nil {
		return err
	}
	defer replica.Resume()
	if err := cutOff(ctx, master, replica); err != nil {
		return err
	}
	if s.ahead == nil {
		s.ahead = func(ctx context.Context) error { return s.hold(ctx, 0, 400*time.Millisecond) }
	}
	if err := s.ahead(ctx); err != nil {
		return err
	}
	master.Stop()
	replica.Resume()
	_, err = replace(ctx, s, master)
	return err
}

// cutOff freezes a replica and cuts its connection, so that it misses the following changes.
func cutOff(ctx context.Context, master, replica *redistest.Server) error {
	replica.Pause()
	client := clientOf(master)
	defer client.Close()
	return client.ClientKillByFilter(ctx, "TYPE", "replica").Err()
}

// replace kills a master, waits for the takeover, and restarts it as a replica. An earlier restart could make it a
// master without data.
func replace(ctx context.Context, s *strike, master *redistest.Server) (next *redistest.Server, err error) {
	hit := s.on(master)
	master.Stop()
	next, err = s.waitTakeover(ctx, hit[0].slot(), master)
	master.Start()
	if err != nil {
		return nil, err
	}
	replaced(hit, next)
	if s.cluster == nil { // whose nodes follow by themselves
		err = s.follow(ctx)
	}
	return next, err
}

type moveEnd string

const (
	source moveEnd = "source"
	target moveEnd = "target"
)

// killInMove kills the source or the target of a slot's move, or both in turn, after a user's keys have moved. The
// user gets 503 until the move ends.
func killInMove(victims ...moveEnd) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		p := s.somewhere()
		to, err := hosttest.OtherMaster(ctx, s.cluster, p.slot())
		if err != nil {
			return err
		}
		at := map[moveEnd]*redistest.Server{source: p.home, target: to}
		s.hit = append(s.on(at[source]), s.on(at[target])...)
		move, err := s.cluster.BeginMove(ctx, p.slot(), to)
		if err != nil {
			return err
		}
		err = inTurn(ctx,
			func(ctx context.Context) error { return move.MoveKeys(ctx, p.keys...) },
			func(ctx context.Context) error { return s.waitCopied(ctx, to, p.slot()) },
			func(ctx context.Context) error { return s.hold(ctx, 0, 400*time.Millisecond) },
		)
		for _, victim := range victims {
			if err == nil {
				at[victim], err = replace(ctx, s, at[victim])
			}
		}
		if err != nil {
			return err
		}
		if err := s.cluster.Fix(ctx, p.slot()); err != nil {
			return err
		}
		p.home, err = s.masterOf(ctx, p.slot())
		return err
	}
}

// waitCopied waits until the master's replica has the keys of a slot, which no other server has after a move.
func (s *strike) waitCopied(ctx context.Context, master *redistest.Server, slot int) error {
	replica, err := s.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	var keys [2][]string
	for err == nil && (len(keys[0]) == 0 || !slices.Equal(keys[0], keys[1])) {
		for i, server := range []*redistest.Server{master, replica} {
			client := clientOf(server)
			there, failed := client.ClusterGetKeysInSlot(ctx, slot, 1000).Result()
			slices.Sort(there)
			keys[i], err = there, errors.Join(err, failed, client.Close())
		}
	}
	return err
}

func stopHost(how syscall.Signal, down time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		victim := s.processes[s.random.IntN(len(s.processes))]
		victim.signal(s.t, how)
		defer victim.start(s.t)
		return sleep(ctx, down)
	}
}

// hostPause is how long a host is paused or gone: longer than its leases last.
const hostPause = 7 * time.Second

// pauseHost pauses a host while another fault occurs.
func pauseHost(beside func(context.Context, *strike) error) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		paused, resume := s.processes[s.random.IntN(len(s.processes))], time.Now().Add(hostPause)
		paused.signal(s.t, syscall.SIGSTOP)
		defer func() {
			s.resumed = append(s.resumed, s.now())
			paused.signal(s.t, syscall.SIGCONT)
		}()
		if err := beside(ctx, s); err != nil {
			return err
		}
		return sleep(ctx, time.Until(resume))
	}
}
