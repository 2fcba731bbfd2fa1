package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

var explainCommand = command{
	name: "explain", args: "USER EVENT",
	summary: "shows which push rule decides about an event, and why",
	about: "Evaluates the user's stored push rules for an event, the JSON in the file EVENT or, for -, on stdin, as a host does. It shows\n" +
		"the rule that decides, for each other rule why it does not, and whether the user has pushers. Without -state\n" +
		"it does not know the number of members, display names and power levels: a host may decide otherwise, for\n" +
		"example in a room of two. Exit status 1: nothing is stored for the user.",
	flags: func(f *flags) {
		f.addDefaultRules()
		f.addJSON()
		f.StringVar(&f.state, "state", "",
			"`FILE` with the room's state at the event: the JSON array of\nGET /_matrix/client/v3/rooms/{roomId}/state")
	},
	run: (*call).explain,
}

type shownExplanation struct {
	User     mxid.UserID `json:"user"`
	Notifies bool        `json:"notifies"`
	Pushers  int         `json:"pushers"`
	Enabled  int         `json:"enabled_pushers"`
	HasState bool        `json:"has_state"` // with -state
	match.Explanation
}

func (c *call) explain(ctx context.Context) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	event, sender, err := c.readSample(c.args[1])
	if err != nil {
		return fmt.Errorf("%s: %w", c.args[1], err)
	}
	facts := match.Facts{User: user}
	if c.state != "" {
		if facts, err = readState(c.state, user, sender); err != nil {
			return fmt.Errorf("-state: %w", err)
		}
	}
	if err := c.checkUser(ctx, user); err != nil {
		return err
	}
	rules := c.host.Rulesets(ctx, []mxid.UserID{user})[user]
	if rules.Err != nil {
		return rules.Err
	}
	pushers, err := c.visiblePushers(ctx, user)
	if err != nil {
		return err
	}
	e := shownExplanation{User: user, Pushers: pushers.Len(), HasState: c.state != "", Explanation: match.Compile(rules.Value.Rules).Explain(event, facts)}
	e.Notifies = e.Result.Notify()
	for _, p := range pushers.All() {
		if p.Enabled() {
			e.Enabled++
		}
	}
	return c.result(e, e.write, false)
}

// readSample reads the file of an event, or stdin for -.
func (c *call) readSample(file string) (event *match.Event, sender mxid.UserID, err error) {
	var text []byte
	if file == "-" {
		text, err = io.ReadAll(c.in)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, "", err
	}
	var parsed struct {
		Sender mxid.UserID `json:"sender"`
	}
	if event, err = match.ReadEvent(string(text)); err == nil {
		err = json.Unmarshal(text, &parsed)
	}
	return event, parsed.Sender, err
}

// readState reads the facts about a room from the file of its state.
func readState(file string, user, sender mxid.UserID) (facts match.Facts, err error) {
	facts.User = user
	text, err := os.ReadFile(file)
	if err != nil {
		return facts, err
	}
	var events []json.RawMessage
	if err := json.Unmarshal(text, &events); err != nil {
		return facts, err
	}
	state := map[string]string{} // the events without a member
	for _, event := range events {
		var e struct {
			Type     string `json:"type"`
			StateKey string `json:"state_key"`
			Content  struct {
				Membership  any `json:"membership"`
				DisplayName any `json:"displayname"`
			} `json:"content"`
		}
		if err := json.Unmarshal(event, &e); err != nil {
			return facts, err
		}
		switch {
		case e.Type != "m.room.member" && e.StateKey == "":
			state[e.Type] = string(event)
		case e.Type == "m.room.member" && e.Content.Membership == "join":
			facts.Room.MemberCount++
			if e.StateKey == string(user) {
				facts.DisplayName, _ = e.Content.DisplayName.(string)
			}
		}
	}
	create, levels := state["m.room.create"], state["m.room.power_levels"]
	if facts.Room.Power, err = match.ReadPower(create, levels, sender); err != nil {
		return facts, fmt.Errorf("m.room.create or m.room.power_levels: %w", err)
	}
	own, err := match.ReadPower(create, levels, user)
	if err != nil {
		return facts, err
	}
	level := own.Sender
	if own.SenderCreator {
		level = match.CreatorPower
	}
	facts.Power = &level
	return facts, nil
}

func (e shownExplanation) write(w io.Writer) error {
	outcome := "does not notify"
	if e.Notifies {
		outcome = "notifies"
	}
	fmt.Fprintf(w, "The event %s %s: %s.\n", outcome, printable(string(e.User)), printable(e.why()))
	switch {
	case e.Pushers == 0:
		fmt.Fprintln(w, "The user has no pushers: nothing is pushed.")
	case e.Enabled == 0:
		fmt.Fprintf(w, "The user's pushers are disabled (%d): nothing is pushed.\n", e.Pushers)
	default:
		fmt.Fprintf(w, "Pushers: %d, enabled: %d.\n", e.Pushers, e.Enabled)
	}
	if !e.HasState {
		fmt.Fprintln(w, "The state of the room is not known: a host may decide otherwise, for example in a room of two. Give it by -state.")
	}
	fmt.Fprintln(w)
	for line := range strings.Lines(e.Explanation.String()) {
		fmt.Fprintln(w, printable(strings.TrimSuffix(line, "\n")))
	}
	return nil
}

func (e shownExplanation) why() string {
	kind, id := e.Result.Rule()
	switch {
	case e.Own:
		return "the user is the sender"
	case id == "":
		return "no rule matches"
	}
	return fmt.Sprintf("the %s rule %s decides, its actions are %s", kind, id, pushrule.AppendActions(nil, e.Result.Actions()))
}
