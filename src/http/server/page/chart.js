// Small charts of the last fifteen minutes on canvases, with one readout for all of them.

import { GAP_MS } from './metrics.js';

/** What a chart shows, ms. */
const HISTORY_MS = 900_000;
/** What it shows while no more is known, ms: a server that has just begun would be a line at the edge. */
const SHORT_MS = 300_000;
/** Width of a bar, ms. */
const BIN_MS = 20_000;
/** Step of the readout by key, ms: a sample. */
const STEP_MS = 2000;
/** Space around the plot for the labels of the axes, CSS pixels. */
const MARGIN = { left: 46, right: 8, top: 8, bottom: 16 };

export function amount(value) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (size >= 1e6) return `${short(value / 1e6)}M`;
  if (size >= 1e4) return `${short(value / 1e3)}k`;
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : short(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0';
  if (value < 0.001) return `${short(value * 1e6)} µs`;
  return value < 1 ? `${short(value * 1e3)} ms` : `${short(value)} s`;
}

export function percent(value) {
  if (value === null || value === undefined) return '–';
  if (value > 0 && value < 0.0005) return '<0.1 %';
  return `${Number((value * 100).toFixed(1))} %`;
}

/** Three significant digits, without zeros at the end. */
function short(value) {
  return String(Number(value.toPrecision(3)));
}

/** The least round number not below `value`; of whole numbers the half is whole too, for the label in the middle. */
function roundUp(value, whole) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = whole && power === 1 ? [2, 4, 6, 8, 10] : [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10];
  return power * steps.find((step) => step * power >= value * 0.9999);
}

