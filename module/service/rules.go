package service

import (
	"context"
	"errors"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/retry"
)

var _ module.RuleService = (*ruleService)(nil)

type ruleService struct {
	store    module.RuleStore
	changes  Changes
	accounts module.Accounts
	defaults pushrule.Defaults
	limits   pushrule.Limits
	observer observe.Observer
}

func (s *ruleService) Content(ctx context.Context, user mxid.UserID) (module.Content, error) {
	content, err := s.store.Load(ctx, user)
	if err != nil || content.Found() && !content.Rules.HasLegacy() {
		return content, err
	}
	if content, err = s.repair(ctx, user); err != nil {
		return content, err
	}
	return s.checkLoggedIn(ctx, user, content) // the repair may have created the rules
}

// repair repairs the set as [module.RuleService.Content] says. If another request has changed
// the set since the repair, the returned version is one that was never stored.
func (s *ruleService) repair(ctx context.Context, user mxid.UserID) (module.Content, error) {
	defaults := s.defaults.For(user)
	var made pushrule.Ruleset
	var created, repaired bool
	stored, err := s.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		created, repaired = !found, found && rules.HasLegacy()
		if created {
			*rules = defaults
		} else if repaired {
			rules.MergeDefaults(defaults)
		}
		made = *rules
		return nil
	})
	if err != nil {
		return stored, err
	}
	if created {
		s.observer.Count(observe.RuleSetCreated, "", 1)
	}
	if repaired {
		s.observer.Count(observe.RuleSetRepaired, "", 1)
	}
	if made.Equal(stored.Rules) {
		return stored, nil
	}
	return module.Content{Rules: made, Extra: stored.Extra, Version: stored.Version - 1}, nil
}

// checkLoggedIn removes rules that were just created if the user was deactivated during
// the request.
func (s *ruleService) checkLoggedIn(ctx context.Context, user mxid.UserID, content module.Content) (module.Content, error) {
	loggedIn, err := isLoggedIn(ctx, s.accounts, user, "")
	if err != nil || loggedIn {
		return content, err
	}
	if err := s.forget(ctx, user); err != nil {
		return module.Content{}, err
	}
	return module.Content{}, module.ErrLoggedOut
}

func (s *ruleService) Rule(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (pushrule.Rule, error) {
	if pushrule.IsLegacy(id) {
		return pushrule.Rule{}, pushrule.ErrRuleNotFound
	}
	if !kind.Valid() {
		return pushrule.Rule{}, pushrule.ErrUnknownKind
	}
	content, err := s.store.Load(ctx, user)
	if err != nil {
		return pushrule.Rule{}, err
	}
	if !content.Found() {
		return pushrule.Rule{}, pushrule.ErrEventNotFound
	}
	rule, found := content.Rules.Rule(kind, id)
	if !found {
		return pushrule.Rule{}, pushrule.ErrRuleNotFound
	}
	return rule, nil
}

func (s *ruleService) Enabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (bool, error) {
	if pushrule.IsLegacy(id) {
		return false, nil
	}
	rule, err := s.Rule(ctx, user, kind, id)
	return rule.Enabled, err
}

func (s *ruleService) Put(
	ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, draft pushrule.Draft, at pushrule.Position,
) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error {
		before := *rules
		if err := rules.Put(kind, id, draft, at); err != nil {
			return err
		}
		if err := s.limits.CheckDraft(id, draft); err != nil {
			return err
		}
		return s.limits.CheckSet(before, *rules)
	})
}

func (s *ruleService) SetEnabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, enabled bool) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error { return rules.SetEnabled(kind, id, enabled) })
}

func (s *ruleService) SetActions(
	ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, actions []pushrule.Action,
) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error {
		before := *rules
		if err := rules.SetActions(kind, id, actions); err != nil {
			return err
		}
		if err := s.limits.CheckActions(actions); err != nil {
			return err
		}
		return s.limits.CheckSet(before, *rules)
	})
}

func (s *ruleService) Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error { return rules.Delete(kind, id) })
}

// edit changes a user's rules. It does not create rules.
func (s *ruleService) edit(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset) error) error {
	_, err := s.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			return pushrule.ErrEventNotFound
		}
		return edit(rules)
	})
	return err
}

// change stores every edit of rules, and notifies the feed.
func (s *ruleService) change(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (module.Content, error) {
	var changed bool
	content, err := s.store.Update(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		before := *rules
		err := edit(rules, found)
		changed = !found || !before.Equal(*rules)
		return err
	})
	if err != nil {
		return module.Content{}, err
	}
	if changed {
		s.changes.RulesChanged(user, content.Version)
	}
	return content, nil
}

func (s *ruleService) editIfFound(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset) error) error {
	err := s.edit(ctx, user, edit)
	if errors.Is(err, pushrule.ErrEventNotFound) {
		return nil
	}
	return err
}

func (s *ruleService) refreshDefaults(ctx context.Context, user mxid.UserID) error {
	defaults := s.defaults.For(user)
	content, err := s.store.Load(ctx, user)
	if err != nil || !content.Found() || content.Rules.IsCurrent(defaults) {
		return err
	}
	return s.editIfFound(ctx, user, func(rules *pushrule.Ruleset) error {
		rules.MergeDefaults(defaults)
		return nil
	})
}

func (s *ruleService) copyRoomRules(ctx context.Context, user mxid.UserID, oldRoom, newRoom string) error {
	return s.editIfFound(ctx, user, func(rules *pushrule.Ruleset) error {
		before := *rules
		if err := rules.CopyRoomRules(oldRoom, newRoom); err != nil {
			return err
		}
		return s.limits.CheckSet(before, *rules)
	})
}

// forget removes a user's rules. It returns an error for rules in the form of another
// version, and leaves them.
func (s *ruleService) forget(ctx context.Context, user mxid.UserID) error {
	_, err := s.store.Load(ctx, user)
	if err != nil && !isUnreadable(err) {
		return err
	}
	if err = s.store.Delete(ctx, user); err == nil {
		s.changes.RulesForgotten(user)
	}
	return err
}

// rulesets returns the rules of many users, repaired; it does not store the repairs.
func (s *ruleService) rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	all := s.store.LoadMany(retry.LeaveSilent(ctx), users)
	for user, loaded := range all {
		content := &loaded.Value
		switch {
		case loaded.Err != nil:
		case !content.Found():
			content.Rules = s.defaults.For(user)
			all[user] = loaded
		case content.Rules.HasLegacy():
			content.Rules.MergeDefaults(s.defaults.For(user))
			all[user] = loaded
		}
	}
	return all
}
