package pusher_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

func TestPolicyChecksURLs(t *testing.T) {
	const path = pusher.NotifyPath
	type allowed int
	const (
		never allowed = iota
		always
		withHTTP // if the host allows plain http
	)
	for name, test := range map[string]struct {
		url  string // as JSON
		want allowed
	}{
		"https":                       {`"https://push.example.org` + path + `"`, always},
		"http":                        {`"http://push.example.org` + path + `"`, withHTTP},
		"a scheme in capitals":        {`"HTTPS://push.example.org` + path + `"`, always},
		"a port":                      {`"https://push.example.org:8443` + path + `"`, always},
		"a single label":              {`"http://gateway` + path + `"`, withHTTP},
		"a query":                     {`"https://push.example.org` + path + `?a=b&c"`, always},
		"an empty query":              {`"https://push.example.org` + path + `?"`, always},
		"JSON escapes":                {`"https:\/\/push.example.org\/\u005fmatrix\/push\/v1\/notify"`, always},
		"ftp":                         {`"ftp://push.example.org` + path + `"`, never},
		"no scheme":                   {`"//push.example.org` + path + `"`, never},
		"only a path":                 {`"` + path + `"`, never},
		"no host":                     {`"https://` + path + `"`, never},
		"a port that is too high":     {`"https://push.example.org:65536` + path + `"`, never},
		"port 0":                      {`"https://push.example.org:0` + path + `"`, never},
		"the highest port":            {`"https://push.example.org:65535` + path + `"`, always},
		"no port after the colon":     {`"https://push.example.org:` + path + `"`, always},
		"a user and a password":       {`"https://alice:secret@push.example.org` + path + `"`, never},
		"a fragment":                  {`"https://push.example.org` + path + `#a"`, never},
		"no path":                     {`"https://push.example.org"`, never},
		"a trailing slash":            {`"https://push.example.org` + path + `/"`, never},
		"a prefix":                    {`"https://push.example.org/x` + path + `"`, never},
		"a path in capitals":          {`"https://push.example.org/_MATRIX/push/v1/notify"`, never},
		"an older version":            {`"https://push.example.org/_matrix/push/r0/notify"`, never},
		"a dot segment":               {`"https://push.example.org/./_matrix/push/v1/notify"`, never},
		"an encoded path":             {`"https://push.example.org/%5Fmatrix/push/v1/notify"`, never},
		"an encoded slash":            {`"https://push.example.org/_matrix%2Fpush/v1/notify"`, never},
		"the path within the query":   {`"https://push.example.org/?` + path + `"`, never},
		"a space after":               {`"https://push.example.org` + path + ` "`, never},
		"NUL":                         {`"https://push.example.org\u0000` + path + `"`, never},
		"a space in the host":         {`"https://push example.org` + path + `"`, never},
		"a backslash in the host":     {`"https://push.example.org\\@evil.example` + path + `"`, never},
		"an encoded host":             {`"https://push%2Eexample.org` + path + `"`, never},
		"a wrong escape in the query": {`"https://push.example.org` + path + `?%zz"`, always},
		"empty":                       {`""`, never},
	} {
		t.Run(name, func(t *testing.T) {
			p := phone("key")
			p.Data = `{"format":"event_id_only","url":` + test.url + `}`
			policy := pusher.DefaultPolicy()
			const refusal = "invalid_param: data.url must be an absolute %s URL with the path /_matrix/push/v1/notify, without user info or fragment."
			for schemes, ok := range map[string]bool{"https": test.want == always, "https or http": test.want != never} {
				policy.AllowHTTP = schemes != "https"
				want := fmt.Sprintf(refusal, schemes)
				if ok {
					want = ""
				}
				if got := describe(policy.Check(p)); got != want {
					t.Errorf("%s: got %q, want %q", schemes, got, want)
				}
			}
			p.Kind, p.AppID, p.Pushkey, policy.Email = pusher.Email, pusher.EmailAppID, "a@example.org", anyAddress
			if got := describe(policy.Check(p)); got != "" {
				t.Errorf("an email pusher's URL was checked: %s", got)
			}
		})
	}
}

func anyAddress(context.Context, mxid.UserID, string) (bool, error) { return true, nil }

