package speed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// load is requests made on connections, each of which has one at a time.
type load struct {
	address     string
	connections int
	length      time.Duration
	rate        int // requests a second in all; 0 is as many as are answered

	// request returns the nth request of a connection, from 0 on.
	request func(connection, n int) []byte
}

// outcome is what became of a load.
type outcome struct {
	requests int
	rate     float64 // requests a second
	p50, p99 time.Duration

	cpu cpu // of the servers, in all
}

// cpu is what servers have spent.
type cpu struct {
	host, redis, redisMain time.Duration // the last is that of the thread that executes commands
	others                 time.Duration // hosts that get no requests
}

func (c cpu) minus(d cpu) cpu {
	return cpu{c.host - d.host, c.redis - d.redis, c.redisMain - d.redisMain, c.others - d.others}
}

// run makes the requests. Any other answer than 200 is an error.
func (l load) run(ctx context.Context) (outcome, error) {
	all := make([][]time.Duration, l.connections)
	errs := make([]error, l.connections)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	start := time.Now()
	for n := range l.connections {
		running.Go(func() {
			if all[n], errs[n] = l.runOne(ctx, n, start.Add(l.length)); errs[n] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	times := slices.Concat(all...)
	if err := errors.Join(errs...); err != nil || len(times) == 0 {
		return outcome{}, fmt.Errorf("load on %s: %w", l.address, err)
	}
	slices.Sort(times)
	quantile := func(part float64) time.Duration { return times[int(part*float64(len(times)-1))] }
	return outcome{requests: len(times), rate: float64(len(times)) / took.Seconds(), p50: quantile(.5), p99: quantile(.99)}, nil
}

func (l load) runOne(ctx context.Context, connection int, end time.Time) (times []time.Duration, err error) {
	conn, err := net.Dial("tcp", l.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	reader := bufio.NewReaderSize(conn, 64<<10)
	pace := l.pace(connection)
	for now := time.Now(); now.Before(end); {
		now = pace.wait(now)
		if _, err := conn.Write(l.request(connection, len(times))); err != nil {
			return nil, err
		}
		if _, err := readAnswer(reader); err != nil {
			return nil, err
		}
		answered := time.Now()
		times = append(times, answered.Sub(now))
		now = answered
	}
	return times, nil
}

// pace says when a connection makes its requests: at fixed times, or at once.
type pace struct {
	next  time.Time
	every time.Duration // 0 is at once
}

func (l load) pace(connection int) *pace {
	if l.rate == 0 {
		return &pace{}
	}
	every := time.Duration(l.connections) * time.Second / time.Duration(l.rate)
	return &pace{time.Now().Add(every * time.Duration(connection) / time.Duration(l.connections)), every}
}

// wait returns when the next request is to be made, with the time from which on it
// counts: when it should have been made if the one before took too long, and not
// if the load itself woke up late.
func (p *pace) wait(now time.Time) time.Time {
	if p.every == 0 {
		return now
	}
	due := p.next
	p.next = due.Add(p.every)
	if now.After(due) {
		return due
	}
	time.Sleep(due.Sub(now))
	return time.Now()
}

// readAnswer reads an answer and returns the length of its body. It knows as
// much of HTTP as the two hosts use.
func readAnswer(r *bufio.Reader) (length int, err error) {
	status, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		rest, _ := r.Peek(r.Buffered())
		return 0, fmt.Errorf("%s %s", bytes.TrimSpace(status), rest)
	}
	chunked := false
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		if value, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		}
		chunked = chunked || bytes.HasPrefix(line, []byte("Transfer-Encoding: chunked"))
	}
	if !chunked {
		_, err := r.Discard(length)
		return length, err
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		size, err := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
		if err != nil {
			return 0, err
		}
		if _, err := io.CopyN(io.Discard, r, size+2); err != nil {
			return 0, err
		}
		if length += int(size); size == 0 {
			return length, nil
		}
	}
}

// makeRequest returns a request in one piece. Without a token it has none.
func makeRequest(method, path, token, body string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\n", method, path)
	if token != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", token)
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n" + body)
	return b.Bytes()
}

// ask makes one request and returns the length of its answer's body.
func ask(address string, request []byte) (length int, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		return 0, err
	}
	return readAnswer(bufio.NewReader(conn))
}
