//! The usage ledger: what every request came to, on disk before its client sees the end of the answer.
//!
//! A request is a line when it begins and a line when it ends. After a crash the next start marks those that had not ended as
//! cut, so that the lines of a number are always two. Days and months are those of UTC.

mod budgets;
mod config;
mod files;
mod line;
mod sums;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use budgets::Budgets;
pub use config::LedgerConfig;
use files::{Files, Written};
use line::{Ended, FORMAT, Head, Line, Opened, Tokens};
pub(super) use sums::{Query, Usage};

use super::moment;
use crate::api::{ApiError, Summary};
use perigee_telemetry::{Metrics, Throttle};

/// Time after which the disk has what was written.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// A ledger that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The folder or a file of it.
    #[error("usage.directory: {}: {source}", path.display())]
    Io {
        /// The folder or the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Two servers, one folder.
    #[error(
        "usage.directory: another process writes the ledger in {}; give each server a folder of its own",
        folder.display()
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
    },
    /// The last file is none of a ledger of this version.
    #[error(
        "usage.directory: {} does not begin as a ledger of this version; move it away, and a new one is begun",
        path.display()
    )]
    NoHead {
        /// The file.
        path: PathBuf,
    },
}

/// The ledger of a server.
pub struct Ledger {
    config: LedgerConfig,
    folder: PathBuf,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

struct State {
    files: Files,
    /// The number of the next request.
    next: u64,
    /// Requests that have not ended, by number.
    open: BTreeMap<u64, Opened>,
    budgets: Budgets,
    /// Whether there is something that the disk may not have.
    unsynced: bool,
    warnings: Throttle,
}

/// A request in the ledger, until it ends.
pub(super) struct Entry {
    ledger: Arc<Ledger>,
    number: u64,
}

/// What a client has spent, and when it may spend anew.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) day: u64,
    pub(super) month: u64,
    pub(super) day_ends_in: Duration,
    pub(super) month_ends_in: Duration,
}

impl Ledger {
    /// Opens the ledger of the settings and marks requests of a process that was killed as cut; `None` where no folder is set.
    pub fn open(config: &LedgerConfig, metrics: Arc<Metrics>) -> Result<Option<Arc<Self>>, LedgerError> {
        let Some(folder) = config.directory.clone() else { return Ok(None) };
        let now = moment::text(SystemTime::now());
        let first = || Head {
            format: FORMAT,
            at: now.clone(),
            next: 1,
            open: Vec::new(),
            budgets: Budgets::default(),
        };
        let (files, lines) = Files::open(&folder, first)?;
        let (mut next, mut open, mut budgets) = (1, BTreeMap::new(), Budgets::default());
        for line in lines {
            budgets.count(&line);
            match line {
                Line::Head(head) => {
                    (next, budgets) = (head.next, head.budgets);
                    open = head.open.into_iter().map(|opened| (opened.number, opened)).collect();
                }
                Line::Open(opened) => {
                    next = next.max(opened.number + 1);
                    open.insert(opened.number, opened);
                }
                Line::End(Ended { opened, .. }) | Line::Cut(opened) => drop(open.remove(&opened.number)),
            }
        }
        let cut = std::mem::take(&mut open);
        let state = State { files, next, open, budgets, unsynced: false, warnings: Throttle::default() };
        let ledger = Arc::new(Self { config: config.clone(), folder, metrics, state: Mutex::new(state) });
        if !cut.is_empty() {
            tracing::warn!(
                requests = cut.len(),
                "usage: requests of a process that ended before them are marked as cut"
            );
        }
        {
            let mut state = ledger.state();
            for opened in cut.into_values() {
                ledger.write(&mut state, Line::Cut(Opened { at: now.clone(), ..opened }));
            }
        }
        let weak = Arc::downgrade(&ledger);
        let syncing =
            std::thread::Builder::new().name("perigee-usage".into()).spawn(move || sync_often(&weak));
        syncing.map_err(|source| LedgerError::Io { path: ledger.folder.clone(), source })?;
        Ok(Some(ledger))
    }

