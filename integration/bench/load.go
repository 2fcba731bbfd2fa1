package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"
)

// load makes requests on several connections, one at a time on each.
type load struct {
	address     string
	connections int
	length      time.Duration
	request     func(connection int) []byte // the next request of a connection
}

// outcome is the result of a load.
type outcome struct {
	requests    int
	rate        float64 // requests per second
	p99         time.Duration
	host, redis time.Duration // total CPU times of the servers
}

// run makes the requests. Any answer but 200 is an error.
func (l load) run(ctx context.Context) (outcome, error) {
	all := make([][]time.Duration, l.connections)
	start := time.Now()
	err := sideBySide(ctx, l.connections, func(ctx context.Context, n int) (err error) {
		all[n], err = l.runOne(ctx, n, start.Add(l.length))
		return err
	})
	times := slices.Concat(all...)
	if err != nil || len(times) == 0 {
		return outcome{}, fmt.Errorf("load on %s: %w", l.address, err)
	}
	return outcome{requests: len(times), rate: float64(len(times)) / time.Since(start).Seconds(), p99: quantile(times, .99)}, nil
}

func (l load) runOne(ctx context.Context, connection int, end time.Time) (times []time.Duration, err error) {
	conn, err := net.Dial("tcp", l.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	reader := bufio.NewReaderSize(conn, 64<<10)
	for now := time.Now(); now.Before(end); {
		if _, err := exchange(conn, reader, l.request(connection)); err != nil {
			return nil, err
		}
		answered := time.Now()
		times = append(times, answered.Sub(now))
		now = answered
	}
	return times, nil
}

// exchange makes a request and returns the length of the answer's body.
func exchange(conn net.Conn, reader *bufio.Reader, request []byte) (int64, error) {
	if _, err := conn.Write(request); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, err
	}
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return 0, fmt.Errorf("%s: %s", answer.Status, text)
	}
	return io.Copy(io.Discard, answer.Body)
}

func ask(address string, request []byte) (length int64, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return exchange(conn, bufio.NewReader(conn), request)
}

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
