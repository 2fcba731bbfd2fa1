package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

func fixedShards(t *testing.T, newQueue hosts, _ int) {
	q := newQueue(t)
	if err := answer(t, func() error { return q.Open(t.Context(), Shards-1) }); err == nil {
		t.Error("opened with another number of shards")
	}
}

func readAsAdded(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	var every strings.Builder
	for b := range 256 {
		every.WriteByte(byte(b))
	}
	want := []module.Notification{
		{ID: id(1), Priority: module.HighPriority, Room: "room0001", Meta: `{"a":"ü"}`, Text: every.String()},
		{ID: id(2), Priority: module.LowPriority, Room: "room0002", Meta: "", Text: strings.Repeat("x", 1000)},
		{ID: id(3), Priority: module.HighPriority, Room: "room0003", Meta: "3", Text: ""},
	}
	for i, n := range want {
		add(t, []module.DeliveryQueue{q, other}[i%2], shard, "a", n)
	}
	b := claim(t, q, shard, "a", long)
	first := want[0]
	first.Text = ""
	if b.First != first || b.Trouble != none {
		t.Errorf("claimed %+v", b)
	}
	if got := read(t, other, b.Claim); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for limit := 1; limit <= len(want); limit++ {
		for _, b.Claim.First = range []string{"", id(1), id(2), id(9)} { // none, right, and wrong
			var some []module.Notification
			persist(t.Context(), t, func() (err error) {
				some, err = q.Read(t.Context(), b.Claim, limit)
				return err
			})
			if !slices.Equal(some, want[:limit]) {
				t.Errorf("of %d, the first %q: got %q", limit, b.Claim.First, some)
			}
		}
	}
}

func ends(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	for n := 1; n <= 17; n++ {
		b := batch(shard, to("many", one(n))...)
		b.MaxBacklog = 100
		enqueue(t, q, b)
	}
	many := claim(t, q, shard, "many", long).Claim
	if left := complete(t, q, many, id(16)); left != 16 {
		t.Errorf("without the 16th, %d are left", left)
	}
	if got := ids(t, q, many); got != "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17" {
		t.Errorf("without the 16th: got %q", got)
	}
	add(t, q, shard, "a", one(1), one(2), one(3))
	c := claim(t, q, shard, "a", long).Claim
	for _, step := range []struct {
		id   string
		left int
		ids  string
	}{{id(9), 3, "1 2 3"}, {id(2), 2, "1 3"}, {id(2), 2, "1 3"}, {id(1), 1, "3"}} {
		if left := complete(t, q, c, step.id); left != step.left {
			t.Errorf("%s: %d are left, want %d", step.id, left, step.left)
		}
		if got := ids(t, q, c); got != step.ids {
			t.Errorf("%s: got %q, want %q", step.id, got, step.ids)
		}
	}
	// The call may have been repeated after a lost answer.
	if err := answer(t, func() error { _, err := q.Complete(t.Context(), c, id(3), module.Trouble{}, ""); return err }); err != nil {
		wantFenced(t, "the end", err)
	}
	_, err := q.Complete(t.Context(), c, id(3), module.Trouble{}, "")
	wantFenced(t, "behind the end", err)
	if _, found := tryClaim(t, q, shard, "a", long, 0); found {
		t.Error("an empty backlog is due")
	}
	add(t, q, shard, "a", one(4))
	if got := ids(t, q, claim(t, q, shard, "a", long).Claim); got != "4" {
		t.Errorf("got %q", got)
	}
}

func claimedAtOnce(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	additions := append(to("a", one(1)), to("b", one(1))...)
	additions[0].Claim = true
	e := enqueue(t, q, batch(shard, additions...))
	if e.Again { // after a lost answer
		t.Skip("the claim got lost with its answer")
	}
	if len(e.Claims) != 2 || e.Claims[0].Target != (module.Target{Shard: shard, Name: "a"}) || e.Claims[0].Token == 0 || e.Claims[1] != (module.Claim{}) {
		t.Fatalf("got %+v", e)
	}
	if _, found := tryClaim(t, other, shard, "a", long, 0); found {
		t.Error("claimed twice")
	}
	claim(t, other, shard, "b", long)
	additions = to("a", one(2))
	additions[0].Claim = true
	if e := enqueue(t, other, batch(shard, additions...)); e.Claims[0] != (module.Claim{}) {
		t.Errorf("a claim of another's backlog: %+v", e)
	}
	if left := complete(t, q, e.Claims[0], id(1)); left != 1 {
		t.Errorf("%d are left", left)
	}
}

