package redisclient

import (
	"context"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const usualOperation = 5 * time.Second

// goodNode gives no advice, nor do the other good options. The demo host has
// these.
func goodNode() *redis.Options {
	return &redis.Options{
		Addr: "192.0.2.1:6379", Password: "s3cret",
		DialTimeout: 1200 * time.Millisecond, DialerRetries: 2,
		ReadTimeout: time.Second, WriteTimeout: time.Second,
		ContextTimeoutEnabled: true,
	}
}

func goodSentinels() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName: "mymaster", SentinelAddrs: []string{"192.0.2.1:26379"}, SentinelPassword: "s3cret",
		DialTimeout: 1200 * time.Millisecond, DialerRetries: 2,
		ReadTimeout: time.Second, WriteTimeout: time.Second,
		ContextTimeoutEnabled: true,
	}
}

func goodCluster() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs: []string{"192.0.2.1:6379"}, Password: "s3cret",
		DialTimeout: 1200 * time.Millisecond, DialerRetries: 2,
		ReadTimeout: time.Second, WriteTimeout: time.Second,
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: time.Second,
	}
}

// advise closes the client, which has no connections.
func advise(t *testing.T, client redis.UniversalClient, operation time.Duration) []Advice {
	t.Helper()
	t.Cleanup(func() { client.Close() })
	return Advise(client, operation)
}

func options(found []Advice) string {
	var names []string
	for _, a := range found {
		names = append(names, a.Option)
	}
	return strings.Join(names, " ")
}

