package main

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

const rulesPath = "/_matrix/client/v3/pushrules/"

func (d *demo) useAsNewUser(token string) {
	d.t.Helper()
	d.expect("GET", rulesPath, token, "", 200, "")
	d.expect("PUT", rulesPath+"global/room/!r:x", token, `{"actions":[]}`, 200, "{}")
	d.expect("GET", rulesPath+"global/room/!r:x/actions", token, "", 200, `{"actions":[]}`)
	d.expect("POST", "/_matrix/client/v3/pushers/set", token, `{"kind":"http","app_id":"a","pushkey":"hush-key",`+
		`"app_display_name":"","device_display_name":"","lang":"en","data":{"url":"https://p.example/_matrix/push/v1/notify"}}`, 200, "{}")
	d.expect("POST", "/_matrix/client/v3/pushers/set", token, `{"kind":null,"app_id":"a","pushkey":"hush-key"}`, 200, "{}")
	d.expect("GET", "/_matrix/client/v3/pushers", token, "", 200, `{"pushers":[]}`)
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--requirepass", "s3cret-password")
	redisURL := "redis://default:s3cret-password@" + server.Addr() + "/3"
	d := startDemo(t, "-redis-mode", "standalone", "-redis", redisURL, "-key-prefix", "demo:", "-log-level", "debug")
	d.useAsNewUser("demo-alice")
	d.expect("GET", rulesPath+"?access_token=demo-token-in-query", "", "", 200, "")

	client := server.Client(t)
	keys, err := client.Do(t.Context(), "EVAL", "redis.call('SELECT', 3) return redis.call('KEYS', '*')", 0).StringSlice()
	if err != nil || !strings.Contains(strings.Join(keys, " "), "demo:account_data:{@alice:localhost}:m.push_rules") {
		t.Errorf("keys %q, %v", keys, err)
	}

	server.Stop()
	start := time.Now()
	d.expect("GET", rulesPath, "demo-alice", "", 503, `{"errcode":"M_UNKNOWN","error":"The server cannot reach its storage, try again later."}`)
	d.expect("GET", accountDataPath, "demo-alice", "", 503, `{"errcode":"M_UNKNOWN","error":"The server cannot reach its storage, try again later."}`)
	t.Logf("two answers without Redis took %v", time.Since(start))
	d.expect("GET", "/healthz", "", "", 200, "ok")
	server.Start()
	for deadline := time.Now().Add(time.Minute); d.do("GET", rulesPath, "demo-alice", "").status == 503 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // the client dials once a second
	}
	d.useAsNewUser("demo-bob")
	token := d.login("alice", "demo", "PHONE").AccessToken
	if got := d.changePassword(token, "alice", "demo", "new-s3cret", ""); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	d.expect("GET", v3+"/sync?access_token="+token, "", "", 200, "")
	stored := ""
	for _, more := range []string{"", "-wal"} {
		text, err := os.ReadFile(hosttest.DataFile(t) + more)
		if err != nil {
			t.Fatal(err)
		}
		stored += string(text)
	}
	if !strings.Contains(stored, "@alice:localhost") {
		t.Error("the file lacks the user")
	}

	if status := d.stop(); status != exitOK {
		t.Errorf("status %d", status)
	}
	log, random := d.stderr.String(), token[strings.LastIndexByte(token, '/')+1:]
	for where, secrets := range map[string][]string{log: {"s3cret", "demo-", "hush-key", random}, stored: {"s3cret", random}} {
		for _, secret := range secrets {
			if strings.Contains(where, secret) {
				t.Errorf("%q is in %q", secret, where)
			}
		}
	}
	if !strings.Contains(log, `"route": "/_matrix/client/v3/pushrules/"`) {
		t.Errorf("no requests in the log:\n%s", log)
	}
	if strings.Contains(strings.Join(d.greeting, "\n"), "s3cret") {
		t.Errorf("a password in the greeting: %q", d.greeting)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	d := startDemo(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	for _, user := range []string{"a", "b", "c", "d", "e"} {
		d.useAsNewUser("demo-" + user)
	}
	line := expectFailure(t, exitFailure, "-redis-mode", "sentinel", "-redis", servers.Addrs()[1])
	if !strings.Contains(line, "runs in cluster mode") {
		t.Error(line)
	}
}

func TestRefusedLogin(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--requirepass", "right")
	for _, user := range []string{"", ":s3cret@"} {
		line := expectFailure(t, exitFailure, "-redis-mode", "standalone", "-redis", "redis://"+user+server.Addr())
		if !strings.Contains(line, "the Redis at "+server.Addr()+" refuses: ") || strings.Contains(line, "s3cret") {
			t.Error(line)
		}
	}
}

// The addresses have no listener, a silent listener, and a listener that is no Redis.
func TestUnreachableRedis(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	d := startDemo(t)
	addresses := map[string]string{
		"nobody listens": "127.0.0.1:1",
		"no answer":      mute.Addr().String(),
		"no Redis":       strings.TrimPrefix(d.url, "http://"),
	}
	for name, address := range addresses {
		for _, mode := range []string{"standalone", "sentinel", "cluster"} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				line := expectFailure(t, exitFailure, "-redis-mode", mode, "-redis", address)
				if took := time.Since(start); !strings.Contains(line, address+" does not answer") || took > patience {
					t.Errorf("after %v: %s", took, line)
				}
			})
		}
	}
}
