package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/rulestore"
)

const sizesHeading = "### What one of each takes"

func pageBytes(t *testing.T) map[string]float64 {
	t.Helper()
	figures := map[string]float64{}
	for _, row := range tableRows(operatorPage(t, sizesHeading)) {
		number, err := strconv.ParseFloat(strings.ReplaceAll(row[1], ",", ""), 64)
		if err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		figures[row[0]] = number
	}
	return figures
}

// wantNear checks that the page is within 10% of a measurement.
func wantNear(t *testing.T, what string, page, measured float64) {
	t.Helper()
	t.Logf("%s: measured %.0f bytes, the page says %.0f", what, measured, page)
	if page < 0.9*measured || page > 1.1*measured {
		t.Errorf("%s: the page says %.0f bytes, measured %.0f", what, page, measured)
	}
}

type scales struct {
	t       *testing.T
	client  *redis.Client
	rules   *rulestore.Store
	pushers pushkeyHost
	users   int
}

func newScales(t *testing.T) *scales {
	t.Helper()
	client := redistest.Single(t).Client(t)
	rules, err := rulestore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &scales{t: t, client: client, rules: rules, pushers: newPushkeyHost(t, client)}
}

// newUser returns an id of 25 bytes.
func (s *scales) newUser() mxid.UserID {
	s.users++
	return mxid.UserID(fmt.Sprintf("@user%08d:example.org", s.users))
}

func (s *scales) bytes(key string) float64 {
	s.t.Helper()
	bytes, err := s.client.MemoryUsage(s.t.Context(), key, 0).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return float64(bytes)
}

func (s *scales) newEvent(kind pushrule.Kind, rules int) float64 {
	s.t.Helper()
	user := s.newUser()
	_, err := s.rules.Update(s.t.Context(), user, func(set *pushrule.Ruleset, _ bool) error {
		*set = pushrule.ServerDefault(user)
		for n := range rules {
			id, draft := usualRule(kind, n)
			if err := set.Put(kind, id, draft, pushrule.Position{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.bytes(eventKey(string(user)))
}

// usualRule returns rule n of a kind, as clients make them.
func usualRule(kind pushrule.Kind, n int) (id string, d pushrule.Draft) {
	room := fmt.Sprintf("!abcdefghijkl%06d:example.org", n)
	switch kind {
	case pushrule.Override: // mutes a room
		return room, pushrule.Draft{Conditions: []pushrule.Condition{
			pushrule.Condition(`{"kind":"event_match","key":"room_id","pattern":"` + room + `"}`),
		}}
	case pushrule.Room: // mentions and keywords only
		return room, pushrule.Draft{}
	}
	return fmt.Sprintf("underride%06d", n), pushrule.Draft{
		Actions: []pushrule.Action{`"notify"`, `{"set_tweak":"sound","value":"default"}`},
		Conditions: []pushrule.Condition{
			`{"kind":"room_member_count","is":"2"}`, `{"kind":"event_match","key":"type","pattern":"m.room.message"}`,
		},
	}
}

// maxRules bounds the sets over which a rule's size is averaged, since allocators round sizes up.
const maxRules = 100

func TestSizesOfRulesAreOnThePage(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	page, s := pageBytes(t), newScales(t)
	alone := s.newEvent(pushrule.Room, 0)
	wantNear(t, "default user", page["rules of a default user"], alone)
	for _, kind := range []pushrule.Kind{pushrule.Override, pushrule.Room, pushrule.Underride} {
		var bytes, rules float64
		for n := 1; n <= maxRules; n++ {
			bytes += s.newEvent(kind, n) - alone
			rules += float64(n)
		}
		wantNear(t, string(kind), page["each further `"+string(kind)+"` rule"], bytes/rules)
	}
}

func usualPusher(n int) pusher.Pusher {
	return pusher.Pusher{
		Key:  pusher.Key{AppID: "im.example.app.android", Pushkey: fmt.Sprintf("%0142d:APA91b", n)}, // as long as FCM's
		Kind: pusher.HTTP, AppDisplayName: "Example Messenger", DeviceDisplayName: "Alice's phone", Lang: "en",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify","format":"event_id_only"}`, Device: "ABCDEFGHIJ",
	}
}

func (s *scales) setPusher(user mxid.UserID, p pusher.Pusher) {
	s.t.Helper()
	if err := s.pushers.service.Set(s.t.Context(), user, p, pusher.RemoveOthers); err != nil {
		s.t.Fatal(err)
	}
}

func TestSizesOfPushersAreOnThePage(t *testing.T) {
	t.Parallel()
	page, s := pageBytes(t), newScales(t)
	if strings.Contains(s.client.Info(t.Context(), "server").Val(), "server_name:valkey") {
		t.Skip("the page has sizes of Redis; Valkey needs less")
	}
	const pushers = 20
	user := s.newUser()
	s.setPusher(user, usualPusher(1))
	one, key := s.bytes(pushersKey(string(user))), claimsKey(usualPusher(1).AppID, usualPusher(1).Pushkey)
	wantNear(t, "first pusher", page["first pusher of a user"], one)
	wantNear(t, "pushkey", page["each pushkey in the index"], s.bytes(key))
	for n := 2; n <= pushers; n++ {
		s.setPusher(user, usualPusher(n))
	}
	wantNear(t, "further pusher", page["each further pusher of a user"], (s.bytes(pushersKey(string(user)))-one)/(pushers-1))
}