func addedOnce(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	first := batch(shard, to("a", one(1))...)
	enqueue(t, q, first)
	if e := enqueue(t, other, first); !e.Again || len(e.Claims) != 1 {
		t.Errorf("got %+v", e)
	}
	elsewhere := first
	elsewhere.Shard++
	if e := enqueue(t, other, elsewhere); e.Again {
		t.Error("a batch of another shard is known")
	}
	c := claim(t, q, shard, "a", long).Claim
	if got := texts(t, q, c); !slices.Equal(got, []string{"text 1"}) {
		t.Errorf("got %q", got)
	}
	completeLast(t, q, c, id(1))
	enqueue(t, q, first)
	add(t, q, shard, "a", one(2))
	if got := ids(t, q, claim(t, q, shard, "a", long).Claim); got != "2" {
		t.Errorf("added again: %q", got)
	}
	soon := batch(shard+1, to("b", one(1))...)
	soon.Window = short
	enqueue(t, q, soon)
	for deadline := time.Now().Add(patience); enqueue(t, q, soon).Again; time.Sleep(short / 10) {
		if time.Now().After(deadline) {
			t.Fatal("a batch is remembered for longer than the window")
		}
	}
}

func addedOnceByMany(t *testing.T, newQueue hosts, shard int) {
	const batches, writers = 20, 6
	all := make([]module.DeliveryBatch, batches)
	for i := range all {
		all[i] = batch(shard, to("a", one(i+1))...)
		all[i].MaxBacklog = 2 * batches
	}
	var writing sync.WaitGroup
	for w := range writers {
		q := newQueue(t)
		writing.Go(func() {
			for i := range batches {
				for q.Enqueue(t.Context(), all[(i+3*w)%batches:][:1])[0].Err != nil && t.Context().Err() == nil {
				}
			}
		})
	}
	writing.Wait()
	q := newQueue(t)
	got := strings.Fields(ids(t, q, claim(t, q, shard, "a", long).Claim))
	slices.Sort(got)
	if len(got) != batches || len(slices.Compact(got)) != batches {
		t.Errorf("got %q", got)
	}
}

func large(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	var all []module.Addition
	for n := range module.MaxAdditions {
		a := to(fmt.Sprint("t", n), one(n))[0]
		a.Gate, a.Claim = fmt.Sprint(gate, n%7), n%3 == 0
		all = append(all, a)
	}
	e := enqueue(t, q, batch(shard, all...))
	for n, a := range all {
		switch c := e.Claims[n]; {
		case e.Again: // after a lost answer
		case !a.Claim:
			if c != (module.Claim{}) {
				t.Fatalf("%d: got %+v", n, c)
			}
		case c.Target != module.Target{Shard: shard, Name: a.Target} || c.Gate != a.Gate:
			t.Fatalf("%d: got %+v", n, c)
		case n%100 == 0:
			if got := texts(t, q, c); !slices.Equal(got, []string{fmt.Sprint("text ", n)}) {
				t.Errorf("got %q", got)
			}
		}
	}
	// Only the second one counts for the user, for as long as it is there.
	for n := range 2 {
		name := id(2 * n)
		add(t, q, shard, "large", one(2*n))
		next := one(2*n + 1)
		next.Text = strings.Repeat("x", module.MaxText)
		b := batch(shard, to("large", next)...)
		b.MaxUserBytes = module.MaxText
		enqueue(t, q, b)
		c := claim(t, q, shard, "large", long).Claim
		if got := texts(t, q, c); len(got) != 2 || got[1] != next.Text {
			t.Errorf("%s: got %d texts", name, len(got))
		}
		complete(t, q, c, name)
		completeLast(t, q, c, next.ID)
	}
}

func oneClaim(t *testing.T, newQueue hosts, shard int) {
	const backlogs, lease = 50, 2 * time.Second
	q := newQueue(t)
	for n := range backlogs {
		add(t, q, shard, fmt.Sprint("t", n), one(1))
	}
	var mu sync.Mutex
	seen := map[module.Target]int64{}
	lapses := map[module.Target]time.Time{} // at the earliest
	var claiming sync.WaitGroup
	for range 4 {
		q := newQueue(t)
		claiming.Go(func() {
			for t.Context().Err() == nil {
				began := time.Now()
				claimed, err := q.Claim(t.Context(), look(7, lease))
				if err != nil && fault.KindOf(err) != fault.Unavailable {
					t.Error(err)
				}
				if len(claimed.Backlogs) > 7 {
					t.Errorf("claimed %d", len(claimed.Backlogs))
				}
				mu.Lock()
				for _, b := range claimed.Backlogs {
					if time.Now().Before(lapses[b.Claim.Target]) {
						t.Errorf("%v was claimed before the former claim has lapsed", b.Claim.Target)
					}
					lapses[b.Claim.Target] = began.Add(lease)
				}
				mu.Unlock()
				for _, b := range claimed.Backlogs {
					_, err := q.Complete(t.Context(), b.Claim, id(1), module.Trouble{}, "")
					for fault.KindOf(err) == fault.Unavailable && !errors.Is(err, module.ErrFenced) && t.Context().Err() == nil {
						_, err = q.Complete(t.Context(), b.Claim, id(1), module.Trouble{}, "")
					}
					mu.Lock()
					if other := seen[b.Claim.Target]; other != 0 && err == nil {
						t.Errorf("%v was completed with %d and %d", b.Claim.Target, other, b.Claim.Token)
					}
					seen[b.Claim.Target] = b.Claim.Token
					mu.Unlock()
				}
				mu.Lock()
				enough := len(seen) >= backlogs
				mu.Unlock()
				if enough {
					return
				}
			}
		})
	}
	claiming.Wait()
}

