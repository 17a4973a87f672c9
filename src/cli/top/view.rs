//! Draws the screen: header, notices, panels, footer; the stages of a boot instead of panels before
//! the server is ready.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Constraint::{Fill, Length, Min};
use ratatui::layout::{Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Padding, Paragraph, Sparkline, SparklineBar, Widget, Wrap};

use super::exposition::Page;
use super::format::{count, duration};
use super::notice::Weight;
use super::notices::notices;
use super::panels::{BAD, FIRST, GOOD, LABEL_WIDTH, Panel, QUIET, Row, STRONG, TITLE, WARNING, bar, panels};
use super::scrape::{Boot, State};
use super::watch::{Link, Watch};

/// Smallest screen that shows anything.
const MIN_WIDTH: u16 = 36;
const MIN_HEIGHT: u16 = 8;
/// With fewer rows panels have no titles.
const TITLES_FROM: u16 = 18;
/// Two columns of panels from here on.
const TWO_COLUMNS_FROM: u16 = 110;
/// Rows of the panels above the chart, where there are two columns of them.
const TOP_ROWS: u16 = 10;
/// Columns of the figures beside the chart.
const CHART_LABEL_WIDTH: u16 = 28;

/// Keys and what figures mean.
const HELP: &str = "\
q, Esc, Ctrl-C  quit
p, space        pause the display
?               this help
Ctrl-L          draw anew

Rates are means of 10 s. Latencies, shares and findings are of the last
minute; the chart is scaled to its highest value, newest at the right.

first token  from the arrival of a request to its first reply token
inter-token  between two tokens of a reply
step         one step of the engine; busy is the time in steps
blocks       KV cache: █ used by sequences, ▒ kept for later prompts
exchanges    share of the steps in which a GPU exchanged or waited
accepted     share of the drafted tokens that became part of a reply
stopped      replies that the guard ended for endless repetition";

