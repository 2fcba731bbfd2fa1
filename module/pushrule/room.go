package pushrule

import (
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// CopyRoomRules gives the user, for a room that replaces another, the rules
// that they have for the old one (Matrix specification, "Room Upgrades",
// "Server behaviour": the server transfers a user's notification settings when
// they join the new room). The old room's rules stay.
//
// Copied are the room rule of the old room and each override rule with a
// condition that names it: an event_match with exactly it as pattern, or an
// event_property_is with it as value, for the key room_id. A copy stands
// directly below its original and differs from it in nothing but the room in
// these conditions and in the id: the new room where it was the old one,
// otherwise the old id with the new room in the old one's place, or behind it
// where the old id does not name the room. Server-default rules are not copied,
// and no copy is marked as one.
//
// What the user has for the new room stays as it is: a rule of the copy's kind
// and id is not replaced, and since clients use the room rule and the override
// rule with a room's id as one setting, neither is copied where the new room
// has either. A repeat therefore changes nothing.
//
// It fails, and changes nothing, with the error of [ValidateID] for the new
// room or for a copy's id, if there is something to copy.
func (s *Ruleset) CopyRoomRules(oldRoom, newRoom string) error {
	if oldRoom == "" || oldRoom == newRoom {
		return nil
	}
	u := upgrade{oldRoom: oldRoom, newRoom: newRoom, settled: s.hasSetting(newRoom)}
	doc := s.doc.canonicalized()
	copied := false
	for _, kind := range []Kind{Override, Room} {
		list, listed := doc.entryList(kind)
		extended, err := u.extend(kind, list)
		if err != nil {
			return err
		}
		if len(extended) > len(list) {
			copied = true
			doc = doc.withList(listed, extended)
		}
	}
	if copied {
		s.doc = doc
	}
	return nil
}

// hasSetting reports whether the set has a rule by which clients set one
// room's notifications.
func (s *Ruleset) hasSetting(room string) bool {
	_, override := s.Rule(Override, room)
	_, found := s.Rule(Room, room)
	return override || found
}

// upgrade is the replacement of a room, as one user's rules see it.
type upgrade struct {
	oldRoom, newRoom string
	settled          bool // the user has a setting for the new room
}

// extend returns a list with the copies of its rules, each below its original.
func (u upgrade) extend(kind Kind, list []entry) ([]entry, error) {
	copyOf := u.roomCopy
	if kind == Override {
		list, copyOf = hoistMaster(slices.Clone(list)), u.overrideCopy
	}
	taken := make(map[string]bool, len(list))
	for _, e := range list {
		taken[e.id] = true
	}
	extended := make([]entry, 0, len(list)+1)
	for _, e := range list {
		extended = append(extended, e)
		if !u.mayConcern(e) || e.isServerDefault() || u.settled && e.id == u.oldRoom {
			continue
		}
		copied, found := copyOf(e.rule(kind))
		if !found || taken[copied.ID] {
			continue
		}
		if err := u.validate(copied.ID); err != nil {
			return nil, err
		}
		taken[copied.ID] = true
		copied.Default = false
		extended = append(extended, newEntry(kind, copied))
	}
	return extended, nil
}

// mayConcern reports whether a rule can name the old room. In a text with
// escapes it may stand in another form.
func (u upgrade) mayConcern(e entry) bool {
	return strings.Contains(e.text, u.oldRoom) || strings.Contains(e.text, `\`)
}

func (u upgrade) validate(id string) error {
	if err := ValidateID(u.newRoom); err != nil {
		return err
	}
	return ValidateID(id)
}

// roomCopy returns the new room's copy of a room rule of the old one.
func (u upgrade) roomCopy(rule Rule) (copied Rule, found bool) {
	found = rule.ID == u.oldRoom
	rule.ID = u.newRoom
	return rule, found
}

// overrideCopy returns the new room's copy of an override rule that has a
// condition on the old one.
func (u upgrade) overrideCopy(rule Rule) (copied Rule, found bool) {
	rule.Conditions = slices.Clone(rule.Conditions)
	for i, condition := range rule.Conditions {
		if start, end := condition.findRoom(u.oldRoom); end > 0 {
			moved := strictjson.AppendString([]byte(condition[:start]), u.newRoom)
			rule.Conditions[i] = Condition(moved) + condition[end:]
			found = true
		}
	}
	if strings.Contains(rule.ID, u.oldRoom) {
		rule.ID = strings.ReplaceAll(rule.ID, u.oldRoom, u.newRoom)
	} else {
		rule.ID += ":" + u.newRoom
	}
	return rule, found
}

// findRoom returns where a condition that holds in the given room alone names
// it; end is 0 for any other condition.
func (c Condition) findRoom(room string) (start, end int) {
	var kind, key string
	named := map[string][2]int{} // where the members are that hold the room
	r := strictjson.NewReader(string(c))
	err := r.Object(func(name string) error {
		begin := r.Offset()
		if !r.IsString() {
			return r.Skip()
		}
		value, err := r.String()
		switch {
		case name == "kind":
			kind = value
		case name == "key":
			key = value
		case value == room:
			named[name] = [2]int{begin, begin + len(r.Since(begin))}
		}
		return err
	})
	var at [2]int
	switch {
	case err != nil || key != "room_id":
	case kind == "event_match":
		at = named["pattern"]
	case kind == "event_property_is":
		at = named["value"]
	}
	return at[0], at[1]
}
