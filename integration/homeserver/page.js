'use strict';
const $ = id => document.getElementById(id);

// el makes an element. A child that is a string becomes text, never markup.
const el = (tag, props, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (typeof value === 'boolean') element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null));
  return element;
};

const people = ['alice', 'bob', 'carol'];
const mostArrivals = 100, mostMails = 50;
let server = 'localhost', owner = 'alice', gateway = null;
const shownPushers = new Map(), unread = {};
const userID = name => name.startsWith('@') ? name : `@${name}:${server}`;
const roomID = name => name.startsWith('!') ? name : `!${name.toLowerCase().replace(/[^a-z0-9]+/g, '-') || 'room'}:${server}`;

class Refusal extends Error { constructor(errcode, text) { super(text); this.errcode = errcode; } }
const authOf = name => ({Authorization: `Bearer demo-${name}`});
const noAnswer = 'No answer';
let commands = []; // the last click's requests that change or ask something
const quote = text => `'${text.replaceAll("'", "'\\''")}'`;
const call = async (name, method, path, body, signal) => {
  if (method !== 'GET') commands.push(['curl -X', method, `-H 'Authorization: Bearer demo-${name}'`, quote(location.origin + path),
    ...(body ? ['-d', quote(json(body, 0))] : [])].join(' '));
  const response = await fetch(path, {method, headers: authOf(name), body: body && JSON.stringify(body), signal})
    .catch(() => { throw new Refusal(noAnswer, 'The demo host does not answer.'); });
  const answer = await response.json();
  if (!response.ok) throw new Refusal(answer.errcode, answer.error);
  return answer;
};
const sleep = time => new Promise(done => setTimeout(done, time));
const v3 = '/_matrix/client/v3', rulePath = (kind, id) => `${v3}/pushrules/global/${kind}/${encodeURIComponent(id)}`;

// Characters that turn the direction of text are shown by their names. In JSON they are escaped.
const turns = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, hex = c => c.charCodeAt(0).toString(16).padStart(4, '0');
const json = (value, spaces = 2) => JSON.stringify(value, null, spaces).replace(turns, c => `\\u${hex(c)}`);
// bdi isolates text whose direction a user can choose.
const bdi = text => el('bdi', {}, text.replace(turns, c => `U+${hex(c).toUpperCase()}`));
const short = text => text.length > 40 ? `${text.slice(0, 40)}…` : text;
const clock = time => new Date(time).toLocaleTimeString();

// act runs what a user started in a section, and shows the error and the requests there.
const act = async (section, run) => {
  const [error, curl] = ['.error', '.curl'].map(part => $(section).querySelector(part)), sent = commands = [];
  [error.hidden, $(section).ariaBusy] = [true, 'true'];
  await run().catch(e => {
    error.replaceChildren(el('code', {}, e.errcode ?? 'Error'), bdi(e.message));
    error.hidden = false;
  });
  if (sent.length) [curl.hidden, curl.querySelector('pre').textContent] = [false, sent.join('\n')];
  $(section).ariaBusy = 'false';
};

// Rules in words.
const kinds = {
  override: ['Override', 'special cases, checked first'], content: ['Keywords', 'words in the text'], room: ['Rooms', 'all of a room'],
  sender: ['Senders', 'all of a person'], underride: ['Underride', 'everything else, checked last']};
const titles = {__proto__: null,
  master: 'Mute everything', suppress_notices: 'Texts of bots', invite_for_me: 'Invitations', member_event: 'Joins, leaves, new names',
  is_user_mention: 'Mentions of you', is_room_mention: 'Mentions of the whole room', tombstone: 'Room upgrades', reaction: 'Reactions',
  'room.server_acl': 'Server access lists', suppress_edits: 'Edits', call: 'Calls', room_one_to_one: 'Messages, two people',
  encrypted_room_one_to_one: 'Encrypted messages, two people', message: 'Messages', encrypted: 'Encrypted messages', poll_response: 'Votes',
  poll_start_one_to_one: 'Polls, two people', poll_start: 'Polls', poll_end_one_to_one: 'Ends of polls, two people', poll_end: 'Ends of polls',
  encrypted_event: 'All that is encrypted', beacon: 'Moves of live locations', beacon_info_one_to_one: 'Live locations, two people',
  beacon_info: 'Live locations', knock: 'Knocks'};
