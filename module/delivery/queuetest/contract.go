package queuetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

func (c *contract) readsAsAdded() {
	var every strings.Builder
	for b := range 256 {
		every.WriteByte(byte(b))
	}
	want := []module.Notification{
		{ID: "0000000a", Priority: module.HighPriority, Room: "room0001", Meta: `{"a":"ü"}`, Text: every.String()},
		{ID: "-_00000b", Priority: module.LowPriority, Room: "room0002", Text: strings.Repeat("x", 1000)},
		{ID: "0000000c", Priority: module.HighPriority, Room: "room-_03", Meta: "3 4"},
	}
	before := time.Now()
	for i, n := range want {
		done := c.append([]module.DeliveryQueue{c.q, c.other}[i%2], c.newRequest(n, "log", "b"))
		if done.Length != i+1 || done.Again || done.Claims[0] != nil {
			c.Errorf("got %+v", done)
		}
	}
	check := func(got []module.Notification, limit int) {
		c.Helper()
		last := int64(0)
		for i := range got {
			if got[i].Number == 0 || i > 0 && got[i].Number != last+1 || got[i].Added.Sub(before).Abs() > patience {
				c.Errorf("got %d, %v", got[i].Number, got[i].Added)
			}
			last, got[i].Number, got[i].Added = got[i].Number, 0, time.Time{}
		}
		if !slices.Equal(got, want[:min(limit, len(want))]) {
			c.Errorf("got  %q\nwant %q", got, want)
		}
	}
	r := c.request(*c.find(c.q, patience), "log", "b")
	r.Read = 2
	claimed := c.claimAll(c.q, r)
	if len(claimed.Pushers) != 2 || claimed.Unknown {
		c.Fatalf("claimed %+v", claimed)
	}
	check(claimed.Pushers[0].Notifications, 2)
	for limit := 1; limit <= 4; limit++ {
		got, end := c.read(c.other, claimed.Pushers[1].Claim, limit)
		if end != claimed.End || claimed.Pushers[1].Claim.Number+3 != end {
			c.Errorf("got end %d, want %d", end, claimed.End)
		}
		check(got, limit)
	}
	check(c.log().Notifications, 3)
}

func (c *contract) claimsAtOnce() {
	a := claiming(c.newRequest(note(1), "a", "b"))
	a.Pushers[1].Claim = false
	done := c.append(c.q, a)
	if len(done.Claims) != 2 || done.Claims[0] == nil || done.Claims[1] != nil {
		c.Fatalf("got %+v", done)
	}
	one := done.Claims[0]
	if one.User != c.user || one.Pusher != "a" || one.Gate != c.gate || one.Nonce == "" || one.Number != done.End-1 {
		c.Errorf("got %+v", one)
	}
	c.claim(c.other, "b")
	c.wantBusy("a", "b")
	if done := c.append(c.other, claiming(c.newRequest(note(2), "a", "b"))); done.Claims[0] != nil || done.Claims[1] != nil || done.Length != 2 {
		c.Errorf("a claim of another's pusher: %+v", done)
	}
	c.wantBusy("a", "b")
	if left := c.next(c.q, one); left != 1 {
		c.Errorf("%d are left", left)
	}
	c.wantNext(c.q, one, "2")
	if left := c.next(c.q, one); left != 0 {
		c.Errorf("%d are left", left)
	}
	c.wantFenced("behind the end", c.completing(one, 1))
	if done := c.append(c.q, claiming(c.newRequest(note(3), "a"))); done.Claims[0] == nil {
		c.Errorf("got %+v", done)
	}
}

// claimsSome claims as many of the pushers that begin as the request says. The others are due at once.
func (c *contract) claimsSome() {
	c.postpone(c.q, c.begin(note(1), long, "a")[0], long, module.Trouble{Text: "x"}, false)
	a := claiming(c.newRequest(note(2), "a", "b", "c", "d"))
	a.MaxClaims = 2
	done := c.append(c.q, a)
	if done.Claims[0] != nil || done.Claims[1] == nil || done.Claims[2] == nil || done.Claims[3] != nil {
		c.Fatalf("got %+v", done)
	}
	c.claim(c.other, "d")
	c.wantBusy("a", "b", "c", "d")
	a = claiming(c.newRequest(note(3), "e"))
	a.MaxClaims = 0
	if done := c.append(c.q, a); done.Claims[0] != nil {
		c.Errorf("got %+v", done)
	}
	c.claim(c.other, "e")
}

func (c *contract) addsOnce() {
	one := c.begin(note(1), long, "a")[0]
	again := func(n int, want bool) {
		c.Helper()
		if done := c.append(c.other, claiming(c.newRequest(note(n), "a"))); done.Again != want || want && done.Claims[0] != nil {
			c.Errorf("%d: got %+v", n, done)
		}
	}
	again(1, true)
	c.wantNext(c.q, one, "1")
	c.next(c.q, one)
	again(1, true) // the log is empty, but knows it
	if log := c.log(); len(log.Notifications)+len(log.Pushers) > 0 {
		c.Errorf("added again: %+v", log)
	}
	c.wantBusy("a")
	c.begin(note(2), long, "a")
	again(1, true)
	for n := 3; n <= 1+module.RepeatsKept; n++ {
		again(n, false)
	}
	again(2, true)
	again(2+module.RepeatsKept, false)
	again(2, false)
}

