//! Draws one panel: its rows of text, and charts in the rows that are left.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::chart;
use super::figures::Figures;
use super::format::{NONE, count, duration, latency, percent};
use super::history::{History, Point};
use super::layout::Panel;
use super::palette::Palette;
use super::rows::{LABEL_WIDTH, Row, Source};
use super::watch::Watch;

/// Columns of a chart's name and figures, where there is room for it.
const CHART_LABEL_WIDTH: u16 = 22;
/// Columns of a figure such as "1.2 ms".
const FIGURE_WIDTH: usize = 6;

/// Columns left of charts whose longest name has `name_width` columns.
fn chart_label_width(name_width: usize, area: Rect) -> u16 {
    let least = (name_width + 2 + FIGURE_WIDTH) as u16;
    CHART_LABEL_WIDTH.min(least.min(area.width / 2).max(area.width / 3))
}

/// What panels are drawn of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels<'a> {
    pub(super) watch: &'a Watch,
    pub(super) source: Source<'a>,
    pub(super) now: Duration,
    pub(super) titles: bool,
}

/// A chart of the last minutes.
struct Chart<'a> {
    name: &'static str,
    /// The present figure.
    value: String,
    figure: &'a dyn Fn(&Point) -> Option<f64>,
    /// Value at the top; `None` = the highest that is shown.
    top: Option<f64>,
    format: &'a dyn Fn(f64) -> String,
    style: Style,
}

