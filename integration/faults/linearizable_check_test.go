package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pushfx/pushfx/integration/hosttest"
)

const (
	// checkLimit is many times the duration of a check.
	checkLimit = 2 * time.Minute

	// firstLimit bounds the check of a part, before the check of the whole.
	firstLimit = 10 * time.Second
)

// check checks whether a history is linearizable. A change without an answer may happen at any time until the end,
// or never; with many such changes a check may take forever. So check first bounds these changes by the answers
// that show them, and removes changes that no answer shows. If the rest is linearizable, the whole is: the removed
// changes count as never made.
func check(history []porcupine.Operation) porcupine.CheckResult {
	history = bounded(history)
	for _, part := range [][]porcupine.Operation{shown(history), likely(history)} {
		if porcupine.CheckOperationsTimeout(oneAtATime(), part, firstLimit) == porcupine.Ok {
			return porcupine.Ok
		}
	}
	return porcupine.CheckOperationsTimeout(oneAtATime(), history, checkLimit)
}

// bounded ends a change without an answer at the first answer that shows it.
func bounded(history []porcupine.Operation) []porcupine.Operation {
	history = slices.Clone(history)
	for i := range history {
		change := &history[i]
		for _, other := range answersThatShow(history, *change) {
			if change.Call < other.Return {
				change.Return = min(change.Return, other.Return)
			}
		}
	}
	return history
}

// shown removes the changes without an answer that no answer shows.
func shown(history []porcupine.Operation) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Output == unknown && len(answersThatShow(history, o)) == 0
	})
}

// likely removes only changes whose effect an answer would show, so no deletes.
func likely(history []porcupine.Operation) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Output == unknown && writtenBy(o) != "" && len(answersThatShow(history, o)) == 0
	})
}

// answersThatShow returns the answered requests that prove that a change without an answer happened.
func answersThatShow(history []porcupine.Operation, change porcupine.Operation) (answered []porcupine.Operation) {
	written := writtenBy(change)
	if change.Output != unknown || written == "" {
		return nil
	}
	for _, other := range history {
		if other.Input.(request).user == change.Input.(request).user && strings.Contains(other.Output.(string), written) {
			answered = append(answered, other)
		}
	}
	return answered
}

// aValue is a value that only one change of the user writes; see [randomClient.value].
var aValue = regexp.MustCompile(`"value":\d+}|"device_display_name":"\d+"`)

func writtenBy(change porcupine.Operation) string {
	return aValue.FindString(change.Input.(request).body)
}

// showIllegal logs and draws the history of each user that is not linearizable.
func showIllegal(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	for _, part := range partition(history) {
		result, info := porcupine.CheckOperationsVerbose(oneAtATime(), part, checkLimit)
		if result == porcupine.Ok {
			continue
		}
		user := part[0].Input.(request).user
		t.Logf("%s: %s, drawn in %s\n%s", user, result, draw(t, info), listing(part))
	}
}

func listing(history []porcupine.Operation) string {
	var b strings.Builder
	byCall := func(x, y porcupine.Operation) int { return cmp.Compare(x.Call, y.Call) }
	for _, o := range slices.SortedFunc(slices.Values(history), byCall) {
		fmt.Fprintf(&b, "%3d %5d-%5d %s\n", o.ClientId, o.Call, o.Return, brief(o.Input.(request), o.Output.(string)))
	}
	return b.String()
}

// draw writes a picture of a check to a file, which outlives the test, and returns its path.
func draw(t *testing.T, info porcupine.LinearizationInfo) string {
	t.Helper()
	page, err := os.CreateTemp("", "linearizable-*.html")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := porcupine.Visualize(oneAtATime(), info, page); err != nil {
		t.Error(err)
	}
	return page.Name()
}

// mixes are the kinds of requests. Push rules and pushers share nothing, so each kind has its history.
var mixes = []struct {
	name string
	next func(*randomClient) request
}{
	{"push rules", nextForRules},
	{"pushers", nextForPushers},
}

// The histories are short enough to try all possibilities.
func TestTheCheckAgreesWithASearchOfAllPossibilities(t *testing.T) {
	t.Parallel()
	for _, mix := range mixes {
		t.Run(mix.name, func(t *testing.T) {
			t.Parallel()
			withBounds := map[porcupine.CheckResult]int{}
			for seed := range uint64(400) {
				history := madeUp(mix.next, seed)
				want := porcupine.CheckOperationsTimeout(oneAtATime(), history, checkLimit)
				if got := check(history); got != want {
					t.Fatalf("seed %d: got %s, want %s\n%s", seed, got, want, listing(history))
				}
				for i, o := range bounded(history) {
					if o.Return < history[i].Return {
						withBounds[want]++
						break
					}
				}
			}
			if min(withBounds[porcupine.Ok], withBounds[porcupine.Illegal]) < 10 {
				t.Errorf("too few histories have a bound: %v", withBounds)
			}
		})
	}
}

// madeUp returns a history of a store that makes changes without an answer at once, later or never, and sometimes
// returns to an earlier state.
func madeUp(next func(*randomClient) request, seed uint64) (history []porcupine.Operation) {
	const clients, end, most = 4, 300, 25 // most is the longest time before and after a request is handled
	random := rand.New(rand.NewPCG(seed, 0))
	var actors [clients]randomClient
	var free [clients]int64 // time of each client's last answer
	for i := range actors {
		actors[i] = randomClient{user: hosttest.Alice, number: i, random: random}
	}
	states, late := []userState{{}}, []request{}
	for now := int64(most); now < end-most; now += 10 {
		state := states[len(states)-1]
		client := random.IntN(clients)
		switch chance := random.IntN(20); {
		case chance == 0:
			state = states[random.IntN(len(states))]
		case chance < 5 && len(late) > 0:
			late[0].effect(&state)
			late = late[1:]
		case free[client] < now:
			r := next(&actors[client])
			actors[client].sent++
			o := porcupine.Operation{
				ClientId: client, Input: r,
				Call: now - random.Int64N(min(most, now-free[client])), Output: unknown, Return: now + random.Int64N(most),
			}
			switch chance := random.IntN(6); {
			case r.method == http.MethodGet || chance > 1:
				o.Output = r.effect(&state)
			case chance == 1:
				r.effect(&state)
			case random.IntN(2) == 0:
				late = append(late, r)
			}
			free[client] = o.Return
			history = append(history, o)
		}
		states = append(states, state)
	}
	return withEnds(history, clients, end)
}
