// The twelve charts: which figures, over which window, in which unit, and the alert that watches them.
//
// `measure` gives the values of one moment by series; `null` = there was nothing to measure. Lines are drawn through
// moments; bars add up what `measure` gives. `empty` begins a sentence that ends with the time that is shown.

import { amount, percent, seconds } from './chart.js';

/** Window of rates: short enough to follow, long enough to hold several steps. */
const RATE_MS = 5000;
/** Window of shares, and the server's of quantiles. */
const SHARE_MS = 10_000;

const HTTP = 'perigee_http_requests_total';

/** Every family that the page reads. */
export const WANTED = new Set([
  'process_start_time_seconds', 'perigee_queue_sequences', 'perigee_queue_tokens', 'perigee_generation_tokens_total',
  'perigee_engine_info', 'perigee_preemptions_total', 'perigee_speculation_seconds_saved', 'perigee_guard_events_total',
  'perigee_guard_discarded_tokens_total', 'perigee_finished_sequences_total', 'perigee_rejected_requests_total', HTTP,
  'perigee_client_tokens_total', 'perigee_client_limited_total', 'perigee_step_seconds_sum', 'perigee_rank_exchange_seconds_total',
  ...['info', 'utilization_ratio', 'throttled', 'ecc_uncorrected_errors_total', 'memory_used_bytes', 'memory_bytes', 'power_watts',
    'power_limit_watts', 'temperature_celsius', 'sm_clock_hertz'].map((name) => `perigee_gpu_${name}`),
]);

// Probes ask while a server boots or drains, and are answered 503 by design. The page's own requests are no clients'.
const isError = ({ route, status }) => status >= '400' && !route.startsWith('/health') && route !== 'page';

const latency = (name) => (moment) => ({ p50: moment.value(`${name}_p50`), p99: moment.value(`${name}_p99`) });

const sinceStart = (count, noun) => `${amount(count)} ${noun}${count === 1 ? '' : 's'} since start`;

/** `400 × 3, 429 × 12`, of what was counted since the start. */
function statuses(sample) {
  const counts = [...sample.by(HTTP, 'status', isError)].sort(([a], [b]) => (a < b ? -1 : 1));
  return counts.map(([status, count]) => `${status} × ${amount(count)}`).join(', ');
}

const OVER = `over ${SHARE_MS / 1000} s`;