func (c *contract) places() {
	claims := c.begin(note(1), long, "a", "b")
	a, b := claims[0], claims[1]
	c.add(note(2), "a", "b")
	c.next(c.q, a)
	third := c.begin(note(3), long, "c")[0]
	c.add(note(3), "a", "b")
	c.add(note(4), "a", "b", "c")
	c.wantNext(c.q, a, "2 3 4")
	c.wantNext(c.other, b, "1 2 3 4")
	c.wantNext(c.q, third, "3 4")
	log := c.log()
	if len(log.Pushers) != 3 || log.Pushers[0].Number != a.Number || log.Pushers[1].Number != b.Number || !log.Pushers[2].Claimed {
		c.Errorf("got %+v", log.Pushers)
	}
	for left := range 4 {
		if got := c.next(c.q, b); got != 3-left {
			c.Errorf("%d are left", got)
		}
	}
	c.wantNext(c.q, a, "2 3 4")
	c.wantNext(c.q, third, "3 4")
	c.cut(nil)
	if got := metas(c.log().Notifications); got != "2 3 4" {
		c.Errorf("after a cut: %q", got)
	}
	for range 3 {
		c.next(c.q, a)
	}
	c.cut(nil)
	c.wantNext(c.q, third, "3 4")
	c.next(c.q, third)
	if got := metas(c.log().Notifications); got != "4" {
		c.Errorf("a single pusher leaves behind %q", got)
	}
	c.next(c.q, third)
	if log := c.log(); len(log.Notifications)+len(log.Pushers)+log.Bytes > 0 {
		c.Errorf("got %+v", log)
	}
	c.wantBusy("a", "b", "c")
}

func (c *contract) lapses() {
	begun := time.Now()
	lapsed := c.begin(note(1), short, "a")[0]
	taken := c.claim(c.other, "a")
	if since := time.Since(begun); since < short-5*time.Millisecond {
		c.Errorf("a claim lapsed after %v", since)
	}
	for what, do := range map[string]func() error{
		"complete": c.completing(lapsed, 1),
		"postpone": func() error { return c.q.Postpone(c.Context(), lapsed, 0, module.Trouble{}, false) },
		"renew":    func() error { return c.q.Renew(c.Context(), lapsed, long, false) },
	} {
		c.wantFenced(what, do)
	}
	c.wantNext(c.other, taken.Claim, "1")
	if left := c.next(c.other, taken.Claim); left != 0 {
		c.Errorf("%d are left", left)
	}
	late := c.begin(note(2), time.Millisecond, "a")[0]
	time.Sleep(10 * time.Millisecond)
	if left := c.next(c.q, late); left != 0 { // no other host has claimed it
		c.Errorf("%d are left", left)
	}
	c.wantBusy("a")
}

// A user may be listed twice, so a call may claim for a user twice.
func (c *contract) claimsOnceACall() {
	c.add(note(1), "a", "b")
	u := c.find(c.q, patience)
	if u == nil {
		c.Fatal("no look finds the user")
	}
	r, claims := c.request(*u, "a", "b"), 0
	for _, result := range c.q.Claim(c.Context(), []module.ClaimRequest{r, r}) {
		if result.Err != nil {
			c.Fatal(result.Err)
		}
		claims += len(result.Value.Pushers)
	}
	if claims != 2 {
		c.Errorf("%d claims of two pushers", claims)
	}
}

func (c *contract) renews() {
	one := c.begin(note(1), 4*short, "a")[0]
	c.persist(func() error { return c.q.Renew(c.Context(), one, long, false) })
	time.Sleep(4 * short)
	c.wantBusy("a")
	c.persist(func() error { return c.q.Renew(c.Context(), one, short, false) })
	time.Sleep(short)
	c.persist(func() error { return c.other.Forget(c.Context(), c.user) })
	c.wantFenced("renewed too late", func() error { return c.q.Renew(c.Context(), one, long, false) })
	one = c.begin(note(2), short, "a")[0]
	c.persist(func() error { return c.q.Renew(c.Context(), one, 3*short, false) })
	c.claim(c.other, "a")
	c.wantFenced("renewed too late", func() error { return c.q.Renew(c.Context(), one, long, false) })
}

