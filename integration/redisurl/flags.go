package redisurl

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

// Flags has the values of the flags for the connection to Redis.
type Flags struct {
	Mode                               string
	Where, Master                      string
	PasswordFile, SentinelPasswordFile string
	CA, Cert, Key                      string // files of TLS
}

// Environment variables with passwords.
const (
	PasswordVariable         = "REDIS_PASSWORD"
	SentinelPasswordVariable = "REDIS_SENTINEL_PASSWORD"
)

// Add adds the flags, which fill f. Mode is the default of -redis-mode, and modes describes
// the accepted modes.
func (f *Flags) Add(flags *flag.FlagSet, mode Mode, modes string) {
	flags.StringVar(&f.Mode, "redis-mode", string(mode), "`MODE` of the Redis: "+modes)
	flags.StringVar(&f.Where, "redis", "",
		"`ADDR[,ADDR...]` of the Redis, its sentinels or its cluster nodes, each HOST:PORT;\n"+
			"or one URL, redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss:// for TLS.\n"+
			"Parameters of the URL as in go-redis: addr=HOST:PORT is a further address, and\n"+
			"skip_verify=true accepts any certificate. With sentinels, USER:PASSWORD is their\n"+
			"login; username= and password= are the login of the Redis, master_name= its name")
	flags.StringVar(&f.Master, "redis-master", "",
		"`NAME` of the master that the sentinels watch; wins over master_name in the URL\n(default \""+defaultMaster+"\")")
	flags.StringVar(&f.PasswordFile, "redis-password-file", "",
		"`FILE` with the password of the Redis on its first line. Other sources are the URL\nand the environment variable "+PasswordVariable)
	flags.StringVar(&f.SentinelPasswordFile, "redis-sentinel-password-file", "",
		"`FILE` with the password of the sentinels on its first line. Other sources are the\nURL and the environment variable "+SentinelPasswordVariable)
	flags.StringVar(&f.CA, "redis-ca", "",
		"`FILE` with the authorities that sign the servers' certificates, in PEM (default: the\nsystem's). This flag and the next two turn TLS on")
	flags.StringVar(&f.Cert, "redis-cert", "",
		"`FILE` with the client certificate, in PEM, which Redis asks for by default. The file\nis read again for each new connection")
	flags.StringVar(&f.Key, "redis-key", "", "`FILE` with the key of the client certificate, in PEM")
}

// Servers returns the servers that the flags name. Passwords come from the URL, a file or the environment. Errors do
// not repeat text that may be a password.
func (f *Flags) Servers(environment func(name string) string) (Servers, error) {
	s, err := Parse(Mode(f.Mode), f.Where, f.Master)
	if err == nil {
		err = f.addTLS(&s)
	}
	if err != nil {
		return Servers{}, err
	}
	if s.Mode == Embedded {
		if f.PasswordFile != "" || f.SentinelPasswordFile != "" {
			return Servers{}, errors.New("-redis-password-file needs -redis-mode standalone, sentinel or cluster")
		}
		return s, nil
	}
	if f.SentinelPasswordFile != "" && s.Mode != Sentinel {
		return Servers{}, errors.New("-redis-sentinel-password-file needs -redis-mode sentinel")
	}
	main, password := &s.single.Password, environment(PasswordVariable)
	switch s.Mode {
	case Cluster:
		main = &s.cluster.Password
	case Sentinel:
		main = &s.sentinels.Password
		err = fill(&s.sentinels.SentinelPassword, "-redis-sentinel-password-file", f.SentinelPasswordFile, environment(SentinelPasswordVariable))
	}
	if err = errors.Join(err, fill(main, "-redis-password-file", f.PasswordFile, password)); err != nil {
		return Servers{}, err
	}
	return s, nil
}

// fill sets a password, unless the URL contains one, to the first line of the file that the flag with this name gives.
// Without a file, it sets the fallback.
func fill(password *string, name, file, fallback string) error {
	switch {
	case *password != "" && file != "":
		return fmt.Errorf("there is a password in the URL, and %s names another", name)
	case *password != "":
		return nil
	case file == "":
		*password = fallback
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	if *password = strings.TrimSuffix(first, "\r"); *password == "" {
		return fmt.Errorf("%s: the first line of the file is empty", name)
	}
	return nil
}

// WithoutLogin replaces user and password of a URL in each line by asterisks.
func WithoutLogin(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		scheme, rest, isURL := strings.Cut(line, "://")
		if at := strings.LastIndex(rest, "@"); isURL && at >= 0 {
			lines[i] = scheme + "://***" + rest[at:]
		}
	}
	return strings.Join(lines, "\n")
}
