package delivery

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
)

// Notifications 1 to 4 are written as "h1 l2 c r1": high priority in room 1, low priority in room 2, counts, a call that rings
// in room 1. The ones after "|" are young.
func readWaiting(text string) (all []module.Notification) {
	old, young, _ := strings.Cut(text, "|")
	add := func(words string, added time.Time) {
		for _, word := range strings.Fields(words) {
			n := module.Notification{Number: int64(len(all) + 1), Priority: module.Priority(word[0]), Room: word[1:], Added: added}
			if word[0] == 'r' {
				n.Priority, n.Meta = module.HighPriority, content.Meta{Expires: 1, RingsUntil: 1e9}.Text()
			}
			all = append(all, n)
		}
	}
	add(old, time.Unix(1000, 0))
	add(young, time.Unix(1000, 0).Add(keepFor))
	return all
}

func TestTheLeastImportantAreCut(t *testing.T) {
	t.Parallel()
	for label, test := range map[string]struct {
		waiting string
		spared  []int64
		limit   int
		want    []int64
	}{
		"short":                               {"h1 h1", nil, 2, nil},
		"counts first":                        {"l1 h1 c l1 c h1", nil, 4, []int64{3, 5}},
		"then low priority, the oldest first": {"h1 l1 h1 l2 l2 c", nil, 3, []int64{2, 4, 6}},
		"then the oldest of the room with most": {
			"h2 h1 h1 h2 h1 h3", nil, 3, []int64{1, 2, 3},
		},
		"low priority counts for its room":   {"h1 h2 h2 l1 l1 h3", nil, 3, []int64{2, 4, 5}},
		"spared ones stay":                   {"h1 l1 l1 h1", []int64{2, 4}, 2, []int64{1, 3}},
		"young ones stay":                    {"h1 h1 | l1 l1 h1", nil, 3, nil},
		"also while old ones go":             {"l1 h1 | l1 l1 h1", nil, 3, []int64{1}},
		"but not beyond ten times the limit": {"| h1 l1 l1 l1 l1 l1 l1 l1 l1 l1 h1 h1 h1", nil, 1, []int64{2, 3, 4}},
		"then old ones go as well":           {"h1 h1 | l1 l1 l1 l1 l1 l1 l1 l1 l1 l1", nil, 1, []int64{1, 3, 4}},
		"a call that rings last":             {"r1 h1 r2 h1 h2 l2", nil, 3, []int64{2, 4, 6}},
		"of several the oldest first":        {"r1 r2 h1 r3 l2", nil, 1, []int64{1, 2, 3, 5}},
		"of a room only the newest":          {"r1 h1 r1 h2", nil, 2, []int64{1, 2}},
		"nothing":                            {"", nil, 1, nil},
	} {
		t.Run(label, func(t *testing.T) {
			if got := leastImportant(readWaiting(test.waiting), test.spared, test.limit, time.Unix(1000, 0).Add(keepFor)); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// A tablet whose gateway is dead costs the phone nothing.
func TestADeadTabletCostsThePhoneNothing(t *testing.T) {
	for label, test := range map[string]struct {
		messages int
		every    time.Duration
		outage   time.Duration // of the phone's gateway
		delay    time.Duration // of the phone's notifications
	}{
		"in a short outage": {40, 3 * time.Second, 2 * time.Minute, 0},
		"under Attention":   {100, 500 * time.Millisecond, 0, time.Minute},
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				r := &reader{}
				w.attention = r
				w.answer("tablet", always(502))
				w.set(name1, "tablet", "tablet")
				w.set(name1, "phone", "phone")
				d := w.host()
				for e := range 300 { // mentions have a high priority
					w.event(d, fmt.Sprintf(`{"event_id":"$%d","room_id":"!room%d:h","type":"m.room.message","sender":"@s:h",`+
						`"content":{"body":"hi","msgtype":"m.text","m.mentions":{"user_ids":["@one:h"]}}}`, e, e%100), name1)
					time.Sleep(time.Second)
				}
				r.do(func() { r.delay = test.delay })
				if test.outage > 0 {
					w.answer("phone", always(502))
				}
				var want []string
				for e := range test.messages {
					w.notify(d, 1000+e, "!group:h", name1)
					want = append(want, fmt.Sprint("$", 1000+e))
					time.Sleep(test.every)
				}
				time.Sleep(max(0, test.outage-time.Duration(test.messages)*test.every))
				r.do(func() { r.delay = 0 })
				w.answer("phone", always(200))
				w.wait(10*time.Minute, func() bool { return len(w.delivered("phone")) >= 300+test.messages })
				var got []string
				for _, s := range w.delivered("phone")[min(300, len(w.delivered("phone"))):] {
					got = append(got, s.event)
				}
				if !slices.Equal(got, want) {
					t.Errorf("the phone got %d of %d: %v", len(got), test.messages, got)
				}
				if n := w.queue.Waiting(); n < 100 || n > 100+20+20+60 {
					t.Errorf("%d wait for the tablet", n)
				}
				w.answer("tablet", always(200))
				w.wait(10*time.Minute, func() bool { return w.queue.Waiting() == 0 })
			})
		})
	}
}

// What a deleted pusher had before it is counted, not what was cut before.
func TestADeletedPusherDropsWhatItHad(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("tablet", always(502))
		w.set(name1, "tablet", "tablet")
		d := w.host()
		for e := range 500 {
			w.notify(d, e, "!group:h", name1)
			time.Sleep(time.Second)
		}
		w.unset(name1)
		w.wait(30*time.Minute, func() bool { return w.queue.Waiting() == 0 })
		if w.drops(DropGone)+w.drops(DropCoalesced) != 500 {
			t.Errorf("%d were dropped as gone, %d as coalesced", w.drops(DropGone), w.drops(DropCoalesced))
		}
	})
}

// While a gateway is away, the log stays near its bound, and is rarely read.
func TestALongLogIsCut(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		reads := 0
		w.queue.Fail = func(operation string, _ mxid.UserID) error {
			if operation == "log" {
				reads++
			}
			return nil
		}
		d := w.host()
		for e := range 1000 {
			w.notify(d, e, "!r:h", name1)
			time.Sleep(time.Second)
			if n := w.queue.Waiting(); n > 100+20+20+30 {
				t.Fatalf("%d wait", n)
			}
		}
		if reads > 1000/cutEvery || w.drops(DropCoalesced)+w.queue.Waiting() != 1000 {
			t.Errorf("%d reads, %d dropped, %d wait", reads, w.drops(DropCoalesced), w.queue.Waiting())
		}
		w.answer("gw", always(200))
		w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
	})
}

func TestThePageHasTheBoundsOfTheCode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("for %d ms at most, before a mail %.0f s", beforeFor.Milliseconds(), askAll.Seconds()),
		fmt.Sprintf("more than `MaxBacklog` (%d) and a fifth wait for a pusher", DefaultConfig().MaxBacklog),
		fmt.Sprintf("of those older than %.0f s, and of younger ones if more than 1,000 wait", keepFor.Seconds()),
	} {
		if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
			t.Errorf("README.md does not say %q", want)
		}
	}
}
