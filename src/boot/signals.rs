//! Signals: SIGTERM and SIGINT end the server, SIGHUP reloads the settings; other signals that would
//! kill the process are ignored, with a line in the log where that cannot raise them again.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

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

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT"),
        }
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
