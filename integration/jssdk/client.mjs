// A Matrix client on matrix-js-sdk that checks what it sees of push rules and
// pushers, as one line of JSON per check:
//
//	node client.mjs BASE_URL [PEER_URL]
//
// PEER_URL is another instance of the same homeserver. The password of every
// user must be "demo". The exit status is 1 if a check failed.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import * as sdk from "matrix-js-sdk";
import { logger } from "matrix-js-sdk/lib/logger.js";

const TIME_LIMIT = 55_000;
const PATIENCE = 5_000; // less than a sync waits, so that what arrives has woken it
const QUIET = 500;
const PEER_ROUNDS = 20;

const [baseUrl, peerUrl] = process.argv.slice(2);
if (!baseUrl) {
	console.error("usage: node client.mjs BASE_URL [PEER_URL]");
	process.exit(2);
}

// Stdout is for the checks alone. Some of the SDK logs through the client's
// logger, some through its global one.
const none = () => {};
const silent = { trace: none, debug: none, info: none, warn: none, error: none, getChild: () => silent };
logger.setLevel(logger.levels.SILENT, false);

const localpart = `js-${randomBytes(6).toString("hex")}`;
const clients = [];

// within rejects if the promise takes too long.
function within(promise, what) {
	const late = async () => {
		await sleep(PATIENCE, null, { ref: false });
		throw new Error(`${what} within ${PATIENCE} ms`);
	};
	return Promise.race([promise, late()]);
}

// start logs in as a new device and returns a client that syncs.
async function start(url) {
	const options = { baseUrl: url, localTimeoutMs: PATIENCE, logger: silent };
	const session = await sdk.createClient(options).loginRequest({
		type: "m.login.password",
		identifier: { type: "m.id.user", user: localpart },
		password: "demo",
	});
	const client = sdk.createClient({
		...options,
		userId: session.user_id,
		deviceId: session.device_id,
		accessToken: session.access_token,
		store: new sdk.MemoryStore(),
	});
	clients.push(client);
	const syncing = once(client, sdk.ClientEvent.Sync);
	await client.startClient({ initialSyncLimit: 0 });
	const [state, , data] = await within(syncing, "no sync");
	assert.equal(state, sdk.SyncState.Prepared, data?.error);
	return client;
}

let failed = false;

// check prints the fields that run returns, where "ms" can take the place of
// the time that all of run took.
async function check(name, run) {
	const begin = performance.now();
	let result;
	try {
		const fields = await run();
		result = { ok: true, ms: since(begin), ...fields };
	} catch (error) {
		failed = true;
		result = { ok: false, ms: since(begin), error: error.message };
	}
	console.log(JSON.stringify({ check: name, ...result }));
	return result.ok;
}

const hundredths = (ms) => Math.round(ms * 100) / 100;
const since = (begin) => hundredths(performance.now() - begin);

function finish() {
	for (const client of clients) client.stopClient();
	process.exit(failed ? 1 : 0);
}

// seenBySync makes a change and waits until a sync of the watcher delivers
// rules that satisfy want. It returns the milliseconds since the request.
async function seenBySync(watcher, change, want) {
	let look;
	const seen = new Promise((resolve) => {
		look = (event) => {
			if (event.getType() === sdk.EventType.PushRules && want(event.getContent().global)) resolve(performance.now());
		};
	});
	watcher.on(sdk.ClientEvent.AccountData, look);
	const begin = performance.now();
	try {
		const [end] = await within(Promise.all([seen, change()]), "no sync with the change");
		return { ms: hundredths(end - begin) };
	} finally {
		watcher.off(sdk.ClientEvent.AccountData, look);
	}
}

const find = (rules, kind, id) => rules[kind].find((rule) => rule.rule_id === id);

// The changes of the first client, each awaited in its own sync.
const put = (kind, id, body) =>
	seenBySync(client, () => client.addPushRule("global", kind, id, body), (rules) => find(rules, kind, id));
const remove = (kind, id) =>
	seenBySync(client, () => client.deletePushRule("global", kind, id), (rules) => !find(rules, kind, id));
const enable = (kind, id, enabled) =>
	seenBySync(
		client,
		() => client.setPushRuleEnabled("global", kind, id, enabled),
		(rules) => find(rules, kind, id)?.enabled === enabled,
	);

const ROOM = "!room:example.org";
const SENDER = "@sender:example.org";

// storeRoom gives the client a room of three, so that it is not a direct chat.
function storeRoom() {
	const room = new sdk.Room(ROOM, client, client.getUserId());
	const members = [client.getUserId(), SENDER, "@third:example.org"].map(
		(user) =>
			new sdk.MatrixEvent({
				type: "m.room.member",
				room_id: ROOM,
				event_id: `$${user}`,
				sender: user,
				state_key: user,
				content: { membership: "join" },
			}),
	);
	room.currentState.setStateEvents(members);
	client.store.storeRoom(room);
}

// judge returns what the SDK makes of an event with the rules it has.
function judge(content, type = "m.room.message") {
	const event = new sdk.MatrixEvent({
		type,
		room_id: ROOM,
		event_id: `$${randomBytes(6).toString("hex")}`,
		sender: SENDER,
		content: { msgtype: "m.text", ...content },
	});
	const { notify, tweaks } = client.pushProcessor.actionsForEvent(event);
	return { notify, highlight: tweaks?.highlight === true };
}

const SILENT = { notify: false, highlight: false };
const NOTIFY = { notify: true, highlight: false };
const HIGHLIGHT = { notify: true, highlight: true };

const PUSHER = {
	kind: "http",
	app_id: "org.example.app",
	pushkey: "pushkey",
	app_display_name: "App",
	device_display_name: "Phone",
	lang: "en",
	data: { url: "https://push.example.org/_matrix/push/v1/notify" },
};

