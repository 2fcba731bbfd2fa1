// Command bench measures the demo host, beside what it is compared with, on this
// machine:
//
//	go run ./integration/bench speed    # beside a bare echo and go-redis host
//	go run ./integration/bench hostile  # what users wait for beside hostile clients
//	go run ./integration/bench delivery # beside a bare client, and bare XADDs
//
// Each scenario starts the servers that it needs on free ports of 127.0.0.1, and
// explains its flags with -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/pushfx/pushfx/integration/bench/delivery"
	"github.com/pushfx/pushfx/integration/bench/hostile"
	"github.com/pushfx/pushfx/integration/bench/speed"
	"github.com/pushfx/pushfx/module/fault"
)

func main() {
	logging.Disable() // what the Redis client has to tell comes out as errors too
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", fault.Details(err))
		os.Exit(1)
	}
}

// run runs the scenario that the arguments begin with.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "speed":
			return speed.Run(ctx, args[1:])
		case "delivery":
			return delivery.Run(ctx, args[1:])
		case "hostile":
			return hostile.Run(ctx, args[1:])
		}
	}
	return errors.New("want a scenario: speed, hostile or delivery")
}
