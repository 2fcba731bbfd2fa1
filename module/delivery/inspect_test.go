package delivery

import (
	"reflect"
	"testing"
	"time"
)

func TestWhatIsHeldIsTold(t *testing.T) {
	t.Parallel()
	since, due, added := time.UnixMilli(1000), time.UnixMilli(3000), time.UnixMilli(500)
	r := record{
		user: "@alice:example.org", setAt: 17, attempts: 3, due: due, since: since, trouble: timedOut, dropped: 7,
		kept: []*notification{{event: &event{id: "$a", room: "!r:x"}, added: added}, {event: &event{id: "$b", room: "!r:x"}, added: since}},
	}
	got, err := ReadHeld(r.encode())
	want := Held{
		User: "@alice:example.org", SetAt: 17, Outcome: PostTimeout, Attempts: 3, Since: since, Due: due, Kept: []time.Time{added, since}, Dropped: 7,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := ReadHeld([]byte("x")); err == nil {
		t.Error("garbage is read")
	}
}
