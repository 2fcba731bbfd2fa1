package redisqueue_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
)

// The time of a script does not grow with what waits, or with the ids that a log knows. Five
// times is what a busy machine may make of the same time.
func TestScriptsTakeNoLongerOnALongLog(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h, n := newHost(t, client), 0
	var many []string
	for p := range 100 {
		many = append(many, fmt.Sprintf("pusher%016d", p))
	}
	appends := func(pushers ...string) func() {
		return func() { n++; h.mustAdd(alice, n, pushers...) }
	}
	checked := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	one := h.mustAdd(alice, n, "p")[0]
	sent := module.Done{To: one.Number + 1}
	appends("p")() // waits when the first is sent
	checked(h.Renew(t.Context(), one, time.Hour, false))
	tests := []struct {
		name string
		do   func()
	}{
		{"renew", func() { checked(h.Renew(t.Context(), one, time.Hour, false)) }},
		{"complete", func() {
			_, err := h.Complete(t.Context(), one, sent)
			checked(err)
		}},
		{"append for a pusher", appends("p")},
		{"append for 100 pushers", appends(many...)},
	}
	short := map[string]time.Duration{}
	for _, test := range tests {
		short[test.name] = scriptTime(t, client, test.do)
	}
	for n < 600 {
		appends(append(many, "p")...)()
	}
	for _, test := range tests {
		long := scriptTime(t, client, test.do)
		t.Logf("%s: %v, and %v when 600 wait", test.name, short[test.name], long)
		if long > 5*short[test.name] {
			t.Errorf("%s: the scripts take %v, and %v when 600 wait", test.name, short[test.name], long)
		}
	}
}

var scriptStats = regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`)

// scriptTime returns the time of the scripts in a call: the least of several batches, since
// other programs on the machine delay scripts.
func scriptTime(t *testing.T, client *redis.Client, do func()) (least time.Duration) {
	do() // the scripts are loaded
	for batch := range 8 {
		client.ConfigResetStat(t.Context())
		const calls = 5
		for range calls {
			do()
		}
		found := scriptStats.FindStringSubmatch(client.Info(t.Context(), "commandstats").Val())
		if found == nil {
			t.Fatal("there are no statistics of scripts")
		}
		us, _ := strconv.Atoi(found[1])
		if took := time.Duration(us) * time.Microsecond / calls; batch == 0 || took < least {
			least = took
		}
	}
	return least
}

var anyStats = regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+),usec=(\d+)`)

// A claim of a pusher that was cut costs the same, however much has passed it.
func TestAClaimTakesNoLongerWhenMuchHasPassed(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h, n := newHost(t, client), 0
	claims := h.mustAdd(alice, n, "dead", "well")
	dead, well := claims[0], claims[1]
	if err := h.Postpone(t.Context(), dead, 0, module.Trouble{}, false); err != nil {
		t.Fatal(err)
	}
	pass := func(until int) {
		for ; n < until; n++ {
			h.mustAdd(alice, n+1, "dead", "well")
			if n%20 != 19 {
				continue
			}
			log, err := h.Log(t.Context(), alice)
			if err == nil {
				for i, p := range log.Pushers {
					if n := len(p.Waiting); n > 100 {
						log.Pushers[i].Waiting = slices.Concat(p.Waiting[:40], p.Waiting[n-60:])
					}
				}
				_, err = h.Cut(t.Context(), alice, log)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Complete(t.Context(), well, module.Done{To: well.Number + 20}); err != nil {
				t.Fatal(err)
			}
		}
	}
	claim := func() {
		r := module.ClaimRequest{
			DueUser: module.DueUser{User: alice, Gate: gate}, Lease: time.Hour, Limit: 1, Read: 4, Pushers: []module.PusherGate{{Pusher: "dead", Gate: gate}},
		}
		got := h.Claim(t.Context(), []module.ClaimRequest{r})[0]
		if got.Err != nil || len(got.Value.Pushers) != 1 || len(got.Value.Pushers[0].Notifications) != 4 {
			t.Fatalf("got %+v", got)
		}
		one := got.Value.Pushers[0]
		if all, _, err := h.Read(t.Context(), one.Claim, 16); err != nil || len(all) != 16 {
			t.Fatalf("read %d, %v", len(all), err)
		}
		if err := h.Postpone(t.Context(), one.Claim, 0, module.Trouble{}, false); err != nil {
			t.Fatal(err)
		}
	}
	calls := map[int]string{}
	for _, passed := range []int{200, 5000} {
		pass(passed)
		took := scriptTime(t, client, claim)
		client.ConfigResetStat(t.Context())
		claim()
		var all []string
		for _, found := range anyStats.FindAllStringSubmatch(client.Info(t.Context(), "commandstats").Val(), -1) {
			if found[1] != "config|resetstat" && found[1] != "info" {
				all = append(all, found[1]+" "+found[2])
			}
		}
		slices.Sort(all)
		calls[passed] = fmt.Sprint(all)
		t.Logf("after %d: the scripts take %v, %s", passed, took, calls[passed])
	}
	if calls[200] != calls[5000] {
		t.Error("the number of commands grows")
	}
}
