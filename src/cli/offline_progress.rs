//! Progress of offline work on stderr: a bar on a terminal, otherwise a line every tenth, at most
//! one per second.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// The unit of the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes, with a rate.
    Bytes,
    /// Any other unit, by its name.
    Of(&'static str),
}

/// Follows one piece of work.
pub(super) struct OfflineProgress {
    what: &'static str,
    unit: Unit,
    begun: Instant,
    bar: Option<ProgressBar>,
    /// Tenths reported so far, and the time of the last report.
    tenths: u64,
    reported: Instant,
}

impl OfflineProgress {
    pub(super) fn new(what: &'static str, unit: Unit) -> Self {
        let now = Instant::now();
        Self { what, unit, begun: now, bar: None, tenths: 0, reported: now }
    }

    /// Reports `done` of `total`.
    pub(super) fn at(&mut self, done: u64, total: u64) {
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::new(total);
                let template = match self.unit {
                    Unit::Bytes => {
                        "{msg} [{bar:40}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left".to_owned()
                    }
                    Unit::Of(unit) => format!("{{msg}} [{{bar:40}}] {{pos}}/{{len}} {unit}, {{eta}} left"),
                };
                if let Ok(style) = ProgressStyle::with_template(&template) {
                    bar.set_style(style);
                }
                bar.set_message(self.what);
                bar
            });
            bar.set_position(done);
            return;
        }
        let tenths = if total == 0 { 10 } else { (done as u128 * 10 / u128::from(total)) as u64 };
        if tenths > self.tenths && self.reported.elapsed().as_secs() >= 1 {
            (self.tenths, self.reported) = (tenths, Instant::now());
            let seconds = self.begun.elapsed().as_secs_f64().max(1e-9);
            let left = seconds / done.max(1) as f64 * total.saturating_sub(done) as f64;
            let rate = match self.unit {
                Unit::Bytes => format!("{:.0} MB/s", done as f64 / seconds / 1e6),
                Unit::Of(unit) => format!("{:.1} {unit}/s", done as f64 / seconds),
            };
            eprintln!("{}: {} %, {rate}, {left:.0} s left", self.what, tenths * 10);
        }
    }
}

impl Drop for OfflineProgress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
