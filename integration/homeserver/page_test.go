package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/module/pushrule"
)

var screenshot = flag.String("screenshot", "", "`FILE` for a picture of the demo page, as WebP")

// browserPatience allows for a slow machine.
const browserPatience = 90 * time.Second

type browser struct {
	t   *testing.T
	ctx context.Context
}

// openPage opens the page of a demo. An exception, a dialog or a violation of the page's
// policy fails the test.
func openPage(t *testing.T, url string) *browser {
	t.Helper()
	program := findChromium(t)
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1440, 900), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(func(event any) {
		switch event := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page has thrown: %v", event.ExceptionDetails)
		case *log.EventEntryAdded:
			if event.Entry.Source == log.EntrySourceSecurity {
				t.Errorf("the browser has refused something: %s", event.Entry.Text)
			}
		case *cdppage.EventJavascriptDialogOpening:
			t.Errorf("a script of a user runs: %s", event.Message)
		}
	}))
	t.Cleanup(cancel)
	b := &browser{t, ctx}
	if err := chromedp.Do(ctx); err != nil { // starts the browser, which runs until this context ends
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(url))
	return b
}

// findChromium skips the test if there is no Chromium, or fails it if REQUIRE_CHROMIUM=1.
func findChromium(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("chromium")
	switch {
	case err == nil:
		return program
	case os.Getenv("REQUIRE_CHROMIUM") == "1":
		t.Fatal("chromium is not on the PATH")
	default:
		t.Skip("chromium is not on the PATH")
	}
	return ""
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserPatience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// wait waits until an expression is true. A TypeError tells that the page lacks an element of it.
func (b *browser) wait(expression string) {
	b.t.Helper()
	expression = "(() => { try { return " + expression + " } catch (e) { if (e instanceof TypeError) return false; throw e } })()"
	for deadline := time.Now().Add(browserPatience); !get[bool](b, expression); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not so: %s\n%s", expression, get[string](b, "document.body.innerText"))
		}
	}
}

func get[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserPatience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// press presses a key in the element with this id. It first waits until the page has the
// element and will not replace it.
func (b *browser) press(id, key string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("!document.querySelector('[aria-busy=true]') && !!document.getElementById(%q)", id))
	get[bool](b, fmt.Sprintf("document.getElementById(%q).focus() === undefined", id))
	b.do(chromedp.KeyEvent(key))
}

func (b *browser) enter(field, text string) {
	b.t.Helper()
	b.wait("!document.querySelector('[aria-busy=true]')")
	get[bool](b, fmt.Sprintf("document.getElementById(%q).select() === undefined", field))
	b.do(chromedp.SendKeys(chromedp.CSS("#"+field), text+kb.Enter))
}

func (b *browser) addKeyword(word string) {
	b.t.Helper()
	b.enter("add-value", word)
	b.wait(fmt.Sprintf(`!!document.getElementById('rule/content/%s') && document.getElementById('add-value').value === ''`, word))
}

// awaitRules waits until a user's own rules of a kind have these ids in this order.
func (d *demo) awaitRules(user, kind string, ids ...string) {
	d.t.Helper()
	poll(d.t, fmt.Sprintf("the %s rules of %s are %q", kind, user, ids), func() bool {
		var got struct {
			Global map[string][]struct {
				ID      string `json:"rule_id"`
				Default bool   `json:"default"`
			} `json:"global"`
		}
		if err := json.Unmarshal([]byte(d.do("GET", rulesPath, "demo-"+user, "").body), &got); err != nil {
			d.t.Fatal(err)
		}
		var own []string
		for _, rule := range got.Global[kind] {
			if !rule.Default {
				own = append(own, rule.ID)
			}
		}
		return slices.Equal(own, ids)
	})
}

func (b *browser) texts(device string) []string {
	b.t.Helper()
	return get[[]string](b, fmt.Sprintf(
		`[...document.querySelectorAll('.arrival')].filter(a => a.querySelector('h3').textContent === %q).map(a => a.querySelector('p').textContent).reverse()`, device))
}

