//! Pinned host memory between the caller's bytes and the device.
//!
//! Pageable memory never reaches the driver: it would be staged there, and block the caller until the device has
//! finished the work before.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};

use super::super::{DriverError, Transfer};
use super::context::{Context, Owned, Pinned, Wait};
use super::functions::{INVALID_VALUE, refusal};
use perigee_numbers::threads::{ThreadPool, UploadMeter};

/// Segments of the upload ring. While one is filled, the others' copies keep the bus busy.
const SEGMENTS: usize = 4;
/// Bytes of a segment: a third of a millisecond of a PCIe 5 bus.
const SEGMENT_BYTES: usize = 16 << 20;
/// Start of an upload in the ring, for wide copies.
const ALIGNMENT: usize = 256;
/// Bytes of an upload from which several threads fill the ring: one thread copies slower than the bus.
const PARALLEL_BYTES: usize = 1 << 20;
/// Bytes that a thread copies at a time.
const PORTION_BYTES: usize = 256 << 10;
/// Most threads that fill the ring.
const MAX_THREADS: usize = 8;
/// Bytes that the size of a download buffer is a multiple of.
const DOWNLOAD_UNIT_BYTES: usize = 64 << 10;
/// Most bytes of buffers with downloads in flight: fourteen blocks of 64 tokens of Kimi K2 in bf16. The engine may start a read of each
/// block that a step displaces before it finishes the first.
const MAX_IN_FLIGHT_BYTES: usize = 64 << 20;

/// A ring of pinned memory that uploads pass through.
///
/// Invariant: a segment is filled only after the copies out of it are done. Its event is recorded when the ring moves
/// on to the next segment, and waited for when the ring comes back: small uploads share one event.
pub(super) struct UploadRing {
    memory: Pinned,
    /// Of each segment, behind the last copy out of it.
    events: Vec<Owned<CUevent>>,
    /// Segment that is being filled.
    segment: usize,
    /// Bytes of it that were given out.
    used: usize,
    threads: ThreadPool,
}

impl UploadRing {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Ok(Self {
            memory: context.pinned(SEGMENTS * SEGMENT_BYTES)?,
            // A wait means that 48 MiB are still on their way: time enough to wake up.
            events: (0..SEGMENTS).map(|_| context.event(Wait::Block)).collect::<Result<_, _>>()?,
            segment: 0,
            used: 0,
            threads: ThreadPool::new("upload", cores.min(MAX_THREADS)),
        })
    }

    /// Enqueues the copy of `bytes` to device memory, in pieces. Returns when the last piece is in the ring.
    pub(super) fn upload(
        &mut self,
        context: &Context,
        stream: &Owned<CUstream>,
        to: u64,
        bytes: &[u8],
        meter: &UploadMeter,
    ) -> Result<(), DriverError> {
        let mut done = 0;
        while done < bytes.len() {
            if self.used == SEGMENT_BYTES {
                self.next_segment(stream)?;
            }
            let piece = &bytes[done..bytes.len().min(done + SEGMENT_BYTES - self.used)];
            // SAFETY: `used` is below the segment's size, which the memory has for each segment.
            let place = unsafe { self.memory.pointer().add(self.segment * SEGMENT_BYTES + self.used) };
            // Given out before the copy is enqueued: after an error it may be on its way all the same.
            self.used = (self.used + piece.len()).next_multiple_of(ALIGNMENT).min(SEGMENT_BYTES);
            // SAFETY: the piece fits in the rest of the segment, of which no copy is on its way.
            unsafe { fill(&mut self.threads, place, piece) };
            let from = place.cast_const().cast();
            // SAFETY: both sides have the bytes, the caller checked the device's, and the ring's do not change before
            // the copy is done.
            unsafe {
                let functions = &context.functions;
                functions.cuMemcpyHtoDAsync_v2(to + done as u64, from, piece.len(), stream.handle())
            }?;
            done += piece.len();
            meter.add(piece.len());
        }
        Ok(())
    }

    fn next_segment(&mut self, stream: &Owned<CUstream>) -> Result<(), DriverError> {
        let next = (self.segment + 1) % SEGMENTS;
        self.events[self.segment].record(stream)?;
        self.events[next].wait()?;
        (self.segment, self.used) = (next, 0);
        Ok(())
    }
}