impl Panels<'_> {
    pub(super) fn draw(&self, panel: Panel, area: Rect, buffer: &mut Buffer) {
        let (palette, figures) = (self.source.palette, self.source.figures);
        let percents = |share: f64| percent(Some(share));
        let latencies = |seconds: f64| latency(Some(seconds));
        match panel {
            Panel::Requests => {
                let rest = self.rows("Requests", &self.recent(), &self.source.requests(), area, buffer);
                let last = self.source.last;
                let running =
                    self.chart("running", count(last.running), &|p| Some(p.running), palette.chart());
                let waiting =
                    self.chart("waiting", count(last.waiting), &|p| Some(p.waiting), palette.second_chart());
                self.charts(&[running, waiting], rest, buffer);
            }
            Panel::Tokens => {
                let label_width = chart_label_width("prompt".len(), area);
                let column = History::column(usize::from(area.width - label_width), self.watch.interval);
                let columns = u64::from(area.width.saturating_sub(label_width + 1));
                let shown = column.as_secs() * columns;
                let minutes = format!("last {} min", (shown + 30) / 60);
                let rest = self.rows("Tokens per second", &minutes, &[], area, buffer);
                let rate = |rate: fn(&Figures) -> f64| figures.map_or(NONE.into(), |f| count(rate(f)));
                let prompt = self.chart(
                    "prompt",
                    rate(|f| f.prompt_tokens),
                    &|p| Some(p.prompt),
                    palette.second_chart(),
                );
                let reply =
                    self.chart("reply", rate(|f| f.reply_tokens), &|p| Some(p.reply), palette.chart());
                self.charts(&[prompt, reply], rest, buffer);
            }
            Panel::Latency => {
                let minute = figures.map_or(String::new(), |f| last_seconds(f.latency_seconds));
                let rest = self.rows("Latency", &minute, &self.source.latencies(), area, buffer);
                let mean = |seconds: Option<f64>| latency(seconds);
                let first = figures.and_then(|f| f.first_token.mean);
                let inter = figures.and_then(|f| f.inter_token.mean);
                let first = Chart {
                    format: &latencies,
                    ..self.chart("first token", mean(first), &|p| p.first_token, palette.second_chart())
                };
                let inter = Chart {
                    format: &latencies,
                    ..self.chart("inter-token", mean(inter), &|p| p.inter_token, palette.chart())
                };
                self.charts(&[first, inter], rest, buffer);
            }
            Panel::Cache => {
                let rows = self.source.cache();
                let rest = self.rows("KV cache", "", &rows, area, buffer);
                self.cache_bar(&rows[0], area, buffer);
                let used = percent(Some(self.source.last.cache_use()));
                let chart = self.chart("used", used, &|p| Some(p.cache), palette.chart());
                self.charts(&[Chart { top: Some(1.0), format: &percents, ..chart }], rest, buffer);
            }
            Panel::Speculation => {
                self.rows("Speculation", "", &self.source.speculation(), area, buffer);
            }
            Panel::Guard => {
                self.rows("Guard", "", &self.source.guard(), area, buffer);
            }
            Panel::Engine => {
                let rest = self.rows("Engine", "", &self.source.engine(), area, buffer);
                let busy = percent(figures.map(|f| f.busy));
                let chart = self.chart("busy", busy, &|p| Some(p.busy), palette.chart());
                self.charts(&[Chart { top: Some(1.0), format: &percents, ..chart }], rest, buffer);
            }
        }
    }

    fn recent(&self) -> String {
        self.source.figures.map_or(String::new(), |f| last_seconds(f.rate_seconds))
    }

    /// Draws title and rows; returns the area below them.
    fn rows(&self, title: &str, note: &str, rows: &[Row], area: Rect, buffer: &mut Buffer) -> Rect {
        let palette = self.source.palette;
        let mut lines = Vec::new();
        if self.titles {
            lines.push(title_line(title, note, usize::from(area.width), palette));
        }
        lines.extend(rows.iter().map(|row| row.line(usize::from(area.width), palette)));
        let drawn = lines.len().min(usize::from(area.height)) as u16;
        for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
            buffer.set_line(area.x, y, line, area.width);
        }
        Rect { y: area.y + drawn, height: area.height - drawn, ..area }
    }

    fn chart<'a>(
        &self,
        name: &'static str,
        value: String,
        figure: &'a dyn Fn(&Point) -> Option<f64>,
        style: Style,
    ) -> Chart<'a> {
        Chart { name, value, figure, top: None, format: &count, style }
    }

    /// Shares the area among the charts; of one row for several the first ones are drawn.
    fn charts(&self, charts: &[Chart<'_>], area: Rect, buffer: &mut Buffer) {
        let num_drawn = charts.len().min(usize::from(area.height)) as u16;
        let name_width = charts.iter().map(|chart| chart.name.len()).max().unwrap_or(0);
        let mut y = area.y;
        for (index, chart) in charts.iter().take(usize::from(num_drawn)).enumerate() {
            let index = index as u16;
            let height = area.height / num_drawn + u16::from(index < area.height % num_drawn);
            self.draw_chart(chart, name_width, Rect { y, height, ..area }, buffer);
            y += height;
        }
    }

    /// `name_width`: columns of the names of all charts of the panel.
    fn draw_chart(&self, chart: &Chart<'_>, name_width: usize, area: Rect, buffer: &mut Buffer) {
        let palette = self.source.palette;
        let label_width = chart_label_width(name_width, area);
        // A column stays free at the right edge, as it does at the left one.
        let plot =
            Rect { x: area.x + label_width, width: area.width.saturating_sub(label_width + 1), ..area };
        let num_columns = usize::from(plot.width);
        let column = History::column(num_columns, self.watch.interval);
        let values = self.watch.history.columns(num_columns, column, self.now, chart.figure);
        let peak = chart::peak(&values);
        // Above a chart of several rows one row stays free, which parts it from the one above.
        let plot =
            if plot.height > 2 { Rect { y: plot.y + 1, height: plot.height - 1, ..plot } } else { plot };
        let name = if label_width < CHART_LABEL_WIDTH { name_width + 1 } else { LABEL_WIDTH - 1 };
        let label = Line::from(vec![
            Span::styled(format!(" {:name$}", chart.name), palette.quiet()),
            Span::styled(chart.value.clone(), palette.strong()),
        ]);
        buffer.set_line(area.x, plot.y, &label, label_width);
        if plot.height > 1 && values.iter().any(Option::is_some) {
            let label = format!(" {:name$}{}", "peak", (chart.format)(peak));
            buffer.set_line(area.x, plot.y + 1, &Line::styled(label, palette.quiet()), label_width);
        }
        chart::columns(buffer, plot, &values, chart.top.unwrap_or(peak), chart.style, palette.quiet());
    }

    /// Puts the bar of used and cached blocks in front of their shares.
    fn cache_bar(&self, row: &Row, area: Rect, buffer: &mut Buffer) {
        let palette = self.source.palette;
        let last = self.source.last;
        let y = area.y + u16::from(self.titles);
        let text = row.line(usize::from(area.width), palette);
        let label_width = LABEL_WIDTH as u16;
        let text_width = text.width() as u16 - label_width;
        let room = area.width.saturating_sub(label_width + text_width + 3);
        if y >= area.bottom() || room < 8 || last.blocks() <= 0.0 {
            return;
        }
        let used_style = if last.cache_use() > 0.8 { palette.warning() } else { palette.chart() };
        let parts = [
            (last.cache_use(), '█', used_style),
            (last.blocks_cached / last.blocks(), '▒', palette.second_chart()),
        ];
        let bar = Rect { x: area.x + label_width, y, width: room, height: 1 };
        // The shares were drawn where the bar is now.
        buffer.set_string(bar.x, y, " ".repeat(usize::from(area.right() - bar.x)), Style::new());
        chart::bar(buffer, bar, &parts, ('░', palette.quiet()));
        let x = bar.right() + 2;
        let shares = Line::from(text.spans.into_iter().skip(1).collect::<Vec<_>>());
        buffer.set_line(x, y, &shares, area.right().saturating_sub(x));
    }
}

fn last_seconds(seconds: f64) -> String {
    format!("last {}", duration(seconds.round()))
}

/// A title in a rule, with a note at its end.
pub(super) fn title_line(title: &str, note: &str, width: usize, palette: Palette) -> Line<'static> {
    let note = if note.is_empty() { String::new() } else { format!(" {note} ") };
    let title_width = title.chars().count() + 3;
    let rule = width.saturating_sub(title_width + 1 + note.chars().count() + 1);
    Line::from(vec![
        Span::styled("─ ", palette.quiet()),
        Span::styled(title.to_owned(), palette.title()),
        Span::styled(format!(" {}", "─".repeat(rule)), palette.quiet()),
        Span::styled(note, palette.quiet()),
        Span::styled("─", palette.quiet()),
    ])
}