export const PANELS = [
  {
    title: 'Requests', alerts: ['PerigeeQueueLong'], format: amount, whole: true, leastMax: 4, colours: { running: 1, waiting: 2 },
    empty: 'no figures',
    measure: (moment) => ({ running: moment.value('running'), waiting: moment.value('waiting') }),
    note: (sample, facts) => [
      facts.max_running_requests && `at most ${amount(facts.max_running_requests)} run`,
      sinceStart(sample.sum('perigee_preemptions_total') ?? 0, 'preemption'),
    ],
  },
  {
    title: 'Generation', unit: 'tokens/s', alerts: ['PerigeeStuck'], format: amount, leastMax: 10, colours: { generated: 1 },
    empty: 'no figures',
    measure: (moment) => ({ generated: moment.rate('generated_tokens', RATE_MS) }),
    note: (sample) => [sinceStart(sample.sum('perigee_generation_tokens_total') ?? 0, 'token')],
  },
  {
    title: 'Prompts', unit: 'tokens/s', alerts: ['PerigeeQueueLong'], format: amount, leastMax: 10, colours: { all: 1, 'of them cached': 3 },
    empty: 'no figures',
    measure: (moment) => ({
      all: moment.rate('prompt_tokens', RATE_MS), 'of them cached': moment.rate('prefix_hit_tokens', RATE_MS),
    }),
    note: (sample) => [`${amount(sample.sum('perigee_queue_tokens') ?? 0)} tokens wait`],
  },
  {
    title: 'Errors and refusals', alerts: ['PerigeeErrors', 'PerigeeRefusing'], bars: true, format: amount, whole: true, leastMax: 4,
    colours: { 'client left': 0, '4xx': 2, '5xx': 4 }, empty: 'none',
    tones: { '4xx': 'warn', '5xx': 'bad' },
    measure: (moment) => moment.gains({ 'client left': 'http_499', '4xx': 'http_4xx', '5xx': 'http_5xx' }),
    note: (sample) => [
      `since start: ${statuses(sample) || 'none'}`,
      `${amount(sample.sum('perigee_rejected_requests_total') ?? 0)} refused at the queue`,
    ],
  },
  {
    title: 'Time to first token', alerts: ['PerigeeSlowFirstToken'], format: seconds, log: true, colours: { p50: 1, p99: 2 },
    empty: 'no first token', measure: latency('ttft'), note: () => [`quantiles ${OVER}`],
  },
  {
    title: 'Inter-token latency', alerts: ['PerigeeSlowTokens'], format: seconds, log: true, colours: { p50: 1, p99: 2 },
    empty: 'no token after a first', measure: latency('token_gap'), note: () => [`quantiles ${OVER}`],
  },
  {
    title: 'Engine step', alerts: ['PerigeeStuck'], format: seconds, log: true, colours: { p50: 1, p99: 2 },
    empty: 'no step', measure: latency('step'), note: () => [`quantiles ${OVER}`],
  },
  {
    title: 'Finished', bars: true, alerts: [], format: amount, whole: true, leastMax: 4,
    colours: { stop: 3, length: 1, abort: 0, repetition: 5, error: 4 }, empty: 'no sequence ended',
    measure: (moment) => moment.gains(Object.fromEntries(
      ['stop', 'length', 'abort', 'error', 'repetition'].map((reason) => [reason, `finished_${reason}`]))),
    note: (sample) => [sinceStart(sample.sum('perigee_finished_sequences_total') ?? 0, 'sequence')],
  },
  {
    title: 'KV cache', alerts: ['PerigeeCacheFull'], format: percent, max: 1, colours: { used: 1, 'prefix cache': 3 },
    empty: 'no figures',
    measure: (moment) => ({ used: moment.value('kv_used'), 'prefix cache': moment.value('kv_cached') }),
    note: (sample) => {
      const { num_blocks: count, block_size: size, cache_dtype: dtype } = sample.labelsOf('perigee_engine_info');
      return [count && `${amount(Number(count))} blocks of ${size} tokens, ${dtype}`];
    },
  },
  {
    title: 'Prefix cache hits', alerts: [], format: percent, max: 1, colours: { 'hit rate': 3 },
    empty: 'no prompt looked up',
    measure: (moment) => ({ 'hit rate': moment.share('prefix_hit_tokens', 'prefix_query_tokens', SHARE_MS) }),
    note: (sample) => [`of prompt tokens, ${OVER}`, sample.labelsOf('perigee_engine_info').prefix_caching === 'false' && 'switched off'],
  },
  {
    title: 'Speculation', alerts: ['PerigeeDraftOff'], format: percent, max: 1, colours: { accepted: 5 },
    empty: 'no drafts',
    measure: (moment) => ({ accepted: moment.share('accepted_tokens', 'drafted_tokens', SHARE_MS) }),
    note: (sample) => {
      const saved = sample.sum('perigee_speculation_seconds_saved');
      return [`of drafted tokens, ${OVER}`, saved > 0 && `about ${seconds(saved)} saved`];
    },
  },
  {
    title: 'Guard', alerts: ['PerigeeLoops', 'PerigeeNumericFaults'], bars: true, format: amount, whole: true, leastMax: 4,
    colours: { warned: 0, rescued: 3, closed_thinking: 1, stopped: 2, 'invalid logits': 4 },
    empty: 'no loop found',
    measure: (moment) => moment.gains({
      ...Object.fromEntries(['warned', 'rescued', 'closed_thinking', 'stopped'].map((action) => [action, `guard_${action}`])),
      'invalid logits': 'numeric_faults',
    }),
    note: (sample) => [
      sinceStart(sample.sum('perigee_guard_events_total') ?? 0, 'finding'),
      `${amount(sample.sum('perigee_guard_discarded_tokens_total') ?? 0)} tokens discarded`,
    ],
  },
];
