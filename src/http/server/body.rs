//! Bodies of requests, read within limits of size, time and memory.
//!
//! A large body reserves its room before it is read, so that clients which send nothing could keep
//! the room from all others. While others wait, a body keeps its room by arriving: 64 KiB a second.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::{HeaderMap, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Config;
use crate::api::{ApiError, Hold, RequestBody};

/// Bytes read and discarded of an unused body, so that a client that is still writing gets to read
/// its answer.
const DISCARD_BYTES: usize = 1 << 20;
/// Longest time for discarding an unused body.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// Bodies up to this size need no room in [`Bodies`]: the number of connections bounds them, and
/// ordinary requests never wait for large ones.
const SMALL_BODY_BYTES: usize = 64 << 10;
/// Least bytes in each [`PACE_TIME`] of a body that holds room for which others wait.
const PACE_BYTES: usize = 64 << 10;
/// A pause of a slow client's network is shorter.
const PACE_TIME: Duration = Duration::from_secs(1);
/// Bytes per semaphore permit: permits are counted in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;

/// Room for the request bodies that are in memory at once.
pub(super) struct Bodies {
    room: Arc<Semaphore>,
    limit: usize,
    /// Each body that waits for room holds a clone.
    waiting: Arc<()>,
}

impl Bodies {
    /// Room for `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(permits(limit) as usize)), limit, waiting: Arc::default() }
    }

    /// Reserves room for a body of `bytes`, waiting for at most `wait`.
    async fn reserve(&self, bytes: usize, wait: Duration) -> Result<OwnedSemaphorePermit, ApiError> {
        let room = self.room.clone().acquire_many_owned(permits(bytes.min(self.limit)));
        let _waits = self.waiting.clone();
        match timeout(wait, room).await {
            Ok(Ok(room)) => Ok(room),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(ApiError::no_room_for_body(self.limit)),
        }
    }

    /// Whether a body waits for room.
    fn is_short(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

/// Reads a request's body of at most `limit` bytes.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Incoming,
    limit: usize,
    config: &Config,
    bodies: &Bodies,
) -> Result<RequestBody, ApiError> {
    let time = config.body_read_timeout();
    let declared = body.size_hint().exact();
    // A client that sent `Expect` has sent no body yet; any other client gets the chance to stop
    // writing and read.
    let asked = headers.contains_key(header::EXPECT);
    if declared.is_some_and(|length| length > limit as u64) {
        if !asked {
            discard(body, limit, time).await;
        }
        return Err(ApiError::too_large(limit));
    }
    let mut reading = Reading { body, bytes: Vec::new(), limit, ended: false };
    if declared.is_none() {
        reading.read_past(SMALL_BODY_BYTES, time, None).await?;
    }
    let large = declared.map_or(!reading.ended, |length| length > SMALL_BODY_BYTES as u64);
    let room = match large {
        // Room for the whole body is reserved before reading: bodies that grow side by side could
        // fill the room with none of them complete.
        true => match bodies.reserve(declared.map_or(limit, |length| length as usize), time).await {
            Ok(room) => Some(room),
            Err(error) => {
                if !asked {
                    discard(reading.body, limit, DISCARD_TIME).await;
                }
                return Err(error);
            }
        },
        false => None,
    };
    reading.bytes.reserve(declared.unwrap_or(0) as usize);
    reading.read_past(limit, time, room.is_some().then_some(bodies)).await?;
    let hold = room.map(|mut room| {
        // Return the part of the reservation that the body did not use.
        let spare = room.num_permits().saturating_sub(permits(reading.bytes.len()) as usize);
        drop(room.split(spare));
        Box::new(room) as Hold
    });
    Ok(RequestBody { bytes: reading.bytes, hold, share: None })
}

/// A body in the course of being read.
struct Reading {
    body: Incoming,
    bytes: Vec<u8>,
    limit: usize,
    ended: bool,
}

impl Reading {
    /// Reads until more than `stop` bytes are there, or to the end; `held`: the bodies among whom this
    /// one holds room. Errors: a body above the limit, or too slow.
    async fn read_past(
        &mut self,
        stop: usize,
        time: Duration,
        held: Option<&Bodies>,
    ) -> Result<(), ApiError> {
        let read = timeout(time, self.keep_pace(stop, held)).await;
        let result = read.unwrap_or_else(|_| Err(ApiError::slow_body(time)));
        if self.bytes.len() > self.limit {
            let _ = timeout(DISCARD_TIME, drain(&mut self.body, DISCARD_BYTES)).await;
            return Err(ApiError::too_large(self.limit));
        }
        result
    }

    async fn keep_pace(&mut self, stop: usize, held: Option<&Bodies>) -> Result<(), ApiError> {
        loop {
            let before = self.bytes.len();
            if let Ok(read) = timeout(PACE_TIME, self.frames(stop)).await {
                return read;
            }
            if self.bytes.len() - before < PACE_BYTES && held.is_some_and(Bodies::is_short) {
                return Err(ApiError::stalled_body(PACE_BYTES, PACE_TIME));
            }
        }
    }

    async fn frames(&mut self, stop: usize) -> Result<(), ApiError> {
        while self.bytes.len() <= stop.min(self.limit) {
            let Some(frame) = self.body.frame().await else {
                self.ended = true;
                break;
            };
            let frame = frame.map_err(|e| ApiError::broken_body(&e.to_string()))?;
            if let Ok(data) = frame.into_data() {
                self.bytes.extend_from_slice(&data);
            }
        }
        Ok(())
    }
}

/// Reads and discards an unused body, within `DISCARD_BYTES` and `DISCARD_TIME`.
pub(super) async fn skip(body: Incoming) {
    discard(body, DISCARD_BYTES, DISCARD_TIME).await;
}

async fn discard(mut body: Incoming, limit: usize, time: Duration) {
    let _ = timeout(time, drain(&mut body, limit)).await;
}

async fn drain(body: &mut Incoming, limit: usize) {
    let mut seen = 0;
    while let Some(Ok(frame)) = body.frame().await {
        seen += frame.data_ref().map_or(0, Bytes::len);
        if seen > limit {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_finds_no_room_is_answered_after_a_while() {
        let bodies = Bodies::new(1 << 20);
        let first = bodies.reserve(700 << 10, Duration::from_secs(600)).await.unwrap();
        let refusal = bodies.reserve(400 << 10, Duration::from_millis(1)).await.unwrap_err();
        assert_eq!((refusal.status, refusal.retry_after_s), (503, Some(5)));
        assert!(refusal.message.contains("server.max_bodies_bytes"), "{}", refusal.message);
        assert!(bodies.reserve(300 << 10, Duration::from_secs(600)).await.is_ok());
        assert!(!bodies.is_short(), "nobody waits any more");
        drop(first);
        // A reservation above the total is capped: a single body always finds room.
        assert!(bodies.reserve(usize::MAX, Duration::from_secs(600)).await.is_ok());
    }
}
