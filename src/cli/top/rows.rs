//! The rows of text of each panel. A row that is too wide loses its last segments.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::figures::{Figures, Latency};
use super::format::{NONE, bytes, count, duration, latency, percent};
use super::palette::Palette;
use super::reading::{ByLabel, Reading};

/// Columns of the label, with the space in front of it.
pub(super) const LABEL_WIDTH: usize = 14;
/// Columns between two segments.
const GAP: usize = 3;
/// A share of the KV cache above which the figure is marked.
const HIGH_CACHE_USE: f64 = 0.8;

/// A label and segments in falling importance.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) label: &'static str,
    segments: Vec<Vec<Span<'static>>>,
}

/// What rows are made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) last: &'a Reading,
    /// `None` of fewer than two scrapes.
    pub(super) figures: Option<&'a Figures>,
    pub(super) palette: Palette,
}

impl Row {
    fn new(label: &'static str) -> Self {
        Self { label, segments: Vec::new() }
    }

    fn with(mut self, segment: Vec<Span<'static>>) -> Self {
        self.segments.push(segment);
        self
    }

    /// The row in `width` columns.
    pub(super) fn line(&self, width: usize, palette: Palette) -> Line<'static> {
        let label_width = LABEL_WIDTH - 1;
        let mut line =
            Line::from(vec![Span::styled(format!(" {:label_width$}", self.label), palette.quiet())]);
        for (index, segment) in self.segments.iter().enumerate() {
            let gap = if index == 0 { 0 } else { GAP };
            let segment_width: usize = segment.iter().map(Span::width).sum();
            if index > 0 && line.width() + gap + segment_width > width {
                break;
            }
            line.push_span(Span::raw(" ".repeat(gap)));
            line.extend(segment.iter().cloned());
        }
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

impl Source<'_> {
    pub(super) fn requests(&self) -> Vec<Row> {
        let Source { last, figures, palette } = self;
        let waiting_style = if last.waiting > 0.0 { palette.warning() } else { palette.strong() };
        let mut load = Row::new("running")
            .with(vec![Span::styled(count(last.running), palette.strong())])
            .with(self.figure("waiting ", count(last.waiting), waiting_style, ""))
            .with(self.rate("finished ", Figures::all_finished, palette.strong()))
            .with(self.rate("preempted ", |f| f.preemptions, palette.strong()));
        if last.waiting_tokens > 0.0 {
            load = load.with(self.figure("", count(last.waiting_tokens), palette.strong(), " tokens wait"));
        }
        let mut failures = figures.map(|f| f.errors.clone()).unwrap_or_default();
        if let Some(figures) = figures {
            let limits = figures.rejected.iter().map(|(limit, rate)| (format!("at {limit}"), *rate));
            failures.extend(limits);
            if figures.refused_connections > 0.0 {
                failures.insert("connections".into(), figures.refused_connections);
            }
        }
        vec![
            load,
            self.rates("ended", figures.map(|f| &f.finished), |reason| match reason {
                "stop" | "length" => palette.strong(),
                "abort" => palette.warning(),
                _ => palette.bad(),
            }),
            self.rates("failed", figures.map(|_| &failures), |status| match status.starts_with('5') {
                true => palette.bad(),
                false => palette.warning(),
            }),
        ]
    }

    /// Where there is no chart.
    pub(super) fn tokens(&self) -> Vec<Row> {
        let row = |label, rate: fn(&Figures) -> f64| {
            let value = self.figures.map_or(NONE.into(), |figures| count(rate(figures)));
            Row::new(label).with(self.figure("", value, self.palette.strong(), " tokens/s"))
        };
        vec![row("prompt", |f| f.prompt_tokens), row("reply", |f| f.reply_tokens)]
    }

