package sessions

import (
	"errors"
	"fmt"
	"testing"
)

func TestAccountDataIsBounded(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	set := func(n int) error {
		return s.SetAccountData(t.Context(), "@alice:x", AccountData{"!r:x", fmt.Sprint("type", n), []byte("{}")})
	}
	for n := range maxAccountData {
		if err := set(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := set(maxAccountData); !errors.Is(err, ErrTooMuchData) {
		t.Errorf("one too many: got %v", err)
	}
	if err := set(0); err != nil {
		t.Errorf("a stored type: %v", err)
	}
	if all, err := s.AccountData(t.Context(), "@alice:x"); err != nil || len(all) != maxAccountData || all[1].Room != "!r:x" || all[1].Type != "type1" {
		t.Errorf("got %d, %v", len(all), err)
	}
}
