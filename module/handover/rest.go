package handover

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// step is a step of a handover for a user.
type step int

// The steps. A later one never stands before an earlier one: Rest has their names.
const (
	count  step = iota // the event
	own                // the read mark of the sender
	read               // the read mark of a membership
	notify             // of the event
	badge              // the counts, without the event
	steps
)

var stepNames = [steps]string{"count", "own", "read", "notify", "badge"}

// stepSet has a bit for each step.
type stepSet uint8

func (s stepSet) has(one step) bool { return s&(1<<one) != 0 }

func (s stepSet) String() string {
	var names []string
	for one, name := range stepNames {
		if s.has(step(one)) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func readSteps(text string) (s stepSet, err error) {
	for name := range strings.SplitSeq(text, ",") {
		i := slices.Index(stepNames[:], name)
		if i < 0 {
			return 0, errDamaged
		}
		s |= 1 << i
	}
	return s, nil
}

// users are lists of users, one for each step.
type users [steps][]mxid.UserID

func (u users) bySteps() map[mxid.UserID]stepSet {
	all := map[mxid.UserID]stepSet{}
	for one, list := range u {
		for _, user := range list {
			all[user] |= 1 << one
		}
	}
	return all
}

func (u users) all() []mxid.UserID {
	all := slices.Concat(u[:]...)
	slices.Sort(all)
	return slices.Compact(all)
}

// restForm is the form of a [module.Rest]. A change that an earlier version cannot read is a
// new form.
const restForm = "1"

// storedRest is a [module.Rest]: users, sorted, by the names of their steps.
type storedRest struct {
	Form json.RawMessage          `json:"form"`
	Left map[string][]mxid.UserID `json:"left"`
}

func (u users) rest() module.Rest {
	bySteps := u.bySteps()
	if len(bySteps) == 0 {
		return ""
	}
	r := storedRest{json.RawMessage(restForm), map[string][]mxid.UserID{}}
	for _, user := range u.all() {
		names := bySteps[user].String()
		r.Left[names] = append(r.Left[names], user)
	}
	text, _ := json.Marshal(r) // has only numbers and texts
	return module.Rest(text)
}

var errDamaged = errors.New("handover: the rest of an event is damaged")

// readRest returns the steps that are left for each user: nil for an empty rest, for which
// all is left.
func readRest(rest module.Rest) (left map[mxid.UserID]stepSet, err error) {
	if rest == "" {
		return nil, nil
	}
	if left, err = decodeRest(rest); err != nil {
		return nil, fault.Wrap(fault.Database, "The rest of an event cannot be read.", err)
	}
	return left, nil
}

func decodeRest(rest module.Rest) (map[mxid.UserID]stepSet, error) {
	var r storedRest
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(rest), &members); err != nil || len(members["form"]) == 0 {
		return nil, errDamaged
	}
	if form := string(members["form"]); form != restForm {
		return nil, &fault.OtherVersionError{Data: "rest of an event", Form: form}
	}
	if err := json.Unmarshal([]byte(rest), &r); err != nil || len(members) != 2 || len(r.Left) == 0 {
		return nil, errDamaged
	}
	left := map[mxid.UserID]stepSet{}
	for names, users := range r.Left {
		set, err := readSteps(names)
		if err != nil || len(users) == 0 {
			return nil, errDamaged
		}
		for _, user := range users {
			if user.Validate() != nil {
				return nil, errDamaged
			}
			left[user] |= set
		}
	}
	return left, nil
}
