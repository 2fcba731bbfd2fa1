package redisqueue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestRoundTripsOfARetry(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	q := openQueue(t, client)
	shards := []int{3}
	batch := module.DeliveryBatch{
		Shard: 3, Key: "event", Window: time.Minute, Lease: time.Minute, MaxBacklog: 10, MaxUserBytes: 1000,
		Additions: []module.Addition{{Target: "pusher", Gate: "gate", User: "user0000", Notification: module.Notification{
			ID: "0000000000000001", Priority: module.HighPriority, Room: "room0000", Text: "text",
		}}},
	}
	if err := q.Enqueue(t.Context(), []module.DeliveryBatch{batch})[0].Err; err != nil {
		t.Fatal(err)
	}
	trips := redistest.RecordTrips(client)
	retry := func(limit int) {
		t.Helper()
		trips.Take()
		found, err := q.Claim(t.Context(), module.Look{Shards: shards, Limit: 1, Lease: time.Minute, Gate: func(string) (int, bool) { return 1, false }})
		if err != nil || len(found.Backlogs) != 1 {
			t.Fatalf("claimed %+v, %v", found, err)
		}
		c := found.Backlogs[0].Claim
		if all, err := q.Read(t.Context(), c, limit); err != nil || len(all) != 1 || all[0].Text != "text" {
			t.Fatalf("read %+v, %v", all, err)
		}
		if err := q.Postpone(t.Context(), c, c.Gate, 0, &module.Trouble{Text: "failed"}); err != nil {
			t.Fatal(err)
		}
	}
	retry(1) // loads the scripts
	for limit, read := range map[int]string{1: "hget+hget", 16: "hget+lrange+hget"} {
		retry(limit)
		if sent := trips.Take(); !slices.Equal(sent, []string{"evalsha", "evalsha", read, "evalsha"}) {
			t.Errorf("sent %q", sent)
		}
	}
}
