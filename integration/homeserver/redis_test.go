package main

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

const rulesPath = "/_matrix/client/v3/pushrules/"

// useAsNewUser goes through all that a store does.
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
	d.useAsNewUser("demo-bob")

	if status := d.stop(); status != exitOK {
		t.Errorf("status %d", status)
	}
	log := d.stderr.String()
	for _, secret := range []string{"s3cret", "demo-", "hush-key"} {
		if strings.Contains(log, secret) {
			t.Errorf("%q is in the log:\n%s", secret, log)
		}
	}
	if !strings.Contains(log, `"route": "/_matrix/client/v3/pushrules/"`) {
		t.Errorf("no requests in the log:\n%s", log)
	}
	if strings.Contains(strings.Join(d.greeting, "\n"), "s3cret") {
		t.Errorf("a password in the greeting: %q", d.greeting)
	}
}

func TestPausedRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	d.useAsNewUser("demo-alice")
	server.Pause()
	for _, method := range []string{"GET", "PUT"} {
		path, body := rulesPath, ""
		if method == "PUT" {
			path, body = rulesPath+"global/room/paused", `{"actions":[]}`
		}
		start := time.Now()
		d.expect(method, path, "demo-alice", body, 503, "")
		if took := time.Since(start); took > patience {
			t.Errorf("%s took %v", method, took)
		}
	}
	server.Resume()
	d.useAsNewUser("demo-bob")
}

func TestCluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	d := startDemo(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	one := startDemo(t, "-redis-mode", "cluster", "-redis", "redis://"+servers.Addrs()[0])
	for _, token := range []string{"demo-a", "demo-b", "demo-c", "demo-d", "demo-e"} {
		d.useAsNewUser(token)
		one.expect("GET", rulesPath+"global/room/!r:x/enabled", token, "", 200, `{"enabled":true}`)
	}
	// A node that is down does not keep the host from starting.
	servers.Nodes()[0].Stop()
	down := servers.Addrs()[0]
	for _, mode := range []string{"standalone", "sentinel"} {
		line := expectFailure(t, exitFailure, "-redis-mode", mode, "-redis", servers.Addrs()[1])
		if !strings.Contains(line, "runs in cluster mode") {
			t.Error(line)
		}
	}
	line := expectFailure(t, exitFailure, "-redis-mode", "cluster", "-redis", down)
	if !strings.Contains(line, down+" does not answer") {
		t.Error(line)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	flags := []string{"-redis-mode", "sentinel", "-redis", servers.Addr(), "-redis-master"}
	d := startDemo(t, append(flags, servers.MasterName())...)
	d.useAsNewUser("demo-alice")

	byURL := startDemo(t, "-redis-mode", "sentinel", "-redis",
		"redis://"+servers.Addr()+"?master_name="+url.QueryEscape(servers.MasterName()))
	byURL.useAsNewUser("demo-bob")

	line := expectFailure(t, exitFailure, append(flags, "nobody")...)
	if !strings.Contains(line, `watches no master named "nobody"`) {
		t.Error(line)
	}
	for _, mode := range []string{"standalone", "cluster"} {
		line := expectFailure(t, exitFailure, "-redis-mode", mode, "-redis", servers.Addr())
		if !strings.Contains(line, "runs in sentinel mode") {
			t.Error(line)
		}
	}

	servers.Master().Stop()
	poll(t, "requests work after the failover", func() bool {
		return d.do("GET", rulesPath, "demo-carol", "").status == 200
	})
	d.useAsNewUser("demo-carol")
}

func TestStandaloneServerInOtherModes(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	for _, mode := range []string{"sentinel", "cluster"} {
		line := expectFailure(t, exitFailure, "-redis-mode", mode, "-redis", server.Addr())
		if !strings.Contains(line, "runs in standalone mode") {
			t.Error(line)
		}
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

// TestUnreachableRedis needs no server: nothing listens, somebody listens and
// says nothing, or somebody listens who is no Redis.
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
