package pusher_test

import (
	"reflect"
	"testing"

	"github.com/pushfx/pushfx/module/pusher"
)

func TestPushersAreEqualInEveryPart(t *testing.T) {
	t.Parallel()
	parts := 0
	var p pusher.Pusher
	var differ func(name string, part reflect.Value)
	differ = func(name string, part reflect.Value) {
		switch part.Kind() {
		case reflect.Struct:
			for i := range part.NumField() {
				differ(part.Type().Field(i).Name, part.Field(i))
			}
			return
		case reflect.String:
			part.SetString("another")
		case reflect.Int64:
			part.SetInt(7)
		case reflect.Slice:
			part.Set(reflect.MakeSlice(part.Type(), 1, 1))
		default:
			t.Fatalf("%s is a %s", name, part.Kind())
		}
		if same := p; p.Equal(pusher.Pusher{}) || !p.Equal(same) {
			t.Errorf("%s makes no difference", name)
		}
		part.SetZero()
		parts++
	}
	differ("pusher", reflect.ValueOf(&p).Elem())
	if !p.Equal(pusher.Pusher{}) || parts == 0 {
		t.Errorf("%d parts", parts)
	}
}
