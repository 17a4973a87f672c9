// Markdown as elements: what a model's reply is made of, and nothing that could act.
//
// The text is only ever put into text nodes; no HTML is parsed. Links have the schemes below and show where they lead, and
// images are links. Every step is linear in the text: each line is read once per level of nesting, of which there are at most
// MAX_DEPTH, and what may be open within a line is bounded by MAX_OPEN. Elements are bounded by MAX_ELEMENTS, since browsers lay
// them out slowly; the text beyond goes on as it stands.

import { element } from './chart.js';
import { copy } from './server.js';

/** Deepest quotes and lists; what is deeper stays as it was written. */
const MAX_DEPTH = 8;
/** Most marks of emphasis and brackets of links that are open at once; the oldest ones become text. */
const MAX_OPEN = 16;
/** Most elements of one reply. */
const MAX_ELEMENTS = 20_000;
/** Most pieces of one paragraph: elements, and marks that may become some. */
const MAX_PIECES = 20_000;
const MAX_COLUMNS = 40;
const MAX_ADDRESS_CHARS = 2000;
const SCHEMES = ['http:', 'https:', 'mailto:'];
const BARE_LINK = /https?:\/\/[^\s<>"'`*]{1,2000}/y;

// No two parts of these match the same characters in a row: a search that fails would take quadratic time.
const FENCES = [/^ {0,3}(`{3,})([^`]*)$/, /^ {0,3}(~{3,})([^]*)$/];
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITER = /^:?-+:?$/;
/** What does not belong to an address at whose end it stands. */
const BEHIND_LINKS = '.,;:!?)]}';

/** Children one by one: a call has room for some ten thousand arguments. */
function fill(parent, nodes) {
  for (const node of nodes) parent.append(node);
  return parent;
}

// ---- Blocks.

/**
 * The blocks of some lines, in order: {kind, from, to, …}, `to` being the line after it. `depth` counts the quotes and lists
 * around them.
 */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === '') {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, depth);
    found.push({ from: at, ...block });
    at = block.to;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: 'heading', level: heading[1].length, text: titleOf(line.slice(heading[0].length)), to: at + 1 };
  if (RULE.test(line)) return { kind: 'rule', to: at + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at);
  const item = depth < MAX_DEPTH ? ITEM.exec(line) : null;
  if (item) return list(lines, at, item);
  if (isTable(lines, at)) return table(lines, at);
  let to = at + 1;
  while (to < lines.length && lines[to].trim() !== '' && !interrupts(lines, to, depth)) to += 1;
  return { kind: 'paragraph', text: lines.slice(at, to).join('\n'), to };
}

const fenceOf = (line) => FENCES[0].exec(line) ?? FENCES[1].exec(line);

/** A heading without the hashes behind it. */
function titleOf(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === '#') end -= 1;
  return end === 0 || isSpace(trimmed[end - 1]) ? trimmed.slice(0, end).trimEnd() : trimmed;
}

