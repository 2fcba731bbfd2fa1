package integration

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// TestMain silences the Redis client, which writes to stderr on its own when
// the tests stop its server, and cleans up what tests have built.
func TestMain(m *testing.M) {
	logging.Disable()
	status := m.Run()
	removeDemoProgram()
	os.Exit(status)
}
