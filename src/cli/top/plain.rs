//! The same figures as lines of text, for pipes and logs.

use std::fmt::Write as _;

use super::figures::{Figures, Notice};
use super::format::duration;
use super::palette::Palette;
use super::rows::{Row, Source};
use super::scrape::{Boot, ServerState};
use super::view::facts_of;
use super::watch::{Link, Watch};

/// The state of a server that answered.
pub(super) fn snapshot(watch: &Watch, figures: Option<&Figures>, notices: &[Notice]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    let last = watch.window.last();
    line("url", &watch.url);
    let state = match &watch.link {
        Link::Asking => "asking".into(),
        Link::Lost(loss) => format!("{}: {}", loss.problem.kind, loss.problem.text),
        Link::Up(ServerState::Booting(boot)) => booting(boot),
        Link::Up(state) => state.word().into(),
    };
    line("state", &state);
    let Some(last) = last else { return text };
    if let Some(model) = &last.facts.model {
        line("model", model);
    }
    let facts = facts_of(last);
    if !facts.is_empty() {
        line("facts", &facts.join(", "));
    }
    if let Some(uptime) = last.uptime() {
        line("up", &duration(uptime));
    }
    for notice in notices {
        line("notice", &notice.text);
    }
    if figures.is_none() || matches!(watch.link, Link::Up(ServerState::Booting(_))) {
        return text;
    }
    let source = Source { last, figures, palette: Palette { color: false } };
    let mut rows = |rows: Vec<Row>| rows.iter().for_each(|row| line(row.label, &row.text()));
    rows(source.requests());
    rows(source.tokens());
    rows(source.latencies());
    rows(source.cache());
    rows(source.speculation());
    rows(source.guard());
    rows(source.engine());
    text
}

fn booting(boot: &Boot) -> String {
    let seconds = duration(boot.seconds);
    match boot.current() {
        Some(stage) => format!("booting for {seconds}: {}, {} %", stage.name, stage.percent),
        None => format!("booting for {seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::top::figures::notices;
    use crate::cli::top::test_server::{assert_screen, busy, idle};

    fn text(watch: &Watch) -> String {
        let figures = Figures::of(watch);
        snapshot(watch, figures.as_ref(), &notices(watch, figures.as_ref(), 61.0))
    }

    #[test]
    fn a_busy_server() {
        assert_screen("busy-plain", &text(&busy()));
    }

    #[test]
    fn a_server_that_boots() {
        let mut watch = Watch::new("http://a:1".into(), Duration::from_secs(1));
        assert_eq!(text(&watch), "url           http://a:1\nstate         asking\n");
        watch = idle();
        watch.link = Link::Up(ServerState::Booting(Boot { seconds: 3.0, stages: Vec::new() }));
        let text = text(&watch);
        assert!(text.contains("\nstate         booting for 3 s\n") && !text.contains("running"), "{text}");
    }
}
