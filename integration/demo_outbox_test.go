package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	demoOutbox     = "demo:outbox:{!r:localhost}" // the rows of the test's room
	outboxAge      = 10                           // seconds until another host hands a row over
	outboxSenders  = 8
	outboxAnswered = 100 // events that the host answers under load before it is killed
)

var outboxMembers = []mxid.UserID{"@alice:localhost", "@bob:localhost", "@carol:localhost", "@dave:localhost"}

// death is the step of an event at which a demo host is killed. The first script with the event stores it with its row
// in the outbox, and the others add to the logs of the four members.
type death struct {
	step   string
	stalls func(*redistest.Proxy) *redistest.Fault // the command that the host waits for
	row    bool                                    // the outbox has the event
	after  bool                                    // the event is answered before
	lost   bool                                    // the outbox never had the event, so no host sends it
}

var deaths = []death{
	{"the row is not written", func(p *redistest.Proxy) *redistest.Fault { return p.HoldRequest(1, "EVAL", "EVALSHA") }, false, false, true},
	{"the row is written", func(p *redistest.Proxy) *redistest.Fault { return p.StallReply(1, "EVAL", "EVALSHA") }, true, false, false},
	{"nothing is handed over", func(p *redistest.Proxy) *redistest.Fault { return p.HoldRequest(2, "EVAL", "EVALSHA") }, true, false, false},
	{"a part is handed over", func(p *redistest.Proxy) *redistest.Fault { return p.HoldRequest(4, "EVAL", "EVALSHA") }, true, false, false},
	{"all is handed over", func(p *redistest.Proxy) *redistest.Fault { return p.StallReply(5, "EVAL", "EVALSHA") }, true, false, false},
	{"the row is not deleted", func(p *redistest.Proxy) *redistest.Fault { return p.HoldRequest(1, "HDEL") }, true, true, false},
	{"the row is deleted", func(p *redistest.Proxy) *redistest.Fault { return p.StallReply(1, "HDEL") }, false, true, false},
}

// arrival says how often an event may arrive at each member: at least so often, and once from each host that has run
// since the event came. A host that is killed before it has noted a notification as sent leaves it to the next.
type arrival struct{ least, firstHost int }

type outboxDeaths struct {
	t       *testing.T
	server  *redistest.Server
	client  *redis.Client
	arrived receiver.Recorder
	hosts   int // that were started
	want    map[string]arrival
	never   map[string]bool // events that must not arrive
}

// The demo host is killed at each step from the request to its answer. Another host then hands over the events in
// the outbox: a new host or, with -chaos, a host that ran all the time.
func TestAKilledDemoHostLosesNoEvent(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	o := &outboxDeaths{t: t, server: server, client: server.Client(t), want: map[string]arrival{}, never: map[string]bool{}}
	o.setPushers()
	o.loadScripts()
	var other *demo
	if *chaosTime > 0 {
		other = o.start(server.Addr())
	}
	for n, d := range deaths {
		o.die(fmt.Sprintf("$death%d", n), d)
	}
	o.dieUnderLoad()
	if other == nil {
		o.wait("the rows are old enough", o.areOld)
		other = o.start(server.Addr())
	}
	o.wait("the outbox is empty", func() bool { return o.client.HLen(t.Context(), demoOutbox).Val() == 0 })
	if err := o.send(other, "$last"); err != nil {
		t.Fatal(err)
	}
	o.want["$last"] = arrival{1, o.hosts}
	o.wait("the last one has arrived", func() bool { return len(o.counts()["$last"]) == len(outboxMembers) })
	o.judge()
}

func (o *outboxDeaths) setPushers() {
	gateway := httptest.NewServer(receiver.New(o.arrived.Add))
	o.t.Cleanup(gateway.Close)
	push, err := pushfx.New(o.client, allowLoopback(pushfx.DefaultConfig()), pushfx.Options{})
	for _, user := range outboxMembers {
		if err == nil {
			err = push.Pushers.Set(o.t.Context(), user, pusherAt(gateway.URL+receiver.Path, string(user)), pusher.KeepOthers)
		}
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// loadScripts sends an event, so that Redis knows all scripts.
func (o *outboxDeaths) loadScripts() {
	host := o.start(o.server.Addr())
	if err := o.send(host, "$first"); err != nil {
		o.t.Fatal(err)
	}
	o.want["$first"] = arrival{1, o.hosts}
	host.kill()
}

func (o *outboxDeaths) start(redisAddress string) *demo {
	o.hosts++
	return startDemo(o.t, "-redis-mode", "standalone", "-redis", redisAddress)
}

func (o *outboxDeaths) send(d *demo, event string) error {
	ctx, cancel := context.WithTimeout(o.t.Context(), never)
	defer cancel()
	members, err := json.Marshal(outboxMembers)
	if err != nil {
		return err
	}
	body := fmt.Sprintf(`{"event_id":%q,"room_id":"!r:localhost","members":%s,"type":"m.room.message","content":{}}`, event, members)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/_demo/send", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer demo-sender")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %d", answer.StatusCode)
	}
	return nil
}

