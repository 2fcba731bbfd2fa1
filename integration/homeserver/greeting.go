package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"
)

// greet prints a link to the page, and curl commands that a user can run unchanged, in their order.
func greet(w io.Writer, cfg config, listening *servers) {
	operators := ""
	if listening.operators != nil {
		operators = "\nFor operators: " + listening.operators.url() + "/metrics and /readyz"
	}
	mail := ""
	if cfg.inbox != nil {
		mail = "\nMail: smtp://" + cfg.inbox.Address() + ", shown on the page"
	}
	fmt.Fprint(w, strings.NewReplacer(
		"SERVER_ESCAPED", url.QueryEscape(cfg.serverName), "SERVER", cfg.serverName,
		"URL", listening.clients.url(), "REDIS", cfg.redis.String(), "OPERATORS", operators, "MAIL", mail,
		"CURL", "curl -sS -H 'Authorization: Bearer demo-",
	).Replace(greeting))
}

// greet replaces the words in capitals.
const greeting = `Open URL in a browser: push rules, messages and notifications on one page.

The homeserver SERVER listens on URL
Redis: REDISOPERATORSMAIL
The password of every user is demo. With curl, the token demo-NAME is the user @NAME:SERVER without a login.

# Read alice's push rules. Set a pusher: this program is also the push gateway. Send a message as bob, and mark it as read.
CURLalice' 'URL/_matrix/client/v3/pushrules/'
CURLalice' -d '{"kind":"http","app_id":"app","pushkey":"phone","app_display_name":"Chat","device_display_name":"Phone","lang":"en","data":{"url":"URL/_matrix/push/v1/notify"}}' 'URL/_matrix/client/v3/pushers/set'
CURLbob' -d '{"event_id":"$four","room_id":"!tea:SERVER","room_name":"Tea","members":["@alice:SERVER"],"type":"m.room.message","content":{"msgtype":"m.text","body":"Tea at four?"}}' 'URL/_demo/send'
CURLalice' -d '{}' 'URL/_matrix/client/v3/rooms/%21tea%3ASERVER_ESCAPED/receipt/m.read/%24four'

Notifications appear below. Ctrl-C stops the homeserver.
`
