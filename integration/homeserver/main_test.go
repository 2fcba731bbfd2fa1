package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as main does
	os.Exit(redistest.RunSideBySide(m))
}

// patience allows for a slow machine. A sync without news takes longer.
const patience = 25 * time.Second

type demo struct {
	t        *testing.T
	url      string
	greeting []string // the lines on stdout
	stdout   *buffer  // output after the greeting
	stderr   *buffer
	client   *http.Client

	cancel context.CancelFunc
	exited chan int
}

// startDemo starts a homeserver on a free port and waits for its greeting. It has no rate
// limits except those of the flags.
func startDemo(t *testing.T, flags ...string) *demo {
	t.Helper()
	if slices.Contains(flags, "-redis-mode") && !slices.Contains(flags, "-data") {
		flags = append(flags, "-data", hosttest.DataFile(t))
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &demo{
		t: t, stdout: new(buffer), stderr: new(buffer), cancel: cancel, exited: make(chan int, 1),
		client: &http.Client{Transport: new(http.Transport), Timeout: patience},
	}
	stdout, w := io.Pipe()
	go func() {
		status := run(ctx, append([]string{"-listen", "127.0.0.1:0", "-user-rate", "0", "-password-rate", "0"}, flags...), w, d.stderr)
		w.Close()
		d.exited <- status
	}()
	t.Cleanup(func() {
		if d.stop(); t.Failed() {
			t.Log("the host's log: ", d.stderr)
		}
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		d.greeting = append(d.greeting, lines.Text())
		if strings.HasPrefix(lines.Text(), "Notifications appear") {
			d.url = regexp.MustCompile(`http://\S+`).FindString(d.greeting[0])
			go func() {
				for lines.Scan() {
					fmt.Fprintln(d.stdout, lines.Text())
				}
			}()
			return d
		}
	}
	t.Fatalf("ended with status %d: %s", <-d.exited, d.stderr)
	return nil
}

// stop stops the homeserver as a signal does, and returns its exit status.
func (d *demo) stop() int {
	d.t.Helper()
	d.cancel()
	d.client.CloseIdleConnections()
	select {
	case status := <-d.exited:
		d.exited <- status // for the next call
		return status
	case <-time.After(patience):
		d.t.Fatalf("still runs %v after the stop", patience)
		return -1
	}
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do makes a request; an empty token sends none.
func (d *demo) do(method, path, token, body string) answer {
	d.t.Helper()
	a, err := d.try(method, path, token, body)
	if err != nil {
		d.t.Fatal(err)
	}
	return a
}

// try is do for goroutines, which must not fail the test.
func (d *demo) try(method, path, token, body string) (answer, error) {
	request, err := http.NewRequest(method, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, strings.TrimSpace(string(text))}, err
}

func (d *demo) start(method, path, token, body string) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		a, err := d.try(method, path, token, body)
		if err != nil {
			a.body = err.Error()
		}
		answers <- a
	}()
	return answers
}

// expect checks the status and, unless want is empty, the whole body.
func (d *demo) expect(method, path, token, body string, status int, want string) {
	d.t.Helper()
	got := d.do(method, path, token, body)
	if got.status != status || want != "" && got.body != want {
		d.t.Errorf("%s %s: got %d %s, want %d %s", method, path, got.status, got.body, status, want)
	}
}

type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func runToEnd(t *testing.T, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs buffer
	status = run(ctx, flags, &out, &errs)
	if ctx.Err() != nil {
		t.Errorf("%q did not end by itself", flags)
	}
	return status, out.String(), errs.String()
}

// expectFailure runs a command that must print one error line, and returns the line.
func expectFailure(t *testing.T, status int, flags ...string) string {
	t.Helper()
	if status == exitFailure {
		flags = append(flags, "-data", filepath.Join(t.TempDir(), "demo.db"))
	}
	got, stdout, stderr := runToEnd(t, append([]string{"-log-level", "warn"}, flags...)...)
	if got != status || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "homeserver: ") {
		t.Errorf("%q: got status %d, stdout %q, stderr %q; want status %d and one line on stderr",
			flags, got, stdout, stderr, status)
	}
	return strings.TrimSuffix(stderr, "\n")
}

func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestStopLeavesNothingRunning(t *testing.T) {
	d := startDemo(t)
	next, began := d.sync("demo-alice", "").NextBatch, time.Now()
	waiting := d.startSync("demo-alice", "since="+next+longPoll)
	if status := d.stop(); status != exitOK || time.Since(began) >= defaultDrain {
		t.Errorf("status %d after %v: %s", status, time.Since(began), d.stderr)
	}
	if got := <-waiting; got.status != 200 || !strings.HasPrefix(got.body, `{"next_batch":"`+next+`"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
	stacks := make([]byte, 1<<20)
	leftover := regexp.MustCompile(`net/http\.\(\*(Server|conn)\)|go-redis|miniredis|uber\.org/fx|pushfx/module\.`)
	poll(t, "all goroutines end", func() bool {
		return !leftover.Match(stacks[:runtime.Stack(stacks, true)])
	})
}

func TestPrintedCommandsWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not on the PATH")
	}
	for _, flags := range [][]string{{"-server-name", "[::1]:8448"}, {"-listen", ":0"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, flags...)
			commands := slices.DeleteFunc(d.greeting, func(line string) bool { return !strings.HasPrefix(line, "curl ") })
			prints := []string{`{"global":{"override":[{"rule_id":".m.rule.master"`, "{}", `{"event_id":"$`, "{}"}
			if len(commands) != len(prints) {
				t.Fatalf("%d commands in %q", len(commands), d.greeting)
			}
			for i, command := range commands {
				output, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
				if err != nil || !strings.HasPrefix(string(output), prints[i]) {
					t.Errorf("%s: %v: %s", command, err, output)
				}
				if i == 2 { // a message that is read before the push leaves needs none
					poll(t, "the notification is printed", func() bool { return strings.Contains(d.stdout.String(), `"Tea at four?"  unread 1`) })
				}
			}
			poll(t, "the new badge is printed", func() bool { return strings.Contains(d.stdout.String(), "counts only  unread 0") })
		})
	}
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	line := expectFailure(t, exitFailure, "-listen", listener.Addr().String())
	if !strings.Contains(line, listener.Addr().String()) || !strings.Contains(line, "in use") {
		t.Error(line)
	}
}
