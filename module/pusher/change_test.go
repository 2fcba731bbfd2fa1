package pusher_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

func members() map[string]string {
	return map[string]string{
		"kind": `"http"`, "app_id": `"org.example.app"`, "pushkey": `"key"`, "app_display_name": `"App"`,
		"device_display_name": `"Phone"`, "lang": `"en"`, "data": `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}
}

func object(members map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		parts = append(parts, `"`+name+`":`+members[name])
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestMissingFieldsAreNamed(t *testing.T) {
	key := []string{"kind", "app_id", "pushkey"}
	details := []string{"app_display_name", "device_display_name", "lang", "data"}
	tests := map[string]struct {
		absent []string
		want   string
	}{
		"all of the key":         {key, "Missing parameters: kind, app_id, pushkey"},
		"all of the details":     {details, "Missing parameters: app_display_name, device_display_name, lang, data"},
		"two of the key":         {[]string{"pushkey", "kind"}, "Missing parameters: kind, pushkey"},
		"two of the details":     {[]string{"data", "lang"}, "Missing parameters: lang, data"},
		"one each, key is named": {[]string{"data", "app_id"}, "Missing parameter: app_id"},
	}
	for _, name := range slices.Concat(key, details) {
		tests["only "+name] = struct {
			absent []string
			want   string
		}{[]string{name}, "Missing parameter: " + name}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			all := members()
			for _, absent := range test.absent {
				delete(all, absent)
				all[strings.ToUpper(absent)] = "null" // not a substitute
			}
			if _, err := read(object(all)); describe(err) != "missing_param: "+test.want {
				t.Errorf("got %s", describe(err))
			}
			_, err := readAction(object(all))
			want := "missing_param: " + strings.Join(prefixed(test.want), ", ")
			if describe(err) != want {
				t.Errorf("nested: got %s, want %s", describe(err), want)
			}
		})
	}
}

func prefixed(text string) []string {
	start, fields, _ := strings.Cut(text, ": ")
	var parts []string
	for _, field := range strings.Split(fields, ", ") {
		parts = append(parts, "action."+field)
	}
	parts[0] = start + ": " + parts[0]
	return parts
}

func readAction(text string) (change pusher.Change, err error) {
	r := strictjson.NewReader(`{"action":` + text + `}`)
	err = r.Object(func(string) (err error) {
		change, err = pusher.ReadChange(r, pusher.Specification)
		return err
	})
	return change, err
}

func TestDeletionRequiresItsKey(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind":null}`:                             "missing_param: Missing parameters: app_id, pushkey",
		`{"kind":null,"app_id":"a"}`:                "missing_param: Missing parameter: pushkey",
		`{"kind":null,"pushkey":"p"}`:               "missing_param: Missing parameter: app_id",
		`{"kind":null,"app_id":null,"pushkey":"p"}`: "bad_json: app_id must be a string",
	} {
		if change, err := read(text); describe(err) != want || change != (pusher.Change{}) {
			t.Errorf("%s: got %+v, %s, want %s", text, change, describe(err), want)
		}
	}
}

func TestFieldOfTheWrongTypeIsNamed(t *testing.T) {
	wants := map[string]string{
		"kind": "a string or null", "app_id": "a string", "pushkey": "a string", "app_display_name": "a string",
		"device_display_name": "a string", "lang": "a string", "data": "an object", "profile_tag": "a string or null",
		"enabled": "a boolean or null", "org.matrix.msc3881.enabled": "a boolean or null",
	}
	values := map[string]string{"a string": `"x"`, "an object": `{}`, "null": "null", "a number": "1", "a list": "[]", "a boolean": "true"}
	for name, want := range wants {
		for given, value := range values {
			t.Run(name+" is "+given, func(t *testing.T) {
				text := ""
				if !strings.Contains(want, strings.TrimPrefix(given, "a ")) {
					text = name + " must be " + want
				}
				all := members()
				all[name] = value
				_, err := read(object(all))
				_, nested := readAction(object(all))
				wantBare, wantNested := "", ""
				if text != "" {
					wantBare, wantNested = "bad_json: "+text, "bad_json: action."+text
				}
				if describe(err) != wantBare || describe(nested) != wantNested {
					t.Errorf("got %q, nested %q, want %q", describe(err), describe(nested), wantBare)
				}
			})
		}
	}
}