// Rule ids cannot have a slash or begin with a dot.
const keywordID = word => word.replace(/[%/\\]|^\./g, c => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
const keywordOf = id => id.replace(/%(25|2F|5C|2E)/g, decodeURIComponent);
const title = (kind, id) => (id.startsWith('.') && titles[id.replace(/^\.(m|org\.matrix\.msc\d+)\.(rule\.)?/, '')]) ||
  ({content: `Keyword “${keywordOf(id)}”`, room: `Room ${id}`, sender: `Sender ${id}`}[kind] ?? id);
const types = {__proto__: null,
  'm.room.message': 'a message', 'm.room.encrypted': 'an encrypted message', 'm.room.member': 'a change of membership', 'm.reaction': 'a reaction',
  'm.room.tombstone': 'a room upgrade', 'm.room.server_acl': 'an access list', 'm.call.invite': 'a call', 'org.matrix.msc3381.poll.start': 'a poll',
  'org.matrix.msc3381.poll.response': 'a vote', 'org.matrix.msc3381.poll.end': 'the end of a poll',
  'org.matrix.msc3672.beacon_info': 'a live location', 'org.matrix.msc3672.beacon': 'a move of a live location'};
const condition = c => {
  const value = c.pattern ?? c.value;
  switch (c.kind) {
  case 'room_member_count': return `the room has ${c.is} members`;
  case 'sender_notification_permission': return `the sender may notify the whole ${c.key}`;
  case 'org.matrix.msc4506.recipient_permission': return `you may ${c.key}`;
  case 'contains_display_name': return 'the text has your display name';
  case 'event_match': case 'event_property_is': case 'event_property_contains': break;
  default: return JSON.stringify(c);
  }
  switch (c.key.replaceAll('\\', '')) {
  case 'type': return `it is ${types[value] ?? value}`;
  case 'room_id': return `it is in ${value}`;
  case 'sender': return `it is from ${value}`;
  case 'state_key': return value ? `it is about ${value}` : 'its state key is empty';
  case 'content.body': return `the text has “${value}”`;
  case 'content.msgtype': if (value === 'm.notice') return 'it is the text of a bot'; break;
  case 'content.membership': if (value === 'invite') return 'it is an invitation'; if (value === 'knock') return 'it is a knock'; break;
  case 'content.live': if (value === true) return 'it begins'; break;
  case 'content.m.relates_to.rel_type': if (value === 'm.replace') return 'it edits a message'; break;
  case 'content.m.mentions.user_ids': return `it mentions ${value}`;
  case 'content.m.mentions.room': return 'it mentions the whole room';
  }
  return `${c.key} is ${JSON.stringify(value)}`;
};
const conditions = (kind, rule) => ({content: `if the text has “${rule.pattern}”`, room: `if it is in ${rule.rule_id}`,
  sender: `if it is from ${rule.rule_id}`}[kind] ?? (rule.conditions.length ? `if ${rule.conditions.map(condition).join(', and ')}` : 'always'));
const action = a => {
  if (a.set_tweak === 'sound') return a.value === 'default' ? 'sound' : `sound “${a.value}”`;
  if (a.set_tweak === 'highlight') return a.value === false ? 'no highlight' : 'highlight';
  return typeof a === 'string' ? a : JSON.stringify(a);
};
const actions = list => list.map(action).join(', ') || 'do not notify';
const effects = {loud: ['notify', {set_tweak: 'sound', value: 'default'}, {set_tweak: 'highlight'}], plain: ['notify'], mute: []};
// 1 Rules.
const renderPeople = () => {
  const choose = (type, name, checked, change, ...more) =>
    el('label', {}, el('input', {type, name: `${type}s`, value: name, checked, change}), name, ...more);
  const left = new Set([...$('members').querySelectorAll('input:not(:checked)')].map(box => box.value));
  const fill = (fieldset, labels) => fieldset.replaceChildren(fieldset.querySelector('legend'), ...labels);
  fill($('owners'), people.map(name => choose('radio', name, name === owner, () => show(name), ' ', el('small', {id: `unread/${name}`}))));
  fill($('members'), people.map(name => choose('checkbox', name, !left.has(name), compose)));
  for (const [select, first] of [['sender', 'bob'], ['device-owner', owner]]) {
    const chosen = $(select).value || first;
    $(select).replaceChildren(...people.map(name => el('option', {selected: name === chosen}, name)));
  }
  const chosen = $('mentions').value;
  const options = [['', 'nobody'], ...people.map(name => [userID(name), name]),
    ['moderator', 'the room, as moderator'], ['member', 'the room, as member']];
  $('mentions').replaceChildren(...options.map(([value, text]) => el('option', {value, selected: value === chosen}, text)));
  renderUnread();
};
const renderUnread = () => {
  for (const name of people) {
    const {unread: sum, rooms} = unread[name] ?? {};
    $(`unread/${name}`).replaceChildren(...(sum ? [`${sum} unread`, el('span', {}, ` in ${rooms} ${rooms > 1 ? 'rooms' : 'room'}`)] : []));
  }
};
const fits = (what, text, most = 255) => { if (text.length > most) throw new Refusal('Too long', `${what} has at most ${most} characters.`); };
// nameIn returns the name or user id in what somebody entered.
const nameIn = text => {
  const name = text.trim().toLowerCase();
  fits('A name', name);
  if (!/^([a-z0-9._=+-]+|@[^:]+:.+)$/.test(name)) throw new Refusal('Not a name', `“${short(name)}” must consist of a-z, 0-9 and ._=+- alone.`);
  return name;
};

const show = name => act('rules', async () => {
  owner = name;
  renderPeople();
  document.querySelector('#owners :checked').focus({preventScroll: true});
  await loadRules();
  follow(name);
});
const loadRules = async () => {
  const name = owner, {global} = await call(name, 'GET', `${v3}/pushrules/`);
  if (name === owner) renderRules(global);
};
// follow shows changes of a person's rules, whoever makes them, until it follows another person.
let following = new AbortController();
const follow = async name => {
  following.abort();
  const {signal} = following = new AbortController();
  for (let since = ''; !signal.aborted;) {
    try {
      const batch = await call(name, 'GET', `${v3}/sync?timeout=30000${since && `&since=${since}`}`, undefined, signal);
      since = batch.next_batch;
      const rules = batch.account_data.events.find(event => event.type === 'm.push_rules')?.content.global;
      if (rules && !signal.aborted && JSON.stringify(rules) !== shownRules) renderRules(rules);
    } catch { await sleep(1000); }
  }
};
let shownRules = '';
const renderRules = rules => {
  shownRules = JSON.stringify(rules);
  const focused = document.activeElement.closest('#kinds') && document.activeElement.id;
  for (const kind of Object.keys(kinds)) {
    const own = rules[kind].filter(rule => !rule.default);
    $(`kind-${kind}`).replaceChildren(...rules[kind].map((rule, place) => renderRule(kind, rule, own, `${kind}-${place}`)));
    $(`count-${kind}`).textContent = `${rules[kind].length || 'none yet'}`;
  }
  if (focused) ($(focused) ?? $(focused.replace(/^\w+/, 'switch')) ?? $(`title-${focused.split('/')[1]}`)).focus({preventScroll: true});
};

const renderRule = (kind, rule, own, key) => {
  const id = `${kind}/${rule.rule_id}`, name = title(kind, rule.rule_id), place = own.indexOf(rule);
  const change = (...request) => act('rules', () => call(owner, ...request).finally(loadRules));
  const move = (side, other) => change('PUT', `${rulePath(kind, rule.rule_id)}?${side}=${encodeURIComponent(other.rule_id)}`,
    {actions: rule.actions, pattern: rule.pattern, conditions: rule.conditions});
  const tool = (what, text, click) => el('button', {type: 'button', class: 'quiet', id: `${what}/${id}`, 'aria-label': `${text}: ${name}`, click}, text);
  return el('li', {class: rule.enabled ? 'rule' : 'rule off', id: `rule/${id}`},
    el('input', {type: 'checkbox', role: 'switch', class: 'switch', id: `switch/${id}`, 'aria-describedby': `effect-${key} if-${key}`, checked: rule.enabled,
      change: event => change('PUT', `${rulePath(kind, rule.rule_id)}/enabled`, {enabled: event.target.checked})}),
    el('div', {class: 'what'}, el('label', {for: `switch/${id}`}, bdi(name)), el('br', {}), el('small', {id: `if-${key}`}, bdi(conditions(kind, rule))), ' ',
      rule.default ? el('code', {}, rule.rule_id) : null),
    el('span', {class: rule.actions.includes('notify') ? 'tag on' : 'tag', id: `effect-${key}`}, actions(rule.actions)),
    rule.default ? null : el('div', {class: 'tools'},
      place > 0 ? tool('earlier', 'Move up', () => move('before', own[place - 1])) : null,
      place < own.length - 1 ? tool('later', 'Move down', () => move('after', own[place + 1])) : null,
      tool('delete', 'Delete', () => change('DELETE', rulePath(kind, rule.rule_id)))));
};

const addRule = async () => {
  const kind = $('add-kind').value, value = $('add-value').value.trim();
  kind === 'content' ? fits('A keyword', value, 1000) : fits('A name', value);
  const id = {content: () => keywordID(value), room: () => roomID(value), sender: () => userID(nameIn(value))}[kind]();
  await call(owner, 'PUT', rulePath(kind, id), {actions: effects[$('add-effect').value], pattern: kind === 'content' ? value : undefined});
  if ($('add-value').value.trim() === value) $('add-value').value = '';
  await loadRules();
  reveal(kind, id);
};
const reveal = (kind, id) => {
  const rule = $(`rule/${kind}/${id}`);
  rule.closest('details').open = true;
  rule.classList.add('shown');
  rule.scrollIntoView({block: 'center'});
  rule.querySelector('.switch').focus({preventScroll: true});
};
// 2 Message.
const compose = () => {
  const text = $('text').value, mention = $('mentions').value, poll = 'org.matrix.msc3381.poll', beacon = 'org.matrix.msc3672.beacon';
  const relation = {rel_type: 'm.reference', event_id: '$earlier'};
  const mentions = mention.startsWith('@') ? {user_ids: [mention]} : mention ? {room: true} : {};
  const message = msgtype => ({type: 'm.room.message', content: {msgtype, body: text, 'm.mentions': mentions}});
  const event = {
    text: () => message('m.text'), notice: () => message('m.notice'),
    edit: () => ({type: 'm.room.message', content: {msgtype: 'm.text', body: `* ${text}`, 'm.new_content': {msgtype: 'm.text', body: text},
      'm.relates_to': {...relation, rel_type: 'm.replace'}}}),
    encrypted: () => ({type: 'm.room.encrypted', content: {algorithm: 'm.megolm.v1.aes-sha2', ciphertext: 'AwgAEnAC...'}}),
    reaction: () => ({type: 'm.reaction', content: {'m.relates_to': {...relation, rel_type: 'm.annotation', key: '👍'}}}),
    call: () => ({type: 'm.call.invite', content: {call_id: '1', party_id: '1', version: '1', lifetime: 60000, offer: {type: 'offer', sdp: ''}}}),
    poll: () => ({type: `${poll}.start`, content: {'org.matrix.msc1767.text': text, 'm.mentions': mentions,
      [`${poll}.start`]: {question: {'org.matrix.msc1767.text': text}, answers: ['Yes', 'No'].map(id => ({id, 'org.matrix.msc1767.text': id}))}}}),
    vote: () => ({type: `${poll}.response`, content: {'m.relates_to': relation, [`${poll}.response`]: {answers: ['Yes']}}}),
    end: () => ({type: `${poll}.end`, content: {'m.relates_to': relation, 'org.matrix.msc1767.text': text, [`${poll}.end`]: {}}}),
    live: () => ({type: `${beacon}_info`, state_key: userID($('sender').value), content: {live: true, timeout: 600000, description: text}}),
    move: () => ({type: beacon, content: {'m.relates_to': relation, 'org.matrix.msc3488.location': {uri: 'geo:51.5,-0.13'}}}),
    knock: () => ({type: 'm.room.member', state_key: userID($('sender').value), content: {membership: 'knock', reason: text}}),
  }[$('type').value]();
  $('json').value = json(event);
};

const newMessage = () => {
  let event;
  try { event = JSON.parse($('json').value); } catch (e) { throw new Refusal('Not JSON', e.message); }
  const sender = $('sender').value, mention = $('mentions').value;
  const isIn = name => document.querySelector(`#members input[value="${CSS.escape(name)}"]`).checked;
  const names = people.filter(name => name === sender ? event.content?.membership !== 'knock' : isIn(name));
  const power = {sender: mention === 'moderator' ? 50 : 0, notifications: {room: 50}};
  return {event, sender, names, power, room: roomID($('room').value)};
};
const send = async () => {
  const m = newMessage();
  fits('A room name', $('room').value);
  const sent = await call(m.sender, 'POST', '/_demo/send', {...m.event, room_id: m.room, room_name: $('room').value,
    members: m.names.map(userID), power: m.power});
  watchSoon();
  await explain(m, sent.event_id, Date.now());
};
const explain = async (m, eventID, at) => {
  const event = {...m.event, event_id: eventID, room_id: m.room, sender: userID(m.sender)};
  const question = {event, facts: {member_count: m.names.length, power: m.power}};
  const answers = [];
  for (const name of m.names) answers.push([name, await call(name, 'POST', '/_demo/explain', question)]);
  fates = [];
  $('results').replaceChildren(...answers.map(([name, why]) => renderResult(name, why, eventID, at)));
  renderFates();
};

// What became of the sent message: a line for each member, with the last post to each device.
const posts = new Map();
let fates = [];
const renderFates = () => {
  for (const {name, eventID, at, isNotified, line} of fates) {
    const devices = [...shownPushers].filter(([, p]) => p.name === name && !p.isMail && p.item.isConnected && isNotified).map(([id, {device}]) => {
      const post = posts.get(`${eventID} ${id}`);
      return [`${device.slice(name.length + 3)}:`, post && `posted ${clock(post.at)}, answered ${post.status || 'nothing'}`, !(post?.status < 300) && 'waits'].filter(Boolean).join(' ');
    });
    line.replaceChildren(bdi([`Decided ${clock(at)}`, ...(devices.length ? devices : ['not posted'])].join(' · ')));
  }
};

const renderResult = (name, why, eventID, at) => {
  const end = why.rules.findIndex(rule => rule.verdict === 'decides'), decided = why.rules[end];
  const before = end < 0 ? why.rules : why.rules.slice(0, end), {notify, highlight, sound} = why.result;
  const outcome = why.own ? 'own message' : !notify ? 'not notified' :
    ['notified', highlight && 'highlight', sound && action({set_tweak: 'sound', value: sound})].filter(Boolean).join(', ');
  const head = el('div', {class: 'row'}, el('h3', {}, name), el('span', {class: notify ? 'tag on' : 'tag'}, outcome));
  if (why.own) return el('div', {class: 'card result'}, head, el('p', {class: 'small'}, 'Nobody is notified of their own messages.'));
  const line = el('p', {class: 'small fate', hidden: !at});
  if (at) fates.push({name, eventID, at, isNotified: notify, line});
  const reason = decided ? el('p', {}, 'Decided by ', el('button', {type: 'button', class: 'link',
    click: () => show(name).then(() => reveal(decided.kind, decided.rule_id))}, bdi(title(decided.kind, decided.rule_id))),
  ` (${kinds[decided.kind][0].toLowerCase()})`) : el('p', {}, 'No rule matches.');
  const failed = rule => el('li', {}, el('strong', {}, bdi(title(rule.kind, rule.rule_id))), ...(rule.verdict === 'disabled' ? [' is switched off.'] :
    [' needs: ', bdi(condition(rule.condition)), '. Here ', bdi(rule.saw), '.']));
  return el('div', {class: 'card result'}, head, reason, line, el('details', {}, el('summary', {class: 'small'},
    `${decided ? 'Why not an earlier rule?' : 'Why?'} ${before.length} did not match`), el('ol', {class: 'why'}, before.map(failed))));
};

// 3 Notifications.
let connection = new AbortController();
// connect shows the stream until the tab is hidden: a browser has few connections to a host.
const connect = async () => {
  connection.abort();
  const {signal} = connection = new AbortController();
  while (!signal.aborted) {
    await listen(signal).catch(() => {});
    if (signal.aborted) return;
    $('away').hidden = false;
    await sleep(1000);
  }
};
// listen reads server-sent events by itself: an EventSource can send its token in the address only.
const listen = async signal => {
  const response = await fetch('/_demo/notifications', {headers: authOf('alice'), signal});
  if (!response.ok) return;
  gateway = null;
  [$('none').hidden, $('away').hidden] = [false, true];
  for (const error of document.querySelectorAll('.error')) error.hidden ||= error.textContent.startsWith(noAnswer);
  for (const list of ['arrivals', 'mails']) $(list).replaceChildren();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = '';;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (text + value).split('\n\n');
    text = parts.pop();
    for (const part of parts) {
      const [, name, data] = part.match(/^event: (.*)\ndata: (.*)$/m) ?? [];
      if (name) await events[name](JSON.parse(data));
    }
  }
};
const events = {
  gateway: async data => {
    const isFirst = gateway === null;
    gateway = data;
    const works = $('gateway').checked = gateway.status === 200;
    $('gateway-title').textContent = works ? 'The push gateway works' : `The push gateway answers ${gateway.status}`;
    $('gateway-text').textContent = works ? 'Switch it off, and send some messages.' : 'Notifications wait in order. Switch it on again.';
    $('by-mail').hidden = $('by-mail').disabled = !data.mail;
    $('mailbox').hidden = !data.inbox;
    if (isFirst) act('notifications', start); // arrivals do not wait for it
  },
  arrival: data => arrived(data),
  mail: data => mailed(data),
};

