package main

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

// A host hands over events that another host left in the outbox, as soon as it no longer holds them.
func TestAHostEmptiesTheOutboxOfADeadOne(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d, db := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr()), hosttest.OpenData(t)
	d.setPusherHere("demo-alice", "phone", "")
	d.send("demo-bob", "$1", "")
	var now = time.Now().UnixMilli()
	for id, until := range map[string]int64{"$old": now, "$held": now + time.Hour.Milliseconds()} {
		err := db.Exec(t.Context(), `INSERT INTO events (room_id, event_id, json, parent, thread, hops, power) VALUES (?, ?, ?, '', 'main', 0, '')`, teaRoom, id,
			fmt.Sprintf(`{"event_id":%q,"room_id":%q,"type":"m.room.message","sender":"@bob:localhost","content":{}}`, id, teaRoom))
		if err == nil {
			err = db.Exec(t.Context(), `INSERT INTO push_outbox (id, room_id, until) SELECT MAX(position), ?, ? FROM events`, teaRoom, until)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "the event is printed", func() bool { return strings.Contains(d.stdout.String(), "event $old") })
	poll(t, "its row is removed", func() bool {
		var left string
		err := db.Writer().QueryRowContext(t.Context(), `SELECT GROUP_CONCAT(event_id) FROM push_outbox JOIN events ON id = position`).Scan(&left)
		return err == nil && left == "$held"
	})
	if strings.Contains(d.stdout.String(), "event $held") {
		t.Error("the event that another host holds was sent, too")
	}
	if got := d.syncRooms("demo-alice", "").Rooms.Join[teaRoom].ids(); got != "$1 $old" {
		t.Errorf("the sync has %s", got)
	}
}

// A host stops while users send events there. It hands over the events that it has answered, or gives them to another
// host: each arrives at once.
func TestAStopDelaysNoEvent(t *testing.T) {
	t.Parallel()
	const senders, before = 8, 100
	server := redistest.Single(t)
	var arrived receiver.Recorder
	gateway := httptest.NewServer(receiver.New(arrived.Add))
	t.Cleanup(gateway.Close)
	flags := []string{"-redis-mode", "standalone", "-redis", server.Addr()}
	stays, stops := startDemo(t, flags...), startDemo(t, flags...)
	stays.setPusherAt(gateway.URL+receiver.Path, "demo-alice", "phone", "")
	var mu sync.Mutex
	answered, stopped := map[string]time.Time{}, false
	enough := make(chan struct{})
	var running sync.WaitGroup
	for sender := range senders {
		running.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("$%d-%d", sender, n)
				a, err := stops.try("POST", sendPath, "demo-bob", strings.Replace(fmt.Sprintf(teaEvent, id, ""), "!tea", fmt.Sprint("!room", sender), 1))
				mu.Lock()
				if err == nil && a.status == 200 {
					answered[id] = time.Now()
				}
				if len(answered) == before && !stopped {
					stopped = true
					close(enough)
				}
				mu.Unlock()
				if err != nil || a.status != 200 {
					return
				}
			}
		})
	}
	<-enough
	if status := stops.stop(); status != exitOK {
		t.Errorf("status %d: %s", status, stops.stderr)
	}
	running.Wait()
	var held int
	err := hosttest.OpenData(t).Writer().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM push_outbox WHERE until > ?`, time.Now().UnixMilli()).Scan(&held)
	if err != nil || held > 0 {
		t.Errorf("the stopped host holds %d events, %v", held, err)
	}
	at := func() map[string]time.Time {
		all, _ := arrived.All()
		times := map[string]time.Time{}
		for _, n := range all {
			times[n.EventID] = n.Ended
		}
		return times
	}
	poll(t, "all events have arrived", func() bool { return len(at()) >= len(answered) })
	var longest time.Duration
	for id, when := range answered {
		longest = max(longest, at()[id].Sub(when))
	}
	t.Logf("%d events, the latest after %v", len(answered), longest)
}

// A host stops while Redis is silent. It leaves its events to other hosts, which need not wait for the end of a lease.
func TestAStopLeavesEventsThatWaitForRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr(), "-drain", "100ms")
	d.send("demo-bob", "$1", "")
	server.Pause()
	defer server.Resume()
	d.send("demo-bob", "$2", "")
	if status := d.stop(); status != exitOK {
		t.Errorf("status %d", status)
	}
	var waiting, held int
	err := hosttest.OpenData(t).Writer().QueryRowContext(t.Context(),
		`SELECT COUNT(*), COALESCE(SUM(held), 0) FROM push_outbox`).Scan(&waiting, &held)
	if err != nil || waiting == 0 || held > 0 {
		t.Errorf("%d events wait, the stopped host holds %d, %v", waiting, held, err)
	}
}

// A database that cannot be written refuses what needs it, and says so in the log. Nothing is lost.
func TestAFailingDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	d, db := startDemo(t, "-data", hosttest.DataFile(t)), hosttest.OpenData(t)
	d.setPusherHere("demo-alice", "phone", "")
	d.send("demo-bob", "$1", "")
	lock, err := db.Writer().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(teaEvent, "$2", ""), 503, "")
	d.expect("GET", v3+"/rooms/"+teaRoom+"/event/$1", "demo-alice", "", 200, "")
	d.expect("GET", v3+"/rooms/"+teaRoom+"/event/$2", "demo-alice", "", 404, "")
	if !strings.Contains(d.stderr.String(), "locked") {
		t.Errorf("logged %s", d.stderr)
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(teaEvent, "$2", ""), 200, "")
	poll(t, "the event is printed", func() bool { return strings.Contains(d.stdout.String(), "event $2") })
}
