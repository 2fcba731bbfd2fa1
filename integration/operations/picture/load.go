package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// users is how many make the requests.
const users = 300

// load makes requests of all kinds until ctx ends, about 200 a second.
func load(ctx context.Context, address string, seed int) {
	random := rand.New(rand.NewPCG(1, uint64(seed)))
	for ctx.Err() == nil {
		user := fmt.Sprintf("user%d", random.IntN(users))
		method, path, body := pick(random, user)
		request, err := http.NewRequestWithContext(ctx, method, "http://"+address+"/_matrix/client/v3"+path, strings.NewReader(body))
		if err != nil {
			return
		}
		request.Header.Set("Authorization", "Bearer demo-"+user)
		if response, err := client.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(10 * time.Millisecond)):
		}
	}
}

// pick returns a request as a client makes it, reads more often than changes.
func pick(random *rand.Rand, user string) (method, path, body string) {
	room := fmt.Sprintf("/pushrules/global/room/!r%d:localhost", random.IntN(10))
	switch n := random.IntN(20); {
	case n < 9:
		return http.MethodGet, "/pushrules/", ""
	case n < 12:
		return http.MethodGet, "/pushers", ""
	case n < 14:
		return http.MethodGet, "/pushrules/global/override/.m.rule.master/enabled", ""
	case n < 16:
		return http.MethodPut, room, `{"actions":[]}`
	case n < 17:
		return http.MethodDelete, room, ""
	case n < 18:
		return http.MethodPut, "/pushrules/global/underride/.m.rule.call/enabled", fmt.Sprintf(`{"enabled":%t}`, random.IntN(2) == 0)
	}
	return http.MethodPost, "/pushers/set", fmt.Sprintf(`{"kind":"http","app_id":"org.example.app","pushkey":"%s-%d","app_display_name":"App",`+
		`"device_display_name":"Phone","lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`, user, random.IntN(3))
}