/** Whether a block begins at a line that would otherwise go on with a paragraph. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  return fenceOf(line) !== null || HEADING.test(line) || RULE.test(line) || isTable(lines, at)
    || (depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line)));
}

function code(lines, at, [, mark, about]) {
  const indent = lines[at].search(/\S/);
  let to = at + 1;
  const isEnd = (line) => {
    const text = line.trim();
    return text.length >= mark.length && line.search(/\S/) < 4 && text === mark[0].repeat(text.length);
  };
  while (to < lines.length && !isEnd(lines[to])) to += 1;
  const dedent = new RegExp(`^ {0,${indent}}`);
  const text = lines.slice(at + 1, to).map((line) => (indent ? line.replace(dedent, '') : line)).join('\n');
  return { kind: 'code', language: about.trim().split(/\s/)[0].slice(0, 40), text, to: Math.min(lines.length, to + 1) };
}

function quote(lines, at) {
  let to = at;
  while (to < lines.length && QUOTE.test(lines[to])) to += 1;
  return { kind: 'quote', lines: lines.slice(at, to).map((line) => line.replace(QUOTE, '')), to };
}

function list(lines, at, first) {
  const isOrdered = /\d/.test(first[2]);
  const mark = isOrdered ? first[2].at(-1) : first[2];
  const items = [];
  let to = at;
  while (to < lines.length) {
    const item = ITEM.exec(lines[to]);
    if (!item || item[2].at(-1) !== mark || /\d/.test(item[2]) !== isOrdered || (items.length > 0 && RULE.test(lines[to]))) break;
    const width = item[0].length;
    const inner = [lines[to].slice(width)];
    to += 1;
    // What is indented belongs to the item, and so does a paragraph's next line that is not.
    for (; to < lines.length; to += 1) {
      const line = lines[to];
      if (line.trim() === '') {
        const next = lines[to + 1];
        if (next === undefined || !isIndented(next, item)) break;
        inner.push('');
      } else if (isIndented(line, item)) inner.push(line.slice(Math.min(width, line.search(/\S/))));
      else if (ITEM.test(line) || lines[to - 1].trim() === '' || interrupts(lines, to, 0)) break;
      else inner.push(line);
    }
    items.push(inner);
    // Items may have empty lines between them.
    let next = to;
    while (next < lines.length && lines[next].trim() === '' && next - to < 2) next += 1;
    if (next > to && next < lines.length && ITEM.test(lines[next])) to = next;
  }
  return { kind: 'list', isOrdered, start: Number.parseInt(first[2], 10), items, to };
}

/** Whether a line is within an item: two columns are enough, for lists within lists that are written so. */
function isIndented(line, item) {
  return line.search(/\S/) >= item[1].length + 2 || line.startsWith('\t');
}

function isTable(lines, at) {
  const next = lines[at + 1];
  if (!next?.includes('-') || !next.includes('|') || !lines[at].includes('|')) return false;
  const sides = cells(next);
  return sides.every((side) => DELIMITER.test(side)) && sides.length === cells(lines[at]).length;
}

function table(lines, at) {
  let to = at + 2;
  while (to < lines.length && lines[to].trim() !== '' && lines[to].includes('|')) to += 1;
  const sides = cells(lines[at + 1]).map((cell) => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : 'left'));
  return { kind: 'table', sides, head: cells(lines[at]), rows: lines.slice(at + 2, to).map(cells), to };
}

/** The cells of a row; a bar behind a backslash is none. */
function cells(line) {
  const parts = [''];
  const text = line.trim().replace(/^\|/, '');
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === '\\' && text[i + 1] === '|') {
      parts[parts.length - 1] += '|';
      i += 1;
    } else if (text[i] === '|' && parts.length < MAX_COLUMNS) parts.push('');
    else parts[parts.length - 1] += text[i];
  }
  if (parts.at(-1).trim() === '' && parts.length > 1) parts.pop();
  return parts.map((part) => part.trim());
}

// ---- Elements of blocks.

/** The element of a block; `budget.left` is the number of elements that there may still be. */
function shown(block, depth, budget) {
  budget.left -= 1;
  switch (block.kind) {
    case 'code':
      // With its bar and button.
      budget.left -= 5;
      return codeBlock(block);
    // Below the heading of a turn all are of one level: a reply's own order may jump.
    case 'heading': return fill(element('h4', { className: `level-${block.level}` }), inline(block.text, budget));
    case 'rule': return element('hr');
    case 'quote': return fill(element('blockquote'), all(block.lines, depth + 1, budget));
    case 'list': return listOf(block, depth + 1, budget);
    case 'table': return tableOf(block, budget);
    default: return fill(element('p'), inline(block.text, budget));
  }
}

const rest = (lines) => element('p', { textContent: lines.join('\n') });

