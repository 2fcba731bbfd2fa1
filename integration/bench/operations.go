package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// operation is a kind of request to the demo host, with a request to the floor that causes the same work in Redis.
type operation struct {
	name  string
	rules int     // number of the user's rules without the defaults
	goal  float64 // CPU time of the floor divided by the demo host's; 0: no goal

	method, path string
	body         func(user string, n int) string // nil: no body

	floor string // path of the request to the floor, which has the same method
}

const prefix = "/_matrix/client/v3"

// operations returns all operations: eleven on users with the default rules, and four for each
// size of larger sets, on the last rule of the set.
func operations() []operation {
	const member = "/pushrules/global/override/.m.rule.member_event"
	const room = "/pushrules/global/room/!room:example.org"
	all := []operation{
		{"GET the whole set", 0, 1, "GET", "/pushrules/", nil, "/get"},
		{"GET a rule", 0, .95, "GET", member, nil, "/get"},
		{"GET enabled", 0, .95, "GET", member + "/enabled", nil, "/get"},
		{"GET actions", 0, .95, "GET", member + "/actions", nil, "/get"},
		{"PUT enabled", 0, .75, "PUT", member + "/enabled", enabled, "/getset"},
		{"PUT actions", 0, .75, "PUT", member + "/actions", actions, "/getset"},
		{"PUT a rule", 0, .75, "PUT", room, actions, "/getset"},
		{"GET pushers", 0, .65, "GET", "/pushers", nil, "/hgetall"},
		{"POST pushers/set, renewed", 0, .6, "POST", "/pushers/set", renewal, "/hgethset"},
		newPusher,
		{"POST pushers/set, taken", 0, 0, "POST", "/pushers/set", taking, "/hgethset"},
	}
	goals := map[int][4]float64{2500: {2, 2}}
	for _, size := range []int{100, 1000, 2500} { // [pushrule.DefaultLimits] allows about 2,700
		last, goal := "/pushrules/global/room/"+url.PathEscape(roomID(size-1)), goals[size]
		all = append(all,
			operation{"GET the whole set", size, goal[0], "GET", "/pushrules/", nil, "/get"},
			operation{"GET a rule", size, goal[1], "GET", last, nil, "/get"},
			operation{"PUT enabled", size, goal[2], "PUT", last + "/enabled", enabled, "/getset"},
			operation{"PUT a rule", size, goal[3], "PUT", last, actions, "/getset"},
		)
	}
	return all
}

// newPusher sets another pusher with each request.
var newPusher = operation{"POST pushers/set, new", 0, .4, "POST", "/pushers/set", addition, "/hgethset"}

func roomID(n int) string { return fmt.Sprintf("!room%d:example.org", n) }

// enabled returns the body of request n. The first request disables, because rules are enabled at first.
func enabled(_ string, n int) string { return fmt.Sprintf(`{"enabled":%t}`, n%2 != 0) }

func actions(_ string, n int) string {
	return fmt.Sprintf(`{"actions":["notify",{"set_tweak":"sound","value":"%d"}]}`, n)
}

// addition returns the body that sets a user's pusher n+3. The requests -3 to -1 are made before the measurement.
func addition(user string, n int) string { return pusherBody(fmt.Sprint(user, "-", n+3), n) }

// renewal returns the body that gives a user's first pusher another name.
func renewal(user string, n int) string { return pusherBody(user+"-0", n) }

// taking returns the body that takes a pushkey from the user's neighbour, who takes it back.
func taking(user string, n int) string {
	number, _ := strconv.Atoi(strings.TrimPrefix(user, "user"))
	return pusherBody(fmt.Sprint("pair-", number/2), n)
}

func pusherBody(pushkey string, n int) string {
	return fmt.Sprintf(`{"kind":"http","app_id":"org.example.app","pushkey":%q,"app_display_name":"App",`+
		`"device_display_name":"Phone %08d","lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`, pushkey, n)
}

func userID(name string) mxid.UserID { return mxid.UserID("@" + name + ":localhost") }

// content returns the body of a user's nth request.
func (o operation) content(user string, n int) string {
	if o.body == nil {
		return ""
	}
	return o.body(user, n)
}

// request returns a user's nth request to the demo host.
func (o operation) request(user string, n int) []byte {
	return makeRequest(o.method, prefix+o.path, "demo-"+user, o.content(user, n))
}

// floorRequest returns the corresponding request to the floor, for an answer of the given size.
func (o operation) floorRequest(user string, n int, bytes int64) []byte {
	key, field := stored.Keys{}.Rules(userID(user)), ""
	if strings.HasPrefix(o.floor, "/h") {
		key, field = stored.Keys{}.Pushers(userID(user)), fmt.Sprintf(`["org.example.app",%q]`, user+"-0")
	}
	if o.name == newPusher.name {
		key, field = "floor:"+key, fmt.Sprint(n) // the floor stores no pusher
	}
	query := url.Values{"key": {key}, "field": {field}, "bytes": {fmt.Sprint(bytes)}}
	return makeRequest(o.method, o.floor+"?"+query.Encode(), "", o.content(user, n))
}
