// Command bench compares the demo host and delivery with bare programs that do only the
// necessary work.
//
//	go run ./integration/bench speed    # with an echo and go-redis host
//	go run ./integration/bench delivery # with an HTTP client
//
// Each command starts its servers on free ports of 127.0.0.1, loads them in turn, prints a table, and explains its
// flags with -h. The important figure is the ratio of CPU times: other programs on the machine change this ratio less
// than rates and latencies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/sync/errgroup"

	"github.com/pushfx/pushfx/module/fault"
)

func main() {
	logging.Disable() // the Redis client also returns its errors
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", fault.Details(err))
		os.Exit(1)
	}
}

// run runs the scenario that the first argument names. The other names are for the processes that scenarios start.
func run(ctx context.Context, args []string) error {
	scenarios := map[string]func(context.Context, []string) error{
		"speed": runSpeed, "delivery": runDelivery,
		"floor": serveFloor, "sender": runSender, "bare-client": postBare,
	}
	if len(args) == 0 || scenarios[args[0]] == nil {
		return errors.New("want a scenario: speed or delivery")
	}
	return scenarios[args[0]](ctx, args[1:])
}

var errNothing = errors.New("nothing to measure (-h explains the flags)")

// sideBySide calls do with each number below n at the same time. The first error ends their
// context.
func sideBySide(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// quantile returns a quantile of the values. Part is between 0 (the least value) and 1 (the greatest value).
func quantile[T ~int64 | ~float64](values []T, part float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(part*float64(len(sorted)-1))]
}

// medianOf returns the median over the rounds of the figure that part returns.
func medianOf[R any, T ~int64 | ~float64](rounds []R, part func(R) T) T {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = part(r)
	}
	return quantile(values, .5)
}

// printMachine prints the heading of a scenario's results.
func printMachine(format string, args ...any) {
	fmt.Printf("%s, %s/%s with %d cores, %s; %s.\n\n", time.Now().Format(time.DateOnly),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), fmt.Sprintf(format, args...))
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1e3) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Nanoseconds())/1e6) }
