// Package redisurl parses the flags for the connection to Redis, and connects: to a single server, a master behind
// sentinels, or a cluster.
package redisurl

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Mode is the kind of Redis, which a flag names. Each value except Embedded is also a value of redis_mode in INFO.
type Mode string

// The modes.
const (
	Embedded   Mode = "embedded" // a Redis that the command starts in its own process
	Standalone Mode = "standalone"
	Sentinel   Mode = "sentinel"
	Cluster    Mode = "cluster"
)

// Servers has the addresses of a Redis and the logins.
type Servers struct {
	Mode    Mode
	MaxWait time.Duration // the longest wait until a change is durable

	single    redis.Options // also for an embedded Redis
	sentinels redis.FailoverOptions
	cluster   redis.ClusterOptions
}

// EmbeddedAt returns the Servers of a Redis that the command has started.
func EmbeddedAt(address string) Servers {
	return Servers{Mode: Embedded, single: redis.Options{Addr: address}}
}

// defaultMaster is the master's name in Redis's example configuration.
const defaultMaster = "mymaster"

// shared has the settings that all modes have. With sentinels, the login is for the sentinels.
type shared struct {
	addresses      []string
	user, password string
	tls            *tls.Config
}

func (s Servers) shared() shared {
	switch s.Mode {
	case Sentinel:
		o := s.sentinels
		return shared{o.SentinelAddrs, o.SentinelUsername, o.SentinelPassword, o.TLSConfig}
	case Cluster:
		o := s.cluster
		return shared{o.Addrs, o.Username, o.Password, o.TLSConfig}
	}
	return shared{[]string{s.single.Addr}, s.single.Username, s.single.Password, s.single.TLSConfig}
}

// Master returns the name of the master that the sentinels watch.
func (s Servers) Master() string { return s.sentinels.MasterName }

// String returns the mode and the addresses, without logins.
func (s Servers) String() string {
	shared := s.shared()
	text := string(s.Mode) + " at " + strings.Join(shared.addresses, ", ")
	if s.Mode == Sentinel {
		text += ", master " + s.Master()
	}
	if shared.tls != nil {
		text += ", with TLS"
	}
	return text
}

// HasPassword reports whether any server has a password.
func (s Servers) HasPassword() bool {
	return s.shared().password != "" || s.sentinels.Password != ""
}

// Parse parses the values of -redis-mode, -redis and -redis-master. Its errors do not repeat
// the value of -redis, which may contain a password.
func Parse(mode Mode, where, master string) (Servers, error) {
	switch {
	case !slices.Contains([]Mode{Embedded, Standalone, Sentinel, Cluster}, mode):
		return Servers{}, errors.New("-redis-mode must be embedded, standalone, sentinel or cluster")
	case mode == Embedded && where != "":
		return Servers{}, errors.New("-redis needs -redis-mode standalone, sentinel or cluster")
	case mode != Embedded && where == "":
		return Servers{}, fmt.Errorf("-redis-mode %s needs -redis, which says where it is", mode)
	case mode != Sentinel && master != "":
		return Servers{}, errors.New("-redis-master needs -redis-mode sentinel")
	case mode == Embedded:
		return Servers{Mode: mode}, nil
	}
	s := Servers{Mode: mode}
	var err error
	if !strings.Contains(where, "://") {
		all := strings.Split(where, ",")
		if err = checkAddresses(all); len(all) > 1 {
			where = all[0] + "?" + url.Values{"addr": all[1:]}.Encode()
		}
		where = "redis://" + where
	}
	if err == nil {
		err = s.read(where)
	}
	if err != nil {
		return Servers{}, fmt.Errorf("-redis: %w", err)
	}
	s.sentinels.MasterName = cmp.Or(master, s.sentinels.MasterName, defaultMaster)
	return s, nil
}

func checkAddresses(all []string) error {
	for i, address := range all {
		if host, _, _ := net.SplitHostPort(address); host == "" || !ValidAddress(address) {
			return fmt.Errorf("address %d is not HOST:PORT", i+1)
		}
	}
	return nil
}

// errNotUnderstood replaces the errors of the Redis client, which repeat the URL with its password.
var errNotUnderstood = errors.New("not understood: want HOST:PORT, of sentinels or a cluster several with commas, or a URL " +
	"that go-redis takes in this mode (redis:// or rediss://, a number as database, no unknown option, and in user and " +
	"password all but letters and digits percent-encoded)")

// read parses a URL as the Redis client does: with sentinels, user and password are for the sentinels. It refuses parts
// that the client would ignore, such as a fragment: the unescaped # in a password begins a fragment.
func (s *Servers) read(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Fragment != "" || s.Mode == Cluster && strings.Trim(u.Path, "/") != "" {
		return errNotUnderstood
	}
	switch s.Mode {
	case Sentinel:
		err = parse(&s.sentinels, text, redis.ParseFailoverURL)
	case Cluster:
		err = parse(&s.cluster, text, redis.ParseClusterURL)
	default:
		err = parse(&s.single, text, redis.ParseURL)
	}
	if err != nil {
		return errNotUnderstood
	}
	if t := s.shared().tls; t != nil { // each server's certificate has its own name
		t.ServerName, t.MinVersion = "", tls.VersionTLS12
	}
	return checkAddresses(s.shared().addresses)
}

func parse[T any](into *T, text string, read func(string) (*T, error)) error {
	options, err := read(text)
	if err == nil {
		*into = *options
	}
	return err
}

// Timeouts of the Redis client. They leave time for a second try within the 5 s of an operation of the module.
const (
	replyTimeout = time.Second            // for a command, and for its reply
	dialReserve  = 200 * time.Millisecond // a dial may take longer than a reply, or the client keeps a silent sentinel
	dialTries    = 2

	// poolLimit is how long a request waits for a free connection to a server before it tries
	// another server.
	poolLimit = 500 * time.Millisecond

	// topologyAge is the longest time until the client notices a failover. The client's default is a minute.
	topologyAge = time.Second
)

// Client returns a client for the mode.
func (s Servers) Client() redis.UniversalClient {
	switch s.Mode {
	case Sentinel:
		o := s.sentinels
		s.limit(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
		o.DialerRetries, o.ContextTimeoutEnabled = dialTries, true
		return redis.NewFailoverClient(&o)
	case Cluster:
		o := s.cluster
		s.limit(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
		o.DialerRetries, o.ContextTimeoutEnabled, o.MaintNotificationsConfig = dialTries, true, noMaintenance()
		o.PoolTimeout, o.ClusterStateReloadInterval = cmp.Or(o.PoolTimeout, poolLimit), topologyAge
		return redis.NewClusterClient(&o)
	}
	return s.node(s.single)
}

func (s Servers) node(o redis.Options) *redis.Client {
	s.limit(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
	o.DialerRetries, o.ContextTimeoutEnabled, o.MaintNotificationsConfig = dialTries, true, noMaintenance()
	return redis.NewClient(&o)
}

// limit sets the timeouts that the URL does not set. They are longer than the wait for durability.
func (s Servers) limit(dial, read, write *time.Duration) {
	reply := max(replyTimeout, s.MaxWait+dialReserve)
	*read, *write = cmp.Or(*read, reply), cmp.Or(*write, reply)
	*dial = cmp.Or(*dial, *read+dialReserve)
}

// noMaintenance turns off notifications of planned maintenance, which most servers do not support.
func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// ValidAddress reports whether an address is HOST:PORT. An empty host is valid.
func ValidAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && ValidPort(port)
}

// ValidPort reports whether a text is a port number.
func ValidPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}
