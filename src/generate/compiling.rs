//! The compilation of a request's grammar; ends with the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A compilation that a request waits for; dropping this stops the compilation.
#[derive(Default)]
pub(super) struct Compiling(Arc<Stop>);

/// Signals the compiling thread to stop, with the reason.
#[derive(Default)]
pub(super) struct Stop {
    flag: Arc<AtomicBool>,
    why: OnceLock<&'static str>,
}

impl Compiling {
    /// The signal that the compiling thread checks.
    pub(super) fn stop(&self) -> Arc<Stop> {
        self.0.clone()
    }

    /// Stops the compilation; the first reason counts.
    pub(super) fn end(&self, why: &'static str) {
        let _ = self.0.why.set(why);
        self.0.flag.store(true, Ordering::Relaxed);
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.end("its client has left");
    }
}

impl Stop {
    /// Set when the compilation has to stop.
    pub(super) fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// The reason for the stop.
    pub(super) fn why(&self) -> &'static str {
        self.why.get().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compilation_whose_client_has_left_is_stopped() {
        let compiling = Compiling::default();
        let stop = compiling.stop();
        assert!(!stop.flag().load(Ordering::Relaxed));
        drop(compiling);
        assert!(stop.flag().load(Ordering::Relaxed));
        assert_eq!(stop.why(), "its client has left");
        let compiling = Compiling::default();
        let stop = compiling.stop();
        compiling.end("its time is over");
        drop(compiling);
        assert_eq!(stop.why(), "its time is over");
    }
}
