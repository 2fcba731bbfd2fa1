package main

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/pushrule"
)

// greet prints a link to the page, and curl commands that a user can run unchanged, in their order.
func greet(w io.Writer, cfg config, listening *servers) {
	operators := ""
	if listening.operators != nil {
		operators = "\nFor operators: " + listening.operators.url() + "/metrics and /readyz"
	}
	poll := ""
	if slices.ContainsFunc(cfg.module.Features, func(f pushrule.Feature) bool { return f.Name == pushrule.Polls.Name }) {
		poll = pollGreeting
	}
	text := strings.Replace(greeting, "POLL\n", poll, 1)
	fmt.Fprint(w, strings.NewReplacer(
		"SERVER_ESCAPED", url.QueryEscape(cfg.serverName), "SERVER", cfg.serverName,
		"URL", listening.clients.url(), "DRAIN", cfg.drain.String(), "REDIS", cfg.redis.String(), "OPERATORS", operators,
		"API", listening.clients.url()+"/_matrix/client/v3",
		"AS_ALICE", "-H 'Authorization: Bearer demo-alice'", "AS_BOB", "-H 'Authorization: Bearer demo-bob'",
		"JSON", "-H 'Content-Type: application/json' -d",
	).Replace(text))
}

// greet replaces the words in capitals.
const greeting = `Open URL in a browser: push rules, messages and notifications on one page.

The homeserver SERVER listens on URL
Redis: REDISOPERATORS
The password of every user is demo. With curl, the token demo-NAME is the user
@NAME:SERVER without a login. Commands as @alice:SERVER:

# Read the push rules. The first read or login stores the default rules; before
# that, a user cannot set a rule.
curl -sS AS_ALICE 'API/pushrules/'

# Mute a room; mentions still notify.
curl -sS -X PUT AS_ALICE JSON '{"actions":[]}' 'API/pushrules/global/room/%21lobby%3ASERVER_ESCAPED'

# Notify of a keyword.
curl -sS -X PUT AS_ALICE JSON '{"pattern":"lunch","actions":["notify",{"set_tweak":"highlight"}]}' 'API/pushrules/global/content/lunch'

# Set a pusher and list the pushers. This program is also the push gateway.
curl -sS -X POST AS_ALICE JSON '{"kind":"http","app_id":"org.example.chat","pushkey":"alice-phone","app_display_name":"Chat","device_display_name":"Phone","lang":"en","data":{"url":"URL/_matrix/push/v1/notify"}}' 'API/pushers/set'
curl -sS AS_ALICE 'API/pushers'

POLL
# Send a message as Bob. The notification appears below.
curl -sS -X POST AS_BOB JSON '{"event_id":"$four","room_id":"!tea:SERVER","room_name":"Tea","members":["@alice:SERVER"],"type":"m.room.message","content":{"msgtype":"m.text","body":"Tea at four?"}}' 'URL/_demo/send'

# Mark it as read, so that the badge shows 0. After 3 seconds a notification with
# only the counts appears below.
curl -sS -X POST AS_ALICE JSON '{}' 'API/rooms/%21tea%3ASERVER_ESCAPED/receipt/m.read/%24four'

# Sync as clients do. To wait until the push rules change, add &since= and the
# next_batch of the answer.
curl -sS AS_ALICE 'API/sync?timeout=30000'

# Log in. A token from a login can be logged out.
curl -sS -X POST JSON '{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},"password":"demo"}' 'API/login'

Ctrl-C stops the homeserver. It waits DRAIN for running requests, and then as
long for running notifications (-drain).
`

const pollGreeting = `# Start a poll as Bob. With the feature polls, it notifies like a message.
curl -sS -X POST AS_BOB JSON '{"room_id":"!tea:SERVER","room_name":"Tea","members":["@alice:SERVER"],"type":"org.matrix.msc3381.poll.start","content":{"org.matrix.msc3381.poll.start":{"question":{"org.matrix.msc1767.text":"Green or black?"}}}}' 'URL/_demo/send'

`