func TestHostThatSendsMailAcceptsEmailPushers(t *testing.T) {
	policy := pusher.DefaultPolicy()
	policy.Email = anyAddress
	for name, test := range map[string]struct {
		change func(*pusher.Pusher)
		want   string
	}{
		"an email pusher":         {func(p *pusher.Pusher) { p.AppID = pusher.EmailAppID }, ""},
		"wrong app_id":            {func(*pusher.Pusher) {}, "invalid_param: app_id of an email pusher must be 'm.email'."},
		"http pusher with app_id": {func(p *pusher.Pusher) { p.Kind, p.AppID = pusher.HTTP, pusher.EmailAppID }, "invalid_param: app_id 'm.email' is for email pushers."},
		"an unknown kind":         {func(p *pusher.Pusher) { p.Kind = "sms" }, "invalid_param: kind must be 'http', 'email' or null."},
		"long data":               {func(p *pusher.Pusher) { p.Data = `{` + strings.Repeat(" ", 16<<10) + `}` }, "invalid_param: data longer than 16384 bytes."},
	} {
		p := phone("a+tag@example.org")
		p.Kind, p.Data = pusher.Email, `{}`
		test.change(&p)
		if got := describe(policy.Check(p)); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	for _, address := range []string{"key", "a@", "@example.org", "a..b@example.org", `"a b"@example.org`, "A <a@example.org>", "a@example.org, b@example.org",
		"a@example.org\r\nBcc: b@example.org", " a@example.org", "a@exam ple.org", "<a@example.org>", "a@example.org (x)"} {
		p := phone(address)
		p.Kind, p.AppID, p.Data = pusher.Email, pusher.EmailAppID, `{}`
		if got := describe(policy.Check(p)); got != "invalid_param: pushkey of an email pusher must be an email address." {
			t.Errorf("%q: got %q", address, got)
		}
	}
}

func TestPolicyChecksPushers(t *testing.T) {
	policy := pusher.Policy{MaxPushers: 2, MaxPushkeyBytes: 8, MaxAppIDChars: 4, MaxDataBytes: 120, MaxURLBytes: 60}
	refuses := "invalid_param: kind must be 'http' or null: this server sends no email."
	url := "https://p.example" + pusher.NotifyPath // 40 bytes
	urlOf := func(size int) string { return `{"url":"` + url + "?" + strings.Repeat("x", size-len(url)-1) + `"}` }
	for name, test := range map[string]struct {
		change func(*pusher.Pusher)
		want   string
	}{
		"within all limits":          {func(*pusher.Pusher) {}, ""},
		"an email pusher":            {func(p *pusher.Pusher) { p.Kind, p.Data = pusher.Email, `{}` }, refuses},
		"an app_id at its limit":     {func(p *pusher.Pusher) { p.AppID = "\U0001f600\U0001f600\U0001f600\U0001f600" }, ""},
		"a pushkey at its limit":     {func(p *pusher.Pusher) { p.Pushkey = "\U0001f600\U0001f600" }, ""},
		"a URL at its limit":         {func(p *pusher.Pusher) { p.Data = urlOf(60) }, ""},
		"data at its limit":          {func(p *pusher.Pusher) { p.Data += strings.Repeat(" ", 120-len(p.Data)) }, ""},
		"no app_id":                  {func(p *pusher.Pusher) { p.AppID = "" }, "invalid_param: app_id must not be empty."},
		"no pushkey":                 {func(p *pusher.Pusher) { p.Pushkey = "" }, "invalid_param: pushkey must not be empty."},
		"a long app_id":              {func(p *pusher.Pusher) { p.AppID = "abcde" }, "invalid_param: app_id longer than 4 characters."},
		"a long pushkey":             {func(p *pusher.Pusher) { p.Pushkey = "\U0001f600\U0001f600x" }, "invalid_param: pushkey longer than 8 bytes."},
		"long data":                  {func(p *pusher.Pusher) { p.Data += strings.Repeat(" ", 121-len(p.Data)) }, "invalid_param: data longer than 120 bytes."},
		"a long URL":                 {func(p *pusher.Pusher) { p.Data = urlOf(61) }, "invalid_param: data.url longer than 60 bytes."},
		"long data, email":           {func(p *pusher.Pusher) { p.Kind, p.Data = pusher.Email, `{`+strings.Repeat(" ", 120)+`}` }, "invalid_param: data longer than 120 bytes."},
		"no kind":                    {func(p *pusher.Pusher) { p.Kind = "" }, "invalid_param: kind must be 'http' or null."},
		"an unknown kind":            {func(p *pusher.Pusher) { p.Kind = "sms" }, "invalid_param: kind must be 'http' or null."},
		"a kind in capitals":         {func(p *pusher.Pusher) { p.Kind = "HTTP" }, "invalid_param: kind must be 'http' or null."},
		"no URL":                     {func(p *pusher.Pusher) { p.Data = `{}` }, "missing_param: Missing parameter: data.url"},
		"a URL in capitals":          {func(p *pusher.Pusher) { p.Data = `{"URL":"` + url + `"}` }, "missing_param: Missing parameter: data.url"},
		"a nested URL":               {func(p *pusher.Pusher) { p.Data = `{"x":{"url":"` + url + `"}}` }, "missing_param: Missing parameter: data.url"},
		"a null URL":                 {func(p *pusher.Pusher) { p.Data = `{"url":null}` }, "bad_json: data.url must be a string"},
		"a URL that is an object":    {func(p *pusher.Pusher) { p.Data = `{"x":1,"url":{}}` }, "bad_json: data.url must be a string"},
		"data that is not an object": {func(p *pusher.Pusher) { p.Data = `[]` }, "bad_json: Must be an object"},
		"a missing app_id and kind":  {func(p *pusher.Pusher) { p.AppID, p.Kind = "", "" }, "invalid_param: app_id must not be empty."},
		"a long app_id without kind": {func(p *pusher.Pusher) { p.AppID, p.Kind = "abcde", "" }, "invalid_param: app_id longer than 4 characters."},
	} {
		t.Run(name, func(t *testing.T) {
			p := phone("key")
			p.AppID, p.Data = "app", `{"url":"`+url+`"}`
			test.change(&p)
			if got := describe(policy.Check(p)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestPolicyLimitsTheNumberOfPushers(t *testing.T) {
	policy := pusher.DefaultPolicy()
	policy.MaxPushers = 2
	const refusal = "invalid_param: A user has at most 2 pushers."
	for name, test := range map[string]struct {
		before, after int
		want          string
	}{
		"up to the limit":                  {1, 2, ""},
		"over the limit":                   {2, 3, refusal},
		"over the limit before, not grown": {3, 3, ""},
		"over the limit before, shrunk":    {5, 4, ""},
		"over the limit before, grown":     {3, 4, refusal},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := phones(test.before), phones(test.after)
			if got := describe(policy.CheckGrowth(before.Size(), after.Size())); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func phones(number int) (l pusher.List) {
	for i := range number {
		l.Set(phone(fmt.Sprint(i)))
	}
	return l
}

func TestPolicyLimitsTheBytesOfAllPushers(t *testing.T) {
	sized := func(sizes ...int) (l pusher.List) {
		for i, size := range sizes {
			p := pusher.Pusher{Key: pusher.Key{AppID: "a", Pushkey: fmt.Sprint(i)}, Created: 1, Data: "{}"}
			stored := len(p.Field()) + len(p.AppendStored(nil))
			p.Lang = strings.Repeat("\x01", (size-stored)/len(`\u0001`)) // a control character takes six bytes
			p.Lang += strings.Repeat("x", (size-stored)%len(`\u0001`))
			l.Set(p)
		}
		return l
	}
	policy := pusher.DefaultPolicy()
	policy.MaxListBytes = 1000
	const refusal = "too_large: Pushers larger than 1000 bytes."
	for name, test := range map[string]struct {
		before, after pusher.List
		want          string
	}{
		"up to the limit":                   {sized(500), sized(500, 500), ""},
		"over the limit":                    {sized(500), sized(500, 501), refusal},
		"a larger replacement":              {sized(500, 500), sized(501, 500), refusal},
		"over the limit before, not larger": {sized(1000, 500), sized(900, 600), ""},
		"over the limit before, larger":     {sized(1000, 500), sized(1000, 501), refusal},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(policy.CheckGrowth(test.before.Size(), test.after.Size())); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestValidateNamesEachWrongLimitAndPrefix(t *testing.T) {
	if err := pusher.DefaultPolicy().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	const want = "MaxPushers is 0, want at least 1\nMaxListBytes is 0, want at least 1\nMaxPushkeyBytes is -1, want at least 1\nMaxAppIDChars is 0, want at least 1\n" +
		"MaxDataBytes is 0, want at least 1\nMaxURLBytes is 0, want at least 1"
	if err := (pusher.Policy{MaxPushkeyBytes: -1}).Validate(); fmt.Sprint(err) != want {
		t.Errorf("got %v", err)
	}
	loose := pusher.DefaultPolicy()
	loose.AllowedPrefixes = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), {}, netip.MustParsePrefix("10.1.2.3/8"),
		netip.MustParsePrefix("::ffff:10.0.0.0/104"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("0.0.0.0/0"),
	}
	const faults = "AllowedPrefixes[1] is invalid Prefix, want an IPv4 or IPv6 prefix\n" +
		"AllowedPrefixes[2] is 10.1.2.3/8, want 10.0.0.0/8\nAllowedPrefixes[3] is ::ffff:10.0.0.0/104, want an IPv4 prefix"
	if err := loose.Validate(); fmt.Sprint(err) != faults {
		t.Errorf("got %v", err)
	}
	one := pusher.DefaultPolicy()
	one.MaxURLBytes = 0
	if err := one.Validate(); fmt.Sprint(err) != "MaxURLBytes is 0, want at least 1" {
		t.Errorf("got %v", err)
	}
}
