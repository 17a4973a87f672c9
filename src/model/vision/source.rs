//! Where a client says a picture is.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

#[cfg(test)]
mod tests;

/// A picture in a request, as the client wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageSource<'a> {
    /// The payload of a `data:` URL, for [`decode_base64`].
    Base64(&'a str),
    /// An http or https URL.
    Remote(&'a str),
}

/// A picture that cannot be had. No text holds more of the client's than a scheme.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Nothing at all.
    #[error("the image URL is empty")]
    Empty,
    /// A file of the server.
    #[error("file: URLs are not read; send the image as a data: URL")]
    File,
    /// A file of the model's own service.
    #[error("ms:// URLs name files of another service; send the image as a data: URL")]
    Uploaded,
    /// Another scheme.
    #[error("image URLs with the scheme \"{scheme}\" are not supported; send the image as a data: URL")]
    UnknownScheme {
        /// At most 16 characters.
        scheme: String,
    },
    /// A path, or base64 without the start of a URL.
    #[error("the image URL has no scheme; send the image as data:image/png;base64,...")]
    NoScheme,
    /// A `data:` URL without a comma.
    #[error("the data: URL has no comma before its payload")]
    NoComma,
    /// A `data:` URL of plain text.
    #[error("the data: URL is not base64; it must start as data:image/png;base64,...")]
    NotBase64,
    /// A payload of nothing.
    #[error("the base64 data is empty")]
    EmptyPayload,
    /// More bytes than allowed.
    #[error("the image file has {bytes} bytes, more than the limit of {limit}")]
    TooManyBytes {
        /// Bytes that the payload stands for.
        bytes: usize,
        /// Most that are allowed.
        limit: usize,
    },
    /// A character that base64 does not have.
    #[error("the base64 data has an invalid character at position {position}")]
    InvalidCharacter {
        /// Position in the payload without white space.
        position: usize,
    },
    /// Characters that make no whole number of bytes, or padding in the wrong place.
    #[error("the base64 data is cut off or wrongly padded")]
    InvalidLength,
}

/// Longest scheme in an error's text.
const SCHEME_CHARS: usize = 16;

impl<'a> ImageSource<'a> {
    /// Sorts a URL by its scheme; nothing is decoded or fetched. The media type of a `data:` URL is not read:
    /// clients often name a wrong one.
    pub fn parse_url(url: &'a str) -> Result<ImageSource<'a>, SourceError> {
        let url = url.trim_ascii();
        if url.is_empty() {
            return Err(SourceError::Empty);
        }
        let is_scheme = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        };
        let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
            return Err(SourceError::NoScheme);
        };
        match scheme.to_ascii_lowercase().as_str() {
            "data" => payload(rest).map(ImageSource::Base64),
            "http" | "https" => Ok(ImageSource::Remote(url)),
            "file" => Err(SourceError::File),
            "ms" => Err(SourceError::Uploaded),
            // A drive of Windows.
            drive if drive.len() == 1 => Err(SourceError::NoScheme),
            scheme => Err(SourceError::UnknownScheme { scheme: scheme.chars().take(SCHEME_CHARS).collect() }),
        }
    }
}

/// The part of a `data:` URL after its comma.
fn payload(rest: &str) -> Result<&str, SourceError> {
    let (media_type, payload) = rest.split_once(',').ok_or(SourceError::NoComma)?;
    let last = media_type.rsplit(';').next().unwrap_or_default();
    if last.trim_ascii().eq_ignore_ascii_case("base64") { Ok(payload) } else { Err(SourceError::NotBase64) }
}

/// Padding may be missing, and bits after the last byte are ignored, as Python's decoder does.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Bytes of `text`, base64 in the standard alphabet. White space anywhere is skipped, and `%` escapes are
/// read, as URLs may have them. The length is checked before anything is decoded.
pub fn decode_base64(text: &str, max_bytes: usize) -> Result<Vec<u8>, SourceError> {
    let characters = significant(text);
    let unpadded = characters.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    if unpadded == 0 {
        return Err(if characters.is_empty() {
            SourceError::EmptyPayload
        } else {
            SourceError::InvalidLength
        });
    }
    let bytes = unpadded / 4 * 3 + unpadded % 4 * 3 / 4;
    if bytes > max_bytes {
        return Err(SourceError::TooManyBytes { bytes, limit: max_bytes });
    }
    BASE64.decode(&characters[..]).map_err(|error| match error {
        base64::DecodeError::InvalidByte(position, byte) if byte != b'=' => {
            SourceError::InvalidCharacter { position }
        }
        _ => SourceError::InvalidLength,
    })
}

/// `text` without white space and escapes; borrowed if it has none.
fn significant(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|&byte| byte.is_ascii_whitespace() || byte == b'%') {
        return Cow::Borrowed(bytes);
    }
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [byte, after @ ..] = rest {
        let (byte, after) = match after {
            [high, low, after @ ..] if *byte == b'%' => match (hex_digit(*high), hex_digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (*byte, rest.split_at(1).1),
            },
            _ => (*byte, after),
        };
        if !byte.is_ascii_whitespace() {
            kept.push(byte);
        }
        rest = after;
    }
    Cow::Owned(kept)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}
