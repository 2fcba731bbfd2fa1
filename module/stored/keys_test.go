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

// The names are what hosts of all versions share, and what operators' ACLs name.
func TestKeysAreNamed(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "hs1:", "account_data:"} {
		k := Keys{prefix}
		for _, test := range []struct {
			name, want string
			key        Key
		}{
			{k.Rules(alice), "account_data:{@alice:example.org}:m.push_rules", Key{Kind: RulesKey, User: alice}},
			{Staged(k.Rules(alice), "ABC"), "account_data:{@alice:example.org}:m.push_rules:next:ABC", Key{Kind: StagedKey, User: alice}},
			{k.Pushers(alice), "pushers:{@alice:example.org}", Key{Kind: PushersKey, User: alice}},
			{k.Claims(digest), "pushkey:{" + string(digest) + "}", Key{Kind: ClaimsKey, Digest: digest}},
			{k.Unsettled(), "pushkeys:unsettled", Key{Kind: UnsettledKey}},
			{k.ShardLog(0), "delivery:{000}:log", Key{Kind: ShardLogKey}},
			{k.ShardState(7), "delivery:{007}:state", Key{Kind: ShardStateKey, Shard: 7}},
			{k.ShardHeld(127), "delivery:{127}:held", Key{Kind: ShardHeldKey, Shard: 127}},
			{k.ShardInstructions(7), "delivery:{007}:instructions", Key{Kind: ShardInstructionsKey, Shard: 7}},
			{k.ShardSeen(1000), "delivery:{1000}:seen", Key{Kind: ShardSeenKey, Shard: 1000}},
			{k.DeliveryHosts(), "delivery:hosts", Key{Kind: DeliveryHostsKey}},
			{k.DeliveryGateways(), "delivery:gateways", Key{Kind: DeliveryGatewaysKey}},
			{k.DeliveryFormat(), "delivery:format", Key{Kind: DeliveryFormatKey}},
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

// Braces and the ends of keys may be in a user id.
func TestOddUsersAreTold(t *testing.T) {
	t.Parallel()
	k := Keys{"hs1:"}
	for _, user := range []mxid.UserID{"@a}b:x", "@a}:m.push_rules:x", "@pushers:{b:x", "@a:next:b"} {
		if got := k.Parse(k.Rules(user)); got != (Key{Kind: RulesKey, User: user}) {
			t.Errorf("rules of %q: got %+v", user, got)
		}
		if got := k.Parse(k.Pushers(user)); got != (Key{Kind: PushersKey, User: user}) {
			t.Errorf("pushers of %q: got %+v", user, got)
		}
	}
}

func TestOtherKeysAreTold(t *testing.T) {
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
		{"x:next:ABC", "", ForeignKey},
		{"pushers:{alice}", "", MalformedKey},
		{"hs1:pushers:@alice:example.org", "hs1:", MalformedKey},
		{"pushkey:{key}", "", MalformedKey},
		{"pushkey:" + string(digest), "", MalformedKey},
		{"pushkeys:settled", "", MalformedKey},
		{"delivery:{1}:log", "", MalformedKey},
		{"delivery:{-01}:log", "", MalformedKey},
		{"delivery:{001}:due", "", MalformedKey},
		{"delivery:{001", "", MalformedKey},
		{"delivery:man", "", ForeignKey},
	} {
		if got := (Keys{test.prefix}).Parse(test.name); got != (Key{Kind: test.want}) {
			t.Errorf("%q under %q: got %+v", test.name, test.prefix, got)
		}
	}
}

func TestThePatternMatchesExactlyThePrefix(t *testing.T) {
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

// Hosts write records with a script, and operators with this package.
func TestGatewayRecords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]GatewayRecord{
		"0 held 1700000000000 0 0": {State: "held", Since: 1_700_000_000_000},
		"1700000090000 waiting 1700000000000 1700000030000 429": {
			State: "waiting", Expires: 1_700_000_090_000, Since: 1_700_000_000_000, Until: 1_700_000_030_000, Status: 429,
		},
	} {
		if got, found := ReadGateway(text); !found || got != want || want.Text() != text {
			t.Errorf("%s: got %+v, %t, written as %s", text, got, found, want.Text())
		}
	}
	for _, text := range []string{"", "held", "0 held 1 0", "0 held 1 0 0 ", "00 held 1 0 0", "x held 1 0 0"} {
		if got, found := ReadGateway(text); found {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}
