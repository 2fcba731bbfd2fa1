package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

// greet prints what to do with the homeserver: commands that work as they
// stand, in their order.
func greet(w io.Writer, cfg config, listening *servers) {
	url := listening.clients.url()
	fmt.Fprintf(w, `The homeserver %[1]s listens on %[2]s
Redis: %[3]s%[4]s
The password of every user is demo. For curl, the token demo-NAME is the user
@NAME:%[1]s, without a login. As @alice:%[1]s:
`, cfg.serverName, url, cfg.redis, listening.operatorsLine())
	for _, t := range trials(cfg.serverName, url) {
		fmt.Fprintf(w, "\n# %s\n%s\n", strings.ReplaceAll(t.about, "\n", "\n# "), strings.Join(t.commands, "\n"))
	}
	fmt.Fprint(w, "\nCtrl-C stops it.\n")
}

// trial is something to try, and how.
type trial struct {
	about    string
	commands []string
}

func trials(server, url string) []trial {
	anyone := client{url: url + "/_matrix/client/v3"}
	alice := client{anyone.url, sessions.TokenPrefix + "alice"}
	bob := client{url, sessions.TokenPrefix + "bob"}
	room := "%21lobby%3A" + strings.NewReplacer(":", "%3A", "[", "%5B", "]", "%5D").Replace(server)
	return []trial{
		{"Read the push rules. The first read gives the user the default set, without\nwhich no rule can be set; so does the first login.", []string{
			alice.curl("GET", "/pushrules/", ""),
		}},
		{"Mute a room; mentions still notify.", []string{
			alice.curl("PUT", "/pushrules/global/room/"+room, `{"actions":[]}`),
		}},
		{"Be notified of a keyword.", []string{
			alice.curl("PUT", "/pushrules/global/content/lunch", `{"pattern":"lunch","actions":["notify",{"set_tweak":"highlight"}]}`),
		}},
		{"Set a pusher, and list the pushers. Its gateway is a part of this program.", []string{
			alice.curl("POST", "/pushers/set", `{"kind":"http","app_id":"org.example.chat","pushkey":"alice-phone",`+
				`"app_display_name":"Chat","device_display_name":"Phone","lang":"en",`+
				`"data":{"url":"`+url+receiver.Path+`"}}`),
			alice.curl("GET", "/pushers", ""),
		}},
		{"Say something as Bob. A line for the notification appears below.", []string{
			bob.curl("POST", "/_demo/send", `{"room_id":"!tea:`+server+`","room_name":"Tea",`+
				`"members":["@alice:`+server+`"],"type":"m.room.message","content":{"msgtype":"m.text","body":"Tea at four?"},`+
				`"unread":{"@alice:`+server+`":1}}`),
		}},
		{"Sync, as clients do. With &since= and the next_batch of the answer, it waits\nuntil the push rules change.", []string{
			alice.curl("GET", "/sync?timeout=30000", ""),
		}},
		{"Log in, for a token of a device that can be logged out.", []string{
			anyone.curl("POST", "/login", `{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},`+
				`"password":"`+sessions.DefaultPassword+`"}`),
		}},
	}
}

// operatorsLine says at which address the metrics are, if at any.
func (s *servers) operatorsLine() string {
	if s.operators == nil {
		return ""
	}
	return "\nFor operators: " + s.operators.url() + "/metrics and /readyz"
}

// client makes requests as one user, or as nobody without a token.
type client struct{ url, token string }

// curl returns the command that makes a request. Body must hold no single
// quote.
func (c client) curl(method, path, body string) string {
	command := "curl -sS"
	if method != "GET" {
		command += " -X " + method
	}
	if c.token != "" {
		command += " -H 'Authorization: Bearer " + c.token + "'"
	}
	if body != "" {
		command += " -H 'Content-Type: application/json' -d '" + body + "'"
	}
	return command + " '" + c.url + path + "'"
}