/** The elements of lines; where there may be no more, one paragraph of what is left. `begins` sees each block before it is made. */
function all(lines, depth, budget, begins = () => {}) {
  const nodes = [];
  for (const block of blocks(lines, depth)) {
    begins(block);
    if (budget.left <= 0) return [...nodes, rest(lines.slice(block.from))];
    nodes.push(shown(block, depth, budget));
  }
  return nodes;
}

function codeBlock({ language, text }) {
  const place = element('code', { textContent: text });
  const button = element('button', { type: 'button', className: 'quiet', textContent: 'Copy' });
  button.ariaLabel = language ? `Copy the ${language} code` : 'Copy the code';
  button.addEventListener('click', () => copy(text, button, place));
  const pre = element('pre', { tabIndex: 0, role: 'group', ariaLabel: language ? `${language} code` : 'code' }, place);
  return element('div', { className: 'code' }, element('p', { className: 'row' }, element('span', { textContent: language }), button), pre);
}

function listOf({ isOrdered, start, items }, depth, budget) {
  const made = element(isOrdered ? 'ol' : 'ul');
  if (isOrdered && start !== 1) made.start = start;
  for (const [at, lines] of items.entries()) {
    if (budget.left <= 0) {
      made.append(element('li', {}, rest(items.slice(at).flat())));
      break;
    }
    budget.left -= 1;
    const task = /^\[([ xX])\] /.exec(lines[0]);
    if (task) lines[0] = `${task[1] === ' ' ? '☐' : '☑'} ${lines[0].slice(4)}`;
    const parts = all(lines, depth, budget);
    // An item of one paragraph has no room around it.
    made.append(fill(element('li'), parts[0]?.localName === 'p' ? [...parts[0].childNodes, ...parts.slice(1)] : parts));
  }
  return made;
}

function tableOf({ sides, head, rows }, budget) {
  const cell = (name, text, column) => {
    budget.left -= 1;
    const made = fill(element(name), inline(text, budget));
    made.style.textAlign = sides[column] ?? 'left';
    if (name === 'th') made.scope = 'col';
    return made;
  };
  // A short row stays short: a table is no larger than its text.
  const row = (name, texts) => {
    budget.left -= 1;
    return fill(element('tr'), texts.slice(0, head.length).map((text, column) => cell(name, text, column)));
  };
  const body = element('tbody');
  for (const [at, texts] of rows.entries()) {
    if (budget.left <= 0) {
      body.append(element('tr', {}, element('td', { colSpan: head.length }, rest(rows.slice(at).map((left) => left.join(' | '))))));
      break;
    }
    body.append(row('td', texts));
  }
  const made = element('table', {}, element('thead', {}, row('th', head)), body);
  return element('div', { className: 'scroll', tabIndex: 0, role: 'group', ariaLabel: 'table' }, made);
}

// ---- Within a line.

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const isSpace = (char) => char === undefined || /\s/.test(char);
const isWord = (char) => char !== undefined && /[\p{L}\p{N}_]/u.test(char);

