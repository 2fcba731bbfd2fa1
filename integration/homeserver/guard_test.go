package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

func TestPagesOfOtherSitesCannotUseTheDemo(t *testing.T) {
	t.Parallel()
	const here, send = "127.0.0.1:8008", "/_demo/send"
	for _, test := range []struct {
		name   string
		config config
		host   string
		path   string
		header [2]string
		want   bool
	}{
		{name: "a program", host: here, path: send, want: true},
		{name: "the page", host: here, path: send, header: [2]string{"Origin", "http://127.0.0.1:8008"}, want: true},
		{name: "another page", host: here, path: send, header: [2]string{"Origin", "https://evil.example"}},
		{name: "another page's gateway", host: here, path: receiver.Path, header: [2]string{"Origin", "https://evil.example"}},
		{name: "another port", host: here, path: send, header: [2]string{"Origin", "http://127.0.0.1:3000"}},
		{name: "the page without an Origin", host: here, path: send, header: [2]string{"Sec-Fetch-Site", "same-origin"}, want: true},
		{name: "an address typed in", host: here, path: "/_demo/gateway", header: [2]string{"Sec-Fetch-Site", "none"}, want: true},
		{name: "a link to the page", host: here, path: "/", header: [2]string{"Sec-Fetch-Site", "cross-site"}, want: true},
		{name: "an attacker's name", host: "evil.example:8008", path: send, header: [2]string{"Origin", "http://evil.example:8008"}},
		{name: "an attacker's name, the page", host: "evil.example:8008", path: "/"},
		{name: "no name", path: send},
		{name: "localhost", host: "LocalHost.:8008", path: send, want: true},
		{name: "an address of the network", config: config{listen: "0.0.0.0:8008"}, host: "192.0.2.7:8008", path: send, want: true},
		{name: "the name in -listen", config: config{listen: "demo.example:8008"}, host: "demo.example:8008", path: send, want: true},
		{name: "a token in the address", host: here, path: send + "?access_token=demo-alice"},
		{name: "Matrix", host: "any.example", path: v3 + "/sync?access_token=demo-alice", header: [2]string{"Origin", "https://any.example"}, want: true},
	} {
		r := httptest.NewRequest(http.MethodPost, test.path, nil)
		r.Host = test.host
		if test.header[0] != "" {
			r.Header.Set(test.header[0], test.header[1])
		}
		if err := newGuard(test.config).check(r); (err == nil) != test.want {
			t.Errorf("%s: got %v", test.name, err)
		}
	}
}

func TestRefusedRequestsDoNothing(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("PUT", "/_demo/gateway?access_token=demo-alice", "", `{"status":502}`, 400,
		`{"errcode":"M_INVALID_PARAM","error":"Send the token in the Authorization header: addresses are logged."}`)
	for name, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Host": "evil.example"} {
		for _, method := range []string{"PUT", "POST"} {
			r := httptest.NewRequest(method, d.url+"/_demo/gateway", strings.NewReader(`{"status":502}`))
			r.RequestURI = ""
			r.Header.Set("Authorization", "Bearer demo-alice")
			r.Header.Set(name, value)
			if name == "Host" {
				r.Host = value
			}
			got, err := d.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got.Body.Close()
			if got.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %s %s: got %d", method, name, value, got.StatusCode)
			}
		}
	}
	d.expect("POST", receiver.Path, "", `{"notification":{"devices":[{"app_id":"a","pushkey":"b"}]}}`, 200, "")
}
