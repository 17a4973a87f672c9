//! Packed bodies of requests: gzip, deflate and zstd (RFC 9110, section 8.4.1).
//!
//! A body is unpacked in steps, each of which is small and takes room for what it adds. A few bytes may stand for gigabytes:
//! the limit of a body holds for what is unpacked too, and unpacking ends there.

use std::io::Read;
use std::time::Duration;

use flate2::bufread::GzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::room::Room;
use crate::api::ApiError;

/// Bytes that a step adds; one of zstd ends with the block that reaches them.
const STEP_BYTES: usize = 64 << 10;
/// Largest block of zstd (RFC 8878, section 3.1.1.2.4).
const BLOCK_BYTES: usize = 128 << 10;
/// Largest window of zstd as a content coding (RFC 9659, section 3).
const WINDOW_BYTES: usize = 8 << 20;
/// Most members of gzip, and most frames of zstd, in a body: each costs time without adding a byte.
const MAX_PARTS: usize = 1024;

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    /// The format of zlib (RFC 1950).
    Deflate,
    Zstd,
}

impl Coding {
    /// The coding that a request declares; `None` for a body as it is. Errors: 415 for any other, and for several.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let lines = headers.get_all(CONTENT_ENCODING).iter();
        let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
        if lines.is_empty() {
            return Ok(None);
        }
        let declared = lines.join(", ");
        match declared.trim().to_ascii_lowercase().as_str() {
            "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "deflate" => Ok(Some(Self::Deflate)),
            "zstd" => Ok(Some(Self::Zstd)),
            _ => Err(ApiError::unsupported_media_type("content-encoding", Some(&declared))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }
}

/// Unpacks a whole body to at most `limit` bytes. Errors: 400 for a damaged body, 413 beyond the limit, 503 without room.
pub(super) async fn unpack(
    coding: Coding,
    packed: Vec<u8>,
    limit: usize,
    room: &mut Room<'_>,
    wait: Duration,
) -> Result<Vec<u8>, ApiError> {
    let mut unpacker = Unpacker::new(coding, &packed);
    let mut bytes = Vec::new();
    loop {
        let more = unpacker.step(&mut bytes);
        let more = more.map_err(|problem| ApiError::damaged_body(coding.name(), &problem))?;
        if bytes.len() > limit {
            return Err(ApiError::too_large_unpacked(limit));
        }
        room.cover(packed.len() + bytes.len() + unpacker.held_bytes(), wait).await?;
        if !more {
            return Ok(bytes);
        }
        tokio::task::yield_now().await;
    }
}

/// The parts of a body, one after the other: members of gzip, frames of zstd.
struct Unpacker<'a> {
    coding: Coding,
    /// Behind what is unpacked, or in the course of it.
    rest: &'a [u8],
    part: Option<Part<'a>>,
    num_parts: usize,
}

enum Part<'a> {
    Gzip(GzDecoder<&'a [u8]>),
    Deflate(Box<Decompress>),
    Zstd { frame: Box<FrameDecoder>, num_steps: usize },
}

impl<'a> Unpacker<'a> {
    fn new(coding: Coding, packed: &'a [u8]) -> Self {
        Self { coding, rest: packed, part: None, num_parts: 0 }
    }

    /// Adds some bytes to `out`; whether there may be more. Errors: what is wrong with the body.
    fn step(&mut self, out: &mut Vec<u8>) -> Result<bool, String> {
        let mut part = match self.part.take() {
            Some(part) => part,
            None => self.open()?,
        };
        let ended = match &mut part {
            Part::Gzip(member) => {
                let mut reader = (&mut *member).take(STEP_BYTES as u64);
                let read = reader.read_to_end(out).map_err(|error| error.to_string())?;
                self.rest = *member.get_ref();
                read < STEP_BYTES
            }
            Part::Deflate(stream) => {
                let ended = deflate_step(stream, &mut self.rest, out)?;
                if ended && !self.rest.is_empty() {
                    return Err("bytes follow its end".into());
                }
                ended
            }
            Part::Zstd { frame, num_steps } => {
                *num_steps += 1;
                zstd_step(frame, &mut self.rest, out)?
            }
        };
        if !ended {
            self.part = Some(part);
        }
        Ok(!ended || !self.rest.is_empty())
    }

