// Package redistest starts real Redis servers for tests; its API may change at any
// time. It starts a single server, a master with replicas, a master and a replica with
// a sentinel, or a cluster. Tests can then stop, pause and restart servers, promote
// replicas, move slots, and lose commands and replies.
//
// Every server listens on 127.0.0.1. It keeps its files in a temporary folder of the
// test that started it, and ends with that test. It saves no data unless the arguments
// say so. To share servers, start them in a parent test and use them in subtests.
//
//	func TestStore(t *testing.T) {
//		cluster := redistest.Cluster(t, 3, 1)
//		t.Run("get", func(t *testing.T) {
//			client := cluster.Client(t)
//			...
//		})
//	}
//
// If a server does not start, the test fails and shows the last lines of its log. If
// there is no server binary, the test is skipped, see [Require].
//
// The package reads two environment variables:
//
//   - REDIS_SERVER is the name or path of the server binary. The default is redis-server.
//   - REQUIRE_REDIS=1 makes tests fail instead of skipping them when there is no binary.
package redistest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	binaryVariable  = "REDIS_SERVER"
	requireVariable = "REQUIRE_REDIS"
	defaultBinary   = "redis-server"
)

// Require skips the test when there is no server binary, or fails it if REQUIRE_REDIS
// is 1. The functions that start servers do the same; a test calls Require to be
// skipped before other costly work.
func Require(t testing.TB) {
	t.Helper()
	findBinary(t)
}

// AllowDebug returns the arguments that enable the command DEBUG. Before Redis 7 it was
// always enabled, and the arguments did not exist.
func AllowDebug(t testing.TB) (args []string) {
	t.Helper()
	version, err := exec.CommandContext(t.Context(), findBinary(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(version), " v=6.") {
		return nil
	}
	return []string{"--enable-debug-command", "local"}
}

// findBinary returns the absolute path of the server binary. If there is none, it ends
// the test as [Require] does.
func findBinary(t testing.TB) string {
	t.Helper()
	name := os.Getenv(binaryVariable)
	if name == "" {
		name = defaultBinary
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		return path
	}
	const advice = "install it to run the tests on a real Redis"
	if os.Getenv(requireVariable) == "1" {
		t.Fatalf("%s is not on the PATH, and %s=1 asks for it: %s", name, requireVariable, advice)
	}
	doNotCache()
	t.Skipf("%s is not on the PATH: %s", name, advice)
	return ""
}

// doNotCache keeps go test from caching this result, because go test does not notice
// when a server is installed later. It removes the log of the files and variables that
// the test has used: go test caches no result without that log.
func doNotCache() {
	if log := flag.Lookup("test.testlogfile"); log != nil && log.Value.String() != "" {
		_ = os.Remove(log.Value.String()) // After an error the result is cached.
	}
}
