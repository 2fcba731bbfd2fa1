package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/homeserver/inbox"
	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pushrule"
)

type config struct {
	listen       string           // host:port; port 0 takes a free port
	operators    string           // host:port; empty: not served
	serverName   string           // the domain of the user ids
	userRate     uint             // requests per second; 0: unlimited
	passwordRate uint             // passwords per second; 0: unlimited
	connections  uint             // clients' connections at a time; 0: unlimited
	drain        time.Duration    // longest wait at the stop for requests, then for handovers, then for notifications
	trouble      receiver.Trouble // of the host's own push gateway
	redis        redisurl.Servers
	data         string       // file of the host's own data; empty: temporary
	webPush      bool         // whether the host sends to browsers, and is their push service
	mail         string       // where mail is sent to; empty: not sent
	inbox        *inbox.Inbox // of mails, only with -mail inbox
	listener     net.Listener // on listen, nil to open it at the start
	module       pushfx.Config
	logLevel     zapcore.Level
}

// flagValues has the values of the flags. The values in config need no conversion.
type flagValues struct {
	config
	redisFlags            redisurl.Flags
	keyPrefix, durability string
	gateways, features    string
	mailDelay, mailRepeat time.Duration
	badge                 string
}

func newFlags(values *flagValues) *flag.FlagSet {
	flags := flag.NewFlagSet("homeserver", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&values.listen, "listen", "127.0.0.1:8008",
		"`HOST:PORT` to listen on; port 0 takes a free port. The page at / and the paths below\n/_demo answer to addresses, to localhost, and to this HOST")
	flags.StringVar(&values.operators, "operators", "",
		"`HOST:PORT` for /metrics and /readyz, which clients must not reach; without this\nflag the host does not serve them")
	flags.StringVar(&values.serverName, "server-name", "localhost",
		"`NAME` of the server, the domain of its user ids")
	flags.UintVar(&values.userRate, "user-rate", 20,
		"largest number of `REQUESTS` per second from a user, and from an address without a\nvalid token; a burst may have twice as many; 0 means unlimited")
	flags.UintVar(&values.passwordRate, "password-rate", 1,
		"largest number of `PASSWORDS` per second tried for a user, and from an address,\nafter the first 10; 0 means unlimited")
	flags.UintVar(&values.connections, "connections", 4096,
		"largest number of open `CONNECTIONS` of all clients; further clients wait;\n0 means unlimited")
	values.redisFlags.Add(flags, redisurl.Embedded,
		"embedded (in this process; its data ends with the\nprocess), standalone, sentinel or cluster")
	flags.StringVar(&values.data, "data", "",
		"`FILE` of the host's own data: users, rooms, events (SQLite). Hosts on this machine may\n"+
			"share it. Without this flag, which an embedded Redis allows, the data ends with the\nprocess")
	flags.StringVar(&values.keyPrefix, "key-prefix", "",
		"`PREFIX` of every Redis key, without braces")
	flags.StringVar(&values.durability, "durability", "none",
		"`DURABILITY` that a change waits for before the client gets the answer: none,\n"+
			"replicas:N (N replicas have it), aof (the master has it on disk) or replicas:N,aof")
	flags.StringVar(&values.gateways, "gateways", "127.0.0.0/8,::1/128",
		"`PREFIX[,PREFIX...]` of private addresses that push gateways may have; pushers may\n"+
			"then also use plain http. With none, gateways need a public address and https")
	flags.StringVar(&values.features, "features", "",
		"`NAMES` of features, separated by commas; users get their default rules:\n"+pushrule.FeatureNames())
	flags.StringVar(&values.badge, "badge", "rooms",
		"what badges `COUNT`: rooms with unread notifications, or notifications")
	flags.StringVar(&values.mail, "mail", "",
		"`URL` of the server that mail is sent by, such as smtp+starttls://mail.example.org; a\n"+
			"user NAME may use the address NAME@"+mailDomain+" alone. With inbox, mail arrives in this\n"+
			"process, and the page shows it. Without this flag no mail is sent")
	flags.DurationVar(&values.mailDelay, "mail-delay", 10*time.Minute,
		"`TIME` that a mail waits, in which the user may read what it would be about")
	flags.DurationVar(&values.mailRepeat, "mail-repeat", 23*time.Hour,
		"`TIME` until the next mail of a user who has read nothing of the last one")
	flags.BoolVar(&values.webPush, "web-push", false,
		"send notifications to browsers (MSC4174). The page plays one with WebCrypto, with a push\nservice in this process, or uses the browser's own")
	flags.IntVar(&values.trouble.Status, "gateway-status", 0,
		"`STATUS` that the host's own push gateway answers instead of 200, for example 502")
	flags.DurationVar(&values.trouble.Delay, "gateway-delay", 0,
		"`TIME` that the host's own push gateway waits before each answer, for example 30s")
	flags.DurationVar(&values.drain, "drain", defaultDrain,
		"longest `TIME` that a stop waits for running requests, then again for their events\n"+
			"to be handed over, and for running notifications: 0s to 1m. Other hosts do what is left")
	flags.TextVar(&values.logLevel, "log-level", zapcore.InfoLevel,
		"lowest `LEVEL` to log: debug (also each request), info, warn or error")
	return flags
}