/** The nodes of a text: code, emphasis, links, and what is left as text. */
function inline(text, budget) {
  const out = [];
  const ticks = backquotes(text);
  /** What may become an element: {mark, at: its node in `out`, count}. */
  let open = [];
  let plain = '';
  const flush = () => {
    if (plain) out.push(plain);
    plain = '';
  };
  const push = (node) => {
    flush();
    budget.left -= 1;
    out.push(node);
  };
  const begin = (mark) => {
    flush();
    out.push(mark);
    open.push({ mark, at: out.length - 1 });
    if (open.length > MAX_OPEN) open.shift();
  };
  /** Puts everything behind an open mark into an element. */
  const close = (index, made) => {
    flush();
    const { at } = open[index];
    fill(made, joined(out.splice(at).slice(1)));
    budget.left -= 1;
    out.push(made);
    open = open.slice(0, index);
  };
  let at = 0;
  while (at < text.length) {
    if (budget.left <= 0 || out.length > MAX_PIECES) {
      plain += text.slice(at);
      break;
    }
    const char = text[at];
    if (char === '\\' && PUNCTUATION.test(text[at + 1] ?? '')) {
      plain += text[at + 1];
      at += 2;
    } else if (char === '`') {
      const count = runAt(text, at);
      const end = ticks.end(at, count);
      if (end === null) {
        plain += text.slice(at, at + count);
        at += count;
      } else {
        const inner = text.slice(at + count, end);
        const isPadded = inner.length > 2 && inner.startsWith(' ') && inner.endsWith(' ');
        push(element('code', { textContent: isPadded ? inner.slice(1, -1) : inner }));
        at = end + count;
      }
    } else if (char === '*' || char === '_' || char === '~') {
      const run = runAt(text, at);
      const count = char === '~' ? 2 : Math.min(run, 2);
      const [before, after] = [text[at - 1], text[at + run]];
      // Of three marks the inner element's end comes first.
      const top = open.at(-1)?.mark;
      const mark = run === 3 && top === char && !isSpace(before) ? char : char.repeat(count);
      if (run > 3 || (char === '~' && run !== 2)) {
        plain += text.slice(at, at + run);
        at += run;
        continue;
      }
      // Underscores within words are letters, as in names of variables.
      const inWord = char === '_' && isWord(before) && isWord(after);
      const index = isSpace(before) || inWord ? -1 : open.findLastIndex((other) => other.mark === mark);
      if (index >= 0 && !(char === '_' && isWord(after))) close(index, element({ '~~': 'del', '**': 'strong', __: 'strong' }[mark] ?? 'em'));
      else if (!isSpace(text[at + mark.length]) && !inWord && !(char === '_' && isWord(before))) begin(mark);
      else plain += mark;
      at += mark.length;
    } else if (char === '[' || (char === '!' && text[at + 1] === '[')) {
      const mark = char === '[' ? '[' : '![';
      begin(mark);
      at += mark.length;
    } else if (char === ']') {
      const index = open.findLastIndex(({ mark }) => mark === '[' || mark === '![');
      const target = index >= 0 ? targetAt(text, at + 1) : null;
      if (target) {
        const label = out.slice(open[index].at + 1).map((node) => node.textContent ?? node).join('') + plain;
        const isImage = open[index].mark === '![';
        const content = element('span');
        close(index, content);
        out[out.length - 1] = linkOf(target.address, content, isImage ? `image: ${label || target.address}` : label, isImage);
        at = target.end;
      } else {
        if (index >= 0) open = open.filter((_, i) => i !== index);
        plain += char;
        at += 1;
      }
    } else if (char === 'h' && !isWord(text[at - 1]) && text.startsWith('http', at)) {
      const { address, length } = bareAt(text, at);
      if (address) push(linkOf(address, element('span', { textContent: address }), address, false));
      else plain += text.slice(at, at + length);
      at += length;
    } else {
      plain += char;
      at += 1;
    }
  }
  flush();
  return joined(out);
}

/** The same nodes, texts that follow each other as one. */
function joined(nodes) {
  const found = [];
  let texts = [];
  const flush = () => {
    if (texts.length) found.push(texts.join(''));
    texts = [];
  };
  for (const node of nodes) {
    if (typeof node === 'string') {
      texts.push(node);
    } else {
      flush();
      found.push(node);
    }
  }
  flush();
  return found;
}

