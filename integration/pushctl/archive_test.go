package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
)

func onSentinel(t *testing.T) *fixture {
	t.Helper()
	servers := redistest.Sentinel(t)
	return newFixture(t, "-redis-mode", "sentinel", "-redis", "redis://"+servers.Addr()+"?master_name="+url.QueryEscape(servers.MasterName()))
}

func (b *fixture) flush() {
	b.t.Helper()
	for _, master := range b.masters() {
		if err := master.FlushAll(b.t.Context()).Err(); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestExportFlushImportGivesTheSameAnswers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *fixture{"single": onOne, "cluster": onCluster, "sentinel": onSentinel} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			users := []mxid.UserID{alice, bob, carol}
			for i := range 60 {
				users = append(users, mxid.UserID(fmt.Sprintf("@user%d:example.org", i)))
			}
			b.register(users...)
			b.set(bob, "second")
			b.set(alice, "second")
			b.store("@formed:example.org", ` {"x":[1.0],"content":{"global":{"room":[]},"y":2}} `)
			users = append(users, "@formed:example.org")
			before, version := b.answers(users...), b.version(alice)

			file := filepath.Join(t.TempDir(), "export")
			b.want(exitOK, "export", file)
			b.flush()
			b.want(exitOK, "import", file)
			if after := b.answers(users...); !maps.Equal(before, after) {
				t.Errorf("got %v, want %v", after, before)
			}
			if b.version(alice) <= version {
				t.Errorf("version %d after %d", b.version(alice), version)
			}
			if got := b.client.Get(t.Context(), b.keys.Rules("@formed:example.org")).Val(); !strings.Contains(got, `"x":[1.0]`) || !strings.Contains(got, `"y":2`) {
				t.Errorf("got %s", got)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}

			// A second import keeps later changes of users.
			stored := b.stored()
			r := b.want(exitOK, "import", file)
			if !strings.HasPrefix(r.stdout, "0 values stored, 127 unchanged") || !maps.Equal(stored, b.stored()) {
				t.Error(r.stdout)
			}
			b.editRules(alice, func(rules *pushrule.Ruleset) error { return rules.Delete(pushrule.Room, "!room:example.org") })
			changed := b.answers(users...)
			r = b.want(exitProblems, "import", file)
			if lines := b.want(exitProblems, "import", file, "-json").stdout; !strings.Contains(lines, `{"outcome":"kept","value":"push rules","name":"`+string(alice)+`"}`+"\n") ||
				!regexp.MustCompile(`\n\{"stored":0,"unchanged":\d+,"replaced":0,"kept":[1-9]\d*,"unreadable":0\}\n$`).MatchString(lines) {
				t.Error(lines)
			}
			if !strings.Contains(r.stdout, "kept\tpush rules\t"+string(alice)) || !maps.Equal(changed, b.answers(users...)) {
				t.Error(r.stdout)
			}
			version = b.version(alice)
			b.want(exitOK, "import", "-overwrite", file)
			if !maps.Equal(before, b.answers(users...)) || b.version(alice) <= version {
				t.Errorf("version %d after %d", b.version(alice), version)
			}
		})
	}
}

// A file of repair -save has damaged values, which must not come back as stored values.
func TestUnreadableValuesStayInTheFile(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	b.store(alice, "no JSON \xff")
	b.do("HSET", b.keys.Pushers(bob), `["a","\xff"]`, "\xff")
	b.do("HSET", b.keys.Pushers(carol), `["a","b"]`, secret)
	export, saved := filepath.Join(t.TempDir(), "export"), filepath.Join(t.TempDir(), "saved")
	b.want(exitOK, "export", export)
	b.want(exitOK, "repair", "-yes", "-reset-damaged", "-save", saved)
	b.want(exitOK, "check")
	for _, file := range []string{saved, export} {
		for _, args := range [][]string{{"import", file}, {"import", "-overwrite", file}} {
			r := b.want(exitProblems, args...)
			for _, want := range []string{
				"unreadable\tpush rules\t@alice:example.org\n", "unreadable\tpushers\t@bob:example.org\n",
				"unreadable\tpushers\t@carol:example.org\n", "3 left in the file that cannot be read\n",
			} {
				if !strings.Contains(r.stdout, want) {
					t.Errorf("%s: want %q in\n%s", args, want, r.stdout)
				}
			}
			b.want(exitOK, "check")
		}
		b.flush() // the file of the export has the rest
	}
	if n := b.client.HLen(t.Context(), b.keys.Pushers(bob)).Val(); n != 0 {
		t.Errorf("%d fields after the flush", n)
	}
	b.want(exitProblems, "import", export)
	if keys, err := b.client.HKeys(t.Context(), b.keys.Pushers(bob)).Result(); err != nil || len(keys) != 2 {
		t.Errorf("got %q, want bob's readable pusher and the revision", keys)
	}
}

