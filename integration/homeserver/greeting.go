package main

import (
	"fmt"
	"io"
	"strings"
)

// greet prints what to do with the homeserver: commands that work as they
// stand, in their order.
func greet(w io.Writer, cfg config, url string) {
	alice := client{url + "/_matrix/client/v3", tokenPrefix + "alice"}
	room := "%21lobby%3A" + strings.NewReplacer(":", "%3A", "[", "%5B", "]", "%5D").Replace(cfg.serverName)
	fmt.Fprintf(w, `The homeserver %[1]s listens on %[2]s
Redis: %[3]s
The token demo-NAME is the user @NAME:%[1]s. As @alice:%[1]s:

# Read the push rules. The first read gives the user the default set, without
# which no rule can be set; a real homeserver gives it at registration.
%[4]s

# Mute a room; mentions still notify.
%[5]s

# Be notified of a keyword.
%[6]s

# Set a pusher, and list the pushers.
%[7]s
%[8]s

Ctrl-C stops it.
`,
		cfg.serverName, url, cfg.redis,
		alice.curl("GET", "/pushrules/", ""),
		alice.curl("PUT", "/pushrules/global/room/"+room, `{"actions":[]}`),
		alice.curl("PUT", "/pushrules/global/content/lunch",
			`{"pattern":"lunch","actions":["notify",{"set_tweak":"highlight"}]}`),
		alice.curl("POST", "/pushers/set", `{"kind":"http","app_id":"org.example.chat","pushkey":"alice-phone",`+
			`"app_display_name":"Chat","device_display_name":"Phone","lang":"en",`+
			`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`),
		alice.curl("GET", "/pushers", ""),
	)
}

// client makes requests as one user.
type client struct{ url, token string }

// curl returns the command that makes a request. Body must hold no single
// quote.
func (c client) curl(method, path, body string) string {
	command := "curl -sS"
	if method != "GET" {
		command += " -X " + method
	}
	command += " -H 'Authorization: Bearer " + c.token + "'"
	if body != "" {
		command += " -H 'Content-Type: application/json' -d '" + body + "'"
	}
	return command + " '" + c.url + path + "'"
}