function runAt(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** Finds the end of code: the next run of as many backquotes. Each run is looked at once. */
function backquotes(text) {
  const runs = new Map();
  for (let at = text.indexOf('`'); at >= 0; ) {
    const count = runAt(text, at);
    if (!runs.has(count)) runs.set(count, { places: [], next: 0 });
    runs.get(count).places.push(at);
    at = text.indexOf('`', at + count);
  }
  return {
    end(at, count) {
      const run = runs.get(count);
      if (!run) return null;
      while (run.next < run.places.length && run.places[run.next] <= at) run.next += 1;
      return run.places[run.next] ?? null;
    },
  };
}

/** `(address)` or `(address "title")` at a place. */
function targetAt(text, at) {
  if (text[at] !== '(') return null;
  const part = text.slice(at + 1, at + 1 + MAX_ADDRESS_CHARS);
  const found = /^[ \t]{0,9}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:[ \t]{1,9}(?:"[^"]*"|'[^']*'))?[ \t]{0,9}\)/.exec(part);
  return found && found[1] ? { address: found[1], end: at + 1 + found[0].length } : null;
}

/** An address that stands in the text, without the punctuation behind it; one that cannot be followed is passed over whole. */
function bareAt(text, at) {
  BARE_LINK.lastIndex = at;
  const found = BARE_LINK.exec(text)?.[0];
  let end = found?.length ?? 0;
  while (end > 0 && BEHIND_LINKS.includes(found[end - 1])) end -= 1;
  if (!found) return { address: null, length: 4 };
  const address = found.slice(0, end);
  return safe(address) ? { address, length: end } : { address: null, length: found.length };
}

/** The address as a browser reads it, if it may be followed. */
function safe(address) {
  try {
    const url = new URL(address);
    return SCHEMES.includes(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

/** A link that shows where it leads; one that may not be followed is its text with the address behind it. */
function linkOf(address, content, label, isImage) {
  const url = safe(address);
  if (isImage) content.textContent = label;
  if (!url) {
    content.append(` (${address})`);
    return content;
  }
  const link = element('a', { href: url.href, rel: 'noopener noreferrer nofollow', target: '_blank', title: url.href }, content);
  const place = url.protocol === 'mailto:' ? url.pathname : url.host;
  if (label.includes(url.href) || label === address) return link;
  return element('span', {}, link, element('span', { className: 'target', textContent: ` (${place})` }));
}

// ---- A text that grows.

/** Shows a text that grows. Blocks that are over stay as they are; the last one is made anew. */
export class Markdown {
  text = '';
  /** Where the last block begins. */
  from = 0;
  /** Elements of the last block and of what follows it. */
  tail = [];
  /** Elements that the blocks before it have left. */
  left = MAX_ELEMENTS;
  /** Time that the last drawing took, and when it ended, ms. */
  took = 0;
  drawn = 0;
  timer = null;

  constructor(place) {
    this.place = place;
  }

  append(text) {
    this.text += text;
    // A long block takes long to make anew: most of the time is left to the rest of the page.
    const wait = Math.max(0, this.drawn + this.took * 8 - performance.now());
    this.timer ??= setTimeout(() => this.draw(), Math.max(16, wait));
  }

  /** Shows all of it now. */
  finish() {
    clearTimeout(this.timer);
    this.draw();
  }

  set(text) {
    this.place.replaceChildren();
    Object.assign(this, { text, from: 0, tail: [], left: MAX_ELEMENTS });
    this.draw();
  }

  draw() {
    this.timer = null;
    const began = performance.now();
    const lines = this.text.slice(this.from).split('\n');
    for (const node of this.tail) node.remove();
    const budget = { left: this.left };
    /** Of each element: the line it begins at, and what there was left before it. */
    const begun = [];
    const nodes = all(lines, 0, budget, ({ from }) => begun.push({ from, left: budget.left }));
    fill(this.place, nodes);
    // A line that has only begun may turn out to belong to the block before it.
    const isOpen = begun.at(-1)?.from === lines.length - 1;
    this.tail = nodes.slice(isOpen ? -2 : -1);
    const first = begun.at(-this.tail.length);
    if (first) {
      this.left = first.left;
      for (const line of lines.slice(0, first.from)) this.from += line.length + 1;
    }
    this.drawn = performance.now();
    this.took = this.drawn - began;
  }
}
