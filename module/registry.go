// Package module is the domain service behind the push rules and pushers API,
// and the registry of its interfaces: every seam where a host may put its own
// implementation, on one page.
//
//	handlers ── RuleService ──── RuleStore        (rulestore: Redis)
//	        └── PusherService ── PusherStore      (pusherstore: Redis)
//	                 RuleService ── ChangeListener (the host's, any number)
//
// All implementations are safe for concurrent use, honour the context they are
// given, and report refusals as [fault.Error]; any other error is internal.
package module

import (
	"context"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// RuleStore keeps each user's push rules event. Package storetest holds the
// contract as tests that any implementation can run.
//
// Errors: [pushrule.Unreadable] for a stored event that cannot be read, which
// is then never overwritten; [Unavailable] when the store cannot be reached or
// ctx ends first.
type RuleStore interface {
	// Load returns the stored rules; found is false for a user who has none.
	// An event whose content is missing or no object counts as none.
	Load(ctx context.Context, user mxid.UserID) (rules pushrule.Ruleset, found bool, err error)

	// Update replaces the user's rules with what edit makes of them,
	// atomically: no change that another call made in between is lost. Edit
	// gets an empty set and found false for a user who has no rules.
	//
	// Edit must be pure: it may run more than once, on another goroutine, and
	// still when Update has returned because ctx has ended. Its last run is the
	// one that counts, where Update returns nil. Its error ends the update,
	// changes nothing, and is returned as it is.
	Update(ctx context.Context, user mxid.UserID, edit func(rules *pushrule.Ruleset, found bool) error) error
}

// PusherStore keeps each user's pushers. Package storetest holds the contract
// as tests that any implementation can run.
//
// Errors: [pusher.Unreadable] for stored pushers that cannot be read, which
// are then never overwritten; [Unavailable] when the store cannot be reached
// or ctx ends first.
type PusherStore interface {
	// Load returns the user's pushers, in order of creation.
	Load(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// Update replaces the user's pushers with what edit makes of them,
	// atomically, in the way of [RuleStore.Update].
	Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error
}

// RuleService is the push rules API without its wire form: one method for
// each operation of the service document. [NewRuleService] makes the module's
// own; a host may wrap or replace it.
//
// Errors, beside the store's: the refusals of package pushrule, by name.
type RuleService interface {
	// Ruleset returns the whole set, after the two repairs of the document: a
	// user without rules gets the server-default ones, and a set with one of
	// the legacy rules (MSC4210) loses them and gets the current defaults.
	Ruleset(ctx context.Context, user mxid.UserID) (pushrule.Ruleset, error)

	// Rule returns a single rule. Legacy ids give [pushrule.ErrRuleNotFound],
	// whatever the kind.
	Rule(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (pushrule.Rule, error)

	// Enabled returns whether a rule is enabled. Legacy ids give false,
	// whatever the kind.
	Enabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (bool, error)

	// Put adds or replaces a rule; see [pushrule.Ruleset.Put].
	Put(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, draft pushrule.Draft, at pushrule.Position) error

	// SetEnabled turns a rule on or off.
	SetEnabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, enabled bool) error

	// SetActions replaces the actions of a rule.
	SetActions(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, actions []pushrule.Action) error

	// Delete removes a rule that is not a server-default one.
	Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error
}

// PusherService is the pushers API without its wire form. [NewPusherService]
// makes the module's own; a host may wrap or replace it.
type PusherService interface {
	// List returns the user's pushers, in order of creation.
	List(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// Set adds a pusher, or replaces the user's pusher of the same key. It
	// refuses what the [pusher.Policy] does not allow.
	Set(ctx context.Context, user mxid.UserID, p pusher.Pusher) error

	// Delete removes the user's pusher of a key; that there is none is no
	// error. Pushers of other users are never touched.
	Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error
}

// ChangeListener hears of every change to a user's push rules that this host
// instance made, repairs included, after it is stored and before the client
// gets its answer.
type ChangeListener interface {
	// PushRulesChanged is called on the goroutine of the request, so it must
	// return at once: hand slow work to the listener's own goroutines. Ctx
	// carries the request's values but not its cancellation. Changes of one
	// user that run at the same time may arrive in any order.
	PushRulesChanged(ctx context.Context, user mxid.UserID, rules pushrule.Ruleset)
}

// Unavailable is the error for a store that cannot be reached, or not in time.
// The cause is for the log.
func Unavailable(cause error) error {
	return fault.Wrap(fault.Unavailable, "The server cannot reach its storage, try again later.", cause)
}
