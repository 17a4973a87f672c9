// A conversation with the model: request fields, streamed replies, tool rounds, images. What comes from the model or the
// server is only ever put into text nodes.

import { amount, element, seconds } from './chart.js';
import { Refusal, curl, postForEvents } from './server.js';

const ROUTE = 'v1/chat/completions';
const MAX_MESSAGES = 200;
const MAX_IMAGES = 16;
const MAX_IMAGE_BYTES = 20_000_000;
/** Shortest time between the first and the last piece of a reply that says how fast it came. */
const MIN_RATE_MS = 50;
/** Longest curl line that is shown whole; copying always gives all of it. */
const MAX_SHOWN_CHARS = 20_000;

const EXAMPLE_TOOLS = [
  {
    type: 'function',
    function: {
      name: 'find_restaurant',
      description: 'Find a restaurant.',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string' }, cuisine: { type: 'string', enum: ['Italian', 'Greek', 'Thai'] } },
        required: ['city', 'cuisine'],
      },
    },
  },
];
const EXAMPLE_SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
};
const EXAMPLE_MORE = { seed: 1, top_p: 0.95 };

const byId = (id) => document.getElementById(id);
const pretty = (value) => JSON.stringify(value, null, 2);

/** Messages as they are sent, and the elements that show them. */
let conversation = [];
/** Images of the next message: {name, url}. */
let images = [];
let model = {};
/** Ends the request under way. */
let running = null;
/** The form of the calls that wait for results. */
let openCalls = null;
/** The last exchange that failed: shown until the next one, and no part of the conversation. */
let withdrawn = [];
let askForKey = () => {};

// ---- The request.

/** The JSON of an editor, if its box is ticked; a mistake is shown below the editor and thrown. */
function edited(name, check) {
  const box = byId(`use-${name}`);
  const editor = byId(name);
  const error = byId(`${name}-error`);
  error.textContent = '';
  editor.removeAttribute('aria-invalid');
  if (!box.checked) return undefined;
  try {
    const value = JSON.parse(editor.value);
    if (!check(value)) throw new Error(name === 'tools' ? 'a JSON array is expected' : 'a JSON object is expected');
    return value;
  } catch (problem) {
    error.textContent = problem.message;
    editor.setAttribute('aria-invalid', 'true');
    editor.focus();
    throw problem;
  }
}