func TestAdviceOnANode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*redis.Options)
		want   string // the options advised on
	}{
		"as it should be":           {func(*redis.Options) {}, ""},
		"deadlines ignored":         {func(o *redis.Options) { o.ContextTimeoutEnabled = false }, "ContextTimeoutEnabled"},
		"reply by default":          {func(o *redis.Options) { o.ReadTimeout = 0 }, "ReadTimeout"},
		"reply within half":         {func(o *redis.Options) { o.ReadTimeout = 2500 * time.Millisecond }, ""},
		"reply past half":           {func(o *redis.Options) { o.ReadTimeout = 2501 * time.Millisecond }, "ReadTimeout"},
		"reply without limit":       {func(o *redis.Options) { o.ReadTimeout = -1 }, "ReadTimeout"},
		"reply past deadlines":      {func(o *redis.Options) { o.ReadTimeout = -2 }, "ReadTimeout"},
		"sending follows the reply": {func(o *redis.Options) { o.WriteTimeout = 0 }, ""},
		"both by default":           {func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = 0, 0 }, "ReadTimeout"},
		"sending long":              {func(o *redis.Options) { o.WriteTimeout = 3 * time.Second }, "WriteTimeout"},
		"sending without limit":     {func(o *redis.Options) { o.WriteTimeout = -1 }, "WriteTimeout"},
		"sending past deadlines":    {func(o *redis.Options) { o.WriteTimeout = -2 }, "WriteTimeout"},
		"dial by default":           {func(o *redis.Options) { o.DialTimeout = 0 }, "DialTimeout"},
		"dial within half":          {func(o *redis.Options) { o.DialTimeout = 2500 * time.Millisecond }, ""},
		"dial past half":            {func(o *redis.Options) { o.DialTimeout = 2501 * time.Millisecond }, "DialTimeout"},
		"dial without limit":        {func(o *redis.Options) { o.DialTimeout = -1 }, "DialTimeout"},
		"dials by default":          {func(o *redis.Options) { o.DialerRetries = 0 }, ""},
		"dials rare":                {func(o *redis.Options) { o.DialerRetryTimeout = 2 * time.Second }, "DialerRetryTimeout"},
		"dials not so rare":         {func(o *redis.Options) { o.DialerRetryTimeout = 1250 * time.Millisecond }, ""},
		"dials rare, but only one": {func(o *redis.Options) {
			o.DialerRetries, o.DialerRetryTimeout = 1, 2*time.Second
		}, ""},
		"dials by function": {func(o *redis.Options) {
			o.DialerRetryTimeout = 2 * time.Second
			o.DialerRetryBackoff = func(int) time.Duration { return time.Millisecond }
		}, ""},
		"backoff":              {func(o *redis.Options) { o.MinRetryBackoff, o.MaxRetryBackoff = time.Second, time.Minute }, "MinRetryBackoff"},
		"backoff at its least": {func(o *redis.Options) { o.MaxRetryBackoff = time.Minute }, ""},
		"backoff with a bound": {func(o *redis.Options) { o.MinRetryBackoff = time.Minute }, ""},
		"backoff turned off":   {func(o *redis.Options) { o.MinRetryBackoff, o.MaxRetryBackoff = -1, -1 }, ""},
		"retries off":          {func(o *redis.Options) { o.MaxRetries = -1 }, "MaxRetries"},
		"one retry":            {func(o *redis.Options) { o.MaxRetries = 1 }, ""},
		"cache":                {func(o *redis.Options) { o.ClientSideCache = newCache() }, "ClientSideCache"},
		"cache by config":      {func(o *redis.Options) { o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{} }, "ClientSideCacheConfig"},
		"cache of RESP2":       {func(o *redis.Options) { o.ClientSideCache, o.Protocol = newCache(), 2 }, ""},
		"cache of a database":  {func(o *redis.Options) { o.ClientSideCache, o.DB = newCache(), 1 }, ""},
		"cache of various users": {func(o *redis.Options) {
			o.ClientSideCache = newCache()
			o.CredentialsProvider = func() (string, string) { return "", "" }
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := goodNode()
			c.change(o)
			if got := options(advise(t, redis.NewClient(o), usualOperation)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func newCache() redis.Cache {
	return redis.NewLocalCache(redis.ClientSideCacheConfig{})
}

func TestAdviceOnSentinels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*redis.FailoverOptions)
		want   string
	}{
		"as it should be":   {func(*redis.FailoverOptions) {}, ""},
		"deadlines ignored": {func(o *redis.FailoverOptions) { o.ContextTimeoutEnabled = false }, "ContextTimeoutEnabled"},
		"reply by default":  {func(o *redis.FailoverOptions) { o.ReadTimeout = 0 }, "ReadTimeout"},
		"dial by default":   {func(o *redis.FailoverOptions) { o.DialTimeout = 0 }, "DialTimeout"},
		"dials by default":  {func(o *redis.FailoverOptions) { o.DialerRetries = 0 }, "DialerRetries"},
		"dials too short":   {func(o *redis.FailoverOptions) { o.DialTimeout = time.Second }, "ReadTimeout"},
		"retries off":       {func(o *redis.FailoverOptions) { o.MaxRetries = -1 }, "MaxRetries"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := goodSentinels()
			c.change(o)
			if got := options(advise(t, redis.NewFailoverClient(o), usualOperation)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAdviceOnACluster(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*redis.ClusterOptions)
		want   string
	}{
		"as it should be":       {func(*redis.ClusterOptions) {}, ""},
		"deadlines ignored":     {func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = false }, "ContextTimeoutEnabled"},
		"reply by default":      {func(o *redis.ClusterOptions) { o.ReadTimeout = 0 }, "ReadTimeout"},
		"reply without limit":   {func(o *redis.ClusterOptions) { o.ReadTimeout = -1 }, "ReadTimeout"},
		"reply past deadlines":  {func(o *redis.ClusterOptions) { o.ReadTimeout = -2 }, "ReadTimeout"},
		"sending long":          {func(o *redis.ClusterOptions) { o.WriteTimeout = 3 * time.Second }, "WriteTimeout"},
		"dial by default":       {func(o *redis.ClusterOptions) { o.DialTimeout = 0 }, "DialTimeout"},
		"dials by default":      {func(o *redis.ClusterOptions) { o.DialerRetries = 0 }, "DialerRetries"},
		"dials below zero":      {func(o *redis.ClusterOptions) { o.DialerRetries = -1 }, "DialerRetries"},
		"three dials":           {func(o *redis.ClusterOptions) { o.DialerRetries = 3 }, "DialerRetries"},
		"two long dials":        {func(o *redis.ClusterOptions) { o.DialTimeout = 2 * time.Second }, "DialerRetries"},
		"one long dial":         {func(o *redis.ClusterOptions) { o.DialTimeout, o.DialerRetries = 2*time.Second, 1 }, ""},
		"dials rare":            {func(o *redis.ClusterOptions) { o.DialerRetryTimeout = 2 * time.Second }, "DialerRetryTimeout"},
		"backoff":               {func(o *redis.ClusterOptions) { o.MinRetryBackoff, o.MaxRetryBackoff = time.Second, time.Minute }, "MinRetryBackoff"},
		"retries of a node":     {func(o *redis.ClusterOptions) { o.MaxRetries = 3 }, ""},
		"no retries of a node":  {func(o *redis.ClusterOptions) { o.MaxRetries = -1 }, ""},
		"redirects off":         {func(o *redis.ClusterOptions) { o.MaxRedirects = -1 }, "MaxRedirects"},
		"one redirect":          {func(o *redis.ClusterOptions) { o.MaxRedirects = 1 }, ""},
		"topology by default":   {func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 0 }, "ClusterStateReloadInterval"},
		"topology old":          {func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 5 * time.Second }, "ClusterStateReloadInterval"},
		"topology new":          {func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Second }, ""},
		"slots by function":     {func(o *redis.ClusterOptions) { o.Addrs, o.ClusterSlots = nil, noSlots }, ""},
		"replicas":              {func(o *redis.ClusterOptions) { o.ReadOnly = true }, "ReadOnly"},
		"replicas by latency":   {func(o *redis.ClusterOptions) { o.RouteByLatency = true }, "RouteByLatency"},
		"replicas by chance":    {func(o *redis.ClusterOptions) { o.RouteRandomly = true }, "RouteRandomly"},
		"replicas in both ways": {func(o *redis.ClusterOptions) { o.RouteByLatency, o.RouteRandomly = true, true }, "RouteByLatency RouteRandomly"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := goodCluster()
			c.change(o)
			if got := options(advise(t, redis.NewClusterClient(o), usualOperation)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func noSlots(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }

func TestAdviceOnSentinelsAsACluster(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*redis.FailoverOptions)
		want   string
	}{
		"as it should be":    {func(*redis.FailoverOptions) {}, ""},
		"replicas":           {func(o *redis.FailoverOptions) { o.ReplicaOnly = true }, "ReplicaOnly"},
		"replicas by chance": {func(o *redis.FailoverOptions) { o.RouteRandomly = true }, "RouteRandomly"},
		"retries off":        {func(o *redis.FailoverOptions) { o.MaxRetries = -1 }, "MaxRedirects"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := goodSentinels()
			c.change(o)
			found := advise(t, redis.NewFailoverClusterClient(o), usualOperation)
			i := slices.IndexFunc(found, func(a Advice) bool { return a.Option == "ClusterStateReloadInterval" })
			if i < 0 || !strings.Contains(found[i].Remedy, "use NewFailoverClient") {
				t.Fatalf("no advice to use another client: %v", found)
			}
			if got := options(slices.Delete(found, i, i+1)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestAdviceOnOtherClients(t *testing.T) {
	t.Parallel()
	if got := options(advise(t, redis.NewRing(&redis.RingOptions{}), usualOperation)); got != "Ring" {
		t.Errorf("a Ring: got %q", got)
	}
	unknown := struct{ redis.UniversalClient }{redis.NewClient(&redis.Options{})}
	if got := advise(t, unknown, usualOperation); len(got) != 0 {
		t.Errorf("an unknown client: got %v", got)
	}
}

func TestAdviceOnDefaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		client redis.UniversalClient
		want   []string
	}{
		"NewClient": {redis.NewClient(&redis.Options{}), []string{
			"the Redis client ignores deadlines: set ContextTimeoutEnabled to true",
			"the Redis client waits up to 5s for a reply, which leaves too little of 5s for a second try: set ReadTimeout to 1s",
			"the Redis client waits up to 5s for a connection, which leaves too little of 5s for a second try: set DialTimeout to 1.2s",
		}},
		"NewFailoverClient": {redis.NewFailoverClient(&redis.FailoverOptions{}), []string{
			"the Redis client ignores deadlines: set ContextTimeoutEnabled to true",
			"the Redis client waits up to 5s for a reply, which leaves too little of 5s for a second try: set ReadTimeout to 1s",
			"the Redis client waits up to 5s for a connection, which leaves too little of 5s for a second try: set DialTimeout to 1.2s",
			"the Redis client dials a server that is gone 5 times before it turns to another: set DialerRetries to 2",
		}},
		"NewClusterClient": {redis.NewClusterClient(&redis.ClusterOptions{}), []string{
			"the Redis client ignores deadlines: set ContextTimeoutEnabled to true",
			"the Redis client waits up to 5s for a reply, which leaves too little of 5s for a second try: set ReadTimeout to 1s",
			"the Redis client waits up to 5s for a connection, which leaves too little of 5s for a second try: set DialTimeout to 1.2s",
			"the Redis client dials a server that is gone 5 times before it turns to another: set DialerRetries to 2",
			"the Redis client may notice a failover 1m0s late: set ClusterStateReloadInterval to 1s",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, a := range advise(t, c.client, usualOperation) {
				got = append(got, a.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// remedyForm is that of a remedy with a value.
var remedyForm = regexp.MustCompile(`^set (\w+) to (\S+)$`)

// obey changes the options at target to what the advice says.
func obey(t *testing.T, found []Advice, target any) {
	t.Helper()
	for _, a := range found {
		match := remedyForm.FindStringSubmatch(a.Remedy)
		if match == nil || match[1] != a.Option {
			t.Fatalf("the remedy for %s is %q", a.Option, a.Remedy)
		}
		field := reflect.ValueOf(target).Elem().FieldByName(a.Option)
		switch field.Interface().(type) {
		case bool:
			field.SetBool(match[2] == "true")
		case int:
			n, err := strconv.Atoi(match[2])
			if err != nil {
				t.Fatal(err)
			}
			field.SetInt(int64(n))
		case time.Duration:
			d, err := time.ParseDuration(match[2])
			if err != nil {
				t.Fatal(err)
			}
			field.SetInt(int64(d))
		}
	}
}

func TestWhoFollowsTheAdviceNeedsNoMore(t *testing.T) {
	t.Parallel()
	for _, operation := range []time.Duration{
		50 * time.Millisecond, 333 * time.Millisecond, time.Second, usualOperation, 7 * time.Second, 30 * time.Second,
	} {
		t.Run(operation.String(), func(t *testing.T) {
			t.Parallel()
			node := redis.Options{MaxRetries: -1, WriteTimeout: time.Minute, DialerRetryTimeout: time.Minute,
				MinRetryBackoff: time.Minute, MaxRetryBackoff: time.Minute}
			obey(t, advise(t, redis.NewClient(&node), operation), &node)
			if again := advise(t, redis.NewClient(&node), operation); len(again) != 0 {
				t.Errorf("a node: %v", again)
			}
			cluster := redis.ClusterOptions{MaxRedirects: -1, WriteTimeout: time.Minute, DialerRetryTimeout: time.Minute,
				MinRetryBackoff: time.Minute, MaxRetryBackoff: time.Minute}
			obey(t, advise(t, redis.NewClusterClient(&cluster), operation), &cluster)
			if again := advise(t, redis.NewClusterClient(&cluster), operation); len(again) != 0 {
				t.Errorf("a cluster: %v", again)
			}
		})
	}
}

func TestAdviceSuitsTheOperationTimeout(t *testing.T) {
	t.Parallel()
	node := &redis.Options{ContextTimeoutEnabled: true}
	if found := advise(t, redis.NewClient(node), 10*time.Second); len(found) != 0 {
		t.Errorf("5 s of 10 s are too long: %v", found)
	}
	found := advise(t, redis.NewClient(goodNode()), time.Second)
	if got := options(found); got != "ReadTimeout DialTimeout" {
		t.Errorf("within 1 s: got %q", got)
	}
	// A node of a cluster must not keep a failover from being noticed.
	cluster := goodCluster()
	cluster.ReadTimeout, cluster.WriteTimeout = 4*time.Second, 4*time.Second
	found = advise(t, redis.NewClusterClient(cluster), 30*time.Second)
	if got := options(found); got != "ReadTimeout" || !strings.Contains(found[0].Fault, "failover") {
		t.Errorf("4 s in a cluster: got %v", found)
	}
}

func TestAdviceTellsNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	const host = "192.0.2.1"
	addr := net.JoinHostPort(host, "6379")
	for _, client := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: addr, Username: secret, Password: secret, MaxRetries: -1}),
		redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: secret, SentinelAddrs: []string{addr}, SentinelPassword: secret, Password: secret,
		}),
		redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Password: secret, RouteRandomly: true}),
		redis.NewRing(&redis.RingOptions{Addrs: map[string]string{secret: addr}, Password: secret, HeartbeatFrequency: time.Hour}),
	} {
		found := advise(t, client, usualOperation)
		if len(found) == 0 {
			t.Errorf("no advice on %T", client)
		}
		for _, a := range found {
			if line := a.String(); strings.Contains(line, secret) || strings.Contains(line, host) {
				t.Errorf("%T: %s", client, line)
			}
		}
	}
}
