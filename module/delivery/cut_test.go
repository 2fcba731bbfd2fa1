package delivery

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
)

// A log is written as "h1 l2 c" for notifications 1 to 3: high priority in room 1, low priority in room 2, counts. The
// ones after "|" are young.
func readLog(text string, places ...module.LogPusher) (log module.Log) {
	old, young, _ := strings.Cut(text, "|")
	add := func(words string, added time.Time) {
		for _, word := range strings.Fields(words) {
			log.Notifications = append(log.Notifications, module.Notification{
				Number: int64(len(log.Notifications) + 1), Priority: module.Priority(word[0]), Room: word[1:], Added: added,
			})
		}
	}
	add(old, time.Unix(1000, 0))
	add(young, time.Unix(1000, 0).Add(keepFor))
	log.Pushers = places
	return log
}

func at(number int64) module.LogPusher { return module.LogPusher{Number: number} }

func claimedAt(number int64) module.LogPusher { return module.LogPusher{Number: number, Claimed: true} }

func TestTheLeastImportantAreCut(t *testing.T) {
	t.Parallel()
	for label, test := range map[string]struct {
		log   module.Log
		limit int
		want  []int64
	}{
		"short":                               {readLog("h1 h1", at(1)), 2, nil},
		"counts first":                        {readLog("l1 h1 c l1 c h1", at(1)), 4, []int64{3, 5}},
		"then low priority, the oldest first": {readLog("h1 l1 h1 l2 l2 c", at(1)), 3, []int64{2, 4, 6}},
		"then the oldest of the room with most": {
			readLog("h2 h1 h1 h2 h1 h3", at(1)), 3, []int64{1, 2, 3},
		},
		"what a claimed pusher sends stays":     {readLog("h1 l1 l1 h1", claimedAt(2), claimedAt(4)), 2, []int64{3}},
		"what all have passed counts for none":  {readLog("l1 l1 l1 h1 l1", at(4), at(5)), 2, nil},
		"what one has passed counts":            {readLog("l1 l1 l1 h1 l1", at(2), at(5)), 2, []int64{2, 3}},
		"young ones stay":                       {readLog("h1 h1 | l1 l1 h1", at(1)), 3, nil},
		"also while old ones go":                {readLog("l1 h1 | l1 l1 h1", at(1)), 3, []int64{1}},
		"but not beyond ten times the limit":    {readLog("| h1 l1 l1 l1 l1 l1 l1 l1 l1 l1 h1 h1 h1", at(1)), 1, []int64{2, 3, 4}},
		"then old ones go as well":              {readLog("h1 h1 | l1 l1 l1 l1 l1 l1 l1 l1 l1 l1", at(1)), 1, []int64{1, 3, 4}},
		"without pushers everything was passed": {readLog("l1 l1 l1"), 1, nil},
	} {
		t.Run(label, func(t *testing.T) {
			if got := leastImportant(test.log, test.limit, time.Unix(1000, 0).Add(keepFor)); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// While a gateway is away, the log stays near its bound, and is rarely read.
func TestALongLogIsCut(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		reads := 0
		w.queue.Fail = func(operation string) error {
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
