package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/retry"
)

// kind is a kind of hostile client.
type kind struct {
	name        string
	connections int
	small       bool // a request is sent at once
	oneShot     bool // every request is made on a connection of its own
	elsewhere   bool // it has nothing to do with the host

	// write writes a request of a client, and returns how many bytes of it the
	// host took.
	write func(ctx context.Context, conn net.Conn, client, n int) int

	rules    int  // of the hostile user, at the start
	pushers  int  // likewise
	password bool // whether that user has one of their own
}

const (
	prefix  = "/_matrix/client/v3"
	mallory = "demo-mallory" // the token of the hostile user
)

// allKinds are all kinds of hostile clients.
func allKinds() []kind {
	return []kind{
		{name: "elsewhere", connections: 8, elsewhere: true},
		{name: "garbage", connections: 32, small: true, write: text(garbage)},
		{name: "unauthenticated", connections: 32, small: true, write: text(unauthenticated)},
		{name: "wrong-passwords", connections: 16, small: true, write: text(wrongPassword), password: true},
		{name: "reconnects", connections: 32, small: true, oneShot: true, write: text(unauthenticated)},
		{name: "10MB-bodies", connections: 8, write: largeBody},
		{name: "slow-bodies", connections: 300, write: slowBody},
		{name: "half-open", connections: 500, write: halfOpen},
		{name: "new-rules", connections: 32, small: true, write: text(newRule), rules: 8000},
		{name: "large-set", connections: 32, small: true, write: text(readAll), rules: 9900},
		{name: "pushers", connections: 32, small: true, write: text(readPushers), pushers: 100},
		{name: "pushkey-fight", connections: 20, small: true, write: text(fight)},
	}
}

func kindNames() (names []string) {
	for _, k := range allKinds() {
		names = append(names, k.name)
	}
	return names
}

// text is for requests that are short enough to be sent at once.
func text(request func(client, n int) string) func(context.Context, net.Conn, int, int) int {
	return func(_ context.Context, conn net.Conn, client, n int) int {
		sent, _ := io.WriteString(conn, request(client, n)) // an error shows in the read
		return sent
	}
}

// garbages are bodies just below the limit that are not what they should be.
var garbages = []string{
	strings.Repeat("no json ", 8000),
	strings.Repeat("[", 64000),
	strings.Repeat("[", 60) + strings.Repeat("0,", 30000),
	`{"actions":[],` + strings.Repeat(`"a":1,`, 10000) + `"a":1}`,
	`{"actions":["` + strings.Repeat("\xff", 60000) + `"]}`,
}

func garbage(client, n int) string {
	return whole("PUT", "/pushrules/global/room/garbage", mallory, garbages[(client+n)%len(garbages)])
}

func unauthenticated(client, n int) string {
	token := []string{"", "nobody", fmt.Sprintf("session-alice/A/%d-%d", client, n)}[n%3]
	return whole("GET", "/pushrules/", token, "")
}

// ownPassword is that of the hostile user, which costs the host a hash to check.
const ownPassword = "s3cret"

func wrongPassword(client, n int) string {
	return whole("POST", "/login", "", fmt.Sprintf(`{"type":"m.login.password","user":"mallory","password":"wrong-%d-%d"}`, client, n))
}

const (
	largeBytes = 10 << 20
	slowPause  = time.Second // between two bytes
)

func largeBody(_ context.Context, conn net.Conn, _, _ int) (sent int) {
	if _, err := io.WriteString(conn, head("PUT", "/pushrules/global/room/large", mallory, largeBytes)); err != nil {
		return 0
	}
	chunk := []byte(strings.Repeat(" ", 64<<10))
	for sent < largeBytes {
		n, err := conn.Write(chunk)
		sent += n
		if err != nil {
			return sent
		}
	}
	return sent
}

func slowBody(ctx context.Context, conn net.Conn, _, _ int) (sent int) {
	if _, err := io.WriteString(conn, head("PUT", "/pushrules/global/room/slow", mallory, 60000)); err != nil {
		return 0
	}
	for ctx.Err() == nil {
		if _, err := io.WriteString(conn, " "); err != nil {
			return sent
		}
		sent++
		_ = retry.Sleep(ctx, slowPause)
	}
	return sent
}

// halfOpen sends nothing, or a head without its end.
func halfOpen(_ context.Context, conn net.Conn, client, _ int) int {
	if client%2 == 0 {
		return 0
	}
	sent, _ := io.WriteString(conn, "GET "+prefix+"/pushrules/ HTTP/1.1\r\nHost: x\r\n")
	return sent
}

func newRule(client, n int) string {
	return whole("PUT", fmt.Sprintf("/pushrules/global/room/!hostile-%d-%d:localhost", client, n), mallory, `{"actions":["notify"]}`)
}

func readAll(int, int) string     { return whole("GET", "/pushrules/", mallory, "") }
func readPushers(int, int) string { return whole("GET", "/pushers", mallory, "") }

// fight has many users take one pushkey from each other.
func fight(client, n int) string {
	return whole("POST", "/pushers/set", fmt.Sprint("demo-mallory", client), pusherBody("fought", fmt.Sprint("Phone ", n)))
}

func pusherBody(pushkey, name string) string {
	return fmt.Sprintf(`{"kind":"http","app_id":"org.example.app","pushkey":%q,"app_display_name":"App",`+
		`"device_display_name":%q,"lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`, pushkey, name)
}
