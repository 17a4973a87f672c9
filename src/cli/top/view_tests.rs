//! Screens, compared with the files of `test_screens/`. A fault prints the screen as it is.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::cli::top::scrape::Stage;
use crate::cli::top::test_server::{absent, assert_screen, busy, idle, lost, on_gpus};

fn screen(watch: &Watch) -> Screen<'_> {
    let at = watch.last_at().unwrap_or_default().max(Duration::from_secs(60));
    Screen { watch, now: at, color: true, paused: false, help: false }
}

fn drawn(screen: &Screen<'_>, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal
}

fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let row = |cells: &[ratatui::buffer::Cell]| {
        let row: String = cells.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", row.trim_end())
    };
    buffer.content.chunks(width).map(row).collect()
}

fn booting() -> Watch {
    let mut watch = idle();
    let stage = |name: &str, percent: u8, seconds: f64| Stage {
        name: name.into(),
        done: percent == 100,
        percent,
        seconds,
    };
    let stages =
        vec![stage("checkpoint", 100, 0.8), stage("memory plan", 100, 0.0), stage("weights", 43, 13.4)];
    let boot = Some(Boot { seconds: 14.2, stages });
    watch.link = Link::Up(State { word: "booting".into(), notice: None, boot });
    watch
}

#[test]
fn screens() {
    let check = |name: &str, screen: Screen<'_>, sizes: &[(u16, u16)]| {
        for (width, height) in sizes {
            assert_screen(&format!("{name}-{width}x{height}"), &text(&drawn(&screen, *width, *height)));
        }
    };
    let both = [(80, 24), (120, 40)];
    let at = Duration::from_secs;
    check("busy", screen(&busy()), &[(80, 24), (120, 40), (40, 10)]);
    check("gpus", screen(&on_gpus()), &both);
    check("idle", Screen { now: at(5), ..screen(&idle()) }, &both);
    check("booting", Screen { now: at(5), ..screen(&booting()) }, &both);
    check("lost", Screen { now: at(65), ..screen(&lost()) }, &both);
    check("absent", screen(&absent()), &both);
    check("help", Screen { help: true, paused: true, ..screen(&busy()) }, &[(80, 24)]);
}

#[test]
fn a_small_screen_says_so() {
    let watch = busy();
    let text = |width, height| text(&drawn(&screen(&watch), width, height));
    assert_eq!(text(30, 3), "too small: 30x3 of 36x8\n\n\n");
    assert_eq!(text(10, 3), "too small:\n10x3 of\n36x8\n");
}

#[test]
fn no_size_is_too_odd() {
    for watch in [busy(), idle(), booting(), lost(), absent(), Watch::new("u".into(), Duration::from_secs(1))]
    {
        for width in [1, 10, 36, 55, 80, 109, 110, 200] {
            for height in (1..36).chain([100]) {
                drawn(&Screen { help: true, ..screen(&watch) }, width, height);
            }
        }
    }
}

#[test]
fn without_colours_there_are_none() {
    let watch = lost();
    let screen = Screen { color: false, help: true, ..screen(&watch) };
    let terminal = drawn(&screen, 80, 24);
    let cells = &terminal.backend().buffer().content;
    assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}
