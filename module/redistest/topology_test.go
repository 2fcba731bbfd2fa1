package redistest

import (
	"reflect"
	"testing"
)

func TestNodesAreRead(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]member{
		"id 127.0.0.1:1@2 myself,master - 0 1 3 connected 0-4747 4749 [4748->-b] [1-<-c]": {
			id: "id", flags: []string{"myself", "master"}, master: noMaster, epoch: 3, linked: true,
			slots: []slotRange{{0, 4747}, {4749, 4749}},
			moves: []openMove{{slot: 4748, out: true, other: "b"}, {slot: 1, other: "c"}},
		},
		"id :0@0 slave,fail,noaddr m 0 1 3 disconnected": {
			id: "id", flags: []string{"slave", "fail", "noaddr"}, master: "m", epoch: 3,
		},
	} {
		if got, err := parseMember(line); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{
		"",
		"id 127.0.0.1:1@2 master - 0 1 x connected",
		"id 127.0.0.1:1@2 master - 0 1 3 connected x-2",
		"id 127.0.0.1:1@2 master - 0 1 3 connected 1-x",
		"id 127.0.0.1:1@2 master - 0 1 3 connected [x->-b]",
	} {
		if got, err := parseMember(line); err == nil {
			t.Errorf("%q: got %+v", line, got)
		}
	}
}
