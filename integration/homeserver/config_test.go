package main

import (
	"flag"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pushrule"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := runToEnd(t, "-h")
	if status != exitOK || stderr != "" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	newFlags(&flagValues{}).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(stdout, "  -"+f.Name) {
			t.Errorf("-h does not explain -%s:\n%s", f.Name, stdout)
		}
	})
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flags []string
		want  string // part of the line
	}{
		{"unknown flag", []string{"-colour", "red"}, "-colour"},
		{"flag without value", []string{"-listen"}, "-listen"},
		{"stray argument", []string{"serve"}, `"serve"`},
		{"bad syntax", []string{"-=redis://user:s3cret@host"}, "bad flag syntax"},
		{"stray URL", []string{"redis://user:s3cret@host"}, "redis://***@host"},
		{"listen without port", []string{"-listen", "localhost"}, "-listen"},
		{"listen on no port", []string{"-listen", "localhost:65536"}, "-listen"},
		{"operators without port", []string{"-operators", "localhost"}, "-operators"},
		{"empty server name", []string{"-server-name", ""}, "-server-name"},
		{"server name with a slash", []string{"-server-name", "a/b"}, "-server-name"},
		{"prefix with braces", []string{"-key-prefix", "{a}"}, "-key-prefix"},
		{"unknown durability", []string{"-durability", "always"}, "-durability"},
		{"durability of the embedded Redis", []string{"-durability", "replicas:1"}, "-durability needs"},
		{"no file beside a Redis", []string{"-redis-mode", "standalone", "-redis", "a:1"}, "-redis-mode standalone needs -data FILE: Redis has only what the module stores"},
		{"unknown feature", []string{"-features", "pols"}, `unknown feature "pols", want some of ` + pushrule.FeatureNames()},
		{"invalid gateway status", []string{"-gateway-status", "42"}, "-gateway-status"},
		{"negative drain", []string{"-drain", "-1s"}, "-drain is -1s, want 0s to 1m0s"},
		{"drain of an hour", []string{"-drain", "1h"}, "-drain is 1h0m0s, want 0s to 1m0s"},
		{"mail to a host without TLS", []string{"-mail", "smtp://mail.example.org"}, "-mail: URL has the scheme smtp"},
		{"mail to no server", []string{"-mail", "smtps://user:s3cret@"}, "-mail: URL cannot be read"},
		{"delay of a day", []string{"-mail", "inbox", "-mail-delay", "24h"}, "-mail-delay"},
		{"delay of no mail", []string{"-mail-delay", "1m"}, "-mail-delay needs -mail"},
		{"repeat of no mail", []string{"-mail-repeat", "1h"}, "-mail-repeat needs -mail"},
		{"unknown level", []string{"-log-level", "loud"}, "-log-level"},
		{"level of zap only", []string{"-log-level", "fatal"}, "-log-level"},
		{"slash in a password", []string{"-redis-mode", "standalone", "-redis", "redis://user:s3cret/x@host"}, "-redis"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			line := expectFailure(t, exitUsage, test.flags...)
			if !strings.Contains(line, test.want) || strings.Contains(line, "s3cret") {
				t.Errorf("got %q, want %q in it", line, test.want)
			}
		})
	}
}

func TestModuleFlags(t *testing.T) {
	t.Parallel()
	cfg, err := parseFlags([]string{
		"-redis-mode", "cluster", "-redis", "a:1", "-data", "x", "-key-prefix", "hs1:", "-durability", "replicas:2,aof",
		"-gateways", "10.1.0.0/16, fd00::/8", "-drain", "3s",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := pushfx.DefaultConfig()
	want.PusherPolicy.AllowHTTP = true
	want.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}
	want.Delivery.DrainTimeout = 3 * time.Second
	want.Redis.KeyPrefix, want.Redis.Durability = "hs1:", rediscommit.Durability{Replicas: 2, AOF: true, Timeout: 1500 * time.Millisecond}
	if !reflect.DeepEqual(cfg.module, want) {
		t.Errorf("got %+v, want %+v", cfg.module, want)
	}
}
