// Small charts of the last five minutes on canvases, with one readout for all of them.

import { GAP_MS, POLL_MS } from './metrics.js';

/** What a chart shows, ms. */
const HISTORY_MS = 300_000;
const MAX_POINTS = Math.ceil(HISTORY_MS / POLL_MS) + 2;
/** Width of a bar, ms. */
const BIN_MS = 10_000;
/** Space around the plot for the labels of the axes, CSS pixels. */
const MARGIN = { left: 46, right: 8, top: 8, bottom: 16 };
const MAX_RESTARTS = 10;

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

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** One chart: its points, its heading with values, its canvas. */
class Chart {
  points = [];

  constructor(panel) {
    this.panel = panel;
    this.legend = element('ul', { className: 'legend' });
    this.canvas = element('canvas', { role: 'img' });
    this.note = element('p', { className: 'hint' });
    const title = element('h2', {}, panel.title, panel.unit ? element('small', {}, ` ${panel.unit}`) : null);
    this.figure = element('figure', { className: 'chart' }, title, this.legend, this.canvas, this.note);
  }

  add(time, recent, facts) {
    this.points.push({ time, values: this.panel.measure(recent) });
    if (this.points.length > MAX_POINTS) this.points.shift();
    this.note.textContent = this.panel.note(recent.now(), facts).filter(Boolean).join(' · ');
  }

  /** Names of the series, in the order of the panel; those of bars as they occur. */
  names() {
    if (!this.panel.bars) return Object.keys(this.panel.colours);
    const found = new Set(this.points.flatMap(({ values }) => Object.keys(values)));
    const order = Object.keys(this.panel.colours);
    return [...found].sort((a, b) => order.indexOf(a) - order.indexOf(b) || (a < b ? -1 : 1));
  }

  /** CSS variable of a series; a status code has the colour of its class unless it has its own. */
  colour(name) {
    const { colours } = this.panel;
    return `--series-${colours[name] ?? colours[name[0]] ?? 0}`;
  }

  /** Sums per bin of ten seconds: the bin's start to values by name. */
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
      return element('li', {}, swatch, `${name.replaceAll('_', ' ')} `, element('b', {}, panel.format(values[name] ?? (panel.bars ? 0 : null))));
    });
    if (panel.bars && names.length === 0) items.push(element('li', {}, element('b', {}, '0')));
    this.legend.replaceChildren(...items);
    const said = names.map((name) => `${name} ${panel.format(values[name] ?? null)}`).join(', ');
    this.canvas.ariaLabel = `${panel.title}: ${said || 'nothing'}`;
  }

  draw(end, cursor, restarts) {
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
    const begin = end - HISTORY_MS;
    const x = (time) => plot.left + ((time - begin) / HISTORY_MS) * (plot.right - plot.left);
    const visible = this.points.filter(({ time }) => time >= begin);
    const bins = panel.bars ? this.bins(end) : new Map();
    const tops = panel.bars
      ? [...bins.values()].map((bin) => Object.values(bin).reduce((a, b) => a + b, 0))
      : visible.flatMap(({ values }) => Object.values(values)).filter((value) => value !== null);
    const max = panel.max ?? roundUp(Math.max(panel.leastMax, ...tops), panel.whole);
    const y = (value) => plot.bottom - (value / max) * (plot.bottom - plot.top);

    pen.font = `10.5px ${style.fontFamily}`;
    pen.lineWidth = 1;
    for (const value of [0, max / 2, max]) {
      const line = Math.round(y(value)) + 0.5;
      pen.strokeStyle = colour(value === 0 ? '--axis' : '--grid');
      pen.beginPath();
      pen.moveTo(plot.left, line);
      pen.lineTo(plot.right, line);
      pen.stroke();
      pen.fillStyle = colour('--faint');
      pen.textAlign = 'right';
      pen.textBaseline = 'middle';
      pen.fillText(value === 0 ? '0' : panel.format(value), plot.left - 5, line);
    }
    pen.textBaseline = 'alphabetic';
    for (let minutes = 0; minutes <= 5; minutes += 1) {
      pen.textAlign = minutes === 0 ? 'right' : 'center';
      pen.fillText(minutes === 0 ? 'now' : `−${minutes}${minutes === 5 ? ' min' : ''}`, x(end - minutes * 60_000), height - 3);
    }
    pen.textAlign = 'left';
    for (const time of restarts.filter((restart) => restart > begin)) {
      pen.strokeStyle = colour('--faint');
      pen.setLineDash([2, 3]);
      pen.beginPath();
      pen.moveTo(Math.round(x(time)) + 0.5, plot.top);
      pen.lineTo(Math.round(x(time)) + 0.5, plot.bottom);
      pen.stroke();
      pen.setLineDash([]);
      pen.textAlign = x(time) > plot.right - 45 ? 'right' : 'left';
      pen.fillText(' restart ', x(time), plot.top + 8);
    }
    if (tops.length === 0 || (panel.bars && Math.max(...tops) === 0)) {
      pen.textAlign = 'center';
      pen.fillText(panel.empty, (plot.left + plot.right) / 2, y(max * 0.25) + 4, plot.right - plot.left);
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
      if (run.length === 1) pen.fillRect(run[0][0] - 1, run[0][1] - 1, 2.5, 2.5);
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
  restarts = [];
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

  add(time, recent, facts, restarted) {
    if (restarted) this.restarts = [...this.restarts.slice(1 - MAX_RESTARTS), time];
    for (const chart of this.charts) chart.add(time, recent, facts);
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
      chart.draw(this.end, time, this.restarts);
    }
    this.note.textContent =
      time === null ? 'Bars count ten seconds; their figures are sums of five minutes.' : `At ${new Date(time).toLocaleTimeString()}, ${Math.round(-this.cursor / 1000)} s ago.`;
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
    this.setCursor(left < 0 || left > width ? null : (left / width - 1) * HISTORY_MS);
  }

  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) this.setCursor(Math.min(0, Math.max(-HISTORY_MS, (this.cursor ?? 0) + step * 2 * POLL_MS)));
    else if (event.key === 'Escape') this.setCursor(null);
    else return;
    event.preventDefault();
  }
}
