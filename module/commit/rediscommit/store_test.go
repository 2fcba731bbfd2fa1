package rediscommit

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

const never = 30 * time.Second

const (
	alice    mxid.UserID = "@alice:example.org"
	aliceKey string      = "text:{@alice:example.org}"
)

var (
	errUnreadable = fault.New(fault.Database, "unreadable")
	errRefused    = fault.New(fault.InvalidParam, "refused")
)

// texts is a codec of strings. Each is stored as a line with its revision after it.
func texts() Codec[string, string] {
	return Codec[string, string]{
		Name:    "texts",
		Read:    readText,
		Current: TextCurrent[string],
		Same:    func(old commit.Snapshot[string, string], next string) bool { return old.Found && old.Value == next },
		Swap: `
			if redis.call('GET', KEYS[1]) ~= (ARGV[2] or false) then return 0 end
			redis.call('SET', KEYS[1], ARGV[1])
			return 1`,
		Prepare:    newText,
		Bytes:      TextBytes[string],
		Unreadable: func(cause error) error { return fault.Wrap(fault.Database, "unreadable", cause) },
	}
}

var readText = Query[commit.Snapshot[string, string]]{
	Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder { return client.Get(ctx, key) },
	Read: func(_ string, answer redis.Cmder) (s commit.Snapshot[string, string], err error) {
		raw, found, err := Text(answer)
		if err != nil || !found {
			return s, err
		}
		text, revision, found := strings.Cut(raw, "\n")
		if !found {
			return s, errUnreadable
		}
		return commit.Snapshot[string, string]{Found: true, Value: text, Revision: stored.ReadRevision(revision), Raw: raw}, nil
	},
}

func newText(u commit.Update[string, string]) Swap[string, string] {
	raw := string(u.Revision.AppendJSON([]byte(u.Next + "\n")))
	swap := Swap[string, string]{Args: []any{raw}, Now: commit.Snapshot[string, string]{Found: true, Value: u.Next, Revision: u.Revision, Raw: raw}}
	if u.Old.Found {
		swap.Args = append(swap.Args, u.Old.Raw)
	}
	return swap
}

type userTexts struct{ *Users[string, string] }

func (u userTexts) Load(ctx context.Context, user mxid.UserID) (string, error) {
	now, err := u.Users.Load(ctx, user)
	return now.Value, err
}

func (u userTexts) Update(ctx context.Context, user mxid.UserID, edit func(*string) error) error {
	_, err := u.Users.Update(ctx, user, edit)
	return err
}

func textStore(t *testing.T, client redis.UniversalClient, change func(*Config)) userTexts {
	t.Helper()
	cfg := DefaultConfig()
	change(&cfg)
	store, err := New(client, cfg, Options{}, texts())
	if err != nil {
		t.Fatal(err)
	}
	return userTexts{NewUsers(store, func(user mxid.UserID) string { return "text:{" + string(user) + "}" })}
}

func defaults(*Config) {}

func single(t *testing.T) (*redistest.Server, *redis.Client) {
	t.Helper()
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	return server, client
}

func to(text string) func(*string) error {
	return func(s *string) error { *s = text; return nil }
}

func wantText(t *testing.T, s userTexts, want string) {
	t.Helper()
	if got, err := s.Load(t.Context(), alice); err != nil || got != want {
		t.Errorf("loaded %q, %v, want %q", got, err, want)
	}
}

func wantKind(t *testing.T, err error, want fault.Kind) {
	t.Helper()
	if err == nil || fault.KindOf(err) != want {
		t.Errorf("got error %v, want one of kind %v", err, want)
	}
}

func TestStoreKeepsAValueForEachUser(t *testing.T) {
	t.Parallel()
	_, client := single(t)
	store := textStore(t, client, func(c *Config) { c.KeyPrefix = "hs1:" })
	wantText(t, store, "")
	for _, text := range []string{"a", "b", "", "c"} {
		if err := store.Update(t.Context(), alice, to(text)); err != nil {
			t.Fatal(err)
		}
		wantText(t, store, text)
	}
	if err := store.Update(t.Context(), "@bob:example.org", to("x")); err != nil {
		t.Fatal(err)
	}
	wantText(t, store, "c")
	if keys := slices.Sorted(slices.Values(client.Keys(t.Context(), "*").Val())); len(keys) != 2 || keys[0] != "hs1:"+aliceKey {
		t.Errorf("got keys %q", keys)
	}
}

func TestStoppedServerIsUnavailable(t *testing.T) {
	t.Parallel()
	server, client := single(t)
	store := textStore(t, client, func(c *Config) { c.OperationTimeout = 300 * time.Millisecond })
	server.Stop()
	_, err := store.Load(t.Context(), alice)
	wantKind(t, err, fault.Unavailable)
	wantKind(t, store.Update(t.Context(), alice, to("a")), fault.Unavailable)
}

