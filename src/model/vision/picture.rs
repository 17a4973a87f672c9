//! The pixels that the encoder reads: resized, padded, in order of patches.

#[cfg(test)]
mod tests;

use super::bicubic::resize_into;
use super::{Compositing, Grid, GridError, Preprocessor, Rgb};
use perigee_ops::{PATCH_SIDE, Picture};

/// Pixels of a decoded file as the encoder sees it: resized, with zeros right of it and below.
///
/// Errors: [`GridError`], for a size that the model does not take.
pub fn picture(preprocessor: &Preprocessor, decoded: &Rgb) -> Result<Picture, GridError> {
    let Grid { resized: [width, height], rows, cols } =
        preprocessor.grid(decoded.width(), decoded.height())?;
    let stride = cols * PATCH_SIDE * 3;
    let mut pixels = vec![0; rows * PATCH_SIDE * stride];
    resize_into(decoded, width, height, &mut pixels, stride);
    Ok(Picture::new(rows, cols, pixels).expect("a grid is of whole squares of patches"))
}

/// Version of everything between a file's bytes and encoder inputs; a change of results is a change of this label.
const HASH_DOMAIN: &[u8] = b"vision content 1";

/// Identity of a picture's encoder outputs: equal hashes mean equal inputs of the encoder. Nothing in it comes from a client but the bytes of
/// the file, and every part is preceded by its length, so no two lists of parts are one string of bytes.
pub fn content_hash(bytes: &[u8], preprocessor: &Preprocessor, compositing: Compositing) -> [u8; 32] {
    let mut settings = preprocessor.fingerprint();
    settings.push(match compositing {
        Compositing::Upright => 0,
        Compositing::Released => 1,
    });
    let mut hasher = blake3::Hasher::new();
    for part in [HASH_DOMAIN, &settings, bytes] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}
