// The server's samples of its last minutes: what the charts draw, also from before the page was opened.

import { GAP_MS } from './metrics.js';

/** The samples, oldest first, those of earlier processes included. */
export class History {
  samples = [];
  /** Moments at which a process began. */
  starts = [];
  /** Age of the process, s; `null` while nothing is known of it. */
  uptime = null;
  /** How far back the server remembers, s. */
  keeps = 900;
  /** Number of the sample to ask for next. */
  next = 0;

  /** The process is another one: its samples are counted from 0. */
  restart() {
    for (const sample of this.samples) sample.number = null;
    this.next = 0;
  }

  /** Takes the body of `/page/load`, which was asked for from `next` on. */
  take(report, now) {
    if (report.first < this.next) this.restart();
    this.samples = this.samples.filter(({ number }) => number === null || number < report.first);
    const names = Object.keys(report.series);
    report.ages_s.forEach((age, i) => {
      const values = Object.fromEntries(names.map((name) => [name, report.series[name][i]]));
      this.samples.push({ number: report.first + i, time: now - age * 1000, seconds: report.lengths_s[i], values });
    });
    // The last sample was not over.
    this.next = report.first + report.ages_s.length - 1;
    this.uptime = report.uptime_s;
    this.keeps = report.keeps_s;
    const began = now - report.uptime_s * 1000;
    // Two polls see the same start some milliseconds apart.
    if (!this.starts.some((start) => Math.abs(start - began) < GAP_MS)) this.starts.push(began);
    const oldest = now - this.keeps * 1000;
    this.samples = this.samples.filter(({ time }) => time >= oldest);
    this.starts = this.starts.filter((start) => start >= oldest);
  }

  /** Whether the last sample tells of now. */
  isFresh(now) {
    const last = this.samples.at(-1);
    return last !== undefined && now - last.time <= GAP_MS;
  }

  /** Every sample with those just before it. */
  moments() {
    return this.samples.map((_, at) => new Moment(this.samples, at));
  }
}

/** A sample with those before it. */
class Moment {
  constructor(samples, at) {
    this.samples = samples;
    this.at = at;
  }

  get time() {
    return this.samples[this.at].time;
  }

  value(name) {
    return this.samples[this.at].values[name] ?? null;
  }

  /** What counters gained, without those that gained nothing; `names` by the names of series. */
  gains(names) {
    const gained = Object.entries(names).map(([series, name]) => [series, this.value(name) ?? 0]);
    return Object.fromEntries(gained.filter(([, count]) => count > 0));
  }

  /** What a counter gained within the last `ms`, and in how many seconds. */
  over(name, ms) {
    let [gained, seconds] = [0, 0];
    for (let at = this.at; at >= 0 && this.time - this.samples[at].time < ms; at -= 1) {
      gained += this.samples[at].values[name] ?? 0;
      seconds += this.samples[at].seconds;
      // Before it there was another process.
      if (this.samples[at].number === 0) break;
    }
    return { gained, seconds };
  }

  rate(name, ms) {
    const { gained, seconds } = this.over(name, ms);
    return seconds > 0 ? gained / seconds : null;
  }

  /** `part` of `whole`, 0 to 1; `null` where the whole is nothing. */
  share(part, whole, ms) {
    const total = this.over(whole, ms).gained;
    return total ? Math.min(1, this.over(part, ms).gained / total) : null;
  }
}
