// Package hostile measures how well the demo host keeps a hostile client away
// from everybody else. It starts a redis-server and the demo host, has some
// well-behaved users make requests at a steady pace, alone and beside each kind
// of hostile client in turn, and prints what they waited for and how much memory
// the servers took.
//
// The hostile clients run in a process of their own, on one thread and with the
// lowest CPU priority, so that what is measured is the host and not a lack of
// CPU that they caused without it. What they cause nevertheless shows beside the
// kind "elsewhere", which sends to itself and has nothing to do with the host.
// All traffic is on 127.0.0.1, all from the same address. Run it with -h for its
// flags.
package hostile

import (
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"time"
)

// plan is what the flags say.
type plan struct {
	phase   time.Duration // of a measurement
	rounds  int           // how often a kind is measured alone and beside
	kinds   []kind
	host    []string // flags of the demo host
	program string   // of the demo host; built if it is empty

	attack string // the kind to be, in the process of the hostile clients
	target string // their host:port
}

// Run measures, or attacks if the flags say that this is the process of the
// hostile clients.
func Run(ctx context.Context, args []string) error {
	p, err := parsePlan(args)
	if err != nil {
		return err
	}
	if p.attack != "" {
		return attack(ctx, p)
	}
	return measure(ctx, p)
}

// parsePlan reads the command line.
func parsePlan(args []string) (plan, error) {
	flags := flag.NewFlagSet("bench hostile", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "measure for less than a minute in all")
	phase := flags.Duration("phase", 3*time.Second, "`TIME` of each measurement")
	rounds := flags.Int("rounds", 3, "`NUMBER` of measurements of each kind, alone and beside it")
	only := flags.String("only", "", "`KIND[,KIND...]` to measure: "+strings.Join(kindNames(), ", "))
	host := flags.String("host", "", "`FLAGS` of the demo host")
	program := flags.String("program", "", "`FILE` of a demo host that is built already")
	attack := flags.String("attack", "", "be hostile clients of this `KIND`; it is how the command calls itself")
	target := flags.String("target", "", "`HOST:PORT` that they attack")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	p := plan{*phase, *rounds, allKinds(), strings.Fields(*host), *program, *attack, *target}
	if *quick {
		p.phase, p.rounds = 800*time.Millisecond, 2
	}
	if *only != "" {
		names := strings.Split(*only, ",")
		p.kinds = slices.DeleteFunc(p.kinds, func(k kind) bool { return !slices.Contains(names, k.name) })
	}
	if p.phase <= 0 || p.rounds < 1 || len(p.kinds) == 0 || flags.NArg() > 0 {
		return plan{}, errors.New("nothing to measure (-h explains the flags)")
	}
	return p, nil
}
