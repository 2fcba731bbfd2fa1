package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clusterTimeout)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// After installing a server, a developer must not see an earlier result.
func TestSkippedResultsAreNotCached(t *testing.T) {
	t.Parallel()
	for range 2 {
		command := exec.CommandContext(t.Context(), "go", "test", "-run", "^TestStartWaitsForPort$", ".")
		command.Env = append(os.Environ(), binaryVariable+"=no-such-server", requireVariable+"=")
		output, err := command.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(output), "ok") || strings.Contains(string(output), "(cached)") {
			t.Fatalf("%v\n%s", err, output)
		}
	}
}

func TestAStoppedServersPortIsReserved(t *testing.T) {
	t.Parallel()
	server := Single(t)
	server.Stop()
	if reserve(t, server.port) {
		t.Error("another server can start at the address of a stopped one")
	}
}

func TestStartWaitsForPort(t *testing.T) {
	t.Parallel()
	server := Single(t)
	server.Stop()
	listener, err := net.Listen("tcp4", server.Addr())
	must(t, err)
	time.AfterFunc(200*time.Millisecond, func() { _ = listener.Close() })
	server.Start()
	must(t, server.Client(t).Ping(testContext(t)).Err())
}

const helperVariable = "REDISTEST_HELPER"

// TestHelper runs in the test binary that TestServersEndWithTheirTest kills.
func TestHelper(t *testing.T) {
	if os.Getenv(helperVariable) == "" {
		t.Skip("runs only for another test")
	}
	fmt.Println(Single(t).Addr())
	<-t.Context().Done()
}

func TestServersEndWithTheirTest(t *testing.T) {
	t.Parallel()
	Require(t)
	var ended []string
	t.Run("paused", func(t *testing.T) {
		server := Single(t)
		server.Pause()
		ended = append(ended, server.Addr())
	})
	t.Run("killed", func(t *testing.T) {
		cmd := exec.CommandContext(testContext(t), os.Args[0], "-test.run=^TestHelper$")
		cmd.Env = append(os.Environ(), helperVariable+"=1", "TMPDIR="+t.TempDir())
		output, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		var addr string
		_, err = fmt.Fscanln(output, &addr)
		must(t, err)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // The error says that it was killed.
		ended = append(ended, addr)
	})
	for _, addr := range ended {
		must(t, poll(testContext(t), func(context.Context) error {
			conn, err := net.Dial("tcp4", addr)
			if err != nil {
				return nil
			}
			return errors.Join(errors.New("the server still runs"), conn.Close())
		}))
	}
}

// Masters learn late of each other's epochs when moves follow each other so fast.
func TestNothingIsLostWhileSlotsMoveAndReplicasArePromoted(t *testing.T) {
	t.Parallel()
	cluster := Cluster(t, 3, 1, "--requirepass", "secret")
	client, ctx := cluster.Client(t), testContext(t)
	var load, moves sync.WaitGroup
	var counted, unknown atomic.Int64
	stop := make(chan struct{})
	for range 3 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var refusal redis.Error // Servers may refuse until they know the new master.
				if err := client.Incr(ctx, "{x}n").Err(); err == nil {
					counted.Add(1)
				} else if !errors.As(err, &refusal) {
					unknown.Add(1) // a busy machine replies too late
				}
			}
		})
	}
	for _, slot := range []int{redisclient.SlotOf("{x}"), redisclient.SlotOf("{y}")} {
		moves.Go(func() {
			for n := range 9 {
				// On a busy machine, servers may not reply in time.
				if err := poll(ctx, func(ctx context.Context) error { return cluster.MoveSlot(ctx, slot, cluster.Masters()[n%3]) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	moves.Wait()
	for _, master := range cluster.Masters() {
		replicas, err := cluster.ReplicasOf(ctx, master)
		must(t, err)
		must(t, cluster.Failover(ctx, replicas[0]))
	}
	close(stop)
	load.Wait()
	got, err := client.Get(ctx, "{x}n").Int64()
	if least := counted.Load(); got < least || got > least+4*unknown.Load() || least == 0 || err != nil { // the client sends each up to four times
		t.Errorf("the servers have %d of %d acknowledged increments, %d are unknown, %v", got, least, unknown.Load(), err)
	}
}
