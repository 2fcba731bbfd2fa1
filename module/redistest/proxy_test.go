package redistest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
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

func TestAReplyIsCutAfterTheServerHasRunTheCommand(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
	fault := proxy.CutReply(2, "incr")
	for i, want := range []error{nil, io.EOF, nil} {
		if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, want) {
			t.Errorf("command %d: got %v, want %v", i+1, err, want)
		}
	}
	expectStruck(t, fault)
	expectValue(t, direct, "3")
}

func TestARequestIsCutBeforeTheServerSeesIt(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
	fault := proxy.CutRequest(2, "INCR")
	for i, want := range []error{nil, io.EOF, nil} {
		if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, want) {
			t.Errorf("command %d: got %v, want %v", i+1, err, want)
		}
	}
	expectStruck(t, fault)
	expectValue(t, direct, "2")
}

func TestFaultsStrikeInARowAndAcrossConnections(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t) // tries four times
	for n := range 3 {
		proxy.CutReply(n+1, "INCR", "DECR")
	}
	if err := client.Incr(testContext(t), "n").Err(); err != nil {
		t.Error(err)
	}
	expectValue(t, direct, "4")
}

func TestEveryReplyOfAPipelineCounts(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	proxy.CutReply(3)
	conn := dial(t, proxy)
	if _, err := io.WriteString(conn, strings.Repeat("*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n", 3)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != ":1\r\n:2\r\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	expectValue(t, direct, "3")
}

// dial returns a connection to the proxy that does not last long.
func dial(t *testing.T, proxy *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp4", proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
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

func TestAStalledReplyArrivesOnceReleased(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
	fault := proxy.StallReply(1, "INCR")
	var group sync.WaitGroup
	group.Go(func() {
		if got, err := client.Incr(testContext(t), "n").Result(); got != 1 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	})
	expectStruck(t, fault)
	expectValue(t, direct, "1")
	fault.Release()
	group.Wait()
}

func TestRepliesAreStalledForGood(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once, hasty)
	fault := proxy.StallReplies(2, "INCR")
	for i, want := range []error{nil, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded} {
		if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, want) {
			t.Errorf("command %d: got %v, want %v", i+1, err, want)
		}
	}
	expectValue(t, direct, "3")
	fault.Release()
	if got, err := client.Incr(testContext(t), "n").Result(); got != 4 || err != nil {
		t.Errorf("after the release: got %d, %v", got, err)
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

func TestAFaultReleasedBeforeItStrikesHoldsNothing(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
	request, reply := proxy.HoldRequest(1, "INCR"), proxy.StallReply(1, "INCR")
	request.Release()
	reply.Release()
	if err := client.Incr(testContext(t), "n").Err(); err != nil {
		t.Error(err)
	}
	expectStruck(t, request)
	expectStruck(t, reply)
	expectValue(t, direct, "1")
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

func TestTheFirstPlannedOfTwoFaultsStrikesAndBothCount(t *testing.T) {
	t.Parallel()
	proxy, direct := behindProxy(t)
	client := proxy.Client(t, once)
	cut, held := proxy.CutRequest(1, "INCR"), proxy.HoldRequest(1, "INCR")
	for i, want := range []error{io.EOF, nil} {
		if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, want) {
			t.Errorf("command %d: got %v, want %v", i+1, err, want)
		}
	}
	expectStruck(t, cut)
	cut.Release()
	if held.hasStruck() {
		t.Error("both struck one command")
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

func TestManyClientsShareAProxy(t *testing.T) {
	t.Parallel()
	const clients, commands, cuts = 8, 50, 20
	proxy, direct := behindProxy(t)
	for n := range cuts {
		proxy.CutReply(10*n+1, "INCR")
	}
	ctx := testContext(t)
	var group sync.WaitGroup
	for range clients {
		client := proxy.Client(t)
		group.Go(func() {
			for range commands {
				if err := client.Incr(ctx, "n").Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	expectValue(t, direct, fmt.Sprint(clients*commands+cuts))
}

func TestAProxyEndsWithItsTestWhateverItHolds(t *testing.T) {
	t.Parallel()
	server := Single(t)
	var proxy *Proxy
	t.Run("owner", func(t *testing.T) {
		proxy = NewProxy(t, server)
		client := proxy.Client(t, once, hasty)
		reply, request := proxy.StallReply(1, "INCR"), proxy.HoldRequest(2, "INCR")
		for range 2 {
			if err := client.Incr(testContext(t), "n").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		expectStruck(t, reply)
		expectStruck(t, request)
	})
	if err := checkDial(testContext(t), proxy.Addr()); err == nil {
		t.Error("the proxy still listens")
	}
	proxy.group.Wait()
	expectValue(t, server.Client(t), "1")
}

func TestAProxyBeforeAStoppedServerClosesTheConnection(t *testing.T) {
	t.Parallel()
	server := Single(t)
	proxy := NewProxy(t, server)
	server.Stop()
	if _, err := dial(t, proxy).Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}
