package api

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// storedFile has the keys of a user with two room rules and one pusher.
const storedFile = "testdata/stored.json"

// A change of the stored form needs a new number; see package stored. -update writes the file.
func TestTheStoredFormIsFixed(t *testing.T) {
	t.Parallel()
	server, client := hosttest.Embedded(t)
	rules, errRules := rulestore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	pushers, errPushers := pusherstore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	index, errIndex := pusherstore.NewIndex(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if errRules != nil || errPushers != nil || errIndex != nil {
		t.Fatal(errRules, errPushers, errIndex)
	}
	services := service.New(module.Stores{Pushers: pushers, Pushkeys: index}, nil, service.Options{Policy: pusher.DefaultPolicy()})
	for _, id := range []string{"!first:example.org", "!second:example.org"} {
		_, err := rules.Update(t.Context(), hosttest.Alice, func(rules *pushrule.Ruleset, found bool) error {
			if !found {
				*rules = pushrule.ServerDefault(hosttest.Alice)
			}
			return rules.Put(pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	p := pusher.Pusher{
		Key: pusher.Key{AppID: "org.example.app", Pushkey: "a pushkey"}, Kind: pusher.HTTP,
		AppDisplayName: "App", DeviceDisplayName: "Phone", Lang: "en", Device: "DEVICE",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}
	for range 2 {
		if err := services.Pushers().Set(t.Context(), hosttest.Alice, p, pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
	}
	dump := map[string]any{}
	for _, key := range server.Keys() {
		dump[key] = valueOf(t, server, key)
		want := time.Duration(0)
		if strings.HasPrefix(key, "pushkey:") {
			want = pusher.EntryDays * 24 * time.Hour
		}
		if ttl := server.TTL(key); ttl != want {
			t.Errorf("%s expires in %v, want %v", key, ttl, want)
		}
	}
	text, err := json.MarshalIndent(dump, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if *hosttest.Update {
		if err := os.WriteFile(storedFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(storedFile)
	if err != nil || withoutTimes(string(text)+"\n") != withoutTimes(string(want)) {
		t.Errorf("stored is\n%s\n%s differs (error %v)", text, storedFile, err)
	}
}

// The digest of an event guarantees that its rules are canonical, without another check.
func TestADigestMeansThatTheRulesAreCanonical(t *testing.T) {
	t.Parallel()
	var dump map[string]any
	file, err := os.ReadFile(storedFile)
	if err == nil {
		err = json.Unmarshal(file, &dump)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, _ := dump[hosttest.EventKey(hosttest.Alice)].(string)
	e, err := stored.ReadEvent(text)
	if err != nil {
		t.Fatal(err)
	}
	set, err := pushrule.Read(e.Rules.JSON())
	if written := e.Text(e.Revision); err != nil || !set.IsCanonical() || written != text || !strings.Contains(text, `,"digest":"`) {
		t.Errorf("error %v\nhas    %s\nis now %s", err, text, written)
	}
}

func valueOf(t *testing.T, server *miniredis.Miniredis, key string) any {
	t.Helper()
	if server.Type(key) == "string" {
		text, err := server.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	names, err := server.HKeys(key)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	fields := map[string]string{}
	for _, name := range names {
		fields[name] = server.HGet(key, name)
	}
	return fields
}

// withoutTimes replaces times, names of writers, and digests by constant texts.
func withoutTimes(text string) string {
	text = regexp.MustCompile(`[1-9][0-9]{15}`).ReplaceAllString(text, "MICROSECONDS")
	text = regexp.MustCompile(`\\"digest\\":\\"[0-9a-f]{8}\\"`).ReplaceAllString(text, "DIGEST")
	return regexp.MustCompile(`\\"[A-Z2-7]{13}\\":`).ReplaceAllString(text, `\"WRITER\":`)
}
