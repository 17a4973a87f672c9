//! Signals: SIGTERM and SIGINT end the server; other signals that would kill the process are
//! ignored with a line in the log.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes over SIGTERM and SIGINT, and ignores the signals of [`IGNORED`] from then on.
    pub(super) fn new() -> io::Result<Self> {
        for (kind, name, why) in IGNORED {
            let mut signals = signal(kind())?;
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    tracing::info!("{name}: {why}");
                }
            });
        }
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT"),
        }
    }
}

/// A kind of signal, its name, and its log message.
type Ignored = (fn() -> SignalKind, &'static str, &'static str);

/// Other servers take these signals as a request to reopen the log file or reload settings; a
/// terminal that closes sends SIGHUP.
const IGNORED: [Ignored; 3] = [
    (SignalKind::hangup, "SIGHUP", "nothing is reloaded, settings are read at the start; requests go on"),
    (SignalKind::user_defined1, "SIGUSR1", "has no meaning here; requests go on"),
    (SignalKind::user_defined2, "SIGUSR2", "has no meaning here; requests go on"),
];