/// Columns of the help with its border.
const HELP_WIDTH: u16 = 76;

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen<'a> {
    pub(super) watch: &'a Watch,
    pub(super) now: Duration,
    pub(super) color: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
}

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
            let text = format!("too small: {}x{} of {MIN_WIDTH}x{MIN_HEIGHT}", area.width, area.height);
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
            return;
        }
        let tall = u16::from(area.height >= 10);
        let notice_rows = 1 + u16::from(area.height >= 32);
        let parts = [Length(1 + tall), Length(notice_rows), Fill(1), Length(tall)];
        let [header, notices, body, footer] = Layout::vertical(parts).areas(area);
        let buffer = frame.buffer_mut();
        self.header(header, buffer);
        self.notices(notices, buffer);
        self.body(body, area.height >= TITLES_FROM, buffer);
        if !footer.is_empty() {
            self.footer(footer, buffer);
        }
        if self.help {
            help(area, buffer);
        }
        if !self.color {
            without_colors(buffer);
        }
    }

    fn header(&self, area: Rect, buffer: &mut Buffer) {
        let last = self.watch.last();
        let model = last.and_then(|page| page.label("perigee_build_info", "model_name"));
        let left = Line::styled(format!(" {}", model.unwrap_or("perigee")), STRONG);
        let (state, style) = self.state();
        let mut right = Line::from(Span::styled(format!("● {state}"), style));
        if let Some(uptime) = self.uptime() {
            right.push_span(Span::styled(format!("  up {}", duration(uptime)), QUIET));
        }
        sides(area, &left, &right, buffer);
        // Of facts that do not fit the last ones are left out.
        let width = usize::from(area.width);
        let mut facts = Line::styled(format!(" {}", self.watch.url), QUIET);
        for fact in last.map(facts_of).unwrap_or_default() {
            if facts.width() + 3 + fact.chars().count() < width {
                facts.push_span(format!("   {fact}"));
            }
        }
        put(Rect { y: area.y + 1, height: area.height - 1, ..area }, &facts, buffer);
    }

    /// The server's state in a word or two.
    fn state(&self) -> (&str, Style) {
        match &self.watch.link {
            Link::Asking => ("asking", QUIET),
            Link::Lost { problem, .. } => (problem.kind, BAD),
            Link::Up(State { word, notice: Some(notice), .. }) => (word, style_of(notice.weight)),
            Link::Up(State { word, boot, .. }) => (word, if boot.is_some() { WARNING } else { GOOD }),
        }
    }

    /// Goes on between scrapes; of a server that is gone it is not known.
    fn uptime(&self) -> Option<f64> {
        let Link::Up(_) = self.watch.link else { return None };
        let age = self.now.saturating_sub(self.watch.last_at()?).as_secs_f64();
        Some(self.watch.last()?.uptime()? + age)
    }

    fn notices(&self, area: Rect, buffer: &mut Buffer) {
        let notices = notices(self.watch, self.now.as_secs_f64());
        let hidden = notices.len().saturating_sub(usize::from(area.height));
        for (notice, row) in notices.iter().zip(area.rows()) {
            let style = style_of(notice.weight);
            let is_last = row.bottom() == area.bottom();
            let more = if hidden > 0 && is_last { format!("(and {hidden} more)") } else { String::new() };
            let text = Line::styled(format!(" ! {}", notice.text), style);
            sides(row, &text, &Line::styled(more, style), buffer);
        }
    }

    fn body(&self, area: Rect, titles: bool, buffer: &mut Buffer) {
        if let Link::Up(State { boot: Some(boot), .. }) = &self.watch.link {
            return booting(boot, area, buffer);
        }
        let Some(panels) = panels(self.watch) else {
            let asking = matches!(self.watch.link, Link::Asking);
            let text = if asking { "asking" } else { "no figures of" };
            let middle = Rect { y: area.y + area.height / 3, height: 1, ..area };
            Line::styled(format!("{text} {}", self.watch.url), QUIET).centered().render(middle, buffer);
            return;
        };
        if titles && area.width >= TWO_COLUMNS_FROM {
            let [requests, tokens, latency, cache, gpus, speculation, guard, engine] = &panels;
            let [top, bottom] = Layout::vertical([Length(TOP_ROWS), Fill(1)]).areas(area);
            let [left, right] = Layout::horizontal([Fill(1), Fill(1)]).spacing(2).areas(top);
            self.stack([requests, engine, guard], left, titles, buffer);
            self.stack([latency, cache, speculation], right, titles, buffer);
            self.stack([tokens, gpus], bottom, titles, buffer);
        } else {
            self.stack(&panels, area, titles, buffer);
        }
        if matches!(self.watch.link, Link::Lost { .. }) {
            buffer.set_style(area, QUIET.remove_modifier(Modifier::BOLD));
        }
    }

    /// Panels below one another. Those at the end that do not fit are left out; spare rows belong to
    /// the chart.
    fn stack<'a>(
        &self,
        panels: impl IntoIterator<Item = &'a Panel>,
        area: Rect,
        titles: bool,
        buffer: &mut Buffer,
    ) {
        let (mut spare, mut shown, mut heights) = (area.height, Vec::new(), Vec::new());
        let title = u16::from(titles);
        for panel in panels.into_iter().filter(|panel| !panel.rows.is_empty()) {
            if spare < title + panel.key_rows as u16 {
                break;
            }
            let rows = if titles { panel.rows.len() } else { panel.key_rows };
            let height = spare.min(title + rows as u16);
            spare -= height;
            heights.push(if panel.is_chart() { Min(height) } else { Length(height) });
            shown.push(panel);
        }
        for (panel, area) in shown.into_iter().zip(Layout::vertical(heights).split(area).iter()) {
            let note = if panel.is_chart() { self.chart_note(area.width) } else { panel.note.clone() };
            let inside = if titles { titled(panel.title, &note, *area, buffer) } else { *area };
            if panel.is_chart() {
                let areas = Layout::vertical(vec![Fill(1); panel.rows.len()]).split(inside);
                panel.rows.iter().zip(areas.iter()).for_each(|(row, area)| self.chart(row, *area, buffer));
            } else {
                let width = usize::from(inside.width);
                panel
                    .rows
                    .iter()
                    .zip(inside.rows())
                    .for_each(|(row, area)| put(area, &row.line(width), buffer));
            }
        }
    }

    /// Time that the chart shows.
    fn chart_note(&self, width: u16) -> String {
        let columns = width.saturating_sub(CHART_LABEL_WIDTH + 1);
        format!("last {}", duration((self.watch.column() * u32::from(columns)).as_secs_f64()))
    }

    /// A row, the course of its figure, and the highest value of it that is shown.
    fn chart(&self, row: &Row, area: Rect, buffer: &mut Buffer) {
        let Some(course) = row.course else { return };
        // A row parts charts of several rows.
        let gap = u16::from(area.height > 2);
        let area = Rect { height: area.height - gap, ..area };
        let [label, plot, _] =
            Layout::horizontal([Length(CHART_LABEL_WIDTH), Fill(1), Length(1)]).areas(area);
        let values = self.watch.columns(usize::from(plot.width), self.now, course);
        let peak = values.iter().flatten().copied().fold(0.0, f64::max);
        let name_width = LABEL_WIDTH - 1;
        let peak_line = Line::styled(format!(" {:name_width$}{} tokens/s", "peak", count(peak)), QUIET);
        let lines = [row.line(usize::from(label.width)), peak_line];
        lines.iter().zip(label.rows()).for_each(|(line, row)| put(row, line, buffer));
        let levels = f64::from(plot.height) * 8.0;
        let column = |value: Option<f64>| match value {
            None => SparklineBar::from(None),
            // A line at the bottom.
            Some(value) if value <= 0.0 => SparklineBar::from(1).style(Some(QUIET)),
            Some(value) => SparklineBar::from((value / peak * levels).round().max(1.0) as u64),
        };
        let columns = Sparkline::default().data(values.into_iter().map(column)).absent_value_symbol(" ");
        columns.max(levels as u64).style(FIRST).render(plot, buffer);
    }

    fn footer(&self, area: Rect, buffer: &mut Buffer) {
        let mut left = Line::default();
        for (key, what) in [("q", "quit"), ("p", if self.paused { "go on" } else { "pause" }), ("?", "help")]
        {
            left.push_span(Span::styled(format!(" {key}"), STRONG));
            left.push_span(Span::styled(format!(" {what} "), QUIET));
        }
        let interval = count(self.watch.interval.as_secs_f64());
        let right = match self.paused {
            true => Line::styled("PAUSED", WARNING.add_modifier(Modifier::REVERSED)),
            false => Line::styled(format!("every {interval} s"), QUIET),
        };
        sides(area, &left, &right, buffer);
    }
}

