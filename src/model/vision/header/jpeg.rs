//! JPEG: size, orientation, and whether the scans are few and the file complete.
//!
//! Source: ITU-T T.81, annex B.

use image::metadata::Orientation;

use super::bytes::Bytes;
use super::{Header, Limits, exif_orientation};
use crate::vision::{Format, ImageError};

/// Sides of the largest unit of coded blocks: sampling factors go to 4, blocks are 8 wide.
const MAX_UNIT: u64 = 32;

pub(super) fn read(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    let damaged = |reason| ImageError::Damaged { format: Format::Jpeg, reason };
    let mut rest = Bytes::new(Format::Jpeg, &bytes[2..]);
    let mut frame: Option<(u32, u32, u64)> = None;
    let mut orientation = None;
    let mut scans = 0;
    loop {
        let marker = next_marker(&mut rest)?;
        match marker {
            // End of image.
            0xd9 if scans > 0 => break,
            0xd9 => return Err(damaged("it ends before a scan")),
            // Restart markers and others without a segment.
            0xd0..=0xd8 | 0x01 => continue,
            _ => {}
        }
        let len = usize::from(rest.u16_be()?);
        let body = rest.take(len.checked_sub(2).ok_or(damaged("a segment has no length"))?)?;
        let mut fields = Bytes::new(Format::Jpeg, body);
        match marker {
            // Start of frame, of every kind of coding; C4, C8 and CC are tables.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                if frame.is_some() {
                    return Err(damaged("it has two frames"));
                }
                fields.u8()?;
                let (height, width) = (u32::from(fields.u16_be()?), u32::from(fields.u16_be()?));
                limits.check_size(Format::Jpeg, width, height)?;
                frame = Some((width, height, u64::from(fields.u8()?)));
            }
            0xda if frame.is_none() => return Err(damaged("a scan comes before the frame")),
            0xda => {
                scans += 1;
                if scans > limits.max_scans {
                    return Err(ImageError::TooManyScans { limit: limits.max_scans });
                }
            }
            0xe1 if body.starts_with(b"Exif\0\0") && orientation.is_none() => {
                orientation = Some(exif_orientation(body));
            }
            _ => {}
        }
    }
    let (width, height, components) = frame.ok_or(damaged("it has no frame"))?;
    if components > 4 {
        return Err(damaged("it has more than four components"));
    }
    // Coefficients of all blocks in 16 bits, as progressive files need them, and pixels of up to three bytes.
    let padded = |side: u32| u64::from(side).next_multiple_of(MAX_UNIT);
    let decoder_bytes = padded(width) * padded(height) * (2 * components + 3);
    let orientation = orientation.unwrap_or(Orientation::NoTransforms);
    Ok(Header::new(Format::Jpeg, (width, height), orientation, decoder_bytes))
}

/// The next marker. Coded data before it are skipped: there FF is followed by 00 or, at a restart, by D0 to
/// D7.
fn next_marker(rest: &mut Bytes) -> Result<u8, ImageError> {
    loop {
        let skipped = find_ff(rest.rest());
        rest.take(skipped + 1)?;
        let mut marker = rest.u8()?;
        while marker == 0xff {
            marker = rest.u8()?;
        }
        if marker != 0 {
            return Ok(marker);
        }
    }
}

/// Bytes before the first FF.
fn find_ff(bytes: &[u8]) -> usize {
    // Whole blocks without a branch inside, which the compiler turns into vector comparisons; coded data have
    // an FF every 250 bytes or so.
    const BLOCK: usize = 32;
    let has_ff = |block: &[u8; BLOCK]| block.iter().fold(false, |found, &byte| found | (byte == 0xff));
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let start = blocks.iter().position(has_ff).unwrap_or(blocks.len()) * BLOCK;
    start + bytes[start..].iter().position(|&byte| byte == 0xff).unwrap_or(bytes.len() - start)
}
