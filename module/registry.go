// Package module is the registry of the interfaces that a host may implement, wrap or
// replace: registry.go and import.go for push rules and pushers, handover.go for new events,
// notifier.go for delivery, mail.go for mails, unread.go for unread counts. It has their types and errors, too. Package service
// implements the services, and package feed the SyncService.
//
//	handlers ── RuleService ──── RuleStore         (rulestore: Redis)
//	        └── PusherService ┬─ PusherStore       (pusherstore: Redis)
//	                          └─ PushkeyIndex      (pusherstore: Redis)
//	host ────── HostService ──── the three stores
//	        └── SyncService ──── RuleService
//	                 feed ────── ChangeListener, PusherListener (the host's, any number)
//	                 services ── Accounts, BulkAccounts (the host's, if it has them)
//	                          └─ ImportSource           (the host's, if users move in)
//	     ────── EventService ── Notifier, UnreadService
//	     ────── Notifier ───┬─ DeliveryQueue, Gateway   (delivery, if the host has it)
//	                        └─ Unread, Attention        (the host's, if it has them)
//	     ────── UnreadService ─┬─ UnreadStore           (redisunread, if the host has counts)
//	                           └─ NotifiedEvents        (the host's, if it has them)
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

// RuleStore stores each user's push rules event. Package storetest tests this contract.
//
// Errors: [pushrule.Unreadable] for an event that cannot be read, which is never
// overwritten; [Unavailable] if the store cannot be reached or ctx ends first.
type RuleStore interface {
	// Load returns a user's rules, or the zero Content if there are none. An event
	// without content, or whose content is not an object, counts as no rules.
	Load(ctx context.Context, user mxid.UserID) (Content, error)

	// LoadMany is Load for many users, each with its own result, in as few round trips as
	// possible.
	LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[Content]

	// Versions returns the versions of many users' rules, 0 for a user without rules.
	// It is called for thousands of users every minute, so it should not read rules.
	// An unreadable event may have a version.
	Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[int64]

	// Update atomically replaces the user's rules with the result of edit, and returns
	// the stored content, which may include concurrent changes. For a user without rules,
	// edit gets an empty set and found is false.
	//
	// Edit must be pure: it may run several times, on another goroutine, and even after
	// Update has returned because ctx ended. If Update returns nil, the last run counts.
	// An error of edit changes nothing and is returned unchanged.
	Update(ctx context.Context, user mxid.UserID, edit func(rules *pushrule.Ruleset, found bool) error) (Content, error)

	// Delete removes all stored data of a user, readable or not, if any. A concurrent
	// update then finds no rules.
	Delete(ctx context.Context, user mxid.UserID) error

	// Watch calls changed for each change by any host, including this one, but not for
	// deletions and updates without effect. Changes may arrive twice, late and in any
	// order. Watch calls watching once, as soon as it can miss no later change. It returns
	// an error when ctx ends or changes may have been missed. Changed must not block.
	Watch(ctx context.Context, watching func(), changed func(Change)) error
}

// Change reports that a user's rules have changed, without the rules.
type Change struct {
	User    mxid.UserID
	Version int64

	// Made is the time of the change by this host's clock, or zero if unknown. It is for
	// metrics only.
	Made time.Time
}

// Content is the content of a user's m.push_rules event, with its version.
type Content struct {
	Rules pushrule.Ruleset

	// Extra contains the other members of the content, which the service keeps but does
	// not interpret. Read-only.
	Extra []strictjson.Member

	// Version changes with every change of the content; it is 0 if nothing is stored. The
	// module's changes increase it, even when rules are created again after a deletion.
	// It goes back only if the store has lost changes (integration/README.md,
	// "Guarantees") or another program has written: compare versions for equality.
	Version int64
}

// Found reports whether the user has rules.
func (c Content) Found() bool { return c.Version != 0 }

