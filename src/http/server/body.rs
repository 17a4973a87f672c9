//! Bodies of requests, read within limits of size, time and memory.
//!
//! While others wait for room, a body keeps its own by arriving: 64 KiB a second.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::{HeaderMap, header};
use tokio::time::{Instant, timeout};

use super::Config;
use super::content_coding::{Coding, unpack};
use super::room::{Bodies, Room};
use crate::api::{ApiError, Owner, RequestBody};

/// Bytes read and discarded of an unused body, so that a client that is still writing gets to read
/// its answer.
const DISCARD_BYTES: usize = 1 << 20;
/// Longest time for discarding an unused body.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// Least bytes in each [`PACE_TIME`] of a body that holds room for which others wait.
const PACE_BYTES: usize = 64 << 10;
/// A pause of a slow client's network is shorter.
const PACE_TIME: Duration = Duration::from_secs(1);

/// Reads a request's body of at most `limit` bytes, packed and unpacked.
pub(super) async fn read(
    headers: &HeaderMap,
    incoming: Incoming,
    limit: usize,
    config: &Config,
    bodies: &Bodies,
) -> Result<RequestBody, ApiError> {
    let coding = Coding::of(headers)?;
    let time = config.body_read_timeout();
    if incoming.size_hint().exact().is_some_and(|length| length > limit as u64) {
        skip(headers, incoming).await;
        return Err(ApiError::too_large(limit));
    }
    let mut reading = Reading { incoming, bytes: Vec::new(), limit, room: bodies.room() };
    let read = reading.run(time).await;
    let Reading { incoming, mut bytes, mut room, .. } = reading;
    if let Err(error) = read {
        drop((bytes, room));
        // A client that still writes gets to read why; one that is silent or gone would only be waited for.
        if matches!(error.status, 413 | 503) {
            discard(incoming).await;
        }
        return Err(error);
    }
    if let Some(coding) = coding {
        bytes = unpack(coding, bytes, limit, &mut room, time).await?;
    }
    Ok(RequestBody {
        hold: room.keep(bytes.len()),
        bytes,
        share: None,
        owner: Owner::default(),
        max_tokens: None,
    })
}

/// A body in the course of being read.
struct Reading<'a> {
    incoming: Incoming,
    bytes: Vec<u8>,
    limit: usize,
    room: Room<'a>,
}

impl Reading<'_> {
    /// Reads to the end. Time spent waiting for room is not the client's. Errors: a body above the limit, too slow, broken,
    /// or without room.
    async fn run(&mut self, time: Duration) -> Result<(), ApiError> {
        let mut left = time;
        let (mut came, mut pace_left) = (0, PACE_TIME);
        loop {
            let began = Instant::now();
            let frame = timeout(left.min(pace_left), self.incoming.frame()).await;
            let took = began.elapsed();
            (left, pace_left) = (left.saturating_sub(took), pace_left.saturating_sub(took));
            match frame {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => {
                    let frame = frame.map_err(|error| ApiError::broken_body(&error.to_string()))?;
                    let data = frame.into_data().unwrap_or_default();
                    came += data.len();
                    if data.len() > self.limit - self.bytes.len() {
                        return Err(ApiError::too_large(self.limit));
                    }
                    self.bytes.extend_from_slice(&data);
                    self.room.cover(self.bytes.len(), time).await?;
                }
                Err(_) if left.is_zero() => return Err(ApiError::slow_body(time)),
                Err(_) => {}
            }
            if pace_left.is_zero() {
                if came < PACE_BYTES && self.room.is_wanted() {
                    return Err(ApiError::stalled_body(PACE_BYTES, PACE_TIME));
                }
                (came, pace_left) = (0, PACE_TIME);
            }
        }
    }
}

/// Reads and discards an unused body, within [`DISCARD_BYTES`] and [`DISCARD_TIME`]. A client that sent `Expect` waits to be
/// asked for its body, and reading would ask.
pub(super) async fn skip(headers: &HeaderMap, incoming: Incoming) {
    if !headers.contains_key(header::EXPECT) {
        discard(incoming).await;
    }
}

async fn discard(mut incoming: Incoming) {
    let drain = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = incoming.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > DISCARD_BYTES {
                break;
            }
        }
    };
    let _ = timeout(DISCARD_TIME, drain).await;
}