const arrived = async a => {
  watchSoon();
  for (const {id} of a.devices) posts.set(`${a.notification.event_id} ${id}`, a);
  if (posts.size > 1000) posts.delete(posts.keys().next().value);
  renderFates();
  if (a.status !== 200) return;
  if (!shownPushers.has(a.devices[0].id)) await watch().catch(() => {});
  const n = a.notification, counts = n.counts ?? {}, tweaks = a.devices[0].tweaks ?? {};
  const {name, device} = shownPushers.get(a.devices[0].id) ?? {device: 'A device'};
  const read = () => act('notifications', () => call(name, 'POST',
    `${v3}/rooms/${encodeURIComponent(n.room_id)}/receipt/m.read/${encodeURIComponent(n.event_id)}`, {}).then(watch));
  const missing = Object.entries({room_name: 'room name', sender: 'sender', type: 'type', content: 'content'})
    .filter(([field]) => n.event_id && !(field in n)).map(([, text]) => text);
  const text = n.content?.body ?? (n.type ? types[n.type] ?? n.type : n.event_id ? `Event ${n.event_id.slice(0, 9)}…` : 'New counts');
  const facts = [`priority ${n.prio ?? 'high'}`, 'unread' in counts && `badge ${counts.unread}`,
    tweaks.sound && action({set_tweak: 'sound', value: tweaks.sound}), tweaks.highlight && 'highlight'].filter(Boolean);
  $('none').hidden = true;
  $('arrivals').prepend(el('li', {class: 'card arrival'},
    el('div', {class: 'row'}, el('h3', {}, bdi(device)), el('small', {}, clock(a.at))),
    el('p', {}, ...(n.sender ? [el('strong', {}, bdi(n.sender_display_name ?? n.sender), ' in ', bdi(n.room_name ?? n.room_id), ': ')] : []), bdi(text)),
    el('div', {class: 'facts'}, facts.map(fact => el('span', {class: 'tag'}, fact)),
      missing.length ? el('span', {class: 'tag warn'}, `left out: ${missing.join(', ')}`) : null,
      name && n.event_id ? el('button', {type: 'button', class: 'quiet', 'aria-label': `Read up to here: ${name}`, click: read}, 'Read up to here') : null),
    el('details', {}, el('summary', {class: 'small'}, 'The notification as JSON'), el('pre', {}, json({...n, devices: a.devices})))));
  while ($('arrivals').childElementCount > mostArrivals) $('arrivals').lastElementChild.remove();
};

