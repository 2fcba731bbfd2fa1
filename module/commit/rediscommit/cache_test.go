package rediscommit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func sized(bytes int) cached[string, string] {
	now := commit.Snapshot[string, string]{Revision: stored.Revision{Version: 1}}
	return cached[string, string]{max(0, bytes-entryBytes), now}
}

func TestCacheStaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	const each, bound = 1000, 32_000
	c := newCache[string, string](bound)
	for n := range 200 {
		c.put(fmt.Sprint(n), sized(each))
		if _, found := c.get("0"); !found {
			t.Fatalf("an entry in constant use is gone after %d others", n)
		}
		if entries := c.entries.Len(); entries*each > bound {
			t.Fatalf("the cache has %d entries of %d bytes, its limit is %d", entries, each, bound)
		}
	}
	if c.entries.Len()*each <= bound/2 {
		t.Error("the cache uses only half of its limit")
	}
	if _, found := c.get("1"); found {
		t.Error("an unused entry is still cached")
	}
}

func TestDroppedEntriesFreeTheirSpace(t *testing.T) {
	t.Parallel()
	drops := map[string]func(c *cache[string, string]){
		"forgotten":                      func(c *cache[string, string]) { c.forget("dropped") },
		"forgotten for a later version":  func(c *cache[string, string]) { c.forgetBefore("dropped", 2) },
		"replaced by a large value":      func(c *cache[string, string]) { c.put("dropped", sized(3000)) },
		"replaced by an uncacheable one": func(c *cache[string, string]) { c.put("dropped", sized(0)) },
	}
	for name, drop := range drops {
		c := newCache[string, string](32_000)
		c.put("kept", sized(1000))
		for range 100 {
			c.put("dropped", sized(1000))
			drop(c)
		}
		if _, found := c.get("kept"); !found || c.entries.Len() != 1 {
			t.Errorf("%s: %d entries are cached, the other one is found: %t", name, c.entries.Len(), found)
		}
	}
}

func TestForgetBeforeDropsOnlyOlderVersions(t *testing.T) {
	t.Parallel()
	c := newCache[string, string](32_000)
	c.put("key", sized(1000)) // version 1
	if c.forgetBefore("key", 1); c.entries.Len() != 1 {
		t.Error("the same version is gone")
	}
	if c.forgetBefore("key", 2); c.entries.Len() != 0 {
		t.Error("an older version is still cached")
	}
}

func TestCacheRefusesLargeAndUnidentifiableValues(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then  cached[string, string]
		found bool
	}{
		"a value":                   {sized(1000), true},
		"a value that is too large": {sized(3000), false},
		"a value without revision":  {sized(0), false},
	} {
		c := newCache[string, string](32_000)
		c.put("key", sized(900))
		c.put("key", test.then)
		if _, found := c.get("key"); found != test.found {
			t.Errorf("%s: found %t", name, found)
		}
	}
}

func TestCachedValuesAreNotReadAgain(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	one, other := textStore(t, client, defaults), textStore(t, client, defaults)
	none := textStore(t, client, func(c *Config) { c.CacheBytes = 0 })
	if err := client.Ping(t.Context()).Err(); err != nil { // sends the commands of a new connection
		t.Fatal(err)
	}
	trips := redistest.RecordTrips(client)
	for i, step := range []struct {
		store  userTexts
		update string // a read if empty
		want   []string
	}{
		{one, "", []string{"get"}}, // a missing value is not cached
		{one, "a", []string{"get", "evalsha", "eval"}},
		{one, "", []string{"getrange"}},
		{one, "b", []string{"evalsha"}},
		{other, "", []string{"get"}},
		{other, "", []string{"getrange"}},
		{other, "c", []string{"evalsha"}},
		{one, "", []string{"getrange", "get"}},
		{one, "", []string{"getrange"}},
		{other, "d", []string{"evalsha"}},
		{one, "e", []string{"evalsha", "get", "evalsha"}},
		{none, "", []string{"get"}},
		{none, "", []string{"get"}},
	} {
		trips.Take()
		var err error
		if step.update != "" {
			err = step.store.Update(t.Context(), alice, to(step.update))
		} else {
			_, err = step.store.Load(t.Context(), alice)
		}
		if sent := trips.Take(); err != nil || !slices.Equal(sent, step.want) {
			t.Errorf("step %d: sent %q, %v, want %q", i, sent, err, step.want)
		}
	}
	wantText(t, one, "e")
	wantText(t, other, "e")
}
