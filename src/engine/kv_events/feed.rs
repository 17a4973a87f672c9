//! The engine's end: changes of the cache become events, and events leave without the engine ever waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{Sender, error::TrySendError};

use super::contents::{Contents, Event};
use crate::scheduler::CacheChange;
use perigee_telemetry::Metrics;

/// Batches on their way to the publisher.
pub(super) const QUEUE: usize = 1024;

/// Turns changes into events for the publisher. Where the publisher does not keep up, events are dropped, and once it does it gets everything
/// that is cached at that time: consumers lose time, never truth.
pub struct Feed {
    contents: Contents,
    batches: Sender<Vec<Event>>,
    /// Set by the publisher when a snapshot is due.
    snapshot_due: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
    /// Whether what was sent is not all that there is.
    stale: bool,
}

impl Feed {
    pub(super) fn new(
        batches: Sender<Vec<Event>>,
        snapshot_due: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { contents: Contents::default(), batches, snapshot_due, metrics, stale: false }
    }

    /// Tells of changes; to be called after every step, without changes too.
    pub fn send(&mut self, changes: Vec<CacheChange>) {
        let mut events = Vec::new();
        for change in changes {
            self.contents.apply(change, &mut events);
        }
        self.stale |= self.snapshot_due.swap(false, Ordering::Relaxed);
        if self.stale {
            let Ok(place) = self.batches.try_reserve() else { return };
            self.stale = false;
            self.metrics.record_kv_snapshot();
            place.send(self.contents.snapshot());
        } else if !events.is_empty()
            && let Err(TrySendError::Full(_)) = self.batches.try_send(events)
        {
            self.stale = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::NamedBlock;

    fn named(index: u8) -> Vec<CacheChange> {
        let (name, content) = ([index; 32], [100 + index; 32]);
        vec![CacheChange::Named(Box::new(NamedBlock {
            name,
            content,
            parent: None,
            tokens: Arc::from([index.into()]),
            salt: None,
            has_media: false,
        }))]
    }

    #[test]
    fn a_publisher_that_falls_behind_gets_a_snapshot() {
        let (sender, mut batches) = tokio::sync::mpsc::channel(2);
        let due = Arc::new(AtomicBool::new(false));
        let mut feed = Feed::new(sender, due.clone(), Arc::new(Metrics::new("m", false)));
        (0..5).for_each(|index| feed.send(named(index)));
        assert_eq!(batches.try_recv().unwrap().len(), 1);
        feed.send(vec![CacheChange::Unnamed([4; 32])]);
        assert_eq!(batches.try_recv().unwrap().len(), 1);
        let snapshot = batches.try_recv().unwrap();
        assert_eq!((&snapshot[0], snapshot.len()), (&Event::Cleared, 5));
        feed.send(Vec::new());
        assert!(batches.try_recv().is_err(), "nothing changed");
        due.store(true, Ordering::Relaxed);
        feed.send(Vec::new());
        assert_eq!(batches.try_recv().unwrap().len(), 5);
    }
}
