package pushrule

import (
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// CopyRoomRules copies the user's rules for a room to its replacement (Matrix
// specification, "Room Upgrades", "Server behaviour": the server transfers notification
// settings when a user joins the new room).
//
// It copies the room rule of the old room, and each override rule with a condition
// event_match or event_property_is that requires room_id to be the old room. It copies
// no server-default rule. A copy is directly below its original and names the new room
// in these conditions. In the id of an override rule, the new room replaces the old
// room, or is appended if the id does not contain the old room.
//
// A copy replaces no rule. Clients treat a room rule and an override rule with a room's
// id as one setting of the room: if the new room has one of them, CopyRoomRules copies
// neither. A repeated call changes nothing.
//
// If there are copies, [ValidateID] checks the new room and their ids. An error changes
// nothing.
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

func (s *Ruleset) hasSetting(room string) bool {
	_, override := s.Rule(Override, room)
	_, found := s.Rule(Room, room)
	return override || found
}

type upgrade struct {
	oldRoom, newRoom string
	settled          bool // the user has a setting for the new room
}

func (u upgrade) extend(kind Kind, list []ruleText) ([]ruleText, error) {
	copyOf := u.roomCopy
	if kind == Override {
		list, copyOf = hoistMaster(slices.Clone(list)), u.overrideCopy
	}
	taken := make(map[string]bool, len(list))
	for _, e := range list {
		taken[e.id] = true
	}
	extended := make([]ruleText, 0, len(list)+1)
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

// mayConcern reports whether a rule may name the old room, without parsing it: the text
// contains the room, or escapes that may hide it.
func (u upgrade) mayConcern(e ruleText) bool {
	return strings.Contains(e.text, u.oldRoom) || strings.Contains(e.text, `\`)
}

func (u upgrade) validate(id string) error {
	if err := ValidateID(u.newRoom); err != nil {
		return err
	}
	return ValidateID(id)
}

func (u upgrade) roomCopy(rule Rule) (copied Rule, found bool) {
	found = rule.ID == u.oldRoom
	rule.ID = u.newRoom
	return rule, found
}

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

// findRoom returns the position of the room in a condition that requires this room, or
// 0, 0 for any other condition.
func (c Condition) findRoom(room string) (start, end int) {
	var kind, key string
	named := map[string][2]int{} // positions of the members that hold the room
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
