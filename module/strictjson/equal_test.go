package strictjson_test

import (
	"testing"

	"github.com/pushfx/pushfx/module/strictjson"
)

func TestEqualComparesValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[true,null]}`, ` {"b" : [ true , null ], "a":1.0} `, true},
		{`"\u0061\/"`, `"a/"`, true},
		{`1e400`, `1e400`, true},
		{`{"a":1}`, `{"a":2}`, false},
		{`{"a":1}`, `{"a":1,"b":2}`, false},
		{`[1,2]`, `[2,1]`, false},
		{`"1"`, `1`, false},
		{`{`, `}`, false},
		{`{"a":1,"a":1}`, `{"a":1}`, false},
	} {
		if strictjson.Equal(test.a, test.b) != test.want || strictjson.Equal(test.b, test.a) != test.want {
			t.Errorf("%s and %s: want %v", test.a, test.b, test.want)
		}
	}
}
