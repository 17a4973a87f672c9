//! Room in memory for the bodies of requests: taken as their bytes arrive, given back when their prompts are tokenized.
//!
//! Bodies that grow side by side could fill the room with none of them complete. One body that finds no room is therefore
//! read beside it: it has the turn, needs no room from then on, and passes the turn on when its bytes are no longer needed.
//! So there is always a body that waits for its client alone, and memory is bounded by the room and one body.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::api::{ApiError, Hold};

/// Bodies up to this size need no room: the number of connections bounds them, and ordinary requests never wait for large
/// ones.
pub(super) const SMALL_BODY_BYTES: usize = 64 << 10;
/// Bytes per semaphore permit: permits are counted in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;

/// Room for the request bodies that are in memory at once.
pub(super) struct Bodies {
    room: Arc<Semaphore>,
    turn: Arc<Semaphore>,
    limit: usize,
    /// Each body that waits for room holds a clone.
    waiting: Arc<()>,
}

/// The room that one body holds.
pub(super) struct Room<'a> {
    bodies: &'a Bodies,
    held: Option<OwnedSemaphorePermit>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Room for `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            room: Arc::new(Semaphore::new(permits(limit) as usize)),
            turn: Arc::new(Semaphore::new(1)),
            limit,
            waiting: Arc::default(),
        }
    }

    /// Room for a body without bytes.
    pub(super) fn room(&self) -> Room<'_> {
        Room { bodies: self, held: None, turn: None }
    }

    /// Whether a body waits for room.
    fn is_short(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }
}

impl Room<'_> {
    /// Takes what is missing for a body that has `bytes` by now; waits for room or the turn for at most `wait`.
    /// Errors: 503, nothing became free.
    pub(super) async fn cover(&mut self, bytes: usize, wait: Duration) -> Result<(), ApiError> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = permits(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if bytes <= SMALL_BODY_BYTES || missing == 0 || self.turn.is_some() {
            return Ok(());
        }
        let Bodies { room, turn, limit, waiting } = self.bodies;
        if let Ok(more) = room.clone().try_acquire_many_owned(missing) {
            self.add(more);
            return Ok(());
        }
        let _waits = waiting.clone();
        tokio::select! {
            biased;
            // The semaphores are never closed.
            Ok(more) = room.clone().acquire_many_owned(missing) => self.add(more),
            Ok(turn) = turn.clone().acquire_owned() => self.turn = Some(turn),
            () = sleep(wait) => return Err(ApiError::no_room_for_body(*limit)),
        }
        Ok(())
    }

    /// Whether the body holds what another one waits for.
    pub(super) fn is_wanted(&self) -> bool {
        (self.held.is_some() || self.turn.is_some()) && self.bodies.is_short()
    }

    /// Keeps no more than a whole body of `bytes` needs, for as long as the bytes are.
    pub(super) fn keep(mut self, bytes: usize) -> Option<Hold> {
        if bytes <= SMALL_BODY_BYTES {
            return None;
        }
        if let Some(held) = &mut self.held {
            let spare = held.num_permits().saturating_sub(permits(bytes) as usize);
            drop(held.split(spare));
        }
        Some(Box::new((self.held, self.turn)))
    }

    fn add(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn one_body_without_room_is_read_and_the_next_is_refused() {
        let bodies = Bodies::new(1 << 20);
        let (mut first, mut second, mut third) = (bodies.room(), bodies.room(), bodies.room());
        first.cover(700 << 10, SOON).await.unwrap();
        second.cover(300 << 10, SOON).await.unwrap();
        // The turn: whatever this body needs from now on.
        second.cover(900 << 10, SOON).await.unwrap();
        second.cover(usize::MAX, SOON).await.unwrap();
        third.cover(SMALL_BODY_BYTES, SOON).await.unwrap();
        let refusal = third.cover(800 << 10, SOON).await.unwrap_err();
        assert_eq!((refusal.status, refusal.retry_after_s), (503, Some(5)));
        assert!(refusal.message.contains("server.max_bodies_bytes"), "{}", refusal.message);
        assert!(!first.is_wanted(), "the wait is over");
        drop(second.keep(usize::MAX));
        third.cover(usize::MAX, SOON).await.unwrap();
    }

    /// However bodies grow side by side, each gets to its end.
    #[tokio::test]
    async fn bodies_that_fill_the_room_together_end_one_after_the_other() {
        let bodies = Arc::new(Bodies::new(1 << 20));
        let grown = (0..8).map(|_| {
            let bodies = bodies.clone();
            tokio::spawn(async move {
                let mut room = bodies.room();
                for step in 1..=16 {
                    room.cover(step * (64 << 10), LATE).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(room.keep(1 << 20));
            })
        });
        for grown in grown.collect::<Vec<_>>() {
            grown.await.unwrap();
        }
        assert_eq!(bodies.room.available_permits(), 1 << 10);
        assert_eq!(bodies.turn.available_permits(), 1);
    }

    #[tokio::test]
    async fn what_a_body_does_not_need_in_the_end_is_given_back() {
        let bodies = Bodies::new(1 << 20);
        let mut room = bodies.room();
        room.cover(900 << 10, SOON).await.unwrap();
        let hold = room.keep(100 << 10);
        assert_eq!(bodies.room.available_permits(), 924);
        drop(hold);
        assert_eq!(bodies.room.available_permits(), 1024);
        let mut small = bodies.room();
        small.cover(900 << 10, SOON).await.unwrap();
        assert!(small.keep(SMALL_BODY_BYTES).is_none());
        assert_eq!(bodies.room.available_permits(), 1024);
    }
}
