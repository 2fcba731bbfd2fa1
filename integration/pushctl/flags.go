package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/mail/smtp"
	"github.com/pushfx/pushfx/module/pushrule"
)

type flags struct {
	*flag.FlagSet
	redis                                         redisurl.Flags
	keyPrefix, durability, features, defaultRules string
	options
}

// options has the flags that only some commands have.
type options struct {
	asJSON, yes, list, all              bool
	overwrite, resetDamaged, dropOthers bool
	rate                                pace
	save, pusher                        string
	allowedPrefixes                     []netip.Prefix
	mail                                smtp.Config
	webPush                             webpush.Config
	gateway                             gatewayName
	state                               string
}

// redisVariable is the environment variable for the Redis, if -redis is not given.
const redisVariable = "PUSHCTL_REDIS"

func newFlags(c command) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(c.name, flag.ContinueOnError), durability: "none"}
	f.SetOutput(io.Discard)
	f.redis.Add(f.FlagSet, redisurl.Standalone, "standalone, sentinel or cluster")
	f.StringVar(&f.keyPrefix, "key-prefix", "", "the hosts' KeyPrefix: `PREFIX` of every Redis key")
	if c.flags != nil {
		c.flags(f)
	}
	return f
}

// parseAll parses flags and arguments in any order.
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

// findServers returns the Redis that the flags or the environment name.
func (f *flags) findServers(environment func(string) string) (redisurl.Servers, error) {
	if redisurl.Mode(f.redis.Mode) == redisurl.Embedded {
		return redisurl.Servers{}, errors.New("-redis-mode must be standalone, sentinel or cluster")
	}
	if f.redis.Where != "" {
		s, err := redisurl.Parse(redisurl.Mode(f.redis.Mode), f.redis.Where, f.redis.Master)
		if err == nil && s.HasPassword() {
			err = fmt.Errorf("-redis has a password, which all users of this machine can see: "+
				"use -redis-password-file, $%s or $%s", redisurl.PasswordVariable, redisVariable)
		}
		if err != nil {
			return redisurl.Servers{}, err
		}
	}
	if f.redis.Where = cmp.Or(f.redis.Where, environment(redisVariable)); f.redis.Where == "" {
		return redisurl.Servers{}, fmt.Errorf("want -redis or $%s", redisVariable)
	}
	return f.redis.Servers(environment)
}

func (f *flags) addJSON() { f.BoolVar(&f.asJSON, "json", false, "write JSON") }

func (f *flags) addYes() {
	f.BoolVar(&f.yes, "yes", false, "make the change; without it, show the change")
}

// changes reports whether the command changes data: import always, others with -yes.
func (f *flags) changes() bool {
	return f.yes || f.Lookup("yes") == nil && f.Lookup("durability") != nil
}

func (f *flags) addRate() {
	f.UintVar((*uint)(&f.rate), "rate", 0, "at most `KEYS` per second (default 0, no limit)")
}

func (f *flags) addDefaultRules() {
	f.StringVar(&f.features, "features", "",
		"the hosts' Features: `NAMES` separated by commas, of\n"+pushrule.FeatureNames())
	f.StringVar(&f.defaultRules, "default-rules", "",
		"`FILE` with the hosts' DefaultRules, which they add to the default rules of the\nspecification: a JSON array of "+
			`{"kind":"...","rule_id":"...",`+"\n"+`"enabled":...,"actions":[...],"conditions":[...],"pattern":"...","before":"..."}`)
}

// addDurability adds -durability, for commands that write.
func (f *flags) addDurability() {
	f.StringVar(&f.durability, "durability", f.durability,
		"`DURABILITY` that each change waits for: none, replicas:N, aof or replicas:N,aof")
}

// readDefaultRules reads the file of -default-rules. Its rules come after the features'.
func readDefaultRules(file string, features []pushrule.Feature) (rules []pushrule.DefaultRule, err error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	enabled := true
	var read []struct {
		Kind       pushrule.Kind     `json:"kind"`
		ID         string            `json:"rule_id"`
		Enabled    *bool             `json:"enabled"`
		Actions    []json.RawMessage `json:"actions"`
		Conditions []json.RawMessage `json:"conditions"`
		Pattern    string            `json:"pattern"`
		Before     string            `json:"before"`
	}
	if err := strictUnmarshal(text, &read); err != nil {
		return nil, err
	}
	for _, r := range read {
		if r.Enabled == nil {
			r.Enabled = &enabled
		}
		rules = append(rules, pushrule.DefaultRule{
			Kind: r.Kind, ID: r.ID, Disabled: !*r.Enabled, Actions: texts[pushrule.Action](r.Actions),
			Conditions: texts[pushrule.Condition](r.Conditions), Pattern: r.Pattern, Before: r.Before,
		})
	}
	_, err = pushrule.NewDefaults(features, rules...)
	return rules, err
}

func texts[T ~string](values []json.RawMessage) (all []T) {
	for _, value := range values {
		all = append(all, T(value))
	}
	return all
}

// strictUnmarshal parses JSON and refuses unknown fields.
func strictUnmarshal(text []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}
