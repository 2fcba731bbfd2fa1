package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/chromedp"
)

// A real browser makes the keys, opens what comes with WebCrypto, and returns the token of the first push.
func TestThePageIsABrowserOfWebPush(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-web-push", "-log-level", "debug")
	b := openPage(t, d.url)
	b.wait(`document.querySelectorAll('.pusher.ok').length === 4`)
	// The example of RFC 8291, section 5.
	get[bool](b, `(async () => { try { await open(fromBase64('DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN'),
		{keys: {auth: 'BTBZMqHH6r4Tts7J_aSIgg', p256dh: 'BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4'},
		own: {kty: 'EC', crv: 'P-256', d: 'q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94', x: 'JXGyvs3942BVGq8e0PTNNmwRzr5VX4m8t7GGpTM5FzE', y: 'aOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4'}}) } catch (e) { window.example = e.message } })() !== null`)
	b.wait(`window.example.includes('When I gro')`) // it is opened, and no JSON
	add := func() {
		b.wait(`!document.querySelector('[aria-busy=true]')`)
		get[bool](b, `(document.querySelector('#notifications details:has(#device)').open = true) && (document.getElementById('device-kind').value = 'browser') !== ''`)
		b.do(chromedp.Click(chromedp.CSS("#device button")))
	}
	add()
	b.wait(`document.querySelectorAll('.pusher.ok').length === 5 && document.querySelector('.push p').innerText === 'First push: its token is returned'`)
	if got := d.do("GET", v3+"/pushers", "demo-alice", "").body; !strings.Contains(got, `"activated":true`) {
		t.Errorf("got %s", got)
	}
	b.enter("text", "Tea for browsers?")
	b.awaitTexts("alice’s browser", "First push: its token is returned", "bob in Tea: Tea for browsers?")
	if sealed, opened := get[string](b, `document.querySelector('.push pre').textContent`), get[string](b, `document.querySelectorAll('.push')[0].querySelectorAll('pre')[1].textContent`); strings.Contains(sealed, "Tea") || !strings.Contains(opened, `"body": "Tea for browsers?"`) {
		t.Errorf("got %s, %s", sealed, opened)
	}
	b.wait(`document.querySelector('#results').innerText.includes('browser: posted')`)
	b.do(chromedp.Navigate(d.url)) // the keys are kept
	b.awaitTexts("alice’s browser", "First push: its token is returned", "bob in Tea: Tea for browsers?")
	get[bool](b, `document.querySelector('.push button').click() === undefined`)
	b.wait(`!document.querySelector('[aria-busy=true]')`)
	b.enter("text", "Gone?")
	b.wait(`document.querySelector('.push').innerText.includes('answered 410') && document.querySelectorAll('.pusher').length === 4`)
	b.press("gateway", " ") // the push service fails, too
	add()
	b.wait(`document.querySelectorAll('.pusher.waiting').length === 1`)
	b.press("gateway", " ")
	b.wait(`document.querySelectorAll('.pusher.ok').length === 5`)
	get[bool](b, `!!register('alice').then(worker => { window.worker = worker.active.scriptURL }, e => { window.worker = e.message })`)
	b.wait(fmt.Sprintf(`window.worker === '%s/_demo/worker.js?name=alice'`, d.url))
	// The service worker of a real push service's pushes returns the token, too.
	if _, err := chromedp.Run(b.ctx, func(ctx context.Context, target *chromedp.Target) (cdp.Empty, error) {
		if _, err := cdp.Call(ctx, target, serviceworker.Enable, cdp.Empty{}); err != nil {
			return cdp.Empty{}, err
		}
		return cdp.Call(ctx, target, serviceworker.DeliverPushMessage, serviceworker.DeliverPushMessageParams{
			Origin: d.url, RegistrationID: "0", Data: `{"app_id":"org.example.browser","ack_token":"x"}`})
	}); err != nil {
		t.Fatal(err)
	}
	poll(t, "the worker has returned a token", func() bool {
		return strings.Contains(d.stderr.String(), `"route": "/_matrix/client/unstable/org.matrix.msc4174/pushers/ack", "status": 400`)
	})
	if got := d.do("POST", "/_demo/push/x", "", strings.Repeat("x", 4097)); got.status != 413 {
		t.Errorf("4,097 bytes: got %d", got.status)
	}
	d.expect("DELETE", "/_demo/push/x", "", "", 401, "")
	if got := d.do("GET", "/_demo/worker.js?name=alice", "", ""); got.status != 200 || !strings.Contains(got.header.Get("Content-Type"), "text/javascript") {
		t.Errorf("got %d", got.status)
	}
}

// Without their flags, features, web push and mails are not there.
func TestADemoWithoutFlags(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("GET", v3+"/capabilities", "demo-alice", "", 200, `{"capabilities":{}}`)
	if got := d.do("GET", "/_matrix/client/versions", "", ""); !strings.Contains(got.body, `"unstable_features":{}`) {
		t.Errorf("got %s", got.body)
	}
	d.expect("GET", v3+"/account/3pid", "demo-alice", "", 200, `{"threepids":[]}`)
	d.expect("GET", "/_demo/mails/x", "demo-alice", "", 404, "")
	d.expect("POST", v3+"/pushers/set", "demo-alice", mailPusher("alice@example.org"), 400, "")
	d.expect("POST", "/_demo/push/x", "demo-alice", "x", 404, "")
	d.expect("GET", "/_demo/worker.js", "demo-alice", "", 404, "")
	if got := d.do("GET", "/", "", ""); strings.Contains(got.body, "addBrowser") || strings.Contains(got.header.Get("Content-Security-Policy"), "worker;") {
		t.Error("the page has web push")
	}
}