func (b *browser) awaitTexts(device string, texts ...string) {
	b.t.Helper()
	poll(b.t, fmt.Sprintf("%s has got %q", device, texts), func() bool { return slices.Equal(b.texts(device), texts) })
}

func TestPage(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	b := openPage(t, d.url)
	b.wait(`document.querySelectorAll('.rule').length === 15 && document.querySelectorAll('.pusher.ok').length === 4`)
	b.testRules(d)
	b.testMessage()
	if *screenshot != "" {
		b.takeScreenshot(*screenshot)
	}
	b.testOutage()
	b.testChangesElsewhere(d)
	b.testMarkup(d)
}

// testChangesElsewhere changes rules and counts without the page, and floods its gateway.
func (b *browser) testChangesElsewhere(d *demo) {
	d.expect("PUT", rulesPath+"global/content/curl", "demo-alice", `{"pattern":"curl","actions":["notify"]}`, 200, "{}")
	b.wait(`!!document.getElementById('rule/content/curl')`)
	d.expect("DELETE", rulesPath+"global/content/curl", "demo-alice", "", 200, "{}")
	b.wait(`!document.getElementById('rule/content/curl')`)
	before := get[int](b, `parseInt(document.querySelector('#owners small').textContent)`)
	d.expect("POST", sendPath, "demo-bob", `{"event_id":"$curl","room_id":"!curl:localhost","members":["@alice:localhost"],`+
		`"type":"m.room.message","content":{"msgtype":"m.text","body":"curl"}}`, 200, "")
	b.wait(fmt.Sprintf(`document.querySelector('#owners label').textContent === 'alice %d unread in 2 rooms'`, before+1))
	d.expect("POST", v3+"/rooms/!curl:localhost/receipt/m.read/$curl", "demo-alice", "{}", 200, "{}")
	b.wait(fmt.Sprintf(`document.querySelector('#owners label').textContent === 'alice %d unread in 1 room'`, before))
	for n := range maxArrivals + 1 {
		d.expect("POST", receiver.Path, "", fmt.Sprintf(`{"notification":{"event_id":"$%d","devices":[{"app_id":"a","pushkey":"b"}]}}`, n), 200, "")
	}
	b.wait(fmt.Sprintf(`document.querySelector('#arrivals').innerText.includes('Event $%d…') && document.querySelectorAll('.arrival').length === %[1]d`, maxArrivals))
}

func (b *browser) testRules(d *demo) {
	const enabled = rulesPath + "global/underride/.m.rule.message/enabled"
	for _, want := range []string{`{"enabled":false}`, `{"enabled":true}`} {
		b.press("switch/underride/.m.rule.message", " ")
		poll(b.t, "the rule is switched: "+want, func() bool { return d.do("GET", enabled, "demo-alice", "").body == want })
		b.wait(fmt.Sprintf(`document.getElementById('switch/underride/.m.rule.message').checked === %v`, want == `{"enabled":true}`))
	}
	b.addKeyword("lunch")
	d.awaitRules("alice", "content", "lunch")
	b.addKeyword("tea")
	d.awaitRules("alice", "content", "tea", "lunch")
	b.press("later/content/tea", kb.Enter)
	d.awaitRules("alice", "content", "lunch", "tea")
	b.press("earlier/content/tea", kb.Enter)
	d.awaitRules("alice", "content", "tea", "lunch")
	b.press("delete/content/lunch", kb.Enter)
	d.awaitRules("alice", "content", "tea")
	b.wait(`document.activeElement.id === 'title-content'`)
	b.enter("add-value", "24/7")
	d.awaitRules("alice", "content", "24%2F7", "tea")
	b.wait(`!!document.getElementById('rule/content/24%2F7')?.innerText.startsWith('Keyword “24/7”')`)
	b.press("delete/content/24%2F7", kb.Enter)
	d.awaitRules("alice", "content", "tea")
}

