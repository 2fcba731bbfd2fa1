package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/pushfx/pushfx/integration/redisurl"
)

// options are the flags of all commands, as they were given.
type options struct {
	redis                 redisurl.Flags
	keyPrefix, durability string
	defaultRules          string

	rate         int
	state        string
	quiet        bool
	json, list   bool
	hashKey      string
	yes          bool
	save         string
	resetDamaged bool
	overwrite    bool
	from         string
	dryRun       bool
	allowHTTP    bool
	email        bool
	allowed      string // prefixes
	create       bool
	dropOthers   bool
	gateway      string
	older        time.Duration
	pusher       string // a digest
}

// redisVariable names the Redis where -redis does not.
const redisVariable = "PUSHCTL_REDIS"

// newFlags returns the flags of the command, which fill o.
func (c command) newFlags(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.redis.Add(flags, redisurl.Standalone, "standalone, sentinel or cluster")
	flags.StringVar(&o.keyPrefix, "key-prefix", "", "`PREFIX` of every Redis key, as the hosts have it")
	if c.flags != nil {
		c.flags(o, flags)
	}
	return flags
}

// parse reads the flags and arguments, which may come in any order.
func (c command) parse(args []string) (o options, rest []string, err error) {
	flags := c.newFlags(&o)
	for {
		if err := flags.Parse(args); err != nil {
			return options{}, nil, err
		}
		if flags.NArg() == 0 {
			return o, rest, nil
		}
		rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
	}
}

// findServers says which Redis to use.
func (o options) findServers(environment func(string) string) (redisurl.Servers, error) {
	if redisurl.Mode(o.redis.Mode) == redisurl.Embedded {
		return redisurl.Servers{}, errors.New("-redis-mode must be standalone, sentinel or cluster")
	}
	fromEnvironment := environment(redisVariable)
	if o.redis.Where == "" && fromEnvironment == "" {
		return redisurl.Servers{}, fmt.Errorf("want -redis or $%s, which says where the Redis is", redisVariable)
	}
	if o.redis.Where != "" {
		s, err := redisurl.Parse(redisurl.Mode(o.redis.Mode), o.redis.Where, o.redis.Master)
		if err == nil && s.HasPassword() {
			err = fmt.Errorf("-redis has a password, which everybody on this machine can see: "+
				"use -redis-password-file, $%s or $%s", redisurl.PasswordVariable, redisVariable)
		}
		if err != nil {
			return redisurl.Servers{}, err
		}
	}
	o.redis.Where = cmp.Or(o.redis.Where, fromEnvironment)
	return o.redis.Servers(environment)
}

// addDefaultRules is for commands that look at default rules.
func (o *options) addDefaultRules(flags *flag.FlagSet) {
	flags.StringVar(&o.defaultRules, "default-rules", "",
		"`FILE` with the default rules that the hosts have beside those of the\nspecification (DefaultRules), a JSON array of "+
			`{"kind":"...","rule_id":"...",`+"\n"+`"enabled":...,"actions":[...],"conditions":[...],"pattern":"...","before":"..."}`)
}

// addDurability is for commands that change what is stored.
func (o *options) addDurability(flags *flag.FlagSet) {
	flags.StringVar(&o.durability, "durability", "none",
		"`WHAT` must have happened to a change before it counts: none, replicas:N, aof or\nreplicas:N,aof")
}

// addDryRun is for commands that change what hosts deliver.
func (o *options) addDryRun(flags *flag.FlagSet) {
	flags.BoolVar(&o.dryRun, "dry-run", false, "only tell what it would do")
}

// addScan is for commands that go through all keys.
func (o *options) addScan(flags *flag.FlagSet) {
	flags.IntVar(&o.rate, "rate", 0, "`KEYS` a second at most; 0 is no limit")
	flags.BoolVar(&o.quiet, "quiet", false, "do not say how far it is")
}

// addState is for those of them that can go on where they stopped.
func (o *options) addState(flags *flag.FlagSet) {
	flags.StringVar(&o.state, "state", "",
		"`FILE` that keeps how far it is, so that the same call goes on from there after\nCtrl-C or an error")
}
