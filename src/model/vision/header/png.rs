//! PNG: the header chunk, the orientation, and a copy without the chunks that nothing here reads.
//!
//! Source: Portable Network Graphics (Third Edition), sections 5 and 11.

use image::metadata::Orientation;

use super::bytes::Bytes;
use super::{Header, Limits, exif_orientation};
use crate::vision::{Format, ImageError};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The chunk that ends a file.
const END: &[u8] = b"\0\0\0\0IEND\xae\x42\x60\x82";

pub(super) fn read(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    let mut chunks = Chunks::new(bytes);
    let header = chunks.next().transpose()?;
    let Some(header) = header.filter(|chunk| chunk.name == *b"IHDR" && chunk.body.len() == 13) else {
        return Err(ImageError::Damaged { format: Format::Png, reason: "its first chunk is not a header" });
    };
    let mut fields = Bytes::new(Format::Png, header.body);
    let (width, height) = (fields.u32_be()?, fields.u32_be()?);
    let (depth, color) = (fields.u8()?, fields.u8()?);
    limits.check_size(Format::Png, width, height)?;
    let mut orientation = Orientation::NoTransforms;
    let mut has_pixels = false;
    for chunk in chunks {
        let chunk = chunk?;
        match &chunk.name {
            b"IDAT" => has_pixels = true,
            b"eXIf" => orientation = exif_orientation(chunk.body),
            _ => {}
        }
    }
    if !has_pixels {
        return Err(ImageError::Truncated { format: Format::Png });
    }
    // Gray may get a channel of transparency; a palette becomes three channels, and they may too.
    let channels = if color & 2 == 0 { 2 } else { 4 };
    let sample_bytes = if depth == 16 { 2 } else { 1 };
    let pixels_bytes = u64::from(width) * u64::from(height) * channels * sample_bytes;
    Ok(Header::new(Format::Png, (width, height), orientation, pixels_bytes + bytes.len() as u64))
}

/// A copy of a PNG file with the chunks that pixels come from. Text, colour profiles and animation frames are
/// left out: the first two inflate without bound, and the third are frames after the first.
pub(in crate::vision) fn pixel_chunks(bytes: &[u8]) -> Result<Vec<u8>, ImageError> {
    let mut copy = Vec::with_capacity(bytes.len() + END.len());
    copy.extend_from_slice(SIGNATURE);
    for chunk in Chunks::new(bytes) {
        let chunk = chunk?;
        if matches!(&chunk.name, b"IHDR" | b"PLTE" | b"tRNS" | b"IDAT") {
            copy.extend_from_slice(chunk.whole);
        }
    }
    copy.extend_from_slice(END);
    Ok(copy)
}

struct Chunk<'a> {
    name: [u8; 4],
    body: &'a [u8],
    /// Length, name, body and checksum.
    whole: &'a [u8],
}

/// The chunks before the end chunk. A cut chunk of pixels is an error; another cut chunk ends the walk, and
/// whether the pixels before are complete is for the decoder to see.
struct Chunks<'a> {
    rest: Bytes<'a>,
    seen_pixels: bool,
}

impl<'a> Chunks<'a> {
    /// `bytes`: a file with the signature.
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: Bytes::new(Format::Png, &bytes[SIGNATURE.len()..]), seen_pixels: false }
    }

    fn read(&mut self) -> Result<Chunk<'a>, ImageError> {
        let mut rest = self.rest;
        let len = rest.u32_be()? as usize;
        let name = rest.name()?;
        self.seen_pixels &= name != *b"IDAT";
        let body = rest.take(len)?;
        rest.take(4)?;
        let whole = &self.rest.rest()[..len + 12];
        self.seen_pixels |= name == *b"IDAT";
        self.rest = rest;
        Ok(Chunk { name, body, whole })
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.rest().is_empty() {
            return None;
        }
        let chunk = self.read();
        match chunk {
            Ok(Chunk { name, .. }) if name == *b"IEND" => None,
            Err(_) if self.seen_pixels => None,
            _ => {
                if chunk.is_err() {
                    self.rest = Bytes::new(Format::Png, &[]);
                }
                Some(chunk)
            }
        }
    }
}
