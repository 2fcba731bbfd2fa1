package main

import (
	"context"
	"testing"
)

func TestFewRequestsOfAUserAreServedAtATime(t *testing.T) {
	t.Parallel()
	turns, ctx := newTurns(), t.Context()
	var leaves []func()
	for range atOnce {
		leave, err := turns.take(ctx, "alice")
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	other, err := turns.take(ctx, "bob")
	if err != nil {
		t.Fatal("another user has to wait", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := turns.take(gone, "alice"); err == nil {
		t.Error("one too many at a time")
	}
	next := make(chan error)
	go func() {
		leave, err := turns.take(ctx, "alice")
		leave()
		next <- err
	}()
	for _, leave := range append(leaves, other) {
		leave()
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
	if len(turns.lines) > 0 {
		t.Errorf("left over: %v", turns.lines)
	}
}
