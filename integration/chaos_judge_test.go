package integration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// verdict is what rounds come to.
type verdict struct {
	operations, unknown int
	lost, doubled       []string              // acknowledged changes
	illegal             []porcupine.Operation // histories of users that are not linearizable
	undecided           []string              // users for whom it takes too long to tell
	takenBack           int                   // users to whom Redis showed what it lost, which was never acknowledged
	outage              time.Duration         // longest time without a change for a user whom the fault hit
	othersOutage        time.Duration         // and for one whom it did not
}

// add adds the verdict of another round.
func (v *verdict) add(other verdict) {
	v.operations += other.operations
	v.unknown += other.unknown
	v.lost = append(v.lost, other.lost...)
	v.doubled = append(v.doubled, other.doubled...)
	v.illegal = append(v.illegal, other.illegal...)
	v.undecided = append(v.undecided, other.undecided...)
	v.takenBack += other.takenBack
	v.outage = max(v.outage, other.outage)
	v.othersOutage = max(v.othersOutage, other.othersOutage)
}

// isBad reports whether something went wrong. One history for which it takes too
// long to tell is no sign of that, on a machine that does other things.
func (v *verdict) isBad() bool {
	return len(v.lost)+len(v.doubled)+len(v.illegal) > 0 || len(v.undecided) > 1
}

func (v *verdict) summary() string {
	return fmt.Sprintf("%d operations, %d unknown, %d lost, %d doubled, %d not linearizable, %d undecided, %d taken back, %v without a change",
		v.operations, v.unknown, len(v.lost), len(v.doubled), len(partition(v.illegal)), len(v.undecided), v.takenBack, v.outage)
}

// details tells what is bad, but for the histories.
func (v *verdict) details() string {
	var b strings.Builder
	for _, change := range v.lost {
		fmt.Fprintln(&b, "lost:", change)
	}
	for _, change := range v.doubled {
		fmt.Fprintln(&b, "doubled:", change)
	}
	for _, user := range v.undecided {
		fmt.Fprintln(&b, "undecided:", user)
	}
	return b.String()
}

// judge wants every account to be right, and every history to be linearizable.
//
// For users who were on a master that crashed, the latter is more than Redis can
// promise, whatever the durability. A master shows a change before a replica has
// it: a read can show what is never acknowledged and gone after the takeover.
// And a master that was frozen does not know that it has been replaced: until it
// hears of that, it answers with what it had. Between the crash and the time when
// nothing is left of it, what these users were told does not count, therefore,
// be it an answer to a read or a refusal; that a change was made does. All the
// rest must be linearizable nevertheless: acknowledged changes, in the order of
// time, with everything before the crash and after it.
func (r *chaosRound) judge(crashed bool) (v verdict) {
	for _, u := range r.users {
		history := r.historyOf(u)
		v.operations += len(history)
		v.unknown += unanswered(history)
		isHit := slices.Contains(r.hit, u.name)
		if isHit {
			v.outage = max(v.outage, r.outage(history))
		} else {
			v.othersOutage = max(v.othersOutage, r.outage(history))
		}
		result := check(history)
		if result != porcupine.Ok && crashed && isHit {
			if result == porcupine.Illegal {
				v.takenBack++
			}
			history, result = r.checkPromised(history)
		}
		switch result {
		case porcupine.Ok:
		case porcupine.Illegal:
			v.illegal = append(v.illegal, history...)
		default:
			v.undecided = append(v.undecided, u.name)
		}
		v.closeAccounts(r.playersOf(u))
	}
	return v
}

// checkPromised checks what remains of the history of a user whose master has
// crashed, and returns that, too. The less is left out, the sooner a check ends;
// what is linearizable then is so with more left out.
func (r *chaosRound) checkPromised(all []porcupine.Operation) (rest []porcupine.Operation, result porcupine.CheckResult) {
	for _, end := range []int64{r.over, r.whole} {
		rest = acknowledged(all, r.struck, end)
		if result = check(rest); result == porcupine.Ok {
			break
		}
	}
	return rest, result
}

func (v *verdict) closeAccounts(players []*player) {
	for _, p := range players {
		lost, doubled := p.account.close(p.of.estate, p.of.final)
		v.lost = append(v.lost, lost...)
		v.doubled = append(v.doubled, doubled...)
	}
}

// acknowledged leaves out of a history what clients were told in the time
// between, but for changes that were made.
func acknowledged(history []porcupine.Operation, from, to int64) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Return >= from && o.Call <= to && o.Output != done && o.Output != unknown
	})
}
