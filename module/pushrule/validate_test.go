package pushrule_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

func TestValidateIDRefusesInvalidIDs(t *testing.T) {
	reserved, invalid := pushrule.ErrReservedID, pushrule.ErrInvalidID
	for name, test := range map[string]struct {
		id   string
		want error
	}{
		"a room id":                {"!room:example.org", nil},
		"a space":                  {"two words", nil},
		"an emoji":                 {"\U0001f600", nil},
		"percent, hash and query":  {"%2F#?&=%", nil},
		"quotes and braces":        {`"{}[]'`, nil},
		"a full-width dot":         {"\uff0em.rule", nil},
		"a line separator":         {"a\u2028b", nil},
		"a replacement character":  {"\ufffd", nil},
		"an overlong one":          {strings.Repeat("x", 1<<20), nil},
		"a dot":                    {".", reserved},
		"a default's id":           {".m.rule.master", reserved},
		"a dot, then a slash":      {"./", reserved},
		"a dot, then no UTF-8":     {".\xff", reserved},
		"empty":                    {"", invalid},
		"a slash":                  {"a/b", invalid},
		"a backslash":              {`a\b`, invalid},
		"a byte that is not UTF-8": {"a\xff", invalid},
		"an encoded surrogate":     {"\xed\xa0\x80", invalid},
		"a cut character":          {"a\xe2\x82", invalid},
	} {
		t.Run(name, func(t *testing.T) {
			if err := pushrule.ValidateID(test.id); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestControlCharactersAreInvalid(t *testing.T) {
	for b := range rune(0xa0) {
		invalid := b < 0x20 || b >= 0x7f || b == '/' || b == '\\'
		if err := pushrule.ValidateID("a" + string(b)); (err != nil) != invalid {
			t.Errorf("U+%04X: got %v", b, err)
		}
	}
}

func TestErrorsHaveTheDocumentedTexts(t *testing.T) {
	for err, want := range map[error]string{
		pushrule.ErrEventNotFound:                "not_found: PushRules event not found.",
		pushrule.ErrRuleNotFound:                 "not_found: Push rule not found.",
		pushrule.ErrAnchorNotFound:               "not_found: The before or after rule could not be found.",
		pushrule.ErrReservedID:                   "invalid_param: Rule IDs starting with a dot are reserved for server-default rules.",
		pushrule.ErrInvalidID:                    "invalid_param: Rule ID containing invalid characters.",
		pushrule.ErrAnchorIsDefault:              "invalid_param: Can't place a push rule relatively to a server-default rule.",
		pushrule.ErrAnchorOrder:                  "invalid_param: The before rule has a higher priority than the after rule.",
		pushrule.ErrInvalidData:                  "invalid_param: Invalid data.",
		pushrule.ErrDeleteDefault:                "invalid_param: Cannot delete a server-default pushrule.",
		pushrule.ErrUnknownScope:                 "invalid_param: Scopes other than 'global' are not supported.",
		pushrule.ErrUnknownKind:                  "invalid_param: Unknown push rule kind.",
		pushrule.Unreadable(errors.New("cause")): "database: Invalid push rules account data event in database: cause",
	} {
		if got := describe(err); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestLimitsAreCheckedExactly(t *testing.T) {
	limits := pushrule.Limits{MaxSetBytes: 1 << 10, MaxRules: 3, MaxRuleIDBytes: 4, MaxPatternBytes: 4, MaxConditions: 2, MaxActions: 2}
	long := "\u00e9\u00e9"
	for name, test := range map[string]struct {
		id    string
		draft pushrule.Draft
		want  string
	}{
		"all at their limits": {long, pushrule.Draft{
			Pattern: long, Conditions: []pushrule.Condition{`{}`, `{}`}, Actions: []pushrule.Action{`""`, `""`},
		}, ""},
		"nothing":            {"", pushrule.Draft{}, ""},
		"a long id":          {long + "x", pushrule.Draft{}, "too_large: Rule ID longer than 4 bytes."},
		"a long pattern":     {"a", pushrule.Draft{Pattern: long + "x"}, "too_large: Pattern longer than 4 bytes."},
		"many conditions":    {"a", pushrule.Draft{Conditions: make([]pushrule.Condition, 3)}, "invalid_param: A push rule has at most 2 conditions."},
		"many actions":       {"a", pushrule.Draft{Actions: make([]pushrule.Action, 3)}, "invalid_param: A push rule has at most 2 actions."},
		"the id comes first": {long + "x", pushrule.Draft{Pattern: long + "x", Actions: make([]pushrule.Action, 3)}, "too_large: Rule ID longer than 4 bytes."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(limits.CheckDraft(test.id, test.draft)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	for name, test := range map[string]struct {
		before int
		ids    string
		want   string
	}{
		"up to the limit":           {2, "A B C", ""},
		"over the limit":            {3, "A B C D", "invalid_param: A user has at most 3 push rules."},
		"over it before, not grown": {4, "A B C D", ""},
		"over it before, shrunk":    {5, "A B C D", ""},
		"over it before, grown":     {4, "A B C D E", "invalid_param: A user has at most 3 push rules."},
		"defaults count":            {3, "A .b .c .d", "invalid_param: A user has at most 3 push rules."},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := setOf(t, pushrule.Sender, strings.Repeat("X ", test.before)), setOf(t, pushrule.Sender, test.ids)
			if got := describe(limits.CheckSet(before, after)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestSetMayNotGrowOverTheByteLimit(t *testing.T) {
	small, large := setOf(t, pushrule.Sender, "A"), setOf(t, pushrule.Sender, "A B")
	size := len(large.JSON())
	for name, test := range map[string]struct {
		limit         int
		before, after pushrule.Ruleset
		want          string
	}{
		"up to the limit":           {size, small, large, ""},
		"over the limit":            {size - 1, small, large, fmt.Sprintf("too_large: Push rules larger than %d bytes.", size-1)},
		"over it before, not grown": {1, large, large, ""},
		"over it before, shrunk":    {1, large, small, ""},
		"over it before, grown":     {1, small, large, "too_large: Push rules larger than 1 bytes."},
	} {
		t.Run(name, func(t *testing.T) {
			limits := pushrule.DefaultLimits()
			limits.MaxSetBytes = test.limit
			if got := describe(limits.CheckSet(test.before, test.after)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestLimitsMustBePositive(t *testing.T) {
	if err := pushrule.DefaultLimits().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	const want = "MaxSetBytes is 0, want at least 1\nMaxRules is 0, want at least 1\nMaxRuleIDBytes is -1, want at least 1\nMaxPatternBytes is 0, want at least 1\n" +
		"MaxConditions is 0, want at least 1\nMaxActions is 0, want at least 1"
	if err := (pushrule.Limits{MaxRuleIDBytes: -1}).Validate(); fmt.Sprint(err) != want {
		t.Errorf("got %v", err)
	}
	one := pushrule.DefaultLimits()
	one.MaxActions, one.MaxSetBytes = 0, 1<<20+1
	if err := one.Validate(); fmt.Sprint(err) != "MaxActions is 0, want at least 1\nMaxSetBytes is 1048577, want at most 1048576" {
		t.Errorf("got %v", err)
	}
}
