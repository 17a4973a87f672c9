// The server as the page reaches it: its address, the key, requests, event streams, curl lines.

// This module lies at BASE/page/server.js, whatever prefix a proxy puts in front and whether or not the page's own
// address ends with a slash.
export const BASE = new URL('..', import.meta.url).href;

const KEY_NAME = 'perigee-key';
/** Time after which a server that accepts a connection and says nothing counts as unreachable, ms. */
const ANSWER_TIMEOUT_MS = 8000;
/** Longest argument of a command under Linux is 128 KiB; longer bodies are sent through a here-document. */
const MAX_ARGUMENT_CHARS = 100_000;

export const key = {
  get: () => sessionStorage.getItem(KEY_NAME) ?? '',
  set: (value) => sessionStorage.setItem(KEY_NAME, value),
  forget: () => sessionStorage.removeItem(KEY_NAME),
};

/** An answer that is an error, as the server worded it. `status` is 0 where no answer came. */
export class Refusal extends Error {
  constructor(status, fault = {}, headers = new Headers()) {
    super(fault.message || (status ? `HTTP status ${status}` : 'no answer'));
    this.status = status;
    this.code = fault.code ?? null;
    this.param = fault.param ?? null;
    this.kind = fault.type ?? null;
    this.retryAfter = headers.get('retry-after');
    this.requestId = headers.get('x-request-id');
  }
}

function headersWithKey(more = {}) {
  const value = key.get();
  return value ? { authorization: `Bearer ${value}`, ...more } : more;
}

/** GET; the response whatever its status, or a `Refusal` of status 0. The header keeps it out of the clients' figures. */
export function get(path) {
  return ask(path, { headers: headersWithKey({ 'x-perigee-page': '1' }) });
}

async function ask(path, request) {
  try {
    const signal = AbortSignal.timeout(ANSWER_TIMEOUT_MS);
    return await fetch(BASE + path, { ...request, signal, cache: 'no-store', redirect: 'error' });
  } catch (error) {
    const slow = error.name === 'TimeoutError';
    throw new Refusal(0, { message: slow ? `no answer within ${ANSWER_TIMEOUT_MS / 1000} s` : 'no connection' });
  }
}

/** GET of JSON; throws a `Refusal` for any status but 200. */
export async function getJson(path) {
  const response = await get(path);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** POST without a body; throws a `Refusal` for any status but 200. */
export async function postJson(path) {
  const response = await ask(path, { method: 'POST', headers: headersWithKey() });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function refusal(response) {
  const text = await response.text().catch(() => '');
  let fault;
  try {
    fault = JSON.parse(text).error;
  } catch {
    // A proxy in front answers in its own words.
    fault = { message: text.replace(/<[^>]*>/g, ' ').trim().slice(0, 300) };
  }
  return new Refusal(response.status, fault ?? {}, response.headers);
}

/** POSTs a body and yields the `data:` objects of the answer's event stream; `onHeaders` sees the headers first. */
export async function* postForEvents(path, body, signal, onHeaders) {
  let response;
  try {
    const headers = headersWithKey({ 'content-type': 'application/json' });
    response = await fetch(BASE + path, { method: 'POST', headers, body: JSON.stringify(body), signal, redirect: 'error' });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refusal(0, { message: 'no connection to the server' });
  }
  if (!response.ok) throw await refusal(response);
  onHeaders(response.headers);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let ended = false;
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Refusal(0, { message: 'the connection broke off in the middle of the reply' });
    }
    if (part.done) break;
    const lines = (rest + part.value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice(5).trim();
      if (data === '[DONE]') {
        ended = true;
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(response.status, event.error, response.headers);
      yield event;
    }
  }
  if (!ended) throw new Refusal(0, { message: 'the reply ended without its last event' });
}

/** Copies a text, and says on the button what came of it; `place` holds the text for browsers without a clipboard. */
export async function copy(text, button, place) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    // Browsers give pages of plain HTTP no clipboard, except on this machine.
    getSelection().selectAllChildren(place);
    button.textContent = document.execCommand('copy') ? 'Copied' : 'Select and copy by hand';
  }
  setTimeout(() => (button.textContent = label), 2000);
}

/** A word that a POSIX shell takes as it is. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The command that sends the same request. The key stays a variable: commands are pasted into tickets. */
export function curl(path, body) {
  const json = JSON.stringify(body);
  const lines = [`curl -N ${quoted(BASE + path)}`, `-H 'content-type: application/json'`];
  if (key.get()) lines.push('-H "Authorization: Bearer $PERIGEE_API_KEY"');
  if (json.length <= MAX_ARGUMENT_CHARS) return [...lines, `-d ${quoted(json)}`].join(' \\\n  ');
  // The body is one line that begins with a brace, so that it cannot be the word that ends it.
  return `${[...lines, '--data-binary @-'].join(' \\\n  ')} <<'END'\n${json}\nEND`;
}