func TestAnArchiveOfAnotherVersionIsNotDamaged(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	var later bytes.Buffer
	zip := gzip.NewWriter(&later)
	fmt.Fprintln(zip, `{"pushctl_archive":2,"more":true}`)
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "later")
	if err := os.WriteFile(file, later.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := b.want(exitFailure, "import", file); strings.Contains(r.stderr, "damaged") || !strings.Contains(r.stderr, "version of pushctl") {
		t.Error(r.stderr)
	}
}

// An archive has no entries of pushkeys.
func TestATakenPusherDoesNotComeBackFromAnArchive(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	if err := b.service.Set(t.Context(), bob, aPusher(string(alice)), pusher.RemoveOthers); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "export")
	b.want(exitOK, "export", file)
	b.flush()
	b.want(exitOK, "import", file)
	b.want(exitOK, "check")
	for user, want := range map[mxid.UserID]int{alice: 0, bob: 2} {
		if list, err := b.service.List(t.Context(), user); err != nil || list.Len() != want {
			t.Errorf("%s has %d pushers, %v, want %d", user, list.Len(), err, want)
		}
	}
}

// A host that read a value before an import must read it again before it writes, even if the
// import stores the same value.
func TestALateChangeHasNoEffectAfterAnImport(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	file := filepath.Join(t.TempDir(), "export")
	b.want(exitOK, "export", file)
	before := b.stored()
	b.flush()
	b.want(exitOK, "import", file)
	after := b.stored()
	for _, key := range []string{b.keys.Rules(alice), b.keys.Pushers(alice)} {
		if before[key] == after[key] || len(after[key]) == 0 {
			t.Errorf("%s has its former revision: an outdated change would take effect", key)
		}
	}
}

func TestWatchersReceiveImportedChanges(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	file := filepath.Join(t.TempDir(), "export")
	b.want(exitOK, "export", file)
	b.flush()
	heard, watching := make(chan mxid.UserID, 10), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.rules.Watch(ctx, func() { close(watching) }, func(c module.Change) { heard <- c.User })
	}()
	<-watching
	b.want(exitOK, "import", file)
	select {
	case user := <-heard:
		if user != alice {
			t.Errorf("received a change of %s", user)
		}
	case <-time.After(15 * time.Second):
		t.Error("received no change")
	}
	stop()
	<-ended
}

