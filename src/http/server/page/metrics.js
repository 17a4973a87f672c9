// Figures from /metrics: Prometheus text, the samples of the last window, and what counters gained in it.

/** Time between two polls, ms. */
export const POLL_MS = 1500;
/** Longest window over which increases are taken, ms. */
const MAX_WINDOW_MS = 60_000;
/** Two samples further apart than this have a gap between them: the page was hidden or the server away. */
export const GAP_MS = 4 * POLL_MS;

const LABEL = /([a-zA-Z_][\w]*)="((?:[^"\\]|\\.)*)"/g;

/** The lines of `text` whose family is in `wanted`: name to an array of {labels, value}. */
export function parse(text, wanted) {
  const families = new Map();
  for (const line of text.split('\n')) {
    if (!line || line[0] === '#') continue;
    const end = line.search(/[{ ]/);
    const name = line.slice(0, end);
    if (!wanted.has(name)) continue;
    const labels = {};
    const close = line[end] === '{' ? line.lastIndexOf('}') : end;
    for (const [, label, value] of line.slice(end, close).matchAll(LABEL)) {
      labels[label] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    }
    const value = Number(line.slice(close + 1).trim().replace('Inf', 'Infinity'));
    if (!families.has(name)) families.set(name, []);
    families.get(name).push({ labels, value });
  }
  return families;
}

/** Metrics of one moment. Absent families are `null`, which is not 0. */
export class Sample {
  constructor(time, families) {
    this.time = time;
    this.families = families;
  }

  /** Sum of a family's values over the lines whose labels pass `fits`. */
  sum(name, fits = () => true) {
    const lines = this.families.get(name);
    return lines ? lines.reduce((sum, line) => sum + (fits(line.labels) ? line.value : 0), 0) : null;
  }

  /** Values of a family added up by a label's value. */
  by(name, label, fits = () => true) {
    const sums = new Map();
    for (const { labels, value } of this.families.get(name) ?? []) {
      if (fits(labels)) sums.set(labels[label], (sums.get(labels[label]) ?? 0) + value);
    }
    return sums;
  }

  labelsOf(name) {
    return this.families.get(name)?.[0]?.labels ?? {};
  }
}

/** The samples of the last window, all of one process and without gaps between them. */
export class Recent {
  samples = [];

  /** Whether the sample is of another process than the one before. */
  add(sample) {
    const last = this.now();
    const started = (s) => s.sum('process_start_time_seconds');
    const restarted = last !== undefined && started(last) !== started(sample);
    // Counters of another process say nothing about this one's, and an increase over a gap is no rate of now.
    if (restarted || (last && sample.time - last.time > GAP_MS)) this.samples = [];
    this.samples.push(sample);
    // Half a poll of slack: timers are late by some milliseconds, and the window would lose a sample.
    const oldest = sample.time - MAX_WINDOW_MS - POLL_MS / 2;
    this.samples = this.samples.filter((s) => s.time >= oldest);
    return restarted;
  }

  now() {
    return this.samples.at(-1);
  }

  /** The last sample with the oldest one at most `windowMs` before it; `null` where there is no such pair. */
  window(windowMs) {
    const now = this.now();
    const before = this.samples.find((s) => s.time >= now.time - windowMs - POLL_MS / 2);
    return before === now ? null : new Window(before, now);
  }
}

/** What counters gained between two samples. Absent families are `null`, which is not 0. */
class Window {
  constructor(before, now) {
    this.before = before;
    this.now = now;
    this.seconds = (now.time - before.time) / 1000;
  }

  increase(name, fits) {
    const value = this.now.sum(name, fits);
    return value === null ? null : Math.max(0, value - (this.before.sum(name, fits) ?? 0));
  }
}
