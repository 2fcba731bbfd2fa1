package pusher

import (
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

const submitted = `"kind":"http","app_id":"app","pushkey":"key","app_display_name":"App","device_display_name":"Phone","lang":"en",` +
	`"data":{"url":"https://push.example.org/_matrix/push/v1/notify","n":1.0}`

func TestCheckImportedKeepsSubmittedMembersAndDevice(t *testing.T) {
	t.Parallel()
	p, err := readSubmitted(`{` + submitted + `,"profile_tag":"tag","enabled":false,"created":7,"append":false}`)
	if err != nil {
		t.Fatal(err)
	}
	p.Device = "DEV"
	kept, err := DefaultPolicy().CheckImported(p)
	if err != nil || kept.Device != "DEV" || kept.Enabled() || !slices.Contains(kept.Extra, ProfileTag("tag")) || len(kept.Extra) != 2 {
		t.Errorf("got %+v, %v", kept, err)
	}
	if want := `{"url":"https://push.example.org/_matrix/push/v1/notify","n":1.0}`; kept.Data != want {
		t.Errorf("data is %s", kept.Data)
	}
}

func TestReadSubmittedRefusesOtherTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]fault.Kind{
		``:                      fault.NotJSON,
		`7`:                     fault.BadJSON,
		`{}`:                    fault.MissingParam,
		`{` + submitted + `} x`: fault.NotJSON,
		`{"kind":null,"app_id":"app","pushkey":"key"}`:                                      fault.BadJSON,
		strings.Replace(`{`+submitted+`}`, `{"url"`, `[],"x":{"url"`, 1):                    fault.BadJSON,
		`{` + submitted + `,"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`: fault.NotJSON,
	} {
		if _, err := readSubmitted(text); fault.KindOf(err) != want || strings.Contains(err.Error(), "key") && want != fault.MissingParam {
			t.Errorf("%.60s: got %v, want %s", text, err, want)
		}
	}
}

func TestCheckImportedRefusesPushersThatClientsCannotSet(t *testing.T) {
	t.Parallel()
	good, err := readSubmitted(`{` + submitted + `}`)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Pusher){
		"data that is not JSON":              func(p *Pusher) { p.Data = `{},"x":{}` },
		"data that is not an object":         func(p *Pusher) { p.Data = `[]` },
		"no data":                            func(p *Pusher) { p.Data = `` },
		"a member that is not JSON":          func(p *Pusher) { p.Extra = []Member{{Name: "x", Value: `1,"y":2`}} },
		"a duplicate member":                 func(p *Pusher) { p.Extra = []Member{{Name: "lang", Value: `"de"`}} },
		"a pushkey that is not UTF-8":        func(p *Pusher) { p.Pushkey = "\xff" },
		"a device that is not UTF-8":         func(p *Pusher) { p.Device = "\xff" },
		"a profile tag that is not a string": func(p *Pusher) { p.Extra = []Member{{Name: "profile_tag", Value: `1`}} },
		"no pushkey":                         func(p *Pusher) { p.Pushkey = "" },
		"an unknown kind":                    func(p *Pusher) { p.Kind = "sms" },
		"a gateway in a private network":     func(p *Pusher) { p.Data = `{"url":"https://10.0.0.1/_matrix/push/v1/notify"}` },
	} {
		p := good
		spoil(&p)
		if got, err := DefaultPolicy().CheckImported(p); err == nil || fault.KindOf(err) == fault.Internal {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	spaced := good
	spaced.Data, spaced.SetAt = " "+good.Data+"\n", 17
	if kept, err := DefaultPolicy().CheckImported(spaced); err != nil || kept.Data != good.Data || kept.SetAt != 17 {
		t.Errorf("got %+v, %v", kept, err)
	}
}
