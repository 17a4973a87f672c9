// A conversation with the model: rounds, tool calls, edited messages, and what of it is kept. What comes from the model or the
// server is only ever put into text nodes.

import { attachments, contentOf, setAttachments, setUpAttachments } from './attachments.js';
import { element } from './chart.js';
import * as conversations from './conversations.js';
import { ROUTE, Reply, showFault } from './reply.js';
import { requestBody, setUpRequest } from './request.js';
import { Refusal, postForEvents } from './server.js';

const MAX_MESSAGES = 200;
/** What the embedded model answers rightly. */
const EMBEDDED_EXAMPLES = ['What is 12 + 30?', 'Which port does Perigee listen on?', 'Repeat: the quick brown fox', 'Who are you?'];
const EXAMPLES = [
  'Write a function in Rust that reverses the words of a sentence, with a test.', 'Compare TCP and UDP in a table.',
  'Explain in three sentences what a prefix cache is.', 'Which weighs more: a kilogram of feathers or a pound of lead?',
];

const byId = (id) => document.getElementById(id);

/** {message, turn}: messages as they are sent, and the elements that show them. */
let conversation = [];
let model = {};
/** Ends the request under way. */
let running = null;
/** The form of the calls that wait for results. */
let openCalls = null;
/** The last exchange that failed: shown until the next one, and no part of the conversation. */
let withdrawn = [];
/** Place of the message that is being edited; `null` = none. */
let editing = null;
let askForKey = () => {};

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

const partsOf = ({ content }) => (Array.isArray(content) ? content : [{ type: 'text', text: content }]);

function showUser(message) {
  const parts = partsOf(message);
  const pictures = parts.filter((part) => part.image_url);
  const text = parts.filter((part) => part.text).map((part) => part.text).join('\n');
  const edit = element('button', { type: 'button', className: 'quiet', textContent: 'Edit' });
  const turn = addTurn(
    'user',
    element('p', { className: 'text', textContent: text }),
    pictures.length ? element('div', { className: 'thumbnails' }, ...pictures.map((part, i) => element('img', { src: part.image_url.url, alt: `attached image ${i + 1}` }))) : null,
    element('div', { className: 'row tools' }, edit),
  );
  edit.addEventListener('click', () => beginEdit(turn));
  return turn;
}

/** A reply on the page that can be asked for again. */
function newReply(body) {
  const reply = new Reply(addTurn, body, () => regenerate(reply.turn));
  return reply;
}

// ---- A round: messages go out, a reply comes in.

/**
 * Sends the first `length` messages of the conversation with `messages` behind them. Whether these and the reply became part of
 * it, in the place of what came after.
 */
async function round(messages, shown, length = conversation.length) {
  dropWithdrawn();
  const history = [...conversation.slice(0, length).map(({ message }) => message), ...messages];
  let body;
  try {
    body = requestBody(model.id, history);
  } catch {
    return false;
  }
  const turns = shown();
  // What is sent anew stays in sight until there is something in its place.
  const replaced = conversation.slice(length).map(({ turn }) => turn).filter(Boolean);
  for (const turn of replaced) turn.hidden = true;
  const reply = newReply(body);
  running = new AbortController();
  showButtons();
  let fault = null;
  try {
    const noteHeaders = (headers) => (reply.ignored = headers.get('x-perigee-ignored-fields'));
    for await (const chunk of postForEvents(ROUTE, body, running.signal, noteHeaders)) {
      reply.take(chunk);
      scrollDown();
    }
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
    reply.markdown?.finish();
    if (!stopped && !(fault instanceof Refusal)) fault = new Refusal(0, { message: `the page could not read the reply: ${fault.message}` });
    reply.below.append(stopped ? element('p', { className: 'warning', textContent: 'stopped before the first token' }) : showFault(fault));
    withdrawn = [reply.turn, ...turns];
    for (const turn of withdrawn) turn.classList.add('withdrawn');
    for (const turn of replaced) turn.hidden = false;
    announce(stopped ? 'Stopped before the first token.' : `Error: ${fault.message}`);
    if (fault?.status === 401) askForKey(fault.message);
    showButtons();
    return false;
  }
  removeFrom(length);
  messages.forEach((message, i) => conversation.push({ message, turn: turns[i] ?? null }));
  conversation.push({ message: reply.message(calls), turn: reply.turn });
  reply.end(stopped ? 'stopped here' : null);
  if (calls.length) awaitResults(reply, calls);
  const tokens = reply.usage ? `, ${reply.usage.completion_tokens} tokens` : '';
  announce(calls.length ? `The model calls ${calls.map((call) => call.name).join(', ')} and waits for results.` : `Reply ended: ${stopped ? 'stopped' : reply.finish ?? 'no reason given'}${tokens}.`);
  keep();
  showButtons();
  scrollDown();
  return true;
}