/** A number as it was typed; what is no number is sent as text, and the server says what is wrong with it. */
function typed(id) {
  const text = byId(id).value.trim();
  if (text === '') return undefined;
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

function requestBody(messages) {
  const tools = edited('tools', Array.isArray);
  const schema = edited('schema', isObject);
  const more = edited('more', isObject);
  const system = byId('system').value;
  const thinking = byId('thinking').value;
  return {
    model: model.id,
    messages: [...(system ? [{ role: 'system', content: system }] : []), ...messages],
    temperature: typed('temperature'),
    max_tokens: typed('max-tokens'),
    chat_template_kwargs: thinking ? { thinking: thinking === 'on' } : undefined,
    tools,
    tool_choice: (tools && byId('tool-choice').value) || undefined,
    response_format: schema && { type: 'json_schema', json_schema: { name: 'reply', schema } },
    ...more,
    stream: true,
    stream_options: { include_usage: true },
  };
}

// ---- Turns on the page.

function addTurn(role, ...children) {
  const turn = element('article', { className: `turn ${role}` }, element('h3', { textContent: role }), ...children);
  byId('turns').append(turn);
  scrollDown(true);
  return turn;
}

let scrollPending = false;

/** Follows the reply, unless the reader has scrolled up. */
function scrollDown(always = false) {
  const turns = byId('turns');
  if (scrollPending) return;
  // On a narrow screen the page scrolls and the turns do not.
  const scroller = turns.scrollHeight > turns.clientHeight ? turns : document.scrollingElement;
  const near = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  if (!near && !always) return;
  scrollPending = true;
  requestAnimationFrame(() => {
    scrollPending = false;
    scroller.scrollTop = scroller.scrollHeight;
  });
}

function showUser(message) {
  const parts = Array.isArray(message.content) ? message.content : [{ type: 'text', text: message.content }];
  const pictures = parts.filter((part) => part.image_url);
  const text = parts.find((part) => part.text)?.text ?? '';
  return addTurn(
    'user',
    element('p', { className: 'text', textContent: text }),
    pictures.length ? element('div', { className: 'thumbnails' }, ...pictures.map((part, i) => element('img', { src: part.image_url.url, alt: `attached image ${i + 1}` }))) : null,
  );
}

function showFault(error) {
  const facts = [
    error.status ? `HTTP ${error.status}` : null, error.code && `code ${error.code}`, error.param && `field ${error.param}`,
    error.kind, error.retryAfter && `retry after ${error.retryAfter} s`, error.requestId && `request ${error.requestId}`,
  ];
  return element(
    'div', { className: 'fault' },
    element('p', { className: 'text', textContent: error.message }),
    element('ul', { className: 'meta' }, ...facts.filter(Boolean).map((fact) => element('li', { textContent: fact }))),
  );
}

function showCurl(body) {
  const code = element('code');
  const copy = element('button', { type: 'button', className: 'quiet', textContent: 'Copy' });
  const note = element('p', { className: 'hint' });
  const details = element('details', { className: 'curl' }, element('summary', { textContent: 'curl' }), element('pre', {}, code), copy, note);
  // Made when it is asked for: a body with images has megabytes.
  details.addEventListener('toggle', () => {
    if (!details.open || code.textContent) return;
    const line = curl(ROUTE, body);
    const cut = line.length > MAX_SHOWN_CHARS;
    code.textContent = cut ? `${line.slice(0, MAX_SHOWN_CHARS / 2)}…${line.slice(-MAX_SHOWN_CHARS / 2)}` : line;
    note.textContent = cut ? `Shortened here; Copy gives all ${line.length.toLocaleString('en')} characters.` : '';
  });
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(curl(ROUTE, body));
      copy.textContent = 'Copied';
    } catch {
      // Browsers give pages of plain HTTP no clipboard, except on this machine.
      getSelection().selectAllChildren(code);
      copy.textContent = document.execCommand('copy') ? 'Copied' : 'Select and copy by hand';
    }
    setTimeout(() => (copy.textContent = 'Copy'), 2000);
  });
  return details;
}

/** A reply that grows. */
class Reply {
  text = '';
  reasoning = '';
  calls = [];
  finish = null;
  usage = null;
  guard = null;
  ignored = null;
  began = performance.now();
  first = null;
  last = null;

  constructor(body) {
    this.isJson = body.response_format !== undefined;
    this.thought = element('p', { className: 'text' }, '');
    this.thoughts = element('details', { className: 'reasoning', hidden: true, open: true }, element('summary', { textContent: 'Reasoning' }), this.thought);
    this.content = element('p', { className: 'text' }, '');
    this.below = element('div');
    this.wait = element('p', { className: 'hint', textContent: 'waiting for the first token' });
    this.turn = addTurn('assistant', this.thoughts, this.content, this.wait, this.below, showCurl(body));
    this.turn.ariaBusy = 'true';
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { delta = {} } = choice;
    const thought = delta.reasoning_content ?? delta.reasoning ?? '';
    if (thought || delta.content || delta.tool_calls) {
      this.last = performance.now();
      this.first ??= this.last;
      this.wait.hidden = true;
    }
    if (thought) {
      this.thoughts.hidden = false;
      this.reasoning += thought;
      grow(this.thought, thought);
    }
    if (delta.content) {
      this.text += delta.content;
      grow(this.content, delta.content);
    }
    for (const part of delta.tool_calls ?? []) this.takeCall(part);
    this.finish = choice.finish_reason ?? this.finish;
    this.stopReason = choice.stop_reason ?? this.stopReason;
    this.guard = choice.guard ?? this.guard;
    scrollDown();
  }

