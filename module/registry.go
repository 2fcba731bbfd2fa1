// Package module is the domain service behind the push rules and pushers API. This file
// is the registry of the interfaces that a host may implement, wrap or replace.
//
//	handlers ── RuleService ──── RuleStore         (rulestore: Redis)
//	        └── PusherService ┬─ PusherStore       (pusherstore: Redis)
//	                          └─ PushkeyIndex      (pusherstore: Redis)
//	host ────── HostService ──── the three stores
//	        └── SyncService ──── RuleService
//	                 Feed ────── ChangeListener    (the host's, any number)
//	                 services ── Accounts, BulkAccounts (the host's, if it has them)
//	                          └─ ImportSource           (the host's, if users move in)
//	     ────── Notifier ───┬─ DeliveryQueue, Gateway   (delivery, if the host has it)
//	                        └─ Unread, Attention        (the host's, if it has them)
//
// All implementations are safe for concurrent use, honour their context, and refuse
// with a [fault.Error]; any other error is internal.
package module

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// RuleStore stores each user's push rules event. Package storetest tests this
// contract.
//
// Errors: [pushrule.Unreadable] for a stored event that cannot be read, which is then
// never overwritten; [Unavailable] if the store cannot be reached or ctx ends first.
type RuleStore interface {
	// Load returns a user's stored rules, and the zero Content for a user without
	// rules. An event without content, or whose content is not an object, counts as no
	// rules.
	Load(ctx context.Context, user mxid.UserID) (Content, error)

	// LoadMany is Load for many users, in as few round trips as possible, with a
	// result for each. A failure for one user does not affect the others.
	LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[Content]

	// Versions returns the versions of many users' rules, 0 for a user without rules.
	// It is called for thousands of users every minute, so it should not read rules.
	// An unreadable event may have a version.
	Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[int64]

	// Update atomically replaces the user's rules with the result of edit: concurrent
	// changes are not lost. For a user without rules, edit gets an empty set and found
	// is false. Update returns the stored content, which may include concurrent
	// changes.
	//
	// Edit must be pure: it may run more than once, on another goroutine, and even
	// after Update has returned because ctx ended. If Update returns nil, the last run
	// counts. An error of edit stops the update, changes nothing, and is returned
	// unchanged.
	Update(ctx context.Context, user mxid.UserID, edit func(rules *pushrule.Ruleset, found bool) error) (Content, error)

	// Delete removes all stored data of a user, readable or not. It is no error if
	// there is none. A concurrent update then finds no rules.
	Delete(ctx context.Context, user mxid.UserID) error

	// Watch calls changed for each change in the store by any host, including this
	// one. It returns an error when ctx ends or changes may have been missed. An
	// update without effect is not a change, nor is a deletion. Watch calls watching
	// once, when it will receive every later change. Changed returns at once. Changes
	// may arrive twice, late and in any order.
	Watch(ctx context.Context, watching func(), changed func(Change)) error
}

// Change reports that a user's rules have changed. It does not contain the rules.
type Change struct {
	User    mxid.UserID
	Version int64

	// Made is the time of the change by the clock of this host, or the zero time if
	// the store does not know it. It is for metrics only.
	Made time.Time
}

// Content is the content of a user's m.push_rules event, with its version.
type Content struct {
	Rules pushrule.Ruleset

	// Extra contains the other members of the content, which the service does not
	// interpret. It is kept, and shown as account data and in /sync. Read-only.
	Extra []strictjson.Member

	// Version changes with every change of the content. It is above 0, and 0 if nothing
	// is stored. It grows with every change by the module, even when rules are created
	// again after a deletion. It only goes back if the store has lost changes
	// (integration/README.md, "Guarantees") or another program has written: compare
	// versions for equality.
	Version int64
}

// Found reports whether the user has rules.
func (c Content) Found() bool { return c.Version != 0 }

