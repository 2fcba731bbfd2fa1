package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// Action is what operators want done with pushers of which the queue has a record.
type Action int

// The actions. What is being sent right now is left alone by all of them.
const (
	Retry    Action = iota + 1 // sends at once what waits, whatever pusher and gateway wait for
	Flush                      // drops what waits
	Confirm                    // removes pushers that were rejected, whatever else their gateway rejects
	Release                    // forgets that pushers were rejected
	FlushLog                   // drops what a log has, also what its owner has not read yet
)

// Instruction is what [module.DeliveryQueue] Instruct takes to the owner of a shard.
type Instruction struct {
	Action   Action
	Pushers  []string  // by [PusherID]; those that wait for nothing are left alone
	Gateways []string  // Retry: those that are tried although they are closed; see [GatewayOf]
	Before   time.Time // Flush: only what was handed over before, by the clock of the queue; the zero time is all

	// FlushLog, which is for no list of Pushers and has a time Before, is for those
	// of a user, empty for all, that are sent to a gateway, empty for any; see
	// [IsGateway].
	User    mxid.UserID
	Gateway string
}

// Effect is what an owner answers.
type Effect struct {
	Pushers       int  // of which something was done
	Notifications int  // that were dropped
	Behind        bool // FlushLog: there are more in the log, to be dropped when an owner reads them
}

// AppendTo appends the instruction as the owner reads it.
func (in Instruction) AppendTo(dst []byte) []byte {
	dst = appendNumber(append(dst, wireVersion), int64(in.Action))
	dst = appendTexts(appendTexts(dst, in.Pushers), in.Gateways)
	dst = appendFlag(dst, !in.Before.IsZero())
	if !in.Before.IsZero() {
		dst = appendTime(dst, in.Before)
	}
	if in.Action == FlushLog {
		dst = appendText(appendText(dst, string(in.User)), in.Gateway)
	}
	return dst
}

func readInstruction(data []byte) (in Instruction, err error) {
	r := wireReader{rest: string(data)}
	if r.byte() != wireVersion {
		return in, errGarbled
	}
	in = Instruction{Action: Action(r.number()), Pushers: r.texts(), Gateways: r.texts()}
	if r.flag() {
		in.Before = r.time()
	}
	if in.Action == FlushLog {
		in.User, in.Gateway = mxid.UserID(r.own()), r.own()
	}
	if r.garbled || in.Action < Retry || in.Action > FlushLog {
		return in, errGarbled
	}
	return in, nil
}

func appendTexts(dst []byte, texts []string) []byte {
	dst = appendNumber(dst, int64(len(texts)))
	for _, text := range texts {
		dst = appendText(dst, text)
	}
	return dst
}

func (r *wireReader) texts() []string {
	texts := make([]string, r.count())
	for i := range texts {
		texts[i] = r.text()
	}
	return texts
}

func (e Effect) appendTo(dst []byte) []byte {
	dst = appendNumber(appendNumber(append(dst, wireVersion), int64(e.Pushers)), int64(e.Notifications))
	return appendFlag(dst, e.Behind)
}

// ReadEffect reads the answer to an instruction. It fails if the owner is of a
// version that does not know the instruction.
func ReadEffect(data []byte) (Effect, error) {
	r := wireReader{rest: string(data)}
	if r.byte() != wireVersion {
		return Effect{}, errGarbled
	}
	e := Effect{Pushers: int(r.number()), Notifications: int(r.number())}
	e.Behind = r.rest != "" && r.flag() // which is in no answer of a version without FlushLog
	if r.garbled {
		return Effect{}, errGarbled
	}
	return e, nil
}

// follow does what the instructions of a lease say, each once. An answer is kept
// until the queue has it, which is when a lease comes without its instruction.
func (sh *shard) follow(instructions map[string][]byte) {
	for id := range sh.answers {
		if _, waits := instructions[id]; !waits {
			delete(sh.answers, id)
		}
	}
	for id, data := range instructions {
		if _, done := sh.answers[id]; done || !sh.restored || sh.leaving {
			continue
		}
		if sh.answers == nil {
			sh.answers = map[string][]byte{}
		}
		sh.answers[id] = sh.do(data)
		sh.change()
	}
}

// do returns the answer to an instruction, an empty one if it cannot be read.
func (sh *shard) do(data []byte) []byte {
	in, err := readInstruction(data)
	if err != nil {
		sh.s.failed("read an instruction", err)
		return []byte{}
	}
	if in.Action == FlushLog {
		return sh.flushLog(in).appendTo(nil)
	}
	var effect Effect
	for _, f := range sh.fifosOf(in.Pushers) {
		dropped, done := f.do(in)
		effect.Notifications += dropped
		if done {
			effect.Pushers++
		}
	}
	if in.Action == Retry {
		for _, name := range in.Gateways {
			sh.s.tryNow(sh.s.gateways[name])
		}
	}
	return effect.appendTo(nil)
}

// fifosOf returns those of some pushers for which there is something to do.
func (sh *shard) fifosOf(pushers []string) (all []*fifo) {
	wanted := make(map[pusherID]bool, len(pushers))
	for _, id := range pushers {
		wanted[pusherID(id)] = true
	}
	for _, u := range sh.users {
		for _, f := range u.fifos {
			if wanted[f.id] {
				all = append(all, f)
			}
		}
	}
	return all
}

func (f *fifo) do(in Instruction) (dropped int, done bool) {
	switch {
	case in.Action == Flush:
		dropped = f.flush(in.Before)
		return dropped, dropped > 0
	case in.Action == Retry && !f.rejected && (f.state == fifoWaiting || f.state == fifoReady):
		f.retry()
		return 0, true
	case in.Action == Confirm && f.rejected:
		f.confirmed, f.due = true, time.Now()
		f.touchRecord() // for another owner, if this one dies
		f.user.read = time.Time{}
		f.retry()
		return 0, true
	case in.Action == Release && f.rejected:
		f.release()
		return 0, true
	}
	return 0, false
}

// retry goes on with a pusher that waits for a time. One that is ready waits for its
// gateway.
func (f *fifo) retry() {
	if f.state == fifoWaiting {
		f.alarms++
		f.attempts = 0
		f.next()
	}
}

// flush drops what waits and was handed over before a time, the zero time for all.
func (f *fifo) flush(before time.Time) (dropped int) {
	queue := f.queue
	f.queue = nil
	for _, n := range queue {
		if n != f.sending && (before.IsZero() || n.added.Before(before)) {
			f.drop(n, DropFlushed)
			dropped++
		} else {
			f.queue = append(f.queue, n)
		}
	}
	if len(f.queue) == 0 && !f.rejected {
		f.end()
	}
	return dropped
}

// release has the pusher sent to again, with what arrives next.
func (f *fifo) release() {
	if f.gateway != nil {
		f.gateway.rejected.rejected.remove(f.id.short())
	}
	f.end()
}

// tryNow has a closed gateway tried at once, by all hosts, if it is one that this
// host knows.
func (s *sender) tryNow(g *gateway) {
	if g != nil && (g.state == GateWaiting || g.state == GateProbing) {
		now := time.Now()
		g.probe(now, now)
		s.announce(g, module.GatewayChange{State: module.GatewayClosed, Status: g.status, Retry: true}, now)
		s.activate(g)
	}
}
