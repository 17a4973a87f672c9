//! Pictures of a request: from the text of a client to the patches that the vision encoder reads.
//!
//! The path of one picture: `source` (URL or base64 → bytes) → `header` (format and size, before any pixel is
//! decoded) → `preprocessor` (size → grid of patches, and thereby the number of tokens) → `decode` (bytes →
//! RGB) → `bicubic` (RGB → the grid's size) → `picture` (padded pixels, read patch by patch).
//!
//! Everything here is a function of its arguments: no clock, no network, no files, no threads. Bytes of a
//! client never cause a panic and never more memory than `Header::memory_bytes` states.

mod bicubic;
mod config;
mod decode;
mod error;
mod header;
mod picture;
mod preprocessor;
mod rgb;
mod source;
#[cfg(test)]
mod test_data;

pub use bicubic::resize;
pub use config::{Compositing, Config};
pub use decode::decode;
pub use error::ImageError;
pub use header::{Format, Header, Limits, read_header};
pub use picture::{content_hash, picture};
pub use preprocessor::{Grid, GridError, Preprocessor, PreprocessorError};
pub use rgb::Rgb;
pub use source::{ImageSource, SourceError, decode_base64};
