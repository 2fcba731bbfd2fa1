package service

import (
	"context"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// observed wraps the stores so that the observer sees each operation.
func observed(s module.Stores, o observe.Observer) module.Stores {
	if o == observe.None {
		return s
	}
	s.Rules = ObservedRules(s.Rules, o)
	s.Pushers = observedPushers{s.Pushers, newStoreObserver(observe.Pushers, o)}
	s.Pushkeys = observedPushkeys{s.Pushkeys, newStoreObserver(observe.Pushkeys, o)}
	return s
}

// ObservedRules wraps a store so that the observer, which may be nil, sees each operation
// except Watch. [New] wraps its stores itself.
func ObservedRules(s module.RuleStore, o observe.Observer) module.RuleStore {
	if o = observe.Or(o); o == observe.None {
		return s
	}
	return observedRules{s, newStoreObserver(observe.PushRules, o)}
}

type storeObserver struct {
	observe.Observer
	load, loadMany, versions, update, remove *observe.Operation
}

func newStoreObserver(store string, o observe.Observer) *storeObserver {
	of := func(verb string) *observe.Operation {
		return &observe.Operation{Kind: observe.Store, Name: store, Verb: verb}
	}
	return &storeObserver{o, of("load"), of("load_many"), of("versions"), of("update"), of("remove")}
}

type observedRules struct {
	module.RuleStore // Watch is not observed
	o                *storeObserver
}

func (s observedRules) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	ctx, end := s.o.Begin(ctx, s.o.load)
	content, err := s.RuleStore.Load(ctx, user)
	end(observe.Outcome{Err: err})
	return content, err
}

func (s observedRules) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	ctx, end := s.o.Begin(ctx, s.o.loadMany)
	all := s.RuleStore.LoadMany(ctx, users)
	end(outcomeOf(all))
	return all
}

func (s observedRules) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	ctx, end := s.o.Begin(ctx, s.o.versions)
	all := s.RuleStore.Versions(ctx, users)
	end(outcomeOf(all))
	return all
}

func (s observedRules) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (module.Content, error) {
	ctx, end := s.o.Begin(ctx, s.o.update)
	content, err := s.RuleStore.Update(ctx, user, edit)
	end(observe.Outcome{Err: err})
	return content, err
}

func (s observedRules) Delete(ctx context.Context, user mxid.UserID) error {
	ctx, end := s.o.Begin(ctx, s.o.remove)
	err := s.RuleStore.Delete(ctx, user)
	end(observe.Outcome{Err: err})
	return err
}

type observedPushers struct {
	store module.PusherStore
	o     *storeObserver
}

func (s observedPushers) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	ctx, end := s.o.Begin(ctx, s.o.load)
	list, err := s.store.Load(ctx, user)
	end(observe.Outcome{Err: err})
	return list, err
}

func (s observedPushers) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	ctx, end := s.o.Begin(ctx, s.o.loadMany)
	all := s.store.LoadMany(ctx, users)
	end(outcomeOf(all))
	return all
}

func (s observedPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	ctx, end := s.o.Begin(ctx, s.o.update)
	err := s.store.Update(ctx, user, edit)
	end(observe.Outcome{Err: err})
	return err
}

func (s observedPushers) Delete(ctx context.Context, user mxid.UserID) error {
	ctx, end := s.o.Begin(ctx, s.o.remove)
	err := s.store.Delete(ctx, user)
	end(observe.Outcome{Err: err})
	return err
}

type observedPushkeys struct {
	store module.PushkeyIndex
	o     *storeObserver
}

func (s observedPushkeys) Load(ctx context.Context, key pusher.Digest) (pusher.Entry, error) {
	ctx, end := s.o.Begin(ctx, s.o.load)
	entry, err := s.store.Load(ctx, key)
	end(observe.Outcome{Err: err})
	return entry, err
}

func (s observedPushkeys) LoadMany(ctx context.Context, keys []pusher.Digest) map[pusher.Digest]module.Result[pusher.Entry] {
	ctx, end := s.o.Begin(ctx, s.o.loadMany)
	all := s.store.LoadMany(ctx, keys)
	end(outcomeOf(all))
	return all
}

func (s observedPushkeys) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (pusher.Entry, error) {
	ctx, end := s.o.Begin(ctx, s.o.update)
	entry, err := s.store.Update(ctx, key, edit)
	end(observe.Outcome{Err: err})
	return entry, err
}

// outcomeOf returns the error of one of the results, if any failed.
func outcomeOf[K comparable, T any](all map[K]module.Result[T]) observe.Outcome {
	for _, result := range all {
		if result.Err != nil {
			return observe.Outcome{Err: result.Err}
		}
	}
	return observe.Outcome{}
}
