// The twelve charts: which figures, over which window, in which unit.
//
// `measure` gives the values of one moment by series; `null` = there was nothing to measure. Lines are drawn through
// moments; bars add up what `measure` gives within ten seconds.

import { amount, percent, seconds } from './chart.js';

/** Window of rates: short enough to follow, long enough to hold several steps. */
const RATE_MS = 5000;
/** Window of quantiles and shares: at a few requests per second some dozen observations. */
const SHARE_MS = 30_000;

const TTFT = 'perigee_time_to_first_token_seconds';
const ITL = 'perigee_inter_token_latency_seconds';
const STEP = 'perigee_step_seconds';
const HTTP = 'perigee_http_requests_total';

/** Every family that the page reads. */
export const WANTED = new Set([
  'process_start_time_seconds', 'perigee_running_sequences', 'perigee_queue_sequences', 'perigee_queue_tokens',
  'perigee_prompt_tokens_total', 'perigee_generation_tokens_total', 'perigee_prefix_query_tokens_total',
  'perigee_prefix_hit_tokens_total', 'perigee_kv_blocks', 'perigee_engine_info', 'perigee_preemptions_total',
  'perigee_speculation_drafted_tokens_total', 'perigee_speculation_accepted_tokens_total',
  'perigee_speculation_seconds_saved', 'perigee_guard_events_total', 'perigee_guard_discarded_tokens_total',
  'perigee_guard_numeric_faults_total', 'perigee_finished_sequences_total', 'perigee_rejected_requests_total',
  HTTP, ...[TTFT, ITL, STEP].map((name) => `${name}_bucket`), `${STEP}_sum`, 'perigee_rank_exchange_seconds_total',
  ...['info', 'utilization_ratio', 'throttled', 'ecc_uncorrected_errors_total', 'memory_used_bytes', 'memory_bytes', 'power_watts',
    'power_limit_watts', 'temperature_celsius', 'sm_clock_hertz'].map((name) => `perigee_gpu_${name}`),
]);

// Probes ask while a server boots or drains, and are answered 503 by design.
const isError = ({ route, status }) => status >= '400' && !route.startsWith('/health');

const latency = (name) => (recent) => {
  const [p50, p99] = recent.window(SHARE_MS)?.quantiles(name, [0.5, 0.99]) ?? [null, null];
  return { p50, p99 };
};

const blocks = (sample, state) => {
  const total = sample.sum('perigee_kv_blocks');
  return total ? sample.sum('perigee_kv_blocks', (labels) => labels.state === state) / total : null;
};

const sinceStart = (count, noun) => `${amount(count)} ${noun}${count === 1 ? '' : 's'} since start`;

