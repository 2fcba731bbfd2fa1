package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"go.uber.org/zap/zapcore"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
)

// config is what the flags say.
type config struct {
	listen      string // host:port; port 0 is any free one
	serverName  string // the domain of the user ids
	userRate    int    // requests a second; 0 is no limit
	connections int    // of an address; 0 is no limit
	redis       redisurl.Servers
	module      pushfx.Config
	logLevel    zapcore.Level
}

// flagValues are the flags as they were given.
type flagValues struct {
	listen, serverName, keyPrefix, logLevel string
	durability                              string
	userRate, connections                   uint
	redis                                   redisurl.Flags
}

// newFlags returns the flags, which fill values.
func newFlags(values *flagValues) *flag.FlagSet {
	flags := flag.NewFlagSet("homeserver", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&values.listen, "listen", "127.0.0.1:8008",
		"`HOST:PORT` to listen on; port 0 is any free one")
	flags.StringVar(&values.serverName, "server-name", "localhost",
		"`NAME` of the server, the domain of its user ids")
	flags.UintVar(&values.userRate, "user-rate", 100,
		"`REQUESTS` a second that a user, or an address without a login, can make while\n"+
			"it takes far more than the others do; 0 is no limit")
	flags.UintVar(&values.connections, "address-connections", 2048,
		"`CONNECTIONS` that an address can have at a time; 0 is no limit, and suits a\nhost behind a proxy")
	values.redis.Add(flags, redisurl.Embedded,
		"embedded (in this process, gone when it ends),\nstandalone, sentinel or cluster")
	flags.StringVar(&values.keyPrefix, "key-prefix", "",
		"`PREFIX` of every Redis key, without braces")
	flags.StringVar(&values.durability, "durability", "none",
		"`WHAT` must have happened to a change before it is acknowledged: none, replicas:N\n"+
			"(N replicas have it), aof (the master has it on disk) or replicas:N,aof")
	flags.StringVar(&values.logLevel, "log-level", "info",
		"`LEVEL` from which on to log: debug (each request), info, warn or error")
	return flags
}

// writeUsage explains the flags.
func writeUsage(w io.Writer) {
	flags := newFlags(&flagValues{})
	flags.SetOutput(w)
	fmt.Fprint(w, "A small Matrix homeserver with push rules and pushers, to try and to copy from.\n"+
		"The password of all users is demo, until they change it, and for curl any token\n"+
		"demo-NAME or demo-NAME/DEVICE is the user NAME: let nobody reach it who should not\n"+
		"be all of them.\n\n"+
		"Usage: homeserver [flags]\n\n")
	flags.PrintDefaults()
}

// parseFlags reads the command line. The error is [flag.ErrHelp] when the
// usage is asked for.
func parseFlags(args []string) (config, error) {
	var values flagValues
	flags := newFlags(&values)
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	if flags.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return values.config()
}

// config checks the values.
func (v flagValues) config() (config, error) {
	if !redisurl.ValidAddress(v.listen) {
		return config{}, fmt.Errorf("-listen is %q, want HOST:PORT", v.listen)
	}
	if !validServerName(v.serverName) {
		return config{}, fmt.Errorf("-server-name is %q, want a host name or address, with or without a port", v.serverName)
	}
	level, err := parseLevel(v.logLevel)
	if err != nil {
		return config{}, err
	}
	redis, err := v.redis.Servers(os.Getenv)
	if err != nil {
		return config{}, err
	}
	module, err := v.moduleConfig()
	if err != nil {
		return config{}, err
	}
	redis.LongestWait = module.Durability.LongestWait()
	return config{v.listen, v.serverName, int(v.userRate), int(v.connections), redis, module, level}, nil
}

// moduleConfig checks the values that are the module's.
func (v flagValues) moduleConfig() (pushfx.Config, error) {
	c := pushfx.DefaultConfig()
	c.KeyPrefix = v.keyPrefix
	if err := c.Validate(); err != nil {
		return pushfx.Config{}, fmt.Errorf("-key-prefix: %w", err)
	}
	var err error
	if c.Durability, err = rediscommit.ParseDurability(v.durability); err != nil {
		return pushfx.Config{}, fmt.Errorf("-durability: %w", err)
	}
	if redisurl.Mode(v.redis.Mode) == redisurl.Embedded && v.durability != "none" {
		return pushfx.Config{}, errors.New("-durability needs a -redis-mode other than embedded")
	}
	return c, nil
}

// maxServerNameBytes is what the specification says (appendices, "Server
// Name").
const maxServerNameBytes = 230

// validServerName reports whether a name follows the grammar of server names
// (Matrix specification, appendices, "Server Name").
func validServerName(name string) bool {
	host := name
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, ']') {
		host = name[:i]
		if !redisurl.ValidPort(name[i+1:]) {
			return false
		}
	}
	if len(name) > maxServerNameBytes {
		return false
	}
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		inner, closed := strings.CutSuffix(inner, "]")
		address, err := netip.ParseAddr(inner)
		return closed && err == nil && address.Is6() && address.Zone() == ""
	}
	return host != "" && !strings.ContainsFunc(host, func(r rune) bool {
		return !isLower(r) && !isDigit(r) && (r < 'A' || r > 'Z') && r != '-' && r != '.'
	})
}

func isLower(r rune) bool { return 'a' <= r && r <= 'z' }
func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func parseLevel(name string) (zapcore.Level, error) {
	switch name {
	case "debug":
		return zapcore.DebugLevel, nil
	case "info":
		return zapcore.InfoLevel, nil
	case "warn":
		return zapcore.WarnLevel, nil
	case "error":
		return zapcore.ErrorLevel, nil
	}
	return 0, errors.New("-log-level must be debug, info, warn or error")
}
