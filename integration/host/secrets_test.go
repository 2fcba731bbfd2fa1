package host

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

// hush are the secrets of the requests below. Only the answer to the client's own successful request may contain
// them.
var hush = struct{ pushkey, data, pattern string }{"hush-pushkey", "hush-data", "hush-pattern"}

// secretive are requests that succeed and together contain all secrets.
var secretive = []struct{ method, path, body string }{
	{http.MethodPost, "/pushers/set", `{"kind":"http","app_id":"app","pushkey":"` + hush.pushkey + `","app_display_name":"App",` +
		`"device_display_name":"Phone","lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify?` + hush.data +
		`","x":["` + hush.data + `"]},"append":false}`},
	{http.MethodPut, "/pushrules/global/content/word", `{"pattern":"` + hush.pattern + `","actions":["notify",{"set_tweak":"x","value":1}]}`},
	{http.MethodPut, "/pushrules/global/override/rule", `{"rule":{"conditions":[{"kind":"event_match","key":"a","pattern":"` +
		hush.pattern + `"}],"actions":[]},"before":""}`},
	{http.MethodPut, "/pushrules/global/content/word/actions", `{"actions":[{"set_tweak":"x","value":"` + hush.data + `"}]}`},
	{http.MethodPut, "/pushrules/global/content/word/enabled", `{"enabled":true,"x":"` + hush.pattern + `"}`},
}

// spoil returns variants of a body, most of them invalid: cut off anywhere, with a changed byte anywhere, with
// text before or after.
func spoil(body string) (bodies []string) {
	for i := range body {
		bodies = append(bodies, body[:i])
		for _, with := range []string{`"`, "{", "\xff", "0"} {
			bodies = append(bodies, body[:i]+with+body[i+1:])
		}
	}
	return append(bodies, body+body, body+"x", "["+body+"]", `{"action":`+body+`,"action":{}}`,
		strings.Repeat("[", 100)+body, strings.ReplaceAll(body, "hush-", "hush-"+strings.Repeat("x", 2000)),
		strings.ToUpper(body[:1])+strings.Replace(body, `"`, `"\ud800`, 1))
}

func TestNoSecretIsInALogOrInAnError(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	d := hosttest.StartDemo(t, "-redis-mode", "standalone", "-redis", server.Addr(), "-log-level", "debug")
	login := d.MustSend("", http.MethodPost, "/login",
		`{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},"password":"demo"}`)
	token := login["access_token"].(string)
	secret := func(text string) string {
		for _, s := range []string{hush.pushkey, hush.data, hush.pattern, token, token[len(token)-10:]} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(s)) {
				return s
			}
		}
		return ""
	}
	refused := 0
	send := func(method, path, body string) {
		t.Helper()
		status, answer := d.Raw(token, method, path, body)
		if status >= 400 {
			refused++
		}
		if s := secret(answer); s != "" && status >= 400 {
			t.Errorf("%s %s with %q: %d %s has %q", method, path, body, status, answer, s)
		}
		if status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusInternalServerError {
			t.Errorf("%s %s with %q: %d %s", method, path, body, status, answer)
		}
	}
	for _, r := range secretive {
		send(r.method, r.path, r.body)
		for n, body := range spoil(r.body) {
			query := ""
			if n%2 == 0 {
				query = "?access_token=" + url.QueryEscape(token) + "&after=" + hush.pattern
			}
			send(r.method, r.path+query, body)
		}
	}
	if refused < 1000 {
		t.Errorf("only %d requests were refused", refused)
	}
	for _, path := range []string{"/pushers", "/pushrules/", "/sync"} {
		if status, answer := d.Raw(token, http.MethodGet, path, ""); status != http.StatusOK {
			t.Errorf("after the accepted requests, GET %s: %d %s", path, status, answer)
		}
	}

	// The stored data becomes unreadable, and then Redis fails.
	admin := server.Client(t)
	for key, field := range map[string]string{"pushers:{@alice:localhost}": `["app","` + hush.pushkey + `"]`} {
		if err := admin.HSet(t.Context(), key, field, `{"pushkey":"`+hush.pushkey+`","data":{"`+hush.data).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Set(t.Context(), "account_data:{@alice:localhost}:m.push_rules",
		`{"content":{"global":{"content":[{"rule_id":"word","pattern":"`+hush.pattern+`","actions":"`+hush.data+`"}]}}}`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	everything := func() {
		for _, r := range secretive {
			send(r.method, r.path, r.body)
		}
		for _, path := range []string{"/pushers", "/pushrules/", "/pushrules/global/content/word", "/sync", "/sync?since=" + hush.data} {
			send(http.MethodGet, path, "")
		}
	}
	everything()
	server.Stop()
	everything()

	log := d.End()
	if !strings.Contains(log, "DEBUG") || !strings.Contains(log, "request failed") {
		t.Errorf("the log has neither requests nor failures:\n%s", log[:min(len(log), 1000)])
	}
	for _, line := range strings.Split(log, "\n") {
		if s := secret(line); s != "" {
			t.Errorf("%q is in the log: %s", s, line)
		}
	}
}
