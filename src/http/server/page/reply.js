// A reply on the page: it grows while it is streamed, or is shown whole. What comes from the model or the server is only ever
// put into text nodes.

import { amount, element, seconds } from './chart.js';
import { Markdown } from './markdown.js';
import { copy, curl } from './server.js';

export const ROUTE = 'v1/chat/completions';
/** Shortest time between the first and the last piece of a reply that says how fast it came. */
const MIN_RATE_MS = 50;
/** Longest curl line that is shown whole; copying always gives all of it. */
const MAX_SHOWN_CHARS = 20_000;

const pretty = (value) => JSON.stringify(value, null, 2);
const count = (number, noun) => `${amount(number)} ${noun}${number === 1 ? '' : 's'}`;

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

function button(label, act) {
  const made = element('button', { type: 'button', className: 'quiet', textContent: label });
  made.addEventListener('click', () => act(made));
  return made;
}

function showCurl(body) {
  const code = element('code');
  const note = element('p', { className: 'hint' });
  const copying = button('Copy', (pressed) => copy(curl(ROUTE, body), pressed, code));
  const pre = element('pre', { tabIndex: 0, role: 'group', ariaLabel: 'curl command' }, code);
  const details = element('details', { className: 'curl' }, element('summary', { textContent: 'curl' }), pre, copying, note);
  // Made when it is asked for: a body with images has megabytes.
  details.addEventListener('toggle', () => {
    if (!details.open || code.textContent) return;
    const line = curl(ROUTE, body);
    const cut = line.length > MAX_SHOWN_CHARS;
    code.textContent = cut ? `${line.slice(0, MAX_SHOWN_CHARS / 2)}…${line.slice(-MAX_SHOWN_CHARS / 2)}` : line;
    note.textContent = cut ? `Shortened here; Copy gives all ${line.length.toLocaleString('en')} characters.` : '';
  });
  return details;
}

/** What an error says, as the server worded it. */
export function showFault(error) {
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

export class Reply {
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

  /** `addTurn` puts the turn on the page; `body` is the request, `null` for a reply of an earlier page. */
  constructor(addTurn, body, regenerate) {
    this.isJson = body?.response_format !== undefined;
    /** Names of the tools that the model was told of. */
    this.declared = body ? (body.tools ?? []).map((tool) => tool?.function?.name) : null;
    this.thought = element('p', { className: 'text' }, '');
    this.thoughts = element('details', { className: 'reasoning', hidden: true, open: true }, element('summary', { textContent: 'Reasoning' }), this.thought);
    this.content = element('div', { className: 'text content' });
    this.markdown = this.isJson ? null : new Markdown(this.content);
    if (this.isJson) this.content.append('');
    this.below = element('div');
    this.wait = element('p', { className: 'hint', textContent: 'waiting for the first token' });
    this.tools = element('div', { className: 'row tools', hidden: true },
      button('Copy', (pressed) => copy(this.text, pressed, this.content)), button('Regenerate', regenerate));
    this.turn = addTurn('assistant', this.thoughts, this.content, this.wait, this.below, this.tools, body ? showCurl(body) : null);
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
    if (thought) this.takeThought(thought);
    if (delta.content) this.takeText(delta.content);
    for (const part of delta.tool_calls ?? []) this.takeCall(part);
    this.finish = choice.finish_reason ?? this.finish;
    this.stopReason = choice.stop_reason ?? this.stopReason;
    this.guard = choice.guard ?? this.guard;
  }

  takeThought(text) {
    this.thoughts.hidden = false;
    this.reasoning += text;
    grow(this.thought, text);
  }

  takeText(text) {
    this.text += text;
    if (this.markdown) this.markdown.append(text);
    else grow(this.content, text);
  }

  takeCall({ index, id, function: part = {} }) {
    if (!this.calls[index]) {
      const shown = element('code', {}, '');
      const card = element('section', { className: 'call' }, element('h4', {}, 'calls ', element('code', { textContent: part.name })), element('pre', {}, shown));
      if (this.declared && !this.declared.includes(part.name)) {
        card.append(element('p', { className: 'warning', textContent: 'This tool was not declared in the request.' }));
      }
      this.calls[index] = { id, name: part.name, arguments: '', shown, card };
      this.below.append(card);
    }
    const call = this.calls[index];
    call.arguments += part.arguments ?? '';
    grow(call.shown, part.arguments ?? '');
  }

  /** Shows a reply of the conversation that was kept. */
  takeMessage(message) {
    this.wait.hidden = true;
    if (message.reasoning_content) this.takeThought(message.reasoning_content);
    this.thoughts.open = false;
    if (message.content) this.takeText(message.content);
    (message.tool_calls ?? []).forEach(({ id, function: called }, index) => this.takeCall({ index, id, function: called }));
    this.end(null);
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
    this.markdown?.finish();
    this.tools.hidden = false;
    this.tools.firstChild.hidden = !this.text;
    for (const call of this.calls) {
      const value = parsed(call.arguments);
      call.shown.textContent = value === undefined ? call.arguments : pretty(value);
      if (value === undefined) call.card.append(element('p', { className: 'error-text', textContent: 'the arguments are not JSON' }));
    }
    const warnings = [];
    if (this.isJson && this.text) {
      const value = parsed(this.text);
      if (value === undefined) warnings.push('the reply is not complete JSON');
      else this.content.replaceChildren(element('pre', {}, element('code', { textContent: pretty(value) })));
    }
    for (const event of this.guard?.events ?? []) {
      warnings.push(`guard: ${event.kind.replaceAll('_', ' ')}, ${event.action.replaceAll('_', ' ')}, ${event.copies} copies of ${event.period} tokens`);
    }
    if (this.ignored) warnings.push(`fields that the server does not know: ${this.ignored}`);
    if (note) warnings.push(note);
    const figures = this.figures();
    this.below.append(...warnings.map((text) => element('p', { className: 'warning', textContent: text })));
    if (figures.length) this.below.append(element('ul', { className: 'meta' }, ...figures.map((text) => element('li', { textContent: text }))));
  }

  figures() {
    const { usage, first, last } = this;
    const figures = [];
    if (this.finish) figures.push(`finish ${this.finish}${this.stopReason ? ` (${this.stopReason})` : ''}`);
    if (first !== null) figures.push(`first token after ${seconds((first - this.began) / 1000)}`);
    // A short reply may come in one piece: its tokens have no rate.
    if (usage && last - first >= MIN_RATE_MS && usage.completion_tokens > 1) {
      figures.push(`${amount(((usage.completion_tokens - 1) / (last - first)) * 1000)} tokens/s`);
    }
    if (first !== null) figures.push(`${seconds((last - this.began) / 1000)} in all`);
    if (usage) {
      const { cached_tokens: cached, image_tokens: seen } = usage.prompt_tokens_details ?? {};
      const { reasoning_tokens: thought, accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } = usage.completion_tokens_details ?? {};
      const parts = (...texts) => (texts.some(Boolean) ? ` (${texts.filter(Boolean).join(', ')})` : '');
      figures.push(`prompt ${count(usage.prompt_tokens, 'token')}${parts(cached && `${cached} cached`, seen && `${seen} of images`)}`);
      figures.push(`reply ${count(usage.completion_tokens, 'token')}${parts(thought && `${thought} reasoning`)}`);
      if (accepted + rejected > 0) figures.push(`drafts ${accepted} of ${accepted + rejected} accepted`);
    }
    return figures;
  }
}