    /// Begins the next part.
    fn open(&mut self) -> Result<Part<'a>, String> {
        self.num_parts += 1;
        if self.num_parts > MAX_PARTS {
            return Err(format!("it has more than {MAX_PARTS} parts"));
        }
        Ok(match self.coding {
            Coding::Gzip => Part::Gzip(GzDecoder::new(self.rest)),
            Coding::Deflate => Part::Deflate(Box::new(Decompress::new(true))),
            Coding::Zstd => Part::Zstd { frame: Box::new(FrameDecoder::new()), num_steps: 0 },
        })
    }

    /// Bytes that are unpacked and not yet given: the window of a frame, one step of which is small.
    fn held_bytes(&self) -> usize {
        match &self.part {
            Some(Part::Zstd { num_steps, .. }) => {
                let steps = num_steps.saturating_sub(1);
                steps.saturating_mul(STEP_BYTES + BLOCK_BYTES).min(WINDOW_BYTES + BLOCK_BYTES)
            }
            _ => 0,
        }
    }
}

/// A step of a stream; whether the stream is at its end. flate2's readers take a cut one for one that has ended.
fn deflate_step(stream: &mut Decompress, rest: &mut &[u8], out: &mut Vec<u8>) -> Result<bool, String> {
    let (begin, before_in, before_out) = (out.len(), stream.total_in(), stream.total_out());
    out.resize(begin + STEP_BYTES, 0);
    let status = stream.decompress(rest, &mut out[begin..], FlushDecompress::None);
    let (read, written) = (stream.total_in() - before_in, stream.total_out() - before_out);
    out.truncate(begin + written as usize);
    *rest = &rest[read as usize..];
    match status.map_err(|error| error.to_string())? {
        Status::StreamEnd => Ok(true),
        Status::Ok | Status::BufError if read == 0 && written == 0 => Err("it ends early".into()),
        Status::Ok | Status::BufError => Ok(false),
    }
}

