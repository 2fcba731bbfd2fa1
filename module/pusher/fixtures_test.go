package pusher_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

func describe(err error) string {
	if err == nil {
		return ""
	}
	return string(fault.KindOf(err)) + ": " + err.Error()
}

func read(text string) (pusher.Change, error) {
	return pusher.ReadChange(strictjson.NewReader(text), pusher.Specification)
}

func phone(key string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "org.example.app", Pushkey: key}, Kind: pusher.HTTP,
		AppDisplayName: "App", DeviceDisplayName: "Phone", Lang: "en",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}
}

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	var value map[string]any
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}
