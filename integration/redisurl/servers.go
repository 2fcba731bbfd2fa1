// Package redisurl says which Redis a command uses, as its flags tell, and
// connects to it: a single server, one behind sentinels, or a cluster.
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
)

// Mode says what kind of Redis to connect to. It is never guessed. Except for
// Embedded, the names are those that a Redis gives to itself.
type Mode string

// The modes.
const (
	Embedded   Mode = "embedded" // in the process of the command, which starts it
	Standalone Mode = "standalone"
	Sentinel   Mode = "sentinel"
	Cluster    Mode = "cluster"
)

// Servers says where the Redis is and how to log in.
type Servers struct {
	Mode      Mode
	Addresses []string // host:port each; of the sentinels in sentinel mode
	Login     Login
	Sentinels Login       // of the sentinels themselves
	Master    string      // the name of the master that the sentinels watch
	Database  int         // 0 in a cluster
	TLS       *tls.Config // nil without TLS

	LongestWait time.Duration // of a server for the durability of a change
}

// Login is what to log in with; both are empty if no login is needed.
type Login struct{ User, Password string }

// The defaults of a Redis.
const (
	defaultMaster       = "mymaster"
	defaultPort         = "6379"
	defaultSentinelPort = "26379"
)

// String names the mode and the addresses, without the logins.
func (s Servers) String() string {
	text := string(s.Mode) + " at " + strings.Join(s.Addresses, ", ")
	if s.Mode == Sentinel {
		text += ", master " + s.Master
	}
	if s.TLS != nil {
		text += ", with TLS"
	}
	return text
}

// HasPassword reports whether there is a password for any of the servers.
func (s Servers) HasPassword() bool { return s.Login.Password != "" || s.Sentinels.Password != "" }

// Parse reads the values of -redis-mode, -redis and -redis-master. Its errors
// repeat nothing of where: what is not understood may be a part of a password.
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
	}
	s := Servers{Mode: mode, Master: master}
	if mode == Embedded {
		return s, nil
	}
	if err := s.read(where); err != nil {
		return Servers{}, fmt.Errorf("-redis: %w", err)
	}
	if mode == Sentinel {
		s.Master = cmp.Or(s.Master, defaultMaster)
	}
	return s, nil
}

// read reads the value of -redis.
func (s *Servers) read(where string) error {
	if strings.Contains(where, "://") {
		if err := s.readURL(where); err != nil {
			return err
		}
	} else {
		s.Addresses = strings.Split(where, ",")
	}
	for i, address := range s.Addresses {
		if host, _, _ := net.SplitHostPort(address); host == "" || !ValidAddress(address) {
			return fmt.Errorf("address %d is not HOST:PORT", i+1)
		}
	}
	if s.Mode == Standalone && len(s.Addresses) > 1 {
		return errors.New("a standalone Redis has one address")
	}
	return nil
}

// readURL reads a URL. It means what it means to the Redis client: with
// sentinels, user and password are theirs.
func (s *Servers) readURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Fragment != "" {
		return errors.New("not a valid URL (in a user or password, percent-encode all but letters and digits)")
	}
	switch u.Scheme {
	case "redis":
	case "rediss":
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	default:
		return errors.New("the URL must start with redis:// or rediss://")
	}
	port := defaultPort
	if s.Mode == Sentinel {
		port = defaultSentinelPort
	}
	s.Addresses = []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))}
	login := &s.Login
	if s.Mode == Sentinel {
		login = &s.Sentinels
	}
	login.User = u.User.Username()
	login.Password, _ = u.User.Password()
	if err := s.readDatabase(strings.Trim(u.Path, "/")); err != nil {
		return err
	}
	return s.readOptions(u.RawQuery)
}

// readDatabase reads the path of a URL.
func (s *Servers) readDatabase(path string) (err error) {
	if path == "" {
		return nil
	}
	s.Database, err = strconv.Atoi(path)
	if err != nil || s.Database < 0 {
		return errors.New("the path of the URL must be the number of a database")
	}
	if s.Mode == Cluster && s.Database != 0 {
		return errors.New("a cluster has no database but 0")
	}
	return nil
}

// readOptions reads the query of a URL.
func (s *Servers) readOptions(query string) error {
	options, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the query of the URL is not valid")
	}
	for name, values := range options {
		last := values[len(values)-1]
		switch {
		case name == "addr":
			s.Addresses = append(s.Addresses, values...)
		case name == "skip_verify" && s.TLS != nil && (last == "true" || last == "false"):
			s.TLS.InsecureSkipVerify = last == "true"
		case name == "username" && s.Mode == Sentinel:
			s.Login.User = last
		case name == "password" && s.Mode == Sentinel:
			s.Login.Password = last
		case name == "master_name" && s.Mode == Sentinel:
			s.Master = cmp.Or(s.Master, last)
		default:
			return errors.New("the URL has an option that does not exist, or not in this mode")
		}
	}
	return nil
}

// ValidAddress reports whether an address is HOST:PORT. An empty host passes.
func ValidAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && ValidPort(port)
}

// ValidPort reports whether a port is the number of one.
func ValidPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}
