package pusherstore

import "github.com/pushfx/pushfx/module/mxid"

// The keys of a user. The user id is the hash tag, so that in a cluster all of
// a user's keys share one slot, those of the rule store included. A user id
// starts with "@": the tag is never empty.

// pushersKey is the hash that holds the user's pushers, a field for each: the
// key of the pusher as a JSON array ([pusher.Key.Field]).
func (s *Store) pushersKey(user mxid.UserID) string {
	return s.cfg.KeyPrefix + "pushers:{" + string(user) + "}"
}

// receiptsKey is the sorted set of the ids of the user's writes of the last
// minute, by time. A "!" stands before the id of one that was refused after
// more than one attempt, and so must not take effect when it arrives late.
func (s *Store) receiptsKey(user mxid.UserID) string { return s.pushersKey(user) + ":writes" }
