package main

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/pushrule"
)

// greet prints a link to the page, and curl commands. The commands work unchanged, in
// their order.
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

// greeting has a capital word for each part that depends on the flags.
const greeting = `Open URL in a browser: push rules, messages and notifications on one page.

The homeserver SERVER listens on URL
Redis: REDISOPERATORS
The password of every user is demo. For curl, the token demo-NAME is the user
@NAME:SERVER, without a login. As @alice:SERVER:

# Read the push rules. The first read gives the user the default set, without
# which no rule can be set; so does the first login.
curl -sS AS_ALICE 'API/pushrules/'

# Mute a room; mentions still notify.
curl -sS -X PUT AS_ALICE JSON '{"actions":[]}' 'API/pushrules/global/room/%21lobby%3ASERVER_ESCAPED'

# Be notified of a keyword.
curl -sS -X PUT AS_ALICE JSON '{"pattern":"lunch","actions":["notify",{"set_tweak":"highlight"}]}' 'API/pushrules/global/content/lunch'

# Set a pusher, and list the pushers. Its gateway is a part of this program.
curl -sS -X POST AS_ALICE JSON '{"kind":"http","app_id":"org.example.chat","pushkey":"alice-phone","app_display_name":"Chat","device_display_name":"Phone","lang":"en","data":{"url":"URL/_matrix/push/v1/notify"}}' 'API/pushers/set'
curl -sS AS_ALICE 'API/pushers'

# Say something as Bob. A line for the notification appears below.
curl -sS -X POST AS_BOB JSON '{"room_id":"!tea:SERVER","room_name":"Tea","members":["@alice:SERVER"],"type":"m.room.message","content":{"msgtype":"m.text","body":"Tea at four?"},"unread":{"@alice:SERVER":1}}' 'URL/_demo/send'

POLL
# Alice has read it: her badge shows 0 from now on. Counts alone appear below
# after 3 seconds.
curl -sS -X POST AS_ALICE JSON '{"unread":{"@alice:SERVER":0}}' 'URL/_demo/read'

# Sync, as clients do. With &since= and the next_batch of the answer, it waits
# until the push rules change.
curl -sS AS_ALICE 'API/sync?timeout=30000'

# Log in, for a token of a device that can be logged out.
curl -sS -X POST JSON '{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},"password":"demo"}' 'API/login'

Ctrl-C stops it. Requests that are under way have DRAIN to end, then
notifications have as long (-drain).
`

// pollGreeting is for a host with polls.
const pollGreeting = `# Start a poll as Bob. With the feature polls, it notifies like a message.
curl -sS -X POST AS_BOB JSON '{"room_id":"!tea:SERVER","room_name":"Tea","members":["@alice:SERVER"],"type":"org.matrix.msc3381.poll.start","content":{"org.matrix.msc3381.poll.start":{"question":{"org.matrix.msc1767.text":"Green or black?"}}}}' 'URL/_demo/send'

`
