package module

import (
	"context"
	"errors"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

var _ RuleService = (*ruleService)(nil)

type ruleService struct {
	store     RuleStore
	limits    pushrule.Limits
	listeners []ChangeListener
}

// NewRuleService returns the module's push rule service.
func NewRuleService(store RuleStore, limits pushrule.Limits, listeners ...ChangeListener) RuleService {
	return &ruleService{store, limits, listeners}
}

func (s *ruleService) Ruleset(ctx context.Context, user mxid.UserID) (pushrule.Ruleset, error) {
	rules, found, err := s.store.Load(ctx, user)
	if err != nil || found && !rules.HasLegacy() {
		return rules, err
	}
	return s.repair(ctx, user)
}

// errIntact ends a repair that another request has already made.
var errIntact = errors.New("push rules need no repair")

// repair makes the two repairs of the whole-set read on what is stored now.
func (s *ruleService) repair(ctx context.Context, user mxid.UserID) (pushrule.Ruleset, error) {
	var intact pushrule.Ruleset
	rules, err := s.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		switch {
		case !found:
			*rules = pushrule.ServerDefault(user)
		case rules.HasLegacy():
			rules.MergeDefaults(user)
		default:
			intact = *rules
			return errIntact
		}
		return nil
	})
	if errors.Is(err, errIntact) {
		return intact, nil
	}
	return rules, err
}

func (s *ruleService) Rule(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) (pushrule.Rule, error) {
	if pushrule.IsLegacy(id) {
		return pushrule.Rule{}, pushrule.ErrRuleNotFound
	}
	if !kind.Valid() {
		return pushrule.Rule{}, pushrule.ErrUnknownKind
	}
	rules, found, err := s.store.Load(ctx, user)
	if err != nil {
		return pushrule.Rule{}, err
	}
	if !found {
		return pushrule.Rule{}, pushrule.ErrEventNotFound
	}
	rule, found := rules.Rule(kind, id)
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
		before := rules.Len()
		if err := rules.Put(kind, id, draft, at); err != nil {
			return err
		}
		if err := s.limits.CheckDraft(id, draft); err != nil {
			return err
		}
		return s.limits.CheckCount(before, rules)
	})
}

func (s *ruleService) SetEnabled(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, enabled bool) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error { return rules.SetEnabled(kind, id, enabled) })
}

func (s *ruleService) SetActions(
	ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string, actions []pushrule.Action,
) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error {
		if err := rules.SetActions(kind, id, actions); err != nil {
			return err
		}
		return s.limits.CheckActions(actions)
	})
}

func (s *ruleService) Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error {
	return s.edit(ctx, user, func(rules *pushrule.Ruleset) error { return rules.Delete(kind, id) })
}

// edit changes the rules of a user who has some.
func (s *ruleService) edit(ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset) error) error {
	_, err := s.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			return pushrule.ErrEventNotFound
		}
		return edit(rules)
	})
	return err
}

// change is the one path of every write: apply, commit, tell the listeners. It
// returns the rules that were stored.
func (s *ruleService) change(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (pushrule.Ruleset, error) {
	var stored pushrule.Ruleset
	err := s.store.Update(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		err := edit(rules, found)
		stored = *rules
		return err
	})
	if err != nil {
		return pushrule.Ruleset{}, err
	}
	for _, listener := range s.listeners {
		listener.PushRulesChanged(context.WithoutCancel(ctx), user, stored)
	}
	return stored, nil
}
