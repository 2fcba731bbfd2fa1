package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

func pusherWithout(names ...string) string {
	return "{" + strings.Join(slices.DeleteFunc(slices.Clone(hosttest.PusherMembers), func(member string) bool {
		name, _, _ := strings.Cut(member, ":")
		return slices.Contains(names, strings.Trim(name, `"`))
	}), ",") + "}"
}

func listed(pushers ...string) string { return `200 {"pushers":[` + strings.Join(pushers, ",") + `]}` }

func TestPushers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	key := func(key string) string { return hosttest.PusherWith(`"pushkey":"` + key + `"`) }
	set := func(body string) step { return step{"POST /pushers/set", body, hosttest.Done} }
	list := func(pushers ...string) step { return step{"GET /pushers", "", listed(pushers...)} }
	remove := func(appID, pushkey string) step {
		return set(`{"kind":null,"app_id":"` + appID + `","pushkey":"` + pushkey + `"}`)
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"none", []step{list()}},
		{"set twice", []step{set(hosttest.PusherWith()), set(hosttest.PusherWith()), list(hosttest.PusherWith())}},
		{"set under action, beside others", []step{
			set(`{"kind":null,"action":` + hosttest.PusherWith() + `,"app_id":5}`), list(hosttest.PusherWith()),
		}},
		{"in order of creation, an update keeps the place", []step{
			set(key("c")), set(key("a")), set(key("b")), list(key("c"), key("a"), key("b")),
			set(hosttest.PusherWith(`"pushkey":"a"`, `"lang":"de"`)),
			list(key("c"), hosttest.PusherWith(`"pushkey":"a"`, `"lang":"de"`), key("b")),
		}},
		{"deleted and set again it is the last", []step{
			set(key("a")), set(key("b")), remove("org.example.app", "a"), list(key("b")),
			set(key("a")), list(key("b"), key("a")),
		}},
		{"delete under action", []step{
			set(hosttest.PusherWith()), set(`{"action":{"kind":null,"app_id":"org.example.app","pushkey":"key"}}`), list(),
		}},
		{"delete with every member", []step{set(hosttest.PusherWith()), set(hosttest.PusherWith(`"kind":null`)), list()}},
		{"delete a missing pusher", []step{
			set(hosttest.PusherWith()), remove("other", "key"), remove("org.example.app", "other"), list(hosttest.PusherWith()),
		}},
		{"the app_id is part of the identity", []step{
			set(hosttest.PusherWith()), set(hosttest.PusherWith(`"app_id":"other"`)), list(hosttest.PusherWith(), hosttest.PusherWith(`"app_id":"other"`)),
		}},
		{"an unknown member KIND", []step{set(with(`"KIND":null`)(hosttest.PusherWith())), list(with(`"KIND":null`)(hosttest.PusherWith()))}},
		{"append is not handled", []step{
			set(key("a")), set(with(`"append":true`)(key("b"))), set(with(`"append":"no"`)(key("c"))),
			list(key("a"), key("b"), key("c")),
		}},
		{"profile_tag and unknown members are kept", []step{
			set(hosttest.PusherWith(`"data":{"n":1.50e3,"url":"https://push.example.org/_matrix/push/v1/notify","<x>":[{}]}`,
				`"profile_tag":"x"`, `"org.example.n":9007199254740993`)),
			list(hosttest.PusherWith(`"data":{"n":1.50e3,"url":"https://push.example.org/_matrix/push/v1/notify","<x>":[{}]}`,
				`"profile_tag":"x"`, `"org.example.n":9007199254740993`)),
		}},
		{"clients cannot set or see the server's own members", []step{
			set(with(`"created":7,"device_id":"OTHER","org.matrix.msc3881.device_id":"OTHER"`)(hosttest.PusherWith())), list(hosttest.PusherWith()),
		}},
		{"keys of any characters", []step{
			set(hosttest.PusherWith(`"app_id":"a\",\"b"`, `"pushkey":"<c>\n😀 [\""`)), set(hosttest.PusherWith(`"app_id":"a"`, `"pushkey":"b\",\"<c>\n😀 [\""`)),
			list(hosttest.PusherWith(`"app_id":"a\",\"b"`, `"pushkey":"<c>\n😀 [\""`), hosttest.PusherWith(`"app_id":"a"`, `"pushkey":"b\",\"<c>\n😀 [\""`)),
			remove(`a\",\"b`, `<c>\n😀 [\"`), remove(`a`, `b\",\"<c>\n😀 [\"`), list(),
		}},
	} {
		t.Run(test.name, func(t *testing.T) { s.caller(t, hosttest.R0).takeAll(test.steps...) })
	}
}
