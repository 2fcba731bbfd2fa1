package host

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread/fold"
	"github.com/pushfx/pushfx/module/unread/redisunread"
)

// TestALongRecordIsReplacedWithoutReadingTheOldOne compares the time that Redis takes with
// that of a script that only gets the new record.
func TestALongRecordIsReplacedWithoutReadingTheOldOne(t *testing.T) {
	redistest.Require(t)
	client := redistest.Single(t).Client(t)
	store, err := redisunread.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range [][2]string{{"slowlog-log-slower-than", "0"}, {"slowlog-max-len", "1000"}} {
		if err := client.ConfigSet(t.Context(), setting[0], setting[1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	const rounds = 30
	record := func(i int) string { return fmt.Sprintf("%0*d", fold.MaxBytes, i) }
	replace := func(i int, first ...string) {
		done := store.Replace(t.Context(), []module.UnreadReplacement{{User: hosttest.Alice, First: first, By: record(i)}})[0]
		if done.Err != nil || !done.Value {
			t.Fatalf("replacement %d: done is %t, error %v", i, done.Value, done.Err)
		}
	}
	op := strings.Repeat("o", 75)
	var ops []string
	for range 64 {
		ops = append(ops, op)
		store.Append(t.Context(), []module.UserText{{User: hosttest.Alice, Text: op}})
	}
	replace(0, ops...)
	for i := range rounds {
		for range ops {
			if appended := store.Append(t.Context(), []module.UserText{{User: hosttest.Alice, Text: op}})[0]; appended.Err != nil {
				t.Fatal(appended.Err)
			}
		}
		replace(i+1, append([]string{record(i)}, ops...)...)
		if err := client.Eval(t.Context(), "return 1", []string{stored.Keys{}.Unread(hosttest.Alice)}, record(i)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	logged, err := client.SlowLogGet(t.Context(), 1000).Result()
	if err != nil {
		t.Fatal(err)
	}
	median := func(command string) time.Duration {
		var took []time.Duration
		for _, entry := range logged {
			if strings.EqualFold(entry.Args[0], command) {
				took = append(took, entry.Duration)
			}
		}
		slices.Sort(took)
		if len(took) < rounds/2 {
			t.Fatalf("%d entries of %s", len(took), command)
		}
		return took[len(took)/2]
	}
	bare, took := median("EVAL"), median("EVALSHA")
	t.Logf("a script that gets a record of 512 KiB takes %s, one that replaces such a record and 64 operations %s", bare, took)
	if took > 2*bare {
		t.Errorf("the replacement takes %s, and getting the text alone %s", took, bare)
	}
}
