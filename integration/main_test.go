package integration

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9/logging"
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
	if err := runSideBySide(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	removeDemoProgram()
	os.Exit(status)
}

// sideBySide is how many tests run at the same time. Most of them wait for servers, timeouts and takeovers, so that
// one for each core would leave the cores idle.
const sideBySide = 8

// runSideBySide sets the flag -parallel, unless the command has it.
func runSideBySide() error {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if isSet {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(max(sideBySide, runtime.GOMAXPROCS(0))))
}
