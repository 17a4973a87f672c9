//! The inner loops for AVX2, equal to the portable ones to the bit.
//!
//! `vpmaddwd` multiplies 16 pairs of 16-bit numbers and adds neighbours. A weight of 23 bits and a sign is
//! 256 * high + low with factors of 16 bits, so a sum of products is 256 * (sum with high) + (sum with low),
//! both exact in 32 bits: two such instructions do the work of 16 multiplications of 32 bits, which take two
//! micro-operations for every 8.

use std::arch::x86_64::*;

use super::filter::{Filter, HALF, PRECISION, SplitGroup, SplitPair};
use super::narrow::{EXCESS_BYTES, ROWS};
use super::portable;

/// Proof that this processor has AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Columns that the vertical loop takes together.
const COLUMNS: usize = 32;

impl Avx2 {
    pub(super) fn detect() -> Option<Avx2> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }

    /// See `Kernel::horizontal`.
    pub(super) fn horizontal(self, filter: &Filter, rows: [&[u8]; ROWS], out: &mut [u8], stride: usize) {
        assert!(rows.iter().all(|row| row.len() >= filter.read_bytes()), "source rows of the vector loop");
        assert!(stride >= filter.outputs() * 3 + EXCESS_BYTES && out.len() >= stride * ROWS, "narrowed rows");
        // SAFETY: `self` exists only where AVX2 does; the lengths, checked above, are those that the function
        // asks for.
        unsafe { horizontal(filter, rows, out, stride) }
    }

    /// See `Kernel::vertical`.
    pub(super) fn vertical(self, weights: &[i32], rows: &[&[u8]], out: &mut [u8]) {
        assert!(
            rows.len() == weights.len() && rows.iter().all(|row| row.len() == out.len()),
            "rows of equal length"
        );
        if out.len() < COLUMNS {
            return portable::vertical(weights, rows, out);
        }
        // SAFETY: `self` exists only where AVX2 does; the lengths, checked above, are those that the function
        // asks for.
        unsafe { vertical(weights, rows, out) }
    }
}

/// Four rows through the filter. The rows of `out` are `stride` bytes apart.
///
/// # Safety
///
/// AVX2; each row has `filter.read_bytes()` bytes; `stride` is at least three times the outputs and
/// [`EXCESS_BYTES`], and `out` has four strides.
#[target_feature(enable = "avx2")]
unsafe fn horizontal(filter: &Filter, rows: [&[u8]; ROWS], out: &mut [u8], stride: usize) {
    // From two pixels of two rows in 16 bytes each, eight used: six bytes together, and again.
    const Z: i8 = -1;
    let compact =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 8, 9, 10, Z, Z, 4, 5, 6, 12, 13, 14, Z, Z));
    let rows = rows.map(<[u8]>::as_ptr);
    let last = filter.outputs() - 1;
    for x in (0..=last).step_by(2) {
        // SAFETY: the lengths of the rows are those that the function asks for.
        let words = unsafe { [pixel(filter, x, rows), pixel(filter, (x + 1).min(last), rows)] };
        let bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words[0], words[1]), compact);
        let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        // SAFETY: eight bytes at the start of a pixel end at most `EXCESS_BYTES` after the row's pixels,
        // within its stride; those after two pixels are overwritten by the next.
        unsafe {
            let to = out.as_mut_ptr().add(x * 3);
            _mm_storel_epi64(to.cast(), even);
            _mm_storel_epi64(to.add(stride).cast(), odd);
            _mm_storeh_pd(to.add(2 * stride).cast(), _mm_castsi128_pd(even));
            _mm_storeh_pd(to.add(3 * stride).cast(), _mm_castsi128_pd(odd));
        }
    }
}

