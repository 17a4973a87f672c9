//! What a picture's file says about itself before a pixel is decoded.
//!
//! The readers here are our own: a few dozen lines for each format that allocate next to nothing, look at every byte
//! with a bounds check, and know what the decoders would allocate. Limits are checked before a decoder sees
//! the file.

mod bmp;
mod bytes;
mod gif;
mod jpeg;
pub(super) mod png;
mod sniff;
mod webp;
mod webp_lossless;

use std::fmt;

use image::metadata::Orientation;

use super::{Compositing, ImageError};

/// Formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Portable Network Graphics.
    Png,
    /// JPEG, baseline or progressive.
    Jpeg,
    /// WebP, lossy or lossless; the first frame of an animation.
    WebP,
    /// GIF; the first frame.
    Gif,
    /// Windows bitmap.
    Bmp,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "png",
            Format::Jpeg => "jpeg",
            Format::WebP => "webp",
            Format::Gif => "gif",
            Format::Bmp => "bmp",
        })
    }
}

/// What one picture may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of the file.
    pub max_bytes: usize,
    /// Most pixels, width times height. Memory and time of decoding are proportional to them.
    pub max_pixels: u64,
    /// Most pixels on a side.
    pub max_side: u32,
    /// Most scans of a JPEG; usual progressive files have about 10. Each scan visits every block of the
    /// picture.
    pub max_scans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 20_000_000, max_pixels: 64_000_000, max_side: 65_535, max_scans: 100 }
    }
}

impl Limits {
    /// Checks a size that a file claims.
    fn check_size(&self, format: Format, width: u32, height: u32) -> Result<(), ImageError> {
        if width == 0 || height == 0 {
            return Err(ImageError::Damaged { format, reason: "it has no pixels" });
        }
        if width.max(height) > self.max_side {
            return Err(ImageError::SideTooLong { width, height, limit: self.max_side });
        }
        if u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(ImageError::TooManyPixels { width, height, limit: self.max_pixels });
        }
        Ok(())
    }
}

/// Format and size of a picture within the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Format, by the file's first bytes.
    pub format: Format,
    /// Pixels in a row of the upright picture.
    pub width: u32,
    /// Rows of the upright picture.
    pub height: u32,
    /// From the stored picture to the upright one.
    pub(super) orientation: Orientation,
    memory_bytes: u64,
}

impl Header {
    /// Width and height of what `decode` returns, in pixels.
    pub fn size(&self, compositing: Compositing) -> (u32, u32) {
        match compositing {
            Compositing::Released if turns(self.orientation) => (self.height, self.width),
            _ => (self.width, self.height),
        }
    }

    /// Bytes that `decode` allocates at most, its result included; small fixed buffers of the decoders are
    /// not counted.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// `decoder_bytes`: the decoder's allocations and its result in the stored layout.
    fn new(format: Format, stored: (u32, u32), orientation: Orientation, decoder_bytes: u64) -> Header {
        let (width, height) = if turns(orientation) { (stored.1, stored.0) } else { stored };
        let rgb_bytes = 3 * u64::from(width) * u64::from(height);
        // The turned picture, or the pixels in three bytes, beside the decoder's result.
        Header { format, width, height, orientation, memory_bytes: decoder_bytes.max(rgb_bytes) + rgb_bytes }
    }
}

/// Format, upright size and memory of the picture in `bytes`. Decodes no pixel; a JPEG is searched for markers
/// to its end, of lossless WebP everything before the pixels is read.
///
/// Errors: every variant of [`ImageError`] but those of decoders and of cancelling.
pub fn read_header(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if bytes.len() > limits.max_bytes {
        return Err(ImageError::TooManyBytes { bytes: bytes.len(), limit: limits.max_bytes });
    }
    let format =
        sniff::format(bytes).ok_or_else(|| ImageError::Unsupported { found: sniff::describe(bytes) })?;
    match format {
        Format::Png => png::read(bytes, limits),
        Format::Jpeg => jpeg::read(bytes, limits),
        Format::WebP => webp::read(bytes, limits),
        Format::Gif => gif::read(bytes, limits),
        Format::Bmp => bmp::read(bytes, limits),
    }
}

/// Whether width and height change places.
fn turns(orientation: Orientation) -> bool {
    matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    )
}

/// Orientation in an EXIF block, with or without the prefix that JPEG puts before it; upright where there is
/// none.
fn exif_orientation(exif: &[u8]) -> Orientation {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}