// mailed shows a mail. Its HTML is a page of its own, without scripts, since this page's policy holds for a srcdoc, too.
const mailed = m => {
  watchSoon();
  $('no-mail').hidden = true;
  $('mails').prepend(el('li', {class: 'card arrival'},
    el('div', {class: 'row'}, el('h3', {}, bdi(m.to.join(', '))), el('small', {}, clock(m.at))), el('p', {}, el('strong', {}, bdi(m.subject))),
    m.unsubscribe ? el('a', {class: 'small', href: m.unsubscribe, target: '_blank', rel: 'noreferrer'}, 'Unsubscribe') : null,
    el('details', {open: true}, el('summary', {class: 'small'}, 'The mail as HTML'),
      el('iframe', {title: 'The mail as HTML', src: `/_demo/mails/${m.id}`, sandbox: 'allow-popups allow-popups-to-escape-sandbox', loading: 'lazy'})),
    ...[['text', m.text], ['headers', `MAIL FROM:<${m.sender}>\n${m.head}`]].map(([name, text]) =>
      el('details', {}, el('summary', {class: 'small'}, `Its ${name}`), el('pre', {}, bdi(text))))));
  while ($('mails').childElementCount > mostMails) $('mails').lastElementChild.remove();
};

const addDevice = (name, device) => adders[device] ? adders[device](name) : call(name, 'POST', `${v3}/pushers/set`, {
  kind: 'http', app_id: 'org.example.chat', pushkey: `${name}-${device}`, app_display_name: 'Chat', device_display_name: device, lang: 'en',
  append: true, data: {url: gateway.url, ...(device === 'tablet' && {format: 'event_id_only'})}});