  takeCall({ index, id, function: part = {} }) {
    if (!this.calls[index]) {
      const shown = element('code', {}, '');
      const card = element('section', { className: 'call' }, element('h4', {}, 'calls ', element('code', { textContent: part.name })), element('pre', {}, shown));
      this.calls[index] = { id, name: part.name, arguments: '', shown, card };
      this.below.append(card);
    }
    const call = this.calls[index];
    call.arguments += part.arguments ?? '';
    grow(call.shown, part.arguments ?? '');
  }

  /** The message for the history. */
  message(calls = this.calls) {
    const message = { role: 'assistant', content: this.text || null };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (calls.length) {
      message.tool_calls = calls.map(({ id, name, arguments: args }) => ({ id, type: 'function', function: { name, arguments: args } }));
    }
    return message;
  }

  /** Shows what is known at the end. `note` says why the reply ended early. */
  end(note) {
    this.turn.ariaBusy = 'false';
    this.wait.hidden = true;
    for (const call of this.calls) {
      const value = parsed(call.arguments);
      call.shown.textContent = value === undefined ? call.arguments : pretty(value);
      if (value === undefined) call.card.append(element('p', { className: 'error-text', textContent: 'the arguments are not JSON' }));
    }
    const warnings = [];
    if (this.isJson && this.text) {
      const value = parsed(this.text);
      if (value === undefined) warnings.push('the reply is not complete JSON');
      else this.content.replaceWith(element('pre', {}, element('code', { textContent: pretty(value) })));
    }
    for (const event of this.guard?.events ?? []) {
      warnings.push(`guard: ${event.kind.replaceAll('_', ' ')}, ${event.action.replaceAll('_', ' ')}, ${event.copies} copies of ${event.period} tokens`);
    }
    if (this.ignored) warnings.push(`fields that the server does not know: ${this.ignored}`);
    if (note) warnings.push(note);
    this.below.append(
      ...warnings.map((text) => element('p', { className: 'warning', textContent: text })),
      element('ul', { className: 'meta' }, ...this.figures().map((text) => element('li', { textContent: text }))),
    );
    scrollDown();
  }

  figures() {
    const { usage, first, last } = this;
    const figures = [];
    if (this.finish) figures.push(`finish ${this.finish}${this.stopReason ? ` (${this.stopReason})` : ''}`);
    if (first !== null) figures.push(`first token ${seconds((first - this.began) / 1000)}`);
    // A short reply may come in one piece: its tokens have no rate.
    if (usage && last - first >= MIN_RATE_MS && usage.completion_tokens > 1) {
      figures.push(`${amount(((usage.completion_tokens - 1) / (last - first)) * 1000)} tokens/s`);
    }
    if (first !== null) figures.push(`${seconds((last - this.began) / 1000)} in all`);
    if (usage) {
      const { cached_tokens: cached, image_tokens: seen } = usage.prompt_tokens_details ?? {};
      const { reasoning_tokens: thought, accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } = usage.completion_tokens_details ?? {};
      const parts = (...texts) => (texts.some(Boolean) ? ` (${texts.filter(Boolean).join(', ')})` : '');
      figures.push(`prompt ${usage.prompt_tokens}${parts(cached && `${cached} cached`, seen && `${seen} of images`)}`);
      figures.push(`reply ${usage.completion_tokens}${parts(thought && `${thought} reasoning`)}`);
      if (accepted + rejected > 0) figures.push(`drafts ${accepted} of ${accepted + rejected} accepted`);
    }
    return figures;
  }
}

