//! The figures that are shown: panels of rows of text. A row that is too wide loses its last
//! segments.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::exposition::{ByLabel, Page};
use super::format::{NONE, bytes, count, duration, latency, percent};
use super::watch::{self, LATENCY_WINDOW, Point, RATE_WINDOW, Watch};

/// Labels, rules, units: what the eye may skip.
pub(super) const QUIET: Style = Style::new().fg(Color::DarkGray);
/// Figures.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const TITLE: Style = STRONG.fg(Color::Cyan);
pub(super) const GOOD: Style = STRONG.fg(Color::Green);
pub(super) const WARNING: Style = STRONG.fg(Color::Yellow);
pub(super) const BAD: Style = STRONG.fg(Color::Red);
/// Bars: the first of two shares, and the second.
pub(super) const FIRST: Style = Style::new().fg(Color::Green);
pub(super) const SECOND: Style = Style::new().fg(Color::Blue);

/// Columns of a label, with the space in front of it.
pub(super) const LABEL_WIDTH: usize = 14;
/// Columns between two segments.
const GAP: usize = 3;
/// Fewest columns of a bar.
const MIN_BAR_WIDTH: usize = 8;
/// A share of the KV cache above which the figure is marked.
const HIGH_CACHE_USE: f64 = 0.8;

/// A group of figures.
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// Time that the figures are of.
    pub(super) note: String,
    pub(super) rows: Vec<Row>,
    /// Rows without which the panel is left out.
    pub(super) key_rows: usize,
}

/// A label and segments in falling importance.
pub(super) struct Row {
    pub(super) label: String,
    /// The figure of the chart beside the row.
    pub(super) course: Option<fn(&Point) -> f64>,
    /// Shares of a bar in front of the segments, where there is room for it.
    bar: Vec<(f64, char, Style)>,
    segments: Vec<Vec<Span<'static>>>,
}

/// The panels of a server, most important first; `None` before its first page. That of GPUs has a row for each, and none without one.
pub(super) fn panels(watch: &Watch) -> Option<[Panel; 8]> {
    let (recent, minute) = (watch.span(RATE_WINDOW)?, watch.span(LATENCY_WINDOW)?);
    let source = Source { last: watch.last()?, recent, minute };
    Some([
        source.requests(),
        source.tokens(),
        source.latency(),
        source.cache(),
        source.gpus(),
        source.speculation(),
        source.guard(),
        source.engine(),
    ])
}

/// A bar of `width` columns: shares with the character and the style of each, from the left.
pub(super) fn bar(parts: &[(f64, char, Style)], width: usize) -> Vec<Span<'static>> {
    let (mut until, mut drawn) = (0.0, 0);
    let mut spans = Vec::new();
    for (share, c, style) in parts {
        until += share.clamp(0.0, 1.0);
        // A share above zero has a column.
        let least = drawn + usize::from(*share > 0.0);
        let end = ((until * width as f64).round() as usize).max(least).min(width);
        spans.push(Span::styled(c.to_string().repeat(end - drawn), *style));
        drawn = end;
    }
    spans.push(Span::styled("░".repeat(width - drawn), QUIET));
    spans
}

impl Row {
    fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), course: None, bar: Vec::new(), segments: Vec::new() }
    }

    /// A figure between two texts.
    fn figure(self, before: &str, value: String, after: &str) -> Self {
        self.styled(before, value, after, STRONG)
    }

    fn styled(mut self, before: &str, value: String, after: &str, style: Style) -> Self {
        self.segments.push(vec![
            Span::styled(before.to_owned(), QUIET),
            Span::styled(value, style),
            Span::styled(after.to_owned(), QUIET),
        ]);
        self
    }

    fn quiet(mut self, text: impl Into<String>) -> Self {
        self.segments.push(vec![Span::styled(text.into(), QUIET)]);
        self
    }

    /// Rates of a family, highest first; `None` = not known yet.
    fn rates(mut self, rates: Option<ByLabel>, style: impl Fn(&str) -> Style) -> Self {
        let Some(rates) = rates else { return self.quiet(NONE) };
        let mut rates: Vec<_> = rates.into_iter().collect();
        rates.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (name, rate) in &rates {
            self = self.styled(&format!("{name} "), count(*rate), "/s", style(name));
        }
        if rates.is_empty() { self.quiet("none") } else { self }
    }

    /// The row in `width` columns.
    pub(super) fn line(&self, width: usize) -> Line<'static> {
        let label_width = LABEL_WIDTH - 1;
        let mut spans = Vec::new();
        let mut used = LABEL_WIDTH;
        for (index, segment) in self.segments.iter().enumerate() {
            let gap = if index == 0 { 0 } else { GAP };
            let segment_width: usize = segment.iter().map(Span::width).sum();
            if index > 0 && used + gap + segment_width > width {
                break;
            }
            used += gap + segment_width;
            spans.push(Span::raw(" ".repeat(gap)));
            spans.extend(segment.iter().cloned());
        }
        let mut line = Line::styled(format!(" {:label_width$}", self.label), QUIET);
        let bar_width = width.saturating_sub(used + GAP);
        if !self.bar.is_empty() && bar_width >= MIN_BAR_WIDTH {
            line.extend(bar(&self.bar, bar_width));
            line.push_span("  ");
        }
        line.extend(spans);
        line
    }

    /// The row without styles, whatever its width.
    pub(super) fn text(&self) -> String {
        let segment = |spans: &Vec<Span>| {
            let text: String = spans.iter().map(|span| span.content.as_ref()).collect();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        self.segments.iter().map(segment).collect::<Vec<_>>().join(", ")
    }
}