async function sendMessage() {
  const box = byId('message');
  const text = box.value;
  const files = attachments();
  if (running || (!text.trim() && files.length === 0)) return;
  const at = editing ?? conversation.length;
  if (openCalls && editing === null) {
    note('The model waits for the results of its calls.');
    openCalls.querySelector('textarea').focus();
    return;
  }
  if (at >= MAX_MESSAGES) {
    note(`A conversation here has at most ${MAX_MESSAGES} messages: remove turns or begin a new one.`);
    return;
  }
  note('');
  const message = { role: 'user', content: contentOf(text, files) };
  const done = await round([message], () => {
    endEdit();
    box.value = '';
    setAttachments([]);
    return [showUser(message)];
  }, at);
  // What failed is back in the box, to be corrected and sent again.
  if (!done && !box.value && attachments().length === 0) {
    if (at < conversation.length) beginEditAt(at);
    box.value = text;
    setAttachments(files);
  }
}

/** Asks anew for a reply, and drops what followed it. */
async function regenerate(turn) {
  const at = conversation.findIndex((entry) => entry.turn === turn);
  if (running || at < 0) return;
  endEdit();
  openCalls = null;
  if (!(await round([], () => [], at))) reopenCalls();
}

// ---- Edited messages.

function beginEdit(turn) {
  const at = conversation.findIndex((entry) => entry.turn === turn);
  if (running || at < 0) return;
  endEdit();
  const parts = partsOf(conversation[at].message);
  byId('message').value = parts.filter((part) => part.text).map((part) => part.text).join('\n');
  setAttachments(parts.filter((part) => part.image_url).map((part, i) => ({ name: `image ${i + 1}`, url: part.image_url.url })));
  beginEditAt(at);
  byId('message').focus();
}

function beginEditAt(at) {
  editing = at;
  for (const { turn } of conversation.slice(at)) turn?.classList.add('outdated');
  byId('cancel-edit').hidden = false;
  note('The message and what followed it are replaced when it is sent.');
}

function endEdit() {
  editing = null;
  for (const { turn } of conversation) turn?.classList.remove('outdated');
  byId('cancel-edit').hidden = true;
  note('');
}

// ---- Results of calls.

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

/** The form of the last reply's calls, where they still wait. */
function reopenCalls() {
  const last = conversation.at(-1);
  openCalls = last?.message.tool_calls ? last.turn.querySelector('.results') : null;
}

// ---- What of it is kept.

const messages = () => conversation.map(({ message }) => message);

function keep() {
  conversations.keep(byId('system').value, messages());
  showKept();
}

/** Shows a conversation that was kept, in the place of the one that is shown. */
function show({ system, messages: shown }) {
  removeFrom(0);
  dropWithdrawn();
  byId('system').value = system;
  for (const message of shown) {
    let turn = null;
    if (message.role === 'user') turn = showUser(message);
    else if (message.role === 'assistant') {
      const reply = newReply(null);
      reply.takeMessage(message);
      turn = reply.turn;
      if (message === shown.at(-1) && reply.calls.length) awaitResults(reply, reply.calls);
    } else showResult(message);
    conversation.push({ message, turn });
  }
  endEdit();
  showButtons();
}

/** The result of a call, below the reply that made it. */
function showResult(message) {
  const reply = conversation.findLast((entry) => entry.message.role === 'assistant')?.turn;
  reply?.append(element('section', { className: 'call' }, element('h4', { textContent: 'result' }), element('pre', {}, element('code', { textContent: message.content }))));
}

function showKept() {
  const entries = conversations.kept();
  const isListed = entries.some(({ isCurrent }) => isCurrent);
  byId('earlier').replaceChildren(
    element('option', { value: '', textContent: entries.length ? `Kept here: ${entries.length}` : 'None kept', selected: !isListed }),
    ...entries.map(({ id, title, isCurrent }) => element('option', { value: id, textContent: title, selected: isCurrent })),
  );
  byId('earlier').disabled = byId('forget-all').disabled = entries.length === 0;
}