export const PANELS = [
  {
    title: 'Requests', format: amount, whole: true, leastMax: 4, colours: { running: 1, waiting: 2 },
    empty: 'no figures yet',
    measure: (recent) => ({
      running: recent.now().sum('perigee_running_sequences'), waiting: recent.now().sum('perigee_queue_sequences'),
    }),
    note: (sample, facts) => [
      facts.max_running_requests && `at most ${amount(facts.max_running_requests)} run`,
      sinceStart(sample.sum('perigee_preemptions_total') ?? 0, 'preemption'),
    ],
  },
  {
    title: 'Generation', unit: 'tokens/s', format: amount, leastMax: 10, colours: { generated: 1 },
    empty: 'no figures yet',
    measure: (recent) => ({ generated: recent.window(RATE_MS)?.rate('perigee_generation_tokens_total') ?? null }),
    note: (sample) => [sinceStart(sample.sum('perigee_generation_tokens_total') ?? 0, 'token')],
  },
  {
    title: 'Prompts', unit: 'tokens/s', format: amount, leastMax: 10, colours: { processed: 1, cached: 3 },
    empty: 'no figures yet',
    measure: (recent) => ({
      processed: recent.window(RATE_MS)?.rate('perigee_prompt_tokens_total') ?? null,
      cached: recent.window(RATE_MS)?.rate('perigee_prefix_hit_tokens_total') ?? null,
    }),
    note: (sample) => [`${amount(sample.sum('perigee_queue_tokens') ?? 0)} tokens wait`],
  },
  {
    title: 'Errors and refusals', bars: true, format: amount, whole: true, leastMax: 4,
    colours: { 499: 0, 4: 2, 5: 4 }, empty: 'none in the last 5 minutes',
    // 499: the client left before the answer.
    measure: (recent) => recent.step()?.by(HTTP, 'status', isError) ?? {},
    note: (sample) => [
      `${amount(sample.sum(HTTP, isError) ?? 0)} since start`,
      `${amount(sample.sum('perigee_rejected_requests_total') ?? 0)} refused at the queue`,
    ],
  },
  {
    title: 'Time to first token', format: seconds, leastMax: 0.01, colours: { p50: 1, p99: 2 },
    empty: 'no first token in the last 5 minutes', measure: latency(TTFT), note: () => ['quantiles over 30 s'],
  },
  {
    title: 'Inter-token latency', format: seconds, leastMax: 0.001, colours: { p50: 1, p99: 2 },
    empty: 'no token after a first in the last 5 minutes', measure: latency(ITL), note: () => ['quantiles over 30 s'],
  },
  {
    title: 'Engine step', format: seconds, leastMax: 0.001, colours: { p50: 1, p99: 2 },
    empty: 'no step in the last 5 minutes', measure: latency(STEP), note: () => ['quantiles over 30 s'],
  },
  {
    title: 'Finished', bars: true, format: amount, whole: true, leastMax: 4,
    colours: { stop: 3, length: 1, abort: 0, repetition: 5, error: 4 }, empty: 'no sequence ended in the last 5 minutes',
    measure: (recent) => recent.step()?.by('perigee_finished_sequences_total', 'reason') ?? {},
    note: (sample) => [sinceStart(sample.sum('perigee_finished_sequences_total') ?? 0, 'sequence')],
  },
  {
    title: 'KV cache', format: percent, max: 1, colours: { used: 1, 'prefix cache': 3 },
    empty: 'no figures yet',
    measure: (recent) => ({ used: blocks(recent.now(), 'used'), 'prefix cache': blocks(recent.now(), 'cached') }),
    note: (sample) => {
      const { num_blocks: count, block_size: size, cache_dtype: dtype } = sample.labelsOf('perigee_engine_info');
      return [count && `${amount(Number(count))} blocks of ${size} tokens, ${dtype}`];
    },
  },
  {
    title: 'Prefix cache hits', format: percent, max: 1, colours: { 'hit rate': 3 },
    empty: 'no prompt looked up in the last 5 minutes',
    measure: (recent) => ({
      'hit rate': recent.window(SHARE_MS)?.share('perigee_prefix_hit_tokens_total', 'perigee_prefix_query_tokens_total') ?? null,
    }),
    note: (sample) => ['of prompt tokens, over 30 s', sample.labelsOf('perigee_engine_info').prefix_caching === 'false' && 'switched off'],
  },
  {
    title: 'Speculation', format: percent, max: 1, colours: { accepted: 5 },
    empty: 'no drafts in the last 5 minutes',
    measure: (recent) => ({
      accepted: recent.window(SHARE_MS)?.share('perigee_speculation_accepted_tokens_total', 'perigee_speculation_drafted_tokens_total') ?? null,
    }),
    note: (sample) => {
      const saved = sample.sum('perigee_speculation_seconds_saved');
      return ['of drafted tokens, over 30 s', saved > 0 && `about ${seconds(saved)} saved`];
    },
  },
  {
    title: 'Guard', bars: true, format: amount, whole: true, leastMax: 4,
    colours: { warned: 0, rescued: 3, closed_thinking: 1, stopped: 2, 'invalid logits': 4 },
    empty: 'no loop found in the last 5 minutes',
    measure: (recent) => {
      const step = recent.step();
      const faults = step?.increase('perigee_guard_numeric_faults_total');
      return { ...step?.by('perigee_guard_events_total', 'action'), ...(faults ? { 'invalid logits': faults } : {}) };
    },
    note: (sample) => [
      sinceStart(sample.sum('perigee_guard_events_total') ?? 0, 'finding'),
      `${amount(sample.sum('perigee_guard_discarded_tokens_total') ?? 0)} tokens discarded`,
    ],
  },
];
