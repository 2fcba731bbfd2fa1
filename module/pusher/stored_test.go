package pusher_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/pusher"
)

func TestPusherHasFixedForms(t *testing.T) {
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
		"all members": {full, common + `}`, common + `,"created":9223372036854775807,"device_id":"DEV\"ICE"` + noClaim},
		"only required members": {phone("key"),
			`{"pushkey":"key","kind":"http","app_id":"org.example.app","app_display_name":"App","device_display_name":"Phone","lang":"en",` +
				`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`,
			`{"pushkey":"key","kind":"http","app_id":"org.example.app","app_display_name":"App","device_display_name":"Phone","lang":"en",` +
				`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"},"created":0,"device_id":""` + noClaim},
		"a claim": {claimed(7, 0), shownPhone + `}`, shownPhone + `,"created":0,"device_id":"","claim":{"number":7,"set_at":0}}`},
		"a claim and the time of the last set": {claimed(7, 9), shownPhone + `}`,
			shownPhone + `,"created":0,"device_id":"","claim":{"number":7,"set_at":9}}`},
		"the time of the last set, without a claim": {claimed(0, 9), shownPhone + `}`,
			shownPhone + `,"created":0,"device_id":"","claim":{"number":0,"set_at":9}}`},
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

const noClaim = `,"claim":{"number":0,"set_at":0}}`

const shownPhone = `{"pushkey":"key","kind":"http","app_id":"org.example.app","app_display_name":"App","device_display_name":"Phone","lang":"en",` +
	`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}`

func claimed(number, setAt int64) pusher.Pusher {
	p := phone("key")
	p.Claim, p.SetAt = number, setAt
	return p
}

func TestPusherIsEnabledUnlessItsClientDisabledIt(t *testing.T) {
	const stable, unstable = "enabled", "org.matrix.msc3881.enabled"
	for name, test := range map[string]struct {
		extra []pusher.Member
		want  bool
	}{
		"not specified":                    {nil, true},
		"enabled":                          {[]pusher.Member{{Name: stable, Value: "true"}}, true},
		"disabled":                         {[]pusher.Member{{Name: "x", Value: "1"}, {Name: stable, Value: "false"}}, false},
		"disabled by the unstable name":    {[]pusher.Member{{Name: unstable, Value: "false"}}, false},
		"disabled only by the stable name": {[]pusher.Member{{Name: unstable, Value: "true"}, {Name: stable, Value: "false"}}, false},
		"enabled by the stable name":       {[]pusher.Member{{Name: unstable, Value: "false"}, {Name: stable, Value: "true"}}, true},
		"neither true nor false":           {[]pusher.Member{{Name: stable, Value: `"false"`}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := phone("key")
			p.Extra = test.extra
			if got := p.Enabled(); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestUnreadablePusherIsADatabaseError(t *testing.T) {
	stored := members()
	for name, test := range map[string]struct{ text, want string }{
		"an empty text":         {``, "Not valid JSON: unexpected end"},
		"null":                  {`null`, "Must be an object"},
		"a list":                {`[]`, "Must be an object"},
		"an empty object":       {`{}`, "Missing parameters: kind, created, device_id, claim, app_id, pushkey, app_display_name, device_display_name, lang, data"},
		"trailing data":         {object(stored) + `1`, "Not valid JSON: more than one value"},
		"a null kind":           {`{"kind":null}`, "kind must be a string"},
		"a created of string":   {`{"created":"1"}`, "created must be an integer"},
		"a fractional created":  {`{"created":1.5}`, "created must be an integer"},
		"a null created":        {`{"created":null}`, "created must be an integer"},
		"too large a created":   {`{"created":9223372036854775808}`, "created must be an integer"},
		"a device_id of number": {`{"device_id":1}`, "device_id must be a string"},
		"data as string":        {`{"data":"{}"}`, "data must be an object"},
		"duplicate created":     {`{"created":1,"created":1}`, "Key given twice: created"},
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
	f.Add(string(claimed(7, 0).AppendStored(nil)))
	f.Add(string(claimed(7, 9).AppendStored(nil)))
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
		delete(theirs, "claim") // unknown members of claims are not kept
		delete(ours, "claim")
		if !reflect.DeepEqual(ours, theirs) {
			t.Errorf("%q: written back as %v", text, ours)
		}
		again, err := pusher.ReadStored(string(p.AppendStored(nil)))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%q: read back as %+v, %v, want %+v", text, again, err, p)
		}
	})
}

// fullPusher has a value in each field.
func fullPusher() pusher.Pusher {
	full := claimed(7, 9)
	full.Extra = []pusher.Member{{Name: "x", Value: "1"}}
	full.Device, full.Created = "DEV", 5
	full.Kind, full.Activated = pusher.WebPush, true
	return full
}

// Each field is in the stored form, in the form for clients and in the comparisons, unless serverFields has it.
func TestEveryFieldIsStoredShownAndCompared(t *testing.T) {
	serverFields := []string{"Device", "Created", "Claim", "SetAt", "Activated"} // clients do not set them
	full := fullPusher()
	stored, shown := string(full.AppendStored(nil)), string(full.AppendJSON(nil))
	switched := full
	switched.Extra = append([]pusher.Member{{Name: "enabled", Value: "false"}}, full.Extra...)
	for _, field := range reflect.VisibleFields(reflect.TypeOf(full)) {
		if field.Anonymous {
			continue // its fields follow
		}
		without := full
		reflect.ValueOf(&without).Elem().FieldByIndex(field.Index).SetZero()
		if string(without.AppendStored(nil)) == stored {
			t.Errorf("the stored form lacks the field %s, or fullPusher does", field.Name)
		}
		isServers := slices.Contains(serverFields, field.Name)
		if isShown := string(without.AppendJSON(nil)) != shown; isShown == (isServers && field.Name != "Activated") {
			t.Errorf("clients see the field %s: %t", field.Name, isShown)
		}
		if without.DiffersOnlyInEnabled(switched) != isServers {
			t.Errorf("DiffersOnlyInEnabled ignores the field %s: %t", field.Name, !isServers)
		}
	}
	if got, err := pusher.ReadStored(stored); err != nil || !got.Equal(full) {
		t.Errorf("read back as %+v, %v", got, err)
	}
	change, err := read(shown)
	if err != nil {
		t.Fatal(err)
	}
	got := *change.Pusher
	got.Device, got.Created, got.Claim, got.SetAt, got.Activated = full.Device, full.Created, full.Claim, full.SetAt, full.Activated
	if !got.Equal(full) {
		t.Errorf("set by a client as %+v", got)
	}
}

func TestEqualComparesEveryField(t *testing.T) {
	full := fullPusher()
	same := full
	same.Extra = []pusher.Member{{Name: "x", Value: "1"}}
	if !full.Equal(same) {
		t.Error("equal pushers differ")
	}
	value := reflect.ValueOf(full)
	for i := range value.NumField() {
		other := full
		reflect.ValueOf(&other).Elem().Field(i).SetZero()
		if other.Equal(full) || full.Equal(other) {
			t.Errorf("Equal ignores the field %s", value.Type().Field(i).Name)
		}
	}
	one, two := pusher.NewList(full), pusher.NewList(full, phone("b"))
	if !one.Equal(pusher.NewList(same)) || one.Equal(two) || two.Equal(one) || one.Equal(pusher.NewList(phone("b"))) {
		t.Error("lists are compared wrongly")
	}
}
