package rediscommit

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestDurabilityParsesItsOwnText(t *testing.T) {
	t.Parallel()
	usual := DefaultConfig().Durability.Timeout
	const everysecTimeout = 1500 * time.Millisecond
	for text, want := range map[string]Durability{
		"none":           {Replicas: 0, AOF: false, Timeout: usual},
		"aof":            {Replicas: 0, AOF: true, Timeout: everysecTimeout},
		"replicas:1":     {Replicas: 1, AOF: false, Timeout: usual},
		"replicas:2,aof": {Replicas: 2, AOF: true, Timeout: everysecTimeout},
		"replicas:12":    {Replicas: 12, AOF: false, Timeout: usual},
	} {
		got, err := ParseDurability(text)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
		if got := want.String(); got != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	if got, err := ParseDurability("aof,replicas:2"); err != nil || got.String() != "replicas:2,aof" {
		t.Errorf("in reverse order: got %v, %v", got, err)
	}
}

func TestParseDurabilityRefusesOtherText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "None", "none,aof", "aof,none", "none,none", "aof,", ",aof", "aof,aof", "AOF", "aof ", "fsync",
		"replicas", "replicas:", "replicas:0", "replicas:-1", "replicas:x", "replicas: 1", "replicas:1.5", "replica:1",
		"replicas:1,replicas:2", "replicas:99999999999999999999", "replicas:1 aof", "2",
	} {
		if d, err := ParseDurability(text); err == nil || d != (Durability{}) {
			t.Errorf("%q: got %+v, %v", text, d, err)
		}
	}
}

func TestValidateNamesEachWrongDurabilityField(t *testing.T) {
	t.Parallel()
	const replicas, timeout = "Durability.Replicas", "Durability.Timeout"
	for _, test := range []struct {
		Durability
		faults []string
	}{
		{Durability{}, nil},
		{Durability{Timeout: -time.Second}, nil}, // unused without a guarantee
		{Durability{Replicas: 1, Timeout: time.Millisecond}, nil},
		{Durability{AOF: true, Timeout: time.Hour}, nil},
		{Durability{Replicas: -1}, []string{replicas}},
		{Durability{Replicas: 1}, []string{timeout}},
		{Durability{Replicas: 1, Timeout: time.Millisecond - 1}, []string{timeout}},
		{Durability{AOF: true}, []string{timeout}},
		{Durability{Replicas: -1, AOF: true, Timeout: -1}, []string{replicas, timeout}},
	} {
		wantFaults(t, test.Durability.Validate(), test.faults...)
	}
}

func wantFaults(t *testing.T, err error, fields ...string) {
	t.Helper()
	var got []string
	if err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	if !slices.EqualFunc(got, fields, strings.Contains) {
		t.Errorf("got error %v, want the fields %q", err, fields)
	}
}

func TestValidateNamesEachWrongConfigField(t *testing.T) {
	t.Parallel()
	const (
		prefix, operation = "KeyPrefix", "OperationTimeout is"
		replicas, timeout = "Durability.Replicas", "Durability.Timeout"
	)
	wantFaults(t, DefaultConfig().Validate())
	for _, test := range []struct {
		change func(*Config)
		faults []string
	}{
		{func(c *Config) { c.KeyPrefix = "hs1:" }, nil},
		{func(c *Config) { c.KeyPrefix = "{hs1" }, []string{prefix}},
		{func(c *Config) { c.KeyPrefix = "hs1}" }, []string{prefix}},
		{func(c *Config) { c.OperationTimeout = 0 }, []string{operation}},
		{func(c *Config) { c.OperationTimeout = -1 }, []string{operation}},
		{func(c *Config) { c.OperationTimeout = 30 * time.Second }, nil},
		{func(c *Config) { c.OperationTimeout = 30*time.Second + 1 }, []string{operation}},
		{func(c *Config) { c.Durability = Durability{Timeout: c.OperationTimeout} }, nil},
		{func(c *Config) { c.Durability = Durability{AOF: true, Timeout: c.OperationTimeout} }, []string{timeout}},
		{func(c *Config) { c.Durability = Durability{Replicas: 1, Timeout: c.OperationTimeout} }, []string{timeout}},
		{func(c *Config) { c.Durability = Durability{Replicas: 1, Timeout: c.OperationTimeout - 1} }, nil},
		{func(c *Config) { *c = Config{KeyPrefix: "{}", Durability: Durability{Replicas: -1, AOF: true}} },
			[]string{replicas, timeout, prefix, operation}},
	} {
		cfg := DefaultConfig()
		test.change(&cfg)
		wantFaults(t, cfg.Validate(), test.faults...)
	}
}

type foreign struct{ redis.UniversalClient }

var (
	singleClient = func(readTimeout time.Duration) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: readTimeout})
	}
	clusterClient = func(readTimeout time.Duration) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: readTimeout})
	}
	sentinelClient = func(readTimeout time.Duration) redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "master", SentinelAddrs: []string{"127.0.0.1:1"}, ReadTimeout: readTimeout,
		})
	}
	ringClient  = func(time.Duration) redis.UniversalClient { return redis.NewRing(&redis.RingOptions{}) }
	otherClient = func(time.Duration) redis.UniversalClient { return foreign{singleClient(0)} }
)