func lapses(t *testing.T, newQueue hosts, shard int) {
	const lease = 200 * time.Millisecond
	q, other := newQueue(t), newQueue(t)
	add(t, q, shard, "a", one(1), one(2))
	began := time.Now()
	former := claim(t, q, shard, "a", lease).Claim
	latter := claim(t, other, shard, "a", long).Claim
	if took := time.Since(began); took < lease-time.Millisecond { // a queue may count in milliseconds
		t.Errorf("a claim of %v has lapsed after %v", lease, took)
	}
	if former.Token == latter.Token {
		t.Fatal("two claims have one token")
	}
	trouble := module.Trouble{Generation: 1, Text: "x"}
	ctx := t.Context()
	for what, do := range map[string]func() error{
		"complete": func() error { _, err := q.Complete(ctx, former, id(1), module.Trouble{}, ""); return err },
		"postpone": func() error { return q.Postpone(ctx, former, former.Gate, 0, &trouble) },
		"renew":    func() error { _, err := q.Renew(ctx, former, long); return err },
		"drop":     func() error { _, err := q.Drop(ctx, former); return err },
		"without": func() error {
			_, err := q.Complete(ctx, module.Claim{Target: former.Target}, id(1), module.Trouble{}, "")
			return err
		},
	} {
		wantFenced(t, what, answer(t, do))
	}
	if got := ids(t, other, latter); got != "1 2" {
		t.Errorf("a former host has changed it to %q", got)
	}
	if left := complete(t, other, latter, id(1)); left != 1 {
		t.Errorf("%d are left", left)
	}
}

func renewed(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	add(t, q, shard, "a", one(1))
	first := claim(t, q, shard, "a", 2*time.Second).Claim
	var second module.Claim
	persist(t.Context(), t, func() (err error) {
		second, err = q.Renew(t.Context(), first, long)
		return err
	})
	_, err := q.Complete(t.Context(), first, id(1), module.Trouble{}, "")
	wantFenced(t, "with the former token", err)
	if _, found := tryClaim(t, q, shard, "a", long, 3*time.Second); found {
		t.Error("a renewed claim has lapsed")
	}
	if left := completeLast(t, q, second, id(1)); left != 0 {
		t.Errorf("%d are left", left)
	}
}

func postponed(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	add(t, q, shard, "a", one(1))
	trouble := module.Trouble{Generation: 7, Text: "1 some trouble"}
	postpone := func(c module.Claim, delay time.Duration, trouble *module.Trouble) {
		t.Helper()
		if err := answer(t, func() error { return q.Postpone(t.Context(), c, c.Gate, delay, trouble) }); err != nil {
			wantFenced(t, "repeated", err)
		}
	}
	const delay = 300 * time.Millisecond
	began := time.Now()
	postpone(claim(t, q, shard, "a", long).Claim, delay, &trouble)
	b := claim(t, q, shard, "a", long)
	if took := time.Since(began); took < delay {
		t.Errorf("due after %v, want %v", took, delay)
	}
	if b.Trouble != trouble {
		t.Errorf("got trouble %q", b.Trouble)
	}
	postpone(b.Claim, 0, nil)
	if b = claim(t, q, shard, "a", long); b.Trouble != trouble {
		t.Errorf("got trouble %q", b.Trouble)
	}
	postpone(b.Claim, 0, &module.Trouble{})
	if b = claim(t, q, shard, "a", long); b.Trouble != none {
		t.Errorf("got trouble %q", b.Trouble)
	}
	postpone(b.Claim, 0, &trouble)
	completeLast(t, q, claim(t, q, shard, "a", long).Claim, id(1))
	add(t, q, shard, "a", one(2))
	if b = claim(t, q, shard, "a", long); b.Trouble != none {
		t.Errorf("trouble outlives its backlog: %q", b.Trouble)
	}
}

var none = module.Trouble{}

// putOff leaves a backlog with one notification that is due in an hour.
func putOff(t *testing.T, q module.DeliveryQueue, shard int, trouble module.Trouble) {
	t.Helper()
	add(t, q, shard, "a", one(1))
	c := claim(t, q, shard, "a", long).Claim
	if err := answer(t, func() error { return q.Postpone(t.Context(), c, c.Gate, time.Hour, &trouble) }); err != nil {
		wantFenced(t, "repeated", err)
	}
}