const addMail = name => call(name, 'POST', `${v3}/pushers/set`, {
  kind: 'email', app_id: 'm.email', pushkey: `${userID(name).slice(1).split(':')[0]}@${gateway.mail}`, app_display_name: 'Mail', device_display_name: 'mail',
  lang: 'en', append: true, data: {}});

const adders = {__proto__: null, mail: addMail};

const renderPusher = (name, p) => {
  const device = `${name}’s ${p.device}`, [state, detail] = [el('small', {}), el('small', {class: 'detail'})];
  const blocks = el('div', {class: 'blocks detail', 'aria-hidden': 'true'});
  const deletion = {kind: null, app_id: p.app_id, pushkey: p.pushkey};
  const remove = () => act('notifications', () => call(name, 'POST', `${v3}/pushers/set`, deletion).then(watch));
  const item = el('li', {class: 'pusher'}, el('span', {class: 'dot'}), el('span', {}, bdi(device), ' ', p.format ? el('code', {}, p.format) : null),
    state, el('button', {type: 'button', class: 'quiet', 'aria-label': `Remove ${device}`, click: remove}, 'Remove'), detail, blocks);
  return {name, device, pushkey: p.pushkey, isMail: p.app_id === 'm.email', item, state, detail, blocks};
};
const detailOf = p => {
  const seconds = ms => `${Math.ceil(ms / 1000)} s`;
  const last = /^\d/.test(p.last_error) ? `answered ${p.last_error}` : `no answer (${p.last_error})`;
  return [p.failing_ms && `${last} for ${seconds(p.failing_ms)}`, p.next_try_ms && `next try in ${seconds(p.next_try_ms)}`].filter(Boolean).join(', ');
};

