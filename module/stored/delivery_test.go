package stored

import "testing"

func TestTheFormatOfDeliveryIsTold(t *testing.T) {
	t.Parallel()
	if shards, found := ReadDeliveryFormat(DeliveryFormatText(128)); shards != 128 || !found {
		t.Errorf("got %d, %t", shards, found)
	}
	for _, text := range []string{"", "1", "1 ", "1 x", "1 0128", "2 128", "128", "1 128 "} {
		if shards, found := ReadDeliveryFormat(text); found {
			t.Errorf("%q: got %d", text, shards)
		}
	}
}

func TestWhatIsSeenTakesThePlaceOfItsDigest(t *testing.T) {
	t.Parallel()
	if got := SeenMember("$event:x 1"); len(got) != 16 || got == SeenMember("$event:x 2") || got != SeenMember("$event:x 1") {
		t.Errorf("got %q", got)
	}
}