func urgent(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	putOff(t, q, shard, module.Trouble{Generation: 5, Text: "x"})
	add(t, q, shard, "a", one(2))
	if _, found := tryClaim(t, q, shard, "a", long, 0); found {
		t.Error("due too early")
	}
	additions := to("a", one(3))
	additions[0].Urgent = true
	enqueue(t, q, batch(shard, additions...))
	b := claim(t, q, shard, "a", long)
	if got := ids(t, q, b.Claim); got != "1 2 3" || b.Trouble != (module.Trouble{Generation: 5, Text: "x"}) {
		t.Errorf("got %q, %q", got, b.Trouble)
	}
	// A claimed backlog stays claimed.
	additions = to("a", one(4))
	additions[0].Urgent = true
	enqueue(t, q, batch(shard, additions...))
	if _, found := tryClaim(t, q, shard, "a", long, 0); found {
		t.Error("a claimed backlog is due")
	}
	additions = to("b", one(1))
	additions[0].Delay = time.Hour
	enqueue(t, q, batch(shard, additions...))
	if _, found := tryClaim(t, q, shard, "b", long, 0); found {
		t.Error("due too early")
	}
	additions = to("b", one(2))
	additions[0].Urgent = true
	enqueue(t, q, batch(shard, additions...))
	claim(t, q, shard, "b", long)
}

func generation(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	putOff(t, q, shard, module.Trouble{Generation: 1700000000000001, Text: "2 later"})
	for n, setAt := range []int64{0, 1700000000000000, 1700000000000001} {
		additions := to("a", one(n+2))
		additions[0].Generation = setAt
		enqueue(t, q, batch(shard, additions...))
		if _, found := tryClaim(t, q, shard, "a", long, 0); found {
			t.Errorf("due for generation %d", setAt)
		}
	}
	additions := to("a", one(5))
	additions[0].Generation = 1700000000000002
	enqueue(t, q, batch(shard, additions...))
	if b := claim(t, q, shard, "a", long); b.Trouble != none || len(ids(t, q, b.Claim)) != 9 {
		t.Errorf("got %+v", b)
	}
}

func counts(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	alone := func(n int, delay time.Duration) {
		t.Helper()
		additions := to("a", module.Notification{ID: id(n), Priority: module.CountsOnly, Room: "--------"})
		additions[0].Delay = delay
		enqueue(t, q, batch(shard, additions...))
	}
	alone(1, time.Hour)
	alone(2, 0)
	if _, found := tryClaim(t, q, shard, "a", long, 0); found {
		t.Error("counts are due too early")
	}
	add(t, q, shard, "a", one(3)) // has counts, too
	b := claim(t, q, shard, "a", long)
	if got := ids(t, q, b.Claim); got != "3" {
		t.Errorf("got %q", got)
	}
	alone(4, 0)
	alone(5, 0)
	if got := ids(t, q, b.Claim); got != "3 4" {
		t.Errorf("got %q", got)
	}
	add(t, q, shard, "a", one(6))
	if got := ids(t, q, b.Claim); got != "3 6" {
		t.Errorf("got %q", got)
	}
	// Counts in flight may be outdated.
	complete(t, q, b.Claim, id(3))
	completeLast(t, q, b.Claim, id(6))
	alone(7, 0)
	b = claim(t, q, shard, "a", long)
	alone(8, 0)
	add(t, q, shard, "a", one(9))
	if got := ids(t, q, b.Claim); got != "7 9" {
		t.Errorf("got %q", got)
	}
}

func bounded(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	n := 0
	next := func(p module.Priority, room string) module.Notification {
		n++
		e := one(n)
		e.Priority, e.Room = p, room
		return e
	}
	h, l := module.HighPriority, module.LowPriority
	total, isRepeated := 0, false // after a lost answer
	put := func(e module.Notification) {
		enqueued := enqueue(t, q, batch(shard, to("a", e)...))
		total += enqueued.Coalesced
		isRepeated = isRepeated || enqueued.Again
	}
	for range 4 {
		put(next(l, "room-low"))
	}
	put(next(h, "invite00")) // 5
	for range 3 {
		put(next(h, "busy0000")) // 6 7 8
	}
	put(next(h, "mention0")) // 9
	for range 3 {
		put(next(h, "busy0000")) // 10 11 12
	}
	if total != 0 {
		t.Errorf("%d are dropped too early", total)
	}
	put(next(h, "busy0000")) // 13
	b := claim(t, q, shard, "a", long)
	if got, want := ids(t, q, b.Claim), "1 2 5 7 8 9 10 11 12 13"; got != want || total != 3 && !isRepeated {
		t.Errorf("got %q, want %q; %d are dropped", got, want, total)
	}
	if got := texts(t, q, b.Claim); slices.Contains(got, "") {
		t.Errorf("got %q", got)
	}
}

