package main

import (
	"errors"
	"testing"
)

func isWoken(woken <-chan struct{}) bool {
	select {
	case <-woken:
		return true
	default:
		return false
	}
}

func TestWaker(t *testing.T) {
	t.Parallel()
	w := newWaker()
	first, leaveFirst, err := w.wait("@a:x")
	if err != nil {
		t.Fatal(err)
	}
	second, leaveSecond, _ := w.wait("@a:x")
	other, leaveOther, _ := w.wait("@b:x")
	for range 3 { // which count as one
		w.wake("@a:x")
	}
	if !isWoken(first) || !isWoken(second) || isWoken(first) || isWoken(other) {
		t.Error("not everyone is woken once, or somebody else is")
	}
	leaveFirst()
	w.wake("@a:x")
	if isWoken(first) || !isWoken(second) {
		t.Error("who has left is woken, or who has not is not")
	}
	leaveSecond()
	leaveOther()
	w.wake("@a:x")
	if len(w.waiting) != 0 {
		t.Errorf("left over: %v", w.waiting)
	}
}

func TestWakerTakesSoManyOfAUser(t *testing.T) {
	t.Parallel()
	w := newWaker()
	var leave func()
	for range maxWaiting {
		var err error
		if _, leave, err = w.wait("@a:x"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.wait("@a:x"); !errors.Is(err, errTooManyWait) {
		t.Errorf("got %v", err)
	}
	if _, _, err := w.wait("@b:x"); err != nil {
		t.Error(err)
	}
	leave()
	if _, _, err := w.wait("@a:x"); err != nil {
		t.Error(err)
	}
}

func TestStoppedWaker(t *testing.T) {
	t.Parallel()
	w := newWaker()
	w.stop()
	w.stop() // may come twice
	if !isWoken(w.stopped) {
		t.Error("not stopped")
	}
}
