//! Screens, compared with the files of `test_screens/`. A fault prints the screen as it is.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::cli::top::scrape::Stage;
use crate::cli::top::test_server::{absent, assert_screen, busy, idle, lost};

fn screen(watch: &Watch) -> Screen<'_> {
    let at = watch.window.last_at().unwrap_or_default().max(Duration::from_secs(60));
    Screen { watch, now: at, palette: Palette { color: true }, paused: false, help: false }
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

fn check(screen: &Screen<'_>, name: &str, width: u16, height: u16) {
    assert_screen(&format!("{name}-{width}x{height}"), &text(&drawn(screen, width, height)));
}

fn booting() -> Watch {
    let mut watch = idle();
    let stage = |name: &str, done: bool, percent: u8, seconds: f64| Stage {
        name: name.into(),
        done,
        percent,
        seconds,
    };
    watch.link = Link::Up(ServerState::Booting(Boot {
        seconds: 14.2,
        stages: vec![
            stage("checkpoint", true, 100, 0.8),
            stage("memory plan", true, 100, 0.0),
            stage("weights", false, 43, 13.4),
        ],
    }));
    watch
}

#[test]
fn a_busy_server_80x24() {
    check(&screen(&busy()), "busy", 80, 24);
}

#[test]
fn a_busy_server_120x40() {
    check(&screen(&busy()), "busy", 120, 40);
}

#[test]
fn a_busy_server_40x10() {
    check(&screen(&busy()), "busy", 40, 10);
}

#[test]
fn an_empty_server_80x24() {
    check(&Screen { now: Duration::from_secs(5), ..screen(&idle()) }, "idle", 80, 24);
}

#[test]
fn an_empty_server_120x40() {
    check(&Screen { now: Duration::from_secs(5), ..screen(&idle()) }, "idle", 120, 40);
}

#[test]
fn a_server_that_boots_80x24() {
    check(&Screen { now: Duration::from_secs(5), ..screen(&booting()) }, "booting", 80, 24);
}

#[test]
fn a_server_that_boots_120x40() {
    check(&Screen { now: Duration::from_secs(5), ..screen(&booting()) }, "booting", 120, 40);
}

#[test]
fn a_server_that_is_gone_80x24() {
    check(&Screen { now: Duration::from_secs(65), ..screen(&lost()) }, "lost", 80, 24);
}

#[test]
fn a_server_that_is_gone_120x40() {
    check(&Screen { now: Duration::from_secs(65), ..screen(&lost()) }, "lost", 120, 40);
}

#[test]
fn a_server_that_was_never_there_80x24() {
    check(&screen(&absent()), "absent", 80, 24);
}

#[test]
fn a_server_that_was_never_there_120x40() {
    check(&screen(&absent()), "absent", 120, 40);
}

#[test]
fn help_and_pause() {
    check(&Screen { help: true, paused: true, ..screen(&busy()) }, "help", 80, 24);
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
        for width in [1, 2, 10, 36, 37, 55, 80, 81, 109, 110, 200] {
            for height in (1..50).chain([100]) {
                drawn(&Screen { help: true, ..screen(&watch) }, width, height);
            }
        }
    }
}

#[test]
fn without_colours_there_are_none() {
    let watch = lost();
    let screen = Screen { palette: Palette { color: false }, help: true, ..screen(&watch) };
    let terminal = drawn(&screen, 80, 24);
    let cells = &terminal.backend().buffer().content;
    assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}