/// Facts that do not change while a server runs.
pub(super) fn facts_of(page: &Page) -> Vec<String> {
    let engine = |label: &str| page.label("perigee_engine_info", label);
    let version = page.label("perigee_build_info", "version").map(|version| format!("version {version}"));
    let cache = engine("cache_dtype").map(|dtype| format!("{dtype} cache"));
    let context = engine("max_model_len").and_then(|tokens| tokens.parse::<f64>().ok());
    let context = context.map(|tokens| format!("{} context", count(tokens)));
    [engine("backend").map(str::to_owned), version, cache, context].into_iter().flatten().collect()
}

fn style_of(weight: Weight) -> Style {
    match weight {
        Weight::Note => TITLE,
        Weight::Warning => WARNING,
        Weight::Problem => BAD,
    }
}

/// A line in the first row of an area. A line that is cut ends in an ellipsis.
fn put(area: Rect, line: &Line<'_>, buffer: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    buffer.set_line(area.x, area.y, line, area.width);
    if line.width() > usize::from(area.width) {
        buffer[(area.right() - 1, area.y)].set_symbol("…");
    }
}

/// A line at the left and one at the right edge; where both do not fit, the left one is cut.
fn sides(area: Rect, left: &Line<'_>, right: &Line<'_>, buffer: &mut Buffer) {
    let parts = [Fill(1), Length(right.width() as u16), Length(1)];
    let [left_area, right_area, _] = Layout::horizontal(parts).areas(area);
    put(Rect { width: left_area.width.saturating_sub(1), ..left_area }, left, buffer);
    put(right_area, right, buffer);
}

/// Draws a title in a rule, with a note at its end; returns the area below it.
fn titled(title: &str, note: &str, area: Rect, buffer: &mut Buffer) -> Rect {
    let quiet = |text: String| Span::styled(text, QUIET);
    let left = Line::from(vec![quiet("─ ".into()), Span::styled(title, TITLE), quiet(" ".into())]);
    let note = if note.is_empty() { "─".into() } else { format!(" {note} ─") };
    let right = Line::from(quiet(note)).right_aligned();
    let block = Block::new().borders(Borders::TOP).border_style(QUIET).title(left).title(right);
    let inside = block.inner(area);
    block.render(area, buffer);
    inside
}

/// Stages of a boot, and a bar of the one that runs.
fn booting(boot: &Boot, area: Rect, buffer: &mut Buffer) {
    let inside = titled("Boot", &duration(boot.seconds), area, buffer);
    // Of more stages than rows the last ones are shown.
    let hidden = boot.stages.len().saturating_sub(usize::from(inside.height).saturating_sub(2));
    let mut lines = Vec::new();
    for stage in &boot.stages[hidden..] {
        let (mark, style) = if stage.done { ("✓", GOOD) } else { ("▸", WARNING) };
        let mut line = Line::from(Span::styled(format!(" {mark} "), style));
        line.push_span(Span::styled(format!("{:14}", stage.name), STRONG));
        line.push_span(Span::styled(format!("{:>8.1} s", stage.seconds), QUIET));
        if !stage.done {
            line.push_span(Span::styled(format!("{:>6} %", stage.percent), WARNING));
        }
        lines.push(line);
    }
    if let Some(stage) = boot.current() {
        let share = f64::from(stage.percent) / 100.0;
        let mut line = Line::raw(" ");
        line.extend(bar(&[(share, '█', FIRST)], usize::from(inside.width).saturating_sub(2)));
        lines.extend([Line::default(), line]);
    }
    lines.iter().zip(inside.rows()).for_each(|(line, row)| put(row, line, buffer));
}

fn help(screen: Rect, buffer: &mut Buffer) {
    let block = Block::bordered().title(" perigee top ").border_style(TITLE).padding(Padding::horizontal(1));
    let rows = HELP.lines().count() as u16 + 2;
    // On narrow screens lines wrap, and the help has all rows.
    let height = if screen.width < HELP_WIDTH { screen.height } else { rows };
    let area = screen.centered(Length(HELP_WIDTH), Length(height));
    Clear.render(area, buffer);
    Paragraph::new(HELP).wrap(Wrap { trim: false }).block(block).render(area, buffer);
}

/// Without colours the text itself and its weight tell the same.
fn without_colors(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if Some(cell.fg) == QUIET.fg {
            cell.modifier.insert(Modifier::DIM);
        }
        cell.fg = Color::Reset;
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
