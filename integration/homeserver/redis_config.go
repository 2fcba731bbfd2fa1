package main

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

// redisMode says what kind of Redis to connect to. It is never guessed. Except
// for embedded, the names are those that a Redis gives to itself.
type redisMode string

const (
	embedded   redisMode = "embedded"
	standalone redisMode = "standalone"
	sentinel   redisMode = "sentinel"
	cluster    redisMode = "cluster"
)

// redisServers says where the Redis is and how to log in.
type redisServers struct {
	mode      redisMode
	addresses []string // host:port each; of the sentinels in sentinel mode
	login     redisLogin
	sentinels redisLogin  // of the sentinels themselves
	master    string      // the name of the master that the sentinels watch
	database  int         // 0 in a cluster
	tls       *tls.Config // nil without TLS

	longestWait time.Duration // of a server for the durability of a change
}

// redisLogin is what to log in with; both are empty where no login is needed.
type redisLogin struct{ user, password string }

// The defaults of a Redis.
const (
	defaultMaster       = "mymaster"
	defaultPort         = "6379"
	defaultSentinelPort = "26379"
)

// String names the mode and the addresses, without the logins.
func (s redisServers) String() string {
	text := string(s.mode) + " at " + strings.Join(s.addresses, ", ")
	if s.mode == sentinel {
		text += ", master " + s.master
	}
	if s.tls != nil {
		text += ", with TLS"
	}
	return text
}

// parseRedis reads the flags that say which Redis to use. Its errors repeat
// nothing of where: what is not understood may be a part of a password.
func parseRedis(mode redisMode, where, master string) (redisServers, error) {
	switch {
	case !slices.Contains([]redisMode{embedded, standalone, sentinel, cluster}, mode):
		return redisServers{}, errors.New("-redis-mode must be embedded, standalone, sentinel or cluster")
	case mode == embedded && where != "":
		return redisServers{}, errors.New("-redis needs -redis-mode standalone, sentinel or cluster")
	case mode != embedded && where == "":
		return redisServers{}, fmt.Errorf("-redis-mode %s needs -redis, which says where it is", mode)
	case mode != sentinel && master != "":
		return redisServers{}, errors.New("-redis-master needs -redis-mode sentinel")
	}
	s := redisServers{mode: mode, master: master}
	if mode == embedded {
		return s, nil
	}
	if err := s.read(where); err != nil {
		return redisServers{}, fmt.Errorf("-redis: %w", err)
	}
	if mode == sentinel {
		s.master = cmp.Or(s.master, defaultMaster)
	}
	return s, nil
}

// read reads the value of -redis.
func (s *redisServers) read(where string) error {
	if strings.Contains(where, "://") {
		if err := s.readURL(where); err != nil {
			return err
		}
	} else {
		s.addresses = strings.Split(where, ",")
	}
	for i, address := range s.addresses {
		if host, _, _ := net.SplitHostPort(address); host == "" || !validAddress(address) {
			return fmt.Errorf("address %d is not HOST:PORT", i+1)
		}
	}
	if s.mode == standalone && len(s.addresses) > 1 {
		return errors.New("a standalone Redis has one address")
	}
	return nil
}

// readURL reads a URL. It means what it means to the Redis client: with
// sentinels, user and password are theirs.
func (s *redisServers) readURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Fragment != "" {
		return errors.New("not a valid URL (in a user or password, percent-encode all but letters and digits)")
	}
	switch u.Scheme {
	case "redis":
	case "rediss":
		s.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	default:
		return errors.New("the URL must start with redis:// or rediss://")
	}
	port := defaultPort
	if s.mode == sentinel {
		port = defaultSentinelPort
	}
	s.addresses = []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))}
	login := &s.login
	if s.mode == sentinel {
		login = &s.sentinels
	}
	login.user = u.User.Username()
	login.password, _ = u.User.Password()
	if err := s.readDatabase(strings.Trim(u.Path, "/")); err != nil {
		return err
	}
	return s.readOptions(u.RawQuery)
}

// readDatabase reads the path of a URL.
func (s *redisServers) readDatabase(path string) (err error) {
	if path == "" {
		return nil
	}
	s.database, err = strconv.Atoi(path)
	if err != nil || s.database < 0 {
		return errors.New("the path of the URL must be the number of a database")
	}
	if s.mode == cluster && s.database != 0 {
		return errors.New("a cluster has no database but 0")
	}
	return nil
}

// readOptions reads the query of a URL.
func (s *redisServers) readOptions(query string) error {
	options, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the query of the URL is not valid")
	}
	for name, values := range options {
		last := values[len(values)-1]
		switch {
		case name == "addr":
			s.addresses = append(s.addresses, values...)
		case name == "skip_verify" && s.tls != nil && (last == "true" || last == "false"):
			s.tls.InsecureSkipVerify = last == "true"
		case name == "username" && s.mode == sentinel:
			s.login.user = last
		case name == "password" && s.mode == sentinel:
			s.login.password = last
		case name == "master_name" && s.mode == sentinel:
			s.master = cmp.Or(s.master, last)
		default:
			return errors.New("the URL has an option that does not exist, or not in this mode")
		}
	}
	return nil
}
