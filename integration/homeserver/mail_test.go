package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/smtp"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pushfx/pushfx/integration/hosttest"
)

const markup = `<img src=x onerror=alert(1)>`

const hostileMail = "From: <no-reply@example.org>\r\nTo: <alice@example.org>\r\nSubject: " + markup + "\r\n" +
	"List-Unsubscribe: <javascript:alert(1)>\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" +
	`<!doctype html><html><head><style>p { color: red }</style></head><body><p>Tea?</p><script>alert(1)</script>` + markup +
	`<img src="http://127.0.0.1:9/pixel"><form action="http://127.0.0.1:9/"><button>Go</button></form></body></html>` + "\r\n"

// sendToInbox sends a mail to the inbox of the demo.
func (d *demo) sendToInbox(mail string) {
	d.t.Helper()
	address := regexp.MustCompile(`Mail: smtp://(\S+),`).FindStringSubmatch(strings.Join(d.greeting, "\n"))[1]
	if err := smtp.SendMail(address, nil, "bounces@example.org", []string{"alice@example.org"}, []byte(mail)); err != nil {
		d.t.Fatal(err)
	}
}

func TestMailsAreStreamed(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-mail", "inbox")
	next := d.stream("demo-alice")
	d.expectEvent(next, "gateway", `{"inbox":true,"mail":"example.org","status":200,`)
	d.sendToInbox(hostileMail)
	name, data := next()
	var got mailArrival
	if err := json.Unmarshal([]byte(data), &got); err != nil || name != "mail" || got.Subject != markup || got.Unsubscribe != "" || got.To[0] != "alice@example.org" {
		t.Errorf("got %s %s, %v", name, data, err)
	}
	html := d.do("GET", "/_demo/mails/"+got.ID, "", "")
	if html.status != 200 || !strings.HasPrefix(html.body, `<!doctype html><html><head><base target="_blank"><style>`) {
		t.Errorf("got %d %s", html.status, html.body)
	}
	if policy := html.header.Get("Content-Security-Policy"); policy != mailPolicy || strings.Contains(policy, "allow-scripts") {
		t.Errorf("got %s", policy)
	}
	d.expect("GET", "/_demo/mails/x", "", "", 404, "")
	d.expect("GET", v3+"/account/3pid", "demo-alice", "", 200,
		`{"threepids":[{"added_at":0,"address":"alice@example.org","medium":"email","validated_at":0}]}`)
	for _, address := range []string{"bob@example.org", "alice@example.com", "alice+x@example.org", "Alice <alice@example.org>"} {
		d.expect("POST", v3+"/pushers/set", "demo-alice", mailPusher(address), 400, "") // the user's own address alone
	}
	d.expect("POST", v3+"/pushers/set", "demo-alice", mailPusher("alice@example.org"), 200, "{}")
}

func mailPusher(address string) string {
	return `{"kind":"email","app_id":"m.email","pushkey":"` + address + `","app_display_name":"Mail","device_display_name":"mail","lang":"en","data":{}}`
}

func TestAMailAndItsLink(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-mail", "inbox", "-mail-delay", "1s")
	next := d.stream("demo-alice")
	next()
	for _, want := range []int{1, 2} { // after the link, the user sets the pusher again
		d.expect("POST", v3+"/pushers/set", "demo-alice", mailPusher("alice@example.org"), 200, "{}")
		d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(`{"event_id":"$%d","room_id":"!tea:localhost","room_name":"Tea","members":["@alice:localhost"],`+
			`"type":"m.room.message","content":{"msgtype":"m.text","body":%q}}`, want, "Tea? "+markup), 200, "")
		name, data := next()
		var got mailArrival
		if err := json.Unmarshal([]byte(data), &got); err != nil || name != "mail" || got.Subject != "New message from bob in Tea" || got.To[0] != "alice@example.org" ||
			!strings.Contains(got.Text, "Tea? "+markup) || !strings.HasPrefix(got.Sender, "bounces+") {
			t.Fatalf("got %s %s, %v", name, data, err)
		}
		if html := d.do("GET", "/_demo/mails/"+got.ID, "", ""); strings.Contains(html.body, "<img") || !strings.Contains(html.body, "&lt;img src=x onerror=alert(1)&gt;") {
			t.Errorf("got %s", html.body)
		}
		link, isOurs := strings.CutPrefix(got.Unsubscribe, d.url)
		if !isOurs || !strings.Contains(got.Head, "List-Unsubscribe: <http") {
			t.Errorf("the link is %s, the headers are %s", got.Unsubscribe, got.Head)
		}
		pushers := func() string { return d.do("GET", v3+"/pushers", "demo-alice", "").body }
		d.expect("GET", link, "", "", 200, "") // as a scanner does
		if !strings.Contains(pushers(), "m.email") {
			t.Error("a scanner stops mails")
		}
		for range 2 {
			d.expect("POST", link, "", "List-Unsubscribe=One-Click", 200, "")
			if got := pushers(); got != `{"pushers":[]}` {
				t.Errorf("the pusher is left: %s", got)
			}
		}
	}
}

