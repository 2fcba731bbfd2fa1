package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/pushfx/pushfx/module/redistest"
)

// TestMain silences the Redis client, which writes to stderr when tests stop its server, and removes the programs
// that tests have built. In a process that a test has started, it runs a host instead.
func TestMain(m *testing.M) {
	logging.Disable()
	if address := os.Getenv(deliveryHostVariable); address != "" {
		if err := runDeliveryHost(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	status := redistest.RunSideBySide(m)
	removeDemoProgram()
	os.Exit(status)
}
