package module

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Import is what a user has on a server that did without the module.
type Import struct {
	// Rules is the content of the user's m.push_rules event as JSON,
	// {"global":{...}}; see [pushrule.Import]. Empty is that of a user who has
	// changed nothing, and gets the server-default rules.
	Rules string

	// Pushers are in order of creation. Device is the one that set a pusher:
	// without it, a pusher that is not of kind email ends at the next
	// [HostService.RetainDevicePushers]. Extra has what clients see beside the
	// other fields; see [pusher.ProfileTag]. SetAt may be when it was last set, in
	// microseconds since 1970; 0 is now. Created and Claim do not matter.
	Pushers []pusher.Pusher
}

// ImportMode says whether an import is to be made.
type ImportMode string

// The modes.
const (
	StoreImport  ImportMode = "store"
	DryRunImport ImportMode = "dry run" // changes nothing; the result is what it would be
)

// ImportOutcome is what became of a part of an import.
type ImportOutcome string

// The outcomes.
const (
	Imported        ImportOutcome = "imported"
	AlreadyThere    ImportOutcome = "already there"     // something is stored, and stays
	NothingToImport ImportOutcome = "nothing to import" // of pushers: there are none
)

// ImportResult is what an import came to.
type ImportResult struct {
	Rules   ImportedRules
	Pushers ImportedPushers
}

// Refused returns how many rules and pushers were refused.
func (r ImportResult) Refused() int { return len(r.Rules.Refused) + len(r.Pushers.Refused) }

// ImportedRules is what became of the rules; see [pushrule.Imported].
type ImportedRules struct {
	Outcome ImportOutcome
	Own     int // rules of the user's own that were stored
	Refused []pushrule.RefusedRule
	Dropped []pushrule.Name
}

// ImportedPushers is what became of the pushers.
type ImportedPushers struct {
	Outcome ImportOutcome
	Stored  int // how many were stored
	Refused []RefusedPusher
}

// RefusedPusher is a pusher that was not imported. It does not tell the pushkey.
type RefusedPusher struct {
	AppID string
	Key   pusher.Digest
	Err   error
}

// importer brings in what users have elsewhere. It stores the pushers first, and
// the rules then: a user who has rules has been brought in, and nothing of what
// they remove afterwards comes back.
type importer struct {
	rules    *ruleService
	pushers  *pusherService
	accounts *slot[Accounts]
	source   slot[ImportSource]
	present  presentUsers
	refused  func(mxid.UserID, ImportResult)
}

// run imports a user. After an error the result says what was done.
func (i *importer) run(ctx context.Context, user mxid.UserID, from Import, how ImportMode) (ImportResult, error) {
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil {
		return ImportResult{}, err
	}
	return i.runBeside(ctx, stored, user, from, how)
}

// runBeside is run beside rules that are stored, or none.
func (i *importer) runBeside(
	ctx context.Context, stored Content, user mxid.UserID, from Import, how ImportMode,
) (result ImportResult, err error) {
	loggedIn, err := isLoggedIn(ctx, i.accounts.get(), user, "")
	if err == nil && !loggedIn {
		err = ErrLoggedOut
	}
	if err != nil {
		return result, err
	}
	var set pushrule.Imported
	if result.Rules.Outcome = AlreadyThere; !stored.Found() {
		if set, err = i.rules.importedSet(user, from.Rules); err != nil { // before anything is stored
			return ImportResult{}, err
		}
		result.Rules = ImportedRules{Imported, set.Own, set.Refused, set.Dropped}
	}
	if result.Pushers, err = i.pushers.importAll(ctx, user, from.Pushers, how); err != nil {
		return ImportResult{Pushers: result.Pushers}, err
	}
	if stored.Found() || how == DryRunImport {
		return result, nil
	}
	made, err := i.rules.storeImport(ctx, user, set.Rules)
	if err == nil && !made {
		result.Rules = ImportedRules{Outcome: AlreadyThere}
	}
	return result, err
}

// importedSet makes a set of rules from elsewhere.
func (s *ruleService) importedSet(user mxid.UserID, content string) (pushrule.Imported, error) {
	defaults := s.defaults.For(user)
	if content == "" {
		return pushrule.Imported{Rules: defaults}, nil
	}
	return pushrule.Import(content, defaults, s.limits)
}