/// A step of a frame, which begins with the first one; whether the frame is at its end. Frames that are to be skipped have
/// nothing.
fn zstd_step(frame: &mut FrameDecoder, rest: &mut &[u8], out: &mut Vec<u8>) -> Result<bool, String> {
    let wrong = |error: FrameDecoderError| error.to_string();
    if frame.blocks_decoded() == 0 {
        frame.set_max_window_size(WINDOW_BYTES as u64);
        match frame.init(&mut *rest) {
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                *rest = rest.get(length as usize..).ok_or("it ends in a frame that is to be skipped")?;
                return Ok(true);
            }
            begun => begun.map_err(wrong)?,
        }
    }
    frame.decode_blocks(&mut *rest, BlockDecodingStrategy::UptoBytes(STEP_BYTES)).map_err(wrong)?;
    frame.collect_to_writer(&mut *out).map_err(|error| error.to_string())?;
    if !frame.is_finished() {
        return Ok(false);
    }
    match frame.get_checksum_from_data() {
        Some(stated) if frame.get_calculated_checksum() != Some(stated) => {
            Err("its checksum is not that of its content".into())
        }
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::super::room::Bodies;
    use super::*;

    const CODINGS: [Coding; 3] = [Coding::Gzip, Coding::Deflate, Coding::Zstd];

    fn pack(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Zstd => compress_to_vec(bytes, CompressionLevel::Fastest),
        }
    }

    /// Unpacks with room for 1 MiB, of which nothing is taken.
    async fn unpacked(coding: Coding, packed: Vec<u8>, limit: usize) -> Result<Vec<u8>, ApiError> {
        let bodies = Bodies::new(1 << 20);
        unpack(coding, packed, limit, &mut bodies.room(), Duration::from_secs(600)).await
    }

    fn texts() -> [Vec<u8>; 4] {
        let mixed = (0..300_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 7).to_le_bytes());
        [Vec::new(), b"{}".to_vec(), vec![b' '; 1 << 20], mixed.collect()]
    }

    #[tokio::test]
    async fn what_was_packed_comes_back() {
        for coding in CODINGS {
            for text in texts() {
                let packed = pack(coding, &text);
                assert!(
                    unpacked(coding, packed, 2 << 20).await.unwrap() == text,
                    "{coding:?} {}",
                    text.len()
                );
            }
        }
    }

    #[tokio::test]
    async fn parts_follow_each_other_where_the_format_has_them() {
        for coding in CODINGS {
            let packed = [pack(coding, b"{\"a\":"), pack(coding, b"1}")].concat();
            match unpacked(coding, packed, 100).await {
                Ok(text) => assert_eq!((coding == Coding::Deflate, &*text), (false, &b"{\"a\":1}"[..])),
                Err(error) => assert_eq!((coding, error.status), (Coding::Deflate, 400)),
            }
        }
        let skipped = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &pack(Coding::Zstd, b"{}")].concat();
        assert_eq!(unpacked(Coding::Zstd, skipped, 100).await.unwrap(), b"{}");
        for coding in [Coding::Gzip, Coding::Zstd] {
            let error = unpacked(coding, pack(coding, b"").repeat(MAX_PARTS + 1), 100).await.unwrap_err();
            assert!(error.status == 400 && error.message.contains("1024 parts"), "{}", error.message);
        }
    }

    /// The limit is for both, so that what is unpacked is bounded whatever the ratio.
    #[tokio::test]
    async fn unpacking_ends_at_the_limit() {
        let bodies = Bodies::new(1 << 20);
        for coding in CODINGS {
            let packed = pack(coding, &vec![0; 64 << 20]);
            assert!(packed.len() < 100 << 10, "{coding:?}: {}", packed.len());
            let mut unpacker = Unpacker::new(coding, &packed);
            let mut bytes = Vec::new();
            while bytes.len() <= 1 << 20 && unpacker.step(&mut bytes).unwrap() {
                assert!(unpacker.held_bytes() <= WINDOW_BYTES + BLOCK_BYTES);
            }
            assert!(bytes.len() <= (1 << 20) + STEP_BYTES + BLOCK_BYTES, "{coding:?}: {}", bytes.len());
            let error = unpack(coding, packed, 1 << 20, &mut bodies.room(), Duration::from_secs(600)).await;
            let error = error.unwrap_err();
            assert_eq!((error.status, error.code), (413, "request_too_large"), "{coding:?}");
        }
    }

    #[tokio::test]
    async fn what_is_unpacked_takes_room() {
        let bodies = Bodies::new(1 << 20);
        let mut other = bodies.room();
        other.cover(1 << 20, Duration::from_secs(600)).await.unwrap();
        let mut turn = bodies.room();
        turn.cover(1 << 20, Duration::from_secs(600)).await.unwrap();
        for coding in CODINGS {
            let packed = pack(coding, &vec![b' '; 900 << 10]);
            let wait = Duration::from_millis(1);
            let refused = unpack(coding, packed.clone(), 1 << 20, &mut bodies.room(), wait).await;
            assert_eq!(refused.unwrap_err().status, 503, "{coding:?}");
            let small = pack(coding, b"{}");
            assert_eq!(unpack(coding, small, 1 << 20, &mut bodies.room(), wait).await.unwrap(), b"{}");
        }
    }

    #[tokio::test]
    async fn damaged_bodies_are_named() {
        let text = b"{\"prompt\": \"abcabcabcabcabcabcabc\"}".repeat(10);
        for coding in CODINGS {
            let packed = pack(coding, &text);
            let half = packed[..packed.len() / 2].to_vec();
            let mut wrong = packed.clone();
            *wrong.last_mut().unwrap() ^= 1;
            let behind = [&packed[..], b"x"].concat();
            for damaged in [Vec::new(), text.to_vec(), vec![0; 100], half, wrong, behind] {
                let error = unpacked(coding, damaged.clone(), 1 << 20).await.unwrap_err();
                assert_eq!((error.status, error.code), (400, "invalid_body"), "{coding:?} {damaged:?}");
                assert!(error.message.contains(coding.name()), "{}", error.message);
            }
        }
        // A window of 2 GiB, as `zstd --long=31` has.
        let window = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xa8, 1, 0, 0].to_vec();
        let error = unpacked(Coding::Zstd, window, 1 << 20).await.unwrap_err();
        assert!(error.status == 400 && error.message.to_lowercase().contains("window"), "{}", error.message);
    }

    #[test]
    fn codings_are_declared_by_one_name() {
        let of = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CONTENT_ENCODING, line.parse().unwrap());
            }
            Coding::of(&headers).map_err(|error| error.status)
        };
        for (lines, coding) in [
            (&[][..], None),
            (&["identity"], None),
            (&["GZIP"], Some(Coding::Gzip)),
            (&["x-gzip"], Some(Coding::Gzip)),
            (&["deflate"], Some(Coding::Deflate)),
            (&[" zstd "], Some(Coding::Zstd)),
        ] {
            assert_eq!(of(lines), Ok(coding), "{lines:?}");
        }
        for lines in
            [&["br"][..], &[""], &["gzip, gzip"], &["gzip", "gzip"], &["identity", "zstd"], &["banana"]]
        {
            assert_eq!(of(lines), Err(415), "{lines:?}");
        }
    }
}
