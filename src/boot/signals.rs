//! Signals: SIGTERM and SIGINT end the server, the others that would kill it do nothing but a line
//! in the log.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, to be waited for.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes over SIGTERM and SIGINT, and from then on ignores the signals of [`IGNORED`].
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

    /// The next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT"),
        }
    }
}

/// A kind of signal, its name, and what is said about it.
type Ignored = (fn() -> SignalKind, &'static str, &'static str);

/// Whoever sends them to other servers asks for another log file or new settings; a terminal that
/// goes away sends SIGHUP.
const IGNORED: [Ignored; 3] = [
    (SignalKind::hangup, "SIGHUP", "nothing is reloaded, settings are read at the start; requests go on"),
    (SignalKind::user_defined1, "SIGUSR1", "has no meaning here; requests go on"),
    (SignalKind::user_defined2, "SIGUSR2", "has no meaning here; requests go on"),
];
