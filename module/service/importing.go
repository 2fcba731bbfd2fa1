package service

import (
	"context"
	"errors"
	"maps"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// importingRules imports users without rules before it reads or changes their rules. With
// [module.Accounts], a deactivated user gets [module.ErrLoggedOut].
type importingRules struct {
	module.RuleStore // Versions and Delete do not import
	imports          *importer
}

func (s importingRules) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	content, err := s.RuleStore.Load(ctx, user)
	if err != nil {
		return content, err
	}
	if content.Found() {
		s.imports.present.add(user)
		return content, nil
	}
	if imported, err := s.imports.firstUse(ctx, user); err != nil || !imported {
		return content, err
	}
	return s.RuleStore.Load(ctx, user)
}

func (s importingRules) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	all := s.RuleStore.LoadMany(ctx, users)
	var missing []mxid.UserID
	for user, loaded := range all {
		switch {
		case loaded.Err != nil:
		case loaded.Value.Found():
			s.imports.present.add(user)
		default:
			missing = append(missing, user)
		}
	}
	imported, failed := s.imports.firstUses(ctx, missing)
	for user, err := range failed {
		all[user] = module.Result[module.Content]{Err: err}
	}
	if len(imported) > 0 {
		maps.Copy(all, s.RuleStore.LoadMany(ctx, imported))
	}
	return all
}

func (s importingRules) Update(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error) (module.Content, error) {
	content, err := s.RuleStore.Update(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			return pushrule.ErrEventNotFound
		}
		return edit(rules, found)
	})
	if !errors.Is(err, pushrule.ErrEventNotFound) {
		return content, err
	}
	if _, err := s.imports.firstUse(ctx, user); err != nil {
		return module.Content{}, err
	}
	return s.RuleStore.Update(ctx, user, edit)
}

// importingPushers imports users without rules before it reads or changes their pushers.
// A user whom [module.Accounts] report as deactivated is not imported and has no pushers.
type importingPushers struct {
	module.PusherStore
	imports *importer
}

func (s importingPushers) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	if err := s.importMissing(ctx, user); err != nil {
		return pusher.List{}, err
	}
	return s.PusherStore.Load(ctx, user)
}

func (s importingPushers) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	failed := s.imports.importMissing(ctx, users)
	all := s.PusherStore.LoadMany(ctx, users)
	for user, err := range failed {
		all[user] = module.Result[pusher.List]{Err: err}
	}
	return all
}

func (s importingPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	if err := s.importMissing(ctx, user); err != nil {
		return err
	}
	return s.PusherStore.Update(ctx, user, edit)
}

func (s importingPushers) importMissing(ctx context.Context, user mxid.UserID) error {
	return s.imports.importMissing(ctx, []mxid.UserID{user})[user]
}
