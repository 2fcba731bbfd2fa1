// A Matrix client on matrix-js-sdk that compares its unread counts with those of the demo
// host, after each step, as one line of JSON per step:
//
//	node unread.mjs BASE_URL OTHER_BASE_URL
//
// The client syncs with the first host. All else goes to both in turn; they share a Redis.
// The exit status is 1 if a step failed.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import * as sdk from "matrix-js-sdk";
import { logger } from "matrix-js-sdk/lib/logger.js";

const PATIENCE = 15_000; // less than a sync waits, so that a step has woken it
const SYNC = "/_matrix/client/v3/sync";
const [baseUrl, otherUrl] = process.argv.slice(2);

let turn = 0;
const nextUrl = () => [otherUrl, baseUrl][turn++ % 2];

const none = () => {};
const silent = { trace: none, debug: none, info: none, warn: none, error: none, getChild: () => silent };
logger.setLevel(logger.levels.SILENT, false);

const name = () => `js-${randomBytes(6).toString("hex")}`;
const [ALICE, BOB, CAROL] = [name(), name(), name()];
const userId = (localpart) => `@${localpart}:localhost`;
const ROOM = `!${name()}:localhost`;

async function request(localpart, method, path, body, url = nextUrl()) {
	const response = await fetch(url + path, {
		method,
		headers: { Authorization: `Bearer demo-${localpart}`, "Content-Type": "application/json" },
		body: body && JSON.stringify(body),
	});
	const answer = await response.json();
	assert.equal(response.status, 200, `${method} ${path}: ${JSON.stringify(answer)}`);
	return answer;
}

// send sends a message, whose event id is "$" and the given id.
const send = (sender, id, content = {}, type = "m.room.message") =>
	request(sender, "POST", "/_demo/send", {
		event_id: `$${id}`,
		room_id: ROOM,
		members: [ALICE, BOB, CAROL].map(userId),
		type,
		content: { msgtype: "m.text", body: id, ...content },
	});

const mention = { "m.mentions": { user_ids: [userId(ALICE)] } };
const reactionTo = (id) => ({ "m.relates_to": { rel_type: "m.annotation", event_id: `$${id}`, key: "+1" } });
const inThread = (root) => ({ "m.relates_to": { rel_type: "m.thread", event_id: `$${root}` } });

// The answers to the client's syncs, by next_batch.
const answers = new Map();

// fetchFn keeps the syncs, and sends other requests to both hosts in turn.
async function fetchFn(resource, options) {
	const url = new URL(resource);
	if (url.pathname !== SYNC) return fetch(nextUrl() + url.pathname + url.search, options);
	const response = await fetch(resource, options);
	if (response.ok) {
		const answer = await response.clone().json();
		answers.set(answer.next_batch, answer);
	}
	return response;
}

const client = sdk.createClient({
	baseUrl,
	fetchFn,
	logger: silent,
	userId: userId(ALICE),
	deviceId: "DEMO",
	accessToken: `demo-${ALICE}`,
	store: new sdk.MemoryStore(),
});

const { Total, Highlight } = sdk.NotificationCountType;
const ROOTS = ["$1", "$2"];
const BY_THREAD = `?filter=${encodeURIComponent('{"room":{"timeline":{"unread_thread_notifications":true}}}')}`;

const numbers = (counts) => [counts?.notification_count ?? 0, counts?.highlight_count ?? 0];

// ofSync returns [notifications, highlights] of the main timeline and of each root.
const ofSync = (joined) => [
	numbers(joined.unread_notifications),
	...ROOTS.map((root) => numbers(joined.unread_thread_notifications?.[root])),
];

// ofClient returns those of the room before them.
function ofClient() {
	const room = client.getRoom(ROOM);
	const both = (count) => [count(Total), count(Highlight)];
	return [
		both((type) => room.getUnreadNotificationCount(type)),
		both((type) => room.getRoomUnreadNotificationCount(type)),
		...ROOTS.map((root) => both((type) => room.getThreadUnreadNotificationCount(root, type))),
	];
}

// nextSync returns the room in the next answer that has it, after the client has processed it.
function nextSync() {
	return new Promise((resolve, reject) => {
		const late = setTimeout(() => reject(new Error(`no sync with the room within ${PATIENCE} ms`)), PATIENCE);
		const look = (state, before, data) => {
			const joined = answers.get(data?.nextSyncToken)?.rooms.join[ROOM];
			if (!joined) return;
			clearTimeout(late);
			client.off(sdk.ClientEvent.Sync, look);
			resolve(joined);
		};
		client.on(sdk.ClientEvent.Sync, look);
	});
}

let failed = false;

