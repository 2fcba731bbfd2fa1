package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

func (d *demo) stream(token string) (next func() (name, data string)) {
	d.t.Helper()
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.url+"/_demo/notifications?access_token="+token, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	response, err := d.client.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { response.Body.Close() })
	if got := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || got != "text/event-stream" {
		d.t.Fatalf("got %d, %s", response.StatusCode, got)
	}
	lines := bufio.NewScanner(response.Body)
	return func() (name, data string) {
		for lines.Scan() {
			if after, found := strings.CutPrefix(lines.Text(), "event: "); found {
				name = after
			}
			if after, found := strings.CutPrefix(lines.Text(), "data: "); found {
				return name, after
			}
		}
		return "end", ""
	}
}

func (d *demo) expectEvent(next func() (name, data string), name, part string) {
	d.t.Helper()
	if gotName, data := next(); gotName != name || !strings.Contains(data, part) {
		d.t.Errorf("got %s %s, want %s with %s", gotName, data, name, part)
	}
}

func TestTheStreamHasNotificationsWithoutPushkeys(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("POST", receiver.Path, "", `{"notification":{"event_id":"$old","devices":[{"app_id":"a","pushkey":"secret","tweaks":{"sound":"x"}}]}}`, 200, "")
	next := d.stream("demo-alice")
	d.expectEvent(next, "gateway", `{"status":200,"url":"`+d.url+receiver.Path+`"}`)
	name, data := next()
	if name != "arrival" || strings.Contains(data, "secret") || !strings.Contains(data, `"notification":{"event_id":"$old"}`) || !strings.Contains(data, `"tweaks":{"sound":"x"}`) {
		t.Errorf("got %s %s", name, data)
	}

	d.expect("PUT", "/_demo/gateway", "demo-alice", `{"status":503}`, 200, "{}")
	d.expectEvent(next, "gateway", `"status":503`)
	d.expect("POST", receiver.Path, "", `{"notification":{"event_id":"$new","devices":[{"app_id":"a","pushkey":"b"}]}}`, 503, "")
	d.expectEvent(next, "arrival", `"status":503`)
	d.expect("PUT", "/_demo/gateway", "demo-alice", `{"status":99}`, 400, `{"errcode":"M_INVALID_PARAM","error":"Field 'status' must be 200 to 599."}`)
	d.expect("PUT", "/_demo/gateway", "", `{"status":200}`, 401, "")
	d.expect("GET", "/_demo/notifications", "", "", 401, "")

	d.cancel() // the host stops
	d.expectEvent(next, "end", "")
}

func TestTheStreamStartsWithTheLastNotifications(t *testing.T) {
	t.Parallel()
	g := newGateway(config{}, newWaker(), new(buffer))
	for range maxArrivals + 3 {
		g.arrived(receiver.Notification{Status: 200})
	}
	if news, count, _, _ := g.since(0); len(news) != maxArrivals || count != maxArrivals+3 {
		t.Errorf("got %d of %d", len(news), count)
	}
	if news, _, _, _ := g.since(maxArrivals + 1); len(news) != 2 {
		t.Errorf("got %d, want 2", len(news))
	}
}

func TestPushersShowTheirBacklog(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-gateway-status", "502")
	d.setPusherHere("demo-alice", "phone", `,"format":"event_id_only"`)
	d.expect("POST", v3+"/pushers/set", "demo-alice", `{"kind":"http","app_id":"app","pushkey":"off","app_display_name":"App",`+
		`"device_display_name":"Tablet","lang":"en","append":true,"enabled":false,"data":{"url":"`+d.url+receiver.Path+`"}}`, 200, "{}")
	states := func() (all []pusherState) {
		var got struct{ Pushers []pusherState }
		if err := json.Unmarshal([]byte(d.do("GET", "/_demo/pushers", "demo-alice", "").body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Pushers
	}
	if all := states(); len(all) != 2 || all[0].State != isWell || all[0].Format != "event_id_only" || all[1].State != isDisabled {
		t.Fatalf("got %+v", all)
	}
	d.expect("POST", sendPath, "demo-bob", `{"room_id":"!r:x","members":["@alice:localhost"],"type":"m.room.message","content":{"body":"Hello"}}`, 200, "")
	poll(t, "the pusher waits", func() bool {
		first := states()[0]
		return first.State == isWaiting && first.Backlog == 1 && first.Attempts > 0 && first.LastError == "502" && first.Failing > 0
	})
	d.expect("PUT", "/_demo/gateway", "demo-alice", `{"status":200}`, 200, "{}")
	poll(t, "the backlog is delivered", func() bool { return states()[0].State == isWell })
	d.expect("GET", "/_demo/pushers", "", "", 401, "")
}