func (o *outboxDeaths) die(event string, at death) {
	o.t.Helper()
	proxy := redistest.NewProxy(o.t, o.server)
	host := o.start(proxy.Addr())
	stalled := at.stalls(proxy).With(event)
	if at.after {
		if err := o.send(host, event); err != nil {
			o.t.Fatal(err)
		}
		<-stalled.Struck()
		host.kill()
	} else {
		answered := make(chan error, 1)
		go func() { answered <- o.send(host, event) }()
		select {
		case <-stalled.Struck():
		case err := <-answered:
			o.t.Fatalf("%s: the event was answered: %v", at.step, err)
		}
		host.kill()
		if err := <-answered; err == nil {
			o.t.Errorf("%s: the event was answered", at.step)
		}
	}
	o.want[event], o.never[event] = arrival{1, o.hosts}, at.lost
	if row := o.client.HExists(o.t.Context(), demoOutbox, event).Val(); row != at.row {
		o.t.Errorf("%s: the row is there: %v, want %v", at.step, row, at.row)
	}
}

func (o *outboxDeaths) dieUnderLoad() {
	host := o.start(o.server.Addr())
	var mu sync.Mutex
	answered, enough := 0, make(chan struct{})
	var senders sync.WaitGroup
	for sender := range outboxSenders {
		senders.Go(func() {
			for n := 0; ; n++ {
				event := fmt.Sprintf("$load%d-%d", sender, n)
				err := o.send(host, event)
				mu.Lock()
				if err != nil {
					o.want[event] = arrival{0, o.hosts}
					mu.Unlock()
					return
				}
				o.want[event] = arrival{1, o.hosts}
				if answered++; answered == outboxAnswered {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	host.kill()
	senders.Wait()
	rows, err := o.client.HKeys(o.t.Context(), demoOutbox).Result()
	if err != nil {
		o.t.Fatal(err)
	}
	for _, event := range rows {
		o.want[event] = arrival{1, o.hosts} // the event is committed
	}
}

func (o *outboxDeaths) areOld() bool {
	rows, err := o.client.HVals(o.t.Context(), demoOutbox).Result()
	now, errTime := o.client.Time(o.t.Context()).Result()
	if err != nil || errTime != nil {
		return false
	}
	for _, row := range rows {
		text, _, _ := strings.Cut(row, " ")
		if written, err := strconv.ParseInt(text, 10, 64); err != nil || now.Unix()-written < outboxAge {
			return false
		}
	}
	return true
}

func (o *outboxDeaths) wait(what string, isSo func() bool) {
	o.t.Helper()
	for deadline := time.Now().Add(never); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Fatalf("not so in time: %s", what)
		}
	}
}

func (o *outboxDeaths) counts() map[string]map[string]int {
	counts := map[string]map[string]int{}
	all, _ := o.arrived.All()
	for _, n := range all {
		if counts[n.EventID] == nil {
			counts[n.EventID] = map[string]int{}
		}
		counts[n.EventID][n.Devices[0].Pushkey]++
	}
	return counts
}

// judge checks the counts. Each member gets the last event after all others, so all have arrived. The outbox may hand an
// event over a second time, long after the first: then the members' logs no longer know it, and it arrives once more.
func (o *outboxDeaths) judge() {
	counts, twice := o.counts(), 0
	for event, want := range o.want {
		least, most := want.least, o.hosts-want.firstHost+1
		if most > 1 {
			most++ // the outbox
		}
		if o.never[event] {
			least, most = 0, 0
		}
		for _, user := range outboxMembers {
			got := counts[event][string(user)]
			if got < least || got > most {
				o.t.Errorf("%s has arrived %d times at %s, want %d to %d", event, got, user, least, most)
			}
			if got > 1 {
				twice++
			}
		}
	}
	o.t.Logf("%d events, %d notifications more than once", len(o.want), twice)
}
