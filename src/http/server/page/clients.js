// A row for each client: what it runs and uses now, and how near it is to a limit.

import { amount, element, percent } from './chart.js';

/** Window of tokens per minute, ms. */
const WINDOW_MS = 60_000;
/** A shorter time says nothing of a minute, s. */
const LEAST_S = 20;
/** Shares of a limit from which on it is marked. */
const NEAR = 0.8;

/** Fills the table's body; without clients the whole is hidden. */
export function showClients(box, report, recent, stale) {
  const clients = stale || !report ? [] : report.clients;
  box.hidden = clients.length === 0;
  if (clients.length === 0) return;
  const window = recent.window(WINDOW_MS);
  box.querySelector('tbody').replaceChildren(...clients.map((client) => row(client, recent.now(), window)));
  const rest = report.num_clients - clients.length;
  box.querySelector('.hint').textContent = rest > 0 ? `and ${amount(rest)} more with less to see` : '';
}

function row({ name, running, limit, used }, sample, window) {
  const ofClient = (labels) => labels.client === name;
  // Cached tokens are among the prompt's, and those of thought among the reply's.
  const tokens = (labels) => ofClient(labels) && ['prompt', 'reply'].includes(labels.kind);
  const gained = window && window.seconds >= LEAST_S ? window.increase('perigee_client_tokens_total', tokens) ?? 0 : null;
  const perMinute = gained === null ? null : Math.round(gained / (window.seconds / 60));
  const refused = sample?.sum('perigee_client_limited_total', ofClient) ?? 0;
  const tone = used >= 1 ? 'bad' : used >= NEAR ? 'warn' : '';
  return element(
    'tr', {}, element('th', { scope: 'row' }, element('code', { textContent: name })),
    element('td', { textContent: amount(running) }),
    element('td', { textContent: amount(perMinute) }),
    element('td', { textContent: amount(refused), className: refused > 0 ? 'warn' : '' }),
    element('td', { className: tone, textContent: limit === null ? 'no limit' : `${percent(used)} of ${limit}` }),
  );
}