setTimeout(() => check("time limit", () => assert.fail(`still running after ${TIME_LIMIT} ms`)).then(finish), TIME_LIMIT);

let client;

const prepared = await check("first sync delivers the default rules", async () => {
	client = await start(baseUrl);
	const rules = client.getAccountData(sdk.EventType.PushRules)?.getContent().global;
	assert(rules, "the first sync has no m.push_rules");
	assert.equal(rules.override[0].rule_id, sdk.RuleId.Master);
	for (const kind of ["override", "content", "room", "sender", "underride"]) assert(Array.isArray(rules[kind]), kind);
	assert(find(rules, "underride", sdk.RuleId.Message));
});
if (!prepared) finish();

await check("sync waits while nothing changes", async () => {
	await sleep(QUIET); // the SDK's second sync is on its way
	let answers = 0;
	const count = () => answers++;
	client.on(sdk.ClientEvent.Sync, count);
	await sleep(QUIET);
	client.off(sdk.ClientEvent.Sync, count);
	assert.equal(answers, 0, `${answers} answers in ${QUIET} ms`);
});

await check("addPushRule wakes the sync", () => put("room", ROOM, { actions: [] }));

await check("setPushRuleEnabled wakes the sync", () => enable("room", ROOM, false));

await check("setPushRuleActions wakes the sync", () =>
	seenBySync(
		client,
		() => client.setPushRuleActions("global", "room", ROOM, ["notify"]),
		(rules) => find(rules, "room", ROOM)?.actions[0] === "notify",
	));

await check("deletePushRule wakes the sync", () => remove("room", ROOM));

storeRoom();

await check("default rules: message and mention", () => {
	assert.deepEqual(judge({ body: "hello" }), NOTIFY);
	assert.deepEqual(judge({ body: "hello", "m.mentions": { user_ids: [client.getUserId()] } }), HIGHLIGHT);
	assert.deepEqual(judge({ body: "hello", msgtype: "m.notice" }), SILENT);
});

await check("features: the rules are read in their places, and a poll notifies", () => {
	const rules = client.getAccountData(sdk.EventType.PushRules).getContent().global;
	const ids = (kind) => rules[kind].map((rule) => rule.rule_id);
	assert.equal(ids("override")[1], ".org.matrix.msc4028.encrypted_event");
	assert.equal(ids("override").length, 14);
	assert.deepEqual(ids("underride").slice(5, 7), [
		".org.matrix.msc3930.rule.poll_start_one_to_one",
		".org.matrix.msc3930.rule.poll_start",
	]);
	assert.deepEqual(judge({}, "org.matrix.msc3381.poll.start"), NOTIFY);
	assert.deepEqual(judge({}, "org.matrix.msc3381.poll.response"), SILENT);
	assert.deepEqual(judge({ live: true }, "org.matrix.msc3672.beacon_info"), NOTIFY);
	assert.deepEqual(judge({}, "org.matrix.msc3672.beacon"), SILENT);
});

await check("keyword", async () => {
	const actions = ["notify", { set_tweak: "highlight" }];
	await put("content", "lunch", { pattern: "lunch", actions });
	// The SDK highlights a keyword without a tweak too.
	assert.deepEqual(find(client.getAccountData(sdk.EventType.PushRules).getContent().global, "content", "lunch").actions, actions);
	assert.deepEqual(judge({ body: "Time for lunch?" }), HIGHLIGHT);
	assert.deepEqual(judge({ body: "Time for dinner?" }), NOTIFY);
	await enable("content", "lunch", false);
	assert.deepEqual(judge({ body: "Time for lunch?" }), NOTIFY);
	await remove("content", "lunch");
});

await check("master rule", async () => {
	await enable("override", sdk.RuleId.Master, true);
	assert.deepEqual(judge({ body: "hello" }), SILENT);
	await enable("override", sdk.RuleId.Master, false);
	assert.deepEqual(judge({ body: "hello" }), NOTIFY);
});

await check("muted room", async () => {
	// How clients mute a room, with the action that they sent for it in the past.
	await put("override", ROOM, {
		conditions: [{ kind: "event_match", key: "room_id", pattern: ROOM }],
		actions: ["dont_notify"],
	});
	assert.deepEqual(judge({ body: "hello", "m.mentions": { user_ids: [client.getUserId()] } }), SILENT);
	await remove("override", ROOM);
	assert.deepEqual(judge({ body: "hello" }), NOTIFY);
});

await check("pushers", async () => {
	await client.setPusher(PUSHER);
	const { pushers } = await client.getPushers();
	assert.equal(pushers.length, 1);
	assert.deepEqual({ ...pushers[0], ...PUSHER }, pushers[0]);
	await client.removePusher(PUSHER.pushkey, PUSHER.app_id);
	assert.deepEqual(await client.getPushers(), { pushers: [] });
});

if (peerUrl) {
	await check("a change here wakes the sync of the peer", async () => {
		const peer = await start(peerUrl);
		const times = [];
		for (let i = 0; i < PEER_ROUNDS; i++) {
			const id = `word${i}`;
			const { ms } = await seenBySync(
				peer,
				() => client.addPushRule("global", "content", id, { pattern: id, actions: ["notify"] }),
				(rules) => find(rules, "content", id),
			);
			times.push(ms);
		}
		times.sort((a, b) => a - b);
		const percentile = (p) => times[Math.ceil((p / 100) * times.length) - 1];
		return { p50: percentile(50), p99: percentile(99) };
	});
}

await check("logout", async () => {
	await client.logout(true);
	await assert.rejects(client.whoami(), { errcode: "M_UNKNOWN_TOKEN" });
});

finish();
