//! Boot progress for `/health/startup` and for the log: a bar on a terminal, otherwise one line per
//! stage.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::engine::EngineProgress;
use crate::server::Readiness;

/// Follows the boot from stage to stage.
pub(super) struct Progress<'a> {
    readiness: &'a Readiness,
    current: Option<(&'static str, Instant)>,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(readiness: &'a Readiness) -> Self {
        Self { readiness, current: None, bar: None }
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
                self.readiness.progress(*done as f32 / *total as f32);
                self.draw(*done as u64, *total as u64);
            }
            EngineProgress::WarmingUp => self.stage("warm-up"),
        }
    }

    /// Draws a bar if stderr is a terminal.
    fn draw(&mut self, done: u64, total: u64) {
        if self.bar.is_none() && std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total);
            if let Ok(style) =
                ProgressStyle::with_template("weights [{bar:40}] {pos}/{len} layers, {eta} left")
            {
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
            tracing::info!(
                stage = name,
                seconds = format!("{:.3}", begun.elapsed().as_secs_f64()),
                "boot stage done"
            );
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
