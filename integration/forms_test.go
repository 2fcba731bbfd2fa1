package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// currentForm is the number of the form in which the module stores what it keeps;
// package module/stored tells of all. A test below holds that it is what is
// stored. testdata/forms has a sample of each: the keys of a user with two rules of
// their own and one pusher, as the programs of the time have written them.
const currentForm = 7

// formSample is a sample: the values of strings, hashes and sorted sets by key.
type formSample map[string]json.RawMessage

func sampleOf(t *testing.T, form int) (sample formSample) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("testdata/forms/%d.json", form))
	if err == nil {
		err = json.Unmarshal(text, &sample)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sample
}

// load puts the sample into a Redis.
func (s formSample) load(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	for key, value := range s {
		var text string
		var fields map[string]string
		err := json.Unmarshal(value, &text)
		switch {
		case err == nil:
			err = client.Set(t.Context(), key, text, 0).Err()
		case strings.HasSuffix(key, ":writes"): // the receipts of form 1, which expired after a minute
			err = nil
		default:
			if err = json.Unmarshal(value, &fields); err == nil {
				err = client.HSet(t.Context(), key, fields).Err()
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
}

// formStores are the stores of a host of today.
type formStores struct {
	rules   *rulestore.Store
	pushers *pusherstore.Store
	index   *pusherstore.Index
}

func newFormStores(t *testing.T, client redis.UniversalClient) (s formStores) {
	t.Helper()
	var errs [3]error
	s.rules, errs[0] = rulestore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	s.pushers, errs[1] = pusherstore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	s.index, errs[2] = pusherstore.NewIndex(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err := cmp.Or(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return s
}

// samplePusher is the key of the pusher of the samples.
func samplePusher() pusher.Key { return pusher.Key{AppID: "org.example.app", Pushkey: "a pushkey"} }

func roomIDs(rules pushrule.Ruleset) (ids []string) {
	for _, rule := range rules.List(pushrule.Room) {
		ids = append(ids, rule.ID)
	}
	return ids
}

func TestEachFormThatEverWasIsReadAndChanged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		form    int
		pushers fault.Kind // of the error that reading them gives, empty for none
		claims  int        // how many there are of the pushkey
	}{
		{form: 1},
		{form: 2},
		{form: 3, pushers: fault.Database},
		{form: 4, pushers: fault.Database},
		{form: 5, claims: 1},
		{form: 6, claims: 1},
		{form: 7, claims: 1},
	} {
		t.Run(fmt.Sprint(test.form), func(t *testing.T) {
			t.Parallel()
			server, client := embedded(t)
			sampleOf(t, test.form).load(t, client)
			s, ctx := newFormStores(t, client), t.Context()
			before, err := s.rules.Load(ctx, alice)
			if got := roomIDs(before.Rules); err != nil || !slices.Equal(got, []string{"!second:example.org", "!first:example.org"}) {
				t.Errorf("got rules %q, error %v", got, err)
			}
			after, err := s.rules.Update(ctx, alice, func(rules *pushrule.Ruleset, _ bool) error { return putRoom("!third:example.org")(rules) })
			if err != nil || before.Version < 1 || after.Version == before.Version || len(roomIDs(after.Rules)) != 3 {
				t.Errorf("got rules %q with version %d, before %d, error %v", roomIDs(after.Rules), after.Version, before.Version, err)
			}
			list, err := s.pushers.Load(ctx, alice)
			claims, indexErr := s.index.Load(ctx, samplePusher().Digest())
			if test.pushers != "" {
				was := server.HGet("pushers:{"+alice+"}", samplePusher().Field())
				setErr := module.NewService(module.Stores{Pushers: s.pushers, Pushkeys: s.index}, nil, module.Options{Policy: pusher.DefaultPolicy()}).
					Pushers().Set(ctx, alice, pusher.Pusher{Key: samplePusher(), Kind: pusher.Email, Data: "{}"}, pusher.RemoveOthers)
				if fault.KindOf(err) != test.pushers || fault.KindOf(setErr) != test.pushers {
					t.Errorf("got errors %v and %v", err, setErr)
				}
				if now := server.HGet("pushers:{"+alice+"}", samplePusher().Field()); now != was {
					t.Errorf("what cannot be read was overwritten: %s", now)
				}
				return
			}
			p, found := list.Pusher(samplePusher())
			if err != nil || indexErr != nil || !found || p.Device != "DEVICE" || len(claims.Owners()) != test.claims {
				t.Errorf("got pusher %+v, claims %v, errors %v and %v", p, claims.Owners(), err, indexErr)
			}
		})
	}
}

// The sample of the current form is what the stores write, but for times and the
// names of writers. With -update it is written.
func TestTheCurrentFormIsWhatIsStored(t *testing.T) {
	t.Parallel()
	server, client := embedded(t)
	s := newFormStores(t, client)
	service := module.NewService(module.Stores{Pushers: s.pushers, Pushkeys: s.index}, nil, module.Options{Policy: pusher.DefaultPolicy()})
	for _, id := range []string{"!first:example.org", "!second:example.org"} {
		_, err := s.rules.Update(t.Context(), alice, func(rules *pushrule.Ruleset, found bool) error {
			if !found {
				*rules = pushrule.ServerDefault(alice)
			}
			return putRoom(id)(rules)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	p := pusher.Pusher{
		Key: samplePusher(), Kind: pusher.HTTP, AppDisplayName: "App", DeviceDisplayName: "Phone", Lang: "en", Device: "DEVICE",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}
	for range 2 {
		if err := service.Pushers().Set(t.Context(), alice, p, pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
	}
	dump := map[string]any{}
	for _, key := range server.Keys() {
		dump[key] = valueOf(t, server, key)
	}
	text, err := json.MarshalIndent(dump, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("testdata/forms/%d.json", currentForm)
	if *update {
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || withoutTimes(string(text)+"\n") != withoutTimes(string(want)) {
		t.Errorf("stored is\n%s\nwhich is not what %s has (error %v): give the form another number", text, file, err)
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

// What a digest in a former form says of the rules is believed: its event must still be
// what would be written of it today.
func TestADigestSaysWhatItDid(t *testing.T) {
	t.Parallel()
	for form := 7; form <= currentForm; form++ {
		var text string
		if err := json.Unmarshal(sampleOf(t, form)[eventKey(alice)], &text); err != nil {
			t.Fatal(err)
		}
		e, err := stored.ProveEvent(text)
		if written := e.Text(e.Revision); err != nil || written != text || !strings.Contains(text, `,"digest":"`) {
			t.Errorf("form %d, error %v\nhas    %s\nis now %s", form, err, text, written)
		}
	}
}

// withoutTimes puts other texts in the place of times, of writers' names and of
// digests.
func withoutTimes(text string) string {
	text = regexp.MustCompile(`[1-9][0-9]{15}`).ReplaceAllString(text, "MICROSECONDS")
	text = regexp.MustCompile(`[1-9][0-9]{9}`).ReplaceAllString(text, "SECONDS")
	text = regexp.MustCompile(`\\"digest\\":\\"[0-9a-f]{8}\\"`).ReplaceAllString(text, "DIGEST")
	return regexp.MustCompile(`\\"[A-Z2-7]{13}\\":`).ReplaceAllString(text, `\"WRITER\":`)
}

// formerHost writes push rules and pushers as hosts of form 6 do.
type formerHost struct {
	t      *testing.T
	client redis.UniversalClient
	writes int64
}

// The scripts of form 6.
const (
	formerEventScript = `
if redis.call('GETRANGE', KEYS[1], ARGV[4], ARGV[5]) ~= ARGV[6] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1`

	formerHashScript = `
if redis.call('HLEN', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
if redis.call('HGET', KEYS[1], 'commit') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PERSIST', KEYS[1])
return 1`
)

// formerRevision is a revision as form 6 reads and writes it: what follows the writers
// is dropped.
var formerRevision = regexp.MustCompile(`^\{"version":(\d+),"changes":(\d+),"writers":\{((?:"[A-Z0-9]+":\[\d+,\d+\],?)+)\}(?:,.*)?\}$`)

// next is the revision of another write. It keeps the last writers.
func (h *formerHost) next(text string) (next string, version int64) {
	h.t.Helper()
	parts := formerRevision.FindStringSubmatch(text)
	if parts == nil {
		h.t.Fatalf("a host of form 6 cannot read the revision %s", text)
	}
	version, _ = strconv.ParseInt(parts[1], 10, 64)
	changes, _ := strconv.ParseInt(parts[2], 10, 64)
	writers := regexp.MustCompile(`"[A-Z0-9]+":\[\d+,\d+\]`).FindAllString(parts[3], -1)
	writers = slices.DeleteFunc(writers, func(w string) bool { return strings.HasPrefix(w, `"FORMERHOST234"`) })
	now := time.Now()
	h.writes++
	writers = append(writers, fmt.Sprintf(`"FORMERHOST234":[%d,%d]`, h.writes, now.Unix()))
	writers = writers[max(0, len(writers)-stored.MaxWriters):]
	version = max(version+1, now.UnixMicro())
	return fmt.Sprintf(`{"version":%d,"changes":%d,"writers":{%s}}`, version, changes+1, strings.Join(writers, ",")), version
}

// untilDone repeats what may lose races, as hosts do.
func (h *formerHost) untilDone(attempt func() (done bool, err error)) {
	h.t.Helper()
	for {
		done, err := attempt()
		if err != nil {
			h.t.Error(err)
		}
		if done || err != nil {
			return
		}
	}
}

// putRoom puts a rule at the top of a user's room rules.
func (h *formerHost) putRoom(user, id string) {
	h.t.Helper()
	h.untilDone(func() (bool, error) {
		old, err := h.client.Get(h.t.Context(), eventKey(user)).Result()
		if err != nil {
			return false, err
		}
		body, revision, found := strings.Cut(old, `,"commit":`)
		if !found {
			return false, fmt.Errorf("there is no revision in %s", old)
		}
		rest := body[strings.Index(body, `"room":[`)+len(`"room":[`):]
		rule := fmt.Sprintf(`{"rule_id":%q,"default":false,"enabled":true,"actions":[]}`, id)
		if rest[0] != ']' {
			rule += ","
		}
		next, version := h.next(strings.TrimSuffix(revision, "}"))
		text := strings.TrimSuffix(body, rest) + rule + rest + `,"commit":` + next + "}"
		end := len(body) + strings.LastIndex(old[len(body):], `":[`) // of the last write
		return h.client.Eval(h.t.Context(), formerEventScript, []string{eventKey(user)}, text, "push_rules_changed",
			fmt.Sprint(version, " ", user), end, len(old), old[end:]).Bool()
	})
}

// setPusher puts a pusher beside a user's others.
func (h *formerHost) setPusher(user, pushkey string) {
	h.t.Helper()
	h.untilDone(func() (bool, error) {
		fields, err := h.client.HGetAll(h.t.Context(), pushersKey(user)).Result()
		if err != nil {
			return false, err
		}
		next, _ := h.next(fields["commit"])
		p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.Email, Data: "{}", Created: int64(len(fields) + 1)}
		return h.client.Eval(h.t.Context(), formerHashScript, []string{pushersKey(user)},
			len(fields), fields["commit"], p.Field(), string(p.AppendStored(nil)), "commit", next).Bool()
	})
}

// changeBoth has a host of form 6 and one of today change rules and pushers at the
// same time.
func changeBoth(t *testing.T, former *formerHost, today formStores, user, name string, changes int) {
	t.Helper()
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range changes {
			former.putRoom(user, fmt.Sprint("former ", name, i))
			former.setPusher(user, fmt.Sprint("former ", name, i))
		}
	})
	writing.Go(func() {
		for i := range changes {
			id := fmt.Sprint("today ", name, i)
			_, err := today.rules.Update(t.Context(), mxid.UserID(user), func(rules *pushrule.Ruleset, _ bool) error { return putRoom(id)(rules) })
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: id}, Kind: pusher.Email, Data: "{}"}
			if err := today.pushers.Update(t.Context(), mxid.UserID(user), func(list *pusher.List) error { list.Set(p); return nil }); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
	})
	writing.Wait()
}

func TestHostsOfForm6AndOfTodayShareARedis(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	client := server.Client(t)
	former, today := &formerHost{t: t, client: client}, newFormStores(t, client)
	sampleOf(t, 6).load(t, client)
	const changes = 50
	changeBoth(t, former, today, alice, "", changes)
	wantFormChanges(t, newFormStores(t, client), 2*changes)
}

// wantFormChanges fails unless all changes were made, beside what the sample has.
func wantFormChanges(t *testing.T, s formStores, changes int) {
	t.Helper()
	content, err := s.rules.Load(t.Context(), alice)
	if rules := roomIDs(content.Rules); err != nil || len(rules) != changes+2 {
		t.Errorf("there are %d rules, want %d, error %v", len(rules), changes+2, err)
	}
	list, err := s.pushers.Load(t.Context(), alice)
	if err != nil || list.Len() != changes+1 {
		t.Errorf("there are %d pushers, want %d, error %v", list.Len(), changes+1, err)
	}
}

func TestARollBackToForm6KeepsWhatWasChanged(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	client := redistest.Single(t).Client(t)
	sampleOf(t, 6).load(t, client)
	former, versions := &formerHost{t: t, client: client}, []int64{0}
	changes := 0
	for range 3 {
		for range 20 { // more hosts of today than a revision remembers
			s := newFormStores(t, client)
			content, err := s.rules.Update(t.Context(), alice, func(rules *pushrule.Ruleset, _ bool) error {
				return putRoom(fmt.Sprint("today ", changes))(rules)
			})
			p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: fmt.Sprint("today ", changes)}, Kind: pusher.Email, Data: "{}"}
			err = cmp.Or(err, s.pushers.Update(t.Context(), alice, func(list *pusher.List) error { list.Set(p); return nil }))
			if err != nil {
				t.Fatal(err)
			}
			changes++
			versions = append(versions, content.Version)
		}
		former.putRoom(alice, fmt.Sprint("former ", changes))
		former.setPusher(alice, fmt.Sprint("former ", changes))
		changes++
		content, err := newFormStores(t, client).rules.Load(t.Context(), alice)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, content.Version)
	}
	if !isSorted(versions...) {
		t.Errorf("the versions went %v", versions)
	}
	wantFormChanges(t, newFormStores(t, client), changes)
}
