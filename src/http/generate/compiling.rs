//! The compilation of a request's grammar, and the turn it waits for; both end with the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::GenerateError;

/// A compilation that a request waits for; dropping this stops the compilation.
#[derive(Default)]
pub(super) struct Compiling(Arc<Stop>);

/// Why a compilation ended before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nobody waits for the grammar.
    ClientLeft,
    /// It took longer than `structured_output.compile_timeout_s`.
    OutOfTime,
}

/// Signals the compiling thread to stop, with the reason.
#[derive(Default)]
pub(super) struct Stop {
    flag: Arc<AtomicBool>,
    cause: OnceLock<Cause>,
}

impl Compiling {
    /// The signal that the compiling thread checks.
    pub(super) fn stop(&self) -> Arc<Stop> {
        self.0.clone()
    }

    /// Stops the compilation; the first reason counts.
    pub(super) fn end(&self, cause: Cause) {
        let _ = self.0.cause.set(cause);
        self.0.flag.store(true, Ordering::Relaxed);
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.end(Cause::ClientLeft);
    }
}

impl Stop {
    /// Set when the compilation has to stop.
    pub(super) fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// The reason for the stop, if there was one.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }
}

/// Waits for one of the `turns` to compile, at most `limit_s` seconds.
pub(super) async fn wait_for_turn(
    turns: &Arc<Semaphore>,
    limit_s: u32,
) -> Result<OwnedSemaphorePermit, GenerateError> {
    let limit = Duration::from_secs(limit_s.into());
    match tokio::time::timeout(limit, turns.clone().acquire_owned()).await {
        Ok(Ok(turn)) => Ok(turn),
        Ok(Err(_)) => Err(GenerateError::Draining),
        Err(_) => Err(GenerateError::GrammarsWait { limit_s }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_that_others_hold_is_no_fault_of_the_grammar() {
        let turns = Arc::new(Semaphore::new(1));
        let held = wait_for_turn(&turns, 0).await;
        assert!(held.is_ok());
        assert_eq!(wait_for_turn(&turns, 0).await.err(), Some(GenerateError::GrammarsWait { limit_s: 0 }));
        drop(held);
        assert!(wait_for_turn(&turns, 0).await.is_ok());
    }

    #[test]
    fn a_compilation_whose_client_has_left_is_stopped() {
        let compiling = Compiling::default();
        let stop = compiling.stop();
        assert!(!stop.flag().load(Ordering::Relaxed));
        assert_eq!(stop.cause(), None);
        drop(compiling);
        assert!(stop.flag().load(Ordering::Relaxed));
        assert_eq!(stop.cause(), Some(Cause::ClientLeft));
        let compiling = Compiling::default();
        let stop = compiling.stop();
        compiling.end(Cause::OutOfTime);
        drop(compiling);
        assert_eq!(stop.cause(), Some(Cause::OutOfTime));
    }
}
