package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
)

type demo struct {
	t   *testing.T
	url string
	end func() (log string) // stops it, and returns its log

	kill func() // ends it at once
}

var demoFolder string

var demoProgram = sync.OnceValues(func() (program string, err error) {
	if demoFolder, err = os.MkdirTemp("", "homeserver-*"); err != nil {
		return "", err
	}
	program = filepath.Join(demoFolder, "homeserver")
	out, err := exec.Command("go", "build", "-o", program, "./homeserver").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, err
})

func removeDemoProgram() {
	if demoFolder != "" {
		os.RemoveAll(demoFolder)
	}
}

var dataFiles sync.Map

// dataFile returns the file that the demo hosts of a test share.
func dataFile(t *testing.T) string {
	file, found := dataFiles.Load(t)
	if !found {
		file, _ = dataFiles.LoadOrStore(t, filepath.Join(t.TempDir(), "demo.db"))
	}
	return file.(string)
}

// openData opens the file that the demo hosts of a test share.
func openData(t *testing.T) *data.DB {
	t.Helper()
	db, err := data.Open(t.Context(), dataFile(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// startDemo starts a demo host without rate limits. It stops when the test ends.
func startDemo(t *testing.T, flags ...string) *demo {
	t.Helper()
	program, err := demoProgram()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(flags, "-data") {
		flags = append(flags, "-data", dataFile(t))
	}
	var log bytes.Buffer
	command := exec.Command(program, append([]string{"-listen", "127.0.0.1:0", "-user-rate", "0", "-password-rate", "0"}, flags...)...)
	command.Stderr = &log
	greeting, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceValue(func() string {
		_ = command.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := command.Wait(); err != nil || t.Failed() {
			t.Logf("the demo host ended: %v\n%s", err, log.String())
		}
		return log.String()
	})
	t.Cleanup(func() { end() })
	lines := bufio.NewScanner(greeting)
	for lines.Scan() {
		if _, url, found := strings.Cut(lines.Text(), " listens on "); found {
			go io.Copy(io.Discard, greeting)
			kill := func() {
				_ = command.Process.Kill() // it may have ended
				end()
			}
			return &demo{t, url, end, kill}
		}
	}
	t.Fatal("the demo host does not print its URL")
	return nil
}

func startDemoPair(t *testing.T, flags ...string) (here, there *demo) {
	t.Helper()
	redistest.Require(t)
	addresses := strings.Join(redistest.Cluster(t, 3, 3).Addrs(), ",")
	flags = append(flags, "-redis-mode", "cluster", "-redis", addresses)
	return startDemo(t, flags...), startDemo(t, flags...)
}

// sendEvent sends an event by the demo's own endpoint.
func (d *demo) sendEvent(body string) error {
	ctx, cancel := context.WithTimeout(d.t.Context(), never)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/_demo/send", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer demo-sender")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %d", answer.StatusCode)
	}
	return nil
}

func (d *demo) send(token, method, path, body string) (answer map[string]any, err error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), never)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, d.url+v3+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, text)
	}
	return answer, errors.Join(err, json.Unmarshal(text, &answer))
}

func (d *demo) mustSend(token, method, path, body string) map[string]any {
	d.t.Helper()
	answer, err := d.send(token, method, path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer
}

// syncs is the number of changes at one host that a sync at another host waits for.
const syncs = 300

func TestASyncIsWokenByAChangeAtAnotherInstance(t *testing.T) {
	t.Parallel()
	here, there := startDemoPair(t)
	login := here.mustSend("", http.MethodPost, "/login",
		`{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},"password":"demo"}`)
	token := login["access_token"].(string)
	since := there.mustSend(token, http.MethodGet, "/sync", "")["next_batch"].(string)
	var delays []time.Duration
	for i := range syncs {
		type woken struct {
			answer map[string]any
			err    error
			at     time.Time
		}
		waiting := make(chan woken, 1)
		go func() {
			answer, err := there.send(token, http.MethodGet, "/sync?timeout=20000&since="+since, "")
			waiting <- woken{answer, err, time.Now()}
		}()
		time.Sleep(2 * time.Millisecond) // usually the sync already waits
		id := fmt.Sprintf("!room%d:localhost", i%10)
		here.mustSend(token, http.MethodPut, "/pushrules/global/room/"+id, fmt.Sprintf(`{"actions":[{"set_tweak":"n","value":%d}]}`, i))
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
	runJSSDK(t, 10, "client.mjs", here.url, there.url)
}

// The unread counts of a client that syncs with one host equal those of both hosts after each step, which goes to one of
// them in turn.
func TestMatrixJSSDKCountsUnread(t *testing.T) {
	t.Parallel()
	requireJSSDK(t)
	redistest.Require(t)
	flags := []string{"-redis-mode", "standalone", "-redis", redistest.Single(t).Addr()}
	runJSSDK(t, 26, "unread.mjs", startDemo(t, flags...).url, startDemo(t, flags...).url)
}

// runJSSDK runs a client on matrix-js-sdk, whose folder needs an "npm ci" before. The client
// prints a line for each of its checks.
func runJSSDK(t *testing.T, leastChecks int, script string, urls ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "node", append([]string{script}, urls...)...)
	command.Dir = "jssdk"
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
	} else if _, err := os.Stat("jssdk/node_modules/matrix-js-sdk"); err != nil {
		missing = "matrix-js-sdk is not installed: run npm ci in integration/jssdk"
	}
	switch {
	case missing != "" && os.Getenv("REQUIRE_NODE") == "1":
		t.Fatal(missing)
	case missing != "":
		t.Skip(missing)
	}
}