// The young ones of a busy room must not displace an old one of another room.
func youngAndOld(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	for n := 1; n <= 2*maxBacklog; n++ {
		e := one(n)
		if e.Room = "busy0000"; n == 3 {
			e.Room = "invite00"
		}
		b := batch(shard, to("a", e)...)
		b.KeepFor = 2 * time.Second
		enqueue(t, q, b)
		if n == 3 {
			time.Sleep(b.KeepFor + 100*time.Millisecond)
		}
	}
	if got := ids(t, q, claim(t, q, shard, "a", long).Claim); !strings.HasPrefix(got, "1 2 3 ") {
		t.Errorf("got %q", got)
	}
}

func young(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	for n := 1; n <= 10*maxBacklog+1; n++ {
		b := batch(shard, to("a", one(n))...)
		b.KeepFor = time.Hour
		isFull := n > 10*maxBacklog
		if e := enqueue(t, q, b); e.Coalesced > 0 != isFull && !e.Again {
			t.Fatalf("%d notifications: %d are dropped", n, e.Coalesced)
		}
	}
	// Old ones that are important stay while young ones are less important.
	const keepFor = 3 * time.Second
	keep := func(n int, p module.Priority) (dropped int) {
		e := one(n)
		e.Priority = p
		b := batch(shard, to("b", e)...)
		b.KeepFor = keepFor
		return enqueue(t, q, b).Coalesced
	}
	for n := 1; n <= 4; n++ {
		keep(n, module.HighPriority)
	}
	time.Sleep(keepFor + 100*time.Millisecond)
	began, dropped := time.Now(), 0
	for n := 5; n <= maxBacklog+3; n++ {
		dropped += keep(n, module.LowPriority)
	}
	isYoung := time.Since(began) < keepFor-time.Second // the queue may count whole seconds
	if dropped > 0 && isYoung {
		t.Errorf("%d are dropped", dropped)
	}
}

