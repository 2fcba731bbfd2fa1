package integration

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// TestMain silences the Redis client, which writes to stderr on its own when
// the tests stop its server.
func TestMain(m *testing.M) {
	logging.Disable()
	os.Exit(m.Run())
}
