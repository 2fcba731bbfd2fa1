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
	goal float64 // of the floor's rate

	method, path string // %s is the id of a room rule that the user has
	body         func(n int) string

	floor string // the floor's path, of the same method
	hash  bool   // it is about the hash of pushers
}

const prefix = "/_matrix/client/v3"

// operations are those of the table.
func operations() []operation {
	enabled := func(n int) string { return fmt.Sprintf(`{"enabled":%t}`, n%2 == 0) }
	actions := func(n int) string { return fmt.Sprintf(`{"actions":["notify",{"set_tweak":"sound","value":"%d"}]}`, n) }
	return []operation{
		{"GET the whole set", .92, "GET", "/pushrules/", nil, "/get", false},
		{"GET a rule", .90, "GET", "/pushrules/global/override/.m.rule.member_event", nil, "/get", false},
		{"GET enabled", .90, "GET", "/pushrules/global/override/.m.rule.member_event/enabled", nil, "/get", false},
		{"GET actions", .90, "GET", "/pushrules/global/override/.m.rule.member_event/actions", nil, "/get", false},
		{"PUT enabled", .75, "PUT", "/pushrules/global/override/.m.rule.member_event/enabled", enabled, "/getset", false},
		{"PUT actions", .75, "PUT", "/pushrules/global/override/.m.rule.member_event/actions", actions, "/getset", false},
		{"PUT a rule", .75, "PUT", "/pushrules/global/room/!room:example.org", actions, "/getset", false},
		{"GET pushers", .90, "GET", "/pushers", nil, "/hgetall", true},
		{"POST pushers/set", .75, "POST", "/pushers/set", func(n int) string { return pusher("key0", n) }, "/hgethset", true},
	}
}

// grown are the operations whose growth with the set is measured, on the last
// rule of the set.
func grown() []operation {
	all := operations()
	last := all[4]
	last.path = "/pushrules/global/room/%s/enabled"
	put := all[6]
	put.path = "/pushrules/global/room/%s"
	get := all[1]
	get.path = "/pushrules/global/room/%s"
	return []operation{all[0], get, last, put}
}

func pusher(pushkey string, n int) string {
	return fmt.Sprintf(`{"kind":"http","app_id":"org.example.app","pushkey":%q,"app_display_name":"App",`+
		`"device_display_name":"Phone %d","lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`, pushkey, n)
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
	return strings.Replace(o.body(n), `"key0"`, `"`+user+`-0"`, 1)
}

// floorRequest is the same to the floor, to be answered with as many bytes.
func (o operation) floorRequest(user string, n, bytes int) []byte {
	query := url.Values{"key": {eventKey(user)}, "bytes": {fmt.Sprint(bytes)}}
	if o.hash {
		query.Set("key", hashKey(user))
		query.Set("field", `["org.example.app","`+user+`-0"]`)
	}
	return makeRequest(o.method, o.floor+"?"+query.Encode(), "", o.content(user, n))
}
