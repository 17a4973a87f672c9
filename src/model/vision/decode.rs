//! From the bytes of a picture's file to RGB.
//!
//! The result equals Pillow's to the bit for PNG, GIF, BMP and WebP; of JPEG, single values differ by a few
//! levels between decoders. Colour profiles are not applied, as in the reference. A decoder sees a file only
//! after its header passed the limits, reads it through a reader that can be stopped, and allocates no more
//! than the header says.

mod jpeg;
mod reader;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, png::PngDecoder, webp::WebPDecoder};
use image::{ColorType, ImageDecoder};

use super::header::png::pixel_chunks;
use super::{Compositing, Format, Header, ImageError, Limits, Rgb, read_header};
use reader::StoppableReader;

/// Pixels of the picture in `bytes`, whose header is `header`, of size `header.size(compositing)`.
///
/// `cancelled` is asked every few thousand bytes of the file; once true, decoding ends with
/// [`ImageError::Cancelled`].
///
/// Errors: every variant of [`ImageError`]. The header is compared with `bytes` again, so one of another file
/// is an error too.
pub fn decode(
    bytes: &[u8],
    header: &Header,
    limits: &Limits,
    compositing: Compositing,
    cancelled: &dyn Fn() -> bool,
) -> Result<Rgb, ImageError> {
    let format = header.format;
    if read_header(bytes, limits)? != *header {
        return Err(ImageError::Damaged { format, reason: "it is not the file of this header" });
    }
    // Third-party decoders are written not to panic; one that does costs the request, not the process.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_stored(bytes, header, compositing, cancelled)));
    if cancelled() {
        return Err(ImageError::Cancelled);
    }
    let stored = decoded.unwrap_or(Err(ImageError::DecoderPanicked { format }))?;
    Ok(match compositing {
        Compositing::Upright => stored.turned(header.orientation),
        Compositing::Released => stored,
    })
}

/// The picture in its stored position.
fn decode_stored(
    bytes: &[u8],
    header: &Header,
    compositing: Compositing,
    cancelled: &dyn Fn() -> bool,
) -> Result<Rgb, ImageError> {
    let stored = header.size(Compositing::Released);
    let read = |bytes| StoppableReader::new(bytes, cancelled);
    match header.format {
        Format::Jpeg => jpeg::decode(bytes, stored, cancelled),
        Format::Png => {
            let pixel_chunks = pixel_chunks(bytes)?;
            let decoder = PngDecoder::with_limits(read(&pixel_chunks), decoder_limits(header));
            decode_with(decoder, header, compositing)
        }
        Format::Gif => decode_with(GifDecoder::new(read(bytes)), header, compositing),
        Format::WebP => decode_with(WebPDecoder::new(read(bytes)), header, compositing),
        Format::Bmp => decode_with(BmpDecoder::new(Cursor::new(bytes)), header, compositing),
    }
}

/// Limits of a decoder as it states them itself: a second line behind the header's.
fn decoder_limits(header: &Header) -> image::Limits {
    let mut limits = image::Limits::no_limits();
    let stored = header.size(Compositing::Released);
    (limits.max_image_width, limits.max_image_height) = (Some(stored.0), Some(stored.1));
    limits.max_alloc = Some(header.memory_bytes());
    limits
}

fn decode_with<D: ImageDecoder>(
    decoder: image::ImageResult<D>,
    header: &Header,
    compositing: Compositing,
) -> Result<Rgb, ImageError> {
    let failed = |error: image::ImageError| decoder_error(header.format, error);
    let mut decoder = decoder.map_err(failed)?;
    decoder.set_limits(decoder_limits(header)).map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if (width, height) != header.size(Compositing::Released) {
        return Err(ImageError::Damaged { format: header.format, reason: "it states two sizes" });
    }
    let color = decoder.color_type();
    let mut samples = vec![0; decoder.total_bytes() as usize];
    decoder.read_image(&mut samples).map_err(failed)?;
    Ok(Rgb::new(width as usize, height as usize, to_rgb(samples, color, compositing)))
}

fn decoder_error(format: Format, error: image::ImageError) -> ImageError {
    match error {
        image::ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            ImageError::Truncated { format }
        }
        error => ImageError::Decoder { format, source: error.into() },
    }
}

/// Pixels in three bytes, from samples of `color`, 16-bit ones in the machine's byte order.
fn to_rgb(samples: Vec<u8>, color: ColorType, compositing: Compositing) -> Vec<u8> {
    let over_white = |value: u8, alpha: u8| match compositing {
        Compositing::Upright => over_white(value, alpha),
        Compositing::Released => value,
    };
    // Index of the byte that counts in a 16-bit sample.
    const HIGH: usize = if cfg!(target_endian = "little") { 1 } else { 0 };
    match color {
        ColorType::Rgb8 => samples,
        ColorType::L8 => spread::<1>(&samples, |[value]| value),
        ColorType::La8 => spread::<2>(&samples, |[value, alpha]| over_white(value, alpha)),
        ColorType::L16 => spread::<2>(&samples, |sample| match compositing {
            Compositing::Upright => sample[HIGH],
            // Pillow reads 16-bit gray as whole numbers and clips them.
            Compositing::Released => u16::from_ne_bytes(sample).min(255) as u8,
        }),
        ColorType::La16 => spread::<4>(&samples, |sample| over_white(sample[HIGH], sample[2 + HIGH])),
        ColorType::Rgba8 => shrink::<4>(samples, |p| [p[0], p[1], p[2]].map(|value| over_white(value, p[3]))),
        ColorType::Rgb16 => shrink::<6>(samples, |p| [p[HIGH], p[2 + HIGH], p[4 + HIGH]]),
        ColorType::Rgba16 => shrink::<8>(samples, |p| {
            [p[HIGH], p[2 + HIGH], p[4 + HIGH]].map(|value| over_white(value, p[6 + HIGH]))
        }),
        other => unreachable!("decoders of 8-bit and 16-bit formats do not return {other:?}"),
    }
}

/// Gray of `N` bytes a pixel in three equal channels.
fn spread<const N: usize>(samples: &[u8], gray: impl Fn([u8; N]) -> u8) -> Vec<u8> {
    let mut pixels = vec![0; samples.len() / N * 3];
    for (pixel, &sample) in pixels.as_chunks_mut().0.iter_mut().zip(samples.as_chunks().0) {
        *pixel = [gray(sample); 3];
    }
    pixels
}

/// Pixels of `N` bytes, more than three, made smaller in place.
fn shrink<const N: usize>(mut samples: Vec<u8>, rgb: impl Fn([u8; N]) -> [u8; 3]) -> Vec<u8> {
    let pixels = samples.len() / N;
    for i in 0..pixels {
        let pixel = samples[i * N..i * N + N].try_into().expect("N bytes");
        samples[i * 3..i * 3 + 3].copy_from_slice(&rgb(pixel));
    }
    samples.truncate(pixels * 3);
    samples.shrink_to_fit();
    samples
}

/// A value with transparency over white, rounded as Pillow does (`Imaging.h`, macros `MULDIV255` and
/// `BLEND`).
fn over_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    let sum = value * alpha + 255 * (255 - alpha) + 128;
    ((sum + (sum >> 8)) >> 8) as u8
}
