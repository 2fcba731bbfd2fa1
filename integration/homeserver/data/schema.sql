-- The demo host's own data, which all hosts of a machine share. Any homeserver has tables like these. The outbox is the
-- table push_outbox of package sqlstore. Times are in milliseconds since 1970.
PRAGMA user_version = 2;

-- There is no registration: a user has a row after a login, a new password or a deactivation.
CREATE TABLE users (
	user_id TEXT PRIMARY KEY,
	password TEXT NOT NULL DEFAULT '',   -- its bcrypt hash; empty for the default password
	deactivated_ts INTEGER,              -- NULL for an active user
	to_forget INTEGER NOT NULL DEFAULT 0 -- 1 until the module has forgotten a deactivated user
) WITHOUT ROWID;
CREATE INDEX users_to_forget ON users (user_id) WHERE to_forget;

-- A device exists as long as its session.
CREATE TABLE devices (
	user_id TEXT NOT NULL REFERENCES users,
	device_id TEXT NOT NULL,
	secret_sha256 TEXT NOT NULL, -- of the access token
	created_ts INTEGER NOT NULL,
	PRIMARY KEY (user_id, device_id)
) WITHOUT ROWID;

CREATE TABLE account_data (
	user_id TEXT NOT NULL,
	room_id TEXT NOT NULL, -- empty for global data
	type TEXT NOT NULL,
	content TEXT NOT NULL,
	PRIMARY KEY (user_id, room_id, type)
);

-- The users in the account data m.ignored_user_list.
CREATE TABLE ignored_users (
	ignored TEXT NOT NULL,
	user_id TEXT NOT NULL,
	PRIMARY KEY (ignored, user_id)
) WITHOUT ROWID;
CREATE INDEX ignored_users_of ON ignored_users (user_id);

CREATE TABLE filters (
	user_id TEXT NOT NULL,
	filter_id TEXT NOT NULL,
	content TEXT NOT NULL,
	PRIMARY KEY (user_id, filter_id)
) WITHOUT ROWID;

CREATE TABLE rooms (
	room_id TEXT PRIMARY KEY,
	name TEXT NOT NULL DEFAULT '',
	members_sha256 TEXT NOT NULL DEFAULT '' -- of the list of members in the newest message
) WITHOUT ROWID;

CREATE TABLE members (
	room_id TEXT NOT NULL REFERENCES rooms,
	user_id TEXT NOT NULL,
	membership TEXT NOT NULL,  -- as in m.room.member
	by_event INTEGER NOT NULL, -- 0 for a member in the list of the newest message
	PRIMARY KEY (room_id, user_id)
) WITHOUT ROWID;
CREATE INDEX members_of ON members (user_id, room_id);

CREATE TABLE events (
	position INTEGER PRIMARY KEY, -- in the order of all rooms; the newest event is never removed
	room_id TEXT NOT NULL REFERENCES rooms,
	event_id TEXT NOT NULL,
	json TEXT NOT NULL,                         -- as clients see it
	parent TEXT NOT NULL,                       -- id of the event that this event relates to; empty for none
	thread TEXT NOT NULL,                       -- id of the root, or main
	hops INTEGER NOT NULL,                      -- relations from the event to the root
	power TEXT NOT NULL,                        -- power levels at the event, as JSON; empty if unknown
	is_redacted INTEGER NOT NULL DEFAULT 0,
	is_shown INTEGER NOT NULL DEFAULT 0,        -- whether syncs may show it
	UNIQUE (room_id, event_id)
);
CREATE INDEX events_of ON events (room_id, position);

-- What is new for the syncs of users. The number of the last change that a sync has seen is in its token.
CREATE TABLE changes (
	number INTEGER PRIMARY KEY AUTOINCREMENT,
	user_id TEXT NOT NULL,
	room_id TEXT NOT NULL, -- empty for global account data
	position INTEGER,      -- of a new event
	type TEXT              -- of changed account data; without both, the counts of the room changed
);
CREATE INDEX changes_of ON changes (user_id, number);

CREATE TABLE receipts (
	user_id TEXT NOT NULL,
	room_id TEXT NOT NULL,
	kind TEXT NOT NULL,   -- m.read or m.read.private
	thread TEXT NOT NULL, -- empty for all threads
	event_id TEXT NOT NULL,
	position INTEGER NOT NULL,
	ts INTEGER NOT NULL,
	PRIMARY KEY (user_id, room_id, kind, thread)
) WITHOUT ROWID;
