// The page as a whole: views, the poll of health and metrics, the header, the key.

import { Board, amount, duration, element, percent, seconds } from './chart.js';
import { showClients } from './clients.js';
import { showGpus } from './gpus.js';
import { History } from './history.js';
import { POLL_MS, Recent, Sample, parse } from './metrics.js';
import { forgetRequests, setUpOperator } from './operator.js';
import { PANELS, WANTED } from './panels.js';
import { setUpPlayground, showModel } from './playground.js';
import { BASE, Refusal, get, getJson, key } from './server.js';
import { forgetSettings, loadSettings, setUpSettings } from './settings.js';

const VIEWS = ['load', 'playground', 'settings'];
/** Waiting for this many polls in a row is marked. */
const LONG_WAIT_POLLS = 10;

const byId = (id) => document.getElementById(id);
const recent = new Recent();
const history = new History();
const board = new Board(PANELS, byId('charts'), byId('charts-note'));

const server = {
  /** What `/health/ready` says, or `unreachable`. */
  state: 'unknown',
  /** Since when it does not answer, ms. */
  silentSince: null,
  facts: {},
  /** Whether the facts are those of this process and key. */
  known: false,
  /** Whether an answer was 401; nothing that needs a key is asked until there is another one. */
  locked: false,
  waitingPolls: 0,
  /** The last body of `/page/load`. */
  load: null,
};

const STATES = {
  ready: ['ready', 'good'], starting: ['starting', 'busy'], leaving: ['draining', 'busy'], draining: ['draining', 'busy'],
  failed: ['boot failed', 'bad'], engine_stopped: ['engine stopped', 'bad'], engine_stuck: ['engine stuck', 'bad'],
  unreachable: ['unreachable', 'bad'], unknown: ['connecting', 'busy'],
};

// ---- Polling: one poll at a time, none while the tab is hidden.

let timer = null;
let polling = false;

async function poll() {
  clearTimeout(timer);
  if (polling || document.hidden) return;
  polling = true;
  try {
    await Promise.all([pollHealth(), pollMetrics()]);
    if (!server.known && !server.locked && hasModel()) await learnFacts();
  } finally {
    polling = false;
    showHeader();
    board.drawTo(Date.now());
    const stale = server.silentSince !== null;
    showGpus(byId('gpus'), recent, stale);
    showClients(byId('clients'), server.load, recent, stale);
    if (!document.hidden) timer = setTimeout(poll, POLL_MS);
  }
}

const hasModel = () => server.state === 'ready' || server.state === 'leaving';

async function pollHealth() {
  let state = 'unreachable';
  let boot = {};
  let reason = '';
  try {
    const response = await get('health/ready');
    boot = await response.json().catch(() => ({}));
    // A proxy in front answers in place of a server that is gone, without this field.
    if (typeof boot.status === 'string') state = boot.status;
    else reason = `status ${response.status} without a health report`;
  } catch (error) {
    reason = error.message;
  }
  const gone = state === 'unreachable';
  server.silentSince = gone ? server.silentSince ?? Date.now() : null;
  // The process that answers after a silence or a boot may be another one.
  if (!hasModel() && (state === 'ready' || state === 'leaving') && server.state !== 'unknown') server.known = false;
  server.state = state;
  showOutage(state, boot, reason);
}

async function pollMetrics() {
  // Where only /metrics needs no key it is read without one; a 401 says that it needs one too.
  if (server.locked && server.metricsLocked) return;
  const response = await askForFigures('metrics');
  if (!response) return;
  const sample = new Sample(Date.now(), parse(await response.text(), WANTED));
  if (recent.add(sample)) {
    server.known = false;
    history.restart();
  }
  board.annotate(sample, server.facts);
  server.waitingPolls = sample.sum('perigee_queue_sequences') > 0 ? server.waitingPolls + 1 : 0;
  await pollLoad();
}

