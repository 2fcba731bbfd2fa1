package mail

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testConfig() Config {
	return Config{AppName: "Example Chat", ClientURL: "https://app.example.org/#/room/", PublicURL: "https://matrix.example.org", Key: "sixteen bytes or more"}
}

func newComposer(t *testing.T, cfg Config) *Composer {
	t.Helper()
	c, err := NewComposer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func content(msgtype, body string) string {
	return string(strictjson.AppendString([]byte(`{"msgtype":"`+msgtype+`","formatted_body":"<a href='https://evil.example'>x</a>","body":`), body)) + "}"
}

func from(name string, id mxid.UserID, body string) module.MailEvent {
	return module.MailEvent{
		ID: "$e/1?" + name, Type: "m.room.message", Sender: id, SenderName: name, Content: content("m.text", body), Time: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC),
	}
}

func bob(body string) module.MailEvent  { return from("Bob", "@bob:example.org", body) }
func carl(body string) module.MailEvent { return from("Carl", "@carl:example.org", body) }

func with(e module.MailEvent, change func(*module.MailEvent)) module.MailEvent {
	change(&e)
	return e
}

func room(name string, events ...module.MailEvent) module.MailRoom {
	return module.MailRoom{ID: "!" + name + ":example.org", Name: name, Events: events}
}

// to returns a digest of rooms that show all events.
func to(rooms ...module.MailRoom) module.MailDigest {
	d := module.MailDigest{User: "@alice:example.org", To: "alice@example.org", ID: "id", Lang: "en-GB", Rooms: rooms}
	for _, r := range rooms {
		d.Events += len(r.Events) + r.Hidden
	}
	return d
}

// hostile has what must not leave its place: header lines, markup, links, marks of direction.
const hostile = "Eve\r\nBcc: all@example.org\r\n\r\n<script>alert(1)</script><img src=https://evil.example/x.png>\u202egro.live\u202c\u2066\u0000\u200b\u0085 {{.User}} "

func digests() map[string]module.MailDigest {
	encryptedBy := func(e module.MailEvent) module.MailEvent {
		return with(e, func(e *module.MailEvent) { e.Type, e.Content = "m.room.encrypted", `{"ciphertext":"secret"}` })
	}
	invitation := with(bob(""), func(e *module.MailEvent) { e.Type, e.Invites, e.Content = "m.room.member", true, `{}` })
	thread := with(carl("In a thread."), func(e *module.MailEvent) { e.Thread = "$root" })
	keyword := with(carl("Tomatoes!"), func(e *module.MailEvent) { e.Highlight = true })
	mention := with(carl("Alice: look!"), func(e *module.MailEvent) { e.Highlight, e.MentionsUser = true, true })
	everybody := with(bob("Lunch!"), func(e *module.MailEvent) { e.Highlight, e.MentionsRoom = true, true })
	var kinds []module.MailEvent
	for _, kind := range []string{"m.notice", "m.emote", "m.image", "m.video", "m.audio", "m.file", "m.location", "org.example.kind"} {
		kinds = append(kinds, with(bob(""), func(e *module.MailEvent) { e.Content = content(kind, "body of "+kind) }))
	}
	for _, eventType := range []string{
		"m.sticker", "m.call.invite", "org.matrix.msc4075.rtc.notification", "m.poll.start", "m.poll.end", "m.beacon_info", "m.room.tombstone", "m.other",
	} {
		kinds = append(kinds, with(bob(""), func(e *module.MailEvent) { e.Type = eventType }))
	}
	onlyIDs := module.MailEvent{ID: "$1"}
	several := to(room("Garden", bob("Tomatoes?"), carl("Ripe.\nAll of them.")), room("Choir", bob("At eight.")))
	several.Rooms[0].Hidden, several.Hidden, several.Events = 12, 3, 40
	hostileRoom := room(hostile, with(from(hostile, mxid.UserID("@"+hostile+":example.org"), hostile+strings.Repeat("long ", 300)), func(e *module.MailEvent) { e.Highlight, e.MentionsUser = true, true }),
		from(strings.Repeat("n", 300), "@eve:example.org", strings.Repeat("line\n", 300)))
	hostileRoom.ID = `!"><script>/../x?y#z:example.org`
	return map[string]module.MailDigest{
		"one_message":     to(room("Garden", bob("Tomatoes?"))),
		"one_person":      to(room("Bob", bob("Hello"), bob("https://example.org/ <b>bold</b> & more"))),
		"one_room":        to(room("", bob("Tomatoes?"), carl("Ripe."))),
		"several_rooms":   several,
		"invite":          to(room("Garden", invitation)),
		"invites":         to(room("Garden", invitation), room("", invitation)),
		"encrypted":       to(room("Secret", encryptedBy(bob("")), encryptedBy(carl("")), encryptedBy(bob("")), encryptedBy(from("", "@dan:example.org", "")), encryptedBy(from("Eva", "@eva:example.org", "")))),
		"threads":         to(room("Garden", bob("Not in a thread."), thread)),
		"highlights":      to(room("Choir", bob("At eight.")), room("Garden", mention, bob("Tomatoes?"))),
		"keyword":         to(room("Choir", bob("At eight.")), room("Garden", keyword, bob("Fine."))),
		"room_mention":    to(room("Garden", everybody, keyword)),
		"poll":            to(room("Garden", with(bob(""), func(e *module.MailEvent) { e.Type, e.Content = "m.poll.start", `{}` }))),
		"kinds":           to(room("Garden", kinds...)),
		"ids_only":        to(room("", onlyIDs, onlyIDs)),
		"without_content": to(room("Garden", with(bob(""), func(e *module.MailEvent) { e.Content = "" }))),
		"hostile":         to(hostileRoom),
	}
}

