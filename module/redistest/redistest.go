// Package redistest starts real redis-server processes for tests; its API may change at
// any time. It starts a single server, a master with replicas, the same with a sentinel, or a cluster. It
// also does to them what operators and accidents do: servers stop, pause and
// come back, replicas of a cluster become masters, its slots move, and replies
// get lost.
//
// Every server listens on 127.0.0.1, keeps its files in a temporary folder of
// the test that started it, saves nothing unless the arguments ask for it, and
// is ended when that test ends. To share servers, let a parent test start them
// and run subtests on them: there is no global state.
//
//	func TestStore(t *testing.T) {
//		cluster := redistest.Cluster(t, 3, 1)
//		t.Run("get", func(t *testing.T) {
//			client := cluster.Client(t)
//			...
//		})
//	}
//
// The functions that start servers fail the test when that is impossible, and
// show the last log lines of the server. They skip the test when there is no
// server binary, see [Require].
//
// Two environment variables are read:
//
//   - REDIS_SERVER is the name or path of the server binary, by default
//     redis-server.
//   - REQUIRE_REDIS=1 makes a missing binary a failure.
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

// Require skips the test when the server binary is missing, and fails it when
// also the environment says REQUIRE_REDIS=1. The functions that start servers
// call it themselves; a test calls it to be skipped before other costly work.
func Require(t testing.TB) {
	t.Helper()
	findBinary(t)
}

// AllowDebug returns the arguments with which a server takes the command DEBUG.
// Servers before Redis 7 do so without, and do not know the option.
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

// findBinary returns the absolute path of the server binary, or ends the test
// in the way that [Require] tells.
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

// doNotCache keeps go test from caching the result of this run: a server that is
// installed later is outside of what go test compares with the run before. It
// removes the log in which the testing package lists the files and variables that
// a run has used, since go test caches no run without one.
func doNotCache() {
	if log := flag.Lookup("test.testlogfile"); log != nil && log.Value.String() != "" {
		_ = os.Remove(log.Value.String()) // An error leaves the result to be cached.
	}
}