// storeImport stores a set for a user who has none; made is false for one who
// has.
func (s *ruleService) storeImport(ctx context.Context, user mxid.UserID, set pushrule.Ruleset) (made bool, err error) {
	content, err := s.change(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if made = !found; made {
			*rules = set
		}
		return nil
	})
	if err != nil || !made {
		return false, err
	}
	s.observer.Count(observe.RuleSetImported, "")
	_, err = s.checkLoggedIn(ctx, user, content)
	return true, err
}

// firstUse brings in a user, unless they have rules here; found is false for one
// whom the source does not have. To be sure, it looks itself: pushers that a user
// has removed must not come back.
func (i *importer) firstUse(ctx context.Context, user mxid.UserID) (found bool, err error) {
	source := i.source.get()
	if source == nil {
		return false, nil
	}
	stored, err := i.rules.store.Load(ctx, user)
	if err != nil || stored.Found() {
		return stored.Found(), err
	}
	from, found, err := ask(ctx, source, user)
	if err != nil || !found {
		return false, err
	}
	result, err := i.runBeside(ctx, stored, user, from, StoreImport)
	if result.Refused() > 0 {
		i.refused(user, result)
	}
	if err != nil {
		return false, err
	}
	found, err = i.stillThere(ctx, user, source, result)
	if found {
		i.present.add(user)
	}
	return found, err
}

func ask(ctx context.Context, source ImportSource, user mxid.UserID) (Import, bool, error) {
	from, found, err := source.Load(ctx, user)
	if err != nil {
		return Import{}, false, sourceFailed(err)
	}
	return from, found, nil
}

func sourceFailed(cause error) error { return Unavailable(fmt.Errorf("import source: %w", cause)) }

// stillThere takes back what was imported for a user whom the host has forgotten
// meanwhile. [HostService.ForgetUser] has the source forget first, and removes
// then: either it has removed what was stored here, or the source does not have
// the user by now. Accounts have been asked already.
func (i *importer) stillThere(ctx context.Context, user mxid.UserID, source ImportSource, result ImportResult) (bool, error) {
	if i.accounts.get() != nil || result.Rules.Outcome != Imported && result.Pushers.Outcome != Imported {
		return true, nil
	}
	_, found, err := ask(ctx, source, user)
	if err != nil || found {
		return found, err
	}
	if result.Pushers.Outcome == Imported {
		if err := i.pushers.forget(ctx, user); err != nil {
			return false, err
		}
	}
	if result.Rules.Outcome == Imported {
		err = i.rules.forget(ctx, user)
	}
	return false, err
}

// seen remembers a user who has rules.
func (i *importer) seen(user mxid.UserID) {
	if i.source.get() != nil {
		i.present.add(user)
	}
}

// bringIfMissing is bringMissing of one; brought is true if there may be something
// now that was not there before.
func (i *importer) bringIfMissing(ctx context.Context, user mxid.UserID) (brought bool, err error) {
	result := i.bringMissing(ctx, []mxid.UserID{user})[user]
	return result.Value, result.Err
}