func TestMailsAreAsInTheGoldenFiles(t *testing.T) {
	for name, digest := range digests() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // tokens have the time
				mail, err := newComposer(t, testConfig()).ComposeMail(digest)
				if err != nil {
					t.Fatal(err)
				}
				for ext, got := range map[string]string{
					".txt":  fmt.Sprintf("To: %s\nID: %s\nToken: %s\nUnsubscribe: %s\nSubject: %s\n\n%s", mail.To, mail.ID, mail.Token, mail.Unsubscribe, mail.Subject, mail.Text),
					".html": mail.HTML,
				} {
					file := "testdata/" + name + ext
					if *update {
						if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
							t.Fatal(err)
						}
					}
					if want, err := os.ReadFile(file); err != nil || got != string(want) {
						t.Errorf("%s: %v, got\n%s", file, err, got)
					}
				}
			})
		})
	}
}

// Each default rule that notifies, of the specification and of features, has its own words: none is "something new".
func TestEachDefaultRuleHasItsWords(t *testing.T) {
	t.Parallel()
	event := func(kind, content string) module.MailEvent {
		return with(bob(""), func(e *module.MailEvent) { e.Type, e.Content = kind, content })
	}
	highlight := func(e module.MailEvent, user, room bool) module.MailEvent {
		e.Highlight, e.MentionsUser, e.MentionsRoom = true, user, room
		return e
	}
	const oneMessage = "New message from Bob in Garden"
	words := map[string]struct {
		event         module.MailEvent
		subject, line string
	}{
		".m.rule.invite_for_me": {with(event("m.room.member", `{"membership":"invite"}`), func(e *module.MailEvent) { e.Invites = true }),
			"Bob invites you to Garden", "Bob (@bob:example.org) invites you to this room"},
		".m.rule.is_user_mention":                        {highlight(bob("x"), true, false), "Bob mentioned you in Garden", "Bob, for you"},
		".m.rule.is_room_mention":                        {highlight(bob("x"), false, true), "Bob mentioned everyone in Garden", "Bob, for everyone"},
		".m.rule.tombstone":                              {highlight(event("m.room.tombstone", `{}`), false, false), "Garden: Bob upgraded the room", "Bob upgraded the room"},
		".m.rule.call":                                   {event("m.call.invite", `{}`), "Garden: Bob called", "Bob called"},
		".m.rule.room_one_to_one":                        {bob("x"), oneMessage, "Bob"},
		".m.rule.message":                                {bob("x"), oneMessage, "Bob"},
		".m.rule.encrypted_room_one_to_one":              {event("m.room.encrypted", ""), oneMessage, "1 encrypted message from Bob"},
		".m.rule.encrypted":                              {event("m.room.encrypted", ""), oneMessage, "1 encrypted message from Bob"},
		".org.matrix.msc4028.encrypted_event":            {event("m.room.encrypted", ""), oneMessage, "1 encrypted message from Bob"},
		".org.matrix.msc3930.rule.poll_start":            {event("org.matrix.msc3381.poll.start", `{}`), "Garden: Bob started a poll", "Bob started a poll"},
		".org.matrix.msc3930.rule.poll_start_one_to_one": {event("m.poll.start", `{}`), "Garden: Bob started a poll", "Bob started a poll"},
		".org.matrix.msc3930.rule.poll_end":              {event("org.matrix.msc3381.poll.end", `{}`), "Garden: Bob ended a poll", "Bob ended a poll"},
		".org.matrix.msc3930.rule.poll_end_one_to_one":   {event("m.poll.end", `{}`), "Garden: Bob ended a poll", "Bob ended a poll"},
		".org.matrix.msc4505.rule.beacon_info": {event("org.matrix.msc3672.beacon_info", `{}`),
			"Garden: Bob shares a live location", "Bob shares a live location"},
		".org.matrix.msc4505.rule.beacon_info_one_to_one": {event("m.beacon_info", `{}`), "Garden: Bob shares a live location", "Bob shares a live location"},
		".org.matrix.msc4506.rule.knock": {event("m.room.member", `{"membership":"knock"}`),
			"Garden: Bob (@bob:example.org) asks to join", "Bob (@bob:example.org) asks to join"},
	}
	table, err := pushrule.NewDefaults(pushrule.Features())
	if err != nil {
		t.Fatal(err)
	}
	set := table.For("@alice:example.org")
	for _, kind := range pushrule.Kinds() {
		for _, rule := range set.List(kind) {
			want, found := words[rule.ID]
			if !slices.Contains(rule.Actions, `"notify"`) {
				continue
			}
			mail, err := newComposer(t, testConfig()).ComposeMail(to(room("Garden", want.event)))
			if err != nil || !found || mail.Subject != want.subject || !strings.Contains(mail.Text, "\n  "+want.line+"\n") && !strings.Contains(mail.Text, "\n  "+want.line+":\n") {
				t.Errorf("%s: %v, %v, got\n%s\n%s", rule.ID, err, found, mail.Subject, mail.Text)
			}
		}
	}
}

