package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"

	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/pushrule"
)

// flags are the flags of a command. Each has those that name the Redis, and declares
// its own.
type flags struct {
	*flag.FlagSet
	redis                                         redisurl.Flags
	keyPrefix, durability, features, defaultRules string
}

// redisVariable names the Redis where -redis does not.
const redisVariable = "PUSHCTL_REDIS"

// newFlags returns the flags that all commands have.
func newFlags(command string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError), durability: "none"}
	f.SetOutput(io.Discard)
	f.redis.Add(f.FlagSet, redisurl.Standalone, "standalone, sentinel or cluster")
	f.StringVar(&f.keyPrefix, "key-prefix", "", "`PREFIX` of every Redis key, as the hosts have it")
	return f
}

// parseAll reads flags and arguments, which may come in any order.
func (f *flags) parseAll(args []string) (rest []string, err error) {
	for {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
}

// findServers says which Redis to use.
func (f *flags) findServers(environment func(string) string) (redisurl.Servers, error) {
	if redisurl.Mode(f.redis.Mode) == redisurl.Embedded {
		return redisurl.Servers{}, errors.New("-redis-mode must be standalone, sentinel or cluster")
	}
	if f.redis.Where != "" {
		s, err := redisurl.Parse(redisurl.Mode(f.redis.Mode), f.redis.Where, f.redis.Master)
		if err == nil && s.HasPassword() {
			err = fmt.Errorf("-redis has a password, which everybody on this machine can see: "+
				"use -redis-password-file, $%s or $%s", redisurl.PasswordVariable, redisVariable)
		}
		if err != nil {
			return redisurl.Servers{}, err
		}
	}
	if f.redis.Where = cmp.Or(f.redis.Where, environment(redisVariable)); f.redis.Where == "" {
		return redisurl.Servers{}, fmt.Errorf("want -redis or $%s, which says where the Redis is", redisVariable)
	}
	return f.redis.Servers(environment)
}

// json adds -json.
func (f *flags) json() *bool { return f.Bool("json", false, "write JSON") }

// addDefaultRules is for commands that look at default rules.
func (f *flags) addDefaultRules() {
	f.StringVar(&f.features, "features", "",
		"`NAMES` of the features that the hosts have turned on (Features), with commas:\n"+pushrule.FeatureNames())
	f.StringVar(&f.defaultRules, "default-rules", "",
		"`FILE` with the default rules that the hosts have beside those of the\nspecification (DefaultRules), a JSON array of "+
			`{"kind":"...","rule_id":"...",`+"\n"+`"enabled":...,"actions":[...],"conditions":[...],"pattern":"...","before":"..."}`)
}

// addDurability is for commands that change what is stored.
func (f *flags) addDurability() {
	f.StringVar(&f.durability, "durability", f.durability,
		"`WHAT` must have happened to a change before it counts: none, replicas:N, aof or\nreplicas:N,aof")
}

// pace is how fast a command goes through keys, and whether it shows how far it is.
type pace struct {
	rate  int // keys a second; 0 is no limit
	quiet bool
}

// pace adds the flags of commands that go through many keys.
func (f *flags) pace() *pace {
	p := &pace{}
	f.Func("rate", "`KEYS` a second at most (default no limit)", func(text string) (err error) {
		if p.rate, err = strconv.Atoi(text); err != nil || p.rate < 1 {
			return errors.New("want keys a second")
		}
		return nil
	})
	f.BoolVar(&p.quiet, "quiet", false, "show no progress bar")
	return p
}
