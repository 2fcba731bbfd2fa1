package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // as main does
	os.Exit(m.Run())
}

// patience is for what takes milliseconds on a machine that is not busy.
const patience = 15 * time.Second

// demo is a homeserver that runs as the command does, but in the test's
// process.
type demo struct {
	t        *testing.T
	url      string
	greeting []string // the lines on stdout
	stdout   *buffer  // what it prints after the greeting
	stderr   *buffer
	client   *http.Client

	cancel context.CancelFunc
	exited chan int
}

// startDemo starts a homeserver on a free port and waits for its greeting. It
// stops with the test. It has no limits on rates but those that the flags set.
func startDemo(t *testing.T, flags ...string) *demo {
	t.Helper()
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
	t.Cleanup(func() { d.stop() })
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		d.greeting = append(d.greeting, lines.Text())
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
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
		d.exited <- status // for the next to ask
		return status
	case <-time.After(patience):
		d.t.Fatalf("still runs %v after the stop", patience)
		return -1
	}
}

// answer is what came back for a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// do makes a request with a token, empty for none.
func (d *demo) do(method, path, token, body string) answer {
	d.t.Helper()
	request, err := http.NewRequest(method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := d.client.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, strings.TrimSpace(string(text))}
}

// expect makes a request and checks the status and, unless it is empty, the
// whole body.
func (d *demo) expect(method, path, token, body string, status int, want string) {
	d.t.Helper()
	got := d.do(method, path, token, body)
	if got.status != status || want != "" && got.body != want {
		d.t.Errorf("%s %s: got %d %s, want %d %s", method, path, got.status, got.body, status, want)
	}
}

// buffer is a writer for many goroutines.
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

// runToEnd runs the command, which must end by itself.
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

// expectFailure runs the command, which must end with the status and exactly
// one line, and returns the line.
func expectFailure(t *testing.T, status int, flags ...string) string {
	t.Helper()
	got, stdout, stderr := runToEnd(t, flags...)
	if got != status || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "homeserver: ") {
		t.Errorf("%q: got status %d, stdout %q, stderr %q; want status %d and one line on stderr",
			flags, got, stdout, stderr, status)
	}
	return strings.TrimSuffix(stderr, "\n")
}

// poll waits until the condition holds.
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
	waiting := d.startSync("demo-alice", "since="+d.sync("demo-alice", "").NextBatch+longPoll)
	if status := d.stop(); status != exitOK {
		t.Errorf("status %d: %s", status, d.stderr)
	}
	<-waiting
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
	for _, flags := range [][]string{nil, {"-server-name", "[::1]:8448"}, {"-listen", ":0"}} {
		d := startDemo(t, flags...)
		outputs := runCommands(t, d.greeting)
		if len(outputs) != 8 {
			t.Fatalf("%d commands in %q", len(outputs), d.greeting)
		}
		if !strings.HasPrefix(outputs[0], `{"global":{"override":[{"rule_id":".m.rule.master"`) {
			t.Errorf("the first command prints %s", outputs[0])
		}
		for _, output := range outputs[1:4] {
			if output != "{}" {
				t.Errorf("a change prints %s", output)
			}
		}
		var list struct{ Pushers []struct{ Pushkey string } }
		if err := json.Unmarshal([]byte(outputs[4]), &list); err != nil || len(list.Pushers) != 1 {
			t.Errorf("the command for pushers prints %s", outputs[4])
		}
		if !strings.HasPrefix(outputs[6], `{"next_batch":"s`) || !strings.Contains(outputs[6], `"pattern":"lunch"`) {
			t.Errorf("the sync prints %s", outputs[6])
		}
		if !strings.HasPrefix(outputs[5], `{"event_id":"$`) {
			t.Errorf("the message prints %s", outputs[5])
		}
		poll(t, "the notification is printed", func() bool { return strings.Contains(d.stdout.String(), `"Tea at four?"  unread 1`) })
		var session struct {
			Token string `json:"access_token"`
		}
		if err := json.Unmarshal([]byte(outputs[7]), &session); err != nil {
			t.Errorf("the login prints %s", outputs[7])
		}
		d.expect("GET", whoamiPath, session.Token, "", 200, "")
		rules := d.do("GET", "/_matrix/client/v3/pushrules/", "demo-alice", "").body
		for _, part := range []string{`"rule_id":"!lobby:`, `"pattern":"lunch"`} {
			if !strings.Contains(rules, part) {
				t.Errorf("no %s in the rules after the commands: %s", part, rules)
			}
		}
	}
}

// runCommands runs the commands among the lines, and returns what they print.
func runCommands(t *testing.T, lines []string) (outputs []string) {
	t.Helper()
	for _, line := range lines {
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		output, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, output)
		}
		outputs = append(outputs, string(output))
	}
	return outputs
}

func TestGreetingSaysWhereAndWhat(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-server-name", "example.org")
	text := strings.Join(d.greeting, "\n")
	for _, part := range []string{"The homeserver example.org listens on " + d.url, "Redis: embedded at 127.0.0.1:", "@alice:example.org"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in the greeting:\n%s", part, text)
		}
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

func TestStopLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("GET", "/_matrix/client/v3/pushrules/", "demo-alice", "", 200, "")
	address := strings.TrimPrefix(d.url, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"actions":[]}`
	fmt.Fprintf(conn, "PUT /_matrix/client/v3/pushrules/global/room/late HTTP/1.1\r\nHost: x\r\n"+
		"Authorization: Bearer demo-alice\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	reader := bufio.NewReader(conn)
	// The server asks for the body when the handler reads it.
	if line, err := reader.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatal(line, err)
	}
	_, _ = reader.ReadString('\n')

	d.cancel()
	poll(t, "the listener is closed", func() bool {
		other, err := net.Dial("tcp", address)
		if err == nil {
			other.Close()
		}
		return err != nil
	})
	fmt.Fprint(conn, body)
	if line, err := reader.ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if status := d.stop(); status != exitOK {
		t.Errorf("status %d: %s", status, d.stderr)
	}
}
