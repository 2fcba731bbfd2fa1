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
	standalone := func(where string) []string { return []string{"-redis-mode", "standalone", "-redis", where} }
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
		{"listen on a named port", []string{"-listen", "localhost:http"}, "-listen"},
		{"listen on no port", []string{"-listen", "localhost:65536"}, "-listen"},
		{"operators without port", []string{"-operators", "localhost"}, "-operators"},
		{"base URL without a scheme", []string{"-base-url", "example.org"}, "-base-url"},
		{"base URL with the scheme ftp", []string{"-base-url", "ftp://example.org"}, "-base-url"},
		{"empty server name", []string{"-server-name", ""}, "-server-name"},
		{"server name with a slash", []string{"-server-name", "a/b"}, "-server-name"},
		{"prefix with braces", []string{"-key-prefix", "{a}"}, "-key-prefix"},
		{"unknown durability", []string{"-durability", "always"}, "-durability"},
		{"durability without a number", []string{"-durability", "replicas:"}, "-durability"},
		{"durability of the embedded Redis", []string{"-durability", "replicas:1"}, "-durability needs"},
		{"unknown feature", []string{"-features", "pols"}, `unknown feature "pols", want some of ` + pushrule.FeatureNames()},
		{"invalid gateway status", []string{"-gateway-status", "42"}, "-gateway-status"},
		{"negative drain", []string{"-drain", "-1s"}, "-drain is -1s, want 0s to 1m0s"},
		{"drain of an hour", []string{"-drain", "1h"}, "-drain is 1h0m0s, want 0s to 1m0s"},
		{"drain without a unit", []string{"-drain", "6"}, "-drain"},
		{"unknown level", []string{"-log-level", "loud"}, "-log-level"},
		{"level of zap only", []string{"-log-level", "fatal"}, "-log-level"},
		{"unknown mode", []string{"-redis-mode", "magic"}, "-redis-mode"},
		{"address without mode", []string{"-redis", "127.0.0.1:6379"}, "-redis needs -redis-mode"},
		{"URL without mode", []string{"-redis", "redis://user:s3cret@host"}, "-redis needs -redis-mode"},
		{"mode without address", []string{"-redis-mode", "cluster"}, "needs -redis"},
		{"password file without mode", []string{"-redis-password-file", "x"}, "-redis-password-file needs"},
		{"master without sentinels", []string{"-redis-master", "m"}, "-redis-master"},
		{"address without port", standalone("s3cret"), "address 1"},
		{"address with a login", standalone("user:s3cret@host:6379"), "address 1"},
		{"empty address", []string{"-redis-mode", "cluster", "-redis", "127.0.0.1:6379,"}, "address 2"},
		{"two addresses", standalone("127.0.0.1:1,127.0.0.1:2"), "not understood"},
		{"two addresses in a URL", standalone("redis://h:1?addr=h:2"), "not understood"},
		{"another scheme", standalone("http://user:s3cret@host"), "redis://"},
		{"slash in a password", standalone("redis://user:s3cret/x@host"), "-redis"},
		{"slash after digits in a password", standalone("redis://:1/s3cret@host:6379"), "-redis"},
		{"number sign in a password", standalone("redis://user:1#s3cret@host"), "-redis"},
		{"question mark in a password", standalone("redis://user:1?s3cret@host"), "-redis"},
		{"percent in a password", standalone("redis://user:%s3cret@host"), "-redis"},
		{"database without a number", standalone("redis://host/s3cret"), "database"},
		{"database of a cluster", []string{"-redis-mode", "cluster", "-redis", "redis://host/1"}, "database"},
		{"unknown option", standalone("redis://host?s3cret=1"), "option"},
		{"option of another mode", standalone("redis://host?master_name=m"), "option"},
		{"certificates without TLS", standalone("redis://host?skip_verify=true"), "option"},
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
		"-redis-mode", "cluster", "-redis", "a:1", "-key-prefix", "hs1:", "-durability", "replicas:2,aof",
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
