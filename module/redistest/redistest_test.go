package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// isGone tells whether no process has the id.
func isGone(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return true
	}
	return errors.Is(process.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

func expectGone(t *testing.T, servers ...*Server) {
	t.Helper()
	for _, s := range servers {
		if !isGone(s.Pid()) {
			t.Errorf("process %d of the server at %s is still there", s.Pid(), s.Addr())
		}
	}
}

func expectPing(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	if err := client.Ping(testContext(t)).Err(); err != nil {
		t.Fatalf("no answer: %v", err)
	}
}

// recorder stands for a test that is skipped or fails at once.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// record runs the function as a test and tells how that ended.
func record(t *testing.T, test func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r
}

func TestRequireSkipsWithoutServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(binaryVariable, "")
	t.Setenv(requireVariable, "")
	r := record(t, Require)
	want := "redis-server is not on the PATH: install it to run the tests on a real Redis"
	if r.skipped != want || r.failed != "" {
		t.Errorf("skipped with %q, failed with %q; want to skip with %q", r.skipped, r.failed, want)
	}
}

func TestRequireFailsWithoutServerOnDemand(t *testing.T) {
	t.Setenv(binaryVariable, "no-such-server")
	t.Setenv(requireVariable, "1")
	r := record(t, func(t testing.TB) { Single(t) })
	if !strings.HasPrefix(r.failed, "no-such-server is not on the PATH") || r.skipped != "" {
		t.Errorf("failed with %q, skipped with %q", r.failed, r.skipped)
	}
}

// Whoever installs a server after a first run must not see the result of that run.
func TestSkippedResultsAreNotCached(t *testing.T) {
	t.Parallel()
	for range 2 {
		command := exec.CommandContext(t.Context(), "go", "test", "-run", "^TestPassword$", ".")
		command.Env = append(os.Environ(), binaryVariable+"=no-such-server", requireVariable+"=")
		output, err := command.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(output), "ok") || strings.Contains(string(output), "(cached)") {
			t.Fatalf("%v\n%s", err, output)
		}
	}
}

func TestSingleEndsWithItsTest(t *testing.T) {
	t.Parallel()
	Require(t)
	var server *Server
	t.Run("owner", func(t *testing.T) {
		server = Single(t)
		expectPing(t, server.Client(t))
	})
	expectGone(t, server)
	server.Start()
	expectGone(t, server)
}

func TestSingleEndsWhilePaused(t *testing.T) {
	t.Parallel()
	Require(t)
	var server *Server
	t.Run("owner", func(t *testing.T) {
		server = Single(t)
		server.Pause()
	})
	expectGone(t, server)
}

func TestStopAndStart(t *testing.T) {
	t.Parallel()
	server := Single(t, "--appendonly", "yes", "--appendfsync", "always")
	client := server.Client(t)
	if err := client.Set(testContext(t), "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	addr, pid := server.Addr(), server.Pid()
	server.Stop()
	server.Stop()
	expectGone(t, server)

	server.Start()
	server.Start()
	if server.Addr() != addr || server.Pid() == pid {
		t.Errorf("address %s and process %d became %s and %d", addr, pid, server.Addr(), server.Pid())
	}
	if got, err := client.Get(testContext(t), "key").Result(); got != "value" || err != nil {
		t.Errorf("got %q, %v from the folder of the first run", got, err)
	}
}

func TestStartWaitsForPort(t *testing.T) {
	t.Parallel()
	server := Single(t)
	server.Stop()
	listener, err := net.Listen("tcp4", server.Addr())
	if err != nil {
		t.Skipf("the port was taken: %v", err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = listener.Close() })
	server.Start()
	expectPing(t, server.Client(t))
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	server := Single(t)
	client := server.Client(t)
	expectPing(t, client)

	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := client.Ping(ctx).Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server gave %v, not the end of the deadline", err)
	}
	server.Resume()
	expectPing(t, client)
}

func TestPassword(t *testing.T) {
	t.Parallel()
	server := Single(t, "--requirepass", "secret")
	expectPing(t, server.Client(t))
	stranger := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer stranger.Close()
	if err := stranger.Ping(testContext(t)).Err(); !redis.IsAuthError(err) {
		t.Errorf("without the password the server gave %v", err)
	}
}

