// Package service is the domain service behind the push rules and pushers API: the
// services of package module on its stores. It may change at any time; hosts use the
// interfaces of package module.
package service

import (
	"sync/atomic"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// Service is the domain service behind the endpoints and the host's own calls. It is safe
// for concurrent use.
type Service struct {
	rules    *ruleService
	pushers  *pusherService
	imports  *importer
	unread   module.UnreadStore // may be nil
	mail     *mail.Tokens       // may be nil
	bounces  *bounces
	observer observe.Observer
}

// Changes is told of the changes that this host makes, before their calls return.
// [feed.Feed] implements it.
type Changes interface {
	RulesChanged(user mxid.UserID, version int64)
	RulesForgotten(user mxid.UserID)
	PushersChanged(user mxid.UserID)
}

type noChanges struct{}

func (noChanges) RulesChanged(mxid.UserID, int64) {}
func (noChanges) RulesForgotten(mxid.UserID)      {}
func (noChanges) PushersChanged(mxid.UserID)      {}

// New returns a service that tells changes, which may be nil, of its changes. It does no
// I/O and starts nothing.
func New(stores module.Stores, changes Changes, o Options) *Service {
	observer := observe.Or(o.Observer)
	if changes == nil {
		changes = noChanges{}
	}
	stores = observed(stores, observer)
	stores.Pushers = ownPushers{stores.Pushers, changes}
	rules := ruleService{
		store: stores.Rules, changes: changes, accounts: o.Accounts,
		defaults: o.Defaults, limits: o.Limits, observer: observer,
	}
	pushers := pusherService{
		store: stores.Pushers, pushkeys: pushkeys{stores, changes, observer, new(atomic.Int64)}, policy: o.Policy, accounts: o.Accounts,
		activation: o.Activation,
	}
	// The importer gets copies of both services: theirs use the stores themselves, and the stores
	// below call the importer.
	imports := newImporter(rules, pushers, o)
	if o.ImportSource != nil {
		rules.store, pushers.store = importingRules{stores.Rules, imports}, importingPushers{stores.Pushers, imports}
	}
	return &Service{rules: &rules, pushers: &pushers, imports: imports, unread: stores.Unread, mail: o.Mail, bounces: &bounces{}, observer: observer}
}

// Rules returns the push rule operations.
func (s *Service) Rules() module.RuleService { return s.rules }

// Pushers returns the pusher operations.
func (s *Service) Pushers() module.PusherService { return s.pushers }

// Host returns the calls for the host's own code. It reads single users' rules through
// rules: [Service.Rules], or the host's wrapper of it.
func (s *Service) Host(rules module.RuleService) module.HostService {
	return &hostService{rules: rules, edits: s.rules, pushers: s.pushers, imports: s.imports, unread: s.unread, mail: s.mail, bounces: s.bounces}
}