    /// Writes down that a request begins.
    pub(super) fn begin(self: &Arc<Self>, id: &str, client: Option<&str>, route: &str) -> Entry {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let opened = Opened {
            number,
            at: moment::text(SystemTime::now()),
            id: id.into(),
            client: client.map(Into::into),
            route: route.into(),
        };
        state.open.insert(number, opened.clone());
        self.write(&mut state, Line::Open(opened));
        Entry { ledger: self.clone(), number }
    }

    /// What a client has spent of the running day and month.
    pub(super) fn spent(&self, client: &str, now: SystemTime) -> Spent {
        let [day, month] = self.state().budgets.of(client, &moment::text(now));
        let ends_in = |of_month| moment::until_next(now, of_month);
        Spent { day, month, day_ends_in: ends_in(false), month_ends_in: ends_in(true) }
    }

    /// Sums what is asked for. Reads files: not for a thread of streams.
    pub(super) fn sum(&self, query: Query) -> Result<Usage, ApiError> {
        sums::sum(&self.folder, query)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line. A disk that fails costs no request: the line waits, and is counted as lost where there is no room for that.
    fn write(&self, state: &mut State, line: Line) {
        state.budgets.count(&line);
        let (written, result) = state.files.append(&line);
        state.unsynced = true;
        if let Err(error) = &result {
            self.metrics.record_usage_failure(written == Written::Lost);
            if state.warnings.pass() {
                let folder = self.folder.display();
                tracing::error!(%error, lost = written == Written::Lost, "usage: the ledger in {folder} cannot be written");
            }
        } else if state.files.bytes() >= self.config.file_bytes {
            self.rotate(state);
        }
    }

    fn rotate(&self, state: &mut State) {
        let head = Head {
            format: FORMAT,
            at: moment::text(SystemTime::now()),
            next: state.next,
            open: state.open.values().cloned().collect(),
            budgets: state.budgets.clone(),
        };
        let rotated = state.files.rotate(head).and_then(|()| match self.config.max_bytes {
            0 => Ok(Vec::new()),
            max_bytes => state.files.trim(max_bytes),
        });
        match rotated {
            Ok(removed) => removed.iter().for_each(|path| {
                tracing::info!("usage: {} is removed (usage.max_bytes)", path.display());
            }),
            Err(error) if state.warnings.pass() => {
                tracing::error!(%error, "usage: no new file can be begun, and the last one goes on growing");
            }
            Err(_) => {}
        }
    }

    /// Brings to the disk what it may not have.
    fn sync(&self) {
        let file = {
            let mut state = self.state();
            if !std::mem::take(&mut state.unsynced) {
                return;
            }
            state.files.file()
        };
        // Without the lock: requests do not wait for a disk.
        if let Err(error) = file.and_then(|file| file.sync_data())
            && self.state().warnings.pass()
        {
            tracing::error!(%error, "usage: the ledger does not reach the disk");
        }
    }
}

impl Entry {
    /// Writes down how the request ended. What its client was told is in `summary`.
    pub(super) fn end(self, status: u16, finish: &str, summary: &Summary, took: Duration) {
        let mut state = self.ledger.state();
        let Some(opened) = state.open.remove(&self.number) else { return };
        let ended = Ended {
            opened: Opened { at: moment::text(SystemTime::now()), ..opened },
            request_id: summary.request_id.clone(),
            status,
            finish: finish.into(),
            tokens: Tokens::of(summary),
            seconds: took.as_millis() as f64 / 1e3,
        };
        self.ledger.write(&mut state, Line::End(ended));
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.sync();
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn sync_often(ledger: &Weak<Ledger>) {
    loop {
        std::thread::sleep(SYNC_INTERVAL);
        let Some(ledger) = ledger.upgrade() else { return };
        ledger.sync();
    }
}
