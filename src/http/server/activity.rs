//! Whether a connection is answering a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Activity of a connection, shared by its socket and its requests.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Set while a request is being answered.
    pub(super) busy: AtomicBool,
    /// Number of requests whose head was complete.
    pub(super) heads: AtomicUsize,
}

/// Marks its connection as busy from a request's head to the end of its answer.
pub(super) struct Busy(Arc<Activity>);

impl Busy {
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        activity.heads.fetch_add(1, Ordering::Relaxed);
        activity.busy.store(true, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
    }
}
