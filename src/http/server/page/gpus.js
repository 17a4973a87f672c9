// A line for each rank's GPU. A figure that the driver does not tell is left out.

import { amount, element, percent } from './chart.js';

/** Window of the share of exchanges, ms. */
const WINDOW_MS = 30_000;
const GIB = 2 ** 30;

/** Fills `list` with the GPUs of the last sample; without any it is hidden. */
export function showGpus(list, recent, stale) {
  const sample = stale ? undefined : recent.now();
  const ranks = [...(sample?.by('perigee_gpu_info', 'rank').keys() ?? [])].sort((a, b) => a - b);
  list.hidden = ranks.length === 0;
  list.replaceChildren(...ranks.map((rank) => element('li', {}, ...figures(rank, sample, recent.window(WINDOW_MS)))));
}

function figures(rank, sample, window) {
  const ofRank = (labels) => labels.rank === rank;
  const value = (name) => sample.by(`perigee_gpu_${name}`, 'rank').get(rank);
  const part = (text, className = '') => element('span', { className, textContent: text });
  const known = (name, text) => (value(name) === undefined ? [] : [part(text(value(name)))]);
  const of = (name, text) => (value(name) === undefined ? '' : ` of ${text(value(name))}`);
  const info = sample.families.get('perigee_gpu_info').find(({ labels }) => ofRank(labels)).labels;
  const throttled = [...sample.by('perigee_gpu_throttled', 'reason', ofRank)].filter(([, holds]) => holds > 0);
  const steps = window?.increase('perigee_step_seconds_sum');
  const exchanges = window?.now.by('perigee_rank_exchange_seconds_total', 'rank').has(rank)
    ? window.increase('perigee_rank_exchange_seconds_total', ofRank) : null;
  const errors = value('ecc_uncorrected_errors_total');
  const gib = (bytes) => (bytes / GIB).toFixed(1);
  return [
    element('b', { textContent: `GPU ${rank}`, title: `${info.name}, ${info.pci_bus_id}` }),
    ...known('utilization_ratio', (share) => `${percent(share)} busy`),
    ...throttled.map(([reason]) => part(reason, 'warn')),
    ...(errors > 0 ? [part(`${amount(errors)} memory errors`, 'bad')] : []),
    ...known('memory_used_bytes', (bytes) => `${gib(bytes)}${of('memory_bytes', gib)} GiB`),
    ...known('power_watts', (watts) => `${Math.round(watts)}${of('power_limit_watts', Math.round)} W`),
    ...known('temperature_celsius', (degrees) => `${degrees} °C`),
    ...known('sm_clock_hertz', (hertz) => `${Math.round(hertz / 1e6)} MHz`),
    ...(steps && exchanges !== null ? [part(`exchanges ${percent(exchanges / steps)} of steps`)] : []),
  ];
}
