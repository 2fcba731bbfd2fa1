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
