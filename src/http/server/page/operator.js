// What the operator's key opens on the page: the last requests, and a reload of the settings. Both only when they are asked
// for: each is a line of the audit log.

import { amount, element, seconds } from './chart.js';
import { getJson, postJson } from './server.js';

const MAX_REQUESTS = 20;

const byId = (id) => document.getElementById(id);

function refused(error, askForKey) {
  if (error.status !== 401 && error.status !== 403) return error.message;
  // Without an operator's key in the settings no key helps.
  if (error.code !== 'no_admin_key') askForKey();
  return error.code === 'no_admin_key' ? error.message : `${error.message}. Enter the key of server.admin_key.`;
}

function cell(text, name = 'td', properties = {}) {
  return element(name, { textContent: text, ...properties });
}

function row(request) {
  const ms = (value) => (value === null ? '–' : seconds(value / 1000));
  return element(
    'tr', {}, cell(new Date(request.at * 1000).toLocaleTimeString()),
    element('td', {}, element('code', { textContent: request.id })), cell(request.client ?? '–'), cell(request.route),
    cell(String(request.status), 'td', { className: request.status >= 500 ? 'bad' : request.status >= 400 ? 'warn' : '' }),
    cell(amount(request.prompt_tokens)), cell(amount(request.completion_tokens)), cell(ms(request.ttft_ms)), cell(ms(request.total_ms)),
    cell(request.finish || '–'),
  );
}

/** `askForKey` shows the form of the key. */
export function setUpOperator(askForKey) {
  const note = byId('operator-note');
  byId('read-requests').addEventListener('click', async () => {
    note.textContent = '';
    try {
      const { requests } = await getJson('admin/flight-recorder');
      const last = requests.slice(-MAX_REQUESTS).reverse();
      byId('requests-rows').replaceChildren(...last.map(row));
      byId('requests').hidden = last.length === 0;
      note.textContent = last.length ? `The last ${last.length} requests, read at ${new Date().toLocaleTimeString()}.` : 'No request has ended yet.';
    } catch (error) {
      forgetRequests();
      note.textContent = refused(error, askForKey);
    }
  });
  byId('reload-server').addEventListener('click', async () => {
    note.textContent = '';
    try {
      const report = await postJson('admin/reload');
      const keys = (changes) => changes.map((change) => change.key).join(', ');
      const [changed, waiting] = [keys(report.changed), keys(report.at_next_start)];
      note.textContent = `The settings were read anew. ${changed ? `In force now: ${changed}.` : 'Nothing changed.'}${waiting ? ` Waiting for a restart: ${waiting}.` : ''}`;
    } catch (error) {
      note.textContent = refused(error, askForKey);
    }
  });
}

/** Drops what an operator saw: the key is gone. */
export function forgetRequests() {
  byId('requests').hidden = true;
  byId('requests-rows').replaceChildren();
  byId('operator-note').textContent = '';
}
