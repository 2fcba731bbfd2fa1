// Package module is the domain service behind the push rules and pushers API,
// and the registry of its interfaces: every seam where a host may put its own
// implementation, on one page.
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
// All implementations are safe for concurrent use, honour the context they are
// given, and report refusals as [fault.Error]; any other error is internal.
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

// RuleStore keeps each user's push rules event. Package storetest holds the
// contract as tests that any implementation can run.
//
// Errors: [pushrule.Unreadable] for a stored event that cannot be read, which
// is then never overwritten; [Unavailable] when the store cannot be reached or
// ctx ends first.
type RuleStore interface {
	// Load returns what is stored for a user, the zero Content for a user who
	// has no rules. An event whose content is missing or no object counts as
	// none.
	Load(ctx context.Context, user mxid.UserID) (Content, error)

	// LoadMany is Load for many users in as few round trips as the store can,
	// with a result for each. That one failed has no effect on the others.
	LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[Content]

	// Versions returns the versions of many users' rules, as LoadMany would, 0 for
	// a user who has none. It is called for thousands of users every minute, so it
	// should read no rules. What cannot be read may have a version nevertheless.
	Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[int64]

	// Update replaces the user's rules with what edit makes of them,
	// atomically: no change that another call made in between is lost. Edit
	// gets an empty set and found false for a user who has no rules. The
	// content is what is stored then, changes of others that were made with
	// this one included.
	//
	// Edit must be pure: it may run more than once, on another goroutine, and
	// still when Update has returned because ctx has ended. Its last run is the
	// one that counts, where Update returns nil. Its error ends the update,
	// changes nothing, and is returned as it is.
	Update(ctx context.Context, user mxid.UserID, edit func(rules *pushrule.Ruleset, found bool) error) (Content, error)

	// Delete removes all that is stored for a user, readable or not; that there
	// is nothing is no error. An update that is under way finds no rules then.
	Delete(ctx context.Context, user mxid.UserID) error

	// Watch calls changed for each change that any host makes in the store, those
	// of this one included, until ctx ends or a change may have been missed, and
	// returns the error that did it. An update that changes nothing is no change,
	// nor is a deletion. It calls watching, once, when it will hear of every later
	// change. Changed returns at once. Changes may come twice, late and in any
	// order.
	Watch(ctx context.Context, watching func(), changed func(Change)) error
}

// Change is a change of a user's rules. It has no contents: who wants them, loads
// them.
type Change struct {
	User    mxid.UserID
	Version int64

	// Made is when the change was made, by the clock of this host; the zero time
	// if the store does not know. It is for metrics only.
	Made time.Time
}

// Content is the content of a user's m.push_rules event, with its version.
type Content struct {
	Rules pushrule.Ruleset

	// Extra is what the content has beside the rules and the service does not
	// interpret. It is kept, and shown as account data and in /sync. Read-only.
	Extra []strictjson.Member

	// Version is another one after every change, above 0; it is 0 if nothing is
	// stored. It grows with every change that the module makes, and on when rules
	// are made anew after a deletion. It is smaller than before only if the store
	// itself has lost changes (integration/README.md, "Guarantees") or somebody else
	// than the module wrote: so compare versions for equality, to be right in any case.
	Version int64
}

// Found reports whether the user has rules.
func (c Content) Found() bool { return c.Version != 0 }

