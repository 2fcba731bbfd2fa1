package sessions

import (
	"bytes"
	"testing"
	"time"
)

func TestPasswords(t *testing.T) {
	t.Parallel()
	p := newPasswords(time.Minute)
	hash, err := p.hash(t.Context(), "pä55word")
	if err != nil {
		t.Fatal(err)
	}
	stored := string(hash)
	for _, test := range []struct {
		password string
		stored   string
		want     bool
	}{
		{"pä55word", stored, true},
		{"pä55wort", stored, false},
		{"", stored, false},
		{DefaultPassword, stored, false},
		{DefaultPassword, "", true},
		{"", "", false},
	} {
		if got, err := p.check(t.Context(), test.password, test.stored); got != test.want || err != nil {
			t.Errorf("%q: got %v, %v", test.password, got, err)
		}
	}
	if other, err := p.hash(t.Context(), "pä55word"); err != nil || bytes.Equal(other, hash) {
		t.Errorf("the same password is stored alike, %v", err)
	}
	if _, err := p.check(t.Context(), "x", "{"); err == nil {
		t.Error("an unreadable hash is no error")
	}
}