func (b *browser) testMessage() {
	b.enter("text", "Tea at four?")
	b.awaitTexts("alice’s phone", "bob in Tea: Tea at four?")
	b.awaitTexts("carol’s phone", "bob in Tea: Tea at four?")
	b.wait(`document.querySelector('#results').innerText.includes('Decided by Keyword “tea” (keywords)')`)
	b.wait(`document.querySelector('.arrival .warn').innerText === 'left out: room name, sender, type, content'`)
}

func (b *browser) testOutage() {
	b.press("gateway", " ")
	texts := b.texts("alice’s phone")
	for i, text := range []string{"one", "two", "three"} {
		b.enter("text", text)
		b.wait(fmt.Sprintf(`document.querySelector('.pusher.waiting .blocks')?.children.length === %d`, i+1))
		texts = append(texts, "bob in Tea: "+text)
	}
	b.wait(`document.querySelector('.pusher .detail').innerText.includes('answered 502 for')`)
	b.press("gateway", " ")
	b.wait(`document.querySelectorAll('.pusher.ok').length === 4`)
	b.awaitTexts("alice’s phone", texts...)
}

// testMarkup enters markup as each text that a user or client can choose.
func (b *browser) testMarkup(d *demo) {
	const markup = `<img src=x onerror=alert(1)>`
	b.enter("name", markup)
	b.wait(fmt.Sprintf(`document.querySelector('#rules .error').innerText.startsWith('Not a name\n“%s”')`, markup))
	b.enter("name", "dave")
	b.wait(`document.querySelector('#owners :checked').value === 'dave'`)
	b.addKeyword(markup)
	d.awaitRules("dave", "content", markup)
	get[bool](b, `(document.getElementById('add-kind').value = 'sender') !== ''`)
	b.enter("add-value", "eve/x")
	b.wait(`document.querySelector('#rules .error').innerText.startsWith('Not a name\n“eve/x”')`)
	d.expect("POST", v3+"/pushers/set", "demo-dave", fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":"key","app_display_name":"App",`+
		`"device_display_name":%q,"lang":"en","data":{"url":"%s%s"}}`, markup, d.url, receiver.Path), 200, "{}")
	get[bool](b, fmt.Sprintf(`(document.getElementById('room').value = %q) !== ''`, markup))
	b.enter("text", markup)
	b.awaitTexts("dave’s "+markup, fmt.Sprintf("bob in %[1]s: %[1]s", markup))
	b.wait(fmt.Sprintf(`document.querySelector('#results').innerText.includes('Decided by Keyword “%s”')`, markup))
	if n := get[int](b, `document.querySelectorAll('img').length`); n != 0 {
		b.t.Errorf("%d pictures came from text", n)
	}
}