/// Pixel `x` of four rows: red, green, blue and a zero in 16 bits, of rows 0 and 2 in the lower half, of rows
/// 1 and 3 in the upper.
///
/// # Safety
///
/// AVX2; each row has `filter.read_bytes()` bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn pixel(filter: &Filter, x: usize, rows: [*const u8; ROWS]) -> __m256i {
    // Of two pixels in each half: red, green, blue and nothing, each channel of both side by side as 16-bit
    // numbers.
    const Z: i8 = -1;
    let first_pair =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, Z, 3, Z, 1, Z, 4, Z, 2, Z, 5, Z, Z, Z, Z, Z));
    let second_pair =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(6, Z, 9, Z, 7, Z, 10, Z, 8, Z, 11, Z, Z, Z, Z, Z));
    let (first, groups) = filter.split_output(x);
    // Two rows share a vector.
    let mut high = [_mm256_setzero_si256(); ROWS / 2];
    let mut low = [_mm256_setzero_si256(); ROWS / 2];
    for (g, SplitGroup(pairs)) in groups.iter().enumerate() {
        for r in 0..ROWS / 2 {
            let at = (first + g * 4) * 3;
            // SAFETY: the 16 bytes end within `read_bytes`, which is the largest such end of all outputs.
            let pixels = unsafe {
                _mm256_inserti128_si256(
                    _mm256_castsi128_si256(_mm_loadu_si128(rows[r * 2].add(at).cast())),
                    _mm_loadu_si128(rows[r * 2 + 1].add(at).cast()),
                    1,
                )
            };
            for (pair, order) in pairs.iter().zip([first_pair, second_pair]) {
                let values = _mm256_shuffle_epi8(pixels, order);
                high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(values, _mm256_set1_epi32(pair.high)));
                low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(values, _mm256_set1_epi32(pair.low)));
            }
        }
    }
    _mm256_packs_epi32(rounded(high[0], low[0]), rounded(high[1], low[1]))
}

/// The weighted sum of rows.
///
/// # Safety
///
/// AVX2; `rows` are as many as `weights`, all as long as `out`, which has at least [`COLUMNS`] bytes.
#[target_feature(enable = "avx2")]
unsafe fn vertical(weights: &[i32], rows: &[&[u8]], out: &mut [u8]) {
    // Rows in pairs; a last row without partner is its own, with weight 0.
    let pairs: Vec<(SplitPair, *const u8, *const u8)> = weights
        .chunks(2)
        .zip(rows.chunks(2))
        .map(|(weights, rows)| {
            let pair = SplitPair::new(weights[0], weights.get(1).copied().unwrap_or(0));
            (pair, rows[0].as_ptr(), rows[rows.len() - 1].as_ptr())
        })
        .collect();
    let last = out.len() - COLUMNS;
    // The last block overlaps the one before it where the columns are not a multiple.
    for column in (0..out.len()).step_by(COLUMNS).map(|column| column.min(last)) {
        let mut high = [_mm256_setzero_si256(); 4];
        let mut low = [_mm256_setzero_si256(); 4];
        for &(pair, row, next) in &pairs {
            let (high_weights, low_weights) = (_mm256_set1_epi32(pair.high), _mm256_set1_epi32(pair.low));
            for h in 0..2 {
                // SAFETY: `column` + 32 is at most the length of `out`, which is that of all rows.
                let (a, b) = unsafe {
                    (
                        _mm_loadu_si128(row.add(column + h * 16).cast()),
                        _mm_loadu_si128(next.add(column + h * 16).cast()),
                    )
                };
                for (q, values) in [_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)].into_iter().enumerate()
                {
                    let values = _mm256_cvtepu8_epi16(values);
                    let q = h * 2 + q;
                    high[q] = _mm256_add_epi32(high[q], _mm256_madd_epi16(values, high_weights));
                    low[q] = _mm256_add_epi32(low[q], _mm256_madd_epi16(values, low_weights));
                }
            }
        }
        // Eight columns each, as pixel values in 32 bits.
        for (high, low) in high.iter().zip(&mut low) {
            *low = rounded(*high, *low);
        }
        let words = [_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3])];
        // Packing works in halves of a vector; the permutation puts the groups of four columns back in order.
        let bytes = _mm256_packus_epi16(words[0], words[1]);
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: as for the loads.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(column).cast(), bytes) };
    }
}

/// Sums of products as whole numbers, not yet clipped to 8 bits, from the sums with both factors of the
/// weights.
#[target_feature(enable = "avx2")]
#[inline]
fn rounded(high: __m256i, low: __m256i) -> __m256i {
    let sums = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
    _mm256_srai_epi32(_mm256_add_epi32(sums, _mm256_set1_epi32(HALF)), PRECISION as i32)
}
