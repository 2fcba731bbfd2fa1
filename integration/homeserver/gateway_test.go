package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

func (d *demo) stream(token string) (next func() (name, data string)) {
	d.t.Helper()
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.url+"/_demo/notifications", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
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
	large := json.RawMessage(strconv.Quote(strings.Repeat("x", maxArrivalBytes/4)))
	for range 5 {
		g.arrived(receiver.Notification{Status: 200, Others: map[string]json.RawMessage{"content": large}})
	}
	if news, _, _, _ := g.since(0); len(news) != 3 {
		t.Errorf("got %d large ones, want 3", len(news))
	}
}

// FuzzGateway posts any body. The gateway must refuse it, or stream one line of JSON with its
// devices and without their pushkeys.
func FuzzGateway(f *testing.F) {
	for _, body := range []string{
		`{"notification":{"event_id":"$a","devices":[{"app_id":"a","pushkey":"hush","tweaks":{"sound":"x"}}]}}`,
		`{"notification":{"counts":{"unread":1},"Devices":[],"devices":[{"app_id":"a","pushkey":"hush"},{"app_id":"b","pushkey":"hush"}]}}`,
		`{"notification":{"Devices":[{"app_id":"a","pushkey":"hush"}]}}`,
		"{\"notification\":{\"type\":\"x\",\"content\":{\"body\":\"\\n\"},\n\"devices\":[{\"app_id\":\"\\u2028\",\"pushkey\":\"hush\"}]}}",
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		g := newGateway(config{}, newWaker(), new(buffer))
		w := httptest.NewRecorder()
		g.receiver.ServeHTTP(w, httptest.NewRequest(http.MethodPost, receiver.Path, strings.NewReader(body)))
		news, _, _, _ := g.since(0)
		if w.Code != http.StatusOK {
			if len(news) != 0 {
				t.Fatalf("refused and streamed: %q", news)
			}
			return
		}
		data, found := strings.CutPrefix(strings.Join(news, ""), "event: arrival\ndata: ")
		var got arrival
		if err := json.Unmarshal([]byte(data), &got); err != nil || !found || strings.Count(data, "\n") != 2 || len(got.Devices) == 0 {
			t.Fatalf("%q is streamed as %q: %v", body, news, err)
		}
		if got.Notification["devices"] != nil {
			t.Fatalf("%q is streamed with pushkeys: %q", body, news)
		}
	})
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
	if all := states(); len(all) != 2 || all[0].State != isOK || all[0].Format != "event_id_only" || all[1].State != isDisabled {
		t.Fatalf("got %+v", all)
	}
	d.expect("POST", sendPath, "demo-bob", `{"room_id":"!r:x","members":["@alice:localhost"],"type":"m.room.message","content":{"body":"Hello"}}`, 200, "")
	poll(t, "the pusher waits", func() bool {
		first := states()[0]
		return first.State == isWaiting && first.Backlog == 1 && first.Attempts > 0 && first.LastError == "502" && first.Failing > 0
	})
	d.expect("PUT", "/_demo/gateway", "demo-alice", `{"status":200}`, 200, "{}")
	poll(t, "the backlog is delivered", func() bool { return states()[0].State == isOK })
	d.expect("GET", "/_demo/pushers", "", "", 401, "")
}