/** Appends to an element's text without writing what is there again. */
function grow(place, text) {
  place.firstChild.appendData(text);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// ---- A round: messages go out, a reply comes in.

/** Sends the conversation with `messages` behind it. Whether they and the reply became part of it. */
async function round(messages, shown) {
  for (const turn of withdrawn) turn.remove();
  withdrawn = [];
  const history = [...conversation.map(({ message }) => message), ...messages];
  let body;
  try {
    body = requestBody(history);
  } catch {
    return false;
  }
  const turns = shown();
  const reply = new Reply(body);
  running = new AbortController();
  showButtons();
  let fault = null;
  try {
    const noteHeaders = (headers) => (reply.ignored = headers.get('x-perigee-ignored-fields'));
    for await (const chunk of postForEvents(ROUTE, body, running.signal, noteHeaders)) reply.take(chunk);
  } catch (error) {
    fault = error;
  }
  const stopped = running.signal.aborted;
  running = null;
  // A call that was cut off can be neither answered nor sent back.
  const calls = stopped ? [] : reply.calls;
  const worth = reply.text || reply.reasoning || calls.length || (!stopped && !fault);
  if ((fault && !stopped) || !worth) {
    reply.turn.ariaBusy = 'false';
    reply.wait.hidden = true;
    if (!stopped && !(fault instanceof Refusal)) fault = new Refusal(0, { message: `the page could not read the reply: ${fault.message}` });
    reply.below.append(stopped ? element('p', { className: 'warning', textContent: 'stopped before the first token' }) : showFault(fault));
    withdrawn = [reply.turn, ...turns];
    for (const turn of withdrawn) turn.classList.add('withdrawn');
    announce(stopped ? 'Stopped before the first token.' : `Error: ${fault.message}`);
    if (fault?.status === 401) askForKey(fault.message);
    showButtons();
    return false;
  }
  messages.forEach((message, i) => conversation.push({ message, turn: turns[i] ?? null }));
  conversation.push({ message: reply.message(calls), turn: reply.turn });
  reply.end(stopped ? 'stopped here' : null);
  if (calls.length) awaitResults(reply, calls);
  const tokens = reply.usage ? `, ${reply.usage.completion_tokens} tokens` : '';
  announce(calls.length ? `The model calls ${calls.map((call) => call.name).join(', ')} and waits for results.` : `Reply ended: ${stopped ? 'stopped' : reply.finish ?? 'no reason given'}${tokens}.`);
  showButtons();
  return true;
}

async function sendMessage() {
  const box = byId('message');
  const text = box.value;
  if (running || (!text.trim() && images.length === 0)) return;
  if (openCalls) {
    note('The model waits for the results of its calls.');
    openCalls.querySelector('textarea').focus();
    return;
  }
  if (conversation.length >= MAX_MESSAGES) {
    note(`A conversation here has at most ${MAX_MESSAGES} messages: remove turns or begin a new one.`);
    return;
  }
  note('');
  const attached = images;
  const content = attached.length
    ? [...attached.map(({ url }) => ({ type: 'image_url', image_url: { url } })), ...(text ? [{ type: 'text', text }] : [])]
    : text;
  const message = { role: 'user', content };
  const done = await round([message], () => {
    box.value = '';
    setImages([]);
    return [showUser(message)];
  });
  // What failed is back in the box, to be corrected and sent again.
  if (!done && !box.value && images.length === 0) {
    box.value = text;
    setImages(attached);
  }
}

/** Gives each call a box for its result, and one button for all. */
function awaitResults(reply, calls) {
  const boxes = calls.map((call) => {
    const box = element('textarea', { rows: 2, spellcheck: false, placeholder: '{"status": "done"}' });
    call.card.append(element('label', {}, `Result of ${call.name}`, box));
    return box;
  });
  const send = element('button', { className: 'main', textContent: calls.length > 1 ? 'Send results' : 'Send result' });
  const form = element('form', { className: 'results' }, ...calls.map((call) => call.card), send);
  reply.below.prepend(form);
  openCalls = form;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (running) return;
    const messages = calls.map((call, i) => ({ role: 'tool', tool_call_id: call.id, content: boxes[i].value }));
    const enable = (enabled) => [...boxes, send].forEach((part) => (part.disabled = !enabled));
    enable(false);
    openCalls = null;
    if (await round(messages, () => [])) {
      send.remove();
    } else {
      openCalls = form;
      enable(true);
    }
  });
  scrollDown();
}

function announce(text) {
  byId('announcement').textContent = text;
}

function note(text) {
  byId('composer-note').textContent = text;
}

