// Package faults tests what users get when servers, hosts and connections fail.
package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// TestMain runs a host instead of the tests in a process that a test has started.
func TestMain(m *testing.M) {
	if address := os.Getenv(deliveryHostVariable); address != "" {
		if err := runDeliveryHost(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(hosttest.Run(m))
}