func TestNoMailHasWhatSendersMustNotPutThere(t *testing.T) {
	t.Parallel()
	c := newComposer(t, testConfig())
	for name, digest := range digests() {
		mail, err := c.ComposeMail(digest)
		if err != nil {
			t.Fatal(err)
		}
		for part, text := range map[string]string{"subject": mail.Subject, "text": mail.Text, "html": mail.HTML} {
			for _, r := range strings.ReplaceAll(text, "\n", "") {
				if unicode.In(r, unicode.Cc, unicode.Cf) {
					t.Errorf("%s: the %s has %U", name, part, r)
				}
			}
			if !utf8.ValidString(text) || strings.Contains(text, "secret") {
				t.Errorf("%s: got the %s %q", name, part, text)
			}
		}
		if n := utf8.RuneCountInString(mail.Subject); n > 200 || strings.Contains(mail.Subject, "\n") || n == 0 {
			t.Errorf("%s: got the subject %q", name, mail.Subject)
		}
		for _, line := range strings.Split(mail.Text, "\n") { // lines of senders are indented
			if strings.HasPrefix(line, "Bcc:") || strings.HasPrefix(line, "line") {
				t.Errorf("%s: got the line %q", name, line)
			}
		}
		for _, tag := range []string{"<script", "<img", "<b>bold", `href="https://evil`, `href='https://evil`, `href="https://example.org`, "url("} {
			if strings.Contains(mail.HTML, tag) {
				t.Errorf("%s: the HTML has %q", name, tag)
			}
		}
		for _, link := range strings.Split(mail.HTML, "href=")[1:] {
			if !strings.HasPrefix(link, `"https://app.example.org/#/room/%21`) && !strings.HasPrefix(link, `"https://matrix.example.org/_matrix/`) {
				t.Errorf("%s: got the link %.60s", name, link)
			}
		}
	}
}