// bringMissing brings in those of many users who have no rules, with a result for
// each whom it has brought in or failed to. It asks the store about each user
// once, as far as it can remember them.
func (i *importer) bringMissing(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[bool] {
	if i.source.get() == nil {
		return nil
	}
	users = i.present.unknown(users)
	if len(users) == 0 {
		return nil
	}
	failed := map[mxid.UserID]Result[bool]{}
	var missing []mxid.UserID
	for user, version := range i.rules.store.Versions(ctx, users) {
		switch {
		case version.Err != nil:
			failed[user] = Result[bool]{Err: version.Err}
		case version.Value != 0:
			i.present.add(user)
		default:
			missing = append(missing, user)
		}
	}
	all := i.bring(ctx, missing)
	for user, result := range failed {
		all[user] = result
	}
	return all
}

// mostBrought is how many users are brought in at the same time.
const mostBrought = 16

// bring is firstUse of many users, with a result for each whom the source has, or
// of whom it cannot tell.
func (i *importer) bring(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[bool] {
	all := map[mxid.UserID]Result[bool]{}
	if i.source.get() == nil {
		return all
	}
	var mu sync.Mutex
	var bringing sync.WaitGroup
	places := make(chan struct{}, mostBrought)
	for _, user := range users {
		places <- struct{}{}
		bringing.Go(func() {
			defer func() { <-places }()
			found, err := i.firstUse(ctx, user)
			mu.Lock()
			defer mu.Unlock()
			if found || err != nil {
				all[user] = Result[bool]{found, err}
			}
		})
	}
	bringing.Wait()
	return all
}

// importAll stores pushers for a user who has none. Their claims come before all
// that are made here: a pusher that is imported takes no pushkey from anybody, and
// loses its own to whoever has taken it since.
func (s *pusherService) importAll(ctx context.Context, user mxid.UserID, pushers []pusher.Pusher, how ImportMode) (result ImportedPushers, err error) {
	if len(pushers) == 0 {
		return ImportedPushers{Outcome: NothingToImport}, nil
	}
	list, err := s.store.Load(ctx, user)
	switch {
	case fault.KindOf(err) == fault.Database || err == nil && list.Len() > 0: // also what cannot be read stays
		return ImportedPushers{Outcome: AlreadyThere}, nil
	case err != nil:
		return result, err
	}
	m := &pusherImport{pusherService: s, user: user, ImportedPushers: ImportedPushers{Outcome: Imported}}
	if err := m.accept(ctx, pushers); err != nil {
		return result, err
	}
	if how == DryRunImport {
		err = m.rehearse(ctx)
	} else {
		err = m.store(ctx)
	}
	return m.ImportedPushers, err
}

// pusherImport is an import of a user's pushers.
type pusherImport struct {
	*pusherService
	ImportedPushers

	user    mxid.UserID
	list    pusher.List     // what may be stored
	claimed []pusher.Pusher // those of them that have a claim
}

func (m *pusherImport) refuse(p pusher.Pusher, err error) {
	m.Refused = append(m.Refused, RefusedPusher{p.AppID, p.Digest(), err})
}

// accept sorts out the pushers that may be stored.
func (m *pusherImport) accept(ctx context.Context, pushers []pusher.Pusher) error {
	now := m.pushkeys.time().UnixMicro()
	for _, given := range pushers {
		p, err := m.policy.CheckImported(given)
		if _, twice := m.list.Pusher(given.Key); err == nil && twice {
			err = pusher.ErrTwice
		}
		if p.SetAt <= 0 || p.SetAt > now {
			p.SetAt = now
		}
		if err == nil {
			err = m.addWithinLimits(p)
		}
		if err != nil {
			m.refuse(given, err)
		}
	}
	return m.keepLive(ctx)
}

func (m *pusherImport) addWithinLimits(p pusher.Pusher) error {
	p.Claim = pusher.KeepOthers.Claim(int64(m.policy.MaxSharers)) // which takes as many digits as the one that it will get
	grown := m.list
	grown.Set(p)
	if err := m.policy.CheckGrowth(m.list.Size(), grown.Size()); err != nil {
		return err
	}
	m.list = grown
	return nil
}

// keepLive refuses the pushers whose devices are gone.
func (m *pusherImport) keepLive(ctx context.Context) error {
	accounts := m.accounts.get()
	if accounts == nil {
		return nil
	}
	gone, err := m.withoutSession(ctx, m.user, m.list)
	if err != nil {
		return err
	}
	for _, p := range gone.All() {
		m.list.Delete(p.Key)
		m.refuse(p, ErrLoggedOut)
	}
	return nil
}

// rehearse finds out what store would do, as far as that can be seen.
func (m *pusherImport) rehearse(ctx context.Context) error {
	for _, p := range m.list.All() {
		claims, err := m.pushkeys.Pushkeys.Load(ctx, p.Digest())
		if err != nil {
			return err
		}
		taken, err := m.isTaken(ctx, p, claims)
		if err != nil {
			return err
		}
		before := len(claims.Users())
		claims.AddFirst(m.user)
		refusal := m.policy.CheckSharing(before, &claims)
		if taken {
			refusal = pusher.ErrTaken
		}
		if refusal != nil {
			m.refuse(p, refusal)
			continue
		}
		m.Stored++
	}
	return nil
}

// store stores the pushers, in the order of writes of [pusherService.claim].
func (m *pusherImport) store(ctx context.Context) error {
	if err := m.claim(ctx); err != nil {
		m.releaseAll(ctx)
		return err
	}
	there := false
	err := m.pusherService.store.Update(ctx, m.user, func(list *pusher.List) error {
		if there = list.Len() > 0; there {
			return nil
		}
		for _, p := range m.claimed {
			list.Set(p)
		}
		return nil
	})
	if err != nil {
		if fault.KindOf(err) != fault.Unavailable { // they may still be stored, else
			m.releaseAll(ctx)
		}
		return err
	}
	if there {
		m.releaseAll(ctx)
		m.ImportedPushers = ImportedPushers{Outcome: AlreadyThere}
		return nil
	}
	m.Stored = len(m.claimed)
	return m.check(ctx)
}

// claim claims the pushkeys, and refuses the pushers whose pushkey others have
// taken.
func (m *pusherImport) claim(ctx context.Context) error {
	for _, p := range m.list.All() {
		claims, err := m.addClaim(ctx, &p)
		if err != nil && fault.KindOf(err) == fault.InvalidParam {
			m.refuse(p, err)
			continue
		}
		if err != nil {
			return err
		}
		m.claimed = append(m.claimed, p)
		if _, rival := claims.Last(m.user); rival == 0 {
			continue
		}
		taken, err := m.isTaken(ctx, p, claims)
		if err != nil {
			return err
		}
		if taken {
			m.claimed = m.claimed[:len(m.claimed)-1]
			m.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: m.user, Claim: p.Claim.Number})
			m.refuse(p, pusher.ErrTaken)
			continue
		}
		if err := m.pushkeys.Pushkeys.Postpone(ctx, Unsettled{p.Digest(), claims.Newest()}); err != nil {
			return err
		}
	}
	return nil
}