// watch shows the unread counts and the state of all pushers, and returns whether a pusher has a backlog. A person
// whose state cannot be read keeps the last one.
const watch = async () => {
  const settled = await Promise.allSettled(people.map(async name => [name, await call(name, 'GET', '/_demo/pushers')]));
  const answers = settled.filter(({value}) => value).map(({value}) => value), answered = new Set(answers.map(([name]) => name));
  if (answers.length === 0) throw settled[0].reason;
  Object.assign(unread, Object.fromEntries(answers));
  renderUnread();
  const all = answers.flatMap(([name, answer]) => answer.pushers.map(p => [name, p])), ids = new Set(all.map(([, p]) => p.id));
  for (const [name, p] of all) {
    if (!shownPushers.has(p.id)) shownPushers.set(p.id, renderPusher(name, p));
    const {item, state, detail, blocks} = shownPushers.get(p.id);
    item.className = `pusher ${p.attempts ? 'waiting' : p.state}`;
    state.textContent = p.backlog ? `${p.backlog} waiting` : p.state;
    detail.textContent = detailOf(p);
    blocks.replaceChildren(...Array.from({length: p.backlog}, () => el('i', {})));
    if (!item.isConnected) $('pushers').append(item);
  }
  for (const [id, {name, item}] of shownPushers) if (answered.has(name) && !ids.has(id)) item.remove();
  renderFates();
  return all.some(([, p]) => p.backlog > 0);
};

