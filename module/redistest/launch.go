package redistest

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

const launchAttempts = 10

// A role returns the command line of a server with the given port. It may write
// a configuration file to the folder first.
type role func(port int, dir string) ([]string, error)

// serverRole is the role of a server that holds data.
func serverRole(extra []string) role {
	return func(port int, _ string) ([]string, error) {
		args := []string{
			"--port", strconv.Itoa(port),
			"--bind", localhost,
			"--daemonize", "no",
			"--save", "",
			"--appendonly", "no",
			// A replica is served at once, not after the usual 5 s.
			"--repl-diskless-sync-delay", "0",
			// A replica confirms something soon, be it nothing but this ping,
			// which is usual every 10 s. Before, it counts as new: its master
			// holds writes back, and a cluster does not name it to clients.
			"--repl-ping-replica-period", "1",
		}
		if password := option(extra, "--requirepass"); password != "" {
			args = append(args, "--masterauth", password)
		}
		return append(args, extra...), nil
	}
}

// mustLaunch starts a server, on another port when the first is taken.
func mustLaunch(t testing.TB, pick portPicker, build role) *Server {
	t.Helper()
	binary := findBinary(t)
	var last error
	for range launchAttempts {
		s, err := launch(t, binary, pick, build)
		if err == nil {
			return s
		}
		last = err
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	t.Fatalf("cannot start a server: %v", last)
	return nil
}

// launch starts a server in a new folder.
func launch(t testing.TB, binary string, pick portPicker, build role) (*Server, error) {
	port, err := pick()
	if err != nil {
		return nil, err
	}
	dir := t.TempDir()
	args, err := build(port, dir)
	if err != nil {
		return nil, err
	}
	s := &Server{t: t, binary: binary, dir: dir, port: port, args: args, password: option(args, "--requirepass")}
	// The folder's own cleanup was registered before, so it comes after.
	t.Cleanup(s.close)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.run()
}

// option returns the last value that the arguments give to the option.
func option(args []string, name string) string {
	value := ""
	for i := 0; i+1 < len(args); i++ {
		if strings.EqualFold(args[i], name) {
			value = args[i+1]
		}
	}
	return value
}
