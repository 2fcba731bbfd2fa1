package match_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/match"
)

type jsCase struct {
	Set         map[string]any `json:"set"`
	Event       map[string]any `json:"event"`
	User        string         `json:"user"`
	DisplayName string         `json:"display_name"`
	MemberCount int            `json:"member_count"`
	Power       *jsPower       `json:"power"`
}

type jsPower struct {
	Sender        int64            `json:"sender"`
	Notifications map[string]int64 `json:"notifications"`
}

type jsAnswer struct {
	Rules   [][3]any  `json:"rules"`
	Decides [2]string `json:"decides"`
}

func newJSCase(g generator) (jsCase, match.Facts) {
	facts := g.facts()
	c := jsCase{Set: g.set(), Event: g.event(), User: string(facts.User), DisplayName: facts.DisplayName, MemberCount: facts.Room.MemberCount}
	if facts.Room.Power != nil {
		facts.Room.Power.SenderCreator = false // unknown to matrix-js-sdk
		c.Power = &jsPower{facts.Room.Power.Sender, facts.Room.Power.Notifications}
	}
	return c, facts
}

const jsFolder = "../../integration/jssdk"

// askJSSDK needs "npm ci" in the folder of matrix-js-sdk. Without it, the test is
// skipped, or fails with REQUIRE_NODE=1.
func askJSSDK(t *testing.T, cases []jsCase) (answers []jsAnswer) {
	t.Helper()
	missing := ""
	if _, err := exec.LookPath("node"); err != nil {
		missing = "node is not on the PATH"
	} else if _, err := os.Stat(jsFolder + "/node_modules/matrix-js-sdk"); err != nil {
		missing = "matrix-js-sdk is not installed: run npm ci in integration/jssdk"
	}
	switch {
	case missing != "" && os.Getenv("REQUIRE_NODE") == "1":
		t.Fatal(missing)
	case missing != "":
		t.Skip(missing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "node", "evaluate.mjs")
	command.Dir = jsFolder
	var input, complaints bytes.Buffer
	for _, c := range cases {
		input.WriteString(encode(c) + "\n")
	}
	command.Stdin, command.Stderr = &input, &complaints
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, complaints.String())
	}
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var answer jsAnswer
		if err := json.Unmarshal(lines.Bytes(), &answer); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		answers = append(answers, answer)
	}
	if len(answers) != len(cases) {
		t.Fatalf("%d answers to %d cases\n%s", len(answers), len(cases), complaints.String())
	}
	return answers
}

// The test compares thousands of rule sets, rule by rule. Each difference must be a
// listed quirk: with this quirk, the reference must agree with matrix-js-sdk.
func TestJSSDKDiffersOnlyByKnownQuirks(t *testing.T) {
	t.Parallel()
	cases, facts := make([]jsCase, 1500), make([]match.Facts, 1500)
	for i := range cases {
		cases[i], facts[i] = newJSCase(newGenerator(uint64(i)))
	}
	c := comparison{t: t, found: map[string]int{}}
	for i, answer := range askJSSDK(t, cases) {
		c.compare(cases[i], facts[i], answer)
	}
	for _, quirk := range quirks {
		t.Logf("%5d rules differ by: %s: %s", c.found[quirk.name], quirk.name, quirk.reason)
		if c.found[quirk.name] == 0 {
			t.Errorf("no rule differs by %q: the list of differences is too long", quirk.name)
		}
	}
	t.Logf("%5d rules differ by several at once; %d of %d are the same", c.found["several"], c.same, c.rules)
	if c.same < c.rules/2 || c.decided < len(cases)/4 {
		t.Errorf("of %d rules, %d are the same; %d of %d events are decided by a rule", c.rules, c.same, c.decided, len(cases))
	}
}

type comparison struct {
	t                    *testing.T
	found                map[string]int
	rules, same, decided int
}

func (c *comparison) compare(asked jsCase, facts match.Facts, answer jsAnswer) {
	c.t.Helper()
	set, event := encode(asked.Set), encode(asked.Event)
	explanation := match.Compile(readSet(c.t, set)).Explain(readEvent(c.t, event), facts)
	decoded, rules := reference{event: decode(event).(map[string]any), facts: facts}, decode(set).(map[string]any)
	first := -1
	for i, rule := range explanation.Rules {
		ours := rule.Verdict == match.Matches || rule.Verdict == match.Decides
		theirs := answer.Rules[i][2] == true
		c.rules++
		if ours == theirs {
			c.same++
		} else {
			c.explain(decoded, string(rule.Kind), ruleOf(rules, rule), theirs)
		}
		if theirs && first < 0 {
			first = i
		}
	}
	c.compareDecision(explanation, answer, first)
}

func ruleOf(set map[string]any, rule match.RuleExplanation) map[string]any {
	for _, r := range set[string(rule.Kind)].([]any) {
		if r := r.(map[string]any); r["rule_id"] == rule.RuleID {
			return r
		}
	}
	return nil
}

func (c *comparison) explain(r reference, kind string, rule map[string]any, theirs bool) {
	c.t.Helper()
	r.dialect = jsSDK
	if r.matches(kind, rule) != theirs {
		c.t.Errorf("matrix-js-sdk says %t, and no difference that is known explains it: %s rule %s\nevent %s\nfacts %+v",
			theirs, kind, encode(rule), encode(r.event), r.facts)
		return
	}
	for _, quirk := range quirks {
		if r.dialect = quirk.only; r.matches(kind, rule) == theirs {
			c.found[quirk.name]++
			return
		}
	}
	c.found["several"]++
}

func (c *comparison) compareDecision(e match.Explanation, answer jsAnswer, first int) {
	c.t.Helper()
	want := [2]string{}
	if first >= 0 && !e.Own {
		want = [2]string{string(e.Rules[first].Kind), e.Rules[first].RuleID}
		c.decided++
	}
	if !reflect.DeepEqual(answer.Decides, want) {
		c.t.Errorf("matrix-js-sdk has decided by %q, want the first rule that matches, %q", answer.Decides, want)
	}
}