func templateOf(word string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(`{{define "subject"}}` + word + `{{end}}{{define "text"}}x{{end}}`)}
}

var pageTemplate = &fstest.MapFile{Data: []byte(`{{.Lang}} {{range .Rooms}}{{.Name}}{{end}}`)}

// RFC 4647, 3.4: the subtags at the end go one by one, with a single letter before them.
func TestTemplatesOfTheHostAreChosenByLanguage(t *testing.T) {
	t.Parallel()
	const english = "New message from Bob in Garden"
	cfg, files := testConfig(), fstest.MapFS{"README.md": pageTemplate, ".gitkeep": pageTemplate}
	for _, lang := range []string{"de", "pt-br", "zh-hant", "zh-hant-hk", "sl-rozaj", "x-klingon"} {
		files[lang+".txt"], files[lang+".html"] = templateOf(lang), pageTemplate
	}
	cfg.Templates = files
	c := newComposer(t, cfg)
	long := strings.Repeat("-a", 5<<10)
	for lang, want := range map[string]string{
		"de": "de", "DE": "de", "de-AT": "de", "de_CH": "de", "de-Latn-DE-1996-x-private": "de", "de-x": "de", "de-": "de", "de--": "de",
		"pt-BR": "pt-br", "pt": english, "pt-PT": english, "zh-Hant-TW": "zh-hant", "zh_Hant_TW": "zh-hant", "zh-Hant-HK-x-a": "zh-hant-hk", "zh-TW": english,
		"zh-Hant-x-HK": "zh-hant", "sl-rozaj-biske-1994": "sl-rozaj", "x-klingon-a": "x-klingon", "x": english, "": english, "-": english, "-de": english,
		"../de": english, "d": english, "dee": english, "de.txt": english, "de" + long: "de", long: english, strings.Repeat("de", 5<<10): english,
	} {
		digest := to(room("Garden", bob("x")))
		digest.Lang = lang
		if mail, err := c.ComposeMail(digest); err != nil || mail.Subject != want {
			t.Errorf("%.40q: got %q, %v", lang, mail.Subject, err)
		}
	}
}

func TestTemplatesThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	with := func(name string) fstest.MapFS {
		return fstest.MapFS{"fr.txt": templateOf("neuf"), "fr.html": pageTemplate, name + ".txt": templateOf("x"), name + ".html": pageTemplate}
	}
	for name, test := range map[string]struct {
		files fs.FS
		want  string // a part of the error
	}{
		"a folder that does not exist":    {os.DirFS("testdata/none"), "no such file or directory"},
		"a file":                          {os.DirFS("mail.go"), "not a directory"},
		"templates in a folder":           {fstest.MapFS{"mails/de.txt": templateOf("neu"), "mails/de.html": pageTemplate}, "mails is no template"},
		"another extension":               {fstest.MapFS{"de.tmpl": pageTemplate}, "de.tmpl is no template"},
		"capital letters":                 {with("DE"), `DE.html has no language tag in small letters such as "pt-br"`},
		"an underscore":                   {with("pt_br"), "pt_br.html has no language tag"},
		"no tag":                          {with("deutsch"), "deutsch.html has no language tag"},
		"a digit":                         {with("1"), "1.html has no language tag"},
		"an empty subtag":                 {with("de--at"), "de--at.html has no language tag"},
		"no tag, 10 KB":                   {with("de" + strings.Repeat("-abcde", 2<<10)), "has no language tag"},
		"a tag with a singleton at last":  {with("de-a"), "de-a.html has no language tag"},
		"no html":                         {fstest.MapFS{"de.txt": templateOf("neu")}, "de.html"},
		"no text":                         {fstest.MapFS{"de.html": pageTemplate}, "de.txt"},
		"not a template":                  {fstest.MapFS{"de.txt": templateOf("{{"), "de.html": pageTemplate}, "de.txt"},
		"an unknown field":                {fstest.MapFS{"de.txt": templateOf("{{.Secret}}"), "de.html": pageTemplate}, "de.txt"},
		"an unknown field in HTML":        {fstest.MapFS{"de.txt": templateOf("x"), "de.html": {Data: []byte("{{.Secret}}")}}, "de.html"},
		"no subject":                      {fstest.MapFS{"de.txt": &fstest.MapFile{Data: []byte("x")}, "de.html": pageTemplate}, "de.txt"},
		"an error for some subjects only": {fstest.MapFS{"de.txt": templateOf(`{{if eq .Case "invite"}}{{.Secret}}{{end}}`), "de.html": pageTemplate}, "de.txt"},
		"an error for some kinds only": {fstest.MapFS{"de.txt": templateOf("x"),
			"de.html": {Data: []byte(`{{range .Rooms}}{{range .Messages}}{{if eq .Kind "poll"}}{{.Secret}}{{end}}{{end}}{{end}}`)}}, "de.html"},
		"an error without messages": {fstest.MapFS{"de.txt": templateOf("x"), "de.html": {Data: []byte(`{{range .Rooms}}{{(index .Messages 0).Kind}}{{end}}`)}}, "de.html"},
	} {
		cfg := testConfig()
		cfg.Templates = test.files
		if _, err := NewComposer(cfg); err == nil || !strings.Contains(err.Error(), "mail: Templates: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %.300v", name, err)
		}
	}
}

