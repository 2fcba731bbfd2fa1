package testbed

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/pushfx/pushfx/module/fault"
)

// Main is the main function of a command: it runs until the command is done or
// the process is told to end, and ends the process with a line on stderr where
// it fails.
func Main(name string, run func(ctx context.Context, args []string) error) {
	logging.Disable() // what the Redis client has to tell comes out as errors too
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, name+":", fault.Details(err))
		os.Exit(1)
	}
}
