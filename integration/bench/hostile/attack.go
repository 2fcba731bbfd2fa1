package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// tally is what hostile clients were answered: how often each status, and "cut"
// for connections that ended without an answer.
type tally struct {
	Answers map[string]int
	Bytes   int64 // that they sent

	mu sync.Mutex
}

func (t *tally) add(answer string, sent int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Answers[answer]++
	t.Bytes += int64(sent)
}

// attackBeside starts the process of the hostile clients, which ends by itself,
// and returns what reads their tally.
func attackBeside(ctx context.Context, name, target string, length time.Duration) (result func() (*tally, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, self, "hostile", "-attack", name, "-target", target, "-phase", length.String())
	if nice, err := exec.LookPath("nice"); err == nil {
		command = exec.CommandContext(ctx, nice, append([]string{"-n", "19"}, command.Args...)...)
	}
	command.Env = append(os.Environ(), "GOMAXPROCS=1")
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	return func() (*tally, error) {
		t := new(tally)
		text, err := io.ReadAll(out)
		if err == nil {
			err = command.Wait()
		}
		if err == nil {
			err = json.Unmarshal(text, t)
		}
		return t, err
	}, nil
}

// attack is the process of the hostile clients.
func attack(ctx context.Context, p plan) error {
	t := &tally{Answers: map[string]int{}}
	ctx, cancel := context.WithTimeout(ctx, p.phase)
	defer cancel()
	for _, k := range allKinds() {
		switch {
		case k.name != p.attack:
		case k.elsewhere:
			if err := keepBusy(ctx, k.connections, t); err != nil {
				return err
			}
		default:
			var clients sync.WaitGroup
			for n := range k.connections {
				clients.Go(func() { (&enemy{kind: k, number: n, target: p.target, tally: t}).run(ctx) })
			}
			clients.Wait()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return json.NewEncoder(os.Stdout).Encode(t)
}

// keepBusy sends as much as it can to itself until ctx ends: it shows what is for
// the machine that all share, and not for the host.
func keepBusy(ctx context.Context, connections int, t *tally) error {
	sink, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { sink.Close() })()
	var all sync.WaitGroup
	for range connections {
		all.Go(func() { e := &enemy{target: sink.Addr().String(), tally: t}; e.pour(ctx) })
		conn, err := sink.Accept()
		if err != nil {
			return err
		}
		all.Go(func() { defer conn.Close(); io.Copy(io.Discard, conn) })
	}
	all.Wait()
	return nil
}

// pour sends bytes until ctx ends.
func (e *enemy) pour(ctx context.Context) {
	if e.connect(ctx) != nil {
		return
	}
	defer e.conn.Close()
	chunk := make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, err := e.conn.Write(chunk)
		e.tally.add("cut", n)
		if err != nil {
			return
		}
	}
}

// enemy is one of the hostile clients, with a connection.
type enemy struct {
	kind   kind
	number int
	target string
	tally  *tally

	conn   net.Conn
	reader *bufio.Reader
	sent   int // requests
}

// reconnectPause keeps an enemy that is not even let in from spinning.
const reconnectPause = 5 * time.Millisecond

// run makes requests as fast as it can until ctx ends.
func (e *enemy) run(ctx context.Context) {
	for ctx.Err() == nil {
		if e.conn == nil && e.connect(ctx) != nil {
			time.Sleep(reconnectPause)
			continue
		}
		conn := e.conn
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		answer, sent, reusable := e.exchange(ctx)
		stop()
		if ctx.Err() == nil || answer != "cut" {
			e.tally.add(answer, sent)
		}
		if !reusable {
			conn.Close()
			e.conn = nil
		}
		e.sent++
	}
}

func (e *enemy) connect(ctx context.Context) (err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", e.target)
	if err == nil {
		e.conn, e.reader = conn, bufio.NewReader(conn)
	}
	return err
}

// exchange makes one request and reads its answer, which may come before the
// request is out.
func (e *enemy) exchange(ctx context.Context) (answer string, sent int, reusable bool) {
	written := make(chan int, 1)
	conn := e.conn
	write := func() { written <- e.kind.write(ctx, conn, e.number, e.sent) }
	if e.kind.small {
		write()
	} else {
		go write()
	}
	response, err := http.ReadResponse(e.reader, nil)
	if err != nil {
		conn.Close()
		return "cut", <-written, false
	}
	_, err = io.Copy(io.Discard, response.Body)
	reusable = err == nil && !response.Close && !e.kind.oneShot
	if !reusable {
		conn.Close()
	}
	return strconv.Itoa(response.StatusCode), <-written, reusable
}

// head is the head of a request with a body of this length.
func head(method, path, token string, length int) string {
	authorization := ""
	if token != "" {
		authorization = "Authorization: Bearer " + token + "\r\n"
	}
	return fmt.Sprintf("%s %s%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", method, prefix, path, authorization, length)
}

// whole makes a request to be sent in one piece.
func whole(method, path, token, body string) string {
	return head(method, path, token, len(body)) + body
}
