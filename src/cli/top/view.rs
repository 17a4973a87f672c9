//! Draws the screen: header, notices, panels, footer; what there is instead before the server is ready.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::chart;
use super::figures::{Figures, notices};
use super::format::{count, duration};
use super::layout::{Layout, MIN_HEIGHT, MIN_WIDTH};
use super::palette::Palette;
use super::panels::{Panels, title_line};
use super::reading::Reading;
use super::rows::Source;
use super::scrape::{Boot, ServerState};
use super::watch::{Link, Watch};

/// Keys and what figures mean.
const HELP: &str = "\
q, Esc, Ctrl-C  quit
p, space        pause the display
?               this help
Ctrl-L          draw anew

Rates are means of 10 s. Latencies, shares and findings are of the last
minute; charts are scaled to their highest value, newest at the right.

first token  from the arrival of a request to its first reply token
inter-token  between two tokens of a reply
step         one step of the engine; busy is the time in steps
blocks       KV cache: █ used by sequences, ▒ kept for later prompts
accepted     share of the drafted tokens that became part of a reply
stopped      replies that the guard ended for endless repetition";

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen<'a> {
    pub(super) watch: &'a Watch,
    pub(super) now: Duration,
    pub(super) palette: Palette,
    pub(super) paused: bool,
    pub(super) help: bool,
}

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let Some(layout) = Layout::of(area) else {
            let text = format!("too small: {}x{} of {MIN_WIDTH}x{MIN_HEIGHT}", area.width, area.height);
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
            return;
        };
        let figures = Figures::of(self.watch);
        let buffer = frame.buffer_mut();
        self.header(layout.header, buffer);
        self.notices(figures.as_ref(), layout.notices, buffer);
        self.body(figures.as_ref(), &layout, buffer);
        self.footer(layout.footer, buffer);
        if self.help {
            self.help(frame);
        }
    }

    fn header(&self, area: Rect, buffer: &mut Buffer) {
        let palette = self.palette;
        let last = self.watch.window.last();
        let model = last.and_then(|last| last.facts.model.clone()).unwrap_or_else(|| "perigee".into());
        let left = Line::from(Span::styled(format!(" {model}"), palette.strong()));
        let (state, style) = self.state();
        let mut right = vec![Span::styled(format!("● {state}"), style)];
        let uptime = self.uptime(last);
        if let Some(uptime) = uptime {
            right.push(Span::styled(format!("  up {}", duration(uptime)), palette.quiet()));
        }
        sides(area.x, area.y, area.width, &left, &Line::from(right), buffer);
        if area.height > 1 {
            let mut facts = vec![self.watch.url.clone()];
            facts.extend(last.map(facts_of).unwrap_or_default());
            let mut left = String::new();
            // Of facts that do not fit the last ones are left out, and the URL is cut.
            for fact in facts {
                if left.is_empty()
                    || left.chars().count() + 3 + fact.chars().count() < usize::from(area.width)
                {
                    left.push_str(if left.is_empty() { " " } else { "   " });
                    left.push_str(&fact);
                }
            }
            let line = Line::styled(left, palette.quiet());
            buffer.set_line(area.x, area.y + 1, &line, area.width);
        }
    }

    /// The server's state in a word or two.
    fn state(&self) -> (String, ratatui::style::Style) {
        let palette = self.palette;
        match &self.watch.link {
            Link::Asking => ("asking".into(), palette.quiet()),
            Link::Lost(loss) => (loss.problem.kind.into(), palette.bad()),
            Link::Up(state) => {
                let style = match state {
                    ServerState::Ready => palette.good(),
                    ServerState::Failed(_) | ServerState::EngineStopped | ServerState::EngineStuck => {
                        palette.bad()
                    }
                    _ => palette.warning(),
                };
                (state.word().to_owned(), style)
            }
        }
    }

    /// Goes on between scrapes; of a server that is gone it is not known.
    fn uptime(&self, last: Option<&Reading>) -> Option<f64> {
        let age = self.now.saturating_sub(self.watch.window.last_at()?).as_secs_f64();
        match self.watch.link {
            Link::Up(_) => Some(last?.uptime()? + age),
            _ => None,
        }
    }

    fn notices(&self, figures: Option<&Figures>, area: Rect, buffer: &mut Buffer) {
        let mut notices = notices(self.watch, figures, self.now.as_secs_f64());
        let rows = usize::from(area.height);
        let hidden = notices.len().saturating_sub(rows);
        notices.truncate(rows);
        let num_shown = notices.len();
        for (index, (notice, y)) in notices.into_iter().zip(area.top()..).enumerate() {
            let mut text = format!(" ! {}", notice.text);
            if hidden > 0 && index + 1 == num_shown {
                text.push_str(&format!("  (and {hidden} more)"));
            }
            buffer.set_line(area.x, y, &Line::styled(text, self.palette.weight(notice.weight)), area.width);
        }
    }

    fn body(&self, figures: Option<&Figures>, layout: &Layout, buffer: &mut Buffer) {
        let palette = self.palette;
        if let Link::Up(ServerState::Booting(boot)) = &self.watch.link {
            return booting(boot, layout.body, palette, buffer);
        }
        let Some(last) = self.watch.window.last() else {
            let lines = match self.watch.link {
                Link::Asking => [format!("asking {}", self.watch.url), String::new()],
                _ => [format!("no figures of {}", self.watch.url), String::new()],
            };
            for (line, y) in lines.into_iter().zip(layout.body.top() + layout.body.height / 3..) {
                let line = Line::styled(line, palette.quiet()).centered();
                buffer.set_line(layout.body.x, y, &centered(line, layout.body.width), layout.body.width);
            }
            return;
        };
        let source = Source { last, figures, palette };
        let panels = Panels { watch: self.watch, source, now: self.now, titles: layout.titles };
        for (panel, area) in &layout.panels {
            panels.draw(*panel, *area, buffer);
        }
        if matches!(self.watch.link, Link::Lost(_)) {
            buffer.set_style(layout.body, palette.quiet().remove_modifier(Modifier::BOLD));
        }
    }

    fn footer(&self, area: Rect, buffer: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let palette = self.palette;
        let mut left = Vec::new();
        for (key, what) in [("q", "quit"), ("p", if self.paused { "go on" } else { "pause" }), ("?", "help")]
        {
            left.push(Span::styled(format!(" {key}"), palette.strong()));
            left.push(Span::styled(format!(" {what} "), palette.quiet()));
        }
        let right = match self.paused {
            true => Span::styled("PAUSED", palette.warning().add_modifier(Modifier::REVERSED)),
            false => {
                let interval = self.watch.interval.as_secs_f64();
                Span::styled(format!("every {} s", count(interval)), palette.quiet())
            }
        };
        sides(area.x, area.y, area.width, &Line::from(left), &Line::from(right), buffer);
    }

    fn help(&self, frame: &mut Frame<'_>) {
        let screen = frame.area();
        let width = screen.width.min(76);
        // Words that wrap leave some columns of a row empty.
        let inner = usize::from(width - 4).max(1);
        let rows: usize = HELP.lines().map(|line| line.chars().count().div_ceil(inner).max(1)).sum();
        let height = screen.height.min(rows as u16 + 2);
        let area = Rect { x: (screen.width - width) / 2, y: (screen.height - height) / 2, width, height };
        let block = Block::bordered().title(" perigee top ").border_style(self.palette.title());
        let text = Paragraph::new(HELP).wrap(Wrap { trim: false });
        frame.render_widget(Clear, area);
        frame.render_widget(&block, area);
        let inside = block.inner(area);
        let inside = Rect { x: inside.x + 1, width: inside.width.saturating_sub(2), ..inside };
        frame.render_widget(text.alignment(Alignment::Left), inside);
    }
}

