package redisqueue_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
)

// The time of a script does not grow with what waits, or with the ids that a log knows. The
// limits are about five times what an idle machine takes.
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
	checked(h.Renew(t.Context(), one, time.Hour, false))
	for _, length := range []int{1, 600} {
		for n < length {
			appends(append(many, "p")...)()
		}
		for _, test := range []struct {
			name  string
			limit time.Duration
			do    func()
		}{
			{"append for a pusher", 200 * time.Microsecond, appends("p")},
			{"append for 100 pushers", time.Millisecond, appends(many...)},
			{"renew", 150 * time.Microsecond, func() { checked(h.Renew(t.Context(), one, time.Hour, false)) }},
			{"complete", 200 * time.Microsecond, func() {
				_, err := h.Complete(t.Context(), one, module.Done{To: one.Number + 1})
				checked(err)
			}},
		} {
			got := scriptTime(t, client, test.do)
			t.Logf("%s, %d wait: %v", test.name, length, got)
			if got > test.limit {
				t.Errorf("%s, %d wait: the scripts take %v, want at most %v", test.name, length, got, test.limit)
			}
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
