package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// formerPusher is a pusher in a file of another server.
func formerPusher(pushkey, more string) string {
	return fmt.Sprintf(`{"app_id":"app","pushkey":%q,"kind":"http","app_display_name":"App","device_display_name":"Phone","lang":"en",`+
		`"data":{"url":"https://push.example.org/_matrix/push/v1/notify?%s"}%s}`, secret+pushkey, secret, more)
}

// formerUser is a line of such a file.
func formerUser(user mxid.UserID, global, pushers string) string {
	return fmt.Sprintf(`{"user_id":%q,"push_rules":{"global":{%s}},"pushers":[%s]}`, user, global, pushers)
}

func (b *bed) fileOf(lines ...string) string {
	b.t.Helper()
	name := filepath.Join(b.t.TempDir(), "users.jsonl")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// formerUsers are users of all sorts.
func formerUsers() []string {
	return []string{
		formerUser(alice, `"room":[{"rule_id":"!kept:example.org","default":true,"enabled":false,"actions":[]},{"rule_id":"a/b","actions":[]}],`+
			`"content":[{"rule_id":".m.rule.contains_user_name","default":true,"enabled":false,"actions":["notify"],"pattern":"alice"}],`+
			`"override":[{"rule_id":".org.other.rule","default":true,"enabled":true,"actions":[]}]`,
			formerPusher("1", `,"profile_tag":"tag","device_id":"DEV"`)+`,`+formerPusher("1", "")+`,{"app_id":"app","pushkey":"`+secret+`","kind":"http"},7`),
		formerUser(bob, ``, formerPusher("2", "")),
		`{"user_id":"@carol:example.org"}`,
		`{"user_id":"@broken:example.org","push_rules":{"global":[]},"pushers":[]}`,
	}
}

func TestImportFromBringsInUsersOfAnotherServer(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *bed{"single": onOne, "cluster": onCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.register(bob)
			file := b.fileOf(formerUsers()...)
			before := b.stored()
			rehearsed := b.want(exitProblems, "import", "-dry-run", "-from", file)
			if !maps.Equal(before, b.stored()) {
				t.Error("a dry run has changed something")
			}
			r := b.want(exitProblems, "import", "-from", file)
			if would := strings.ReplaceAll(rehearsed.stdout, "would be imported", "imported"); would != r.stdout {
				t.Errorf("the dry run told\n%s\nand it was\n%s", rehearsed.stdout, r.stdout)
			}
			want := strings.Join([]string{
				"refused\tline 1\t@alice:example.org\trule room/a/b\tRule ID containing invalid characters.",
				"refused\tline 1\t@alice:example.org\tpusher app " + string(pusher.Key{AppID: "app", Pushkey: secret}.Digest()) +
					"\tMissing parameters: app_display_name, device_display_name, lang, data",
				"refused\tline 1\t@alice:example.org\tpusher  " + string(pusher.Key{}.Digest()) + "\tMust be an object",
				"refused\tline 1\t@alice:example.org\tpusher app " + string(aPusher("1").Digest()) + "\tThe user has another pusher of this key.",
				"refused\tline 4\t@broken:example.org\tuser\tInvalid push rules account data event in database: global must be an object",
				"users: 2 imported, 1 are there, 1 refused",
				"rules of their own: 1 imported, 1 refused; default rules that there are not here: 1",
				"pushers: 1 imported, 3 refused, 0 left since the user has pushers", "",
			}, "\n")
			if r.stdout != want {
				t.Errorf("got\n%s\nwant\n%s", r.stdout, want)
			}

			content, err := b.rules.Load(t.Context(), alice)
			if err != nil {
				t.Fatal(err)
			}
			mention, _ := content.Rules.Rule(pushrule.Override, ".m.rule.is_user_mention")
			kept, found := content.Rules.Rule(pushrule.Room, "!kept:example.org")
			if mention.Enabled || !found || kept.Enabled || kept.Default {
				t.Errorf("got %s", content.Rules.JSON())
			}
			list, err := b.pushers.Load(t.Context(), alice)
			if p, found := list.Pusher(aPusher("1").Key); err != nil || !found || p.Device != "DEV" || list.Len() != 1 || len(p.Extra) != 1 {
				t.Errorf("got %s, %v", list.AppendJSON(nil), err)
			}
			if set, err := b.rules.Load(t.Context(), carol); err != nil || !set.Rules.IsCurrent(pushrule.ServerDefault(carol)) {
				t.Errorf("carol has %s, %v", set.Rules.JSON(), err)
			}
			b.want(exitOK, "check")

			// Again it changes nothing, and brings back nothing that users have removed.
			if err := b.service.Delete(t.Context(), alice, aPusher("1").Key); err != nil {
				t.Fatal(err)
			}
			stored := b.stored()
			if r := b.want(exitProblems, "import", "-from", file); !strings.Contains(r.stdout, "users: 0 imported, 3 are there, 1 refused") || !maps.Equal(stored, b.stored()) {
				t.Error(r.stdout)
			}
		})
	}
}

