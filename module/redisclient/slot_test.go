package redisclient

import (
	"testing"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestASlotIsThatOfTheCluster(t *testing.T) {
	t.Parallel()
	client := redistest.Cluster(t, 1, 0).Client(t)
	for _, key := range []string{
		"", "a", "key", "pushers:{@alice:example.org}", "hs1:account_data:{@alice:example.org}:m.push_rules", "{}", "{}a", "{a", "a}", "}{", "{a}{b}", "x{{a}}", "ü🦊\x00\xff",
	} {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := SlotOf(key); got != int(want) {
			t.Errorf("%q: got slot %d, want %d", key, got, want)
		}
	}
}
