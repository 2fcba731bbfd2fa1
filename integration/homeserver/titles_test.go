package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

// The page shows default rules by titles. It finds them by the rule id, without the prefixes of stable and unstable
// ids.
func TestThePageHasATitleForEachDefaultRule(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("page.js")
	if err != nil {
		t.Fatal(err)
	}
	_, titles, _ := strings.Cut(string(script), "const titles = {")
	titles, _, found := strings.Cut(titles, "};")
	if !found {
		t.Fatal("page.js has no titles")
	}
	defaults, err := pushrule.NewDefaults(pushrule.Features())
	if err != nil {
		t.Fatal(err)
	}
	set := defaults.For("@alice:localhost")
	prefix := regexp.MustCompile(`^\.(m|org\.matrix\.msc\d+)\.(rule\.)?`)
	for _, kind := range pushrule.Kinds() {
		for _, rule := range set.List(kind) {
			name := prefix.ReplaceAllString(rule.ID, "")
			if !regexp.MustCompile(`(^|[\s,])'?` + regexp.QuoteMeta(name) + `'?: '`).MatchString(titles) {
				t.Errorf("page.js has no title for %s", rule.ID)
			}
		}
	}
}