func writeUsage(w io.Writer) {
	flags := newFlags(&flagValues{})
	flags.SetOutput(w)
	fmt.Fprint(w, "A small Matrix homeserver with push rules and pushers, to try and to copy from.\n"+
		"Everyone who can reach it can act as any user: each user's password is demo until\n"+
		"the user changes it, and the token demo-NAME needs no login.\n"+
		"So can web pages in a browser on this machine, because Matrix lets them.\n\n"+
		"Usage: homeserver [flags]\n\n")
	flags.PrintDefaults()
}

// parseFlags parses the command line. It returns [flag.ErrHelp] for -h.
func parseFlags(args []string) (config, error) {
	var values flagValues
	flags := newFlags(&values)
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	if flags.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var needsMail error
	flags.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "mail-") && values.mail == "" {
			needsMail = fmt.Errorf("-%s needs -mail", f.Name)
		}
	})
	if needsMail != nil {
		return config{}, needsMail
	}
	return values.read()
}

// read checks and converts the values.
func (v flagValues) read() (c config, err error) {
	if !redisurl.ValidAddress(v.listen) {
		return config{}, fmt.Errorf("-listen is %q, want HOST:PORT", v.listen)
	}
	if v.operators != "" && !redisurl.ValidAddress(v.operators) {
		return config{}, fmt.Errorf("-operators is %q, want HOST:PORT", v.operators)
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
	if v.logLevel > zapcore.ErrorLevel {
		return config{}, errors.New("-log-level must be debug, info, warn or error")
	}
	c = v.config
	if c.redis, err = v.redisFlags.Servers(os.Getenv); err != nil {
		return config{}, err
	}
	if c.data == "" && redisurl.Mode(v.redisFlags.Mode) != redisurl.Embedded {
		return config{}, errors.New("-redis-mode " + v.redisFlags.Mode +
			" needs -data FILE: Redis has only what the module stores, not the host's users, rooms and events")
	}
	if c.module, err = v.moduleConfig(); err != nil {
		return config{}, err
	}
	c.redis.MaxWait = c.module.Redis.Durability.MaxWait()
	return c, nil
}

// moduleConfig checks the flags of the module and returns its configuration.
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
	if v.badge != "rooms" && v.badge != "notifications" {
		return pushfx.Config{}, fmt.Errorf("-badge is %q, want rooms or notifications", v.badge)
	}
	c.Unread.CountNotifications = v.badge == "notifications"
	c.PusherPolicy.AllowHTTP = len(c.PusherPolicy.AllowedPrefixes) > 0
	if err := c.PusherPolicy.Validate(); err != nil {
		return pushfx.Config{}, fmt.Errorf("-gateways: %w", err)
	}
	c.Delivery.DrainTimeout = v.drain
	v.configureWebPush(&c)
	if err := v.configureMail(&c); err != nil {
		return pushfx.Config{}, err
	}
	if redisurl.Mode(v.redisFlags.Mode) == redisurl.Embedded && v.durability != "none" {
		return pushfx.Config{}, errors.New("-durability needs a -redis-mode other than embedded")
	}
	return c, nil
}

// The default and the maximum of -drain. Each operation of the module ends within 5 s, so the default interrupts no
// operation. The module allows a DrainTimeout of at most a minute.
const (
	defaultDrain = 6 * time.Second
	maxDrain     = time.Minute
)

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

// serverName matches valid server names. The specification's grammar is stricter.
var serverName = regexp.MustCompile(`^[A-Za-z0-9.:\[\]-]{1,230}$`)