// AppendJSON appends the content as clients see it: {"global":{...}}, followed by Extra.
func (c Content) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"global":`...)
	dst = c.Rules.AppendJSON(dst)
	return append(strictjson.AppendMembers(dst, c.Extra), '}')
}

// ReadContent reads what [Content.AppendJSON] wrote, for a store that keeps it with its
// version. A content that is not an object counts as none: the result is the zero Content.
// An error is [pushrule.Unreadable]: never overwrite such a content.
func ReadContent(text string, version int64) (Content, error) {
	rules, extra, found, err := pushrule.ReadContent(strictjson.NewReader(text))
	switch {
	case err != nil:
		return Content{}, pushrule.Unreadable(err)
	case !found:
		return Content{}, nil
	}
	return Content{Rules: rules, Extra: extra, Version: version}, nil
}

// Result is the result of one of many operations.
type Result[V any] struct {
	Value V
	Err   error
}

// PusherStore stores each user's pushers. Package storetest tests this contract.
//
// Errors: [pusher.Unreadable] for pushers that cannot be read, which are never
// overwritten; [Unavailable] as in [RuleStore].
type PusherStore interface {
	// Load returns the user's stored pushers, visible or not, in order of creation; see
	// [PushkeyIndex].
	Load(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// LoadMany is Load for many users; see [RuleStore.LoadMany].
	LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// Update atomically replaces the user's pushers with the result of edit; see
	// [RuleStore.Update].
	Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error

	// Delete removes all stored data of a user, readable or not.
	Delete(ctx context.Context, user mxid.UserID) error
}

// PusherWatcher is a [PusherStore] that reports changes. Hosts with a [PusherListener]
// need it; a wrapper of a store must pass it on. Without it, pushers are not cached; see
// [feed.Feed.Pushers].
type PusherWatcher interface {
	// Watch is [RuleStore.Watch] for pushers, but it reports deletions, too.
	Watch(ctx context.Context, watching func(), changed func(PusherChange)) error
}

// PusherChange reports that a user's pushers have changed, without the pushers.
type PusherChange struct {
	User mxid.UserID

	// Repeated reports a change of claims and times alone ([pusher.List.EqualButClaims]):
	// apps set their pushers again at each start. No [PusherListener] is called.
	Repeated bool
}

// PushkeyIndex decides which users' pushers of each pushkey are visible. It is separate from
// [PusherStore] because these users are in different hash slots. Package storetest tests
// this contract.
//
// A set of a pusher changes the entry, which gives it a number, and then stores the pusher with
// that number. All readers of pushers ask the entry ([pusher.Entry.Shows]), so a pusher that
// another user has taken is gone at once, wherever it is stored.
//
// Errors: [pusher.Unreadable], [Unavailable].
type PushkeyIndex interface {
	// Load returns the entry of a pushkey, the zero entry if there is none.
	Load(ctx context.Context, key pusher.Digest) (pusher.Entry, error)

	// LoadMany is Load for many pushkeys; see [RuleStore.LoadMany].
	LoadMany(ctx context.Context, keys []pusher.Digest) map[pusher.Digest]Result[pusher.Entry]

	// Update atomically replaces the entry with the result of edit, and returns it; see
	// [RuleStore.Update]. The watchers of the store of pushers get a
	// [PusherChange] of each user who loses the pushkey to another ([pusher.Entry.Lost]). An
	// entry may go [pusher.EntryDays] after its last change, unless it
	// [pusher.Entry.Lasts].
	Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (pusher.Entry, error)
}

// RuleService is the push rules API without HTTP and JSON. [service.Service.Rules] implements it.
// A host's wrapper sees the endpoints' calls, and the reads of single users' rules by
// [HostService] and [SyncService].
//
// Errors: as [RuleStore], and the named errors of package pushrule.
type RuleService interface {
	// Content returns the whole set, and repairs it if necessary: a user without rules
	// gets the rules of the [ImportSource], or else the defaults; a set with a legacy
	// rule (MSC4210) loses all legacy rules and gets the current defaults. With
	// [Accounts], a deactivated user gets [ErrLoggedOut].
	//
	// If another request changes the set right after a repair, Content returns the
	// repaired set, and for its version a number that no stored set has: a sync with it
	// finds a change and loads again.
	Content(ctx context.Context, user mxid.UserID) (Content, error)

	// Rule returns a single rule. For the id of a legacy rule (MSC4210), with any kind, it
	// returns [pushrule.ErrRuleNotFound].
	Rule(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (pushrule.Rule, error)

	// Enabled reports whether a rule is enabled. For the id of a legacy rule, with any
	// kind, it returns false.
	Enabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (bool, error)

	// Put adds or replaces a rule; see [pushrule.Ruleset.Put].
	Put(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, draft pushrule.Draft, at pushrule.Position) error

	// SetEnabled switches a rule on or off; see [pushrule.Ruleset.SetEnabled].
	SetEnabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, enabled bool) error

	// SetActions replaces the actions of a rule; see [pushrule.Ruleset.SetActions].
	SetActions(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, actions []pushrule.Action) error

	// Delete removes a rule. Default rules cannot be removed.
	Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error
}

// PusherService is the pushers API without HTTP and JSON. [service.Service.Pushers] implements
// it.
type PusherService interface {
	// List returns the user's pushers, in order of creation, without pushers whose pushkey
	// another user has taken. A pusher whose entry in the [PushkeyIndex] cannot be read counts
	// as the user's.
	List(ctx context.Context, user mxid.UserID) (pusher.List, error)

	// Set adds a pusher, or replaces the user's pusher of the same key. Others says
	// whether other users' pushers of the key are removed. Set refuses a pusher that
	// violates the [pusher.Policy] and, with [Accounts], a pusher whose device is gone
	// ([ErrLoggedOut]). A call that only switches a pusher on or off does not change its
	// device; see [pusher.Pusher.DiffersOnlyInEnabled].
	//
	// If several users set the same key at once with [pusher.RemoveOthers], one of them
	// keeps it. After an error of kind [fault.Unavailable] the pusher may be set, or others
	// may have lost theirs without it: set it again.
	Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error

	// Activate activates the user's pusher whose app has got the token; see [pusher.Kind.NeedsAck]. A
	// token is valid for 24 hours, and until its pusher is set again. Errors: [fault.NotFound] for
	// an app without such pushers, [fault.UnknownAckToken], [fault.ExpiredAckToken].
	Activate(ctx context.Context, user mxid.UserID, appID, token string) error

	// Delete removes the user's pusher of a key, if any, and never other users' pushers.
	Delete(ctx context.Context, user mxid.UserID, key pusher.Key) error
}

// HostService contains the calls for a homeserver's own code. [service.Service.Host] implements
// it.
//
// Repeat a method after an error. A repetition does no harm, except for a successful
// Import. Call the methods for ended devices and users after the host has ended them, so
// that no new request comes; [Accounts] cover requests in progress.
type HostService interface {
	// EnsureDefaults gives the default rules to a user without rules: at registration,
	// and at login if users may be older than the module. With [Accounts], a deactivated
	// user gets [ErrLoggedOut].
	EnsureDefaults(ctx context.Context, user mxid.UserID) error

	// RefreshDefaults updates the default rules in a user's stored set, and keeps enabled
	// and actions of each; see [pushrule.Ruleset.MergeDefaults]. Call it after an upgrade
	// of the host.
	RefreshDefaults(ctx context.Context, user mxid.UserID) error

	// Import stores a user's pushers and rules from a server without the module. It sets
	// each pusher that the user does not have, and then stores all rules at once, if none
	// are stored. The result names what Import refused: rules that no client may put or
	// over a limit, pushers that break the policy or a limit, pushers whose device is gone,
	// and pushers whose pushkey another user has taken since. Other users' pushers stay. A
	// second import restores pushers that the user has removed since the first.
	//
	// Two errors mean that nothing stays stored: [ErrLoggedOut] for a deactivated user,
	// with [Accounts], and [pushrule.Unreadable] for rules that cannot be read as a whole.
	// After [Unavailable] some pushers may be stored, without the rules; a repetition adds
	// the rest. See also [ImportSource].
	Import(ctx context.Context, user mxid.UserID, from Import, how ImportMode) (ImportResult, error)

	// ForgetUser removes a deactivated user's rules, pushers and unread notifications, readable
	// or not, and the user's name from the entries of the pushkeys. The entry of a pusher whose
	// set or removal was interrupted before may name the user until it expires
	// ([pusher.EntryDays]).
	//
	// The [ImportSource] forgets the user first. If it fails, ForgetUser returns the error and
	// keeps the rules, because a user without rules is imported again. No other call finishes
	// a failed ForgetUser: repeat it until it returns nil.
	ForgetUser(ctx context.Context, user mxid.UserID) error

	// RemoveDevicePushers removes the pushers that the devices set, at logout. Pushers of
	// kind email stay: they belong to the user.
	RemoveDevicePushers(ctx context.Context, user mxid.UserID, devices ...string) error

	// KeepOnlyDevicePushers removes all pushers that the device did not set, at a
	// password change that logs out the other devices. With an empty device, for "log out
	// everywhere", it removes all. Pushers of kind email stay.
	KeepOnlyDevicePushers(ctx context.Context, user mxid.UserID, device string) error

	// RetainDevicePushers removes the pushers of devices that are not in liveDevices.
	// Pushers without a device and of kind email stay. Call it at each login, with the
	// user's devices, and in a periodic job: it repairs a
	// [HostService.RemoveDevicePushers] that failed after the logout, which the client
	// cannot repeat.
	//
	// With [Accounts], it first asks about each device that is not in liveDevices, so a
	// device that has just logged in keeps its pushers. Without, no device may log in
	// between the read of liveDevices and the return.
	RetainDevicePushers(ctx context.Context, user mxid.UserID, liveDevices ...string) error

	// CopyRoomRules copies the user's rules for a room to the room that replaces it;
	// see [pushrule.Ruleset.CopyRoomRules].
	CopyRoomRules(ctx context.Context, user mxid.UserID, oldRoom, newRoom string) error

	// AccountData returns the content of the user's m.push_rules event as JSON, for
	// GET .../account_data/m.push_rules. Refuse PUT and DELETE with
	// [ErrServerControlled]. Errors: see [RuleService.Content].
	AccountData(ctx context.Context, user mxid.UserID) ([]byte, error)

	// Rulesets returns the rules of many users, for example of a room's members, each with
	// its own result. It repairs rules as [RuleService.Content] does, but does not store
	// the repairs. It first imports users from the [ImportSource], several at a time. It
	// takes one pipelined round trip to each Redis node for every 500 users.
	Rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[Content]

	// Pushers is [PusherService.List] for many users; see Rulesets. With [Accounts] it omits
	// pushers of devices and users that are gone. If Accounts fail for a user, the user's
	// result is that error.
	Pushers(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[pusher.List]

	// RemovePusher removes the user's pusher of a key if it was last set at setAt,
	// [pusher.Pusher.SetAt]. It is for pushers that a push gateway has rejected.
	RemovePusher(ctx context.Context, user mxid.UserID, key pusher.Key, setAt int64) error

	// MailUser returns the user whose mails the token of a mail's link stops, and the display name
	// of the pusher's app in one line, which is a client's text. The app is empty if it has no name,
	// the pusher is gone, or the storage fails. The page behind the link names both before it asks.
	// Errors: see Unsubscribe.
	MailUser(ctx context.Context, token string) (user mxid.UserID, app string, err error)

	// Unsubscribe removes the pusher of kind email that the token of a mail's link names, if it
	// is still set. The page behind the link calls it. A token that is not valid, or older than
	// a year, gets [fault.InvalidParam].
	Unsubscribe(ctx context.Context, token string) error

	// MailBounced removes the pushers of kind email of an address to which a mail could not be
	// delivered. The token is in the address to which the mail came back: bounces+TOKEN@example.org,
	// with capital and small letters as they were sent. Call it only for reports of a permanent
	// failure that is about the address (RFC 3463: status 5.1.x or 5.2.1): a blocked sender would remove
	// pushers of users who get mail. In ten minutes, a host removes the pushers of four users. For
	// further ones it gets [fault.Unavailable]: keep the report, and call later. Pushers that were set
	// on a day after the mail's stay, and of an address with more than [pusher.MaxUsers] users those
	// that were set first. A token that is not valid, or older than two weeks, gets
	// [fault.InvalidParam].
	MailBounced(ctx context.Context, token string) error
}

// SyncService answers the push rules part of a /sync. The host adds the module's token to
// its own sync token.
type SyncService interface {
	// Since answers a sync with the token since: the [SyncUpdate.Token] of the previous
	// answer, or 0 at the first sync and for a host's token that lacks the module's. Ctx
	// is the context of the request, and ends with it.
	//
	// Since reads the store at the first sync, after a change, and if no request on this
	// host was for the user for some minutes; otherwise it answers from memory. A change by
	// another host arrives within milliseconds, or within [feed.Config.Recheck] if its
	// message was lost.
	//
	// Errors: see [RuleService.Content]. The update is valid even with an error: its
	// token is since, and Changed can be waited for. So log the error and send the rest
	// of the sync.
	Since(ctx context.Context, user mxid.UserID, since int64) (SyncUpdate, error)
}

// SyncUpdate tells a /sync which push rules to send, or what to wait for.
type SyncUpdate struct {
	// Content is sent as the account data event [AccountDataType] if New is true.
	// Otherwise the client has the current rules, or there was an error.
	Content Content
	New     bool

	// Token is for the next sync: the version of the rules that the client has after this
	// answer. Put it into the host's token only if this answer is sent, and never put
	// another version there.
	Token int64

	// Changed is closed when Since may have new rules: after a change, and when the store
	// answers again after an error. A sync with nothing to send waits for it until ctx
	// ends, and calls Since again.
	Changed <-chan struct{}
}

// ChangeListener is notified of changes to push rules by any host.
// [RuleService.Content] and [HostService.AccountData] return the rules.
type ChangeListener interface {
	// PushRulesChanged is called after a user's rules have changed, for one change at a
	// time, on a goroutine for this listener: requests and other listeners do not wait for
	// it. It is called once for several changes of a user while it is busy, and may be
	// called twice for one change, but not for requests without effect. It should return
	// when ctx ends, at the stop of the host. A panic is counted and reported.
	PushRulesChanged(ctx context.Context, user mxid.UserID)

	// PushRulesMissed is called when changes of any user may have been missed: at the
	// start, after a disconnection, and after too many changes waited. If a message was
	// lost, only users whose rules this host keeps, or who wait in a sync, are reported,
	// within [feed.Config.Recheck].
	PushRulesMissed(ctx context.Context)
}

// PusherListener is notified of changes to pushers by any host, for example to show users
// their devices. [PusherService.List] returns the pushers.
type PusherListener interface {
	// PushersChanged is called after the user's pushers have changed, on the terms of
	// [ChangeListener]. A Set that repeats the stored pusher does not call it.
	PushersChanged(ctx context.Context, user mxid.UserID)

	// PushersMissed is called when changes of any user may have been missed; see
	// [ChangeListener]. Read all pushers again that are in use.
	PushersMissed(ctx context.Context)
}

// Accounts reports which devices and users exist. It is optional. With it, a request
// leaves no pusher and no rule set if its device is logged out, or its user deactivated,
// while it runs.
type Accounts interface {
	// LoggedIn reports whether a device is logged in or, with an empty device, whether
	// the user is active. The module asks after it has set a pusher or created a rule
	// set. So at a logout, the host first ends the session, and then calls [HostService].
	// If that call fails, the device can get notifications for 30 seconds more: about
	// cached pushers ([feed.Feed.Pushers]) the module asks that often. Ctx carries the values of
	// the request's context.
	LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error)
}

// BulkAccounts should be implemented by [Accounts] outside the process:
// [HostService.Pushers] asks about all devices of all users with pushers. Without it,
// LoggedIn is called for each device, several at a time.
type BulkAccounts interface {
	// LoggedInMany is [Accounts.LoggedIn] for many sessions, in as few round trips as
	// possible. A session without a result counts as failed.
	LoggedInMany(ctx context.Context, sessions []Session) map[Session]Result[bool]
}

// Session is a user with a device, which may be empty; see [Accounts].
type Session struct {
	User   mxid.UserID
	Device string
}

// ImportSource provides users of a server without the module. It is optional. With it,
// the first use of any method imports a user without rules, as by [HostService.Import],
// before any defaults are stored. Rules are stored last, so the next use completes an
// import that ended early. It is not asked about users with rules. All hosts of the same
// users need it.
type ImportSource interface {
	// Load returns a user's data; found is false for an unknown or forgotten user. After
	// an error the request gets [fault.Unavailable], and no defaults are stored. Load may
	// be called several times for a user. Ctx carries the values of the request's context.
	Load(ctx context.Context, user mxid.UserID) (from Import, found bool, err error)

	// Forget makes Load report the user as not found from now on, whether it deletes the
	// data or marks it. An unknown user is no error. [HostService.ForgetUser] calls it.
	Forget(ctx context.Context, user mxid.UserID) error
}

// Health is for the host's readiness probe.
type Health interface {
	// Healthy returns nil while the host can serve users. At least one master must answer,
	// run scripts, and grant the rights of all parts of the module: the host can then serve the
	// users of that master. No server may
	// evict keys, unless the host's Config allows eviction. Every server must be a master,
	// and a node of a cluster exactly if the client is a cluster client. Healthy takes at
	// most a second and one round trip to each master, so it can be called every second.
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