func TestADamagedArchiveChangesNothing(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	file := filepath.Join(t.TempDir(), "export")
	b.want(exitOK, "export", file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b.flush()
	text := unzipped(t, whole)
	lines := strings.SplitAfter(text, "\n")
	damaged := map[string][]byte{
		"empty":             nil,
		"nothing":           zipped(t, ""),
		"without a header":  zipped(t, lines[1]),
		"another format":    zipped(t, strings.Replace(text, `"pushctl_archive":1`, `"pushctl_archive":2`, 1)),
		"a member":          zipped(t, strings.Replace(text, `{"user":`, `{"x":1,"user":`, 1)),
		"half a line":       zipped(t, text[:len(text)-10]),
		"text":              []byte(text),
		"a byte behind":     append(bytes.Clone(whole), 'x'),
		"an archive behind": append(bytes.Clone(whole), whole...),
	}
	const header = 10 // bytes of gzip, without a checksum
	for i := 0; i < len(whole); i += len(whole)/40 + 1 {
		damaged[fmt.Sprintf("cut at %d", i)] = whole[:i]
		flipped := bytes.Clone(whole)
		flipped[header+i*(len(whole)-header)/len(whole)] ^= 1
		damaged[fmt.Sprintf("a bit at %d", i)] = flipped
	}
	for name, text := range damaged {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r := b.ctl("import", file)
		if want := "the end is missing"; (strings.HasPrefix(name, "cut") && name != "cut at 0" || name == "nothing") && !strings.Contains(r.stderr, want) {
			t.Errorf("%s: want %s in %s", name, want, r.stderr)
		}
		if r.status != exitFailure || r.stdout != "" || !strings.Contains(r.stderr, "archive") || len(b.stored()) != 0 {
			t.Errorf("%s: status %d, %s%s", name, r.status, r.stdout, r.stderr)
		}
	}
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	b.want(exitOK, "import", file)
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var file bytes.Buffer
	zip := gzip.NewWriter(&file)
	if _, err := io.WriteString(zip, text); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func unzipped(t *testing.T, file []byte) string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRecordsKeepEachByte(t *testing.T) {
	t.Parallel()
	empty, odd, plain := "", "a\xff\x00\u2028<b>&", "a\x00\u2028<b>&\"\\\x7f\u009b31m\u202e\ufffd\U000e0001"
	for _, r := range []record{
		{user: alice, event: &empty}, {user: alice, event: &odd}, {user: alice, event: &plain},
		{user: "@\u00e9:x", fields: map[string]string{plain: plain, "": ""}},
		{user: alice, fields: map[string]string{odd: plain, "x": odd, "revision": ""}},
	} {
		var file bytes.Buffer
		w, err := newArchive(&file, &backend{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.add(r); err != nil {
			t.Fatal(err)
		}
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
		n, err := readArchive(&file, func(_ int64, got record) error {
			if got.user != r.user || (got.event == nil) != (r.event == nil) || got.event != nil && *got.event != *r.event || !maps.Equal(got.fields, r.fields) {
				t.Errorf("got %v, want %v", got, r)
			}
			return nil
		})
		if n != 1 || err != nil {
			t.Errorf("%d records, %v", n, err)
		}
	}
}

func TestTheLastRecordOfAKeyCounts(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	file := filepath.Join(t.TempDir(), "export")
	w, err := createArchive(file, b.backend)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"content":{"global":{"x":1}}}`, `{"content":{"global":{"x":2}}}`} {
		if err := w.add(record{user: alice, event: &text}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	b.want(exitOK, "import", file)
	if got := b.answers(alice)[alice]; !strings.Contains(got, `{"global":{"x":2}}`) {
		t.Errorf("got %s", got)
	}
}

// many registers users with only the default rules, in few round trips.
func (b *fixture) many(n int) (users []mxid.UserID) {
	b.t.Helper()
	for i := range n {
		users = append(users, mxid.UserID(fmt.Sprintf("@many%d:example.org", i)))
	}
	err := parallel(b.t.Context(), users, func(ctx context.Context, user mxid.UserID) error { return b.host.EnsureDefaults(ctx, user) })
	if err != nil {
		b.t.Fatal(err)
	}
	return users
}

// interrupt starts a command and interrupts it after some progress. It wants what the command then says.
func (b *fixture) interrupt(some func() bool, want string, args ...string) {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	defer stop()
	go func() {
		for !some() && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		stop()
	}()
	if r := b.ctlIn(ctx, append(args, "-rate", "1000")...); r.status != exitInterrupted || !strings.HasSuffix(r.stderr, "pushctl: interrupted: "+want+"\n") {
		b.t.Fatalf("status %d, %s%s", r.status, r.stdout, r.stderr)
	}
}

func (b *fixture) scans() (n int) {
	for _, master := range b.masters() {
		_, rest, _ := strings.Cut(master.Info(b.t.Context(), "commandstats").Val(), "cmdstat_scan:calls=")
		number, _, _ := strings.Cut(rest, ",")
		calls, _ := strconv.Atoi(number)
		n += calls
	}
	return n
}

func (b *fixture) keyCount() (n int64) {
	for _, master := range b.masters() {
		n += master.DBSize(b.t.Context()).Val()
	}
	return n
}

func TestAnInterruptedCommandCanBeRepeated(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *fixture{"single": onOne, "cluster": onCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			users := b.many(1500)
			before, file := b.answers(users...), filepath.Join(t.TempDir(), "export")
			for _, command := range [][]string{{"check"}, {"repair"}, {"refresh-defaults"}, {"export", file}} {
				scans := b.scans()
				b.interrupt(func() bool { return b.scans() > scans+1 }, "run the same command again", command...)
			}
			if left, err := filepath.Glob(file + "*"); err != nil || len(left) != 0 {
				t.Errorf("the interrupted export left %q, %v", left, err)
			}
			b.want(exitOK, "export", file)
			if r := b.ctl("export", file); r.status != exitFailure || !strings.Contains(r.stderr, " exists") {
				t.Errorf("status %d, %s", r.status, r.stderr)
			}
			if n := recordsIn(t, file); n < 1500 || n > 1500+3*pageSize {
				t.Errorf("%d records", n)
			}

			b.flush()
			b.interrupt(func() bool { return b.keyCount() > 0 }, "finished changes stay; run the same command again for the rest", "import", file)
			if n := len(b.stored()); n == 0 || n == 1500 {
				t.Errorf("%d keys after the interruption", n)
			}
			b.want(exitOK, "import", file)
			if after := b.answers(users...); !maps.Equal(before, after) {
				t.Error("the answers differ")
			}
		})
	}
}

func TestAnExportOverwritesNoFile(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	for name, put := range map[string]func(file, other string) error{
		"link":      func(file, other string) error { return os.Symlink(other, file) },
		"file":      func(file, _ string) error { return os.WriteFile(file, nil, 0o644) },
		"part":      func(file, _ string) error { return os.WriteFile(file+".part", []byte("of a download\n"), 0o644) },
		"part link": func(file, other string) error { return os.Symlink(other, file+".part") },
	} {
		folder := t.TempDir()
		file, other := filepath.Join(folder, "export"), filepath.Join(folder, "other")
		if err := put(file, other); err != nil {
			t.Fatal(err)
		}
		if r := b.ctl("export", file); r.status != exitFailure || !strings.Contains(r.stderr, " exists") {
			t.Errorf("%s: status %d, %s", name, r.status, r.stderr)
		}
		if _, err := os.Stat(other); !os.IsNotExist(err) {
			t.Errorf("%s: export followed the link: %v", name, err)
		}
		if left, err := filepath.Glob(file + "*"); err != nil || len(left) != 1 {
			t.Errorf("%s: left %q, %v", name, left, err)
		}
	}
}

// A terminal obeys control characters, also C1, and shows texts in another order after
// bidirectional overrides.
func TestJSONForATerminalIsPrintable(t *testing.T) {
	t.Parallel()
	const text = "\x1b[31m \x7f \u0085 \u009b31m \u202e \u2066 \u200f \u061c é 漢"
	b := onOne(t)
	b.register(alice)
	b.editRules(alice, func(rules *pushrule.Ruleset) error {
		return rules.Put(pushrule.Content, "x", pushrule.Draft{Pattern: text}, pushrule.Position{})
	})
	for _, args := range [][]string{{"show", "-json", string(alice)}, {"export", "-"}} {
		out := b.want(exitOK, args...).stdout
		if args[0] == "export" {
			out = unzipped(t, []byte(out))
		}
		for _, r := range out {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s writes %U", args[0], r)
			}
		}
		if !strings.Contains(out, `\u009b31m \u202e \u2066 \u200f \u061c é 漢`) {
			t.Errorf("%s: %s", args[0], out)
		}
	}
}

func recordsIn(t *testing.T, name string) int64 {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n, err := readArchive(file, func(int64, record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestExportToStdout(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	b.do("RPUSH", b.keys.Pushers(carol), "x")
	r := b.want(exitProblems, "export", "-")
	n, err := readArchive(io.Reader(strings.NewReader(r.stdout)), func(int64, record) error { return nil })
	if n != 2 || err != nil || !strings.Contains(r.stderr, "skipped 1 keys") {
		t.Errorf("%d records, %v, %s", n, err, r.stderr)
	}
}

// SCAN misses a key that moves to a master already scanned.
func TestMovedSlotsFailACheck(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	b := newFixture(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	b.many(600)
	checked := make(chan result, 1)
	go func() { checked <- b.ctl("check", "-rate", "400") }()
	time.Sleep(300 * time.Millisecond)
	if err := servers.MoveSlot(t.Context(), 0, servers.Masters()[1]); err != nil {
		t.Fatal(err)
	}
	if r := <-checked; r.status != exitFailure || !strings.Contains(r.stderr, "slots moved") {
		t.Errorf("status %d, %s%s", r.status, r.stdout, r.stderr)
	}
}

// The value that a failed import was storing may be stored.
func TestAnImportThatFailedIsContinued(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	b := newFixture(t, "-redis", server.Addr())
	b.register(alice, bob)
	before, file := b.answers(alice, bob), filepath.Join(t.TempDir(), "export")
	b.want(exitOK, "export", file)
	b.flush()
	proxy := redistest.NewProxy(t, server)
	for n := range 200 { // more than the retries of the client and the stores
		proxy.CutReply(n+1, "EVALSHA", "EVAL")
	}
	r := runIn(t.Context(), noEnvironment, "import", file, "-redis", proxy.Addr())
	if r.status != exitFailure || !strings.Contains(r.stderr, "run the same command again to continue") {
		t.Errorf("status %d\n%s%s", r.status, r.stdout, r.stderr)
	}
	b.want(exitOK, "import", file)
	if after := b.answers(alice, bob); !maps.Equal(before, after) {
		t.Error("the answers differ")
	}
}