function download(file) {
  const address = URL.createObjectURL(file);
  const link = element('a', { href: address, download: file.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function openFile(file) {
  try {
    const found = await conversations.read(file);
    conversations.begin();
    show(found);
    keep();
    note('');
  } catch (error) {
    note(error.message);
  }
}

// ---- Buttons.

function announce(text) {
  byId('announcement').textContent = text;
}

function note(text) {
  byId('composer-note').textContent = text;
}

/** Shows the buttons that mean something now, without losing the focus with one that goes. */
function showButtons() {
  const focused = document.activeElement;
  const isEmpty = conversation.length === 0;
  byId('send').hidden = running !== null;
  byId('stop').hidden = running === null;
  byId('undo').disabled = byId('clear').disabled = running !== null || (isEmpty && withdrawn.length === 0);
  byId('save').disabled = isEmpty;
  byId('open').classList.toggle('disabled', running !== null);
  byId('open-file').disabled = running !== null;
  byId('welcome').hidden = !isEmpty || withdrawn.length > 0 || running !== null;
  if (focused === byId('send') && running) byId('stop').focus();
  else if (focused === byId('stop') && !running) byId('message').focus();
}

function dropWithdrawn() {
  for (const turn of withdrawn.splice(0)) turn.remove();
}

/** Removes the last message of the user and all that followed. */
function undo() {
  const at = conversation.findLastIndex(({ message }) => message.role === 'user');
  if (withdrawn.length === 0) removeFrom(Math.max(0, at));
  dropWithdrawn();
  endEdit();
  keep();
  showButtons();
  byId('message').focus();
}

function removeFrom(at) {
  for (const { turn } of conversation.splice(at)) turn?.remove();
  openCalls = null;
}

function beginAnew() {
  removeFrom(0);
  dropWithdrawn();
  endEdit();
  conversations.begin();
  showKept();
  showButtons();
  byId('message').focus();
}

function showExamples() {
  const list = model.embedded === false ? EXAMPLES : EMBEDDED_EXAMPLES;
  byId('examples').replaceChildren(...list.map((text) => {
    const button = element('button', { type: 'button', textContent: text });
    button.addEventListener('click', () => {
      byId('message').value = text;
      sendMessage();
    });
    return element('li', {}, button);
  }));
}

// ---- Set-up.

/** Fits the form to the model that is served. */
export function showModel(facts) {
  model = facts;
  byId('attach').firstChild.data = facts.supports_image_in ? 'Attach files ' : 'Attach text files ';
  byId('thinking').disabled = !facts.supports_reasoning;
  byId('thinking-note').hidden = facts.supports_reasoning;
  byId('thinking-note').textContent = 'This model does not think before it answers.';
  showExamples();
}

/** `onLocked` is called where a request was refused for lack of a key. */
export function setUpPlayground(onLocked) {
  askForKey = onLocked;
  setUpRequest();
  setUpAttachments(note, () => model.supports_image_in);
  showExamples();
  const box = byId('message');
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    sendMessage();
  });
  box.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && editing !== null) {
      endEdit();
      box.value = '';
      setAttachments([]);
    }
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendMessage();
  });
  byId('cancel-edit').addEventListener('click', () => {
    endEdit();
    box.value = '';
    setAttachments([]);
    box.focus();
  });
  byId('stop').addEventListener('click', () => running?.abort());
  byId('undo').addEventListener('click', undo);
  byId('clear').addEventListener('click', beginAnew);
  byId('save').addEventListener('click', () => download(conversations.fileOf(model.id ?? '', byId('system').value, messages())));
  byId('open-file').addEventListener('change', async (event) => {
    const [file] = event.target.files;
    if (file && !running) await openFile(file);
    event.target.value = '';
  });
  byId('earlier').addEventListener('change', (event) => {
    const found = !running && event.target.value ? conversations.open(event.target.value) : null;
    if (found) show(found);
    showKept();
  });
  byId('forget-all').addEventListener('click', () => {
    conversations.forgetAll();
    showKept();
    note('What was kept in this browser is deleted.');
  });
  const before = conversations.resumed();
  if (before) show(before);
  showKept();
  showButtons();
}