    pub(super) fn latencies(&self) -> Vec<Row> {
        let row = |label: &'static str, latency_of: fn(&Figures) -> Latency, noun: &str| {
            let figure = |name: &str, value: fn(&Latency) -> Option<f64>| {
                let value = latency(self.figures.and_then(|f| value(&latency_of(f))));
                self.figure(name, format!("{value:>7}"), self.palette.strong(), "")
            };
            let observations = self.figures.map_or(NONE.into(), |f| count(latency_of(f).count));
            let observations = format!("{observations:>5} {noun}");
            Row::new(label)
                .with(figure("p50 ", |l| l.p50))
                .with(figure("p99 ", |l| l.p99))
                .with(figure("mean ", |l| l.mean))
                .with(vec![Span::styled(observations, self.palette.quiet())])
        };
        vec![
            row("first token", |f| f.first_token, "replies"),
            row("inter-token", |f| f.inter_token, "tokens"),
            row("step", |f| f.step, "steps"),
        ]
    }

    /// The first row has the shares without the bar.
    pub(super) fn cache(&self) -> Vec<Row> {
        let Source { last, palette, .. } = self;
        let used = last.cache_use();
        let style = if used > HIGH_CACHE_USE { palette.warning() } else { palette.strong() };
        let cached = if last.blocks() > 0.0 { last.blocks_cached / last.blocks() } else { 0.0 };
        let queried = match self.figures.and_then(|f| f.prefix_hits) {
            Some(share) => self.figure("", percent(Some(share)), palette.strong(), " of prompt tokens"),
            None => vec![Span::styled("no prompts", palette.quiet())],
        };
        let tokens = last.facts.block_size.map(|size| format!(" × {} tokens", count(size)));
        let blocks = format!("{} blocks{}", count(last.blocks()), tokens.unwrap_or_default());
        vec![
            Row::new("blocks").with(self.figure("", percent(Some(used)), style, " used")).with(self.figure(
                "",
                percent(Some(cached)),
                palette.strong(),
                " cached",
            )),
            Row::new("prefix hits").with(queried).with(vec![Span::styled(blocks, palette.quiet())]),
        ]
    }

    pub(super) fn speculation(&self) -> Vec<Row> {
        let palette = self.palette;
        let row = Row::new("accepted");
        let Some(figures) = self.figures.filter(|f| f.acceptance.is_some()) else {
            let never = self.last.drafts == 0.0;
            let text = if never { "no drafts so far" } else { "no drafts in the last minute" };
            return vec![row.with(vec![Span::styled(text, palette.quiet())])];
        };
        let tokens = figures.tokens_per_draft.map_or(NONE.into(), count);
        let saved = duration(self.last.seconds_saved);
        vec![
            row.with(self.figure("", percent(figures.acceptance), palette.strong(), " of drafted"))
                .with(self.figure("", tokens, palette.strong(), " tokens per step"))
                .with(self.rate("drafts ", |f| f.drafts, palette.strong()))
                .with(self.figure("saved ", saved, palette.strong(), "")),
        ]
    }

    pub(super) fn guard(&self) -> Vec<Row> {
        let palette = self.palette;
        let last = self.last;
        let total = |action: &str| last.guard_actions.get(action).copied().unwrap_or(0.0);
        let recent: f64 = self.figures.map_or(0.0, |f| f.guard_actions.values().sum());
        let style = if recent > 0.0 { palette.warning() } else { palette.strong() };
        let mut row = Row::new("stopped")
            .with(self.figure("", count(total("stopped")), style, " replies"))
            .with(match recent > 0.0 {
                true => self.figure("", count(recent), palette.warning(), " in the last minute"),
                false => vec![Span::styled("last minute none", palette.quiet())],
            });
        if last.numeric_faults > 0.0 {
            row = row.with(self.figure("invalid logits ", count(last.numeric_faults), palette.bad(), ""));
        }
        vec![
            row.with(self.figure("rescued ", count(last.guard_rescued), palette.strong(), ""))
                .with(self.figure("discarded ", count(last.guard_discarded), palette.strong(), " tokens")),
        ]
    }

    pub(super) fn engine(&self) -> Vec<Row> {
        let Source { last, figures, palette } = self;
        let tokens = figures.and_then(|f| f.tokens_per_step).map_or(NONE.into(), count);
        let busy = Row::new("busy")
            .with(self.figure("", percent(figures.map(|f| f.busy)), palette.strong(), ""))
            .with(self.figure("memory ", bytes(last.resident_bytes), palette.strong(), ""))
            .with(self.figure("", tokens, palette.strong(), " tokens per step"))
            .with(self.rate("steps ", |f| f.steps, palette.strong()));
        let cores = figures.map_or(NONE.into(), |f| count(f.cores));
        let process = Row::new("process")
            .with(self.figure("CPU ", cores, palette.strong(), " cores"))
            .with(self.figure("connections ", count(last.connections), palette.strong(), ""))
            .with(self.figure("threads ", count(last.threads), palette.strong(), ""));
        let mut parts: Vec<(&String, &f64)> =
            figures.map(|f| f.step_parts.iter().collect()).unwrap_or_default();
        parts.sort_by(|a, b| b.1.total_cmp(a.1));
        let mut row = Row::new("step time");
        for (part, share) in &parts {
            row = row.with(self.figure(&format!("{part} "), percent(Some(**share)), palette.strong(), ""));
        }
        if parts.is_empty() {
            row = row.with(vec![Span::styled("no steps", palette.quiet())]);
        }
        vec![busy, row, process]
    }

    fn figure(&self, before: &str, value: String, style: Style, after: &str) -> Vec<Span<'static>> {
        vec![
            Span::styled(before.to_owned(), self.palette.quiet()),
            Span::styled(value, style),
            Span::styled(after.to_owned(), self.palette.quiet()),
        ]
    }

    fn rate(&self, before: &str, rate: impl Fn(&Figures) -> f64, style: Style) -> Vec<Span<'static>> {
        let value = self.figures.map_or(NONE.into(), |figures| count(rate(figures)));
        self.figure(before, value, style, "/s")
    }

    /// Rates of a family, highest first.
    fn rates(&self, label: &'static str, rates: Option<&ByLabel>, style: impl Fn(&str) -> Style) -> Row {
        let mut row = Row::new(label);
        let Some(rates) = rates.filter(|rates| !rates.is_empty()) else {
            let text = if rates.is_some() { "none" } else { NONE };
            return row.with(vec![Span::styled(text, self.palette.quiet())]);
        };
        let mut rates: Vec<(&String, &f64)> = rates.iter().collect();
        rates.sort_by(|a, b| b.1.total_cmp(a.1));
        for (name, rate) in rates {
            row = row.with(self.figure(&format!("{name} "), count(*rate), style(name), "/s"));
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_rows_lose_their_last_segments() {
        let palette = Palette { color: false };
        let last = Reading { running: 12.0, waiting: 3.0, waiting_tokens: 1200.0, ..Reading::default() };
        let row = &Source { last: &last, figures: None, palette }.requests()[0];
        let check = |width: usize, expected: &str| assert_eq!(row.line(width, palette).to_string(), expected);
        check(80, " running      12   waiting 3   finished –/s   preempted –/s   1.2k tokens wait");
        check(43, " running      12   waiting 3   finished –/s");
        check(42, " running      12   waiting 3");
        check(20, " running      12");
        check(0, " running      12");
        assert_eq!(row.text(), "12, waiting 3, finished –/s, preempted –/s, 1.2k tokens wait");
    }

    #[test]
    fn rates_are_shown_by_their_size() {
        let palette = Palette { color: true };
        let last = Reading::default();
        let source = Source { last: &last, figures: None, palette };
        let rates = ByLabel::from([("a".into(), 1.0), ("b".into(), 2.0)]);
        let text = |rates: Option<&ByLabel>| source.rates("x", rates, |_| palette.strong()).text();
        assert_eq!(text(Some(&rates)), "b 2/s, a 1/s");
        assert_eq!(text(Some(&ByLabel::new())), "none");
        assert_eq!(text(None), NONE);
    }
}
