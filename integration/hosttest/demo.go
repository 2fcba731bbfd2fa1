package hosttest

import (
	"github.com/redis/go-redis/v9/logging"

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

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module/redistest"
)

// Demo is a process of the demo host.
type Demo struct {
	t   *testing.T
	URL string
	End func() (log string) // stops it, and returns its log

	Kill func() // ends it at once
}

var demoFolder string

var demoProgram = sync.OnceValues(func() (program string, err error) {
	if demoFolder, err = os.MkdirTemp("", "homeserver-*"); err != nil {
		return "", err
	}
	program = filepath.Join(demoFolder, "homeserver")
	out, err := exec.Command("go", "build", "-o", program, "github.com/pushfx/pushfx/integration/homeserver").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, err
})

var dataFiles sync.Map

// DataFile returns the file that the demo hosts of a test share.
func DataFile(t *testing.T) string {
	file, found := dataFiles.Load(t)
	if !found {
		file, _ = dataFiles.LoadOrStore(t, filepath.Join(t.TempDir(), "demo.db"))
	}
	return file.(string)
}

// OpenData opens the file that the demo hosts of a test share.
func OpenData(t *testing.T) *data.DB {
	t.Helper()
	db, err := data.Open(t.Context(), DataFile(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// StartDemo starts a demo host without rate limits. It stops when the test ends.
func StartDemo(t *testing.T, flags ...string) *Demo {
	t.Helper()
	program, err := demoProgram()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(flags, "-data") {
		flags = append(flags, "-data", DataFile(t))
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
			go func() { _, _ = io.Copy(io.Discard, greeting) }()
			kill := func() {
				_ = command.Process.Kill() // it may have ended
				end()
			}
			return &Demo{t, url, end, kill}
		}
	}
	t.Fatal("the demo host does not print its URL")
	return nil
}

// ask sends a request. Another answer than 200 is an error, too.
func (d *Demo) ask(token, method, path, body string) (Answer, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), Never)
	defer cancel()
	a, err := ask(ctx, http.DefaultClient, token, method, d.URL+path, body)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, path, a)
	}
	return a, err
}

// SendEvent sends an event by the demo's own endpoint.
func (d *Demo) SendEvent(body string) error {
	_, err := d.ask("demo-sender", http.MethodPost, "/_demo/send", body)
	return err
}

// Raw sends a request, and returns the answer.
func (d *Demo) Raw(token, method, path, body string) (status int, answer string) {
	d.t.Helper()
	a, err := d.ask(token, method, V3+path, body)
	if a.Status == 0 {
		d.t.Fatal(err)
	}
	return a.Status, a.Body
}

// Send sends a request of which the answer is JSON.
func (d *Demo) Send(token, method, path, body string) (answer map[string]any, err error) {
	a, err := d.ask(token, method, V3+path, body)
	return answer, errors.Join(err, json.Unmarshal([]byte(a.Body), &answer))
}

// MustSend is Send for requests that succeed.
func (d *Demo) MustSend(token, method, path, body string) map[string]any {
	d.t.Helper()
	answer, err := d.Send(token, method, path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer
}

// Run runs the tests of a package. It silences the Redis client, which writes to stderr when tests stop its server, and
// removes the programs that tests have built.
func Run(m *testing.M) (status int) {
	logging.Disable()
	status = redistest.RunSideBySide(m)
	if demoFolder != "" {
		os.RemoveAll(demoFolder)
	}
	return status
}
