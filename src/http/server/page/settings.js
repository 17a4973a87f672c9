// The resolved settings as a table: what was set first, then the defaults.

import { element } from './chart.js';
import { getJson } from './server.js';

const MAX_ROWS = 2000;

const byId = (id) => document.getElementById(id);
let rows = [];
let loaded = false;
let loading = false;

/** A value as TOML writes it. */
function display(value) {
  if (value === null) return '(not set)';
  if (Array.isArray(value)) return `[${value.map(display).join(', ')}]`;
  return JSON.stringify(value);
}

function rowOf([name, { value, origin, source }]) {
  const isSet = source !== 'default';
  const mark = isSet ? element('span', { className: 'mark', textContent: 'set', title: 'not from the defaults' }) : null;
  const row = element(
    'tr', { className: isSet ? 'set' : '' },
    element('th', { scope: 'row' }, element('code', { textContent: name }), ' ', mark),
    element('td', {}, element('code', { textContent: display(value), className: value === null ? 'faint' : '' })),
    element('td', { textContent: origin }),
  );
  return { row, isSet, text: `${name} ${display(value)} ${origin}`.toLowerCase() };
}

function filter() {
  const words = byId('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const onlySet = byId('only-set').checked;
  let shown = 0;
  for (const { row, isSet, text } of rows) {
    row.hidden = (onlySet && !isSet) || !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  const set = rows.filter((row) => row.isSet).length;
  byId('settings-count').textContent = loaded ? `${shown} of ${rows.length} keys, ${set} set` : '';
}

/** Loads the table, once unless `again`. */
export async function loadSettings(again = false) {
  if (loading || (loaded && !again)) return;
  const note = byId('settings-note');
  loading = true;
  try {
    const { site, profile, settings } = await getJson('settings');
    const found = Object.entries(settings).slice(0, MAX_ROWS).map(rowOf);
    rows = [...found.filter((row) => row.isSet), ...found.filter((row) => !row.isSet)];
    byId('settings-rows').replaceChildren(...rows.map(({ row }) => row));
    loaded = true;
    note.textContent = `File: ${site ?? 'none'}. Profile: ${profile ?? 'none'}. Secrets are masked by the server.`;
  } catch (error) {
    forgetSettings();
    note.textContent = error.status === 404 ? 'This server does not show its settings.' : `The settings could not be read: ${error.message}.`;
  } finally {
    loading = false;
    filter();
  }
}

/** The server may be another one: what was shown is dropped. */
export function forgetSettings() {
  rows = [];
  loaded = false;
  byId('settings-rows').replaceChildren();
}

export function setUpSettings() {
  byId('filter').addEventListener('input', filter);
  byId('only-set').addEventListener('change', filter);
  byId('settings-filter').addEventListener('submit', (event) => event.preventDefault());
  byId('reload-settings').addEventListener('click', () => loadSettings(true));
}