/// What does not change while a server runs.
pub(super) fn facts_of(last: &Reading) -> Vec<String> {
    let facts = &last.facts;
    let version = facts.version.as_ref().map(|version| format!("version {version}"));
    let cache = facts.cache_dtype.as_ref().map(|dtype| format!("{dtype} cache"));
    let context = facts.max_model_len.map(|tokens| format!("{} context", count(tokens)));
    [facts.backend.clone(), version, cache, context].into_iter().flatten().collect()
}

/// A line at the left and one at the right edge; where both do not fit, the left one is cut.
fn sides(x: u16, y: u16, width: u16, left: &Line<'_>, right: &Line<'_>, buffer: &mut Buffer) {
    let right_width = (right.width() as u16 + 1).min(width);
    buffer.set_line(x, y, left, width.saturating_sub(right_width + 1));
    buffer.set_line(x + width - right_width, y, right, right_width);
}

fn centered(line: Line<'static>, width: u16) -> Line<'static> {
    let pad = usize::from(width).saturating_sub(line.width()) / 2;
    let mut spans = vec![Span::raw(" ".repeat(pad))];
    let style = line.style;
    spans.extend(line.spans.into_iter().map(|span| span.patch_style(style)));
    Line::from(spans)
}

/// Stages of a boot, and a bar of the one that runs.
fn booting(boot: &Boot, area: Rect, palette: Palette, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let mut y = area.y;
    let mut put = |line: &Line<'_>| {
        if y < area.bottom() {
            buffer.set_line(area.x, y, line, area.width);
        }
        y += 1;
    };
    put(&title_line("Boot", &duration(boot.seconds), width, palette));
    // Of more stages than rows the last ones are shown.
    let rows = usize::from(area.height).saturating_sub(3);
    let hidden = boot.stages.len().saturating_sub(rows);
    for stage in &boot.stages[hidden..] {
        let (mark, style) = if stage.done { ("✓", palette.good()) } else { ("▸", palette.warning()) };
        let mut spans = vec![
            Span::styled(format!(" {mark} "), style),
            Span::styled(format!("{:14}", stage.name), palette.strong()),
            Span::styled(format!("{:>8.1} s", stage.seconds), palette.quiet()),
        ];
        if !stage.done {
            spans.push(Span::styled(format!("{:>6} %", stage.percent), palette.warning()));
        }
        put(&Line::from(spans));
    }
    if let Some(stage) = boot.current()
        && y + 1 < area.bottom()
    {
        let bar = Rect { x: area.x + 1, y: y + 1, width: area.width.saturating_sub(2), height: 1 };
        let share = f64::from(stage.percent) / 100.0;
        chart::bar(buffer, bar, &[(share, '█', palette.chart())], ('░', palette.quiet()));
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