// The page goes on after what the host refuses, and after an outage.
func TestPageGoesOn(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	b := openPage(t, d.url)
	b.do(chromedp.EmulateViewport(1280, 860))
	b.wait(`document.querySelectorAll('.pusher.ok').length === 4 && !document.querySelector('[aria-busy=true]')`)
	if apart := get[float64](b, `(([a, b]) => Math.abs(a - b))([...document.querySelectorAll('#person > button, #name')].map(e => e.getBoundingClientRect().bottom))`); apart > 1 {
		t.Errorf("the button is %v pixels below its field", apart)
	}
	for name, refusal := range map[string]string{
		"@eve:evil.org":          `No such person\nThere can be no “@eve:evil.org” on the server localhost.`,
		strings.Repeat("e", 250): `No such person\nThere can be no “` + strings.Repeat("e", 40) + `…” on the server localhost.`,
		strings.Repeat("e", 300): `Too long\nA name has at most 255 characters.`,
		strings.Repeat("é", 250): `Not a name\n“` + strings.Repeat("é", 40) + `…” must consist of a-z, 0-9 and ._=+- alone.`,
	} {
		b.enter("name", name)
		b.wait(fmt.Sprintf(`document.querySelector('#rules .error').innerText === '%s'`, refusal))
	}
	for keyword, refusal := range map[string]string{
		strings.Repeat("k", 200_000): "Too long\nA keyword has at most 1000 characters.", strings.Repeat("é", 1000): "M_",
	} {
		get[bool](b, fmt.Sprintf(`(document.getElementById('add-value').value = %q, document.getElementById('add').requestSubmit(), true)`, keyword))
		b.wait(fmt.Sprintf(`(text => text.startsWith(%q) && text.length < 120)(document.querySelector('#rules .error').innerText)`, refusal))
	}
	b.enter("name", "@dave:localhost")
	b.wait(`document.querySelector('#owners :checked').value === 'dave' && document.querySelectorAll('.pusher.ok').length === 5`)
	d.expect("POST", sendPath, "demo-bob", `{"room_id":"!x:localhost","members":["@alice:localhost"],"type":"m.room.message","content":{"body":"x"}}`, 200, "")
	b.wait(`document.querySelector('#owners label').textContent === 'alice 1 unread in 1 room'`)

	get[bool](b, `(document.getElementById('add-value').value = '\u202Eabc', document.getElementById('add').requestSubmit(), true)`)
	b.wait(`document.querySelector('#kind-content label bdi')?.textContent === 'Keyword “U+202Eabc”'`)
	if !get[bool](b, `(() => { document.getElementById('compose').requestSubmit(); return document.querySelector('#compose .primary').disabled })()`) {
		t.Error("Send can be pressed twice")
	}
	b.wait(`!document.querySelector('#compose .primary').disabled && document.querySelectorAll('.result').length === 4`)

	get[bool](b, `(window.answers = window.fetch, window.fetch = () => Promise.reject(new Error()), true)`)
	b.press("explain", kb.Enter)
	b.wait(`document.querySelector('#message .error').innerText.startsWith('No answer')`)
	get[bool](b, `(window.fetch = window.answers, document.dispatchEvent(new Event('visibilitychange')), true)`)
	b.wait(`document.querySelector('#message .error').hidden`)
}

// Under each member stands what became of a message, and under each click its requests. The counts do not wrap the chips.
func TestPageShowsWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	b := openPage(t, d.url)
	b.do(chromedp.EmulateViewport(1280, 860))
	b.wait(`document.querySelectorAll('.pusher.ok').length === 4 && !document.querySelector('[aria-busy=true]')`)
	const fate = `[...document.querySelectorAll('.result')].map(r => r.querySelector('.fate')?.innerText.replace(/\d?\d:\d\d:\d\d(\s[AP]M)?/g, 'T'))`
	fates := func(alice, carol string) {
		t.Helper()
		b.wait(fmt.Sprintf(`JSON.stringify(%s) === JSON.stringify([%q, null, %q])`, fate, alice, carol))
	}
	get[bool](b, `(text => { // a key has no U+202E
		text.value = 'It’s \u202E<b>';
		text.dispatchEvent(new Event('input'));
		document.getElementById('compose').requestSubmit();
		return true;
	})(document.getElementById('text'))`)
	fates("Decided T · phone: posted T, answered 200 · tablet: posted T, answered 200", "Decided T · phone: posted T, answered 200")
	b.wait(`[...document.querySelectorAll('.arrival pre')].some(pre => JSON.parse(pre.textContent).content?.body === 'It’s \u202E<b>' && pre.textContent.includes('\\u202e'))`)
	curl := get[string](b, `document.querySelector('#message .curl pre').textContent.split('\n')[0]`)
	output, err := exec.CommandContext(t.Context(), "sh", "-c", curl).CombinedOutput()
	if err != nil || !strings.Contains(string(output), `"event_id"`) {
		t.Errorf("%s: %v: %s", curl, err, output)
	}
	b.wait(`document.querySelectorAll('.arrival').length === 6`) // a later message would wait behind that of curl
	b.press("gateway", " ")
	b.enter("text", "it's night")
	b.wait(`[...document.querySelectorAll('.fate')].some(fate => fate.innerText.includes(', answered 502 waits'))`)
	b.wait(`[...document.querySelectorAll('.fate')].map(fate => fate.innerText.match(/waits/g).length).join() === '2,1'`) // of which the first answer may have stopped some
	b.press("gateway", " ")
	fates("Decided T · phone: posted T, answered 200 · tablet: posted T, answered 200", "Decided T · phone: posted T, answered 200")
	b.press("switch/underride/.m.rule.message", " ")
	b.wait(`document.querySelector('#rules .curl pre').textContent.startsWith("curl -X PUT -H 'Authorization: Bearer demo-alice' 'http://127.0.0.1:")`)
	b.enter("text", "again")
	fates("Decided T · not posted", "Decided T · phone: posted T, answered 200")

	d.expect("POST", sendPath, "demo-carol", `{"room_id":"!x:localhost","members":["@bob:localhost"],"type":"m.room.message","content":{"body":"x"}}`, 200, "")
	b.wait(`[...document.querySelectorAll('#owners small')].every(count => count.textContent)`)
	if rows := get[int](b, `new Set([...document.querySelectorAll('#owners label')].map(chip => chip.offsetTop)).size`); rows != 1 {
		t.Errorf("the chips stand in %d rows", rows)
	}
	b.do(chromedp.EmulateViewport(360, 800))
	get[bool](b, `document.querySelectorAll('details').forEach(d => { d.open = true }) === undefined`)
	if cut := get[[]string](b, `[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)`); len(cut) > 0 {
		t.Errorf("cut off at 360 pixels: %q", cut)
	}
}

