//! Progress on stderr of long work on files, in bytes per second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shortest time between two lines if stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A bar on a terminal, otherwise a line at intervals; both with bytes per second and time left.
pub(super) struct WorkProgress {
    begun: Instant,
    line: Instant,
    bar: Option<ProgressBar>,
    shown: bool,
}

impl WorkProgress {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, line: now, bar: None, shown: std::io::stderr().is_terminal() }
    }

    /// Reports `done` of `total` bytes. `skipped` bytes come from an earlier run and do not count
    /// towards the speed.
    pub(super) fn at(&mut self, what: &str, done: u64, skipped: u64, total: u64) {
        if self.shown {
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::new(total);
                let template = "{msg} [{bar:30}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
                match ProgressStyle::with_template(template) {
                    Ok(style) => bar.with_style(style),
                    Err(_) => bar,
                }
            });
            bar.set_message(what.to_owned());
            bar.set_position(done);
        } else if self.line.elapsed() >= LINE_EVERY {
            self.line = Instant::now();
            eprintln!("{what}: {}", rate_line(done, skipped, total, self.begun.elapsed().as_secs_f64()));
        }
    }

    /// Seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

impl Drop for WorkProgress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn rate_line(done: u64, skipped: u64, total: u64, seconds: f64) -> String {
    let rate = done.saturating_sub(skipped) as f64 / seconds.max(1e-9);
    let left = total.saturating_sub(done) as f64 / rate.max(1.0);
    format!("{} of {} MB, {:.0} MB/s, {left:.0} s left", done / 1_000_000, total / 1_000_000, rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_does_not_count_as_speed() {
        let line = rate_line(300_000_000, 100_000_000, 700_000_000, 2.0);
        assert_eq!(line, "300 of 700 MB, 100 MB/s, 4 s left");
    }
}
