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

// once is the option of a client that tries nothing twice.
func once(o *redis.Options) { o.MaxRetries = -1 }

// hasty is the option of a client that waits for a reply only briefly.
func hasty(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond }

// behindProxy returns a proxy and a client that does not use it.
func behindProxy(t *testing.T, args ...string) (*Proxy, *redis.Client) {
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

func TestAProxyPassesEverythingOn(t *testing.T) {
	t.Parallel()
	proxy, _ := behindProxy(t, "--requirepass", "secret")
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			client := proxy.Client(t, func(o *redis.Options) { o.Protocol = protocol })
			for _, value := range []string{"", "\r\n", "\x00*1\r\n$4\r\nPING\r\n", strings.Repeat("x", 1<<20)} {
				if got, err := client.Echo(ctx, value).Result(); got != value || err != nil {
					t.Errorf("echo of %d bytes: got %d, %v", len(value), len(got), err)
				}
			}
			for script, want := range map[string]string{
				"return {1, {'a', {}}, false}":                                  "[1 [a []] <nil>] <nil>",
				"return redis.error_reply('ERR no')":                            "<nil> ERR no",
				"redis.setresp(3); return {double = 1.5}":                       map[int]string{2: "1.5 <nil>", 3: "1.5 <nil>"}[protocol],
				"return {map = {k = 'v'}}":                                      map[int]string{2: "[k v] <nil>", 3: "map[k:v] <nil>"}[protocol],
				"return {set = {k = true}}":                                     "[k] <nil>",
				"return {big_number = '12345678901234567890'}":                  "12345678901234567890 <nil>",
				"return {verbatim_string = {format = 'txt', string = 'a\\nb'}}": "a\nb <nil>",
				"redis.setresp(3); return true":                                 map[int]string{2: "1 <nil>", 3: "true <nil>"}[protocol],
				"return nil":                                                    "<nil> redis: nil",
			} {
				value, err := client.Eval(ctx, script, nil).Result()
				if got := fmt.Sprint(value, " ", err); got != want {
					t.Errorf("%s: got %q, want %q", script, got, want)
				}
			}
		})
	}
}

func TestARequestIsCutBeforeTheServerSeesItAndAReplyAfter(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
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

func TestAHeldRequestReachesTheServerAfterItsClientIsGone(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once, hasty)
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

func TestAReplyIsStalledUntilItsClientGivesUp(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once, hasty)
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

func TestRepliesThatAreErrorsDoNotCount(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
	proxy.CutReply(1, "EVALSHA", "EVAL")
	script := redis.NewScript("return redis.call('INCR', KEYS[1])")
	if err := script.Run(testContext(t), client, []string{"n"}).Err(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the reply to EVAL cut", err)
	}
	expectValue(t, direct, "1")
}

func TestAFaultCountsOnlyCommandsWithItsText(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
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
