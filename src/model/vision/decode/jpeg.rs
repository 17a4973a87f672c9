//! JPEG by zune-jpeg in strict mode.
//!
//! The `image` crate uses the same decoder in its lenient mode, which returns a picture that is gray from the
//! place where a file ends; the reference refuses such a file.

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::{ZByteIoError, ZByteReaderTrait, ZCursor, ZSeekFrom};
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::vision::{Format, ImageError, Rgb};

/// `size`: width and height that the header states, in pixels.
pub(super) fn decode(
    bytes: &[u8],
    size: (u32, u32),
    cancelled: &dyn Fn() -> bool,
) -> Result<Rgb, ImageError> {
    let (width, height) = (size.0 as usize, size.1 as usize);
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(width)
        .set_max_height(height)
        // The header's reader has counted them.
        .jpeg_set_max_scans(usize::MAX);
    let reader = StoppableCursor { cursor: ZCursor::new(bytes), reads: 0, stopped: false, cancelled };
    let mut decoder = JpegDecoder::new_with_options(reader, options);
    decoder.decode_headers().map_err(failed)?;
    if decoder.dimensions() != Some((width, height)) {
        return Err(ImageError::Damaged { format: Format::Jpeg, reason: "it states two sizes" });
    }
    let gray = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let output = if gray { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = decoder.options().jpeg_set_out_colorspace(output);
    decoder.set_options(options);
    let mut pixels = vec![0; width * height * output.num_components()];
    decoder.decode_into(&mut pixels).map_err(failed)?;
    if gray {
        pixels = super::spread::<1>(&pixels, |[value]| value);
    }
    Ok(Rgb::new(width, height, pixels))
}

fn failed(error: DecodeErrors) -> ImageError {
    match error {
        DecodeErrors::ExhaustedData => ImageError::Truncated { format: Format::Jpeg },
        error => ImageError::Decoder { format: Format::Jpeg, source: Box::new(error) },
    }
}

/// A cursor that is at its end once `cancelled`.
struct StoppableCursor<'a> {
    cursor: ZCursor<&'a [u8]>,
    reads: u32,
    stopped: bool,
    cancelled: &'a dyn Fn() -> bool,
}

/// Reads, of one to a few bytes, between two looks at the flag.
const READS: u32 = 1 << 12;

impl StoppableCursor<'_> {
    #[inline(always)]
    fn is_stopped(&mut self) -> bool {
        self.reads = self.reads.wrapping_add(1);
        if self.reads.is_multiple_of(READS) {
            self.stopped |= (self.cancelled)();
        }
        self.stopped
    }

    #[inline(always)]
    fn go_on(&mut self) -> Result<(), ZByteIoError> {
        if self.is_stopped() { Err(ZByteIoError::Generic("cancelled")) } else { Ok(()) }
    }
}

impl ZByteReaderTrait for StoppableCursor<'_> {
    #[inline(always)]
    fn read_byte_no_error(&mut self) -> u8 {
        if self.is_stopped() { 0 } else { self.cursor.read_byte_no_error() }
    }

    #[inline(always)]
    fn read_exact_bytes(&mut self, buffer: &mut [u8]) -> Result<(), ZByteIoError> {
        self.go_on()?;
        self.cursor.read_exact_bytes(buffer)
    }

    #[inline(always)]
    fn read_bytes(&mut self, buffer: &mut [u8]) -> Result<usize, ZByteIoError> {
        self.go_on()?;
        self.cursor.read_bytes(buffer)
    }

    #[inline(always)]
    fn peek_bytes(&mut self, buffer: &mut [u8]) -> Result<usize, ZByteIoError> {
        self.go_on()?;
        self.cursor.peek_bytes(buffer)
    }

    #[inline(always)]
    fn peek_exact_bytes(&mut self, buffer: &mut [u8]) -> Result<(), ZByteIoError> {
        self.go_on()?;
        self.cursor.peek_exact_bytes(buffer)
    }

    #[inline(always)]
    fn z_seek(&mut self, from: ZSeekFrom) -> Result<u64, ZByteIoError> {
        self.cursor.z_seek(from)
    }

    #[inline(always)]
    fn is_eof(&mut self) -> Result<bool, ZByteIoError> {
        if self.stopped { Ok(true) } else { self.cursor.is_eof() }
    }

    #[inline(always)]
    fn z_position(&mut self) -> Result<u64, ZByteIoError> {
        self.cursor.z_position()
    }

    fn read_remaining(&mut self, sink: &mut Vec<u8>) -> Result<usize, ZByteIoError> {
        self.cursor.read_remaining(sink)
    }
}