// addClaim gives a pusher a claim that comes before all that are made here.
func (m *pusherImport) addClaim(ctx context.Context, p *pusher.Pusher) (pusher.Claims, error) {
	var number int64
	claims, err := m.pushkeys.Pushkeys.Update(ctx, p.Digest(), func(c *pusher.Claims) error {
		before := len(c.Users())
		number = c.AddFirst(m.user)
		return m.policy.CheckSharing(before, c)
	})
	p.Claim = pusher.KeepOthers.Claim(number)
	return claims, err
}

// isTaken reports whether another user has taken the pushkey of a pusher since.
// Users who share it, by "append" or because they were all imported, keep it.
func (m *pusherImport) isTaken(ctx context.Context, p pusher.Pusher, claims pusher.Claims) (bool, error) {
	held, err := m.pushkeys.held(ctx, p.Key, claims)
	for user, other := range held {
		if user != m.user && other.Claim.Removes != 0 {
			return true, err
		}
	}
	return false, err
}

// releaseAll releases the claims that no pusher has got.
func (m *pusherImport) releaseAll(ctx context.Context) {
	for _, p := range m.claimed {
		m.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: m.user, Claim: p.Claim.Number})
	}
}

// check takes back what is not to stay of what was stored: the pushers of devices
// that are gone by now, and those whose pushkey somebody has taken meanwhile.
func (m *pusherImport) check(ctx context.Context) error {
	for _, p := range m.claimed {
		err := m.checkLoggedIn(ctx, m.user, p)
		if errors.Is(err, ErrLoggedOut) {
			m.Stored--
			m.refuse(p, err)
			continue
		}
		if err != nil {
			return err
		}
		claims, err := m.pushkeys.Pushkeys.Load(ctx, p.Digest())
		if err != nil {
			return err
		}
		if _, rival := claims.Last(m.user); rival != 0 {
			if err := m.pushkeys.settle(ctx, p.Key, claims, p.Claim.Number, pusher.Owner{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// presentUsers are users who are known to have rules, so that nobody asks again
// whether they are still to be imported.
type presentUsers struct {
	mu    sync.Mutex
	users map[mxid.UserID]bool
}

// mostPresent bounds how many are remembered. All are forgotten then.
const mostPresent = 1 << 16

func (p *presentUsers) add(user mxid.UserID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == nil || len(p.users) >= mostPresent {
		p.users = map[mxid.UserID]bool{}
	}
	p.users[user] = true
}

// unknown returns those of users who are not remembered.
func (p *presentUsers) unknown(users []mxid.UserID) (unknown []mxid.UserID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, user := range users {
		if !p.users[user] {
			unknown = append(unknown, user)
		}
	}
	return unknown
}
