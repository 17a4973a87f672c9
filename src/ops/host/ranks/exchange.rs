//! All-gather between the ranks of a group: every rank deposits a value and reads those of all ranks.
//!
//! Invariant: all ranks call the same exchanges in the same order. Each rank computes sums itself, in rank order, so all ranks hold the
//! same bits. A rank that fails abandons the exchange, and the others return an error instead of waiting.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use super::share::Share;
use crate::{OpError, Parallelism};

/// Iterations of the spin hint before a waiting rank sleeps: some tens of microseconds. Where ranks have processors of their own they
/// meet sooner; where they share them, the one that is waited for needs this one's.
const SPINS_BEFORE_SLEEP: u32 = 2_000;

/// The state that a group's ranks exchange values through.
#[derive(Debug)]
pub(super) struct Meeting {
    world: usize,
    /// Ranks that wait for the others.
    arrived: AtomicUsize,
    /// Number of completed meetings of all ranks.
    met: AtomicU64,
    abandoned: AtomicBool,
    /// Ranks that sleep until `woken`.
    asleep: Mutex<usize>,
    woken: Condvar,
    floats: Vec<RwLock<Vec<f32>>>,
    bytes: Vec<RwLock<Vec<u8>>>,
    words: Vec<RwLock<Vec<u64>>>,
    /// Bytes that ranks have deposited, by operation.
    deposited: Mutex<BTreeMap<&'static str, u64>>,
}

impl Meeting {
    pub(super) fn new(world: usize) -> Self {
        Self {
            world,
            arrived: AtomicUsize::new(0),
            met: AtomicU64::new(0),
            abandoned: AtomicBool::new(false),
            asleep: Mutex::new(0),
            woken: Condvar::new(),
            floats: (0..world).map(|_| RwLock::default()).collect(),
            bytes: (0..world).map(|_| RwLock::default()).collect(),
            words: (0..world).map(|_| RwLock::default()).collect(),
            deposited: Mutex::default(),
        }
    }

    /// Ends the exchange under way, and all until [`Meeting::reset`], with an error.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Resets the exchange. Must not be called during one.
    pub(super) fn reset(&self) {
        self.arrived.store(0, Ordering::SeqCst);
        self.abandoned.store(false, Ordering::SeqCst);
    }

    /// Bytes that ranks have deposited so far, by operation.
    pub(super) fn deposited(&self) -> BTreeMap<&'static str, u64> {
        self.deposited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns when every rank has called it.
    fn meet(&self, op: &'static str) -> Result<(), OpError> {
        let before = self.met.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.world {
            self.arrived.store(0, Ordering::Relaxed);
            self.met.fetch_add(1, Ordering::Release);
            self.wake();
            return Ok(());
        }
        let waits = || {
            if self.met.load(Ordering::Acquire) != before {
                return Ok(false);
            }
            match self.abandoned.load(Ordering::Relaxed) {
                true => Err(OpError::Abandoned { op }),
                false => Ok(true),
            }
        };
        for _ in 0..SPINS_BEFORE_SLEEP {
            if !waits()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // Who ends the wait takes the lock after the change that is looked for here under it: none is missed.
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        while waits()? {
            *asleep += 1;
            asleep = self.woken.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            *asleep -= 1;
        }
        Ok(())
    }

    /// Wakes the ranks that sleep.
    fn wake(&self) {
        if *self.asleep.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            self.woken.notify_all();
        }
    }

    fn exchange<T: Clone>(
        &self,
        op: &'static str,
        table: &[RwLock<Vec<T>>],
        rank: usize,
        own: &[T],
        mut read: impl FnMut(usize, &[T]),
    ) -> Result<(), OpError> {
        let bytes = std::mem::size_of_val(own) as u64;
        *self.deposited.lock().unwrap_or_else(PoisonError::into_inner).entry(op).or_default() += bytes;
        {
            let mut place = table[rank].write().unwrap_or_else(PoisonError::into_inner);
            place.clear();
            place.extend_from_slice(own);
        }
        self.meet(op)?;
        for (rank, place) in table.iter().enumerate() {
            read(rank, &place.read().unwrap_or_else(PoisonError::into_inner));
        }
        // The next deposit waits until every rank has read this one.
        self.meet(op)
    }
}

/// A rank of a group: its share, and the place where it meets the others.
#[derive(Debug, Clone)]
pub struct Member {
    share: Share,
    parallelism: Parallelism,
    meeting: Arc<Meeting>,
}

impl Member {
    /// Rank `share` of the group of `meeting`.
    pub(super) fn new(share: Share, parallelism: Parallelism, meeting: Arc<Meeting>) -> Self {
        Self { share, parallelism, meeting }
    }

    /// How the ranks share the network.
    pub fn parallelism(&self) -> Parallelism {
        self.parallelism
    }

    /// Rank and number of ranks.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Calls `read(rank, values)` with every rank's values, in rank order.
    pub fn exchange(
        &self,
        op: &'static str,
        own: &[f32],
        read: impl FnMut(usize, &[f32]),
    ) -> Result<(), OpError> {
        self.meeting.exchange(op, &self.meeting.floats, self.share.rank, own, read)
    }

    /// `total = sum_ranks(own)`, added in rank order.
    pub(in crate::host) fn sum(
        &self,
        op: &'static str,
        own: &[f32],
        total: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        total.clear();
        self.exchange(op, own, |_, values| match total.is_empty() {
            true => total.extend_from_slice(values),
            false => total.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
        })
    }

    /// As [`Member::exchange`], of bytes.
    pub(in crate::host) fn exchange_bytes(
        &self,
        op: &'static str,
        own: &[u8],
        read: impl FnMut(usize, &[u8]),
    ) -> Result<(), OpError> {
        self.meeting.exchange(op, &self.meeting.bytes, self.share.rank, own, read)
    }

    /// As [`Member::exchange`], of words.
    pub fn exchange_words(
        &self,
        op: &'static str,
        own: &[u64],
        read: impl FnMut(usize, &[u64]),
    ) -> Result<(), OpError> {
        self.meeting.exchange(op, &self.meeting.words, self.share.rank, own, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_reads_the_same_sums() {
        let meeting = Arc::new(Meeting::new(3));
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    let member =
                        Member::new(Share { rank, world: 3 }, Parallelism::default_of(3), meeting.clone());
                    scope.spawn(move || {
                        let mut total = Vec::new();
                        for round in 0..500 {
                            member.sum("test", &[rank as f32, round as f32], &mut total).unwrap();
                            assert_eq!(total, [3.0, 3.0 * round as f32]);
                        }
                    })
                })
                .collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    }

    #[test]
    fn a_rank_that_fails_keeps_nobody_waiting() {
        let meeting = Arc::new(Meeting::new(2));
        let member =
            |rank| Member::new(Share { rank, world: 2 }, Parallelism::default_of(2), meeting.clone());
        std::thread::scope(|scope| {
            let waiting = member(0);
            let waiting = scope.spawn(move || waiting.sum("test", &[1.0], &mut Vec::new()));
            meeting.abandon();
            assert!(matches!(waiting.join().unwrap(), Err(OpError::Abandoned { op: "test" })));
        });
        meeting.reset();
        std::thread::scope(|scope| {
            let other = member(1);
            scope.spawn(move || other.sum("test", &[1.0], &mut Vec::new()).unwrap());
            let mut total = Vec::new();
            member(0).sum("test", &[2.0], &mut total).unwrap();
            assert_eq!(total, [3.0]);
        });
    }
}