func TestDurabilityRefusesClientsThatCannotWait(t *testing.T) {
	t.Parallel()
	required := Durability{Replicas: 1, Timeout: time.Second}
	for _, test := range []struct {
		name   string
		client func(readTimeout time.Duration) redis.UniversalClient
		Durability
		readTimeout time.Duration
		fault       string // empty for none
	}{
		{"ring without durability", ringClient, Durability{}, 0, ""},
		{"unknown client without durability", otherClient, Durability{}, 0, ""},
		{"ring", ringClient, required, 0, "*redis.Ring"},
		{"unknown client", otherClient, required, 0, "foreign"},
		{"single, default read timeout", singleClient, required, 0, ""},
		{"cluster, default read timeout", clusterClient, required, 0, ""},
		{"sentinel, default read timeout", sentinelClient, required, 0, ""},
		{"single, no read timeout", singleClient, required, -1, ""},
		{"single, same read timeout", singleClient, required, time.Second, "ReadTimeout, 1s"},
		{"cluster, same read timeout", clusterClient, required, time.Second, "ReadTimeout, 1s"},
		{"sentinel, shorter read timeout", sentinelClient, required, time.Millisecond, "ReadTimeout, 1ms"},
		{"single without durability, shorter read timeout", singleClient, Durability{Timeout: time.Second}, time.Millisecond, ""},
		{"single, long wait", singleClient, Durability{AOF: true, Timeout: time.Hour}, 0, "ReadTimeout"},
		{"single, too short for a late server", singleClient, required, 1200 * time.Millisecond, "takes up to 1.2s"},
		{"single, long enough for a late server", singleClient, required, 1201 * time.Millisecond, ""},
		{"cluster, too short for two late waits", clusterClient, Durability{Replicas: 1, AOF: true, Timeout: time.Second}, 1400 * time.Millisecond, "takes up to 1.4s"},
		{"cluster, long enough for two late waits", clusterClient, Durability{Replicas: 1, AOF: true, Timeout: time.Second}, 1401 * time.Millisecond, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := test.client(test.readTimeout)
			defer client.Close()
			err := test.CheckClient(client)
			if (err != nil) != (test.fault != "") || err != nil && !strings.Contains(err.Error(), test.fault) {
				t.Errorf("got error %v, want %q", err, test.fault)
			}
		})
	}
}

func knowsWAITAOF(t *testing.T, client redis.UniversalClient) bool {
	t.Helper()
	info, err := client.Command(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, found := info["waitaof"]
	return found
}

func requireWAITAOF(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	if !knowsWAITAOF(t, client) {
		t.Skip("WAITAOF needs Redis 7.2: name another server in REDIS_SERVER")
	}
}

func TestCheckRequiresAOFOnEveryMaster(t *testing.T) {
	t.Parallel()
	requireWAITAOF(t, redistest.Single(t).Client(t))
	cluster := redistest.Cluster(t, 3, 0, "--appendonly", "yes")
	client := cluster.Client(t)
	d := Durability{AOF: true, Timeout: time.Second}
	if shortages, err := d.Check(t.Context(), client); err != nil || len(shortages) != 0 {
		t.Errorf("got %q, %v", shortages, err)
	}
	last := cluster.Masters()[2]
	if err := last.Client(t).ConfigSet(t.Context(), "appendonly", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Check(t.Context(), client); err == nil || !strings.Contains(err.Error(), last.Addr()) {
		t.Errorf("got error %v, want one with %s", err, last.Addr())
	}
}

func TestCheckReportsMissingReplicas(t *testing.T) {
	t.Parallel()
	pair := replicated(t, 1)
	client := pair.Master().Client(t)
	check := func(replicas int, want ...string) {
		t.Helper()
		got, err := Durability{Replicas: replicas, Timeout: time.Second}.Check(t.Context(), client)
		if err != nil || !slices.EqualFunc(got, want, strings.Contains) {
			t.Errorf("%d replicas: got %q, %v, want %q", replicas, got, err, want)
		}
	}
	check(0)
	check(1)
	check(2, pair.Master().Addr()+" has 1 replicas online")
	pair.Replicas()[0].Stop()
	deadline := time.Now().Add(never)
	for strings.Contains(client.Info(t.Context(), "replication").Val(), "state=online") && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	check(1, pair.Master().Addr()+" has 0 replicas online")
}

func TestCheckAsksEachMasterForReplicas(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	shortages, err := Durability{Replicas: 1, Timeout: time.Second}.Check(t.Context(), cluster.Client(t))
	if err != nil {
		t.Error(err)
	}
	for _, master := range cluster.Masters() {
		if !slices.ContainsFunc(shortages, func(s string) bool { return strings.Contains(s, master.Addr()) }) {
			t.Errorf("got shortages %q, want one of %s", shortages, master.Addr())
		}
	}
}

func TestCheckAsksNothingWithoutADurability(t *testing.T) {
	t.Parallel()
	if shortages, err := (Durability{}).Check(t.Context(), nil); err != nil || len(shortages) != 0 {
		t.Errorf("got %q, %v", shortages, err)
	}
}

func TestCheckDoesNotTakeASilentServerForAnOldOne(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), ContextTimeoutEnabled: true})
	defer client.Close()
	for _, d := range []Durability{{AOF: true}, {Replicas: 1}} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		shortages, err := d.Check(ctx, client)
		cancel()
		if err != nil || len(shortages) != 1 || strings.Contains(shortages[0], "7.2") || !strings.Contains(shortages[0], client.Options().Addr) {
			t.Errorf("%s: got shortages %q, error %v", d, shortages, err)
		}
	}
}