// The page shows a mail's HTML, but runs and loads nothing of it.
func TestThePageShowsMails(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-mail", "inbox")
	b := openPage(t, d.url)
	b.wait(`!document.getElementById('mailbox').hidden && document.querySelectorAll('.pusher').length === 5`)
	d.sendToInbox(hostileMail)
	b.wait(`document.querySelector('#mails strong').innerText === '` + markup + `' && document.querySelector('#mails iframe').clientHeight > 100`)
	b.wait(`[...document.querySelectorAll('#mails pre')].at(-1).textContent.startsWith('MAIL FROM:<bounces@example.org>\nFrom: ')`)
	if n := get[int](b, `document.querySelectorAll('img, #mails a').length`); n != 0 {
		t.Errorf("%d pictures or links came from a mail", n)
	}
	b.do(chromedp.EmulateViewport(360, 800))
	get[bool](b, `document.querySelectorAll('details').forEach(d => { d.open = true }) === undefined`)
	if cut := get[[]string](b, `[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)`); len(cut) > 0 {
		t.Errorf("cut off at 360 pixels: %q", cut)
	}
}

func TestAUserIgnoresTheSenderBeforeTheMail(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-mail", "inbox", "-mail-delay", "5s")
	next := d.stream("demo-alice")
	next()
	d.expect("POST", v3+"/pushers/set", "demo-alice", mailPusher("alice@example.org"), 200, "{}")
	for _, token := range []string{"demo-bob", "demo-dave"} {
		d.expect("POST", sendPath, token, `{"room_id":"!tea:localhost","room_name":"Tea","members":["@alice:localhost","@bob:localhost","@dave:localhost"],`+
			`"type":"m.room.message","content":{"msgtype":"m.text","body":"Tea?"}}`, 200, "")
	}
	d.expect("PUT", v3+"/user/@alice:localhost/account_data/m.ignored_user_list", "demo-alice", `{"ignored_users":{"@bob:localhost":{}}}`, 200, "{}")
	for {
		name, data := next()
		if name != "mail" {
			continue
		}
		var got mailArrival
		if err := json.Unmarshal([]byte(data), &got); err != nil || got.Subject != "New message from dave in Tea" || strings.Contains(got.Text, "bob") {
			t.Errorf("got %s %s, %v", name, data, err)
		}
		return
	}
}

// While the host waits for its Redis at the start, clients cannot connect.
func TestThePortOpensWhenTheHostIsReady(t *testing.T) {
	t.Parallel()
	var listeners [2]net.Listener // a Redis that never answers, and the port of the host
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		defer listeners[i].Close()
	}
	address := listeners[1].Addr().String()
	listeners[1].Close()
	exited := make(chan int)
	go func() {
		exited <- run(t.Context(), []string{
			"-listen", address, "-mail", "inbox", "-redis-mode", "standalone", "-redis", listeners[0].Addr().String(), "-data", hosttest.DataFile(t),
		}, io.Discard, io.Discard)
	}()
	if _, err := listeners[0].Accept(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("the port is open before the host is ready")
	}
	listeners[0].Close()
	if status := <-exited; status != exitFailure {
		t.Errorf("got status %d", status)
	}
}