// What is not as it should be ends the import, with the line and without what is
// in it. What comes before is imported, what comes behind is not read.
func TestImportFromReadsStrictly(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	good, behind := formerUser(alice, ``, ``), formerUser(carol, ``, ``)
	for name, test := range map[string]struct{ line, want string }{
		"no JSON":              {secret, "line 2: Not valid JSON"},
		"an empty line":        {"", "line 2: Not valid JSON: unexpected end"},
		"no object":            {`["` + secret + `"]`, "line 2: Must be an object"},
		"no user":              {`{"pushers":[]}`, "line 2: Missing parameter: user_id"},
		"no user id":           {`{"user_id":"` + secret + `"}`, "line 2: "},
		"a user of no string":  {`{"user_id":7}`, "line 2: user_id must be a string"},
		"another member":       {`{"user_id":"@a:b","pusher":[]}`, "line 2: want the members user_id, push_rules and pushers"},
		"a member twice":       {`{"user_id":"@a:b","user_id":"@b:b"}`, "line 2: Key given twice: user_id"},
		"pushers of no array":  {`{"user_id":"@a:b","pushers":{}}`, "line 2: pushers must be an array"},
		"a lone surrogate":     {`{"user_id":"@a:b","push_rules":{"global":{"x":"\ud800"}}}`, "line 2: Not valid JSON"},
		"something behind":     {`{"user_id":"@a:b"} {}`, "line 2: Not valid JSON"},
		"two on a line":        {formerUser(bob, ``, ``) + `,` + formerUser(bob, ``, ``), "line 2: Not valid JSON"},
		"the header of export": {`{"pushctl_archive":1,"created":"x","redis":"x","key_prefix":""}`, "line 2: the file is one of export"},
	} {
		t.Run(name, func(t *testing.T) {
			b.flush()
			r := b.want(exitFailure, "import", "-from", b.fileOf(good, test.line, behind))
			if !strings.HasPrefix(r.stderr, "pushctl: "+test.want) || !strings.Contains(r.stderr, "(nothing behind it was read)") || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("got %s", r.stderr)
			}
			if b.version(alice) == 0 || b.version(carol) != 0 || !strings.Contains(r.stdout, "users: 1 imported") {
				t.Errorf("got %s", r.stdout)
			}
		})
	}
	for _, args := range [][]string{
		{"import"}, {"import", "-from"}, {"import", "-from", filepath.Join(t.TempDir(), "none")}, {"import", "-from", os.DevNull, "FILE"},
		{"import", "-overwrite", "-from", os.DevNull}, {"import", "-dry-run", os.DevNull}, {"import", "-from", os.DevNull, "-allowed-prefixes", "10.0.0.1"},
	} {
		if r := b.ctl(args...); r.status != exitFailure {
			t.Errorf("%q: status %d, %s", args, r.status, r.stdout)
		}
	}
	b.want(exitOK, "import", "-from", os.DevNull)
}

// A gateway in the hosts' own network is as they allow it.
func TestImportFromHasThePolicyOfTheHosts(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	local := strings.ReplaceAll(formerPusher("1", ""), "https://push.example.org", "http://10.1.2.3:5000")
	file := b.fileOf(formerUser(alice, ``, local))
	b.want(exitProblems, "import", "-dry-run", "-from", file)
	b.want(exitProblems, "import", "-dry-run", "-allow-http", "-from", file)
	b.want(exitOK, "import", "-allow-http", "-allowed-prefixes", "127.0.0.0/8,10.0.0.0/8", "-from", file)

	b.flush()
	mail := strings.NewReplacer(`"http"`, `"email"`, `"app_id":"app"`, `"app_id":"m.email"`).Replace(formerPusher("1", ""))
	file = b.fileOf(formerUser(alice, ``, mail))
	b.want(exitProblems, "import", "-dry-run", "-from", file)
	b.want(exitOK, "import", "-email", "-from", file)
	if list, err := b.pushers.Load(t.Context(), alice); err != nil || list.Len() != 1 || list.All()[0].Kind != pusher.Email {
		t.Errorf("got %s, %v", list.AppendJSON(nil), err)
	}
}

// An import that was interrupted is finished by the same call.
func TestAnInterruptedImportFromGoesOn(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	const users = 600
	var lines []string
	for n := range users {
		lines = append(lines, formerUser(mxid.UserID(fmt.Sprintf("@user%d:example.org", n)),
			`"room":[{"rule_id":"!kept:example.org","actions":[]}]`, formerPusher(fmt.Sprint(n), "")))
	}
	file := b.fileOf(lines...)
	firstIsDone := func() bool {
		content, _ := b.rules.Load(t.Context(), "@user0:example.org")
		return content.Found()
	}
	b.interrupt(firstIsDone, "import", "-quiet", "-from", file)
	r := b.want(exitOK, "import", "-quiet", "-from", file)
	for n := range users {
		user := mxid.UserID(fmt.Sprintf("@user%d:example.org", n))
		content, err := b.rules.Load(t.Context(), user)
		list, listErr := b.pushers.Load(t.Context(), user)
		if _, found := content.Rules.Rule(pushrule.Room, "!kept:example.org"); !found || list.Len() != 1 || err != nil || listErr != nil {
			t.Fatalf("%s has %s and %d pushers, %v, %v", user, content.Rules.JSON(), list.Len(), err, listErr)
		}
	}
	if strings.Contains(r.stdout, fmt.Sprintf("users: %d imported", users)) {
		t.Errorf("nothing was imported by the interrupted call: %s", r.stdout)
	}
	if r := b.want(exitOK, "import", "-from", file); !strings.Contains(r.stdout, fmt.Sprintf("users: 0 imported, %d are there, 0 refused", users)) {
		t.Error(r.stdout)
	}
}

func TestImportFromReadsStdin(t *testing.T) { // not in parallel: it takes the place of stdin
	b := onOne(t)
	file, err := os.Open(b.fileOf(formerUsers()...))
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	os.Stdin = file
	defer func() {
		os.Stdin = stdin
		file.Close()
	}()
	if r := b.want(exitProblems, "import", "-from", "-"); !strings.Contains(r.stdout, "users: 3 imported") {
		t.Error(r.stdout)
	}
}
