package stored

import (
	"path"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

const (
	alice  mxid.UserID   = "@alice:example.org"
	digest pusher.Digest = "TrPqT4hq7xVvC68N_gROJpFfMpudhVLdg2eymUZ6K9U"
)

// Hosts of all versions share these names, and operators' ACLs contain them.
func TestKeysHaveFixedNames(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "hs1:", "account_data:"} {
		k := Keys{prefix}
		for _, test := range []struct {
			name, want string
			key        Key
		}{
			{k.Rules(alice), "account_data:{@alice:example.org}:m.push_rules", Key{Kind: RulesKey, User: alice}},
			{k.Pushers(alice), "pushers:{@alice:example.org}", Key{Kind: PushersKey, User: alice}},
			{k.Unread(alice), "unread:{@alice:example.org}", Key{Kind: UnreadKey, User: alice}},
			{k.Pushkey(digest), "pushkey:{" + string(digest) + "}", Key{Kind: PushkeyKey, Digest: digest}},
			{k.UserLog(alice), "delivery:{@alice:example.org}", Key{Kind: UserLogKey, User: alice}},
			{k.Sent(alice, "a-b_"), "delivery:{@alice:example.org}:sent:a-b_", Key{Kind: SentKey, User: alice, Name: "a-b_"}},
			{k.ShardGates(0), "delivery:{000}:gates", Key{Kind: ShardGatesKey}},
			{k.ShardDue(7, "https://x:443 a:}b"), "delivery:{007}:due:https://x:443 a:}b", Key{Kind: ShardDueKey, Shard: 7, Name: "https://x:443 a:}b"}},
			{k.ShardFailing(1000, "x"), "delivery:{1000}:after:x", Key{Kind: ShardFailingKey, Shard: 1000, Name: "x"}},
			{k.DeliveryFormat(), "delivery:format", Key{Kind: DeliveryFormatKey}},
			{k.DeliverySummary(), "delivery:summary", Key{Kind: DeliverySummaryKey}},
		} {
			if test.name != prefix+test.want {
				t.Errorf("got %s, want %s", test.name, prefix+test.want)
			}
			if got := k.Parse(test.name); got != test.key {
				t.Errorf("%s: got %+v, want %+v", test.name, got, test.key)
			}
		}
	}
}

// A user ID may contain braces and parts of other keys.
func TestKeysOfOddUserIDsAreParsed(t *testing.T) {
	t.Parallel()
	k := Keys{"hs1:"}
	for _, user := range []mxid.UserID{"@a}b:x", "@a}:m.push_rules:x", "@pushers:{b:x", "@a}:sent:b:x"} {
		if got := k.Parse(k.Rules(user)); got != (Key{Kind: RulesKey, User: user}) {
			t.Errorf("rules of %q: got %+v", user, got)
		}
		if got := k.Parse(k.Pushers(user)); got != (Key{Kind: PushersKey, User: user}) {
			t.Errorf("pushers of %q: got %+v", user, got)
		}
		if got := k.Parse(k.Unread(user)); got != (Key{Kind: UnreadKey, User: user}) {
			t.Errorf("unread notifications of %q: got %+v", user, got)
		}
		if got := k.Parse(k.UserLog(user)); got != (Key{Kind: UserLogKey, User: user}) {
			t.Errorf("log of %q: got %+v", user, got)
		}
		if got := k.Parse(k.Sent(user, "p")); got != (Key{Kind: SentKey, User: user, Name: "p"}) {
			t.Errorf("counts of %q: got %+v", user, got)
		}
	}
}

func TestForeignAndMalformedKeysAreRecognized(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, prefix string
		want         KeyKind
	}{
		{"", "", ForeignKey},
		{"user:1", "", ForeignKey},
		{"account_data:{@alice:example.org}:m.direct", "", ForeignKey},
		{"account_data:{@alice:example.org}:m.push_rules", "hs1:", ForeignKey},
		{"account_data:@alice:example.org:m.push_rules", "", MalformedKey},
		{"account_data:{alice}:m.push_rules", "", MalformedKey},
		{"account_data:{@alice:example.org}:m.push_rules:later:ABC", "", MalformedKey},
		{"pushers:{alice}", "", MalformedKey},
		{"hs1:pushers:@alice:example.org", "hs1:", MalformedKey},
		{"pushkey:{key}", "", MalformedKey},
		{"pushkey:" + string(digest), "", MalformedKey},
		{"delivery:{1}:log", "", MalformedKey},
		{"delivery:{-01}:log", "", MalformedKey},
		{"delivery:{001", "", MalformedKey},
		{"delivery:man", "", ForeignKey},
	} {
		if got := (Keys{test.prefix}).Parse(test.name); got != (Key{Kind: test.want}) {
			t.Errorf("%q under %q: got %+v", test.name, test.prefix, got)
		}
	}
}

func TestPatternMatchesExactlyThePrefix(t *testing.T) {
	t.Parallel()
	if got := (Keys{}).Pattern(); got != "" {
		t.Errorf("without a prefix: got %q", got)
	}
	for _, prefix := range []string{"hs1:", `hs[1]*\?^-:`} {
		pattern := Keys{prefix}.Pattern()
		for name, want := range map[string]bool{prefix + "x": true, prefix: true, "x" + prefix: false, "hs1x:": false} {
			if got, err := path.Match(pattern, name); got != want || err != nil {
				t.Errorf("%q: %q: got %t, %v", pattern, name, got, err)
			}
		}
	}
}