/// Copies bytes into pinned memory, by several threads where that is faster.
///
/// # Safety
/// `place` has as many bytes as the source, which neither this process nor the device accesses.
unsafe fn fill(threads: &mut ThreadPool, place: *mut u8, source: &[u8]) {
    if source.len() < PARALLEL_BYTES {
        // SAFETY: the caller's.
        return unsafe { place.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
    }
    let place = place.expose_provenance();
    threads.for_each(source.len().div_ceil(PORTION_BYTES), |_, index| {
        let at = index * PORTION_BYTES;
        let portion = &source[at..source.len().min(at + PORTION_BYTES)];
        let place = std::ptr::with_exposed_provenance_mut::<u8>(place + at);
        // SAFETY: the caller's; portions do not overlap.
        unsafe { place.copy_from_nonoverlapping(portion.as_ptr(), portion.len()) };
    });
}

/// Downloads that are not finished, in their order, and buffers for later ones.
pub(super) struct Downloads {
    /// Bytes that left their buffers for later downloads; all before those in flight.
    moved: VecDeque<(Transfer, Vec<u8>)>,
    in_flight: VecDeque<(Transfer, Download)>,
    idle: Vec<Download>,
    /// Buffers of downloads whose start failed: a copy may be on its way all the same.
    abandoned: Vec<Download>,
    next: u64,
}

/// A pinned buffer with the bytes of one download.
struct Download {
    memory: Pinned,
    bytes: usize,
    event: Owned<CUevent>,
}

impl Downloads {
    pub(super) fn new() -> Self {
        Self {
            moved: VecDeque::new(),
            in_flight: VecDeque::new(),
            idle: Vec::new(),
            abandoned: Vec::new(),
            next: 0,
        }
    }

    /// Enqueues a copy from device memory. Waits for the oldest downloads in flight where all would take more than
    /// [`MAX_IN_FLIGHT_BYTES`].
    pub(super) fn start(
        &mut self,
        context: &Arc<Context>,
        stream: &Owned<CUstream>,
        from: u64,
        bytes: usize,
    ) -> Result<Transfer, DriverError> {
        let size = bytes.max(1).checked_next_multiple_of(DOWNLOAD_UNIT_BYTES).unwrap_or(bytes);
        self.make_room(size)?;
        let mut download = self.buffer(context, size)?;
        download.bytes = bytes;
        let to = download.memory.pointer().cast();
        let mut enqueued = Ok(());
        if bytes > 0 {
            // SAFETY: both sides have the bytes, the caller checked the device's, and the buffer is not freed before
            // the copy is done.
            enqueued = unsafe { context.functions.cuMemcpyDtoHAsync_v2(to, from, bytes, stream.handle()) };
        }
        if let Err(error) = enqueued.and_then(|()| download.event.record(stream)) {
            self.abandoned.push(download);
            return Err(error);
        }
        let transfer = Transfer(self.next);
        self.next += 1;
        self.in_flight.push_back((transfer, download));
        Ok(transfer)
    }

    /// Moves the oldest downloads out of their buffers until `size` bytes more may be in flight.
    fn make_room(&mut self, size: usize) -> Result<(), DriverError> {
        let mut in_flight: usize = self.in_flight.iter().map(|(_, download)| download.memory.bytes()).sum();
        while in_flight + size > MAX_IN_FLIGHT_BYTES
            && let Some((_, oldest)) = self.in_flight.front()
        {
            let mut content = Vec::new();
            oldest.read(&mut content)?;
            in_flight -= oldest.memory.bytes();
            if let Some((transfer, download)) = self.in_flight.pop_front() {
                self.moved.push_back((transfer, content));
                self.idle.push(download);
            }
        }
        Ok(())
    }

    /// The smallest idle buffer of `size` bytes or more, else a new one in place of the smallest.
    fn buffer(&mut self, context: &Arc<Context>, size: usize) -> Result<Download, DriverError> {
        self.idle.sort_by_key(|download| download.memory.bytes());
        if let Some(at) = self.idle.iter().position(|download| download.memory.bytes() >= size) {
            return Ok(self.idle.remove(at));
        }
        let memory = context.pinned(size)?;
        let event = match self.idle.is_empty() {
            false => self.idle.remove(0).event,
            // The latency of a step has this wait in it.
            true => context.event(Wait::Spin)?,
        };
        Ok(Download { memory, bytes: 0, event })
    }

    /// Waits for a download and appends its bytes.
    pub(super) fn finish(&mut self, transfer: Transfer, into: &mut Vec<u8>) -> Result<(), DriverError> {
        if let Some(at) = self.moved.iter().position(|(at, _)| *at == transfer) {
            let (_, content) = &self.moved[at];
            into.extend_from_slice(content);
            self.moved.drain(..=at);
            return Ok(());
        }
        let at = self.in_flight.iter().position(|(at, _)| *at == transfer).ok_or_else(|| {
            refusal("cuEventSynchronize", INVALID_VALUE, format!("{transfer:?} is not in flight"))
        })?;
        self.in_flight[at].1.read(into)?;
        // Copies of earlier downloads are done too: they are in the same stream.
        self.moved.clear();
        self.idle.extend(self.in_flight.drain(..=at).map(|(_, download)| download));
        Ok(())
    }
}

impl Download {
    /// Waits for the copy and appends its bytes.
    fn read(&self, into: &mut Vec<u8>) -> Result<(), DriverError> {
        self.event.wait()?;
        // SAFETY: the buffer has the bytes, and the copy into it is done.
        into.extend_from_slice(unsafe { std::slice::from_raw_parts(self.memory.pointer(), self.bytes) });
        Ok(())
    }
}