async function pollLoad() {
  const response = await askForFigures(`page/load?from=${history.next}`);
  if (!response) return;
  server.load = await response.json();
  history.take(server.load, Date.now());
  board.setHistory(history);
}

/** The response, if it has figures. */
async function askForFigures(path) {
  let response;
  try {
    response = await get(path);
  } catch {
    return null;
  }
  if (response.status === 401) {
    server.metricsLocked = true;
    lock(key.get() ? 'The key was refused.' : '');
  }
  return response.ok ? response : null;
}

/** Reads what does not change while a process lives. */
async function learnFacts() {
  try {
    const [info, models] = await Promise.all([getJson('server_info'), getJson('v1/models')]);
    server.facts = { ...info, ...models.data[0] };
    server.known = true;
    showModel(server.facts);
    forgetSettings();
    if (currentView() === 'settings') loadSettings();
  } catch (error) {
    if (error.status === 401) lock(key.get() ? error.message : '');
    else if (!(error instanceof Refusal)) throw error;
  }
}

// ---- The key.

function lock(message) {
  server.locked = true;
  server.known = false;
  byId('key-error').textContent = message;
  if (byId('key-form').hidden) {
    byId('key-form').hidden = false;
    byId('key').focus();
  }
}

/** Shows the form of the key where another key would open more. */
function offerKey() {
  byId('key-form').hidden = false;
  byId('key').focus();
}

function unlock() {
  server.locked = server.metricsLocked = server.known = false;
  byId('key-form').hidden = true;
  byId('forget-key').hidden = !key.get();
}

byId('key-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  key.set(byId('key').value.trim());
  try {
    // Asked before the form closes, so that a wrong key leaves it open.
    await getJson('v1/models');
  } catch (error) {
    if (error.status === 401) {
      key.forget();
      byId('key-error').textContent = error.message;
      byId('key').select();
      return;
    }
  }
  byId('key').value = '';
  unlock();
  byId(`tab-${currentView()}`).focus();
  poll();
});

byId('forget-key').addEventListener('click', () => {
  key.forget();
  server.facts = {};
  forgetSettings();
  forgetRequests();
  unlock();
  poll();
});

// ---- The header.

function showHeader() {
  const [word, tone] = STATES[server.state] ?? [server.state.replaceAll('_', ' '), 'bad'];
  byId('state').textContent = word;
  byId('state').dataset.state = tone;
  const { facts } = server;
  const info = recent.now()?.labelsOf('perigee_engine_info') ?? {};
  byId('model').textContent = facts.id ?? 'Perigee';
  document.title = facts.id ? `${word === 'ready' ? '' : `${word}: `}${facts.id} – Perigee` : 'Perigee';
  const length = facts.context_length ?? Number(info.max_model_len);
  const device = facts.device ?? info.backend;
  const shown = [
    history.uptime !== null && !server.silentSince && `up ${duration(history.uptime)}`,
    device && `${device}${facts.tp_size > 1 ? `, ${facts.tp_size} ranks` : ''}`,
    length && `context ${length.toLocaleString('en')}`,
    facts.max_total_num_tokens && `KV ${amount(facts.max_total_num_tokens)} tokens ${facts.kv_cache_dtype}`,
    facts.version && `version ${facts.version}`,
  ];
  byId('facts').replaceChildren(...shown.filter(Boolean).map((text) => element('li', { textContent: text })));
  showEmbedded(facts);
  showVitals();
}

