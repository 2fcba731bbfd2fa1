// Package redistest starts real Redis servers for tests; its API may change at any
// time. It starts a single server, a master with replicas, a sentinel with a master and
// a replica, or a cluster. Tests can stop, pause and restart servers, promote replicas,
// move slots, and lose commands and replies.
//
// Every server listens on 127.0.0.1, keeps its files in a temporary folder, and ends
// with the test that started it. It saves no data unless the arguments say so. To share
// servers, start them in a parent test:
//
//	func TestStore(t *testing.T) {
//		cluster := redistest.Cluster(t, 3, 1)
//		t.Run("get", func(t *testing.T) {
//			client := cluster.Client(t)
//			...
//		})
//	}
//
// If a server does not start, the test fails with the end of its log. Environment
// variables:
//
//   - REDIS_SERVER is the name or path of the server binary, by default redis-server.
//   - REQUIRE_REDIS=1 makes tests fail instead of skipping them without a binary.
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
// is 1. The functions that start servers call it, too.
func Require(t testing.TB) {
	t.Helper()
	findBinary(t)
}

// AllowDebug returns the arguments that enable the command DEBUG: none for Redis 6,
// where it is always enabled.
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

// findBinary returns the absolute path of the server binary, or ends the test like
// [Require].
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

// doNotCache keeps go test from caching a skipped test, because go test would not
// notice a server that is installed later. It removes the test log, without which go
// test caches no result.
func doNotCache() {
	if log := flag.Lookup("test.testlogfile"); log != nil && log.Value.String() != "" {
		_ = os.Remove(log.Value.String()) // After an error the result is cached.
	}
}
