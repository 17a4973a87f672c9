//! BMP: the size in either kind of header.

use image::metadata::Orientation;

use super::bytes::Bytes;
use super::{Header, Limits};
use crate::vision::{Format, ImageError};

pub(super) fn read(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    let mut rest = Bytes::new(Format::Bmp, &bytes[2..]);
    // File size, reserved, start of the pixels.
    rest.take(12)?;
    let header_bytes = rest.u32_le()?;
    let (width, height) = match header_bytes {
        12 => (rest.u16_le()?.into(), rest.u16_le()?.into()),
        40..=124 => {
            // Signed numbers; rows from top to bottom have a negative height.
            let (width, height) = (rest.u32_le()? as i32, rest.u32_le()? as i32);
            if width < 0 {
                return Err(ImageError::Damaged { format: Format::Bmp, reason: "it has a negative width" });
            }
            (width as u32, height.unsigned_abs())
        }
        _ => {
            return Err(ImageError::Damaged { format: Format::Bmp, reason: "its header is of unknown kind" });
        }
    };
    limits.check_size(Format::Bmp, width, height)?;
    let decoder_bytes = u64::from(width) * u64::from(height) * 4;
    Ok(Header::new(Format::Bmp, (width, height), Orientation::NoTransforms, decoder_bytes))
}
