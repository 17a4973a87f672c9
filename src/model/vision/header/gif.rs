//! GIF: the screen and the first frame.
//!
//! Source: GIF89a specification, sections 18 to 26.

use image::metadata::Orientation;

use super::bytes::Bytes;
use super::{Header, Limits};
use crate::vision::{Format, ImageError};

pub(super) fn read(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    let damaged = |reason| ImageError::Damaged { format: Format::Gif, reason };
    let mut rest = Bytes::new(Format::Gif, &bytes[6..]);
    let (width, height) = (rest.u16_le()?, rest.u16_le()?);
    limits.check_size(Format::Gif, width.into(), height.into())?;
    let flags = rest.u8()?;
    rest.take(2)?;
    if flags & 0x80 != 0 {
        rest.take(3 << ((flags & 7) + 1))?;
    }
    loop {
        match rest.u8()? {
            // An extension: a kind, then blocks of up to 255 bytes to an empty one.
            0x21 => {
                rest.u8()?;
                while let len @ 1.. = usize::from(rest.u8()?) {
                    rest.take(len)?;
                }
            }
            0x2c => break,
            0x3b => return Err(damaged("it has no frame")),
            _ => return Err(damaged("a block is of unknown kind")),
        }
    }
    let (left, top) = (u32::from(rest.u16_le()?), u32::from(rest.u16_le()?));
    let (frame_width, frame_height) = (u32::from(rest.u16_le()?), u32::from(rest.u16_le()?));
    if frame_width == 0 || frame_height == 0 {
        return Err(damaged("its first frame has no pixels"));
    }
    if left + frame_width > width.into() || top + frame_height > height.into() {
        return Err(damaged("its first frame reaches over the edge of the screen"));
    }
    // The screen and the frame in four bytes a pixel, and the frame's palette indices.
    let screen_pixels = u64::from(width) * u64::from(height);
    Ok(Header::new(Format::Gif, (width.into(), height.into()), Orientation::NoTransforms, screen_pixels * 9))
}