func TestAnInvalidConfigIsRefused(t *testing.T) {
	t.Parallel()
	const want = `AppName is empty, want the name of the app
Key has 0 bytes, want at least 16
PublicURL is "", want an address such as https://matrix.example.org, without a query and a fragment
ClientURL is "javascript:x", want an address such as https://app.example.org/#/room/, to which the id of a room is added`
	if err := (Config{ClientURL: "javascript:x"}).Validate(); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestAddressesInMailsAreCompleteOrRefused(t *testing.T) {
	t.Parallel()
	const refused = ""
	for address, want := range map[string]struct{ public, client string }{
		"https://x.example":             {"https://x.example/_matrix/", "https://x.example/%21Garden"},
		"https://x.example/":            {"https://x.example/_matrix/", "https://x.example/%21Garden"},
		"https://x.example//":           {"https://x.example/_matrix/", "https://x.example//%21Garden"},
		"http://127.0.0.1:8080/below":   {"http://127.0.0.1:8080/below/_matrix/", "http://127.0.0.1:8080/below/%21Garden"},
		"https://x.example/#":           {refused, "https://x.example/#/%21Garden"},
		"https://x.example/#/room":      {refused, "https://x.example/#/room/%21Garden"},
		"https://x.example/#!/room":     {refused, "https://x.example/#!/room/%21Garden"},
		"https://x.example/#/room/":     {refused, "https://x.example/#/room/%21Garden"},
		"https://x.example/?a=b#/room":  {refused, "https://x.example/?a=b#/room/%21Garden"},
		"https://x.example/?room=":      {refused, refused},
		"https://x.example?":            {refused, refused},
		"https://x.example/#/room/?via": {refused, refused},
		"https://x.example/#a#b":        {refused, refused},
		"https://bücher.example":        {refused, refused}, // no header may have it
		"https://x.example/a b":         {refused, refused},
		"https://x.example/\r\nBcc: b":  {refused, refused},
		"https://x.example/\"><script>": {refused, refused},
		"https://user:pass@x.example":   {refused, refused},
		"https://":                      {refused, refused},
		"https:x.example":               {refused, refused},
		"x.example":                     {refused, refused},
		"ftp://x.example":               {refused, refused},
	} {
		public, client := testConfig(), testConfig()
		public.PublicURL, client.ClientURL = address, address
		for field, test := range map[string]struct {
			cfg  Config
			want string
		}{"PublicURL": {public, want.public}, "ClientURL": {client, want.client}} {
			c, err := NewComposer(test.cfg)
			if test.want == refused {
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s is %q, want an address such as https://", field, address)) {
					t.Errorf("%s %q: got %v", field, address, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s %q: %v", field, address, err)
				continue
			}
			mail, err := c.ComposeMail(to(room("Garden", bob("x"))))
			if err != nil || !strings.Contains(mail.Text, " "+test.want) && !strings.Contains(mail.Text, "\n"+test.want) || field == "PublicURL" && !strings.HasPrefix(mail.Unsubscribe, test.want) {
				t.Errorf("%s %q: %v, got\n%s", field, address, err, mail.Text)
			}
		}
	}
}

func TestATokenAllowsOnlyWhatItWasMadeFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const user, address = "@alice:example.org", "alice@example.org"
		tokens, other := NewTokens("sixteen bytes or more"), NewTokens("another key of some bytes")
		link, bounce := tokens.Unsubscribe(user, address), tokens.Bounce(address)
		digest := pusher.Key{AppID: "m.email", Pushkey: address}.Digest()
		if len("bounces+"+bounce) > 64 || strings.Contains(link, "@") {
			t.Errorf("got %q and %q", link, bounce)
		}
		tomorrow := time.Now().Add(24 * time.Hour)
		if grant, ok := tokens.ReadUnsubscribe(link); !ok || grant.User != user || grant.Pushkey != digest || !grant.Until.Equal(tomorrow) {
			t.Errorf("got %+v, %v", grant, ok)
		}
		if grant, ok := tokens.ReadBounce(bounce); !ok || grant.User != "" || grant.Pushkey != digest || !grant.Until.Equal(tomorrow) {
			t.Errorf("got %+v, %v", grant, ok)
		}
		if _, ok := other.ReadUnsubscribe(link); ok {
			t.Error("a link is valid with another key")
		}
		for i := range link {
			for _, with := range []string{"", "A", "_", "\x00", "AA"} {
				spoiled := link[:i] + with + link[i+1:]
				if _, ok := tokens.ReadUnsubscribe(spoiled); ok && spoiled != link {
					t.Errorf("%q is taken for %q", spoiled, link)
				}
				if _, ok := tokens.ReadBounce(spoiled); ok {
					t.Errorf("%q is taken for a bounce", spoiled)
				}
			}
		}
		if _, ok := tokens.ReadUnsubscribe(bounce); ok {
			t.Error("a bounce is taken for a link")
		}
		time.Sleep(24*time.Hour + BounceFor)
		if _, ok := tokens.ReadBounce(bounce); !ok {
			t.Error("a bounce is not valid until the end")
		}
		time.Sleep(time.Second)
		if _, ok := tokens.ReadBounce(bounce); ok {
			t.Error("a bounce is valid too long")
		}
		time.Sleep(UnsubscribeFor - BounceFor)
		if _, ok := tokens.ReadUnsubscribe(link); ok {
			t.Error("a link is valid too long")
		}
	})
}
