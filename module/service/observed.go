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
	s.Pushers = observedPushers{observeReads(s.Pushers, observe.Pushers, o), s.Pushers}
	s.Pushkeys = observedPushkeys{observeReads(s.Pushkeys, observe.Pushkeys, o), s.Pushkeys}
	return s
}

// ObservedRules wraps a store so that the observer, which may be nil, sees each operation
// except Watch. [New] wraps its stores itself.
func ObservedRules(s module.RuleStore, o observe.Observer) module.RuleStore {
	if o = observe.Or(o); o == observe.None {
		return s
	}
	return observedRules{observeReads(s, observe.PushRules, o), s}
}

// reads are the methods that all stores have.
type reads[K comparable, V any] interface {
	Load(ctx context.Context, key K) (V, error)
	LoadMany(ctx context.Context, keys []K) map[K]module.Result[V]
}

// observedReads are observed reads, and the operations of a store.
type observedReads[K comparable, V any] struct {
	reads[K, V]
	o observe.Observer

	load, loadMany, versions, update, remove *observe.Operation
}

func observeReads[K comparable, V any](s reads[K, V], store string, o observe.Observer) *observedReads[K, V] {
	of := func(verb string) *observe.Operation {
		return &observe.Operation{Kind: observe.Store, Name: store, Verb: verb}
	}
	return &observedReads[K, V]{s, o, of("load"), of("load_many"), of("versions"), of("update"), of("remove")}
}

func (r *observedReads[K, V]) Load(ctx context.Context, key K) (V, error) {
	ctx, end := r.o.Begin(ctx, r.load)
	value, err := r.reads.Load(ctx, key)
	end(observe.Outcome{Err: err})
	return value, err
}

func (r *observedReads[K, V]) LoadMany(ctx context.Context, keys []K) map[K]module.Result[V] {
	return observeMany(ctx, r.o, r.loadMany, func(ctx context.Context) map[K]module.Result[V] { return r.reads.LoadMany(ctx, keys) })
}

// observeMany observes a call with many results: the outcome is the error of one of them, if any
// failed.
func observeMany[K comparable, T any](
	ctx context.Context, o observe.Observer, op *observe.Operation, do func(context.Context) map[K]module.Result[T],
) map[K]module.Result[T] {
	ctx, end := o.Begin(ctx, op)
	all := do(ctx)
	outcome := observe.Outcome{}
	for _, result := range all {
		if outcome.Err = result.Err; outcome.Err != nil {
			break
		}
	}
	end(outcome)
	return all
}

// change observes a change.
func (r *observedReads[K, V]) change(ctx context.Context, op *observe.Operation, do func(context.Context) error) error {
	ctx, end := r.o.Begin(ctx, op)
	err := do(ctx)
	end(observe.Outcome{Err: err})
	return err
}

type observedRules struct {
	*observedReads[mxid.UserID, module.Content]
	store module.RuleStore
}

// Watch is not observed.
func (s observedRules) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	return s.store.Watch(ctx, watching, changed)
}

func (s observedRules) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	return observeMany(ctx, s.o, s.versions, func(ctx context.Context) map[mxid.UserID]module.Result[int64] { return s.store.Versions(ctx, users) })
}

func (s observedRules) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (content module.Content, err error) {
	err = s.change(ctx, s.update, func(ctx context.Context) error {
		content, err = s.store.Update(ctx, user, edit)
		return err
	})
	return content, err
}

func (s observedRules) Delete(ctx context.Context, user mxid.UserID) error {
	return s.change(ctx, s.remove, func(ctx context.Context) error { return s.store.Delete(ctx, user) })
}

type observedPushers struct {
	*observedReads[mxid.UserID, pusher.List]
	store module.PusherStore
}

func (s observedPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	return s.change(ctx, s.update, func(ctx context.Context) error { return s.store.Update(ctx, user, edit) })
}

func (s observedPushers) Delete(ctx context.Context, user mxid.UserID) error {
	return s.change(ctx, s.remove, func(ctx context.Context) error { return s.store.Delete(ctx, user) })
}

type observedPushkeys struct {
	*observedReads[pusher.Digest, pusher.Entry]
	store module.PushkeyIndex
}

func (s observedPushkeys) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (entry pusher.Entry, err error) {
	err = s.change(ctx, s.update, func(ctx context.Context) error {
		entry, err = s.store.Update(ctx, key, edit)
		return err
	})
	return entry, err
}