func (c *contract) postpones() {
	one := c.begin(note(1), long, "a")[0]
	trouble := module.Trouble{Generation: 7, Text: "it's\nbad"}
	begun := time.Now()
	c.postpone(c.q, one, 3*short, trouble, false)
	c.postpone(c.q, one, long, module.Trouble{}, true) // a repetition changes nothing
	c.wantFenced("complete", c.completing(one, 1))
	c.wantFenced("renew", func() error { return c.q.Renew(c.Context(), one, long, false) })
	log := c.log()
	if p := log.Pushers[0]; p.Claimed || p.Trouble != trouble || p.Due.Sub(begun.Add(3*short)).Abs() > patience {
		c.Errorf("got %+v", p)
	}
	if done := c.append(c.q, claiming(c.newRequest(note(2), "a"))); done.Claims[0] != nil {
		c.Error("a notification that is appended ends the delay")
	}
	taken := c.claim(c.other, "a")
	if since := time.Since(begun); since < 3*short-10*time.Millisecond {
		c.Errorf("it was due after %v", since)
	}
	if taken.Trouble != trouble || metas(taken.Notifications) != "1" {
		c.Errorf("claimed %+v", taken)
	}
	other := module.Trouble{Text: "other"}
	c.complete(c.other, taken.Claim, module.Done{To: taken.Claim.Number + 1, Trouble: other})
	if got := c.log().Pushers[0].Trouble; got != other {
		c.Errorf("got trouble %+v", got)
	}
	done := taken.Claim
	c.postpone(c.other, done, 0, module.Trouble{}, false)
	if taken = c.claim(c.q, "a"); taken.Trouble != (module.Trouble{}) || metas(taken.Notifications) != "2" {
		c.Errorf("claimed %+v", taken)
	}
	c.wantFenced("a repetition behind another claim", func() error { return c.other.Postpone(c.Context(), done, 0, module.Trouble{}, false) })
}

func (c *contract) hastens() {
	trouble := module.Trouble{Generation: 5, Text: "failed"}
	for n, test := range []struct {
		name       string
		urgent     bool
		generation int64
		isDue      bool
		want       module.Trouble
	}{
		{"neither", false, 5, false, trouble},
		{"an earlier pusher", false, 4, false, trouble},
		{"urgent", true, 5, true, trouble},
		{"set again", false, 6, true, module.Trouble{}},
	} {
		pusher := fmt.Sprint("p", n)
		id := 10 * (n + 1)
		one := c.begin(note(id), long, pusher)[0]
		add := func(id int) {
			a := claiming(c.newRequest(note(id), pusher))
			a.Urgent, a.Pushers[0].Generation = test.urgent, test.generation
			if done := c.append(c.q, a); done.Claims[0] != nil {
				c.Errorf("%s: a postponed pusher was claimed", test.name)
			}
		}
		add(id + 1) // claimed pushers stay so
		c.wantNext(c.q, one, fmt.Sprint(id, " ", id+1))
		c.postpone(c.q, one, long, trouble, false)
		add(id + 2)
		if !test.isDue {
			c.wantBusy(pusher)
			continue
		}
		if got := c.claim(c.other, pusher); got.Trouble != test.want {
			c.Errorf("%s: got %+v", test.name, got.Trouble)
		}
	}
}