/** The figures that tell whether anything is wrong, on every view. */
function showVitals() {
  const stale = server.silentSince !== null || !history.isFresh(Date.now());
  const end = Date.now();
  const value = (title, name) => board.chart(title).valuesAt(null, end)[name] ?? null;
  const errors = board.chart('Errors and refusals').valuesAt(null, end);
  const shown = history.uptime !== null && history.uptime < history.keeps ? 'since start' : `in ${history.keeps / 60} min`;
  const waiting = value('Requests', 'waiting');
  const used = value('KV cache', 'used');
  const ttft = value('Time to first token', 'p50');
  const vitals = [
    ['running', amount(value('Requests', 'running'))],
    ['waiting', amount(waiting), server.waitingPolls >= LONG_WAIT_POLLS && 'warn'],
    ['tokens/s', amount(value('Generation', 'generated'))],
    ['TTFT p50', seconds(ttft)],
    ['KV used', percent(used), used >= 0.9 && 'warn'],
    [`4xx ${shown}`, amount(errors['4xx'] ?? 0), errors['4xx'] > 0 && 'warn'],
    [`5xx ${shown}`, amount(errors['5xx'] ?? 0), errors['5xx'] > 0 && 'bad'],
  ];
  byId('vitals').replaceChildren(
    ...vitals.map(([name, text, tone]) =>
      element('div', { className: tone || '' }, element('dt', { textContent: name }), element('dd', { textContent: stale ? '–' : text }))),
  );
}

/** Says that what answers is no checkpoint, whatever its name is. */
function showEmbedded({ embedded, id, root }) {
  byId('embedded').hidden = !embedded;
  const name = id === root ? root : `${root} under the name ${id}`;
  byId('embedded').textContent = `This server answers with its embedded toy model, ${name}. Set model.path to serve a checkpoint.`;
}

/** What is going on where the server is not simply ready. */
function showOutage(state, boot, reason) {
  const box = byId('outage');
  box.hidden = state === 'ready';
  box.classList.toggle('bad', STATES[state]?.[1] !== 'busy');
  const line = (text) => element('p', { textContent: text });
  if (state === 'unreachable') {
    const since = new Date(server.silentSince);
    const lasted = duration((Date.now() - server.silentSince) / 1000);
    box.replaceChildren(line(`The server does not answer (${reason}) since ${since.toLocaleTimeString()}, ${lasted} ago. The page keeps asking.`));
  } else if (state === 'starting') {
    const stages = (boot.stages ?? []).map(({ stage, done, percent: share, seconds: took }) =>
      element('li', {}, `${stage} `, element('progress', { max: 100, value: done ? 100 : share, ariaLabel: stage }), ` ${done ? 'done' : `${share} %`}, ${seconds(took)}`));
    box.replaceChildren(line(`Starting for ${duration(boot.seconds ?? 0)}; requests are refused until all stages are done.`), element('ol', { className: 'stages' }, ...stages));
  } else if (state === 'leaving') {
    box.replaceChildren(line('Draining: routers are told to send no more; requests that arrive are still answered.'));
  } else if (state === 'draining') {
    box.replaceChildren(line('Draining: new requests are refused, running ones are finished.'));
  } else if (state === 'failed') {
    box.replaceChildren(line(`The boot failed: ${boot.reason ?? 'no reason given'}`));
  } else if (state === 'engine_stuck') {
    box.replaceChildren(line(`The engine has finished no step for a long time while ${boot.running} requests run.`));
  } else if (state !== 'ready') {
    box.replaceChildren(line(`The server reports: ${state.replaceAll('_', ' ')}.`));
  }
}

// ---- Views.

function currentView() {
  const asked = location.hash.slice(1);
  return VIEWS.includes(asked) ? asked : VIEWS[0];
}

function showView() {
  const view = currentView();
  document.body.dataset.view = view;
  for (const name of VIEWS) {
    byId(`view-${name}`).hidden = name !== view;
    if (name === view) byId(`tab-${name}`).setAttribute('aria-current', 'page');
    else byId(`tab-${name}`).removeAttribute('aria-current');
  }
  if (view === 'load') board.draw();
  if (view === 'settings' && server.known) loadSettings();
}

byId('link-docs').href = `${BASE}docs`;
byId('link-metrics').href = `${BASE}metrics`;
byId('forget-key').hidden = !key.get();
setUpPlayground(lock);
setUpSettings();
setUpOperator(offerKey);
addEventListener('hashchange', showView);
document.addEventListener('visibilitychange', poll);
showView();
poll();
