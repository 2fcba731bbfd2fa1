package pusher_test

import (
	"reflect"
	"testing"

	"github.com/pushfx/pushfx/module/pusher"
)

func TestAPusherIsStoredAndShownInAFixedForm(t *testing.T) {
	full := pusher.Pusher{
		Key: pusher.Key{AppID: "app \"<>&\u2028", Pushkey: "\x00\\/\U0001f600"}, Kind: pusher.Email,
		AppDisplayName: "", DeviceDisplayName: "Tel\u00e9", Lang: "de", Data: `{"url": "x", "n":1e400}`,
		Extra:  []pusher.Member{{Name: "profile_tag", Value: `"\u0061"`}, {Name: `x"y`, Value: "[0.10]"}},
		Device: `DEV"ICE`, Created: 9223372036854775807,
	}
	const common = `{"pushkey":"\u0000\\/` + "\U0001f600" + `","kind":"email","app_id":"app \"<>&` + "\u2028" +
		`","app_display_name":"","device_display_name":"Tel` + "\u00e9" + `","lang":"de","data":{"url": "x", "n":1e400},"profile_tag":"\u0061","x\"y":[0.10]`
	for name, test := range map[string]struct {
		pusher        pusher.Pusher
		shown, stored string
	}{
		"everything": {full, common + `}`, common + `,"created":9223372036854775807,"device_id":"DEV\"ICE"}`},
		"the least": {phone("key"),
			`{"pushkey":"key","kind":"http","app_id":"org.example.app","app_display_name":"App","device_display_name":"Phone","lang":"en",` +
				`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`,
			`{"pushkey":"key","kind":"http","app_id":"org.example.app","app_display_name":"App","device_display_name":"Phone","lang":"en",` +
				`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"},"created":0,"device_id":""}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(test.pusher.AppendJSON([]byte("x"))); got != "x"+test.shown {
				t.Errorf("shown as\n%s, want\n%s", got, test.shown)
			}
			if got := string(test.pusher.AppendStored([]byte("x"))); got != "x"+test.stored {
				t.Errorf("stored as\n%s, want\n%s", got, test.stored)
			}
			if got, err := pusher.ReadStored(test.stored); err != nil || !reflect.DeepEqual(got, test.pusher) {
				t.Errorf("read back as %+v, %v", got, err)
			}
		})
	}
}

func TestAStoredPusherMayLackWhatOlderOnesLacked(t *testing.T) {
	text := string(phone("key").AppendJSON(nil))
	if got, err := pusher.ReadStored(text); err != nil || !reflect.DeepEqual(got, phone("key")) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAnUnreadablePusherIsADatabaseError(t *testing.T) {
	stored := members()
	for name, test := range map[string]struct{ text, want string }{
		"nothing":               {``, "Not valid JSON: unexpected end"},
		"null":                  {`null`, "Must be an object"},
		"a list":                {`[]`, "Must be an object"},
		"empty":                 {`{}`, "Missing parameters: kind, app_id, pushkey, app_display_name, device_display_name, lang, data"},
		"trailing data":         {object(stored) + `1`, "Not valid JSON: more than one value"},
		"a null kind":           {`{"kind":null}`, "kind must be a string"},
		"a created of string":   {`{"created":"1"}`, "created must be an integer"},
		"a fractional created":  {`{"created":1.5}`, "created must be an integer"},
		"a null created":        {`{"created":null}`, "created must be an integer"},
		"too large a created":   {`{"created":9223372036854775808}`, "created must be an integer"},
		"a device_id of number": {`{"device_id":1}`, "device_id must be a string"},
		"data as string":        {`{"data":"{}"}`, "data must be an object"},
		"created twice":         {`{"created":1,"created":1}`, "Key given twice: created"},
	} {
		t.Run(name, func(t *testing.T) {
			got, cause := pusher.ReadStored(test.text)
			if cause == nil || !reflect.DeepEqual(got, pusher.Pusher{}) && name != "trailing data" {
				t.Fatalf("got %+v, %v", got, cause)
			}
			if text := describe(pusher.Unreadable(cause)); text != "database: Invalid pusher in database: "+test.want {
				t.Errorf("got %s", text)
			}
		})
	}
}

func FuzzReadStored(f *testing.F) {
	f.Add(object(members()))
	f.Add(string(phone("key").AppendStored(nil)))
	claimed := phone("key")
	claimed.Claim = pusher.RemoveOthers.Claim(7)
	f.Add(string(claimed.AppendStored(nil)))
	f.Add(`{"created":-0,"device_id":"\u0000","x":{"y":1e400}}`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := pusher.ReadStored(text)
		if err != nil {
			return
		}
		theirs, ours := decode(t, text), decode(t, string(p.AppendStored(nil)))
		for name, missing := range map[string]any{"created": ours["created"], "device_id": ""} {
			if _, given := theirs[name]; !given {
				theirs[name] = missing
			}
		}
		if theirs["created"] != ours["created"] && p.Created == 0 { // -0
			theirs["created"] = ours["created"]
		}
		delete(theirs, "claim") // without names that are not known
		delete(ours, "claim")
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%q: written anew as %v", text, ours)
		}
		again, err := pusher.ReadStored(string(p.AppendStored(nil)))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%q: read back as %+v, %v, want %+v", text, again, err, p)
		}
	})
}
