//! Why a picture is refused.

use std::error::Error;

use super::Format;

/// A picture that cannot be read. The texts are for clients: none holds bytes of the file.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No bytes.
    #[error("the image is empty")]
    Empty,
    /// Bytes of another format, as far as it is known.
    #[error("the data is {found}, not an image in a supported format (png, jpeg, webp, gif, bmp)")]
    Unsupported {
        /// What was found, with its article.
        found: &'static str,
    },
    /// More bytes than allowed.
    #[error("the image file has {bytes} bytes, more than the limit of {limit}")]
    TooManyBytes {
        /// Bytes of the file.
        bytes: usize,
        /// Most that are allowed.
        limit: usize,
    },
    /// More pixels than allowed.
    #[error("the image has {width}x{height} pixels, more than the limit of {limit} in all")]
    TooManyPixels {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Most that are allowed, width times height.
        limit: u64,
    },
    /// A side longer than allowed.
    #[error("the image has {width}x{height} pixels, more than the limit of {limit} on a side")]
    SideTooLong {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Most pixels on a side.
        limit: u32,
    },
    /// A progressive JPEG of more scans than allowed.
    #[error("the jpeg image has more scans than the limit of {limit}")]
    TooManyScans {
        /// Most that are allowed.
        limit: usize,
    },
    /// The file ends too early.
    #[error("the {format} image is truncated")]
    Truncated {
        /// Format of the file.
        format: Format,
    },
    /// The file contradicts itself.
    #[error("the {format} image is damaged: {reason}")]
    Damaged {
        /// Format of the file.
        format: Format,
        /// One clause.
        reason: &'static str,
    },
    /// The decoder of the format refuses the file.
    #[error("the {format} image cannot be decoded")]
    Decoder {
        /// Format of the file.
        format: Format,
        /// The decoder's own error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The decoder of the format panicked.
    #[error("the {format} image makes its decoder fail")]
    DecoderPanicked {
        /// Format of the file.
        format: Format,
    },
    /// The caller's `cancelled` became true.
    #[error("decoding of the image was cancelled")]
    Cancelled,
}
