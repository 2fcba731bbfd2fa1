package match_test

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

func TestReadPower(t *testing.T) {
	t.Parallel()
	const (
		v1  = `{"type":"m.room.create","sender":"@other:example.org","content":{"creator":"@alice:example.org"}}`
		v5  = `{"type":"m.room.create","sender":"@bob:example.org","content":{"creator":"@bob:example.org","room_version":"5"}}`
		v6  = `{"type":"m.room.create","sender":"@bob:example.org","content":{"creator":"@bob:example.org","room_version":"6"}}`
		v9  = `{"type":"m.room.create","sender":"@alice:example.org","content":{"creator":"@alice:example.org","room_version":"9"}}`
		v10 = `{"type":"m.room.create","sender":"@bob:example.org","content":{"creator":"@alice:example.org","room_version":"10"}}`
		v11 = `{"type":"m.room.create","sender":"@alice:example.org","content":{"room_version":"11","creator":"@bob:example.org"}}`
		v12 = `{"type":"m.room.create","sender":"@alice:example.org","content":{"room_version":"12","additional_creators":["@bob:example.org"]}}`

		empty  = `{"type":"m.room.power_levels","content":{}}`
		some   = `{"content":{"users":{"@alice:example.org":75,"@a.b\\c:example.org":30},"users_default":10,"notifications":{"room":20,"party":0}}}`
		odd    = `{"content":{"users":{"@carol:example.org":67.89,"@bob:example.org":"high"},"users_default":10,"notifications":{"room":20,"party":0}}}`
		floats = `{"content":{"users":{"@alice:example.org":50.57},"notifications":{"room":75.5,"large":5.1E4,"negative":-1.9,"exact":9007199254740992,"odd":9007199254740993,"huge":1e300,"low":-1e300,"tiny":1e-400,"refused":1e400}}}`
		texts  = `{"content":{"users":{"@alice:example.org":" +75 "},"notifications":{"room":"20"}}}`
	)
	levels := map[string]int64{"room": 20, "party": 0}
	for name, test := range map[string]struct {
		create, levels, sender string
		want                   match.Power
		err                    error
	}{
		"the creator, before there are levels":             {v1, "", "@alice:example.org", match.Power{Sender: 100}, nil},
		"another user, before there are levels":            {v1, "", "@bob:example.org", match.Power{}, nil},
		"who sent the create event is no creator there":    {v1, "", "@other:example.org", match.Power{}, nil},
		"version 10 knows the creator by the content":      {v10, "", "@alice:example.org", match.Power{Sender: 100}, nil},
		"version 11 knows the creator by the sender":       {v11, "", "@alice:example.org", match.Power{Sender: 100}, nil},
		"version 11 has no creator in the content":         {v11, "", "@bob:example.org", match.Power{}, nil},
		"a creator in a room with levels":                  {v11, empty, "@alice:example.org", match.Power{}, nil},
		"a level":                                          {v11, some, "@alice:example.org", match.Power{Sender: 75, Notifications: levels}, nil},
		"a user with a dot and a backslash":                {v11, some, `@a.b\c:example.org`, match.Power{Sender: 30, Notifications: levels}, nil},
		"the room's default":                               {v11, some, "@carol:example.org", match.Power{Sender: 10, Notifications: levels}, nil},
		"version 12: the sender of the create event":       {v12, some, "@alice:example.org", match.Power{Sender: 75, SenderCreator: true, Notifications: levels}, nil},
		"version 12: an additional creator":                {v12, empty, "@bob:example.org", match.Power{SenderCreator: true}, nil},
		"version 12: another user":                         {v12, some, "@carol:example.org", match.Power{Sender: 10, Notifications: levels}, nil},
		"levels as strings":                                {v9, texts, "@alice:example.org", match.Power{Sender: 75, Notifications: map[string]int64{"room": 20}}, nil},
		"levels as strings, from version 10 on":            {v10, texts, "@alice:example.org", match.Power{}, nil},
		"floats, in version 1":                             {v1, floats, "@alice:example.org", match.Power{Sender: 50, Notifications: map[string]int64{"room": 75, "large": 51000, "negative": -1, "exact": 1 << 53, "odd": 1<<53 + 1, "huge": math.MaxInt64, "low": math.MinInt64, "tiny": 0}}, nil},
		"floats, in version 5":                             {v5, `{"content":{"users_default":67.89,"kick":5.114698E4}}`, "@alice:example.org", match.Power{Sender: 67, Permissions: map[string]int64{"kick": 51146}}, nil},
		"no numbers, in version 5":                         {v5, `{"content":{"users_default":{},"kick":true,"ban":[],"invite":"5.5"}}`, "@alice:example.org", match.Power{}, nil},
		"floats, from version 6 on":                        {v6, `{"content":{"users_default":67.89,"kick":5.1146981E3,"notifications":{"room":75.5}}}`, "@alice:example.org", match.Power{}, nil},
		"a fractional level counts as absent":              {v12, odd, "@carol:example.org", match.Power{Sender: 10, Notifications: levels}, nil},
		"a level that is a word counts as absent":          {v9, odd, "@bob:example.org", match.Power{Sender: 10, Notifications: levels}, nil},
		"a fractional default counts as absent":            {v9, `{"content":{"users_default":67.89}}`, "@alice:example.org", match.Power{}, nil},
		"a fraction of zeros is an integer":                {v9, `{"content":{"users_default":67.0}}`, "@alice:example.org", match.Power{Sender: 67}, nil},
		"notification levels that cannot be read":          {v9, `{"content":{"notifications":{"a":null,"b":12.34,"c":[],"d":{"e":1},"f":true,"room":20,"party":0,"g":"x"}}}`, "@carol:example.org", match.Power{Notifications: levels}, nil},
		"a level for rooms that cannot be read":            {v12, `{"content":{"notifications":{"room":null}}}`, "@alice:example.org", match.Power{SenderCreator: true}, nil},
		"notification levels as strings, from version 10":  {v10, `{"content":{"notifications":{"room":"20"}}}`, "@alice:example.org", match.Power{}, nil},
		"another notification's level in the wrong places": {v12, `{"content":{"room":3,"notifications":[]}}`, "@carol:example.org", match.Power{}, nil},
		"levels of actions": {v12, `{"content":{"invite":20,"kick":30,"ban":40,"redact":60,"state_default":70}}`, "@carol:example.org",
			match.Power{Permissions: map[string]int64{"invite": 20, "kick": 30, "ban": 40, "redact": 60}}, nil},
		"levels of actions that cannot be read": {v12, `{"content":{"invite":"20","kick":67.89,"ban":null}}`, "@carol:example.org", match.Power{}, nil},
		"levels of actions as strings":          {v9, `{"content":{"invite":"20"}}`, "@carol:example.org", match.Power{Permissions: map[string]int64{"invite": 20}}, nil},
		"no create event":                       {"", empty, "@alice:example.org", match.Power{}, match.ErrNotAnEvent},
		"levels that are no event":              {v12, "[]", "@alice:example.org", match.Power{}, match.ErrNotAnEvent},
	} {
		t.Run(name, func(t *testing.T) {
			power, err := match.ReadPower(test.create, test.levels, mxid.UserID(test.sender))
			if !errors.Is(err, test.err) {
				t.Fatalf("got %v, want %v", err, test.err)
			}
			if err == nil && !reflect.DeepEqual(*power, test.want) {
				t.Errorf("got %+v, want %+v", *power, test.want)
			}
			if err != nil && power != nil {
				t.Errorf("got %+v beside an error", *power)
			}
		})
	}
}