func (c *contract) shortensDelays() {
	add := func(n module.Notification, delay time.Duration, hastened bool) {
		a := c.newRequest(n, "p")
		a.Pushers[0].Delay = delay
		if done := c.append(c.q, a); done.Hastened != hastened || done.Claims[0] != nil {
			c.Errorf("%s with a delay of %v: got %+v, want hastened %t", n.ID, delay, done, hastened)
		}
	}
	add(counts(1), long, false)
	add(counts(2), long, false) // as late as the first
	add(note(3), 2*long, false)
	c.wantBusy("p")
	add(note(4), 0, true)
	one := c.claim(c.other, "p") // as listed
	if one.Claim == nil {
		c.Fatal("a notification waits for the delay of counts")
	}
	trouble := module.Trouble{Text: "failed"}
	c.postpone(c.other, one.Claim, long, trouble, false)
	add(note(5), 0, false) // a failure is no delay
	c.wantBusy("p")
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func counts(n int) module.Notification {
	return module.Notification{ID: fmt.Sprintf("%08d", n), Priority: module.CountsOnly, Room: "room0000"}
}

func (c *contract) addsCountsOnce() {
	for n, length := range []int{1, 1, 1} {
		if done := c.add(counts(n+1), "a"); done.Length != length {
			c.Errorf("got %+v", done)
		}
	}
	one := c.claim(c.q, "a").Claim
	if done := c.add(counts(4), "a"); done.Length != 2 { // the first ones may be on their way
		c.Errorf("got %+v", done)
	}
	if done := c.add(counts(5), "a", "b"); done.Length != 2 || done.End != one.Number+2 {
		c.Errorf("got %+v", done)
	}
	c.wantNext(c.q, one, "1 4")
	c.wantNext(c.q, c.claim(c.q, "b").Claim, "4")
	c.add(note(6), "a", "b")
	if done := c.add(counts(7), "a", "b"); done.Length != 4 {
		c.Errorf("got %+v", done)
	}
	c.cut(map[string]string{"a": "7", "b": "7"}) // the last one stays
	if done := c.add(counts(8), "a", "b"); done.Length != 4 || metas(c.log().Notifications) != "1 4 6 7" {
		c.Errorf("after a cut: got %+v, %q", done, metas(c.log().Notifications))
	}
	c.cut(map[string]string{"b": "4 6"})
	if done := c.add(counts(9), "a", "b"); done.Length != 5 { // b may be sending the last ones
		c.Errorf("after a cut: got %+v", done)
	}
}

func (c *contract) boundsTexts() {
	sized := func(n, bytes int) module.Notification {
		one := note(n)
		one.Text = strings.Repeat("x", bytes)
		return one
	}
	c.add(sized(1, maxUserBytes+1), "a") // a pusher begins
	c.add(sized(2, 1), "a")
	c.add(sized(3, 1), "b")
	one := c.claim(c.q, "a").Claim
	c.next(c.q, one)
	c.cut(nil)
	c.add(sized(4, maxUserBytes-1), "a", "b")
	c.add(sized(5, 1), "a", "b")
	c.add(sized(6, module.MaxText), "c")
	c.add(sized(7, module.MaxText), "d")
	var sizes []int
	log := c.log()
	total := 0
	for _, n := range log.Notifications {
		sizes = append(sizes, len(n.Text))
		total += len(n.Text)
	}
	if want := []int{0, 1, maxUserBytes - 1, 0, module.MaxText, 0}; !slices.Equal(sizes, want) || log.Bytes != total {
		c.Errorf("got texts of %v and %d bytes, want %v", sizes, log.Bytes, want)
	}
}

func (c *contract) looks() {
	const users = 7
	of := *c
	for n := range users {
		of.user, of.gate = mxid.UserID(fmt.Sprintf("@%d:looks", n)), fmt.Sprint(c.gate, " ", n%2)
		of.add(note(1), "a")
	}
	take := func(q module.DeliveryQueue, limit int, may map[string]int) (taken map[string]int) {
		taken = map[string]int{}
		for _, u := range c.look(q, limit, long, func(gate string) module.GateLimit { return module.GateLimit{Most: may[gate], Failing: 1} }).Users {
			taken[u.Gate]++
		}
		return taken
	}
	first, second := c.gate+" 0", c.gate+" 1"
	seen := map[string]int{}
	for deadline := time.Now().Add(patience); seen[first]+seen[second] < users; {
		for _, may := range []map[string]int{{first: 2}, {second: 1}} {
			for gate, n := range take([]module.DeliveryQueue{c.q, c.other}[b2i(may[first] == 0)], 2, may) {
				if seen[gate] += n; n > may[gate] {
					c.Errorf("took %d at %s, of which %d were allowed", n, gate, may[gate])
				}
			}
		}
		if time.Now().After(deadline) {
			c.Fatalf("took %v", seen)
		}
	}
	if seen[first] != 4 || seen[second] != 3 {
		c.Errorf("took %v", seen)
	}
	if got := take(c.q, 100, map[string]int{first: 100, second: 100}); len(got) > 0 {
		c.Errorf("taken again before the lease: %v", got)
	}
}

func (c *contract) fails() {
	one := c.begin(note(1), long, "a")[0]
	marked := func(want bool) {
		c.Helper()
		if log := c.log(); len(log.Failing) > 0 != want {
			c.Errorf("failing at %q", log.Failing)
		}
	}
	c.postpone(c.q, one, 0, module.Trouble{}, false)
	if u := c.find(c.q, patience); u.Fails {
		c.Error("fails without a failure")
	}
	one = c.claim(c.q, "a").Claim
	c.postpone(c.q, one, 0, module.Trouble{}, true)
	marked(true)
	taken := func(failing int) (fails []bool) {
		for range 20 {
			for _, u := range c.look(c.q, 10, short, func(string) module.GateLimit { return module.GateLimit{Most: 10, Failing: failing} }).Users {
				fails = append(fails, u.Fails)
			}
			time.Sleep(short / 10)
		}
		return fails
	}
	if got := taken(0); len(got) > 0 {
		c.Errorf("a user that fails took a place of the others: %v", got)
	}
	if got := taken(1); len(got) == 0 || !got[0] {
		c.Errorf("a user that fails was not returned: %v", got)
	}
	one = c.claim(c.q, "a").Claim
	c.persist(func() error { return c.q.Renew(c.Context(), one, long, true) })
	c.next(c.q, one)
	marked(true) // it outlives the notification
	one = c.begin(note(2), long, "a")[0]
	c.complete(c.q, one, module.Done{To: one.Number + 1, Answered: true})
	marked(false)
	c.add(note(3), "a")
	for deadline := time.Now().Add(patience); ; { // a look that is slower than short finds the older listing again
		if u := c.find(c.q, patience); u != nil && !u.Fails {
			return
		}
		if time.Now().After(deadline) {
			c.Fatal("the user fails after an answer")
		}
		c.postpone(c.q, c.claim(c.q, "a").Claim, 0, module.Trouble{}, false)
	}
}

func (c *contract) passesClosedGates() {
	of := *c
	for n := range 20 {
		of.user = mxid.UserID(fmt.Sprintf("@%d:closed", n))
		of.add(note(1), "a")
	}
	time.Sleep(10 * time.Millisecond) // they are at least that old
	for _, isClosed := range []bool{true, false} {
		looked := c.look(c.q, 1, long, func(string) module.GateLimit { return module.GateLimit{Most: 10, Failing: 1, IsClosed: isClosed} })
		if len(looked.Users) != 1 {
			c.Fatalf("took %v", looked.Users)
		}
		if looked.More == isClosed || looked.Late > 0 == isClosed {
			c.Errorf("closed %t: more %t, %v late", isClosed, looked.More, looked.Late)
		}
	}
}

func (c *contract) findsLastGatesLast() {
	add := func(name string, n int) {
		of := *c
		of.user, of.gate = mxid.UserID(fmt.Sprintf("@%s%d:last", name, n)), fmt.Sprint(c.gate, " ", name, " ", n)
		of.add(note(1), "a")
	}
	for n := range 20 {
		add("last", n)
	}
	time.Sleep(10 * time.Millisecond)
	for n := range 8 {
		add("first", n)
	}
	for _, want := range []int{1, 1, 2, 4} {
		last := 0
		looked := c.look(c.q, 4, long, func(gate string) module.GateLimit {
			return module.GateLimit{Most: 10, IsLast: strings.Contains(gate, " last ")}
		})
		for _, u := range looked.Users {
			if strings.Contains(u.Gate, " last ") {
				last++
			}
		}
		if len(looked.Users) != 4 || last != want {
			c.Errorf("want %d users of last gates: %v", want, looked.Users)
		}
	}
}

func (c *contract) findsOpenGates() {
	for n := range 7 {
		a := c.newRequest(note(n))
		for p := range 100 {
			a.Pushers = append(a.Pushers, module.Recipient{Pusher: fmt.Sprint(n, "-", p), Gate: fmt.Sprint(c.gate, " closed ", n, " ", p)})
		}
		c.append(c.q, a)
	}
	c.add(note(100), "a")
	for range 20 {
		users := c.look(c.q, 10, long, func(name string) module.GateLimit {
			return module.GateLimit{Most: 10 * b2i(name == c.gate), IsClosed: name != c.gate}
		}).Users
		if len(users) == 1 && users[0].Gate == c.gate {
			return
		}
	}
	c.Error("the user at the open gate was not found")
}

func (c *contract) movesGates() {
	home, away := c.gate, c.gate+" away"
	one := c.begin(note(1), long, "a")[0]
	a := c.newRequest(note(2), "a")
	a.Pushers[0].Gate = away
	c.append(c.q, a) // a claimed one stays
	one.Gate = away  // the host changes it
	c.postpone(c.q, one, 0, module.Trouble{Generation: 1, Text: "x"}, false)
	c.gate = away
	one = c.claim(c.other, "a").Claim
	if one.Gate != away {
		c.Errorf("claimed at %s", one.Gate)
	}
	c.postpone(c.other, one, long, module.Trouble{Generation: 1, Text: "x"}, false)
	c.gate = home
	a = c.newRequest(note(3), "a")
	a.Pushers[0].Generation = 2
	c.append(c.q, a) // a pusher that is set again has its new gate
	one = c.claim(c.q, "a").Claim
	c.wantNext(c.q, one, "1 2 3")
	c.postpone(c.q, one, 0, module.Trouble{}, false)
	u := c.find(c.q, patience)
	r := c.request(*u, "a")
	r.Pushers[0].Gate = away // it was set again since it was stored, but nothing was added
	if claimed := c.claimAll(c.q, r); len(claimed.Pushers) != 1 {
		c.Fatalf("claimed %+v", claimed)
	}
	a = c.newRequest(note(4), "b")
	a.Pushers[0].Gate = away
	c.append(c.q, a)
	c.begin(note(5), long, "c")
	r.Gate, r.Pushers = home, []module.PusherGate{{Pusher: "b", Gate: home}}
	if claimed := c.claimAll(c.q, r); len(claimed.Pushers) != 1 || claimed.Pushers[0].Claim.Gate != home {
		c.Errorf("claimed %+v", claimed)
	}
}

func (c *contract) findsUnknown() {
	c.add(note(1), "a", "gone")
	u := c.find(c.q, patience)
	claimed := c.claimAll(c.q, c.request(*u, "a"))
	if !claimed.Unknown || len(claimed.Pushers) != 1 {
		c.Fatalf("got %+v", claimed)
	}
	c.next(c.q, claimed.Pushers[0].Claim)
	u = c.find(c.q, patience)
	claimed = c.claimAll(c.q, c.request(*u, "a"))
	if !claimed.Unknown || len(claimed.Pushers) != 0 {
		c.Fatalf("got %+v", claimed)
	}
	claimed = c.claimAll(c.q, c.request(*u, c.log().Pushers[0].Pusher))
	if claimed.Unknown || len(claimed.Pushers) != 1 || claimed.Pushers[0].Claim.Pusher != "gone" {
		c.Fatalf("got %+v", claimed)
	}
	c.complete(c.q, claimed.Pushers[0].Claim, module.Done{To: claimed.End})
	c.wantBusy("a", "gone")
}

func (c *contract) limits() {
	var names []string
	for n := range 20 {
		names = append(names, fmt.Sprint("p", n))
	}
	for n := range 20 {
		c.add(note(n), names...)
	}
	claimed := map[string]bool{}
	for len(claimed) < 20 {
		u := c.find(c.q, patience)
		if u == nil {
			c.Fatalf("claimed %d", len(claimed))
		}
		r := c.request(*u, names...)
		r.Limit, r.Read = 7, 3
		got := c.claimAll(c.q, r)
		if len(got.Pushers) > 7 || got.Unknown {
			c.Errorf("claimed %d", len(got.Pushers))
		}
		for _, p := range got.Pushers {
			if claimed[p.Claim.Pusher] || metas(p.Notifications) != " 1 2" {
				c.Errorf("claimed %s, %q", p.Claim.Pusher, metas(p.Notifications))
			}
			claimed[p.Claim.Pusher] = true
		}
	}
}

// rests claims one of a user's two pushers: looks pass over the other one, until the first is postponed.
func (c *contract) rests() {
	c.add(note(1), "a", "b")
	r := c.request(*c.find(c.q, patience), "a", "b")
	r.Limit, r.Rest = 1, long
	claimed := c.claimAll(c.q, r).Pushers
	if len(claimed) != 1 || claimed[0].Claim.Fails {
		c.Fatalf("claimed %+v", claimed)
	}
	if u := c.find(c.q, short); u != nil {
		c.Errorf("returned %+v", u)
	}
	c.postpone(c.q, claimed[0].Claim, 0, module.Trouble{Generation: 1, Text: "x"}, true)
	c.add(note(2), "a", "b")
	r = c.request(*c.find(c.q, patience), "a", "b")
	r.Read = 3
	again := c.claimAll(c.q, r).Pushers
	if len(again) != 1 || !again[0].Claim.Fails || again[0].Claim.Pusher != "a" || len(again[0].Notifications) != 1 {
		c.Errorf("of a user that fails: claimed %+v", again)
	}
}

// givesBack claims nothing of a user whom a look has returned: the next look returns the user again, whatever the lease.
func (c *contract) givesBack() {
	c.add(note(1), "a")
	var found []module.DueUser
	for len(found) == 0 {
		found = c.look(c.q, 1000, long, all).Users
	}
	r := c.request(found[0], "a")
	r.Limit = 0
	if claimed := c.claimAll(c.q, r).Pushers; len(claimed) > 0 {
		c.Errorf("claimed %+v", claimed)
	}
	if c.find(c.q, patience) == nil {
		c.Error("no look returns the user")
	}
}

func (c *contract) staysInPlace() {
	one := c.begin(note(1), long, "a")[0]
	c.add(note(2), "a", "b")
	trouble := module.Trouble{Generation: 7, Text: "begun"}
	for range 2 { // a repetition changes nothing
		if left := c.complete(c.q, one, module.Done{To: one.Number, Trouble: trouble}); left != 2 {
			c.Errorf("%d are left", left)
		}
	}
	c.wantBusy("a")
	c.postpone(c.q, one, 0, trouble, false)
	taken := c.claim(c.other, "a")
	if taken.Trouble != trouble || metas(taken.Notifications) != "1" {
		c.Errorf("claimed %+v", taken)
	}
	c.wantFenced("another host has it", c.completing(one, 0))
	c.complete(c.other, taken.Claim, module.Done{To: taken.Claim.Number, Trouble: trouble})
	c.wantNext(c.other, taken.Claim, "1 2")
	c.next(c.other, taken.Claim)
	c.next(c.other, taken.Claim)
	c.claim(c.q, "b")
}

func (c *contract) drops() {
	one := c.begin(note(1), long, "a")[0]
	c.add(note(2), "a")
	_, end := c.read(c.q, one, 1)
	c.add(note(3), "a", "b")
	if left := c.complete(c.q, one, module.Done{To: end}); left != 1 {
		c.Errorf("%d are left", left)
	}
	c.wantNext(c.q, one, "3")
	for n := 4; n < 300; n++ {
		c.add(note(n), "a", "b")
	}
	_, end = c.read(c.q, one, 1)
	if left := c.complete(c.q, one, module.Done{To: end}); left != 0 {
		c.Errorf("%d are left", left)
	}
	b := c.claim(c.q, "b").Claim
	if got, _ := c.read(c.q, b, 1000); len(got) != 297 {
		c.Errorf("got %d", len(got))
	}
	c.complete(c.q, b, module.Done{To: end - 1})
	c.wantNext(c.q, b, "299")
	c.next(c.q, b)
	if log := c.log(); len(log.Notifications)+len(log.Pushers)+log.Bytes > 0 {
		c.Errorf("left %+v", log)
	}
}

func (c *contract) cuts() {
	if _, err := c.q.Cut(c.Context(), c.user, module.Log{}); err != nil && fault.KindOf(err) != fault.Unavailable {
		c.Error(err)
	}
	one := c.begin(note(1), long, "a")[0]
	first := one.Number
	for n := 2; n <= 40; n++ {
		c.add(note(n), "a")
	}
	c.cut(map[string]string{"a": span(2, 37)})
	c.wantNext(c.q, one, "1 38 39 40")
	if got, _ := c.read(c.q, one, 2); metas(got) != "1 38" {
		c.Errorf("got %q", metas(got))
	}
	if done := c.add(note(41), "a"); done.Length != 5 {
		c.Errorf("got %+v", done)
	}
	c.complete(c.q, one, module.Done{To: first + 1})
	c.postpone(c.q, one, 0, module.Trouble{}, false)
	claimed := c.claim(c.q, "a")
	if metas(claimed.Notifications) != "38" || claimed.Claim.Number > first+37 || claimed.Waiting != 4 {
		c.Errorf("claimed %+v", claimed)
	}
	total := 0
	log := c.log()
	for _, n := range log.Notifications {
		total += len(n.Text)
	}
	if log.Bytes != total || metas(log.Notifications) != "38 39 40 41" {
		c.Errorf("got %+v", log)
	}
	c.cut(map[string]string{"a": "39 40 41"}) // the last one stays
	c.wantNext(c.q, claimed.Claim, "38 41")
	if left := c.next(c.q, claimed.Claim); left != 1 {
		c.Errorf("%d are left", left)
	}
	if left := c.next(c.q, claimed.Claim); left != 0 {
		c.Errorf("%d are left", left)
	}
	if log := c.log(); len(log.Notifications)+len(log.Pushers)+log.Bytes > 0 {
		c.Errorf("left %+v", log)
	}
}

// Each pusher gets what it would get if the user had no other one.
func (c *contract) cutsAlone() {
	a := c.begin(note(1), long, "a")[0]
	for n := 2; n <= 10; n++ {
		c.add(note(n), "a")
	}
	b := c.begin(note(11), long, "b")[0]
	for n := 12; n <= 20; n++ {
		c.add(note(n), "a", "b")
	}
	c.cut(map[string]string{"a": "2 3 5 6 7 8 10 12 19"})
	c.wantNext(c.q, b, span(11, 20))
	c.wantNext(c.q, a, "1 4 9 11 13 14 15 16 17 18 20")
	c.cut(map[string]string{"b": "11 13 " + span(15, 18)})
	c.wantNext(c.q, b, "12 14 19 20")
	if got := metas(c.log().Notifications); got != "1 4 9 11 12 13 14 15 16 17 18 19 20" {
		c.Errorf("left %q", got)
	}
	c.add(note(21), "a", "b")
	c.next(c.q, a)
	c.next(c.q, b)
	c.cut(map[string]string{"a": "4 9 11"})
	c.wantNext(c.q, a, "13 14 15 16 17 18 20 21")
	c.wantNext(c.q, b, "14 19 20 21")
	c.postpone(c.q, a, 0, module.Trouble{}, false)
	u := c.find(c.q, patience)
	r := c.request(*u, "a")
	r.Read = 7
	claimed := c.claimAll(c.q, r)
	if len(claimed.Pushers) != 1 || metas(claimed.Pushers[0].Notifications) != "13 14 15 16 17 18 20" || claimed.Pushers[0].Waiting != 8 {
		c.Fatalf("claimed %+v", claimed)
	}
	for a = claimed.Pushers[0].Claim; c.next(c.q, a) > 0; {
	}
	c.wantNext(c.q, b, "14 19 20 21")
	c.next(c.q, b)
	log := c.log()
	if len(log.Pushers) != 1 || len(log.Pushers[0].Waiting) != 3 {
		c.Errorf("got %+v", log.Pushers)
	}
	c.begin(note(22), long, "a") // what it lost earlier is forgotten
	c.wantNext(c.q, b, "19 20 21 22")
	for c.next(c.q, b) > 0 {
	}
	if got := c.log().Pushers; len(got) != 1 || len(got[0].Waiting) != 1 {
		c.Errorf("got %+v", got)
	}
}

// Two hosts may cut a log at the same time.
func (c *contract) cutsOnce() {
	one := c.begin(note(1), long, "a")[0]
	for n := 2; n <= 6; n++ {
		c.add(note(n), "a")
	}
	log := c.log()
	c.cut(map[string]string{"a": "2 3"})
	log.Pushers[0].Waiting = slices.Delete(log.Pushers[0].Waiting, 3, 5)
	if ask(c, func() (bool, error) { return c.other.Cut(c.Context(), c.user, log) }) {
		c.Error("a log is cut by what was read before another cut")
	}
	c.wantNext(c.q, one, "1 4 5 6")
}

func (c *contract) forgets() {
	one := c.begin(note(1), long, "a")[0]
	c.add(note(2), "a")
	c.persist(func() error { return c.other.Forget(c.Context(), c.user) })
	c.wantFenced("forgotten", func() error { return c.q.Renew(c.Context(), one, long, false) })
	if log := c.log(); len(log.Notifications)+len(log.Pushers) > 0 {
		c.Errorf("left %+v", log)
	}
	c.wantBusy("a")
	again := c.begin(note(1), long, "a")[0] // it is not known any more
	c.wantFenced("begun again", func() error { return c.q.Renew(c.Context(), one, long, false) })
	c.persist(func() error { return c.other.Forget(c.Context(), "@nobody:x") })
	c.wantNext(c.q, again, "1")
}

func (c *contract) keepsSent() {
	sent := func(pusher, want string) {
		c.Helper()
		if got := ask(c, func() (string, error) { return c.other.Sent(c.Context(), c.user, pusher) }); got != want {
			c.Errorf("%s: got %q, want %q", pusher, got, want)
		}
	}
	claims := c.begin(note(1), long, "a", "b")
	c.add(note(2), "a")
	sent("a", "")
	c.complete(c.q, claims[0], module.Done{To: claims[0].Number + 1, Sent: "1 2"})
	sent("a", "1 2")
	c.complete(c.q, claims[0], module.Done{To: claims[0].Number + 1})
	c.complete(c.q, claims[1], module.Done{To: claims[1].Number + 2})
	sent("a", "1 2")
	sent("b", "")
}

func (c *contract) summarizes() {
	summary := func() (s module.QueueSummary) {
		c.Helper()
		s = ask(c, func() (module.QueueSummary, error) {
			return c.q.Summary(c.Context(), func(gate string, t module.Trouble) bool { return gate == c.gate && t.Text == "alone" })
		})
		if s.Refused != nil {
			c.Errorf("refused: %v", s.Refused)
		}
		return s
	}
	before := summary().Notifications
	var claims []*module.Claim
	of := *c
	for n := range 4 {
		of.user = mxid.UserID(fmt.Sprintf("@%d:sum", n))
		claims = append(claims, of.begin(note(1), time.Second, "a", "b")...) // nobody else claims them
		of.add(note(2), "a")
	}
	s := summary()
	for deadline := time.Now().Add(patience); s.Gates[c.gate] != 4 && time.Now().Before(deadline); {
		s = summary() // with hundreds of gates, it finds one later
	}
	isExact := before < 500 // otherwise other tests have many gates
	if s.Gates[c.gate] != 4 || s.Notifications < 16 || isExact && s.Notifications-before != 16 || s.Oldest < 0 || s.Oldest > time.Hour {
		c.Errorf("got %d at the gate, %d notifications, %d before, %v", s.Gates[c.gate], s.Notifications, before, s.Oldest)
	}
	for _, claim := range claims {
		of.user = claim.User
		of.complete(c.q, claim, module.Done{To: claim.Number + 2})
	}
	for deadline := time.Now().Add(patience); summary().Gates[c.gate] > 0; time.Sleep(10 * time.Millisecond) {
		for _, u := range c.look(c.q, 100, short, all).Users {
			c.claimAll(c.q, module.ClaimRequest{DueUser: u, Lease: long, Limit: 1, Read: 1})
		}
		if time.Now().After(deadline) {
			c.Fatalf("%d are left", summary().Gates[c.gate])
		}
	}
}

func (c *contract) addsMany() {
	var requests []module.AppendRequest
	users := []mxid.UserID{}
	of := *c
	for n := range 64 {
		of.user = mxid.UserID(fmt.Sprintf("@%d:many", n))
		var pushers []string
		for p := range 1 + 99*b2i(n%16 == 0) {
			pushers = append(pushers, fmt.Sprint("p", p))
		}
		requests, users = append(requests, claiming(of.newRequest(note(1), pushers...))), append(users, of.user)
	}
	total := 0
	for _, some := range c.q.Partition(c.Context(), users) {
		total += len(some)
	}
	if total != len(users) {
		c.Errorf("partitions of %d users", total)
	}
	results := c.q.Append(c.Context(), requests)
	for i, r := range results {
		of.user = requests[i].User
		if fault.KindOf(r.Err) == fault.Unavailable {
			r.Value, r.Err = of.append(c.q, requests[i]), nil
		}
		if r.Err != nil || len(r.Value.Claims) != len(requests[i].Pushers) {
			c.Fatalf("got %+v", r)
		}
		for p, claim := range r.Value.Claims {
			if claim != nil && (claim.Pusher != fmt.Sprint("p", p) || claim.User != of.user) {
				c.Errorf("got %+v", claim)
			}
		}
	}
}

func (c *contract) endedContext() {
	ctx := ended(c.Context())
	_, err := c.q.Look(ctx, module.Look{Limit: 1, Lease: long, Gate: all})
	for what, err := range map[string]error{
		"open":   c.q.Open(ctx),
		"append": c.q.Append(ctx, []module.AppendRequest{c.newRequest(note(1), "a")})[0].Err,
		"look":   err,
		"forget": c.q.Forget(ctx, c.user),
	} {
		if fault.KindOf(err) != fault.Unavailable {
			c.Errorf("%s: got error %v, want one of kind %s", what, err, fault.Unavailable)
		}
	}
	if log := c.log(); len(log.Notifications) > 0 {
		c.Errorf("added %+v", log)
	}
}
