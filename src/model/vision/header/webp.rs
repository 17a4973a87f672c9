//! WebP: the canvas, whether the frames fit it, and what their codes take.
//!
//! Source: RFC 9649, sections 2.3 to 2.7. The decoder allocates by the size in the coded frame before it
//! compares it with the canvas, so the comparison is made here.

use image::metadata::Orientation;

use super::bytes::Bytes;
use super::webp_lossless::code_bytes;
use super::{Header, Limits, exif_orientation};
use crate::vision::{Format, ImageError};

/// Reads a file with the signature `RIFF....WEBP`.
pub(super) fn read(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    let mut rest = Bytes::new(Format::WebP, &bytes[12..]);
    let (name, mut body) = next_chunk(&mut rest)?;
    let (size, orientation, codes) = match &name {
        b"VP8 " | b"VP8L" => {
            let size = coded_size(&name, body)?;
            limits.check_size(Format::WebP, size.0, size.1)?;
            (size, Orientation::NoTransforms, frame_code_bytes(&name, body, size)?)
        }
        b"VP8X" => {
            body.take(4)?;
            let size = (body.u24_le()? + 1, body.u24_le()? + 1);
            limits.check_size(Format::WebP, size.0, size.1)?;
            let (orientation, codes) = check_chunks(rest, size)?;
            (size, orientation, codes)
        }
        _ => return Err(damaged("its first chunk is not a header")),
    };
    // The canvas in four bytes a pixel, a frame in four more, planes of a lossy frame and its transparency.
    let decoder_bytes = u64::from(size.0) * u64::from(size.1) * 12 + codes;
    Ok(Header::new(Format::WebP, size, orientation, decoder_bytes))
}

/// Compares every coded frame with its place on the canvas; returns the orientation, and the most bytes that the
/// prefix codes of what is decoded take: the first chunk of a name, and the first frame.
fn check_chunks(mut rest: Bytes, canvas: (u32, u32)) -> Result<(Orientation, u64), ImageError> {
    let mut orientation = Orientation::NoTransforms;
    let mut codes = Codes::default();
    let mut has_frame = false;
    while !rest.rest().is_empty() {
        let chunk = next_chunk(&mut rest);
        let (name, mut body) = match chunk {
            Ok(chunk) => chunk,
            // A cut chunk of metadata after the first frame.
            Err(_) if has_frame => break,
            Err(error) => return Err(error),
        };
        match &name {
            b"VP8 " | b"VP8L" | b"ALPH" => {
                check_frame(&name, body, canvas)?;
                codes.add(&name, body, canvas)?;
                has_frame |= &name != b"ALPH";
            }
            b"ANMF" => {
                let (left, top) = (body.u24_le()? * 2, body.u24_le()? * 2);
                let frame = (body.u24_le()? + 1, body.u24_le()? + 1);
                body.take(4)?;
                if left + frame.0 > canvas.0 || top + frame.1 > canvas.1 {
                    return Err(damaged("a frame reaches over the edge of the canvas"));
                }
                while body.rest().len() >= 8 {
                    let (name, body) = next_chunk(&mut body)?;
                    if matches!(&name, b"VP8 " | b"VP8L" | b"ALPH") {
                        check_frame(&name, body, frame)?;
                        if !has_frame {
                            codes.add(&name, body, frame)?;
                        }
                    }
                }
                has_frame = true;
            }
            b"EXIF" => orientation = exif_orientation(body.rest()),
            _ => {}
        }
    }
    if has_frame {
        Ok((orientation, codes.bytes))
    } else {
        Err(ImageError::Truncated { format: Format::WebP })
    }
}

fn check_frame(name: &[u8; 4], body: Bytes, place: (u32, u32)) -> Result<(), ImageError> {
    if name != b"ALPH" && coded_size(name, body)? != place {
        return Err(damaged("a coded frame has another size than its place"));
    }
    Ok(())
}

/// Prefix codes of the chunks so far.
#[derive(Default)]
struct Codes {
    bytes: u64,
    has_lossless: bool,
    has_transparency: bool,
}

impl Codes {
    /// Adds those of a chunk, if it is the first of its name.
    fn add(&mut self, name: &[u8; 4], body: Bytes, size: (u32, u32)) -> Result<(), ImageError> {
        let seen = if name == b"ALPH" { &mut self.has_transparency } else { &mut self.has_lossless };
        if name != b"VP8 " && !std::mem::replace(seen, true) {
            self.bytes = self.bytes.max(frame_code_bytes(name, body, size)?);
        }
        Ok(())
    }
}

fn frame_code_bytes(name: &[u8; 4], mut body: Bytes, size: (u32, u32)) -> Result<u64, ImageError> {
    match name {
        b"VP8L" => body.take(5)?,
        // Its lowest bits say how it is compressed.
        b"ALPH" if body.u8()? & 3 == 1 => &[],
        _ => return Ok(0),
    };
    code_bytes(body.rest(), size)
}

/// Width and height in the head of a coded frame.
fn coded_size(name: &[u8; 4], mut body: Bytes) -> Result<(u32, u32), ImageError> {
    if name == b"VP8 " {
        if body.u24_le()? & 1 != 0 {
            return Err(damaged("its frame depends on another"));
        }
        if body.take(3)? != [0x9d, 0x01, 0x2a] {
            return Err(damaged("its lossy frame has no signature"));
        }
        Ok((u32::from(body.u16_le()? & 0x3fff), u32::from(body.u16_le()? & 0x3fff)))
    } else {
        if body.u8()? != 0x2f {
            return Err(damaged("its lossless frame has no signature"));
        }
        let fields = body.u32_le()?;
        Ok(((fields & 0x3fff) + 1, (fields >> 14 & 0x3fff) + 1))
    }
}

/// The next chunk: its name and its bytes, which are complete.
fn next_chunk<'a>(rest: &mut Bytes<'a>) -> Result<([u8; 4], Bytes<'a>), ImageError> {
    let name = rest.name()?;
    let len = rest.u32_le()? as usize;
    let body = rest.take(len)?;
    // Chunks are padded to an even length; the last one's padding is missing in some files.
    let _ = rest.take(len % 2);
    Ok((name, Bytes::new(Format::WebP, body)))
}

fn damaged(reason: &'static str) -> ImageError {
    ImageError::Damaged { format: Format::WebP, reason }
}