// AppendJSON appends the content as clients see it in account data and /sync:
// {"global":{...}}, followed by Extra.
func (c Content) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"global":`...)
	dst = c.Rules.AppendJSON(dst)
	return append(strictjson.AppendMembers(dst, c.Extra), '}')
}

// Result is the result of one of many operations.
type Result[V any] struct {
	Value V
	Err   error
}

// PusherStore stores each user's pushers. Package storetest tests this contract.
//
// Errors: [pusher.Unreadable] for stored pushers that cannot be read, which are then
// never overwritten; [Unavailable] if the store cannot be reached or ctx ends first.
type PusherStore interface {
	// Load returns the user's pushers, in order of creation.
	Load(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// LoadMany is Load for many users; see [RuleStore.LoadMany].
	LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// Update atomically replaces the user's pushers with the result of edit; see
	// [RuleStore.Update].
	Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error

	// LoadPusher is LoadMany for one key: each list has the user's pusher of that key,
	// or none. It does not read other pushers, so its cost does not depend on them.
	LoadPusher(ctx context.Context, key pusher.Key, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// UpdatePusher is Update for one key: edit gets a list with the user's pusher of
	// that key, or none. It may replace or remove the pusher, but not add one. Other
	// pushers are neither read nor written. If the edit makes the pusher larger,
	// [pusher.List.Size] of its list includes the user's other pushers at the time of
	// the change; see [pusher.List.Only].
	UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error

	// Delete removes all that is stored for a user, readable or not.
	Delete(ctx context.Context, user mxid.UserID) error
}

// PushkeyIndex records for each pushkey of an app which users may have a pusher of it.
// It is a separate store because the users of one pushkey are in different hash slots.
// Package storetest tests this contract.
//
// To set a pusher, a user first claims its pushkey. Claims are ordered, and a claim
// with [pusher.RemoveOthers] removes the pushers of all earlier claims. This
// reconciliation follows the claim, in other slots. MarkPending makes sure that
// another host finishes it if a host dies in between.
//
// Errors: [pusher.Unreadable], [Unavailable].
type PushkeyIndex interface {
	// Load returns the claims to a pushkey.
	Load(ctx context.Context, key pusher.Digest) (pusher.Claims, error)

	// Update atomically replaces the claims to a pushkey with the result of edit, and
	// returns them; see [RuleStore.Update].
	Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (pusher.Claims, error)

	// MarkPending records that a pushkey must be reconciled up to a claim.
	// ClearPending removes the record, unless it is for a later claim.
	MarkPending(ctx context.Context, p PendingPushkey) error
	ClearPending(ctx context.Context, p PendingPushkey) error

	// Pending returns up to limit pending pushkeys, the oldest claim first. Only
	// claims numbered before the given time count; all, if it is the zero time.
	Pending(ctx context.Context, before time.Time, limit int) ([]PendingPushkey, error)
}

// PendingPushkey is a pushkey that may have too many owners after a claim.
type PendingPushkey struct {
	Key   pusher.Digest
	Claim int64 // its number; see [pusher.Claim]
}

// RuleService is the push rules API without HTTP and JSON, one method for each
// operation. [Service.Rules] implements it; a host may wrap or replace it. A wrapper
// sees the endpoints' calls, and the reads of single users' rules by [HostService] and
// [SyncService].
//
// Errors: those of [RuleStore], and the named errors of package pushrule.
type RuleService interface {
	// Content returns the whole set, and repairs it if necessary: a user without rules
	// gets those of the [ImportSource], or else the defaults; from a set with a legacy
	// rule (MSC4210) all legacy rules are removed, and its defaults are updated. With
	// [Accounts], an ended user gets [ErrLoggedOut] and no rules.
	//
	// If the set has changed since a repair, the returned version is one that was
	// never stored, so that the next sync loads again.
	Content(ctx context.Context, user mxid.UserID) (Content, error)

	// Rule returns a single rule. For legacy ids it returns
	// [pushrule.ErrRuleNotFound], for every kind.
	Rule(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (pushrule.Rule, error)

	// Enabled reports whether a rule is enabled. For legacy ids it returns false, for
	// every kind.
	Enabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (bool, error)

	// Put adds or replaces a rule; see [pushrule.Ruleset.Put].
	Put(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, draft pushrule.Draft, at pushrule.Position) error

	// SetEnabled turns a rule on or off.
	SetEnabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, enabled bool) error

	// SetActions replaces the actions of a rule.
	SetActions(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, actions []pushrule.Action) error

	// Delete removes a rule. Default rules cannot be removed.
	Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error
}

// PusherService is the pushers API without HTTP and JSON. [Service.Pushers] implements
// it; a host may wrap or replace it.
type PusherService interface {
	// List returns the user's pushers, in order of creation.
	List(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// Set adds a pusher, or replaces the user's pusher of the same key; others says
	// whether other users' pushers of the key are removed. Set refuses a pusher that
	// violates the [pusher.Policy] and, with [Accounts], a pusher whose device is gone
	// ([ErrLoggedOut]). A set that only switches a pusher on or off does not change
	// its device; see [pusher.Pusher.DiffersOnlyInEnabled].
	//
	// If several users set the same key at the same time with [pusher.RemoveOthers],
	// one of them keeps it. After an error of kind [fault.Unavailable] the pusher may
	// be set, and others may keep theirs until [HostService.ReconcilePushkeys] removes
	// them.
	Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error

	// Delete removes the user's pusher of a key, and never those of other users. It is
	// no error if there is none.
	Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error
}

// HostService contains the calls for a homeserver's own code: registration, logout,
// room upgrades, account data, notifications. [Service.Host] implements it; a host may
// wrap or replace it.
//
// Every method may be repeated without harm, and should be after an error. Call the
// methods for ended devices and users after the host has ended them, so that no new
// request comes; [Accounts] cover requests in progress.
type HostService interface {
	// EnsureDefaults gives the default rules to a user without rules: at registration,
	// and at login if users may be older than the module. With [Accounts], the user
	// must be active; otherwise it returns [ErrLoggedOut].
	EnsureDefaults(ctx context.Context, user mxid.UserID) error

	// RefreshDefaults updates the default rules in a user's stored set, and keeps
	// enabled and actions of each; see [pushrule.Ruleset.MergeDefaults]. Call it after
	// an upgrade of the host.
	RefreshDefaults(ctx context.Context, user mxid.UserID) error

	// Import stores a user's pushers and rules from a server without the module: first
	// the pushers, if none are stored, then the rules, if none are stored, each all or
	// none. Unsuitable ones are refused and named in the result, and the rest is
	// imported. Refused are rules that no client may put or over a limit, pushers that
	// break the policy, pushers whose device is gone, and pushers whose pushkey
	// another user has taken since. Pushers of other users stay. A second import
	// restores pushers that the user has removed since the first.
	//
	// With [Accounts], an ended user gets [ErrLoggedOut] and nothing is stored.
	// If the rules cannot be read as a whole, it returns [pushrule.Unreadable] and
	// stores nothing. See also [ImportSource].
	Import(ctx context.Context, user mxid.UserID, from Import, how ImportMode) (ImportResult, error)

	// ForgetUser removes a deactivated user's rules, pushers and claims to pushkeys,
	// readable or not. An [ImportSource] forgets the user first; if that fails,
	// nothing is removed.
	ForgetUser(ctx context.Context, user mxid.UserID) error

	// RemoveDevicePushers removes the pushers that the devices set, at logout. Pushers
	// of kind email stay: they belong to the user.
	RemoveDevicePushers(ctx context.Context, user mxid.UserID, devices ...string) error

	// KeepOnlyDevicePushers removes all pushers except those that the device set and
	// those of kind email, at a password change that logs out the other devices. With
	// an empty device, for "log out everywhere", only those of kind email stay.
	KeepOnlyDevicePushers(ctx context.Context, user mxid.UserID, device string) error

	// RetainDevicePushers removes pushers of devices that are not in liveDevices, and
	// pushers without a device; those of kind email stay. Call it at each login, with
	// the user's devices, and in a periodic job. It repairs a
	// [HostService.RemoveDevicePushers] that failed after the logout, which the client
	// cannot repeat.
	//
	// With [Accounts], it asks about each of these devices before removing anything,
	// so a device that has logged in since liveDevices was read keeps its pushers.
	// Without, no device may log in between that read and the return.
	RetainDevicePushers(ctx context.Context, user mxid.UserID, liveDevices ...string) error

	// CopyRoomRules copies the user's rules for a room to the room that replaces it;
	// see [pushrule.Ruleset.CopyRoomRules].
	CopyRoomRules(ctx context.Context, user mxid.UserID, oldRoom, newRoom string) error

	// AccountData returns the content of the user's m.push_rules event as JSON, for
	// GET .../account_data/m.push_rules. Refuse PUT and DELETE with
	// [ErrServerControlled]. Errors: see [RuleService.Content].
	AccountData(ctx context.Context, user mxid.UserID) ([]byte, error)

	// Rulesets returns the rules of many users, for example of a room's members, with
	// a result for each. It returns what [RuleService.Content] would, but does not
	// store repairs. It imports users from the [ImportSource] first, some at the same
	// time. It takes one pipelined round trip to each Redis node for every 500 users.
	Rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pushrule.Ruleset]

	// Pushers returns the pushers of many users; see Rulesets. With [Accounts] it
	// omits stored pushers of devices and users that are gone, so that they get no
	// notification. If Accounts fail for a user, the user's result is that error.
	Pushers(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// RemovePusher removes the user's pusher of a key if it was last set at setAt,
	// [pusher.Pusher.SetAt]. It is for a pusher that a push gateway has rejected,
	// unless the user has set it again.
	RemovePusher(ctx context.Context, user mxid.UserID, key pusher.Key, setAt int64) error

	// ReconcilePushkeys finishes setting pushers that take a pushkey from other users,
	// where a host died or Redis failed in between. A claim that has no pusher at each
	// call for ten minutes is removed. The module calls it every half minute.
	ReconcilePushkeys(ctx context.Context) error
}

// SyncService answers the push rules part of a /sync. The host puts its token into its
// sync token.
type SyncService interface {
	// Since answers a sync with the token since: the [SyncUpdate.Token] of the
	// previous answer, or 0 at the first sync and for a sync token without one. Ctx is
	// that of the request.
	//
	// Since reads the store at the first sync, after a change, and if the host has not
	// asked for this user for some minutes. Otherwise it answers from memory. A change
	// by another host arrives within milliseconds, or within [FeedConfig.Recheck] if
	// its message was lost.
	//
	// Errors: see [RuleService.Content]. The update is valid even with an error: its
	// token is since, and Changed can be waited for. So log the error and send the
	// rest of the sync.
	Since(ctx context.Context, user mxid.UserID, since int64) (SyncUpdate, error)
}

// SyncUpdate tells a /sync which push rules to send, or what to wait for.
type SyncUpdate struct {
	// Content is sent as the account data event [AccountDataType] if New is true.
	// Otherwise the client has the current rules, or there was an error.
	Content Content
	New     bool

	// Token is for the next sync: the version of the rules that the client has after
	// this answer. Put it into the host's token only with this answer: a version from
	// elsewhere, for example from a [ChangeListener], may belong to rules that are
	// never sent.
	Token int64

	// Changed is closed when Since may have new rules: after a change, and when the
	// store answers again after an error. A sync with nothing to send waits for it
	// until ctx ends, and calls Since again.
	Changed <-chan struct{}
}

// ChangeListener is notified of every change to push rules by any host. It gets the
// version; the rules are in [RuleService.Content] or [HostService.AccountData].
type ChangeListener interface {
	// PushRulesChanged is called for one change at a time, on a goroutine for this
	// listener: requests and other listeners do not wait for it. A panic is counted
	// and reported. If several changes of a user arrive while it is busy, it gets the
	// last. Requests without effect do not call it, but it may be called twice with
	// one version. It should return when ctx ends, at the stop of the host.
	//
	// Versions of one user arrive in order, except as [Content] says. The rules may
	// have changed again by the time of the call.
	//
	// A change that is missed, because too many wait or the host was disconnected, is
	// reported within [FeedConfig.Recheck] for users of a [SyncService]. For others,
	// compare versions.
	PushRulesChanged(ctx context.Context, user mxid.UserID, version int64)
}

// Accounts reports which devices and users exist. It is optional: with it, a request
// leaves no pusher and no rule set if its device is logged out, or its user
// deactivated, while it runs.
type Accounts interface {
	// LoggedIn reports whether a device is logged in or, with an empty device, whether
	// the user is active. It is called after a pusher was set or a rule set created,
	// so the host must end a device before it calls [HostService]. Ctx carries the
	// values of the request's context.
	LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error)
}

// BulkAccounts should be implemented by [Accounts] outside the process:
// [HostService.Pushers] asks about all devices of all users with pushers. Without it,
// LoggedIn is called for each of them, some at the same time.
type BulkAccounts interface {
	// LoggedInMany is [Accounts.LoggedIn] for many sessions, in as few round trips as
	// possible, with a result for each. A session without a result counts as failed.
	LoggedInMany(ctx context.Context, sessions []Session) map[Session]Result[bool]
}

// Session is a user with a device, which may be empty; see [Accounts].
type Session struct {
	User   mxid.UserID
	Device string
}

// ImportSource provides users of a server without the module. It is optional: with it,
// a user without rules is imported at the first use of any method, as by
// [HostService.Import], instead of getting the default rules. It is not asked about
// users with rules or pushers. All hosts of the same users need it.
type ImportSource interface {
	// Load returns a user's data; found is false for an unknown or forgotten user.
	// After an error the request ends with [Unavailable] and nothing is stored. It may
	// be called again for an imported user. Ctx carries the values of the request's
	// context.
	Load(ctx context.Context, user mxid.UserID) (from Import, found bool, err error)

	// Forget deletes a user's data for good, so that Load does not find it again. It
	// is no error if there is none. [HostService.ForgetUser] calls it.
	Forget(ctx context.Context, user mxid.UserID) error
}

// Health is for the host's readiness probe.
type Health interface {
	// Healthy returns nil while the host can serve users: at least one master answers
	// and runs scripts, no master evicts keys, and all are of the kind that the client
	// is for. On a cluster one healthy master is enough, so that hosts stay in service
	// for the users on it. Healthy takes at most a second and one round trip to each
	// master, so it can be called every second.
	Healthy(ctx context.Context) error
}

// ErrLoggedOut is the error of a request whose device was logged out, or whose user
// was deactivated, while it ran.
var ErrLoggedOut = fault.New(fault.UnknownToken, "Unknown access token.")

// ErrServerControlled is the error of setting or deleting m.push_rules as account data
// (Matrix specification, "Client Config", "Server Behaviour").
var ErrServerControlled = fault.New(fault.ServerControlled, "Cannot set m.push_rules through this API. Use /pushrules.")

// AccountDataType is the type of the event that the module keeps.
const AccountDataType = "m.push_rules"

// Unavailable returns the error of a store that cannot be reached in time. The cause
// is for the log; see [fault.Details].
func Unavailable(cause error) error {
	return fault.Wrap(fault.Unavailable, "The server cannot reach its storage, try again later.", cause)
}
