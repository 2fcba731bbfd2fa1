// The push rule evaluator of matrix-js-sdk: for each line of JSON on stdin with
// set, event, user, display_name, member_count and power, one line on stdout
// with the rules' verdicts, in order, and the rule that decides:
//
//	{"rules":[["override","id",true]],"decides":["override","id"]}
import { createInterface } from "node:readline";
import * as sdk from "matrix-js-sdk";
import { PushProcessor } from "matrix-js-sdk/lib/pushprocessor.js";

const KINDS = ["override", "content", "room", "sender", "underride"];

// roomOf is the room as the given facts have it.
function roomOf(facts) {
	const power = {
		getMember: () => (facts.power ? { powerLevel: facts.power.sender } : null),
		getStateEvents: () => ({ getContent: () => ({ notifications: facts.power.notifications ?? {} }) }),
	};
	return {
		currentState: {
			members: facts.member_count > 0 ? {} : undefined,
			getJoinedMemberCount: () => facts.member_count,
			getMember: () => (facts.display_name ? { name: facts.display_name } : null),
			mayTriggerNotifOfType: sdk.RoomState.prototype.mayTriggerNotifOfType.bind(power),
		},
	};
}

function evaluate(facts) {
	const room = roomOf(facts);
	const processor = new PushProcessor({
		credentials: { userId: facts.user },
		getSafeUserId: () => facts.user,
		getRoom: () => room,
		supportsIntentionalMentions: () => true,
		pushRules: { global: facts.set },
	});
	const event = new sdk.MatrixEvent(facts.event);
	const rules = [];
	for (const kind of KINDS) {
		for (const rule of facts.set[kind]) {
			const raw = rule.enabled ? processor.templateRuleToRaw(kind, rule) : null;
			rules.push([kind, rule.rule_id, raw !== null && processor.ruleMatchesEvent(raw, event)]);
		}
	}
	const { rule } = processor.actionsAndRuleForEvent(event);
	return { rules, decides: rule ? [rule.kind, rule.rule_id] : ["", ""] };
}

for await (const line of createInterface({ input: process.stdin })) {
	process.stdout.write(JSON.stringify(evaluate(JSON.parse(line))) + "\n");
}
