//! The same figures as lines of text, for pipes and logs.

use std::fmt::Write as _;

use super::format::duration;
use super::notice::Notice;
use super::panels::panels;
use super::scrape::{Boot, State};
use super::view::facts_of;
use super::watch::{Link, Watch};

/// The state of a server that answered.
pub(super) fn snapshot(watch: &Watch, notices: &[Notice]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    line("url", &watch.url);
    let state = match &watch.link {
        Link::Asking => "asking".into(),
        Link::Lost { problem, .. } => format!("{}: {}", problem.kind, problem.text),
        Link::Up(State { boot: Some(boot), .. }) => booting(boot),
        Link::Up(state) => state.word.clone(),
    };
    line("state", &state);
    let Some(last) = watch.last() else { return text };
    if let Some(model) = last.label("perigee_build_info", "model_name") {
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
    if matches!(watch.link, Link::Up(State { boot: Some(_), .. })) {
        return text;
    }
    let panels = panels(watch).into_iter().flatten();
    panels.flat_map(|panel| panel.rows).for_each(|row| line(&row.label, &row.text()));
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
    use crate::cli::top::notices::notices;
    use crate::cli::top::test_server::{assert_screen, busy, idle, on_gpus};

    fn text(watch: &Watch) -> String {
        snapshot(watch, &notices(watch, 61.0))
    }

    #[test]
    fn a_busy_server() {
        assert_screen("busy-plain", &text(&busy()));
    }

    #[test]
    fn a_server_on_gpus() {
        let text = text(&on_gpus());
        let gpu = "\nGPU 1         93 %, power_cap, 132 GiB of 141 GiB, 700 of 700 W, 64 °C, 1980 MHz, exchanges 5 %\n";
        assert!(text.contains(gpu), "{text}");
        assert!(text.contains("\nnotice        GPU 1 takes 1.4 times as long as the others\n"), "{text}");
    }

    #[test]
    fn a_server_that_boots() {
        let mut watch = Watch::new("http://a:1".into(), Duration::from_secs(1));
        assert_eq!(text(&watch), "url           http://a:1\nstate         asking\n");
        watch = idle();
        let boot = Some(Boot { seconds: 3.0, stages: Vec::new() });
        watch.link = Link::Up(State { word: "booting".into(), notice: None, boot });
        let text = text(&watch);
        assert!(text.contains("\nstate         booting for 3 s\n") && !text.contains("running"), "{text}");
    }
}
