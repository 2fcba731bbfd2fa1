// The page plays browsers: it makes their keys, returns the token of the first push, and opens what comes (RFC 8291).
const {subtle} = crypto, ecdh = {name: 'ECDH', namedCurve: 'P-256'}, decode = bytes => new TextDecoder().decode(bytes);
const toBase64 = bytes => btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
const fromBase64 = text => Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), c => c.charCodeAt(0));
const setBrowser = (name, device, {endpoint, keys}) => call(name, 'POST', `${v3}/pushers/set`, {
  kind: 'org.matrix.msc4174.webpush', app_id: 'org.example.browser', pushkey: keys.p256dh, app_display_name: 'Chat', device_display_name: device,
  lang: 'en', append: true, data: {url: endpoint, auth: keys.auth}});
const addBrowser = async name => {
  const {privateKey, publicKey} = await subtle.generateKey(ecdh, true, ['deriveBits']), id = crypto.randomUUID();
  const keys = {p256dh: toBase64(await subtle.exportKey('raw', publicKey)), auth: toBase64(crypto.getRandomValues(new Uint8Array(16)))};
  localStorage.setItem(`push ${id}`, json({name, keys, own: await subtle.exportKey('jwk', privateKey)}));
  await setBrowser(name, 'browser', {endpoint: new URL(`/_demo/push/${id}`, gateway.url).href, keys});
};
// addReal subscribes the visitor's own browser at its push service, with a service worker.
const workers = {createScriptURL: name => `/_demo/worker.js?name=${encodeURIComponent(name)}`};
const workerOf = window.trustedTypes?.createPolicy('worker', workers) ?? workers;
const register = async name => {
  await navigator.serviceWorker.register(workerOf.createScriptURL(name), {scope: '/'});
  return navigator.serviceWorker.ready;
};
const addReal = async name => {
  const {capabilities} = await call(name, 'GET', `${v3}/capabilities`);
  if (await Notification.requestPermission() !== 'granted') throw new Refusal('Not allowed', 'This browser does not show notifications of this page.');
  const subscription = await (await register(name)).pushManager.subscribe({userVisibleOnly: true, applicationServerKey: capabilities['org.matrix.msc4174.webpush'].vapid});
  await setBrowser(name, 'this browser', subscription.toJSON());
};
const open = async (sealed, {keys, own}) => {
  const point = sealed.slice(21, 86), salt = sealed.slice(0, 16), encode = text => new TextEncoder().encode(text);
  const derive = async (secret, salt, info, bits) => subtle.deriveBits({name: 'HKDF', hash: 'SHA-256', salt, info},
    await subtle.importKey('raw', secret, 'HKDF', false, ['deriveBits']), bits);
  const shared = await subtle.deriveBits({name: 'ECDH', public: await subtle.importKey('raw', point, ecdh, false, [])},
    await subtle.importKey('jwk', own, ecdh, false, ['deriveBits']), 256);
  const secret = await derive(shared, fromBase64(keys.auth), new Uint8Array([...encode('WebPush: info\0'), ...fromBase64(keys.p256dh), ...point]), 256);
  const key = await subtle.importKey('raw', await derive(secret, salt, encode('Content-Encoding: aes128gcm\0'), 128), 'AES-GCM', false, ['decrypt']);
  const body = new Uint8Array(await subtle.decrypt({name: 'AES-GCM', iv: await derive(secret, salt, encode('Content-Encoding: nonce\0'), 96)}, key, sealed.slice(86)));
  return JSON.parse(decode(body.subarray(0, body.lastIndexOf(2))));
};
const pushed = async p => {
  const mine = JSON.parse(localStorage.getItem(`push ${p.id}`)), sealed = fromBase64(p.sealed);
  watchSoon();
  const n = mine && await open(sealed, mine).catch(() => null);
  const [id] = [...shownPushers].find(([, shown]) => shown.pushkey === mine?.keys.p256dh) ?? [];
  if (n?.event_id && id) posts.set(`${n.event_id} ${id}`, p);
  renderFates();
  const isFresh = Date.now() - p.at < 60000;
  if (n?.ack_token && p.status < 300 && isFresh) await act('notifications', () => call(mine.name, 'POST', '/_matrix/client/unstable/org.matrix.msc4174/pushers/ack', n).then(watch));
  const end = () => act('notifications', () => call(mine.name, 'DELETE', `/_demo/push/${p.id}`));
  const text = !n ? 'Sealed for another page' : n.ack_token ? 'First push: its token is returned' : n.content?.body ?? n.type ?? 'New counts';
  $('none').hidden = true;
  $('arrivals').prepend(el('li', {class: 'card arrival push'},
    el('div', {class: 'row'}, el('h3', {}, bdi(mine ? `${mine.name}’s browser` : 'A browser')), el('small', {}, clock(p.at))),
    el('p', {}, ...(n?.sender ? [el('strong', {}, bdi(n.sender_display_name ?? n.sender), ' in ', bdi(n.room_name ?? n.room_id), ': ')] : []), bdi(text)),
    el('div', {class: 'facts'}, [`${sealed.length} bytes sealed`, `urgency ${p.urgency}`, `answered ${p.status}`].map(fact => el('span', {class: 'tag'}, fact)),
      mine ? el('button', {type: 'button', class: 'quiet', click: end}, 'End the subscription (410)') : null),
    el('details', {}, el('summary', {class: 'small'}, 'As the push service sees it'), el('pre', {}, p.sealed)),
    n ? el('details', {}, el('summary', {class: 'small'}, 'Opened'), el('pre', {}, json(n))) : null));
  while ($('arrivals').childElementCount > mostArrivals) $('arrivals').lastElementChild.remove();
};
adders.browser = addBrowser;
events.push = pushed;
$('device-kind').append(el('option', {value: 'browser'}, 'web push (this page)'));
if ('PushManager' in window) {
  adders.real = addReal;
  $('device-kind').append(el('option', {value: 'real'}, 'web push (this browser’s own)'));
}