// tab presses Tab until the page is at an element, and returns how often.
func (b *browser) tab(condition string) (times int) {
	b.t.Helper()
	for ; times < 40 && !get[bool](b, condition); times++ {
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	return times
}

func TestPageByKeyboard(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, width := range []int64{1440, 375} {
		t.Run(fmt.Sprintf("%d wide", width), func(t *testing.T) {
			b := openPage(t, d.url)
			b.do(chromedp.EmulateViewport(width, 800))
			b.wait(`document.querySelectorAll('.pusher.ok').length === 4 && !document.querySelector('[aria-busy=true]')`)
			tabs := b.tab(`document.activeElement.innerText === '2 Message'`)
			b.do(chromedp.KeyEvent(kb.Enter))
			if tabs += b.tab(`document.activeElement.innerText === 'Send'`); tabs > 12 {
				t.Errorf("Send is %d Tabs away, want 12 at most", tabs)
			}
			b.addKeyword("night")
			b.wait(`document.activeElement.id === 'switch/content/night'`)
			b.wait(`(({top, bottom}) => top > 0 && bottom < innerHeight)(document.activeElement.getBoundingClientRect())`)
			b.press("delete/content/night", kb.Enter)
			if cut := get[[]string](b, `[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML)`); len(cut) > 0 {
				t.Errorf("cut off: %q", cut)
			}
		})
	}
}

// TestPageIsAccessible runs axe-core, which needs "npm ci" in the folder of matrix-js-sdk.
func TestPageIsAccessible(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-features", pushrule.FeatureNames(), "-mail", "inbox")
	axe, err := os.ReadFile("../jssdk/node_modules/axe-core/axe.min.js")
	if err != nil && os.Getenv("REQUIRE_NODE") != "1" {
		t.Skip("axe-core is not installed: run npm ci in integration/jssdk")
	} else if err != nil {
		t.Fatal(err)
	}
	b := openPage(t, d.url)
	b.wait(`document.querySelectorAll('.pusher.ok').length === 5`)
	d.sendToInbox(hostileMail)
	b.addKeyword("tea")
	b.press("switch/content/tea", " ")
	b.enter("text", "Tea?")
	b.wait(`document.querySelectorAll('.arrival').length === 4 && document.querySelectorAll('.result').length === 3`)
	get[bool](b, string(axe)+`; document.querySelectorAll('details').forEach(d => { d.open = true }); true`)
	for _, scheme := range []string{"light", "dark"} {
		get[bool](b, `(document.documentElement.style.colorScheme = '`+scheme+`') !== ''`)
		b.wait(`document.getAnimations().every(a => a.playState === 'finished')`)
		get[bool](b, `axe.run().then(found => { window.found = found.violations.map(v => v.id + ': ' + v.nodes[0].html) }), true`)
		b.wait(`!!window.found`)
		if found := get[[]string](b, `window.found`); len(found) > 0 {
			t.Errorf("%s: %s", scheme, strings.Join(found, "\n"))
		}
		get[bool](b, `delete window.found`)
	}
	if got := get[string](b, `(i => i.ariaDescribedByElements.map(e => e.innerText).join(' '))(document.getElementById('switch/override/.m.rule.suppress_notices'))`); got != "do not notify if it is the text of a bot" {
		t.Errorf("the description of a switch is %q", got)
	}
}

// TestPageHasFeatures explains the kinds of events that features have rules for.
func TestPageHasFeatures(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-features", pushrule.FeatureNames())
	b := openPage(t, d.url)
	b.wait(`document.querySelectorAll('.pusher.ok').length === 4`)
	if ids := get[[]string](b, `[...document.querySelectorAll('.rule label')].map(e => e.innerText).filter(text => text.startsWith('.'))`); len(ids) > 0 {
		t.Errorf("rules without a title: %q", ids)
	}
	if texts := get[[]string](b, `[...document.querySelectorAll('.rule small')].map(e => e.innerText).filter(text => /[{}]|org\.matrix/.test(text))`); len(texts) > 0 {
		t.Errorf("conditions without words: %q", texts)
	}
	for _, test := range []struct{ kind, title string }{
		{"poll", "Polls"}, {"vote", "Votes"}, {"end", "Ends of polls"}, {"encrypted", "All that is encrypted"},
		{"live", "Live locations"}, {"move", "Moves of live locations"}, {"knock", "Knocks"},
	} {
		get[bool](b, fmt.Sprintf(`(s => { s.value = %q; s.dispatchEvent(new Event('input')); return s.value !== '' })(document.getElementById('type'))`, test.kind))
		b.press("explain", kb.Enter)
		b.wait(fmt.Sprintf(`document.querySelector('#results').innerText.includes('Decided by %s (')`, test.title))
	}
	b.enter("text", "May I come in?")
	b.awaitTexts("alice’s phone", "bob in Tea: a change of membership")
}

func (b *browser) takeScreenshot(file string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(1280, 860))
	get[bool](b, `document.activeElement.blur() === undefined`)
	get[bool](b, `document.getElementById('rule/content/tea').scrollIntoView({block: 'center'}) === undefined`)
	get[bool](b, `document.querySelector('.result details').open = true`)
	b.wait(`document.getAnimations().every(a => a.playState === 'finished')`)
	picture, err := chromedp.Run(b.ctx, func(ctx context.Context, target *chromedp.Target) ([]byte, error) {
		quality := int64(80)
		result, err := cdp.Call(ctx, target, cdppage.CaptureScreenshot,
			cdppage.CaptureScreenshotParams{Format: cdppage.CaptureScreenshotFormatWebp, Quality: &quality})
		return result.Data, err
	})
	if err == nil {
		err = os.WriteFile(file, picture, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestPageAllowsOnlyItsOwnScript(t *testing.T) {
	t.Parallel()
	got := startDemo(t).do("GET", "/", "", "")
	policy := got.header.Get("Content-Security-Policy")
	if got.status != 200 || !strings.HasPrefix(policy, "default-src 'none'; script-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("got %d, policy %q", got.status, policy)
	}
	if kilobytes := len(got.body) >> 10; kilobytes >= 42 {
		t.Errorf("the page has %d KiB, want less than 42", kilobytes)
	}
}
