package host

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
)

func startDemoPair(t *testing.T, flags ...string) (here, there *hosttest.Demo) {
	t.Helper()
	redistest.Require(t)
	addresses := strings.Join(redistest.Cluster(t, 3, 3).Addrs(), ",")
	flags = append(flags, "-redis-mode", "cluster", "-redis", addresses)
	return hosttest.StartDemo(t, flags...), hosttest.StartDemo(t, flags...)
}

// syncs is the number of changes at one host that a sync at another host waits for.
const syncs = 300

func TestASyncIsWokenByAChangeAtAnotherInstance(t *testing.T) {
	t.Parallel()
	here, there := startDemoPair(t)
	login := here.MustSend("", http.MethodPost, "/login",
		`{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},"password":"demo"}`)
	token := login["access_token"].(string)
	since := there.MustSend(token, http.MethodGet, "/sync", "")["next_batch"].(string)
	var delays []time.Duration
	for i := range syncs {
		type woken struct {
			answer map[string]any
			err    error
			at     time.Time
		}
		waiting := make(chan woken, 1)
		go func() {
			answer, err := there.Send(token, http.MethodGet, "/sync?timeout=20000&since="+since, "")
			waiting <- woken{answer, err, time.Now()}
		}()
		time.Sleep(2 * time.Millisecond) // usually the sync already waits
		id := fmt.Sprintf("!room%d:localhost", i%10)
		here.MustSend(token, http.MethodPut, "/pushrules/global/room/"+id, fmt.Sprintf(`{"actions":[{"set_tweak":"n","value":%d}]}`, i))
		made := time.Now()
		w := <-waiting
		text, err := json.Marshal(w.answer)
		if err != nil || w.err != nil || !strings.Contains(string(text), fmt.Sprintf(`"value":%d}`, i)) {
			t.Fatalf("round %d: got %s, %v, %v", i, text, w.err, err)
		}
		since = w.answer["next_batch"].(string)
		delays = append(delays, max(0, w.at.Sub(made)))
	}
	slices.Sort(delays)
	t.Logf("from the answer to the change at one host to the answer of the sync at the other: p50 %v, p99 %v, longest %v",
		delays[syncs/2], delays[syncs*99/100], delays[syncs-1])
	if p99 := delays[syncs*99/100]; p99 > 5*time.Second {
		t.Errorf("p99 is %v: syncs were not woken", p99)
	}
}

func TestMatrixJSSDK(t *testing.T) {
	t.Parallel()
	requireJSSDK(t)
	here, there := startDemoPair(t, "-features", pushrule.FeatureNames())
	runJSSDK(t, 10, "client.mjs", here.URL, there.URL)
}

// The unread counts of a client that syncs with one host equal those of both hosts after each step, which goes to one of
// them in turn.
func TestMatrixJSSDKCountsUnread(t *testing.T) {
	t.Parallel()
	requireJSSDK(t)
	redistest.Require(t)
	flags := []string{"-redis-mode", "standalone", "-redis", redistest.Single(t).Addr()}
	runJSSDK(t, 26, "unread.mjs", hosttest.StartDemo(t, flags...).URL, hosttest.StartDemo(t, flags...).URL)
}

// runJSSDK runs a client on matrix-js-sdk, whose folder needs an "npm ci" before. The client
// prints a line for each of its checks.
func runJSSDK(t *testing.T, leastChecks int, script string, urls ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "node", append([]string{script}, urls...)...)
	command.Dir = "../jssdk"
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	checks := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range checks {
		var check struct {
			Check, Error string
			OK           bool
		}
		if err := json.Unmarshal([]byte(line), &check); err != nil || !check.OK {
			t.Errorf("%s", line)
			continue
		}
		t.Log(line)
	}
	if err != nil || len(checks) < leastChecks {
		t.Errorf("the client ended after %d checks: %v\n%s", len(checks), err, complaints.String())
	}
}

// requireJSSDK skips the test if node or the SDK is missing, or fails it if REQUIRE_NODE=1.
func requireJSSDK(t *testing.T) {
	t.Helper()
	missing := ""
	if _, err := exec.LookPath("node"); err != nil {
		missing = "node is not on the PATH"
	} else if _, err := os.Stat("../jssdk/node_modules/matrix-js-sdk"); err != nil {
		missing = "matrix-js-sdk is not installed: run npm ci in integration/jssdk"
	}
	switch {
	case missing != "" && os.Getenv("REQUIRE_NODE") == "1":
		t.Fatal(missing)
	case missing != "":
		t.Skip(missing)
	}
}
