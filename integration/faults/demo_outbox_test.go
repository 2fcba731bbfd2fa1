package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	outboxSenders  = 8
	outboxAnswered = 100 // events that the host answers under load before it is killed
)

var outboxMembers = []mxid.UserID{"@alice:localhost", "@bob:localhost", "@carol:localhost", "@dave:localhost"}

// death is the step of an event at which a demo host is killed. The scripts with the event add to the logs of the four
// members.
type death struct {
	step   string
	stalls func(p *redistest.Proxy, event string) *redistest.Fault // the command that the host waits for
}

const countOf = "unread:{@alice:localhost}"

var deaths = []death{
	{"nothing is counted", func(p *redistest.Proxy, _ string) *redistest.Fault {
		return p.HoldRequest(1, "RPUSH", "RPUSHX").With(countOf)
	}},
	{"some are counted", func(p *redistest.Proxy, _ string) *redistest.Fault {
		return p.StallReply(1, "RPUSH", "RPUSHX").With(countOf)
	}},
	{"nothing is handed over", func(p *redistest.Proxy, event string) *redistest.Fault {
		return p.HoldRequest(1, "EVAL", "EVALSHA").With(event)
	}},
	{"a part is handed over", func(p *redistest.Proxy, event string) *redistest.Fault {
		return p.HoldRequest(3, "EVAL", "EVALSHA").With(event)
	}},
	{"all is handed over", func(p *redistest.Proxy, event string) *redistest.Fault {
		return p.StallReply(4, "EVAL", "EVALSHA").With(event)
	}},
}

// arrival says how often an event may arrive at each member: at least so often, and once from each host that has run
// since the event came. A host that is killed before it has noted a notification as sent leaves it to the next.
type arrival struct{ least, firstHost int }

type outboxDeaths struct {
	t       *testing.T
	server  *redistest.Server
	client  *redis.Client
	db      *data.DB
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
	o := &outboxDeaths{t: t, server: server, client: server.Client(t), db: hosttest.OpenData(t), want: map[string]arrival{}, never: map[string]bool{}}
	o.setPushers()
	o.loadScripts()
	var other *hosttest.Demo
	if *chaosTime > 0 {
		other = o.start(server.Addr())
	}
	for n, d := range deaths {
		o.die(fmt.Sprintf("$death%d", n), d)
	}
	o.dieBeforeTheRowIsStored("$locked")
	o.dieBeforeTheRowGoes("$lockedlater")
	o.dieUnderLoad()
	o.lapse()
	if other == nil {
		other = o.start(server.Addr())
	}
	o.wait("the outbox is empty", func() bool { return len(o.rows()) == 0 })
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
	push, err := pushfx.New(o.client, hosttest.AllowLoopback(pushfx.DefaultConfig()), pushfx.Options{})
	for _, user := range outboxMembers {
		if err == nil {
			err = push.Pushers.Set(o.t.Context(), user, hosttest.PusherAt(gateway.URL+receiver.Path, string(user)), pusher.KeepOthers)
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
	host.Kill()
}

func (o *outboxDeaths) start(redisAddress string) *hosttest.Demo {
	o.hosts++
	return hosttest.StartDemo(o.t, "-redis-mode", "standalone", "-redis", redisAddress)
}

func (o *outboxDeaths) send(d *hosttest.Demo, event string) error {
	members, err := json.Marshal(outboxMembers)
	if err != nil {
		return err
	}
	return d.SendEvent(fmt.Sprintf(`{"event_id":%q,"room_id":"!r:localhost","members":%s,"type":"m.room.message","content":{}}`, event, members))
}

func (o *outboxDeaths) die(event string, at death) {
	o.t.Helper()
	proxy := redistest.NewProxy(o.t, o.server)
	host := o.start(proxy.Addr())
	stalled, answered := at.stalls(proxy, event), make(chan error, 1)
	go func() { answered <- o.send(host, event) }()
	<-stalled.Struck()
	host.Kill()
	<-answered
	o.want[event] = arrival{1, o.hosts}
	if !slices.Contains(o.rows(), event) {
		o.t.Errorf("%s: there is no row", at.step)
	}
}

// lock keeps all hosts from writing to the database.
func (o *outboxDeaths) lock() (unlock func()) {
	o.t.Helper()
	tx, err := o.db.Writer().BeginTx(o.t.Context(), nil)
	if err != nil {
		o.t.Fatal(err)
	}
	return func() { tx.Rollback() }
}

func (o *outboxDeaths) dieBeforeTheRowIsStored(event string) {
	o.t.Helper()
	host, unlock, answered := o.start(o.server.Addr()), o.lock(), make(chan error, 1)
	go func() { answered <- o.send(host, event) }()
	host.Kill()
	if err := <-answered; err == nil {
		o.t.Errorf("%s was answered", event)
	}
	unlock()
	o.want[event], o.never[event] = arrival{0, o.hosts}, true
}

func (o *outboxDeaths) dieBeforeTheRowGoes(event string) {
	o.t.Helper()
	proxy := redistest.NewProxy(o.t, o.server)
	host := o.start(proxy.Addr())
	stalled := proxy.StallReply(4, "EVAL", "EVALSHA").With(event)
	go func() { _ = o.send(host, event) }()
	<-stalled.Struck()
	unlock := o.lock()
	stalled.Release()
	o.wait(event+" has arrived", func() bool { return len(o.counts()[event]) == len(outboxMembers) })
	host.Kill()
	unlock()
	o.want[event] = arrival{1, o.hosts}
	if !slices.Contains(o.rows(), event) {
		o.t.Errorf("%s: there is no row", event)
	}
}

// lapse ends the leases of the killed hosts.
func (o *outboxDeaths) lapse() {
	o.t.Helper()
	if err := o.db.Exec(o.t.Context(), `UPDATE push_outbox SET until = 0`); err != nil {
		o.t.Fatal(err)
	}
}

// rows returns the events in the outbox.
func (o *outboxDeaths) rows() []string {
	o.t.Helper()
	events, err := data.All(o.t.Context(), o.db, data.Value[string], `SELECT event_id FROM push_outbox JOIN events ON id = position`)
	if err != nil {
		o.t.Fatal(err)
	}
	return events
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
	host.Kill()
	senders.Wait()
	for _, event := range o.rows() {
		o.want[event] = arrival{1, cmp.Or(o.want[event].firstHost, o.hosts)} // the event is committed
	}
}

func (o *outboxDeaths) wait(what string, isSo func() bool) {
	o.t.Helper()
	for deadline := time.Now().Add(hosttest.Never); !isSo(); time.Sleep(10 * time.Millisecond) {
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

// judge checks the counts. Each member gets the last event after all others, so all have arrived.
func (o *outboxDeaths) judge() {
	counts, twice := o.counts(), 0
	for event, want := range o.want {
		least, most := want.least, o.hosts-want.firstHost+1
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
