package delivery

import (
	"fmt"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	events "github.com/pushfx/pushfx/module/handover"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread"
)

// ring returns a call that has begun some time ago.
func ring(id int, age time.Duration) string {
	return fmt.Sprintf(`{"event_id":"$%d","room_id":"!r:h","type":"m.call.invite","sender":"@s:h","origin_server_ts":%d,"content":{"lifetime":30000}}`,
		id, time.Now().Add(-age).UnixMilli())
}

func TestAWaitingCallRingsNoMoreButIsSent(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		d := w.host()
		w.event(d, ring(1, 0), name1)
		time.Sleep(time.Minute)
		w.answer("gw", always(200))
		r.do(func() { r.delay = time.Minute })
		time.Sleep(50 * time.Second)
		before := len(w.delivered("key"))
		time.Sleep(30 * time.Second)
		if after := len(w.delivered("key")); before != 0 || after != 1 || w.drops(DropExpired) != 0 {
			t.Errorf("sent %d times during the delay, %d times in all, dropped %v", before, after, w.dropped)
		}
	})
}

func TestAWaitingCallGoesWhenItsUserJoinsOrDeclines(t *testing.T) {
	for label, event := range map[string]string{
		"joined":           `"type":"m.rtc.member","content":{}`,
		"joined, by state": `"type":"org.matrix.msc3401.call.member","state_key":"_@one:h_PHONE_m.call","content":{}`,
		"declined":         `"type":"m.rtc.decline","content":{"m.relates_to":{"rel_type":"m.reference","event_id":"$1"}}`,
		"rejected":         `"type":"m.call.reject","content":{}`,
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				counts := unread.New(storetest.NewMemory().Unread(), unread.Config{}, w.cfg.MaxAge, nil, nil)
				w.unread = counts
				w.answer("gw", always(502))
				w.set(name1, "key", "gw")
				w.set("@two:h", "other", "gw")
				d := w.host()
				position := int64(0)
				handOver := func(event string, sender mxid.UserID, members ...mxid.UserID) {
					position++
					e := module.NewEvent{Event: module.Event{JSON: event, Position: position, Room: match.Room{MemberCount: 3}}, Sender: sender, Members: membersOf(members)}
					if rest, err := events.New(d, counts).HandOver(w.t.Context(), e, "", nil); rest != "" || err != nil {
						w.t.Fatal(rest, err)
					}
				}
				handOver(ring(1, 0), "@s:h", name1, "@two:h")
				time.Sleep(time.Second)
				handOver(`{"event_id":"$2","room_id":"!r:h","sender":"@one:h",`+event+`}`, name1, "@s:h", "@two:h")
				w.answer("gw", always(200))
				w.wait(20*time.Second, func() bool { return w.queue.Waiting() == 0 })
				rung := map[string]int{} // without the counts
				for _, s := range append(w.delivered("key"), w.delivered("other")...) {
					if s.event == "$1" {
						rung[s.pushkey]++
					}
				}
				if rung["key"] != 0 || rung["other"] != 1 {
					t.Errorf("it rings %v times", rung)
				}
			})
		})
	}
}
