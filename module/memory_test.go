package module_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// memory is the pusher stores of all hosts. Before each operation it calls
// before, which may have it fail.
type memory struct {
	before func(operation string) error

	mu        sync.Mutex
	lists     map[mxid.UserID]pusher.List
	claims    map[pusher.Digest]pusher.Claims
	postponed map[pusher.Digest]int64 // the last claim
}

func newMemory() *memory {
	return &memory{
		before:    func(string) error { return nil },
		lists:     map[mxid.UserID]pusher.List{},
		claims:    map[pusher.Digest]pusher.Claims{},
		postponed: map[pusher.Digest]int64{},
	}
}

// step calls before, and locks the memory if that allows to go on.
func (m *memory) step(operation string) (unlock func(), err error) {
	if err := m.before(operation); err != nil {
		return nil, module.Unavailable(err)
	}
	m.mu.Lock()
	return m.mu.Unlock, nil
}

func (m *memory) Load(_ context.Context, user mxid.UserID) (pusher.List, error) {
	unlock, err := m.step("load pushers")
	if err != nil {
		return pusher.List{}, err
	}
	defer unlock()
	return m.lists[user], nil
}

func (m *memory) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	all := map[mxid.UserID]module.Result[pusher.List]{}
	for _, user := range users {
		list, err := m.Load(ctx, user)
		all[user] = module.Result[pusher.List]{Value: list, Err: err}
	}
	return all
}

func (m *memory) Update(_ context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	unlock, err := m.step("update pushers")
	if err != nil {
		return err
	}
	defer unlock()
	list := m.lists[user]
	if err := edit(&list); err != nil {
		return err
	}
	m.lists[user] = list
	return nil
}

func (m *memory) LoadPusher(ctx context.Context, key pusher.Key, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	all := m.LoadMany(ctx, users)
	for user, loaded := range all {
		all[user] = module.Result[pusher.List]{Value: loaded.Value.Only(key), Err: loaded.Err}
	}
	return all
}

func (m *memory) UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error {
	return m.Update(ctx, user, func(list *pusher.List) error {
		one := list.Only(key)
		if err := edit(&one); err != nil {
			return err
		}
		if p, found := one.Pusher(key); found {
			list.Set(p)
		} else {
			list.Delete(key)
		}
		return nil
	})
}

func (m *memory) Delete(_ context.Context, user mxid.UserID) error {
	unlock, err := m.step("delete pushers")
	if err != nil {
		return err
	}
	defer unlock()
	delete(m.lists, user)
	return nil
}

// memoryIndex is the index beside the pushers in a memory.
type memoryIndex struct{ *memory }

func (m *memory) index() memoryIndex { return memoryIndex{m} }

func (m memoryIndex) Load(_ context.Context, key pusher.Digest) (pusher.Claims, error) {
	unlock, err := m.step("load claims")
	if err != nil {
		return pusher.Claims{}, err
	}
	defer unlock()
	return m.claims[key], nil
}

func (m memoryIndex) Update(_ context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (pusher.Claims, error) {
	unlock, err := m.step("update claims")
	if err != nil {
		return pusher.Claims{}, err
	}
	defer unlock()
	claims := m.claims[key]
	if err := edit(&claims); err != nil {
		return pusher.Claims{}, err
	}
	m.claims[key] = claims
	return claims, nil
}

func (m memoryIndex) Postpone(_ context.Context, u module.Unsettled) error {
	unlock, err := m.step("postpone")
	if err != nil {
		return err
	}
	defer unlock()
	m.postponed[u.Key] = max(m.postponed[u.Key], u.Claim)
	return nil
}

func (m memoryIndex) Settled(_ context.Context, u module.Unsettled) error {
	unlock, err := m.step("settled")
	if err != nil {
		return err
	}
	defer unlock()
	if m.postponed[u.Key] <= u.Claim {
		delete(m.postponed, u.Key)
	}
	return nil
}

func (m memoryIndex) Postponed(_ context.Context, before time.Time, limit int) (all []module.Unsettled, err error) {
	unlock, err := m.step("postponed")
	if err != nil {
		return nil, err
	}
	defer unlock()
	for key, claim := range m.postponed {
		if (before.IsZero() || claim < before.UnixMicro()) && len(all) < limit {
			all = append(all, module.Unsettled{Key: key, Claim: claim})
		}
	}
	return all, nil
}

// owners returns the users who have a pusher of a key, in order.
func (m *memory) owners(key pusher.Key) (users []mxid.UserID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for user, list := range m.lists {
		if _, found := list.Pusher(key); found {
			users = append(users, user)
		}
	}
	slices.Sort(users)
	return users
}

var errDied = errors.New("the process has ended")