func userBytes(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	large := func(n int) module.Notification {
		e := one(n)
		e.Text = strings.Repeat("x", 600)
		return e
	}
	add(t, q, shard, "a", large(1)) // the first one is in flight
	for n := 2; n <= 7; n++ {
		add(t, q, shard, "a", large(n))
	}
	others := to("c", large(1))
	others[0].User = "user0001"
	enqueue(t, q, batch(shard, others...))
	others[0].Notification = large(2)
	enqueue(t, q, batch(shard, others...))
	lengths := func(c module.Claim) (all []int) {
		for _, n := range read(t, q, c) {
			all = append(all, len(n.Text))
			if n.Meta == "" {
				t.Error("the meta is gone")
			}
		}
		return all
	}
	a := claim(t, q, shard, "a", long).Claim
	if got, want := lengths(a), []int{600, 600, 600, 600, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := lengths(claim(t, q, shard, "c", long).Claim), []int{600, 600}; !slices.Equal(got, want) {
		t.Errorf("another user: got %v, want %v", got, want)
	}
	complete(t, q, a, id(1))
	completeLast(t, q, a, id(2))
	add(t, q, shard, "a", large(8))
	if got, want := lengths(a), []int{600, 600, 0, 0, 0, 600}; !slices.Equal(got, want) {
		t.Errorf("when two were delivered: got %v, want %v", got, want)
	}
}

// fanOut is the backlog of events of the room "room0000" with many recipients.
const fanOut = module.FanOut + "room0000"

func ofRoom(b module.DeliveryBatch, room string) module.DeliveryBatch {
	b.Room, b.MaxRoomBytes, b.MaxShardBytes = room, maxRoomBytes, maxShardBytes
	for i, a := range b.Additions {
		if (module.Target{Name: a.Target}).IsFanOut() {
			b.Additions[i].User = room
		}
	}
	return b
}

func behind(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	fan := ofRoom(batch(shard, to(fanOut, one(1))...), "room0000")
	if e := enqueue(t, q, fan); e.Behind || e.Full {
		t.Fatalf("got %+v", e)
	}
	late := ofRoom(batch(shard, to("a", one(2))...), "room0000")
	for range 2 {
		if e := enqueue(t, q, late); !e.Behind {
			t.Errorf("got %+v", e)
		}
	}
	if e := enqueue(t, q, ofRoom(batch(shard+1, to("a", one(2))...), "room0000")); e.Behind {
		t.Error("another shard has to wait")
	}
	if e := enqueue(t, q, ofRoom(batch(shard, to("b", one(2))...), "room0001")); e.Behind {
		t.Error("another room has to wait")
	}
	if e := enqueue(t, q, batch(shard, to("c", one(2))...)); e.Behind {
		t.Error("a notification without a room has to wait")
	}
	if e := enqueue(t, q, ofRoom(batch(shard, to(fanOut, one(2))...), "room0000")); e.Behind {
		t.Errorf("got %+v", e)
	}
	c := claim(t, q, shard, fanOut, long).Claim
	if got := ids(t, q, c); got != "1 2" {
		t.Errorf("got %q", got)
	}
	complete(t, q, c, id(1))
	completeLast(t, q, c, id(2))
	if e := enqueue(t, q, late); e.Behind {
		t.Errorf("got %+v", e)
	}
}

// The bytes of large events are bounded, for a room and for a shard. A room without large
// events may exceed the bound of its shard, up to twice the bound.
func fanOutBytes(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	n := 0
	put := func(room string, bytes int) (full bool) {
		n++
		e := one(n)
		e.Text = strings.Repeat("x", bytes)
		return enqueue(t, q, ofRoom(batch(shard, to(module.FanOut+room, e)...), room)).Full
	}
	for i, step := range []struct {
		room  string
		bytes int
		full  bool
	}{
		{"room0000", 600, false},
		{"room0000", 600, true}, // the room's bytes
		{"room0000", 300, false},
		{"room0001", 900, false},
		{"room0002", 500, false},
		{"room0001", 100, true}, // the shard's bytes
		{"room0003", 900, false},
		{"room0004", 900, true}, // twice the shard's bytes
		{"room0004", 100, false},
	} {
		if full := put(step.room, step.bytes); full != step.full {
			t.Errorf("step %d: full is %v", i, full)
		}
	}
	c := claim(t, q, shard, module.FanOut+"room0001", long).Claim
	if left := completeLast(t, q, c, id(4)); left != 0 {
		t.Errorf("%d are left", left)
	}
	c = claim(t, q, shard, module.FanOut+"room0003", long).Claim
	if err := answer(t, func() error { _, err := q.Drop(t.Context(), c); return err }); err != nil {
		wantFenced(t, "repeated", err)
	}
	if put("room0000", 50) || put("room0001", 300) {
		t.Error("still full")
	}
}

func expanded(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	enqueue(t, q, ofRoom(batch(shard, to(fanOut, one(1))...), "room0000"))
	former := claim(t, q, shard, fanOut, short).Claim
	c := claim(t, other, shard, fanOut, long).Claim
	part := func(c module.Claim, from, to int, names ...string) module.DeliveryBatch {
		b := batch(shard)
		b.Of, b.From, b.To = c, from, to
		for _, name := range names {
			b.Additions = append(b.Additions, module.Addition{Target: name, Gate: gate, User: "user0000", Notification: one(1)})
		}
		return b
	}
	try := func(q module.DeliveryQueue, b module.DeliveryBatch) error {
		return answer(t, func() error { return q.Enqueue(t.Context(), []module.DeliveryBatch{b})[0].Err })
	}
	wantFenced(t, "a former host", try(q, part(former, 0, 2, "a", "b")))
	wantFenced(t, "a later part", try(other, part(c, 2, 4, "a", "b")))
	if e := enqueue(t, other, part(c, 0, 2, "a", "b")); e.Due != 2 && !e.Again {
		t.Errorf("got %+v", e)
	}
	if e := enqueue(t, other, part(c, 0, 2, "a", "b")); !e.Again {
		t.Errorf("got %+v", e)
	}
	release(t, other, c)
	b := claim(t, q, shard, fanOut, long)
	if b.From != 2 {
		t.Errorf("the position is not kept: %d", b.From)
	}
	enqueue(t, q, part(b.Claim, 2, 3, "c"))
	if left := completeLast(t, q, b.Claim, id(1)); left != 0 {
		t.Errorf("%d are left", left)
	}
	for _, name := range []string{"a", "b", "c"} {
		if got := ids(t, q, claim(t, q, shard, name, long).Claim); got != "1" {
			t.Errorf("%s has %q", name, got)
		}
	}
	enqueue(t, q, ofRoom(batch(shard, to(fanOut, one(2))...), "room0000"))
	next := claim(t, q, shard, fanOut, long)
	if next.From != 0 {
		t.Errorf("the next one begins at %d", next.From)
	}
	enqueue(t, q, part(next.Claim, 0, 1, "d"))
}

func dropped(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	add(t, q, shard, "a", one(1), one(2))
	c := claim(t, q, shard, "a", long).Claim
	var n int
	if err := answer(t, func() (err error) { n, err = q.Drop(t.Context(), c); return err }); err == nil && n != 2 {
		t.Errorf("%d are dropped", n)
	}
	_, err := q.Complete(t.Context(), c, id(1), module.Trouble{}, "")
	wantFenced(t, "a dropped backlog", err)
	add(t, q, shard, "a", one(3))
	if got := ids(t, q, claim(t, q, shard, "a", long).Claim); got != "3" {
		t.Errorf("got %q", got)
	}
}

// sentLast: the counts that a pusher got last are kept when its backlog is empty, and
// removed when its backlog is dropped.
func sentLast(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	want := func(text string) {
		t.Helper()
		var got string
		persist(t.Context(), t, func() (err error) {
			got, err = other.Sent(t.Context(), module.Target{Shard: shard, Name: "a"})
			return err
		})
		if got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	sent := func(n int, text string) {
		t.Helper()
		add(t, q, shard, "a", one(n))
		c := claim(t, q, shard, "a", long).Claim
		if err := answer(t, func() error { _, err := q.Complete(t.Context(), c, id(n), module.Trouble{}, text); return err }); err != nil {
			wantFenced(t, "repeated", err)
		}
	}
	want("")
	sent(1, "one")
	want("one")
	sent(2, "two")
	want("two")
	sent(3, "")
	want("two")
	add(t, q, shard, "a", one(4))
	c := claim(t, q, shard, "a", long).Claim
	if err := answer(t, func() error { _, err := q.Drop(t.Context(), c); return err }); err != nil {
		wantFenced(t, "repeated", err)
	}
	want("")
}

func listed(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	putOff(t, q, shard, module.Trouble{Generation: 5, Text: "x"})
	add(t, q, shard, "b", one(1), one(2))
	claimed := claim(t, q, shard, "b", long)
	var got map[string]module.Backlog
	persist(t.Context(), t, func() error {
		got = map[string]module.Backlog{}
		return q.Backlogs(t.Context(), shard, func(b module.Backlog) bool {
			got[b.Claim.Target.Name] = b
			return true
		})
	})
	a, b := got["a"], got["b"]
	if a.Waiting != 1 || a.Trouble != (module.Trouble{Generation: 5, Text: "x"}) || a.Claim.Token != 0 || a.First.ID != id(1) || time.Until(a.Due) < time.Minute {
		t.Errorf("got %+v", a)
	}
	if b.Waiting != 2 || b.Claim != claimed.Claim || len(got) != 2 {
		t.Errorf("got %+v of %d", b, len(got))
	}
}

func summarized(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	gate := fmt.Sprintf("https://%d.example.org:443 a<pp", shard)
	put := func(target string, n int) {
		t.Helper()
		additions := to(target, one(n))
		additions[0].Gate = gate
		enqueue(t, q, batch(shard, additions...))
	}
	put("a", 1)
	put("a", 2)
	put("b", 1)
	add(t, q, shard, "c", one(1))
	claim(t, q, shard, "a", long)
	putOff(t, q, shard+1, module.Trouble{Generation: 5, Text: "x"}) // it waits, though it is not due
	var s module.QueueSummary
	persist(t.Context(), t, func() (err error) {
		s, err = q.Summary(t.Context(), func(trouble module.Trouble) bool { return trouble.Text != "" })
		return err
	})
	if s.Notifications < 5 || s.Gates[gate] != 3 || s.Oldest < 0 || s.Oldest > time.Hour {
		t.Errorf("got %+v", s)
	}
	drained := claim(t, q, shard, "b", long)
	completeLast(t, q, drained.Claim, id(1))
	persist(t.Context(), t, func() (err error) {
		s, err = q.Summary(t.Context(), func(trouble module.Trouble) bool { return trouble.Text != "" })
		return err
	})
	if s.Gates[gate] != 2 {
		t.Errorf("after a completion: got %+v", s)
	}
}

// byGate: a gate that a host leaves out keeps its backlogs as they are, and other hosts may
// claim them.
func byGate(t *testing.T, newQueue hosts, shard int) {
	q, other := newQueue(t), newQueue(t)
	for n := range 6 {
		additions := to(fmt.Sprint("t", n), one(1))
		additions[0].Gate = fmt.Sprint("gate", n%2)
		enqueue(t, q, batch(shard, additions...))
	}
	take := func(q module.DeliveryQueue, may map[string]int) (taken map[string]int) {
		t.Helper()
		taken = map[string]int{}
		persist(t.Context(), t, func() error {
			of := look(100, long)
			of.Gate = func(gate string) (int, bool) { return may[gate], false }
			claimed, err := q.Claim(t.Context(), of)
			for _, b := range claimed.Backlogs {
				taken[b.Claim.Gate]++
			}
			return err
		})
		return taken
	}
	if got := take(q, map[string]int{"gate0": 2}); got["gate0"] > 2 || got["gate1"] != 0 {
		t.Errorf("claimed %v, of which 2 at gate0 were allowed", got)
	}
	for deadline := time.Now().Add(patience); ; {
		got := take(other, map[string]int{"gate1": 2})
		if got["gate1"] > 0 && got["gate1"] <= 2 && got["gate0"] == 0 {
			break
		}
		if len(got) > 0 || time.Now().After(deadline) {
			t.Fatalf("claimed %v, of which 2 at gate1 were allowed", got)
		}
	}
}

// moved: a pusher that is set again may have another gateway.
func moved(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	at := func(c module.Claim, gate string) {
		t.Helper()
		if c.Gate != gate {
			t.Errorf("claimed at %q, want %q", c.Gate, gate)
		}
	}
	put := func(n int, gate string, generation int64) {
		t.Helper()
		additions := to("a", one(n))
		additions[0].Gate, additions[0].Generation = gate, generation
		enqueue(t, q, batch(shard, additions...))
	}
	postpone := func(c module.Claim, gate string, delay time.Duration) {
		t.Helper()
		if err := answer(t, func() error {
			return q.Postpone(t.Context(), c, gate, delay, &module.Trouble{Generation: 1, Text: "x"})
		}); err != nil {
			wantFenced(t, "repeated", err)
		}
	}
	put(1, "gate0", 1)
	c := claim(t, q, shard, "a", long).Claim
	at(c, "gate0")
	put(2, "gate1", 1) // a claimed one stays
	if _, found := tryClaim(t, q, shard, "a", long, 0); found {
		t.Error("claimed twice")
	}
	if left := complete(t, q, c, id(1)); left != 1 {
		t.Errorf("%d are left", left)
	}
	postpone(c, "gate1", 0)
	c = claim(t, q, shard, "a", long).Claim
	at(c, "gate1")
	postpone(c, "gate1", time.Hour)
	put(3, "gate2", 2)
	c = claim(t, q, shard, "a", long).Claim
	at(c, "gate2")
	if got := ids(t, q, c); got != "2 3" {
		t.Errorf("got %q", got)
	}
	complete(t, q, c, id(2))
	completeLast(t, q, c, id(3))
	if _, found := tryClaim(t, q, shard, "a", long, 0); found {
		t.Error("an empty backlog is due")
	}
}

// manyGates: closed gates, of which a user may invent many, do not hide an open one.
func manyGates(t *testing.T, newQueue hosts, shard int) {
	const closed = 700
	q := newQueue(t)
	additions := make([]module.Addition, closed)
	for n := range additions {
		additions[n] = to(fmt.Sprint("t", n), one(1))[0]
		additions[n].Gate = fmt.Sprint("closed", n)
	}
	enqueue(t, q, batch(shard, additions...))
	additions = to("a", one(1))
	additions[0].Gate = "open"
	enqueue(t, q, batch(shard, additions...))
	for deadline := time.Now().Add(patience); ; {
		claimed, err := q.Claim(t.Context(), module.Look{Limit: 10, Lease: long, Gate: func(name string) (int, bool) {
			if name != "open" {
				return 0, true
			}
			return 10, false
		}})
		if err != nil && fault.KindOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
		if len(claimed.Backlogs) == 1 && claimed.Backlogs[0].Claim.Target.Name == "a" {
			return
		}
		if len(claimed.Backlogs) > 0 || time.Now().After(deadline) {
			t.Fatalf("claimed %v", claimed.Backlogs)
		}
	}
}

// closedGate: the due backlogs of a closed gate count neither as more work nor as late.
func closedGate(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	for n := range 20 {
		add(t, q, shard, fmt.Sprint("t", n), one(1))
	}
	time.Sleep(10 * time.Millisecond) // they are at least that old
	for _, isClosed := range []bool{true, false} {
		of := look(1, long)
		of.Shards, of.Gate = []int{shard}, func(string) (int, bool) { return 1, isClosed }
		var claimed module.Claimed
		persist(t.Context(), t, func() (err error) {
			claimed, err = q.Claim(t.Context(), of)
			return err
		})
		if len(claimed.Backlogs) != 1 {
			t.Fatalf("claimed %v", claimed.Backlogs)
		}
		if hasMore, isOld := slices.Contains(claimed.More, shard), claimed.Oldest > 0; hasMore == isClosed || isOld == isClosed {
			t.Errorf("closed %t: more in %v, %v old", isClosed, claimed.More, claimed.Oldest)
		}
	}
}

func someShards(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	add(t, q, shard, "a", one(1))
	of := look(10, long)
	of.Shards = []int{(shard + 1) % Shards}
	if claimed, err := q.Claim(t.Context(), of); len(claimed.Backlogs) > 0 || len(claimed.More) > 0 {
		t.Errorf("of another shard: got %+v, %v", claimed, err)
	}
	claim(t, q, shard, "a", long)
}

func endedContext(t *testing.T, newQueue hosts, shard int) {
	q := newQueue(t)
	add(t, q, shard, "a", one(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"open":    q.Open(ctx, Shards),
		"enqueue": q.Enqueue(ctx, []module.DeliveryBatch{batch(shard, to("a", one(2))...)})[0].Err,
		"claim":   func() error { _, err := q.Claim(ctx, look(1, long)); return err }(),
	} {
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s: got error %v, want one of kind %s", what, err, fault.Unavailable)
		}
	}
	if got := ids(t, q, claim(t, q, shard, "a", long).Claim); got != "1" {
		t.Errorf("got %q", got)
	}
}