// step does something and waits for the sync that it causes. It compares the counts of that
// sync, of first syncs and of the client with those that are expected.
async function step(what, run, ...want) {
	const room = [0, 1].map((i) => want.reduce((sum, counts) => sum + counts[i], 0));
	try {
		const [joined, sent] = await Promise.all([nextSync(), run()]);
		const ids = joined.timeline.events.map((event) => event.event_id);
		assert(!sent?.event_id || ids.includes(sent.event_id), `the sync has ${ids}, not ${sent?.event_id}`);
		assert.deepEqual(ofSync(joined), want, "the sync");
		for (const url of [baseUrl, otherUrl]) {
			const read = (filter) => request(ALICE, "GET", SYNC + filter, undefined, url);
			const [first, whole] = await Promise.all([BY_THREAD, ""].map(read));
			assert.deepEqual(ofSync(first.rooms.join[ROOM]), want, "a first sync");
			assert.deepEqual(numbers(whole.rooms.join[ROOM].unread_notifications), room, "a first sync without threads");
		}
		assert.deepEqual(ofClient(), [room, ...want], "the client");
		console.log(JSON.stringify({ check: what, ok: true, counts: want }));
	} catch (error) {
		failed = true;
		console.log(JSON.stringify({ check: what, ok: false, error: error.message }));
	}
}

const eventOf = (id) => {
	const event = client.getRoom(ROOM).findEventById(`$${id}`);
	assert(event, `the client does not have $${id}`);
	return event;
};
const { Read, ReadPrivate } = sdk.ReceiptType;
const receipt = (id, type, unthreaded = false) => client.sendReadReceipt(eventOf(id), type, unthreaded);
const UNTHREADED = true;

await request(ALICE, "GET", "/_matrix/client/v3/pushrules/");
await send(BOB, "1");
const start = () => client.startClient({ threadSupport: true });
await step("the first sync", start, [1, 0], [0, 0], [0, 0]);
await step("a message", () => send(BOB, "2"), [2, 0], [0, 0], [0, 0]);
await step("a mention", () => send(BOB, "3", mention), [3, 1], [0, 0], [0, 0]);
await step("a message in a thread", () => send(BOB, "4", inThread("1")), [3, 1], [1, 0], [0, 0]);
await step("a mention in a thread", () => send(CAROL, "5", { ...mention, ...inThread("1") }), [3, 1], [2, 1], [0, 0]);
await step("another thread", () => send(BOB, "6", inThread("2")), [3, 1], [2, 1], [1, 0]);
await step("a reaction", () => send(BOB, "7", reactionTo("3"), "m.reaction"), [3, 1], [2, 1], [1, 0]);
await step("a threaded receipt in the main timeline", () => receipt("2", Read), [1, 1], [2, 1], [1, 0]);
await step("a private one in a thread", () => receipt("4", ReadPrivate), [1, 1], [1, 1], [1, 0]);
await step("a threaded receipt in a thread", () => receipt("5", Read), [1, 1], [0, 0], [1, 0]);
await step("a receipt behind the others", () => receipt("1", Read, UNTHREADED), [1, 1], [0, 0], [1, 0]);
const fullyRead = () => client.setRoomReadMarkers(ROOM, "$6"); // has no effect
await step("a message after m.fully_read", () => fullyRead().then(() => send(BOB, "8")), [2, 1], [0, 0], [1, 0]);
await step("a redaction", () => client.redactEvent(ROOM, "$3"), [1, 0], [0, 0], [1, 0]);
await step("a redaction in a thread", () => client.redactEvent(ROOM, "$6"), [1, 0], [0, 0], [0, 0]);
await step("a thread again", () => send(BOB, "9", { ...mention, ...inThread("2") }), [1, 0], [0, 0], [1, 1]);
await step("an own message in a thread", () => send(ALICE, "10", inThread("2")), [1, 0], [0, 0], [0, 0]);
await step("a thread after it", () => send(BOB, "11", inThread("2")), [1, 0], [0, 0], [1, 0]);
await step("an own message", () => send(ALICE, "12"), [0, 0], [0, 0], [1, 0]);
await step("a mention after it", () => send(BOB, "13", mention), [1, 1], [0, 0], [1, 0]);
await step("a thread after the mention", () => send(BOB, "14", { ...mention, ...inThread("1") }), [1, 1], [1, 1], [1, 0]);
await step("a private unthreaded receipt", () => receipt("13", ReadPrivate, UNTHREADED), [0, 0], [1, 1], [0, 0]);
await step("an unthreaded receipt", () => receipt("14", Read, UNTHREADED), [0, 0], [0, 0], [0, 0]);
await step("one more", () => send(BOB, "15"), [1, 0], [0, 0], [0, 0]);
await step("read markers", () => client.setRoomReadMarkers(ROOM, "$15", eventOf("15")), [0, 0], [0, 0], [0, 0]);
await client.addPushRule("global", "room", ROOM, { actions: [] });
await step("a message in a muted room", () => send(BOB, "16"), [0, 0], [0, 0], [0, 0]);
await step("a mention in a muted room", () => send(BOB, "17", mention), [1, 1], [0, 0], [0, 0]);

client.stopClient();
process.exit(failed ? 1 : 0);
