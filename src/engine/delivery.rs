//! Delivers the events of a step to their streams, on a separate thread.
//!
//! Waking a stream's task costs a system call when the async threads sleep. The engine therefore
//! wakes the delivering thread once per step, and that thread wakes the tasks beside the next
//! forward pass. Invariant: events of one stream keep their order, and flushed events are delivered
//! even if the outbox is dropped. Does not interpret the events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tokio::sync::mpsc as events;

use super::handle::EventSender;
use super::request::EngineEvent;

type Batch = Vec<(events::UnboundedSender<EngineEvent>, EngineEvent)>;

/// Collects the events of a step. Delivery to a dropped stream is not an error: its `Abort` reports
/// the drop.
pub(super) struct Outbox {
    pending: Batch,
    deliveries: mpsc::Sender<Batch>,
    /// Core of the engine's thread at its last flush.
    engine_core: Arc<AtomicUsize>,
}

impl Outbox {
    /// Starts the delivering thread; it ends when the outbox is dropped and all events are
    /// delivered.
    pub(super) fn new() -> std::io::Result<Self> {
        let (deliveries, arriving) = mpsc::channel::<Batch>();
        let engine_core = Arc::new(AtomicUsize::new(usize::MAX));
        let core = engine_core.clone();
        std::thread::Builder::new().name("perigee-events".into()).spawn(move || {
            let mut placement = Placement::of_this_thread();
            for batch in arriving {
                placement.keep_off(core.load(Ordering::Relaxed));
                for (sender, event) in batch {
                    let _ = sender.send(event);
                }
            }
        })?;
        Ok(Self { pending: Vec::new(), deliveries, engine_core })
    }

    /// Adds an event; events of one stream keep their order.
    pub(super) fn push(&mut self, to: &EventSender, event: EngineEvent) {
        self.pending.push((to.0.clone(), event));
    }

    /// Hands the collected events to the delivering thread.
    pub(super) fn flush(&mut self) {
        if !self.pending.is_empty() {
            let next = Vec::with_capacity(self.pending.len());
            self.engine_core.store(sched_getcpu(), Ordering::Relaxed);
            let _ = self.deliveries.send(std::mem::replace(&mut self.pending, next));
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Keeps the delivering thread off the engine's core.
///
/// The system may run a woken thread at once on the core of the thread that woke it. The engine
/// would then wait for the delivery of a step while other cores are idle. The engine's thread is
/// not bound to a core, because it may share the cores with other programs; the delivering thread
/// avoids the engine's core of the last flush. Its affinity stays within the cores of the process;
/// with a single core it is not changed.
struct Placement {
    /// Cores of the process; `None` if they are unknown or only one.
    allowed: Option<CpuSet>,
    avoided: usize,
}

impl Placement {
    fn of_this_thread() -> Self {
        Self { allowed: sched_getaffinity(None).ok().filter(|cores| cores.count() > 1), avoided: usize::MAX }
    }

    fn keep_off(&mut self, core: usize) {
        let Some(allowed) = self.allowed.filter(|_| core != self.avoided) else { return };
        self.avoided = core;
        // The call fails where the process has lost these cores since boot; the system then places
        // the thread.
        if let Some(cores) = without(allowed, core)
            && sched_setaffinity(None, &cores).is_err()
        {
            self.allowed = None;
        }
    }
}

/// The cores without `core`; `None` if no core remains or `core` is not among them.
fn without(mut cores: CpuSet, core: usize) -> Option<CpuSet> {
    if core >= CpuSet::MAX_CPU || !cores.is_set(core) {
        return None;
    }
    cores.unset(core);
    (cores.count() > 0).then_some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(ids: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        ids.iter().for_each(|id| set.set(*id));
        set
    }

    #[test]
    fn one_core_is_left_out_and_never_the_last() {
        assert_eq!(without(cores(&[0, 1, 5]), 1), Some(cores(&[0, 5])));
        assert_eq!(without(cores(&[3]), 3), None);
        assert_eq!(without(cores(&[0, 2]), 1), None);
        assert_eq!(without(cores(&[0, 2]), usize::MAX), None);
    }

    #[test]
    fn a_thread_stays_within_what_it_was_given() {
        std::thread::spawn(|| {
            let given = sched_getaffinity(None).unwrap();
            let mut placement = Placement::of_this_thread();
            let core = sched_getcpu();
            placement.keep_off(core);
            let kept = sched_getaffinity(None).unwrap();
            assert_eq!(kept, without(given, core).unwrap_or(given));
            placement.keep_off(usize::MAX);
            assert_eq!(sched_getaffinity(None).unwrap(), kept);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_was_pushed_is_delivered_in_order_even_if_the_outbox_goes() {
        let (sender, mut receiver) = events::unbounded_channel();
        let to = EventSender(sender);
        let mut outbox = Outbox::new().unwrap();
        for step in 0..100 {
            outbox.push(&to, EngineEvent::Started { cached_tokens: 2 * step });
            outbox.push(&to, EngineEvent::Started { cached_tokens: 2 * step + 1 });
            if step % 3 == 0 {
                outbox.flush();
            }
        }
        drop((outbox, to));
        let mut seen = Vec::new();
        while let Some(EngineEvent::Started { cached_tokens }) = receiver.blocking_recv() {
            seen.push(cached_tokens);
        }
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
    }
}