func TestNoErrorRepeatsThePushkey(t *testing.T) {
	for name, text := range map[string]string{
		"an invalid pushkey":             `{"pushkey":"\ud800hunter2"}`,
		"not UTF-8":                      "{\"pushkey\":\"hunter2\xff\"}",
		"a pushkey that is not a string": `{"pushkey":["hunter2"]}`,
		"a syntax error after it":        `{"pushkey":"hunter2",}`,
		"missing members":                `{"pushkey":"hunter2"}`,
		"an unclosed string":             `{"pushkey":"hunter2`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(text)
			_, stored := pusher.ReadStored(text)
			for _, err := range []error{err, stored, pusher.Unreadable(stored)} {
				if err == nil || strings.Contains(err.Error(), "hunter") {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// FuzzReadChange compares accepted changes with encoding/json, and reads stored pushers
// back.
func FuzzReadChange(f *testing.F) {
	f.Add(object(members()))
	for _, seed := range []string{
		`{"kind":null,"app_id":"a","pushkey":"p"}`, `{"kind":"http","KIND":null}`, `{"enabled":null,"profile_tag":null}`, `{"kind":null,"kind":"http"}`, `{"data":{}}`,
		`{"app_id":"a","pushkey":"\ud83d\ude00","kind":"email","app_display_name":"","device_display_name":"<","lang":"","data":{"x":[1e400]},"created":5,"x":{}}`,
		strings.Replace(object(members()), "{", `{"append":true,`, 1), strings.Replace(object(members()), "{", `{"append":"","claim":{},`, 1),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		change, err := read(text)
		inDocument, documentErr := readAs(text, pusher.Document)
		if err == nil && (documentErr != nil || !reflect.DeepEqual(inDocument.Pusher, change.Pusher)) {
			t.Errorf("%q: in the form Document: got %+v, %v", text, inDocument, documentErr)
		}
		if inDocument.Pusher != nil && inDocument.Others != pusher.KeepOthers {
			t.Errorf("%q: in the form Document, Others is %s", text, inDocument.Others)
		}
		if err != nil {
			if kind, _, _ := strings.Cut(describe(err), ":"); !slices.Contains([]string{"not_json", "bad_json", "missing_param"}, kind) {
				t.Errorf("%q: %s", text, describe(err))
			}
			return
		}
		theirs := decode(t, text)
		if change.Key.AppID != theirs["app_id"] || change.Key.Pushkey != theirs["pushkey"] {
			t.Errorf("%q: got the key %+v", text, change.Key)
		}
		if kind, given := theirs["kind"]; (change.Pusher == nil) != (given && kind == nil) {
			t.Fatalf("%q: wrongly read as %+v", text, change)
		}
		if change.Pusher == nil {
			return
		}
		if want := othersOf(theirs["append"]); change.Others != want {
			t.Errorf("%q: Others is %s, want %s", text, change.Others, want)
		}
		for _, name := range []string{"append", "created", "device_id", "org.matrix.msc3881.device_id", "claim"} {
			delete(theirs, name)
		}
		for _, name := range []string{"profile_tag", "enabled", "org.matrix.msc3881.enabled"} {
			if theirs[name] == nil {
				delete(theirs, name) // null counts as absent
			}
		}
		if shown := string(change.Pusher.AppendJSON(nil)); !reflect.DeepEqual(decode(t, shown), theirs) {
			t.Errorf("%q: shown as %s", text, shown)
		}
		change.Pusher.Created, change.Pusher.Device, change.Pusher.Claim = 7, "DEVICE", 8
		change.Pusher.SetAt = 9
		stored := string(change.Pusher.AppendStored(nil))
		again, err := pusher.ReadStored(stored)
		if err != nil || !reflect.DeepEqual(again, *change.Pusher) {
			t.Errorf("%q: stored as %s, read back as %+v, %v", text, stored, again, err)
		}
	})
}

func readAs(text string, form pusher.Form) (pusher.Change, error) {
	return pusher.ReadChange(strictjson.NewReader(text), form)
}

func othersOf(appends any) pusher.Others {
	if appends == true {
		return pusher.KeepOthers
	}
	return pusher.RemoveOthers
}

func TestAppendKeepsOrRemovesOthers(t *testing.T) {
	const wrong = "bad_json: append must be a boolean"
	for value, test := range map[string]struct {
		others pusher.Others // in the form Specification
		fault  string
	}{
		"":        {others: pusher.RemoveOthers},
		"false":   {others: pusher.RemoveOthers},
		"null":    {others: pusher.RemoveOthers},
		"true":    {others: pusher.KeepOthers},
		`"true"`:  {fault: wrong},
		`"false"`: {fault: wrong},
		"1":       {fault: wrong},
		"0":       {fault: wrong},
		"{}":      {fault: wrong},
		"[true]":  {fault: wrong},
	} {
		t.Run("append is "+value, func(t *testing.T) {
			all := members()
			if value != "" {
				all["append"] = value
			}
			change, err := readAs(object(all), pusher.Specification)
			if describe(err) != test.fault || change.Others != test.others {
				t.Errorf("got %q, %s, want %q, %s", change.Others, describe(err), test.others, test.fault)
			}
			change, err = readAs(object(all), pusher.Document)
			if err != nil || change.Others != pusher.KeepOthers || !reflect.DeepEqual(*change.Pusher, phone("key")) {
				t.Errorf("in the form Document: got %+v, %v", change, err)
			}
			all["kind"] = "null"
			for _, form := range []pusher.Form{pusher.Specification, pusher.Document} {
				change, err := readAs(object(all), form)
				if want := (pusher.Change{Key: phone("key").Key}); err != nil || change != want {
					t.Errorf("form %d, a deletion: got %+v, %v", form, change, err)
				}
			}
		})
	}
}
