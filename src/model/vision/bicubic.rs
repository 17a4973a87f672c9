//! Pillow's bicubic resampling of 8-bit pixels, to the bit.
//!
//! Source: Pillow 12.1.1, `src/libImaging/Resample.c`. Two passes, the one along rows first; each pass rounds
//! and clips to 8 bits; weights are fixed-point numbers of 22 bits. A pass whose size does not change is left
//! out. Later versions of Pillow change the order of the passes for some shapes, and with it 15-30 % of the
//! values of white noise; the order here is that of 12.1.1.
//!
//! The passes are interleaved: a row of the result is made as soon as the rows under its filter are narrowed,
//! so the intermediate picture is a ring of a few rows, which stays in the second-level cache.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod filter;
mod narrow;
mod portable;
#[cfg(test)]
mod tests;

use super::Rgb;
use filter::Filter;
use narrow::NarrowRows;

/// `picture` with another size, in pixels. Panics if a size is 0.
pub fn resize(picture: &Rgb, width: usize, height: usize) -> Rgb {
    let mut pixels = vec![0; width * height * 3];
    resize_into(picture, width, height, &mut pixels, width * 3);
    Rgb::new(width, height, pixels)
}

/// Writes `picture`, resized, to the upper left of `out`, whose rows are `stride` bytes apart; the rest of
/// `out` is not touched.
pub(super) fn resize_into(picture: &Rgb, width: usize, height: usize, out: &mut [u8], stride: usize) {
    resize_with(Kernel::best(), picture, width, height, out, stride);
}

fn resize_with(kernel: Kernel, picture: &Rgb, width: usize, height: usize, out: &mut [u8], stride: usize) {
    assert!(width > 0 && height > 0, "a picture is resized to {width}x{height} pixels");
    let row_bytes = width * 3;
    assert!(
        stride >= row_bytes && out.len() >= (height - 1) * stride + row_bytes,
        "room for the resized picture"
    );
    let vertical = (height != picture.height()).then(|| Filter::new(picture.height(), height));
    let window = vertical.as_ref().map_or(1, Filter::max_taps);
    let mut narrow = (width != picture.width()).then(|| NarrowRows::new(kernel, picture, width, window));
    for (y, out_row) in out.chunks_mut(stride).take(height).enumerate() {
        let (first, weights) = vertical.as_ref().map_or((y, &[][..]), |filter| filter.output(y));
        let taps = first..first + weights.len().max(1);
        if let Some(narrow) = &mut narrow {
            narrow.advance_to(taps.end);
        }
        let rows: Vec<&[u8]> =
            taps.map(|y| narrow.as_ref().map_or_else(|| picture.row(y), |narrow| narrow.row(y))).collect();
        let out_row = &mut out_row[..row_bytes];
        if weights.is_empty() {
            out_row.copy_from_slice(rows[0]);
        } else {
            kernel.vertical(weights, &rows, out_row);
        }
    }
}

/// Inner loops that this machine can run.
#[derive(Clone, Copy)]
enum Kernel {
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    Portable,
}

impl Kernel {
    fn best() -> Kernel {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = avx2::Avx2::detect() {
            return Kernel::Avx2(avx2);
        }
        Kernel::Portable
    }

    /// Rows of three-byte pixels through the filter. Each of `rows` has at least `filter.read_bytes()` bytes,
    /// of which those after its pixels do not change the result; the rows of `out` are `stride` bytes apart,
    /// their pixels and `EXCESS_BYTES`.
    fn horizontal(self, filter: &Filter, rows: [&[u8]; narrow::ROWS], out: &mut [u8], stride: usize) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(avx2) => avx2.horizontal(filter, rows, out, stride),
            Kernel::Portable => {
                rows.iter()
                    .zip(out.chunks_mut(stride))
                    .for_each(|(row, out)| portable::horizontal(filter, row, out));
            }
        }
    }

    /// The weighted sum of `rows`, one for each weight, all as long as `out`.
    fn vertical(self, weights: &[i32], rows: &[&[u8]], out: &mut [u8]) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(avx2) => avx2.vertical(weights, rows, out),
            Kernel::Portable => portable::vertical(weights, rows, out),
        }
    }
}
