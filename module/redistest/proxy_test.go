package redistest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func withoutRetries(o *redis.Options) { o.MaxRetries = -1 }

func withShortTimeout(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond }

func newProxy(t *testing.T, args ...string) (*Proxy, *redis.Client) {
	t.Helper()
	server := Single(t, args...)
	return NewProxy(t, server), server.Client(t)
}

func expectValue(t *testing.T, client *redis.Client, want string) {
	t.Helper()
	if got := client.Get(testContext(t), "n").Val(); got != want {
		t.Errorf("n is %q, want %q", got, want)
	}
}

func expectStruck(t *testing.T, f *Fault) {
	t.Helper()
	select {
	case <-f.Struck():
	case <-testContext(t).Done():
		t.Error("the fault has not struck")
	}
}

func TestProxyPassesRepliesOfAllTypes(t *testing.T) {
	t.Parallel()
	server := Single(t, append([]string{"--requirepass", "secret"}, AllowDebug(t)...)...)
	proxy := NewProxy(t, server)
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			client := proxy.Client(t, func(o *redis.Options) { o.Protocol = protocol })
			options := server.options()
			options.Protocol = protocol
			direct := redis.NewClient(options)
			closeAfter(t, direct)
			for _, name := range []string{
				"string", "integer", "double", "bignum", "null", "array", "set", "map", "attrib", "verbatim", "true", "false", "an error",
			} {
				want, wantErr := direct.Do(ctx, "DEBUG", "PROTOCOL", name).Result()
				got, err := client.Do(ctx, "DEBUG", "PROTOCOL", name).Result()
				if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
					t.Errorf("%s: got %v, %v; want %v, %v", name, got, err, want, wantErr)
				}
			}
		})
	}
}

func TestProxyPassesAllBytes(t *testing.T) {
	t.Parallel()
	proxy, _ := newProxy(t)
	client := proxy.Client(t)
	for _, value := range []string{"", "\r\n", "\x00*1\r\n$4\r\nPING\r\n", strings.Repeat("x", 1<<20)} {
		if got, err := client.Echo(testContext(t), value).Result(); got != value || err != nil {
			t.Errorf("echo of %d bytes: got %d, %v", len(value), len(got), err)
		}
	}
}

func TestCutRequestIsNotRunAndCutReplyIs(t *testing.T) {
	t.Parallel()
	proxy, direct := newProxy(t)
	client := proxy.Client(t, withoutRetries)
	proxy.CutReply(2, "incr")
	proxy.CutRequest(4, "INCR")
	for i, want := range []struct {
		err   error
		value string
	}{{nil, "1"}, {io.EOF, "2"}, {nil, "3"}, {io.EOF, "3"}, {nil, "4"}} {
		if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, want.err) {
			t.Errorf("command %d: got %v, want %v", i+1, err, want.err)
		}
		expectValue(t, direct, want.value)
	}
}

func TestHeldRequestReachesTheServerAfterItsClientHasGone(t *testing.T) {
	t.Parallel()
	proxy, direct := newProxy(t)
	client := proxy.Client(t, withoutRetries, withShortTimeout)
	fault := proxy.HoldRequest(1, "INCR")
	if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	expectStruck(t, fault)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	expectValue(t, direct, "")
	fault.Release()
	expectValue(t, direct, "1")
}

func TestStalledReplyTimesOut(t *testing.T) {
	t.Parallel()
	proxy, direct := newProxy(t)
	client := proxy.Client(t, withoutRetries, withShortTimeout)
	fault := proxy.StallReply(1, "INCR")
	if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	expectStruck(t, fault)
	expectValue(t, direct, "1")
	fault.Release()
	if got, err := client.Incr(testContext(t), "n").Result(); got != 2 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestErrorRepliesDoNotCount(t *testing.T) {
	t.Parallel()
	proxy, direct := newProxy(t)
	client := proxy.Client(t, withoutRetries)
	proxy.CutReply(1, "EVALSHA", "EVAL")
	script := redis.NewScript("return redis.call('INCR', KEYS[1])")
	if err := script.Run(testContext(t), client, []string{"n"}).Err(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the reply to EVAL cut", err)
	}
	expectValue(t, direct, "1")
}

func TestWithCountsOnlyCommandsThatContainTheText(t *testing.T) {
	t.Parallel()
	proxy, direct := newProxy(t)
	client := proxy.Client(t, withoutRetries)
	request, reply := proxy.CutRequest(1, "SET").With("never"), proxy.CutReply(2, "SET").With("this")
	for _, step := range []struct {
		value string
		want  error
	}{{"this", nil}, {"other", nil}, {"this one", io.EOF}, {"never", io.EOF}, {"last", nil}} {
		if err := client.Set(testContext(t), "n", step.value, 0).Err(); !errors.Is(err, step.want) {
			t.Errorf("%s: got %v, want %v", step.value, err, step.want)
		}
		if step.value == "never" {
			expectValue(t, direct, "this one")
		}
	}
	expectStruck(t, request)
	expectStruck(t, reply)
	expectValue(t, direct, "last")
}
