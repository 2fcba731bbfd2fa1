// Command picture draws what the queries of the dashboard give while two demo
// hosts on one Redis are under load: the whole set and single rules are read and
// changed by a few hundred users, Redis is silent for some seconds, and one user
// has data that cannot be read.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pushfx/pushfx/integration/testbed"
)

func main() { testbed.Main("picture", run) }

// run reads the flags, and draws.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("picture", flag.ContinueOnError)
	dashboard := flags.String("dashboard", "integration/operations/dashboard.json", "`FILE` with the queries")
	out := flags.String("out", "integration/operations/dashboard.svg", "`FILE` to write")
	length := flags.Duration("time", time.Minute, "`TIME` of the load")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return picture(ctx, *dashboard, *out, *length)
}

// hosts is how many demo hosts there are.
const hosts = 2

// step is how often the metrics are looked at, and window over how many of them
// a rate goes.
const (
	step   = time.Second
	window = 5
)

// picture draws what the queries of a dashboard give.
func picture(ctx context.Context, dashboard, out string, length time.Duration) error {
	panels, err := readPanels(dashboard)
	if err != nil {
		return err
	}
	bed, err := testbed.New(ctx)
	if err != nil {
		return err
	}
	defer bed.Close()
	program, err := bed.Build(ctx, testbed.DemoPackage)
	if err != nil {
		return err
	}
	var addresses []string
	for range hosts {
		demo, err := bed.StartDemo(ctx, program)
		if err != nil {
			return err
		}
		addresses = append(addresses, demo.Address)
	}
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var loaded sync.WaitGroup
	defer loaded.Wait()
	for n := range 8 {
		loaded.Go(func() { load(ctx, addresses[n%hosts], n) })
	}
	loaded.Go(func() { disturb(ctx, bed, length) })
	seen, err := watch(ctx, addresses)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d looks at the metrics, %d panels\n", len(seen), len(panels))
	return write(panels, seen, out)
}

// disturb has some user's data unreadable, and Redis silent for a while.
func disturb(ctx context.Context, bed *testbed.Bed, length time.Duration) {
	wait := func(part float64) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(part * float64(length))):
		}
	}
	wait(.3)
	_ = bed.Client.Set(ctx, "account_data:{@user7:localhost}:m.push_rules", "{", 0).Err()
	wait(.2)
	_ = bed.Client.Do(ctx, "CLIENT", "PAUSE", length.Milliseconds()/15, "ALL").Err()
}

// watch looks at the metrics of the hosts until ctx ends.
func watch(ctx context.Context, addresses []string) (seen []samples, err error) {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return seen, nil
		case <-ticker.C:
		}
		now := samples{}
		for _, address := range addresses {
			if err := now.scrape(address); err != nil {
				return nil, err
			}
		}
		seen = append(seen, now)
	}
}

// client makes the requests of all.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 10 * time.Second}
