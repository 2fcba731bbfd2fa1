// Package speed measures the demo host against the floor: a bare echo handler
// that makes one go-redis GET of the same bytes, or a GET and a SET, and nothing
// else. It starts a redis-server, the floor and the demo host by itself, loads
// them in turn, prints tables of ratios, and writes them as Markdown and the
// growth with the number of rules as a picture.
//
// The load comes from this process, over 127.0.0.1, on the same machine: what
// one of the two hosts gains in CPU, the others have. Run it with -h for its
// flags.
package speed

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"
)

// plan is what the flags say.
type plan struct {
	phase       time.Duration // of each load
	rounds      int           // how often the floor and the demo host are loaded
	connections int
	users       int // in Redis, for the growth with users
	sizes       []int
	out         string // folder
	program     string // of the demo host; built where it is empty
}

// Run measures, or is the floor if the flags say so.
func Run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench speed", flag.ContinueOnError)
	p := plan{sizes: []int{10, 100, 1000, 9900}}
	quick := flags.Bool("quick", false, "measure for less than a minute in all")
	flags.DurationVar(&p.phase, "phase", 2*time.Second, "`TIME` of each load")
	flags.IntVar(&p.rounds, "rounds", 5, "`NUMBER` of loads of each kind on either host")
	flags.IntVar(&p.connections, "connections", 16, "`NUMBER` of connections, each with a request at a time")
	flags.IntVar(&p.users, "users", 1_000_000, "`NUMBER` of users in Redis at the end; a million take 4 GB")
	flags.StringVar(&p.out, "out", filepath.Join(os.TempDir(), "bench"), "`FOLDER` for the results")
	flags.StringVar(&p.program, "program", "", "`FILE` of a demo host that is built already")
	floor := flags.String("floor", "", "be the floor on the Redis at `HOST:PORT`; it is how the command calls itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *floor != "" {
		return serveFloor(ctx, *floor)
	}
	if *quick {
		p.phase, p.rounds, p.users, p.sizes = 400*time.Millisecond, 1, 20_000, []int{10, 1000}
	}
	if p.phase <= 0 || p.rounds < 1 || p.connections < 1 || p.connections > largeUsers || p.users < fewUsers || flags.NArg() > 0 {
		return errors.New("nothing to measure (-h explains the flags)")
	}
	if err := os.MkdirAll(p.out, 0o755); err != nil { // now, and not when all is measured
		return err
	}
	return measure(ctx, p)
}
