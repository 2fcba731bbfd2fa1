package sessions

import (
	"errors"
	"testing"
)

func TestPasswords(t *testing.T) {
	t.Parallel()
	stored, err := hashPassword("pä55word")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		password string
		stored   string
		want     error
	}{
		{"pä55word", stored, nil},
		{"pä55wort", stored, ErrWrongPassword},
		{"", stored, ErrWrongPassword},
		{DefaultPassword, stored, ErrWrongPassword},
		{DefaultPassword, "", nil},
		{"", "", ErrWrongPassword},
	} {
		if err := checkPassword(test.password, test.stored); !errors.Is(err, test.want) {
			t.Errorf("%q: got %v", test.password, err)
		}
	}
	if other, err := hashPassword("pä55word"); err != nil || other == stored {
		t.Errorf("the same password is stored alike, %v", err)
	}
	if err := checkPassword("x", "{"); err == nil || errors.Is(err, ErrWrongPassword) {
		t.Errorf("an unreadable hash: got %v", err)
	}
}
