//! Signals: SIGTERM and SIGINT end the server, SIGHUP reloads the settings; other signals that would
//! kill the process are ignored, with a line in the log where that cannot raise them again.
//!
//! Supervisors repeat SIGTERM, and wrappers send it beside a terminal's SIGINT: one that comes soon after the first signal is
//! the same request. A SIGINT after the first signal, or a later SIGTERM, forces the end.

use std::io;
use std::sync::Arc;

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use perigee_http::server::Operator;

/// Receiver of SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Until something can be reloaded.
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP, and ignores the signals of [`IGNORED`] from then on.
    pub(super) fn new() -> io::Result<Self> {
        for (kind, name, why) in IGNORED {
            let mut signals = signal(kind())?;
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    tracing::info!("{name}: {why}");
                }
            });
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: Some(signal(SignalKind::hangup())?),
        })
    }

    /// Reloads the settings at every SIGHUP from now on.
    pub(super) fn reload_with(&mut self, operator: Arc<dyn Operator>) {
        let Some(mut hangup) = self.hangup.take() else { return };
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                tracing::info!("SIGHUP: reloading the settings");
                let operator = operator.clone();
                // What went wrong is in the log; the settings in force stay.
                let _ = tokio::task::spawn_blocking(move || operator.reload()).await;
            }
        });
    }

    /// Waits for the signal that begins the end.
    pub(super) async fn end(&mut self) -> Ending {
        self.next().await;
        Ending::now()
    }

    /// Waits for a signal that forces the end.
    pub(super) async fn force(&mut self, ending: Ending) {
        loop {
            let kind = self.next().await;
            if ending.is_forced_by(kind, Instant::now()) {
                return;
            }
            tracing::info!(
                "the second SIGTERM within two seconds is the first one's: the server ends as it was asked to"
            );
        }
    }

    async fn next(&mut self) -> Kind {
        tokio::select! {
            _ = self.terminate.recv() => {
                tracing::info!("SIGTERM");
                Kind::Terminate
            }
            _ = self.interrupt.recv() => {
                tracing::info!("SIGINT");
                Kind::Interrupt
            }
        }
    }
}

/// Time after the first signal in which a SIGTERM is the same request.
const SAME_TIME: Duration = Duration::from_secs(2);

/// A signal that ends the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Terminate,
    Interrupt,
}

/// The end that a first signal has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    began: Instant,
}

impl Ending {
    /// An end that begins at this moment.
    pub(super) fn now() -> Self {
        Self { began: Instant::now() }
    }

    /// Whether a further signal, at `now`, forces the end.
    fn is_forced_by(self, kind: Kind, now: Instant) -> bool {
        kind == Kind::Interrupt || now.saturating_duration_since(self.began) > SAME_TIME
    }
}

/// From then on a write to a file at the process's size limit fails and does not end the process: the log may
/// be such a file. To be called in a runtime.
pub(super) fn survive_file_size_limit() -> io::Result<()> {
    /// signal(7).
    const SIGXFSZ: i32 = 25;
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop)
}

/// A kind of signal, its name, and its log message.
type Ignored = (fn() -> SignalKind, &'static str, &'static str);

/// Other servers take these signals as a request to reopen the log file.
const IGNORED: [Ignored; 2] = [
    (SignalKind::user_defined1, "SIGUSR1", "has no meaning here; requests go on"),
    (SignalKind::user_defined2, "SIGUSR2", "has no meaning here; requests go on"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a SIGTERM that a supervisor repeated at once ended every stream.
    #[test]
    fn a_repeated_sigterm_is_one() {
        let began = Instant::now();
        let ending = Ending { began };
        for (kind, after_ms, forces) in [
            (Kind::Terminate, 0, false),
            (Kind::Terminate, 1999, false),
            (Kind::Terminate, 2000, false),
            (Kind::Terminate, 2001, true),
            (Kind::Terminate, 60_000, true),
            (Kind::Interrupt, 0, true),
            (Kind::Interrupt, 5000, true),
        ] {
            let now = began + Duration::from_millis(after_ms);
            assert_eq!(ending.is_forced_by(kind, now), forces, "{kind:?} after {after_ms} ms");
        }
    }
}
