package stored

import (
	"maps"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/pusher"
)

func aPusher(pushkey string, created int64) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, AppDisplayName: "App", DeviceDisplayName: "Phone",
		Lang: "en", Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`, Created: created,
	}
}

func TestHashIsReadDespiteUnreadableFields(t *testing.T) {
	t.Parallel()
	fields := map[string]string{RevisionField: `{"version":7,"changes":2,"writers":{}}`}
	for _, p := range []pusher.Pusher{aPusher("b", 1), aPusher("a", 2)} {
		field, text := PusherField(p)
		fields[field] = text
	}
	h := ReadHash(fields)
	if h.Err != nil || len(h.Unreadable) != 0 || h.Revision.Version != 7 || h.Revision.Changes != 2 {
		t.Errorf("got %+v", h)
	}
	if all := h.Pushers.All(); len(all) != 2 || all[0].Pushkey != "b" || all[1].Pushkey != "a" {
		t.Errorf("got %+v, want the order of creation", all)
	}
	if _, found := HashFields(fields)[RevisionField]; found || len(fields) != 3 {
		t.Errorf("got %v of %v", HashFields(fields), fields)
	}

	fields[`["app","d"]`], fields[`["app","c"]`] = "s3cret", fields[`["app","a"]`]
	h = ReadHash(fields)
	const want = "Invalid pusher in database: the field is not the pusher's key"
	if h.Pushers.Len() != 2 || !slices.Equal(h.Unreadable, []string{`["app","c"]`, `["app","d"]`}) || h.Err.Error() != want {
		t.Errorf("got %+v", h)
	}
	if h := ReadHash(nil); h.Err != nil || h.Pushers.Len() != 0 || !h.Revision.Equal(Revision{}) {
		t.Errorf("empty hash: got %+v", h)
	}
	if HashFields(nil) != nil || !maps.Equal(HashFields(map[string]string{"x": "y"}), map[string]string{"x": "y"}) {
		t.Error("the fields of a hash without a revision have changed")
	}
}
