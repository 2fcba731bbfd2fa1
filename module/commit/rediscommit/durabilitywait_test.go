package rediscommit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestUnconfirmedChangeIsNotRetried(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	cfg := DefaultConfig()
	cfg.Durability = Durability{Replicas: 1, Timeout: 300 * time.Millisecond}
	store, err := New(server.Client(t), cfg, Options{}, texts())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		end := monitor(t, server)
		began := time.Now()
		_, err := store.Update(t.Context(), "key", func(s *string) error { *s = fmt.Sprint("value", n); return nil })
		if !errors.Is(err, commit.ErrNotConfirmed) {
			t.Errorf("got error %v", err)
		}
		if took := time.Since(began); took > store.cfg.Durability.MaxWait()+late {
			t.Errorf("it took %v", took)
		}
		var waits int
		for _, commands := range end() {
			waits += len(slices.DeleteFunc(commands, func(c string) bool { return c != "WAIT" }))
		}
		if n > 0 && waits > 1 { // the first change sends the script's source, too
			t.Errorf("%d waits, want one", waits)
		}
	}
}

// waitingServer replies 1 to scripts at once, and to waits after a delay.
type waitingServer struct {
	listener net.Listener
	slow     time.Duration // delay of WAIT

	mu       sync.Mutex
	received []string // waits, as "CONNECTION COMMAND ARGUMENT..."
}

func newWaitingServer(t *testing.T, slow time.Duration) *waitingServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &waitingServer{listener: listener, slow: slow}
	var serving sync.WaitGroup
	serving.Go(func() {
		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			serving.Go(func() { s.serve(conn, n) })
		}
	})
	t.Cleanup(func() { listener.Close() })
	return s
}

func (s *waitingServer) serve(conn net.Conn, number int) {
	commands := bufio.NewReader(conn)
	for {
		words, err := readCommand(commands)
		if err != nil {
			return
		}
		answer := "-ERR unknown command\r\n"
		switch strings.ToUpper(words[0]) {
		case "EVALSHA":
			answer = ":1\r\n"
		case "WAIT":
			s.record(number, words)
			time.Sleep(s.slow)
			answer = ":1\r\n"
		case "WAITAOF":
			s.record(number, words)
			answer = "*2\r\n:1\r\n:0\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

func (s *waitingServer) record(connection int, words []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = append(s.received, fmt.Sprint(connection, " ", strings.Join(words, " ")))
}

func readCommand(r *bufio.Reader) (words []string, err error) {
	count, err := readNumber(r, '*')
	for range count {
		length, err := readNumber(r, '$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, length+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:length]))
	}
	return words, err
}

func readNumber(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil || line[0] != kind {
		return 0, errors.Join(err, fmt.Errorf("no %c in %q", kind, line))
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func TestWaitForTheDiskGetsTheRestOfTheTimeout(t *testing.T) {
	t.Parallel()
	const timeout, slow = time.Second, 300 * time.Millisecond
	server := newWaitingServer(t, slow)
	client := redis.NewClient(&redis.Options{Addr: server.listener.Addr().String(), ContextTimeoutEnabled: true})
	defer client.Close()
	if err := client.Ping(context.Background()).Err(); err == nil { // adds a connection to the pool
		t.Error("the server knows PING")
	}
	set := newTestScript(client, nil, setting, Durability{Replicas: 1, AOF: true, Timeout: timeout})
	if done, err := set.run(t.Context(), "key", []any{"x"}); !done || err != nil {
		t.Fatalf("got %t, %v", done, err)
	}
	if len(server.received) != 2 {
		t.Fatalf("received %q", server.received)
	}
	var connections [2]int
	var first, second int
	if _, err := fmt.Sscanf(server.received[0], "%d WAIT 1 %d", &connections[0], &first); err != nil {
		t.Fatalf("%q: %v", server.received[0], err)
	}
	if _, err := fmt.Sscanf(server.received[1], "%d WAITAOF 1 0 %d", &connections[1], &second); err != nil {
		t.Fatalf("%q: %v", server.received[1], err)
	}
	if connections[0] != connections[1] || first > 1000 || second > max(1, first-300) || second < 1 {
		t.Errorf("received %q", server.received)
	}
}
