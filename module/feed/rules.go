package feed

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

const fillStep = 1024

// FillRules sets the cached rules of each member without rules, and returns how many it
// found. For many members it uses all cores: a lookup in a large map mostly waits for
// memory.
func (f *Feed) FillRules(members []match.Member) (hits int) {
	if len(members) <= fillStep {
		return f.fillRules(members)
	}
	var all atomic.Int64
	var filling sync.WaitGroup
	for some := range slices.Chunk(members, fillStep) {
		filling.Go(func() { all.Add(int64(f.fillRules(some))) })
	}
	filling.Wait()
	return int(all.Load())
}

func (f *Feed) fillRules(members []match.Member) (hits int) {
	now := time.Now()
	f.mu.RLock()
	defer f.mu.RUnlock()
	for i := range members {
		m := &members[i]
		if m.Rules != nil {
			continue
		}
		o, found := f.users[m.User]
		if !found || o.rules == nil || !f.isCurrent(o) {
			continue
		}
		if m.Rules = o.rules.Rules(); m.Rules != nil {
			o.use(now)
			hits++
		}
	}
	return hits
}

// KeepRules calls load, which reads and compiles the rules of users, and caches them
// until they change. It first asks the store for the versions: rules read later are at
// least as new, and if a later version is already stored, the watch or the next check
// finds it. Rules that change during the call are not cached.
func (f *Feed) KeepRules(ctx context.Context, users []mxid.UserID, load func() map[mxid.UserID]*match.Entry) {
	if !f.isWatching() {
		load()
		return
	}
	loads := f.beginLoads(users)
	versions := f.store.Versions(ctx, users)
	rules := load()
	for some := range slices.Chunk(loads, fillStep) {
		f.finishLoads(some, versions, rules)
	}
}

func (f *Feed) beginLoads(users []mxid.UserID) []load {
	loads := make([]load, 0, len(users))
	for some := range slices.Chunk(users, fillStep) {
		f.mu.Lock()
		for _, user := range some {
			loads = append(loads, f.beginLoad(user))
		}
		f.mu.Unlock()
	}
	return loads
}

// finishLoads caches rules whose version is current.
func (f *Feed) finishLoads(loads []load, versions map[mxid.UserID]module.Result[int64], rules map[mxid.UserID]*match.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range loads {
		version, found := versions[l.user]
		if !found || version.Err != nil {
			continue
		}
		f.finishLoad(l, version.Value)
		if o, found := f.users[l.user]; found && o.version == version.Value && f.isCurrent(o) {
			o.rules = rules[l.user]
		}
	}
}