let timer = 0, soonUntil = 0;
const watchIn = time => { clearTimeout(timer); timer = setTimeout(watchOn, time); };
const watchSoon = () => { soonUntil = Date.now() + 3000; watchIn(100); };
const watchOn = async () => {
  const isBusy = !document.hidden && await watch().catch(() => false);
  watchIn(isBusy || Date.now() < soonUntil ? 500 : 5000);
};

// equip gives devices to a person who has none.
const equip = async name => {
  if ((await call(name, 'GET', `${v3}/pushers`)).pushers.length > 0) return;
  await addDevice(name, 'phone');
  if (name === 'alice') await addDevice(name, 'tablet');
  if (name === 'alice' && gateway.mail) await addMail(name);
};
// start is called when the page opens, and when the demo host was started again.
const start = async () => {
  const whoami = await call('alice', 'GET', `${v3}/account/whoami`);
  server = whoami.user_id.slice(whoami.user_id.indexOf(':') + 1);
  renderPeople();
  compose();
  await act('rules', loadRules);
  follow(owner);
  const equipped = await Promise.allSettled(people.map(equip));
  await watchOn();
  for (const {reason} of equipped) if (reason) throw reason;
};

// onSubmit disables the form's button while what it started runs.
const onSubmit = (form, section, run) => $(form).addEventListener('submit', async event => {
  event.preventDefault();
  const button = $(form).querySelector('button:not([type=button])'), hadFocus = document.activeElement === button;
  button.disabled = true;
  await act(section, run);
  button.disabled = false;
  if (hadFocus && document.activeElement === document.body) button.focus({preventScroll: true});
});
onSubmit('person', 'rules', async () => {
  const entered = nameIn($('name').value), [local, ...rest] = entered.split(':');
  const name = entered.startsWith('@') && rest.join(':') === server ? local.slice(1) : entered;
  await call(name, 'GET', `${v3}/account/whoami`).catch(e => {
    throw e.errcode === noAnswer ? e : new Refusal('No such person', `There can be no “${short(name)}” on the server ${server}.`);
  });
  if (!people.includes(name)) people.push(name);
  $('name').value = '';
  await show(name);
  await equip(name).then(watch);
});
onSubmit('add', 'rules', addRule);
onSubmit('compose', 'message', send);
onSubmit('device', 'notifications', () => addDevice($('device-owner').value, $('device-kind').value).then(watch));
$('explain').addEventListener('click', () => act('message', async () => explain(newMessage(), '$not-sent')));
for (const field of ['sender', 'type', 'mentions', 'text']) $(field).addEventListener('input', compose);
$('add-kind').addEventListener('change', () => { $('add-label').textContent = {content: 'Keyword', room: 'Room name', sender: 'Name'}[$('add-kind').value]; });
$('gateway').addEventListener('change', () => act('notifications', () =>
  call('alice', 'PUT', '/_demo/gateway', {status: $('gateway').checked ? 200 : 502}).then(watchSoon)));
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) return connect();
  connection.abort();
  following.abort();
});
$('kinds').append(...Object.entries(kinds).map(([kind, [name, note]]) => el('details', {class: 'kind', open: matchMedia('(min-width: 68rem)').matches},
  el('summary', {id: `title-${kind}`}, el('h3', {}, name), ' ', el('small', {}, note, ' · ', el('span', {id: `count-${kind}`}))), el('ol', {id: `kind-${kind}`}))));
renderPeople();
compose();
connect();
