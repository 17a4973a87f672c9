//! Boot progress for `/health/startup` and for the log: a bar on a terminal, otherwise one line per
//! stage. Weights with their bytes and their speed.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::engine::EngineProgress;
use perigee_http::server::Readiness;

/// Follows the boot from stage to stage.
pub(super) struct Progress<'a> {
    readiness: &'a Readiness,
    current: Option<(&'static str, Instant)>,
    /// Bytes of weights that the current stage has loaded.
    bytes: u64,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(readiness: &'a Readiness) -> Self {
        Self { readiness, current: None, bytes: 0, bar: None }
    }

    /// Ends the current stage and begins the next.
    pub(super) fn stage(&mut self, name: &'static str) {
        self.end_stage();
        self.readiness.begin(name);
        self.current = Some((name, Instant::now()));
    }

    /// Updates the progress from the engine's own stages.
    pub(super) fn engine(&mut self, at: &EngineProgress) {
        match at {
            EngineProgress::Tuning { done: 0, .. } => self.stage("tuning"),
            EngineProgress::Tuning { done, total } => self.readiness.progress(*done as f32 / *total as f32),
            EngineProgress::Planned(_) => self.stage("weights"),
            EngineProgress::Weights { done, total } => {
                self.bytes = *done;
                self.readiness.progress(*done as f32 / (*total).max(1) as f32);
                self.draw(*done, *total);
            }
            EngineProgress::WarmingUp => self.stage("warm-up"),
        }
    }

    /// Draws a bar if stderr is a terminal.
    fn draw(&mut self, done: u64, total: u64) {
        if self.bar.is_none() && std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total);
            let template = "weights [{bar:40}] {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }

    /// Ends the last stage of a successful boot.
    pub(super) fn done(mut self) {
        self.end_stage();
    }

    fn end_stage(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if let Some((name, begun)) = self.current.take() {
            let took = begun.elapsed().as_secs_f64();
            let seconds = format!("{took:.3}");
            match std::mem::take(&mut self.bytes) {
                0 => tracing::info!(stage = name, seconds, "boot stage done"),
                bytes => {
                    let gb_per_s = format!("{:.2}", bytes as f64 / took.max(1e-9) / 1e9);
                    tracing::info!(stage = name, seconds, bytes, gb_per_s, "boot stage done");
                }
            }
        }
    }
}

impl Drop for Progress<'_> {
    /// A failed boot leaves no half-drawn bar and no line on the failed stage: the error names
    /// that.
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
