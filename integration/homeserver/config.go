package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pushrule"
)

// config is what the flags say.
type config struct {
	listen       string           // host:port; port 0 is any free one
	operators    string           // likewise; empty is none
	serverName   string           // the domain of the user ids
	baseURL      string           // where clients reach the host; empty is where it listens
	userRate     int              // requests a second; 0 is no limit
	passwordRate int              // passwords a second; 0 is no limit
	connections  int              // at a time; 0 is no limit
	drain        time.Duration    // for requests, then for notifications, when the host stops
	trouble      receiver.Trouble // of the host's own push gateway
	redis        redisurl.Servers
	module       pushfx.Config
	logLevel     zapcore.Level
}

// flagValues are the flags as they were given.
type flagValues struct {
	listen, operators, serverName, baseURL string
	keyPrefix, durability, logLevel        string
	gateways, features                     string
	trouble                                receiver.Trouble
	drain                                  time.Duration
	userRate, passwordRate, connections    uint
	redis                                  redisurl.Flags
}

// newFlags returns the flags, which fill values.
func newFlags(values *flagValues) *flag.FlagSet {
	flags := flag.NewFlagSet("homeserver", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&values.listen, "listen", "127.0.0.1:8008",
		"`HOST:PORT` to listen on; port 0 is any free one")
	flags.StringVar(&values.operators, "operators", "",
		"`HOST:PORT` to serve /metrics and /readyz at, which are not for clients;\nwithout it nobody can ask")
	flags.StringVar(&values.serverName, "server-name", "localhost",
		"`NAME` of the server, the domain of its user ids")
	flags.StringVar(&values.baseURL, "base-url", "",
		"`URL` at which clients reach the host, for /.well-known/matrix/client;\nwithout it, the address where they connect")
	flags.UintVar(&values.userRate, "user-rate", 20,
		"`REQUESTS` a second that a user can make, and an address without a valid token,\nafter those of 2 seconds at once; 0 is no limit")
	flags.UintVar(&values.passwordRate, "password-rate", 1,
		"`PASSWORDS` a second that can be tried of a user, and from an address, after the\nfirst 10; 0 is no limit")
	flags.UintVar(&values.connections, "connections", 4096,
		"`CONNECTIONS` that clients can have at a time, all together; more wait;\n0 is no limit")
	values.redis.Add(flags, redisurl.Embedded,
		"embedded (in this process, gone when it ends),\nstandalone, sentinel or cluster")
	flags.StringVar(&values.keyPrefix, "key-prefix", "",
		"`PREFIX` of every Redis key, without braces")
	flags.StringVar(&values.durability, "durability", "none",
		"`WHAT` must have happened to a change before it is acknowledged: none, replicas:N\n"+
			"(N replicas have it), aof (the master has it on disk) or replicas:N,aof")
	flags.StringVar(&values.gateways, "gateways", "127.0.0.0/8,::1/128",
		"address ranges that pushers may name and notifications may go to though they are\n"+
			"not public, as `PREFIX[,PREFIX...]`, over plain http too; none is none")
	flags.StringVar(&values.features, "features", "",
		"`NAMES` of features whose default rules users get, separated by commas:\n"+pushrule.FeatureNames())
	flags.IntVar(&values.trouble.Status, "gateway-status", 0,
		"`STATUS` that the host's own push gateway answers instead of 200, such as 502")
	flags.DurationVar(&values.trouble.Delay, "gateway-delay", 0,
		"`TIME` before each answer of the host's own push gateway, such as 30s")
	flags.DurationVar(&values.drain, "drain", defaultDrain,
		"`TIME` that a stop gives the requests that are under way to end, and then the\n"+
			"notifications; at most 1m, 0s cuts them off. Another host sends notifications that\n"+
			"are cut off once more")
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
	if v.operators != "" && !redisurl.ValidAddress(v.operators) {
		return config{}, fmt.Errorf("-operators is %q, want HOST:PORT", v.operators)
	}
	if !validBaseURL(v.baseURL) {
		return config{}, fmt.Errorf("-base-url is %q, want https://HOST or http://HOST", v.baseURL)
	}
	if !serverName.MatchString(v.serverName) {
		return config{}, fmt.Errorf("-server-name is %q, want a host name or address, with or without a port", v.serverName)
	}
	if status := v.trouble.Status; status != 0 && (status < 200 || status > 599) {
		return config{}, fmt.Errorf("-gateway-status is %d, want 200 to 599", status)
	}
	if v.drain < 0 || v.drain > maxDrain {
		return config{}, fmt.Errorf("-drain is %v, want 0s to %v", v.drain, maxDrain)
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
	redis.MaxWait = module.Redis.Durability.MaxWait()
	return config{
		listen: v.listen, operators: v.operators, serverName: v.serverName, baseURL: v.baseURL,
		userRate: int(v.userRate), passwordRate: int(v.passwordRate), connections: int(v.connections),
		drain: v.drain, trouble: v.trouble, redis: redis, module: module, logLevel: level,
	}, nil
}

// moduleConfig checks the values that are the module's.
func (v flagValues) moduleConfig() (pushfx.Config, error) {
	c := pushfx.DefaultConfig()
	c.Redis.KeyPrefix = v.keyPrefix
	if err := c.Redis.Validate(); err != nil {
		return pushfx.Config{}, fmt.Errorf("-key-prefix: %w", err)
	}
	var err error
	if c.Redis.Durability, err = rediscommit.ParseDurability(v.durability); err != nil {
		return pushfx.Config{}, fmt.Errorf("-durability: %w", err)
	}
	if c.Features, err = pushrule.ParseFeatures(v.features); err != nil {
		return pushfx.Config{}, fmt.Errorf("-features: %w", err)
	}
	if c.PusherPolicy.AllowedPrefixes, err = parsePrefixes(v.gateways); err != nil {
		return pushfx.Config{}, err
	}
	c.PusherPolicy.AllowHTTP = len(c.PusherPolicy.AllowedPrefixes) > 0
	if err := c.PusherPolicy.Validate(); err != nil {
		return pushfx.Config{}, fmt.Errorf("-gateways: %w", err)
	}
	c.Delivery.Shards, c.Delivery.DrainTimeout = demoShards, v.drain
	if redisurl.Mode(v.redis.Mode) == redisurl.Embedded && v.durability != "none" {
		return pushfx.Config{}, errors.New("-durability needs a -redis-mode other than embedded")
	}
	return c, nil
}

// demoShards is enough for a few hosts to share, and little work for the embedded
// Redis.
const demoShards = 16

// The values of -drain. Every operation of the module ends within 5 s, so the default
// cuts none off. The module's DrainTimeout is at most a minute.
const (
	defaultDrain = 6 * time.Second
	maxDrain     = time.Minute
)

// parsePrefixes reads -gateways.
func parsePrefixes(text string) (all []netip.Prefix, err error) {
	if text == "none" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("-gateways has %q, want prefixes such as 10.1.0.0/16, or none", part)
		}
		all = append(all, prefix)
	}
	return all, nil
}

// validBaseURL reports whether a URL can be told to clients.
func validBaseURL(text string) bool {
	u, err := url.Parse(text)
	return text == "" || err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
}

// serverName is what a name may be here; the specification's grammar is stricter.
var serverName = regexp.MustCompile(`^[A-Za-z0-9.:\[\]-]{1,230}$`)

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
