package rulestore

import "github.com/pushfx/pushfx/module/mxid"

// The keys of a user. The user id is the hash tag, so that in a cluster all of
// a user's keys share one slot, those of the pusher store included. A user id
// starts with "@": the tag is never empty.

// eventKey is the string that holds the user's event.
func (s *Store) eventKey(user mxid.UserID) string {
	return s.cfg.KeyPrefix + "account_data:{" + string(user) + "}:m.push_rules"
}

// receiptsKey is the sorted set of the ids of the user's writes of the last
// minute, by time. A "!" stands before the id of one that was refused after
// more than one attempt, and so must not take effect when it arrives late.
func (s *Store) receiptsKey(user mxid.UserID) string { return s.eventKey(user) + ":writes" }