func TestTakenPortIsReplaced(t *testing.T) {
	t.Parallel()
	first := Single(t)
	ports := []int{first.port, first.port}
	pick := func() (int, error) {
		if len(ports) == 0 {
			return freePort()
		}
		port := ports[0]
		ports = ports[1:]
		return port, nil
	}
	second := mustLaunch(t, pick, serverRole(nil))
	if second.Addr() == first.Addr() {
		t.Errorf("both servers are at %s", first.Addr())
	}
	expectPing(t, second.Client(t))
}

func TestFailureShowsLog(t *testing.T) {
	t.Parallel()
	Require(t)
	r := record(t, func(t testing.TB) { Single(t, "--no-such-option", "1") })
	for _, want := range []string{"cannot start a server", "exit status 1", "no-such-option"} {
		if !strings.Contains(r.failed, want) {
			t.Errorf("no %q in the message %q", want, r.failed)
		}
	}
}

// The server must not end with the OS thread of the test that started it.
func TestServerOutlivesThread(t *testing.T) {
	t.Parallel()
	Require(t)
	var server *Server
	t.Run("thread", func(sub *testing.T) {
		runtime.LockOSThread() // Without an unlock, the thread ends with the subtest.
		server = Single(t)
	})
	time.Sleep(100 * time.Millisecond)
	expectPing(t, server.Client(t))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	Require(t)
	var cluster *ClusterServers
	t.Run("owner", func(t *testing.T) {
		cluster = Cluster(t, 3, 0)
		if len(cluster.Nodes()) != 3 || len(cluster.Masters()) != 3 || len(cluster.Addrs()) != 3 {
			t.Errorf("nodes %d, masters %d", len(cluster.Nodes()), len(cluster.Masters()))
		}
		expectKeysEverywhere(t, cluster)
	})
	expectGone(t, cluster.Nodes()...)
}

// expectKeysEverywhere writes and reads until every master has served a key.
func expectKeysEverywhere(t *testing.T, cluster *ClusterServers) {
	t.Helper()
	ctx, client := testContext(t), cluster.Client(t)
	for i := range 100 {
		key := fmt.Sprint("key", i)
		if err := client.Set(ctx, key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := client.Get(ctx, key).Int(); got != i || err != nil {
			t.Fatalf("%s is %d, %v", key, got, err)
		}
	}
	for _, master := range cluster.Masters() {
		if size, err := master.Client(t).DBSize(ctx).Result(); size == 0 || err != nil {
			t.Errorf("the master at %s has %d keys, %v", master.Addr(), size, err)
		}
	}
}

func expectRole(t *testing.T, server *Server, want string) {
	t.Helper()
	client := server.Client(t)
	err := poll(testContext(t), func(ctx context.Context) error {
		info, err := readInfo(ctx, client, "replication")
		if err == nil && info["role"] != want {
			err = fmt.Errorf("role %q", info["role"])
		}
		return err
	})
	if err != nil {
		t.Fatalf("the server at %s did not become %s: %v", server.Addr(), want, err)
	}
}

func TestSmallestCluster(t *testing.T) {
	t.Parallel()
	expectKeysEverywhere(t, Cluster(t, 1, 0))
}

func TestClusterRefusesNonsense(t *testing.T) {
	t.Parallel()
	Require(t)
	r := record(t, func(t testing.TB) { Cluster(t, 0, 1) })
	if !strings.Contains(r.failed, "0 masters") {
		t.Errorf("failed with %q", r.failed)
	}
}

// setAndWait writes a value and waits until a replica has it. Both commands must
// go over one connection, because WAIT is about the writes of its own.
func setAndWait(t *testing.T, client *redis.Client) {
	t.Helper()
	ctx, conn := testContext(t), client.Conn()
	defer conn.Close()
	if err := conn.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if confirmed, err := conn.Wait(ctx, 1, 5*time.Second).Result(); confirmed != 1 || err != nil {
		t.Fatalf("%d replicas have the value, %v", confirmed, err)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	Require(t)
	var servers *SentinelServers
	t.Run("owner", func(t *testing.T) {
		servers = Sentinel(t)
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName:            servers.MasterName(),
			SentinelAddrs:         []string{servers.Addr()},
			ContextTimeoutEnabled: true,
		})
		closeAfter(t, client)
		setAndWait(t, client)
		expectRole(t, servers.Master(), "master")
		servers.Master().Stop()
		expectRole(t, servers.Replica(), "master")
		if got, err := client.Get(testContext(t), "key").Result(); got != "value" || err != nil {
			t.Errorf("after the failover got %q, %v", got, err)
		}
	})
	expectGone(t, servers.Master(), servers.Replica(), servers.sentinel)
}
