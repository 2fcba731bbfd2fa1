package main

import (
	"bytes"
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
		stored   []byte
		want     bool
	}{
		{"pä55word", stored, true},
		{"pä55wort", stored, false},
		{"", stored, false},
		{defaultPassword, stored, false},
		{defaultPassword, nil, true},
		{"", nil, false},
	} {
		if got, err := isPassword(test.password, test.stored); got != test.want || err != nil {
			t.Errorf("%q: got %v, %v", test.password, got, err)
		}
	}
	if other, err := hashPassword("pä55word"); err != nil || bytes.Equal(other, stored) {
		t.Errorf("the same password is stored alike, %v", err)
	}
	if _, err := isPassword("x", []byte("{")); err == nil {
		t.Error("an unreadable hash is no error")
	}
}
