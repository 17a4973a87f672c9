//! How far a backend is in the weights that it is given.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts the bytes of weights that a backend has copied, for the threads that read the checkpoint ahead of it.
///
/// The bytes of all weights, in the order in which they are loaded, are divided into sections: the tensors of one layer.
/// Within a section the backend's reports count, which may be rough (a widened tensor counts with its widened bytes, a
/// backend may report nothing); the next section corrects them. Outside of a section reports have no effect.
#[derive(Debug, Default)]
pub struct UploadMeter {
    position: Mutex<Position>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Position {
    taken: u64,
    end: u64,
    /// Value of `taken` when waiting threads were last woken.
    told: u64,
}

/// Bytes after which waiting threads are woken: uploads may be small, and reading has larger portions.
const TELL_BYTES: u64 = 4 << 20;

impl UploadMeter {
    /// The backend has copied `bytes` more: their source is not needed any more.
    pub fn add(&self, bytes: usize) {
        let mut position = self.lock();
        if position.taken < position.end {
            position.taken = position.end.min(position.taken.saturating_add(bytes as u64));
            if position.taken == position.end || position.taken - position.told >= TELL_BYTES {
                position.told = position.taken;
                self.moved.notify_all();
            }
        }
    }

    /// Bytes below `start` are copied; reports count up to `end`.
    pub fn begin(&self, start: u64, end: u64) {
        *self.lock() = Position { taken: start, end, told: start };
        self.moved.notify_all();
    }

    /// Bytes copied so far.
    pub fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Waits until the position is not `seen`; small steps of it may go unnoticed.
    pub fn wait(&self, seen: u64) {
        let mut position = self.lock();
        while position.taken == seen {
            position = self.moved.wait(position).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_count_within_their_section() {
        let meter = UploadMeter::default();
        meter.add(5);
        assert_eq!(meter.taken(), 0);
        meter.begin(10, 20);
        meter.add(4);
        assert_eq!(meter.taken(), 14);
        meter.add(usize::MAX);
        assert_eq!(meter.taken(), 20);
        meter.begin(20, 30);
        assert_eq!(meter.taken(), 20);
    }

    #[test]
    fn a_wait_ends_when_the_position_moves() {
        let meter = UploadMeter::default();
        meter.begin(0, 8);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..8).for_each(|_| meter.add(1)));
            meter.wait(0);
            assert!(meter.taken() > 0);
        });
    }
}
