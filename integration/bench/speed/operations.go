package speed

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// operation is what is measured: a request to the demo host, and the one to the
// floor that has Redis do the same.
type operation struct {
	name string
	goal float64 // what the floor spends by what the demo host spends

	method, path string // %s is the id of a room rule that the user has
	body         func(n int) string

	floor string // the floor's path, of the same method
	adds  bool   // each request sets another pusher
}

const prefix = "/_matrix/client/v3"

// The operations of the tables.
var (
	getSet     = operation{"GET the whole set", 1, "GET", "/pushrules/", nil, "/get", false}
	getRule    = operation{"GET a rule", .95, "GET", memberRule, nil, "/get", false}
	getEnabled = operation{"GET enabled", .95, "GET", memberRule + "/enabled", nil, "/get", false}
	getActions = operation{"GET actions", .95, "GET", memberRule + "/actions", nil, "/get", false}
	getPushers = operation{"GET pushers", .95, "GET", "/pushers", nil, "/hgetall", false}

	putEnabled  = operation{"PUT enabled", .75, "PUT", memberRule + "/enabled", enabled, "/getset", false}
	putActions  = operation{"PUT actions", .75, "PUT", memberRule + "/actions", actions, "/getset", false}
	putRule     = operation{"PUT a rule", .75, "PUT", "/pushrules/global/room/!room:example.org", actions, "/getset", false}
	renewPusher = operation{"POST pushers/set, renewed", .6, "POST", "/pushers/set", pusher, "/hgethset", false}
	addPusher   = operation{"POST pushers/set, new", .4, "POST", "/pushers/set", pusher, "/hgethset", true}
)

const memberRule = "/pushrules/global/override/.m.rule.member_event"

func operations() []operation {
	return []operation{
		getSet, getRule, getEnabled, getActions, putEnabled, putActions, putRule, getPushers, renewPusher, addPusher,
	}
}

// grown are the operations whose growth with the set is measured, on the last
// rule of the set.
func grown() []operation {
	get, put, last := getRule, putRule, putEnabled
	get.path, put.path, last.path = "/pushrules/global/room/%s", "/pushrules/global/room/%s", "/pushrules/global/room/%s/enabled"
	return []operation{getSet, get, last, put}
}

// growthGoals are those for sets of some size.
var growthGoals = map[int]map[string]float64{
	9900: {getSet.name: 3, getRule.name: 2, putEnabled.name: .75, putRule.name: .75},
}

// enabled begins with false: rules are enabled at first.
func enabled(n int) string { return fmt.Sprintf(`{"enabled":%t}`, n%2 == 0) }

func actions(n int) string {
	return fmt.Sprintf(`{"actions":["notify",{"set_tweak":"sound","value":"%d"}]}`, n)
}

// pusher is one whose pushkey is still to be named.
func pusher(n int) string {
	return fmt.Sprintf(`{"kind":"http","app_id":"org.example.app","pushkey":"PUSHKEY","app_display_name":"App",`+
		`"device_display_name":"Phone %08d","lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`, n)
}

// pushkey is that of a user's nth request.
func (o operation) pushkey(user string, n int) string {
	if o.adds {
		return fmt.Sprintf("%s-new-%d", user, n)
	}
	return user + "-0"
}

// token and key are of a user, by name.
func token(user string) string    { return "demo-" + user }
func eventKey(user string) string { return stored.Keys{}.Rules(userID(user)) }
func hashKey(user string) string  { return stored.Keys{}.Pushers(userID(user)) }

func userID(name string) mxid.UserID { return mxid.UserID("@" + name + ":localhost") }

// request is the nth one of a user to the demo host.
func (o operation) request(user, rule string, n int) []byte {
	path := o.path
	if strings.Contains(path, "%s") {
		path = fmt.Sprintf(path, url.PathEscape(rule))
	}
	return makeRequest(o.method, prefix+path, token(user), o.content(user, n))
}

// content is the body of the nth request. A pushkey is one user's.
func (o operation) content(user string, n int) string {
	if o.body == nil {
		return ""
	}
	return strings.Replace(o.body(n), "PUSHKEY", o.pushkey(user, n), 1)
}

// floorRequest is the same to the floor, to be answered with as many bytes.
func (o operation) floorRequest(user string, n, bytes int) []byte {
	query := url.Values{"key": {eventKey(user)}, "bytes": {fmt.Sprint(bytes)}}
	if strings.HasPrefix(o.floor, "/h") {
		query.Set("key", hashKey(user))
		query.Set("field", fmt.Sprintf(`["org.example.app",%q]`, o.pushkey(user, n)))
	}
	if o.adds {
		query.Set("key", "floor:"+hashKey(user)) // what it stores is no pusher
	}
	return makeRequest(o.method, o.floor+"?"+query.Encode(), "", o.content(user, n))
}
