// Package delivery measures delivery beside what it cannot do without: a bare
// client that posts the same bodies over connections that are kept, and bare XADDs
// of the same entries. It starts a redis-server and hosts as processes by itself,
// is the push gateway, and prints a table with the goals.
//
// Run it with -h for its flags.
package delivery

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"
	"time"
)

// plan is what the flags say.
type plan struct {
	rounds        int           // how often the bare client and delivery send, in turn
	notifications int           // that each sends
	outage        time.Duration // of a gateway
	held          int           // pushers that wait for it
	kill          time.Duration // for how long events come before and after a host dies
	trouble       int           // pushers in trouble, for their memory
	known         int           // users who are known to a host, for its memory
	parts         string        // names of the parts to measure; all if it is empty
}

// Run measures, or is a host if the flags say so.
func Run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench delivery", flag.ContinueOnError)
	p := plan{}
	quick := flags.Bool("quick", false, "measure for about a minute in all, with fewer pushers and a short outage")
	flags.IntVar(&p.rounds, "rounds", 5, "`NUMBER` of times that the bare client and delivery send, in turn")
	flags.IntVar(&p.notifications, "notifications", 30_000, "`NUMBER` that each sends")
	flags.DurationVar(&p.outage, "outage", time.Minute, "`TIME` for which a gateway is away, such as 10m")
	flags.IntVar(&p.held, "held", 10_000, "`NUMBER` of pushers that wait for it")
	flags.DurationVar(&p.kill, "kill", 10*time.Second, "`TIME` for which events come before a host is killed, and afterwards")
	flags.IntVar(&p.trouble, "trouble", 100_000, "`NUMBER` of pushers in trouble whose memory is measured")
	flags.IntVar(&p.known, "known", 1_000_000, "`NUMBER` of users that a host knows whose memory is measured")
	flags.StringVar(&p.parts, "parts", "", "`NAMES` of the parts to measure, separated by commas: "+strings.Join(partNames(), ", "))
	host := flags.String("host", "", "be a host on the Redis at `HOST:PORT`; it is how the command calls itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *host != "" {
		return serveHost(ctx, *host)
	}
	if *quick {
		p = plan{
			rounds: 1, notifications: 10_000, outage: 10 * time.Second, held: 2000,
			kill: 3 * time.Second, trouble: 5000, known: 50_000, parts: p.parts,
		}
	}
	if p.rounds < 1 || p.notifications < cpuUsers || p.outage < 0 || p.held < 1 || p.kill <= 0 || p.trouble < 1 || p.known < 1 || flags.NArg() > 0 {
		return errors.New("nothing to measure (-h explains the flags)")
	}
	return measure(ctx, p, os.Stdout)
}
