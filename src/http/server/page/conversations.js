// Conversations that outlive the page: the last ones in the browser's storage, and files.
//
// What is kept is the system prompt and the messages, never the key. The storage is bounded: large images are left out, and the
// oldest conversations make room for new ones.

const STORE = 'perigee-conversations';
const CURRENT = 'perigee-conversation';
const MAX_KEPT = 20;
/** Browsers give a site about five million characters. */
const MAX_CHARS = 4_000_000;
/** Characters of an image's data URL that are kept. */
const MAX_IMAGE_CHARS = 400_000;
const MAX_FILE_BYTES = 100_000_000;
const MAX_MESSAGES = 2000;
const FORMAT = 'perigee-conversation-1';
/** In the place of an image that was not kept. */
const LEFT_OUT = '[an image that was too large to be kept]';

function stored() {
  try {
    const list = JSON.parse(localStorage.getItem(STORE) ?? '[]');
    return Array.isArray(list) ? list.filter((entry) => entry?.id && isConversation(entry)) : [];
  } catch {
    return [];
  }
}

function store(list) {
  let kept = list.slice(0, MAX_KEPT);
  while (kept.length > 0) {
    const text = JSON.stringify(kept);
    try {
      if (text.length <= MAX_CHARS) return localStorage.setItem(STORE, text);
    } catch {
      // The browser has less room.
    }
    kept = kept.slice(0, -1);
  }
  localStorage.removeItem(STORE);
}

/** Without images that would take the place of ten conversations. */
function slim(message) {
  if (!Array.isArray(message.content)) return message;
  const content = message.content.map((part) =>
    part.type === 'image_url' && part.image_url.url.length > MAX_IMAGE_CHARS ? { type: 'text', text: LEFT_OUT } : part);
  return { ...message, content };
}

const text = (value) => typeof value === 'string';

function isMessage(message) {
  const { role, content, reasoning_content: thought, tool_calls: calls, tool_call_id: id } = message ?? {};
  const isPart = (part) => (part?.type === 'text' && text(part.text))
    || (part?.type === 'image_url' && text(part.image_url?.url) && part.image_url.url.startsWith('data:image/'));
  const isCall = (call) => text(call?.id) && text(call.function?.name) && text(call.function?.arguments);
  if (thought !== undefined && !text(thought)) return false;
  if (role === 'user') return text(content) || (Array.isArray(content) && content.every(isPart));
  if (role === 'tool') return text(content) && text(id);
  return role === 'assistant' && (text(content) || content === null) && (calls === undefined || (Array.isArray(calls) && calls.every(isCall)));
}

function isConversation({ system, messages }) {
  return text(system) && Array.isArray(messages) && messages.length <= MAX_MESSAGES && messages.every(isMessage);
}

/** What a list shows of a conversation. */
function titleOf({ messages, saved }) {
  const first = messages.find(({ role }) => role === 'user')?.content ?? '';
  const words = Array.isArray(first) ? first.find((part) => part.text)?.text ?? 'an image' : first;
  return `${words.trim().replace(/\s+/g, ' ').slice(0, 60) || 'a conversation'} (${new Date(saved).toLocaleString()})`;
}

/** The id of this tab's conversation. */
let current = sessionStorage.getItem(CURRENT);

function setCurrent(id) {
  current = id;
  if (id) sessionStorage.setItem(CURRENT, id);
  else sessionStorage.removeItem(CURRENT);
}

/** Keeps the conversation of this tab as the newest one. One without messages is dropped. */
export function keep(system, messages) {
  const others = stored().filter(({ id }) => id !== current);
  if (messages.length === 0) {
    setCurrent(null);
    return store(others);
  }
  if (!current) setCurrent(crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`);
  store([{ id: current, saved: Date.now(), system, messages: messages.map(slim) }, ...others]);
}

/** The conversation that this tab had before it was loaded anew. */
export const resumed = () => stored().find(({ id }) => id === current) ?? null;

/** {id, title} of those that are kept, newest first. */
export const kept = () => stored().map((entry) => ({ id: entry.id, title: titleOf(entry), isCurrent: entry.id === current }));

/** Makes one the conversation of this tab. */
export function open(id) {
  const found = stored().find((entry) => entry.id === id) ?? null;
  if (found) setCurrent(id);
  return found;
}

/** The next message begins a conversation. */
export const begin = () => setCurrent(null);

export function forgetAll() {
  localStorage.removeItem(STORE);
  setCurrent(null);
}

/** The conversation as a file. */
export function fileOf(model, system, messages) {
  const body = { format: FORMAT, model, saved: new Date().toISOString(), system, messages };
  return new File([JSON.stringify(body, null, 2)], `conversation-${body.saved.slice(0, 19).replaceAll(':', '-')}.json`, { type: 'application/json' });
}

/** The conversation in a file; throws an Error whose words are for people. */
export async function read(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} has more than ${MAX_FILE_BYTES / 1e6} MB.`);
  let body;
  try {
    body = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON.`);
  }
  if (body?.format !== FORMAT || !isConversation({ system: '', ...body })) throw new Error(`${file.name} is no conversation of this page.`);
  return { system: body.system ?? '', messages: body.messages };
}