// An unknown room version must not keep a room's members from their notifications. The first four are like the
// examples of the specification's grammar (appendices, "Room versions").
func TestAnUnknownRoomVersionIsReadAsTheNewest(t *testing.T) {
	t.Parallel()
	const (
		creator = mxid.UserID("@alice:example.org")
		levels  = `{"content":{"users":{"@bob:example.org":"75"},"users_default":10}}`
	)
	newest, before := match.Power{Sender: 10, SenderCreator: true}, match.Power{Sender: 10}
	for _, version := range []string{
		`"1.2"`, `"com.example.version"`, `"org.matrix.msc3757.11"`, `"1.2-beta"`, `""`, `"0"`, `"-1"`, `"+5"`, `"05"`, `" 5"`, `"99999999999999999999"`, `"13"`,
		`5`, `null`, `["5"]`, `{"a":"5"}`,
	} {
		create := `{"type":"m.room.create","sender":"@alice:example.org","content":{"room_version":` + version + `}}`
		for asked, got := range map[string]func() (*match.Power, error){
			"ReadPower":   func() (*match.Power, error) { return match.ReadPower(create, levels, creator) },
			"ReadPowerAs": func() (*match.Power, error) { return match.ReadPowerAs(create, levels, creator, 0) },
		} {
			if power, err := got(); err != nil || !reflect.DeepEqual(*power, newest) {
				t.Errorf("%s of version %s: got %+v, %v, want %+v", asked, version, power, err, newest)
			}
		}
		if power, err := match.ReadPowerAs(create, levels, creator, 11); err != nil || !reflect.DeepEqual(*power, before) {
			t.Errorf("%s as 11: got %+v, %v, want %+v", version, power, err, before)
		}
		if power, err := match.ReadPowerAs(create, levels, "@bob:example.org", 9); err != nil || power.Sender != 75 {
			t.Errorf("%s as 9: got %+v, %v, want a level of 75, which is a text", version, power, err)
		}
	}
	if power, err := match.ReadPowerAs("[]", levels, creator, 11); power != nil || !errors.Is(err, match.ErrNotAnEvent) {
		t.Errorf("no event: got %+v, %v", power, err)
	}
}
