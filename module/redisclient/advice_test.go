package redisclient

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// goodNode returns options without advice, like goodSentinels and goodCluster.
func goodNode() *redis.Options {
	return &redis.Options{ContextTimeoutEnabled: true, DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second}
}

func goodSentinels() *redis.FailoverOptions {
	return &redis.FailoverOptions{ContextTimeoutEnabled: true, DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, DialerRetries: 2}
}

func goodCluster() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		ContextTimeoutEnabled: true, DialTimeout: 1200 * time.Millisecond, ReadTimeout: time.Second, DialerRetries: 2,
		ClusterStateReloadInterval: time.Second,
	}
}

func node(change func(*redis.Options)) redis.UniversalClient {
	o := goodNode()
	change(o)
	return redis.NewClient(o)
}

func sentinels(change func(*redis.FailoverOptions)) redis.UniversalClient {
	o := goodSentinels()
	change(o)
	return redis.NewFailoverClient(o)
}

func cluster(change func(*redis.ClusterOptions)) redis.UniversalClient {
	o := goodCluster()
	change(o)
	return redis.NewClusterClient(o)
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		client redis.UniversalClient
		want   string // the options in the advice
	}{
		"a good node":             {node(func(*redis.Options) {}), ""},
		"good sentinels":          {sentinels(func(*redis.FailoverOptions) {}), ""},
		"a good cluster":          {cluster(func(*redis.ClusterOptions) {}), ""},
		"a node by default":       {redis.NewClient(&redis.Options{}), "ContextTimeoutEnabled ReadTimeout DialTimeout"},
		"sentinels by default":    {redis.NewFailoverClient(&redis.FailoverOptions{}), "ContextTimeoutEnabled ReadTimeout DialTimeout DialerRetries"},
		"a cluster by default":    {redis.NewClusterClient(&redis.ClusterOptions{}), "ContextTimeoutEnabled ReadTimeout DialTimeout DialerRetries ClusterStateReloadInterval"},
		"sentinels, as a cluster": {redis.NewFailoverClusterClient(goodSentinels()), "ClusterStateReloadInterval"},
		"a ring":                  {redis.NewRing(&redis.RingOptions{}), "Ring"},
		"an unknown client":       {struct{ redis.UniversalClient }{redis.NewClient(&redis.Options{})}, ""},
		"the longest reply":       {node(func(o *redis.Options) { o.ReadTimeout = maxTry }), ""},
		"a longer reply":          {node(func(o *redis.Options) { o.ReadTimeout = maxTry + 1 }), "ReadTimeout"},
		"a reply without limit":   {node(func(o *redis.Options) { o.ReadTimeout = -1 }), "ReadTimeout"},
		"a reply past deadlines":  {cluster(func(o *redis.ClusterOptions) { o.ReadTimeout = -2 }), "ReadTimeout"},
		"sending without limit":   {cluster(func(o *redis.ClusterOptions) { o.WriteTimeout = -1 }), "WriteTimeout"},
		"a long dial":             {cluster(func(o *redis.ClusterOptions) { o.DialTimeout = 3 * time.Second }), "DialTimeout"},
		"three dials":             {cluster(func(o *redis.ClusterOptions) { o.DialerRetries = 3 }), "DialerRetries"},
		"dials below zero":        {cluster(func(o *redis.ClusterOptions) { o.DialerRetries = -1 }), "DialerRetries"},
		"retries off":             {node(func(o *redis.Options) { o.MaxRetries = -1 }), "MaxRetries"},
		"redirects off":           {cluster(func(o *redis.ClusterOptions) { o.MaxRedirects = -1 }), "MaxRedirects"},
		"an old topology":         {cluster(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 5 * time.Second }), "ClusterStateReloadInterval"},
		"replicas":                {cluster(func(o *redis.ClusterOptions) { o.ReadOnly = true }), "ReadOnly"},
		"replicas by latency":     {cluster(func(o *redis.ClusterOptions) { o.RouteByLatency = true }), "ReadOnly"},
		"replicas at random":      {cluster(func(o *redis.ClusterOptions) { o.RouteRandomly = true }), "ReadOnly"},
		"a cache": {node(func(o *redis.Options) {
			o.ClientSideCache = redis.NewLocalCache(redis.ClientSideCacheConfig{})
		}), "ClientSideCache"},
		"a cache by config": {node(func(o *redis.Options) { o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{} }), "ClientSideCache"},
	} {
		defer c.client.Close()
		var got []string
		for _, a := range Advise(c.client) {
			got = append(got, a.Option)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestAdviceNamesTheHarmAndTheRemedy(t *testing.T) {
	t.Parallel()
	client := node(func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = 0, -1 })
	defer client.Close()
	want := []string{
		"the Redis client waits up to 5s for a reply, which leaves no time for a second try: set ReadTimeout to 1s",
		"the Redis client waits without a limit for a connection, which leaves no time for a second try: set DialTimeout to 1.2s",
	}
	found := Advise(client)
	for i, line := range want {
		if len(found) != len(want) || found[i].String() != line {
			t.Fatalf("got %v, want %q", found, want)
		}
	}
}

func TestAdviceContainsNoSecrets(t *testing.T) {
	t.Parallel()
	const secret, host = "s3cret", "192.0.2.1"
	addr := net.JoinHostPort(host, "6379")
	for _, client := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: addr, Username: secret, Password: secret}),
		redis.NewFailoverClient(&redis.FailoverOptions{MasterName: secret, SentinelAddrs: []string{addr}, SentinelPassword: secret}),
		redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Password: secret, RouteRandomly: true}),
	} {
		defer client.Close()
		for _, a := range Advise(client) {
			if line := a.String(); strings.Contains(line, secret) || strings.Contains(line, host) {
				t.Errorf("%T: %s", client, line)
			}
		}
	}
}
