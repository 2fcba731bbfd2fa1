// Package speed measures the demo host against the floor: a bare echo handler
// that makes one go-redis GET of the same bytes, or a GET and a SET, and nothing
// else. It starts a redis-server, the floor and the demo host by itself, loads
// them in turn, prints tables of ratios, and writes them as Markdown and the
// growth with the number of rules as a picture.
//
// What counts is the CPU that the host and Redis spend on a request, by the floor's
// in the same run: other programs on the machine change the rates, but hardly
// that. The load comes from this process, over 127.0.0.1. Run it with -h for its
// flags.
package speed

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// plan is what the flags say.
type plan struct {
	phase       time.Duration // of each load
	rounds      int           // how often the floor and the demo host are loaded, in turn
	connections int
	users       int // in Redis, for the growth with users
	sizes       []int
	parts       string // names of the parts to measure; all if it is empty
	out         string // folder
	program     string // of the demo host; built if it is empty
	against     string // program of another demo host that takes the floor's place; empty for the floor
}

// Run measures, or is the floor if the flags say so.
func Run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench speed", flag.ContinueOnError)
	p := plan{sizes: []int{10, 100, 1000, 9900}}
	quick := flags.Bool("quick", false, "measure for less than a minute in all")
	flags.DurationVar(&p.phase, "phase", 500*time.Millisecond, "`TIME` of each load")
	flags.IntVar(&p.rounds, "rounds", 8, "`NUMBER` of loads of each kind on either host")
	flags.IntVar(&p.connections, "connections", 16, "`NUMBER` of connections, each with a request at a time")
	flags.IntVar(&p.users, "users", 1_000_000, "`NUMBER` of users in Redis at the end; a million take 4 GB")
	flags.StringVar(&p.parts, "parts", "", "`NAMES` of the parts to measure, separated by commas: "+strings.Join(partNames(), ", "))
	flags.StringVar(&p.out, "out", filepath.Join(os.TempDir(), "bench"), "`FOLDER` for the results")
	flags.StringVar(&p.program, "program", "", "`FILE` of a demo host that is built already")
	flags.StringVar(&p.against, "against", "", "`FILE` of another demo host to take the floor's place, to see what a change of the code is worth")
	floor := flags.String("floor", "", "be the floor on the Redis at `HOST:PORT`; it is how the command calls itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *floor != "" {
		return serveFloor(ctx, *floor)
	}
	if *quick {
		p.phase, p.rounds, p.users, p.sizes = 200*time.Millisecond, 2, 20_000, []int{10, 1000}
	}
	if p.phase <= 0 || p.rounds < 1 || p.connections < 1 || p.connections > largeUsers || p.users < fewUsers || flags.NArg() > 0 {
		return errors.New("nothing to measure (-h explains the flags)")
	}
	if err := os.MkdirAll(p.out, 0o755); err != nil { // now, and not when all is measured
		return err
	}
	return measure(ctx, p)
}