func TestOperationTimeoutIsUnavailable(t *testing.T) {
	t.Parallel()
	_, client := single(t)
	store := textStore(t, client, func(c *Config) { c.OperationTimeout = 10 * time.Millisecond })
	begun, proceed, first := make(chan struct{}), make(chan struct{}), make(chan error)
	update := func() {
		first <- store.Update(t.Context(), alice, func(*string) error {
			close(begun)
			<-proceed
			return errRefused
		})
	}
	go update()
	for isBegun := false; !isBegun; {
		select {
		case <-begun:
			isBegun = true
		case err := <-first: // on a busy machine, the time is over before the edit
			wantKind(t, err, fault.Unavailable)
			go update()
		}
	}
	wantKind(t, store.Update(t.Context(), alice, to("a")), fault.Unavailable)
	close(proceed)
	if err := <-first; err != errRefused {
		t.Errorf("got error %v", err)
	}
}

func TestNewNamesEachWrongSetting(t *testing.T) {
	t.Parallel()
	cfg := Config{KeyPrefix: "{", OperationTimeout: time.Second, Durability: Durability{Replicas: 1, Timeout: time.Minute}}
	_, client := single(t)
	_, err := New(client, cfg, Options{}, texts())
	for _, part := range []string{"texts", "KeyPrefix", "OperationTimeout", "ReadTimeout"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %s: %v", part, err)
		}
	}
}

// revisionOf returns alice's text and write number, like "text, write 2".
func revisionOf(t *testing.T, client *redis.Client) string {
	t.Helper()
	raw, err := client.Get(t.Context(), aliceKey).Result()
	if err != nil {
		t.Fatal(err)
	}
	return aRevision.ReplaceAllString(raw, ", write $2")
}

func TestUnchangedValueIsWrittenOnlyToConfirmIt(t *testing.T) {
	t.Parallel()
	pair := replicated(t, 1)
	client := pair.Master().Client(t)
	for _, test := range []struct {
		durability Durability
		want       string
	}{
		{Durability{}, "a, write 1"},
		{oneReplica, "a, write 3"},
	} {
		client.Del(t.Context(), aliceKey)
		store := textStore(t, client, func(c *Config) { c.Durability = test.durability })
		for range 3 {
			if err := store.Update(t.Context(), alice, to("a")); err != nil {
				t.Fatal(err)
			}
		}
		if got := revisionOf(t, client); got != test.want {
			t.Errorf("%s: stored is %q, want %q", test.durability, got, test.want)
		}
	}
}

func TestUnconfirmedUpdateSucceedsWhenRepeated(t *testing.T) {
	t.Parallel()
	pair := replicated(t, 1)
	master, replica := pair.Master().Client(t), pair.Replicas()[0]
	store := textStore(t, master, func(c *Config) { c.Durability = Durability{Replicas: 1, Timeout: 50 * time.Millisecond} })
	patient := textStore(t, master, func(c *Config) { c.Durability = oneReplica })
	if err := patient.Update(t.Context(), alice, to("a")); err != nil {
		t.Fatal(err)
	}
	pause(t, replica)
	for range 2 {
		wantKind(t, store.Update(t.Context(), alice, to("b")), fault.Unavailable)
		wantText(t, store, "b")
	}
	replica.Resume()
	before := revisionOf(t, master)
	if err := patient.Update(t.Context(), alice, to("b")); err != nil {
		t.Error(err)
	}
	after := revisionOf(t, master)
	if got := revisionOf(t, replica.Client(t)); got != after || after == before {
		t.Errorf("the replica has %q, the master %q, earlier %q", got, after, before)
	}
}

func TestUpdateWithALostReplyIsConfirmedByAnotherWrite(t *testing.T) {
	t.Parallel()
	pair := replicated(t, 1)
	for _, test := range []struct {
		name    string
		command string
		retries int // as in redis.Options
	}{
		{"script, client that retries", "EVALSHA", 0},
		{"script, client without retries", "EVALSHA", -1},
		{"wait, client that retries", "WAIT", 0},
		{"wait, client without retries", "WAIT", -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			pair.Master().Client(t).Del(t.Context(), aliceKey)
			proxy := redistest.NewProxy(t, pair.Master())
			client := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = test.retries })
			store := textStore(t, client, func(c *Config) { c.Durability = oneReplica })
			if err := store.Update(t.Context(), alice, to("a")); err != nil {
				t.Fatal(err)
			}
			lost := proxy.CutReply(1, test.command)
			if err := store.Update(t.Context(), alice, to("b")); err != nil {
				t.Error(err)
			}
			<-lost.Struck()
			const want = "b, write 3"
			if got := revisionOf(t, pair.Replicas()[0].Client(t)); got != want {
				t.Errorf("the replica has %q, want %q", got, want)
			}
		})
	}
}