/** Shows the buttons that mean something now, without losing the focus with one that goes. */
function showButtons() {
  const focused = document.activeElement;
  byId('send').hidden = running !== null;
  byId('stop').hidden = running === null;
  byId('undo').disabled = byId('clear').disabled = running !== null || (conversation.length === 0 && withdrawn.length === 0);
  if (focused === byId('send') && running) byId('stop').focus();
  else if (focused === byId('stop') && !running) byId('message').focus();
}

/** Removes the last message of the user and all that followed. */
function undo() {
  const at = conversation.findLastIndex(({ message }) => message.role === 'user');
  if (withdrawn.length === 0) removeFrom(at);
  for (const turn of withdrawn.splice(0)) turn.remove();
  showButtons();
  byId('message').focus();
}

function removeFrom(at) {
  for (const { turn } of conversation.splice(Math.max(0, at))) turn?.remove();
  openCalls = null;
  note('');
}

// ---- Images.

function setImages(next) {
  images = next;
  byId('thumbnails').replaceChildren(
    ...images.map((image) => {
      const remove = element('button', { type: 'button', textContent: '×', ariaLabel: `Remove ${image.name}` });
      remove.addEventListener('click', () => {
        setImages(images.filter((other) => other !== image));
        byId('message').focus();
      });
      return element('li', {}, element('img', { src: image.url, alt: image.name }), remove);
    }),
  );
}

async function attach(files) {
  const pictures = [...files].filter((file) => file.type.startsWith('image/'));
  if (pictures.length === 0) return;
  if (!model.supports_image_in) {
    note('This model sees no images; nothing was attached.');
    return;
  }
  note('');
  for (const file of pictures) {
    if (images.length >= MAX_IMAGES) return note(`At most ${MAX_IMAGES} images per message.`);
    if (file.size > MAX_IMAGE_BYTES) note(`${file.name} has more than ${MAX_IMAGE_BYTES / 1e6} MB.`);
    else setImages([...images, { name: file.name || 'pasted image', url: await dataUrl(file) }]);
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// ---- Set-up.

/** Fits the form to the model that is served. */
export function showModel(facts) {
  model = facts;
  byId('attach').hidden = !facts.supports_image_in;
  if (!facts.supports_image_in) note('This model sees no images.');
  byId('thinking').disabled = !facts.supports_reasoning;
  byId('thinking-note').hidden = facts.supports_reasoning;
  byId('thinking-note').textContent = 'This model does not think before it answers.';
}

/** `onLocked` is called where a request was refused for lack of a key. */
export function setUpPlayground(onLocked) {
  askForKey = onLocked;
  byId('tools').value = pretty(EXAMPLE_TOOLS);
  byId('schema').value = pretty(EXAMPLE_SCHEMA);
  byId('more').value = pretty(EXAMPLE_MORE);
  for (const name of ['tools', 'schema', 'more']) {
    const show = () => (byId(`${name}-editor`).hidden = !byId(`use-${name}`).checked);
    byId(`use-${name}`).addEventListener('change', show);
    show();
    byId(name).addEventListener('input', () => {
      byId(`${name}-error`).textContent = '';
      byId(name).removeAttribute('aria-invalid');
    });
  }
  byId('options').addEventListener('submit', (event) => event.preventDefault());
  // On a narrow screen the conversation comes first.
  byId('options-fold').open = !matchMedia('(max-width: 56rem)').matches;
  const box = byId('message');
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    sendMessage();
  });
  box.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendMessage();
  });
  box.addEventListener('paste', (event) => {
    if (event.clipboardData.files.length) event.preventDefault();
    attach(event.clipboardData.files);
  });
  const hasFiles = (event) => event.dataTransfer.types.includes('Files');
  byId('composer').addEventListener('dragover', (event) => hasFiles(event) && event.preventDefault());
  byId('composer').addEventListener('drop', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  });
  byId('files').addEventListener('change', async (event) => {
    await attach(event.target.files);
    event.target.value = '';
    box.focus();
  });
  byId('stop').addEventListener('click', () => running?.abort());
  byId('undo').addEventListener('click', undo);
  byId('clear').addEventListener('click', () => {
    removeFrom(0);
    undo();
  });
}