// AppendJSON appends the content as clients see it in account data and /sync:
// {"global":{...}}, with all that it has beside the rules.
func (c Content) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"global":`...)
	dst = c.Rules.AppendJSON(dst)
	return append(strictjson.AppendMembers(dst, c.Extra), '}')
}

// Result is what one of many operations came to.
type Result[V any] struct {
	Value V
	Err   error
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

	// LoadMany is Load for many users, in the way of [RuleStore.LoadMany].
	LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// Update replaces the user's pushers with what edit makes of them,
	// atomically, in the way of [RuleStore.Update].
	Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error

	// LoadPusher is LoadMany of one key: each list has the user's pusher of that
	// key, or nothing. It reads no other pusher, so that what it costs does not
	// depend on what else the users have.
	LoadPusher(ctx context.Context, key pusher.Key, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// UpdatePusher is Update of one key: edit gets a list that has the user's
	// pusher of that key, or nothing, and may replace or remove it, but add none.
	// It reads and writes no other pusher. If the edit makes the pusher larger,
	// [pusher.List.Size] of the list that it had counts the others, too, as they are
	// when the change is made; see [pusher.List.Only].
	UpdatePusher(ctx context.Context, user mxid.UserID, key pusher.Key, edit func(*pusher.List) error) error

	// Delete removes all that is stored for a user, readable or not.
	Delete(ctx context.Context, user mxid.UserID) error
}

// PushkeyIndex keeps for each pushkey of an app which users may have a pusher
// of it. It is a store of its own because the users of one pushkey live in
// different hash slots. Package storetest holds the contract as tests.
//
// A user who sets a pusher claims its pushkey: claims have an order, and a claim
// with [pusher.RemoveOthers] removes the pushers of all claims before it. To reconcile
// a pushkey is to remove these. It comes after the claim, in other slots, so a host
// that dies in between leaves it to others: that is what MarkPending is for.
//
// Errors: [pusher.Unreadable], [Unavailable].
type PushkeyIndex interface {
	// Load returns the claims to a pushkey.
	Load(ctx context.Context, key pusher.Digest) (pusher.Claims, error)

	// Update replaces the claims to a pushkey with what edit makes of them,
	// atomically, in the way of [RuleStore.Update], and returns them.
	Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (pusher.Claims, error)

	// MarkPending remembers that a pushkey is to be reconciled for a claim, and for
	// those before it. ClearPending forgets that, unless a later claim is pending.
	MarkPending(ctx context.Context, p PendingPushkey) error
	ClearPending(ctx context.Context, p PendingPushkey) error

	// Pending returns up to limit pending pushkeys, each with
	// its last claim, the oldest first: those whose number is that of a time
	// before the given one, or all for the zero time.
	Pending(ctx context.Context, before time.Time, limit int) ([]PendingPushkey, error)
}

// PendingPushkey is a pushkey that may have an owner too many after a claim.
type PendingPushkey struct {
	Key   pusher.Digest
	Claim int64 // its number; see [pusher.Claim]
}

// RuleService is the push rules API without its wire form: one method for
// each operation of the service document. [Service.Rules] is the module's
// own; a host may wrap or replace it. A wrapper sees the endpoints' calls, and
// the contents of single users that [HostService] and [SyncService] read.
//
// Errors, beside the store's: the refusals of package pushrule, by name.
type RuleService interface {
	// Content returns the whole set, after the two repairs of the document: a
	// user without rules gets the server-default ones, unless an [ImportSource] has
	// theirs, and a set with one of the legacy rules (MSC4210) loses them and gets
	// the current defaults. With [Accounts], a user who is gone gets no rules but
	// [ErrLoggedOut].
	//
	// If others have changed the set since the repair, the version is one that was
	// never stored, so that the next sync loads again.
	Content(ctx context.Context, user mxid.UserID) (Content, error)

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

// PusherService is the pushers API without its wire form. [Service.Pushers]
// is the module's own; a host may wrap or replace it.
type PusherService interface {
	// List returns the user's pushers, in order of creation.
	List(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// Set adds a pusher, or replaces the user's pusher of the same key; others
	// says what becomes of the pushers that other users have of it. It refuses
	// what the [pusher.Policy] does not allow and, with [Accounts], a pusher
	// whose device is gone ([ErrLoggedOut]). A set that only turns a pusher on or
	// off leaves it to its device; see [pusher.Pusher.DiffersOnlyInEnabled].
	//
	// Of users who set the same key at the same time with
	// [pusher.RemoveOthers], one has it in the end. After an error of kind
	// [fault.Unavailable] the pusher may be set, and others may still have
	// theirs for a while: [HostService.ReconcilePushkeys] removes them.
	Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error

	// Delete removes the user's pusher of a key; that there is none is no
	// error. Pushers of other users are never touched.
	Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error
}

// HostService is what a homeserver calls from its own code: where it
// registers users, logs devices out, upgrades rooms, serves account data and
// sends notifications. [Service.Host] is the module's own; a host may wrap
// or replace it.
//
// Every method may be repeated, and should be after an error: what was done is
// not done twice. Those that end something (a device, a user) are to be called
// after the host has ended it, so that no new request comes; see [Accounts] for
// requests that are under way.
type HostService interface {
	// EnsureDefaults gives the server-default rules to a user who has no rules:
	// at registration, and at login where users may be older than the module.
	// With [Accounts], the user must be active by then, or else it gives none
	// but [ErrLoggedOut].
	EnsureDefaults(ctx context.Context, user mxid.UserID) error

	// RefreshDefaults brings the server-default rules in the set of a user who
	// has one to the current table, keeping enabled and actions of each; see
	// [pushrule.Ruleset.MergeDefaults]. For hosts that were upgraded.
	RefreshDefaults(ctx context.Context, user mxid.UserID) error

	// Import stores what a user has on a server that did without the module: the
	// pushers if none are stored here, and then the rules if none are. A part is
	// stored as a whole or not at all. What is not fit to be stored is refused and
	// named in the result, the rest is imported: of the rules what no client may
	// put and what is over a limit, of the pushers also those whose device is gone
	// and those whose pushkey another user has taken here since. No pusher of
	// somebody else's is removed. Pushers that the user has removed since an import
	// would come back with another one.
	//
	// With [Accounts], a user who is gone gets nothing but [ErrLoggedOut]. Error:
	// [pushrule.Unreadable] for rules that cannot be read as a whole; then nothing is
	// stored. See also [ImportSource].
	Import(ctx context.Context, user mxid.UserID, from Import, how ImportMode) (ImportResult, error)

	// ForgetUser removes the rules and pushers of a user, who is deactivated,
	// readable or not, and what the index of pushkeys tells of them. With an
	// [ImportSource], that forgets the user first; if it fails, nothing is removed.
	ForgetUser(ctx context.Context, user mxid.UserID) error

	// RemoveDevicePushers removes the pushers that devices set, at logout.
	// Pushers of kind email stay: they do not belong to a device.
	RemoveDevicePushers(ctx context.Context, user mxid.UserID, devices ...string) error

	// KeepOnlyDevicePushers removes all pushers but those that a device set and
	// those of kind email: at a password change that logs out the other
	// devices. With an empty device, at "log out everywhere", only those of
	// kind email stay.
	KeepOnlyDevicePushers(ctx context.Context, user mxid.UserID, device string) error

	// RetainDevicePushers removes the pushers that devices set which are not
	// among liveDevices, those of kind email excepted, and those that no device
	// set: at each login, with the devices that the user has then, and in sweeps.
	// It makes up for a [HostService.RemoveDevicePushers] that failed after the
	// device was ended, when its client could not repeat it.
	//
	// With [Accounts], it asks them about each of these devices before it removes
	// anything, so that a device which has logged in since liveDevices was read
	// keeps its pushers. Without, no device may log in from when liveDevices is
	// read until it returns.
	RetainDevicePushers(ctx context.Context, user mxid.UserID, liveDevices ...string) error

	// CopyRoomRules gives a user, for the room that replaces another, the rules
	// that they have for the old one; see [pushrule.Ruleset.CopyRoomRules].
	CopyRoomRules(ctx context.Context, user mxid.UserID, oldRoom, newRoom string) error

	// AccountData returns the content of the user's m.push_rules event, as
	// JSON, for GET .../account_data/m.push_rules. Its PUT and DELETE are
	// refused with [ErrServerControlled]. Errors: as [RuleService.Content].
	AccountData(ctx context.Context, user mxid.UserID) ([]byte, error)

	// Rulesets returns the rules of many users, those of a room's members for
	// example, with a result for each: as [RuleService.Content] would, but
	// repairs are not stored. Users who are still to be imported are imported
	// first, some at the same time; see [ImportSource]. It takes one pipelined round
	// trip to each Redis node for every 500 users.
	Rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pushrule.Ruleset]

	// Pushers returns the pushers of many users, in the way of Rulesets. With
	// [Accounts] it leaves out those whose device, or whose user, is gone, though
	// they are stored still: no notification of theirs may reach that device. Of
	// users about whom Accounts fail it returns the error.
	Pushers(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// RemovePusher removes the user's pusher of a key if setAt is when it was set
	// last, [pusher.Pusher.SetAt]: one that a push gateway has rejected, unless it
	// was set since.
	RemovePusher(ctx context.Context, user mxid.UserID, key pusher.Key, setAt int64) error

	// ReconcilePushkeys finishes what was left undone where a host died, or Redis
	// failed, while a pusher was set that takes a pushkey from other users. A claim
	// that has had no pusher at each call for ten minutes is taken back. The module
	// calls it itself, every half minute.
	ReconcilePushkeys(ctx context.Context) error
}

// SyncService answers the part of a /sync that is about push rules. The host puts
// one token of it beside the others into its sync token.
type SyncService interface {
	// Since answers a sync whose token is since: the [SyncUpdate.Token] of the
	// answer before, and 0 at the first sync, or where a sync token of the host's
	// has none. Ctx is that of the request, and ends with it.
	//
	// The store is asked at the first sync, when the rules have changed, and when
	// nobody has asked this host for the user for some minutes. Otherwise the answer
	// comes from memory. A change by another host is known here within milliseconds,
	// or within [FeedConfig.Recheck] if the news of it got lost.
	//
	// Errors: as [RuleService.Content]. The update is valid with an error, too, and
	// loses nothing: its token is since, and it is to wait for. So the host logs the
	// error and sends what else there is.
	Since(ctx context.Context, user mxid.UserID, since int64) (SyncUpdate, error)
}

// SyncUpdate is what a /sync sends of a user's push rules, and what it waits for.
type SyncUpdate struct {
	// Content is to be sent, as the account data event [AccountDataType], if New is
	// true. Otherwise the client has the current one, or there was an error.
	Content Content
	New     bool

	// Token is for the next sync: the version of the content that the client has
	// with this answer. Put it into the host's own token if this answer is sent, and
	// nothing else: a version that comes from elsewhere, of a [ChangeListener] for
	// example, belongs to content that may be sent never.
	Token int64

	// Changed is closed when Since may have something new: after a change, and when
	// the store answers again after an error. A sync with nothing to send waits for
	// it, as long as ctx lasts, and calls Since again.
	Changed <-chan struct{}
}

// ChangeListener is notified of every change to push rules, whichever host
// instance made it. It gets the version and no contents: if it needs them, it
// asks [RuleService.Content] or [HostService.AccountData].
type ChangeListener interface {
	// PushRulesChanged is called for one change at a time, on a goroutine of the
	// listener's own: neither a request nor another listener waits for it, and a
	// panic is counted and reported. Of several changes of a user that come while
	// it is busy, it gets the last. It is not called for requests that change
	// nothing, but may be called twice with one version. It should return when ctx
	// ends, which is when the host stops.
	//
	// Versions of one user come in their order, but for what [Content] tells of
	// smaller ones. The rules may have changed again by the time of the call.
	//
	// A change that is missed, since too many wait or the host was not connected,
	// is made up for within [FeedConfig.Recheck] for the users of a [SyncService];
	// for all others, compare versions.
	PushRulesChanged(ctx context.Context, user mxid.UserID, version int64)
}

// Accounts is what the host knows of its users. It is optional: with it, no
// pusher and no rule set stays that a request creates while its device is
// logged out or its user deactivated.
type Accounts interface {
	// LoggedIn reports whether a user may still make requests: with a device,
	// whether that is logged in; with none, whether the user is active. It is
	// asked after a pusher was set or a rule set created, so the host must end
	// a device before it calls [HostService]. Ctx carries the values of the
	// request's.
	LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error)
}

// BulkAccounts is what [Accounts] should be as well if they are kept outside
// of the process: [HostService.Pushers] asks about all devices of all users that
// have pushers. Accounts that are not are asked about one after the other, some
// at the same time.
type BulkAccounts interface {
	// LoggedInMany is [Accounts.LoggedIn] of many, in as few round trips as the
	// host can, with a result for each. A session without a result counts as one
	// that could not be asked about.
	LoggedInMany(ctx context.Context, sessions []Session) map[Session]Result[bool]
}

// Session is a user with a device, or with none; see [Accounts].
type Session struct {
	User   mxid.UserID
	Device string
}

// ImportSource has users who are still to be imported from a server that did
// without the module. It is optional: with it, a user who has no rules is imported
// at the first use of any method, as by [HostService.Import], instead of getting
// the server-default rules. A user who has rules is not asked about, whatever they
// have removed since; nor is one who has pushers. Where several instances of a
// host serve the same users, all of them need it.
type ImportSource interface {
	// Load returns what a user has there; found is false for a user whom it does
	// not have, or who is forgotten. After an error the request ends with
	// [Unavailable], and the user has what they had. It may be called again for a
	// user who was imported. Ctx carries the values of the request's.
	Load(ctx context.Context, user mxid.UserID) (from Import, found bool, err error)

	// Forget has the source forget a user for good, so that Load does not find them
	// any more. That there is nothing is no error. [HostService.ForgetUser] calls it.
	Forget(ctx context.Context, user mxid.UserID) error
}

// Health tells whether a host can serve, for its readiness probe.
type Health interface {
	// Healthy returns nil while the host can serve users: while a master answers,
	// runs scripts, and none is of another kind than the client is for or evicts
	// keys. Of a cluster one that answers is enough, for a host that is taken out
	// of service because of a part of the users serves nobody. It is bounded by a
	// second, and cheap enough to be called every second: one round trip to each
	// master.
	Healthy(ctx context.Context) error
}

// ErrLoggedOut is for a request whose device was logged out, or whose user was
// deactivated, while it ran.
var ErrLoggedOut = fault.New(fault.UnknownToken, "Unknown access token.")

// ErrServerControlled is for a client that sets or deletes m.push_rules as
// account data (Matrix specification, "Client Config", "Server Behaviour").
var ErrServerControlled = fault.New(fault.ServerControlled, "Cannot set m.push_rules through this API. Use /pushrules.")

// AccountDataType is the type of the event that the module keeps.
const AccountDataType = "m.push_rules"

// Unavailable is the error for a store that cannot be reached, or not in time.
// The cause is for the log; see [fault.Details].
func Unavailable(cause error) error {
	return fault.Wrap(fault.Unavailable, "The server cannot reach its storage, try again later.", cause)
}