/** `3 d 4 h`, `5 min 6 s`. */
export function duration(total) {
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${Math.floor(total % 60)} s` : `${Math.floor(total)} s`;
}

/** The time that the charts tell of: `in the last 15 minutes`, or since the server's start where that is less. */
export function span({ uptime, keeps }) {
  if (uptime === null) return 'yet';
  return uptime < keeps ? `since the start, ${duration(uptime)} ago` : `in the last ${keeps / 60} minutes`;
}

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** One chart: its points, its heading with values, its canvas. */
class Chart {
  points = [];
  /** Width of the plot, ms. */
  extent = HISTORY_MS;

  constructor(panel) {
    this.panel = panel;
    this.legend = element('ul', { className: 'legend' });
    this.canvas = element('canvas', { role: 'img' });
    this.note = element('p', { className: 'hint' });
    const alerts = panel.alerts.join(', ');
    const title = element(
      'h2', {}, panel.title, panel.unit ? element('small', {}, ` ${panel.unit}`) : null,
      // The pages of the alerts are beside the source, not in the server.
      alerts ? element('small', { className: 'alert', textContent: alerts, title: `watched by the alert ${alerts}, docs/alerts.md` }) : null,
    );
    this.figure = element('figure', { className: 'chart' }, title, this.legend, this.canvas, this.note);
  }

  setPoints(moments) {
    this.points = moments.map((moment) => ({ time: moment.time, values: this.panel.measure(moment) }));
  }

  annotate(sample, facts) {
    this.note.textContent = this.panel.note(sample, facts).filter(Boolean).join(' · ');
    this.note.title = this.note.textContent;
  }

  /** Names of the series, in the order of the panel; those of bars as they occur. */
  names() {
    if (!this.panel.bars) return Object.keys(this.panel.colours);
    const found = new Set(this.points.flatMap(({ values }) => Object.keys(values)));
    const order = Object.keys(this.panel.colours);
    return [...found].sort((a, b) => order.indexOf(a) - order.indexOf(b) || (a < b ? -1 : 1));
  }

  /** CSS variable of a series. */
  colour(name) {
    return `--series-${this.panel.colours[name] ?? 0}`;
  }

  /** Sums per bin: the bin's start to values by name. */
  bins(end) {
    const bins = new Map();
    for (const { time, values } of this.points) {
      if (time < end - HISTORY_MS) continue;
      const start = Math.floor(time / BIN_MS) * BIN_MS;
      if (!bins.has(start)) bins.set(start, {});
      const bin = bins.get(start);
      for (const [name, count] of Object.entries(values)) bin[name] = (bin[name] ?? 0) + count;
    }
    return bins;
  }

  /** Values at a time, and at the end of the chart for `null`; for bars the end's values are the sums of the chart. */
  valuesAt(time, end) {
    if (this.panel.bars) {
      const bins = this.bins(end);
      if (time !== null) return bins.get(Math.floor(time / BIN_MS) * BIN_MS) ?? {};
      const sums = {};
      for (const bin of bins.values()) for (const name of Object.keys(bin)) sums[name] = (sums[name] ?? 0) + bin[name];
      return sums;
    }
    const last = this.points.at(-1);
    // What was true before the server fell silent is not true now.
    if (time === null) return last && end - last.time <= GAP_MS ? last.values : {};
    const near = this.points.filter((point) => Math.abs(point.time - time) <= GAP_MS / 2);
    const nearest = near.sort((a, b) => Math.abs(a.time - time) - Math.abs(b.time - time))[0];
    return nearest?.values ?? {};
  }

  describe(time, end) {
    const { panel } = this;
    const values = this.valuesAt(time, end);
    const names = this.names();
    const items = names.map((name) => {
      const swatch = element('i');
      swatch.style.background = `var(${this.colour(name)})`;
      const value = values[name] ?? (panel.bars ? 0 : null);
      const tone = value > 0 ? panel.tones?.[name] ?? '' : '';
      return element('li', {}, swatch, `${name.replaceAll('_', ' ')} `, element('b', { className: tone }, panel.format(value)));
    });
    if (panel.bars && names.length === 0) items.push(element('li', {}, element('b', {}, '0')));
    this.legend.replaceChildren(...items);
    const said = names.map((name) => `${name} ${panel.format(values[name] ?? null)}`).join(', ');
    this.canvas.ariaLabel = `${panel.title}: ${said || 'nothing'}`;
  }

  /** The axis: its labelled values, and where a value lies on it, 0 to 1. */
  axis(values) {
    const { panel } = this;
    const positive = values.filter((value) => value > 0);
    if (!panel.log || positive.length === 0) {
      const max = panel.max ?? roundUp(Math.max(panel.leastMax ?? 1, ...values), panel.whole);
      return { labels: panel.log ? [] : [0, max / 2, max], place: (value) => value / max };
    }
    const low = Math.floor(Math.log10(Math.min(...positive)));
    const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...positive))));
    const powers = Array.from({ length: high - low + 1 }, (_, i) => low + i);
    const every = Math.ceil(powers.length / 5);
    const labels = powers.filter((power) => (power - low) % every === 0).map((power) => 10 ** power);
    return { labels, place: (value) => Math.max(0, (Math.log10(value) - low) / (high - low)) };
  }

  draw(end, cursor, starts, shown) {
    const { panel, canvas } = this;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (width === 0) return;
    const scale = window.devicePixelRatio || 1;
    // Setting the size clears the canvas, and the transformation.
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    const plot = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const begin = end - this.extent;
    const x = (time) => plot.left + ((time - begin) / this.extent) * (plot.right - plot.left);
    const visible = this.points.filter(({ time }) => time >= begin);
    const bins = panel.bars ? this.bins(end) : new Map();
    const tops = panel.bars
      ? [...bins.values()].map((bin) => Object.values(bin).reduce((a, b) => a + b, 0))
      : visible.flatMap(({ values }) => Object.values(values)).filter((value) => value !== null);
    const { labels, place } = this.axis(tops);
    const y = (value) => plot.bottom - place(value) * (plot.bottom - plot.top);

    pen.font = `10.5px ${style.fontFamily}`;
    pen.lineWidth = 1;
    const level = (line, tone) => {
      pen.strokeStyle = colour(tone);
      pen.beginPath();
      pen.moveTo(plot.left, line);
      pen.lineTo(plot.right, line);
      pen.stroke();
    };
    for (const value of labels) {
      const line = Math.round(y(value)) + 0.5;
      level(line, '--grid');
      pen.fillStyle = colour('--faint');
      pen.textAlign = 'right';
      pen.textBaseline = 'middle';
      pen.fillText(value === 0 ? '0' : panel.format(value), plot.left - 5, line);
    }
    level(plot.bottom + 0.5, '--axis');
    pen.fillStyle = colour('--faint');
    pen.textBaseline = 'alphabetic';
    const last = this.extent / 60_000;
    for (let minutes = 0; minutes <= last; minutes += last > 5 ? 5 : 1) {
      // The last label, with its unit, takes the room of the one before.
      if (last === 5 && minutes === 4) continue;
      pen.textAlign = { 0: 'right', [last]: 'left' }[minutes] ?? 'center';
      pen.fillText(minutes === 0 ? 'now' : `−${minutes}${minutes === last ? ' min' : ''}`, x(end - minutes * 60_000), height - 3);
    }
    pen.textAlign = 'left';
    for (const time of starts.filter((start) => start > begin)) {
      pen.strokeStyle = colour('--faint');
      pen.setLineDash([2, 3]);
      pen.beginPath();
      pen.moveTo(Math.round(x(time)) + 0.5, plot.top);
      pen.lineTo(Math.round(x(time)) + 0.5, plot.bottom);
      pen.stroke();
      pen.setLineDash([]);
      pen.textAlign = x(time) > plot.right - 45 ? 'right' : 'left';
      pen.fillText(' start ', x(time), plot.top + 8);
    }
    if (tops.length === 0 || (panel.bars && Math.max(...tops) === 0)) {
      pen.textAlign = 'center';
      pen.fillText(`${panel.empty} ${shown}`, (plot.left + plot.right) / 2, plot.bottom - (plot.bottom - plot.top) / 4 + 4, plot.right - plot.left);
    } else if (panel.bars) {
      this.drawBars(pen, bins, x, y, plot, colour);
    } else {
      // The first series lies on top.
      for (const name of this.names().reverse()) this.drawLine(pen, visible, name, x, y, colour);
    }
    if (cursor !== null) {
      pen.fillStyle = colour('--text');
      pen.fillRect(Math.round(x(cursor)), plot.top, 1, plot.bottom - plot.top);
    }
  }

  drawBars(pen, bins, x, y, plot, colour) {
    for (const [start, bin] of bins) {
      const left = Math.max(plot.left, x(start));
      const wide = Math.max(2, Math.min(plot.right, x(start + BIN_MS)) - left - 1);
      let below = 0;
      for (const name of this.names().filter((name) => bin[name])) {
        pen.fillStyle = colour(this.colour(name));
        pen.fillRect(left, y(below + bin[name]), wide, y(below) - y(below + bin[name]));
        below += bin[name];
      }
    }
  }

  drawLine(pen, points, name, x, y, colour) {
    pen.strokeStyle = pen.fillStyle = colour(this.colour(name));
    pen.lineWidth = 1.5;
    pen.lineJoin = 'round';
    let run = [];
    const finish = () => {
      // What is shorter than a line can show is a dot.
      if (run.length > 0 && run.at(-1)[0] - run[0][0] < 3) pen.fillRect(run.at(-1)[0] - 2, run.at(-1)[1] - 2, 4, 4);
      pen.beginPath();
      run.forEach(([px, py], i) => (i ? pen.lineTo(px, py) : pen.moveTo(px, py)));
      pen.stroke();
      run = [];
    };
    points.forEach(({ time, values }, i) => {
      const value = values[name] ?? null;
      if (value === null || (i > 0 && time - points[i - 1].time > GAP_MS)) finish();
      if (value !== null) run.push([x(time), y(value)]);
    });
    finish();
  }
}

/** All charts, drawn to the same end, with one cursor. */
export class Board {
  /** When processes began. */
  starts = [];
  /** The time that is shown, in words. */
  shown = 'yet';
  /** Width of the plots, ms. */
  extent = HISTORY_MS;
  /** Time under the cursor, relative to the end of the charts, ms; `null` = no cursor. */
  cursor = null;
  end = Date.now();

  constructor(panels, container, note) {
    this.note = note;
    this.charts = panels.map((panel) => new Chart(panel));
    container.replaceChildren(...this.charts.map((chart) => chart.figure));
    container.addEventListener('pointermove', (event) => this.point(event));
    container.addEventListener('pointerleave', () => this.setCursor(null));
    container.addEventListener('blur', () => this.setCursor(null));
    container.addEventListener('keydown', (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(container);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  setHistory(history) {
    this.starts = history.starts;
    this.shown = span(history);
    const moments = history.moments();
    const oldest = Math.min(...history.starts, ...moments.slice(0, 1).map(({ time }) => time));
    this.extent = this.end - oldest < SHORT_MS ? SHORT_MS : HISTORY_MS;
    for (const chart of this.charts) {
      chart.extent = this.extent;
      chart.setPoints(moments);
    }
  }

  annotate(sample, facts) {
    for (const chart of this.charts) chart.annotate(sample, facts);
  }

  chart(title) {
    return this.charts.find((chart) => chart.panel.title === title);
  }

  /** Draws to this end: time goes on where no sample comes. */
  drawTo(end) {
    this.end = end;
    this.draw();
  }

  draw() {
    const time = this.cursor === null ? null : this.end + this.cursor;
    for (const chart of this.charts) {
      chart.describe(time, this.end);
      chart.draw(this.end, time, this.starts, this.shown);
    }
    this.note.textContent =
      time === null ? `Bars count ${BIN_MS / 1000} seconds; their figures are sums of what is shown.` : `At ${new Date(time).toLocaleTimeString()}, ${duration(-this.cursor / 1000)} ago.`;
  }

  setCursor(cursor) {
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.draw();
  }

  point(event) {
    if (event.target.localName !== 'canvas') return this.setCursor(null);
    const left = event.offsetX - MARGIN.left;
    const width = event.target.clientWidth - MARGIN.left - MARGIN.right;
    this.setCursor(left < 0 || left > width ? null : (left / width - 1) * this.extent);
  }

  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) this.setCursor(Math.min(0, Math.max(-this.extent, (this.cursor ?? 0) + step * STEP_MS)));
    else if (event.key === 'Escape') this.setCursor(null);
    else return;
    event.preventDefault();
  }
}