impl Panel {
    fn new(title: &'static str, key_rows: usize, rows: impl Into<Vec<Row>>) -> Self {
        Self { title, note: String::new(), rows: rows.into(), key_rows }
    }

    /// Whether a chart stands beside the rows.
    pub(super) fn is_chart(&self) -> bool {
        self.rows.iter().any(|row| row.course.is_some())
    }

    /// The panel with the time that its figures are of.
    fn of(self, span: &watch::Span<'_>) -> Self {
        let known = span.seconds > 0.0;
        let note = if known { format!("last {}", duration(span.seconds.round())) } else { String::new() };
        Self { note, ..self }
    }
}

/// Figures of the panels.
struct Source<'a> {
    last: &'a Page,
    recent: watch::Span<'a>,
    minute: watch::Span<'a>,
}

impl Source<'_> {
    fn requests(&self) -> Panel {
        let (last, recent) = (self.last, &self.recent);
        let [running, waiting, waiting_tokens] =
            ["perigee_running_sequences", "perigee_queue_sequences", "perigee_queue_tokens"]
                .map(|name| last.value(name));
        let mut load = Row::new("running")
            .figure("", count(running), "")
            .styled("waiting ", count(waiting), "", if waiting > 0.0 { WARNING } else { STRONG })
            .figure("finished ", count(recent.rate("perigee_finished_sequences_total")), "/s")
            .figure("preempted ", count(recent.rate("perigee_preemptions_total")), "/s");
        if waiting_tokens > 0.0 {
            load = load.figure("", count(waiting_tokens), " tokens wait");
        }
        let known = recent.seconds > 0.0;
        let ended = known.then(|| recent.rates("perigee_finished_sequences_total", "reason"));
        let ended = Row::new("ended").rates(ended, |reason| match reason {
            "stop" | "length" => STRONG,
            "abort" => WARNING,
            _ => BAD,
        });
        let failed = Row::new("failed").rates(known.then(|| self.failures()), |status| {
            if status.starts_with('5') { BAD } else { WARNING }
        });
        Panel::new("Requests", 1, [load, ended, failed]).of(recent)
    }

    /// Requests and connections that were refused or failed, per second.
    fn failures(&self) -> ByLabel {
        let mut failures = self.recent.rates("perigee_http_requests_total", "status");
        failures.retain(|status, _| status.parse().is_ok_and(|status: u16| status >= 400));
        let rejected = self.recent.rates("perigee_rejected_requests_total", "limit");
        failures.extend(rejected.into_iter().map(|(limit, rate)| (format!("at {limit}"), rate)));
        let connections = self.recent.rate("perigee_http_refused_connections_total");
        failures.extend(connections.filter(|rate| *rate > 0.0).map(|rate| ("connections".into(), rate)));
        failures
    }

    fn tokens(&self) -> Panel {
        let row = |label, counter: &str, course: fn(&Point) -> f64| {
            let rate = count(self.recent.rate(counter));
            Row { course: Some(course), ..Row::new(label).figure("", rate, " tokens/s") }
        };
        let prompt = row("prompt", "perigee_prompt_tokens_total", |point| point.prompt);
        let reply = row("reply", "perigee_generation_tokens_total", |point| point.reply);
        Panel::new("Tokens", 2, [prompt, reply])
    }

    fn latency(&self) -> Panel {
        let rows = [
            ("first token", "perigee_time_to_first_token_seconds", "replies"),
            ("inter-token", "perigee_inter_token_latency_seconds", "tokens"),
            ("step", "perigee_step_seconds", "steps"),
        ]
        .map(|(label, name, noun)| {
            let observed = self.minute.observed(name);
            let known = (self.minute.seconds > 0.0).then_some(observed.count());
            Row::new(label)
                .figure("p50 ", format!("{:>7}", latency(observed.quantile(0.5))), "")
                .figure("p99 ", format!("{:>7}", latency(observed.quantile(0.99))), "")
                .figure("mean ", format!("{:>7}", latency(observed.mean())), "")
                .quiet(format!("{:>5} {noun}", count(known)))
        });
        Panel::new("Latency", 2, rows).of(&self.minute)
    }

    fn cache(&self) -> Panel {
        let (blocks, used, cached) = self.last.blocks();
        let high = used > HIGH_CACHE_USE;
        let mut shares = Row::new("blocks")
            .styled("", percent(used), " used", if high { WARNING } else { STRONG })
            .figure("", percent(cached), " cached");
        if blocks > 0.0 {
            shares.bar = vec![(used, '█', if high { WARNING } else { FIRST }), (cached, '▒', SECOND)];
        }
        let hits = self.minute.share("perigee_prefix_hit_tokens_total", "perigee_prefix_query_tokens_total");
        let lookups = Row::new("prefix hits");
        let lookups = match hits {
            Some(share) => lookups.figure("", percent(share), " of prompt tokens"),
            None => lookups.quiet("no prompts"),
        };
        let size = self.last.label("perigee_engine_info", "block_size");
        let tokens = size.map_or(String::new(), |size| format!(" × {size} tokens"));
        let lookups = lookups.quiet(format!("{} blocks{tokens}", count(blocks)));
        Panel::new("KV cache", 1, [shares, lookups])
    }

    fn gpus(&self) -> Panel {
        let figures = |name: &str| self.last.by_label(&format!("perigee_gpu_{name}"), "rank");
        let [used, memory, bytes_used] =
            ["utilization_ratio", "memory_bytes", "memory_used_bytes"].map(figures);
        let [power, limit, clock, temperature] =
            ["power_watts", "power_limit_watts", "sm_clock_hertz", "temperature_celsius"].map(figures);
        let waits = self.minute.deltas("perigee_rank_exchange_seconds_total", "rank");
        let steps = self.minute.delta("perigee_step_seconds_sum");
        let of = |value: Option<&f64>, text: fn(f64) -> String| {
            value.map_or(String::new(), |value| format!(" of {}", text(*value)))
        };
        let row = |rank: &String| {
            let mut row = Row::new(format!("GPU {rank}"));
            if let Some(share) = used.get(rank) {
                row = row.figure("", percent(*share), "");
            }
            for reason in self.last.holding("perigee_gpu_throttled", ("rank", rank), "reason") {
                row = row.styled("", reason.to_owned(), "", WARNING);
            }
            if let Some(used) = bytes_used.get(rank) {
                row = row.figure("", bytes(*used), &of(memory.get(rank), bytes));
            }
            if let Some(watts) = power.get(rank) {
                row = row.figure("", count(*watts), &format!("{} W", of(limit.get(rank), count)));
            }
            if let Some(degrees) = temperature.get(rank) {
                row = row.figure("", count(*degrees), " °C");
            }
            if let Some(hertz) = clock.get(rank) {
                row = row.figure("", format!("{:.0}", hertz / 1e6), " MHz");
            }
            if let Some(seconds) = waits.get(rank).filter(|_| steps > 0.0) {
                row = row.figure("exchanges ", percent(seconds / steps), "");
            }
            row
        };
        Panel::new("GPUs", 1, figures("info").keys().map(row).collect::<Vec<_>>())
    }

    fn speculation(&self) -> Panel {
        const DRAFTS: &str = "perigee_speculation_draft_length_tokens_count";
        const ACCEPTED: &str = "perigee_speculation_accepted_tokens_total";
        let minute = &self.minute;
        let row = Row::new("accepted");
        let row = match minute.share(ACCEPTED, "perigee_speculation_drafted_tokens_total") {
            Some(share) => {
                // A step that checks a draft adds a token of its own.
                let gained = minute.share(ACCEPTED, DRAFTS).map(|accepted| 1.0 + accepted);
                let saved = self.last.value("perigee_speculation_seconds_saved");
                row.figure("", percent(share), " of drafted")
                    .figure("", count(gained), " tokens per step")
                    .figure("drafts ", count(self.recent.rate(DRAFTS)), "/s")
                    .figure("saved ", duration(saved), "")
            }
            None if self.last.value(DRAFTS) == 0.0 => row.quiet("no drafts so far"),
            None => row.quiet("no drafts in the last minute"),
        };
        Panel::new("Speculation", 1, [row])
    }

    fn guard(&self) -> Panel {
        const EVENTS: &str = "perigee_guard_events_total";
        let last = self.last;
        let stopped = last.by_label(EVENTS, "action").get("stopped").copied().unwrap_or(0.0);
        let findings: f64 = self.minute.deltas(EVENTS, "action").values().sum();
        let style = if findings > 0.0 { WARNING } else { STRONG };
        let mut row = Row::new("stopped").styled("", count(stopped), " replies", style);
        row = match findings > 0.0 {
            true => row.styled("", count(findings), " in the last minute", WARNING),
            false => row.quiet("last minute none"),
        };
        let faults = last.value("perigee_guard_numeric_faults_total");
        if faults > 0.0 {
            row = row.styled("invalid logits ", count(faults), "", BAD);
        }
        let rescued = last.value("perigee_guard_rescue_success_total");
        let discarded = last.value("perigee_guard_discarded_tokens_total");
        let row =
            row.figure("rescued ", count(rescued), "").figure("discarded ", count(discarded), " tokens");
        Panel::new("Guard", 1, [row])
    }

    fn engine(&self) -> Panel {
        let (last, recent) = (self.last, &self.recent);
        let busy = recent.rate("perigee_step_seconds_sum").map(|busy| busy.min(1.0));
        let steps = recent.delta("perigee_step_seconds_count");
        // Cached prompt tokens are in no step.
        let tokens = recent.delta("perigee_generation_tokens_total")
            + recent.delta("perigee_prompt_tokens_total")
            - recent.delta("perigee_prefix_hit_tokens_total");
        let load = Row::new("busy")
            .figure("", percent(busy), "")
            .figure("memory ", bytes(last.value("process_resident_memory_bytes")), "")
            .figure("", count((steps > 0.0).then(|| tokens / steps)), " tokens per step")
            .figure("steps ", count(recent.rate("perigee_step_seconds_count")), "/s");
        let parts = self.minute.deltas("perigee_step_part_seconds_sum", "part");
        let total: f64 = parts.values().sum();
        let mut parts: Vec<_> = parts.into_iter().filter(|_| total > 0.0).collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut time = Row::new("step time");
        for (part, seconds) in &parts {
            time = time.figure(&format!("{part} "), percent(seconds / total), "");
        }
        if parts.is_empty() {
            time = time.quiet("no steps");
        }
        let process = Row::new("process")
            .figure("CPU ", count(recent.rate("process_cpu_seconds_total")), " cores")
            .figure("connections ", count(last.value("perigee_http_connections")), "")
            .figure("threads ", count(last.value("process_threads")), "");
        Panel::new("Engine", 1, [load, time, process])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::test_server::busy;

    #[test]
    fn narrow_rows_lose_their_last_segments() {
        let watch = busy();
        let row = &panels(&watch).unwrap()[0].rows[0];
        let check = |width: usize, expected: &str| assert_eq!(row.line(width).to_string(), expected);
        check(80, " running      18   waiting 3   finished 4.2/s   preempted 0/s   1.2k tokens wait");
        check(45, " running      18   waiting 3   finished 4.2/s");
        check(44, " running      18   waiting 3");
        check(20, " running      18");
        check(0, " running      18");
        assert_eq!(row.text(), "18, waiting 3, finished 4.2/s, preempted 0/s, 1.2k tokens wait");
    }

    #[test]
    fn rates_are_shown_by_their_size() {
        let text = |rates: Option<ByLabel>| Row::new("x").rates(rates, |_| STRONG).text();
        assert_eq!(text(Some(ByLabel::from([("a".into(), 1.0), ("b".into(), 2.0)]))), "b 2/s, a 1/s");
        assert_eq!(text(Some(ByLabel::new())), "none");
        assert_eq!(text(None), NONE);
    }

    #[test]
    fn bars() {
        let check = |shares: &[f64], expected: &str| {
            let parts: Vec<_> = shares.iter().zip("#+".chars()).map(|(s, c)| (*s, c, STRONG)).collect();
            assert_eq!(Line::from(bar(&parts, 10)).to_string(), expected);
        };
        check(&[0.5, 0.2], "#####++░░░");
        check(&[0.0, 0.0], "░░░░░░░░░░");
        check(&[0.001, 0.001], "#+░░░░░░░░");
        check(&[1.0, 0.5], "##########");
        check(&[2.0, f64::NAN], "##########");
    }
}
