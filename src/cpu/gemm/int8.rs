//! Tiles of int8 rows over panels of 4-bit codes: sums of small integers, exact until a group's scale is applied.
//!
//! A 4-bit code is one of sixteen small integers, E2M1 after doubling. Twelve is added to each (none is below -12), so that
//! one byte lookup makes unsigned bytes, and unsigned times signed bytes is what the integer dot products take. What that adds to
//! a sum, twelve times the sum of the row's values, comes with the rows ([`crate::row_steps`]) and is where the sum starts.
//!
//! Every output is a sum over runs of inputs in order: `sum = fma(integer, weight_scale * row_scale, sum)`. A run is 16 inputs, or, with
//! AVX-512 VNNI, the group that shares a scale; within a run nothing is rounded. Four products of a run fit 16 bits:
//! `4 * 2 * 24 * 127 < 2^15`.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `TileArgs`.

use crate::layout::{
    CodeFormat, INT8_CORRECTIONS, INT8_SCALES, INT8_STEP_WORDS, LANES, STEP_INPUTS, TileArgs,
};
use crate::packed_panels::group_scales;
use crate::simd::Simd;

/// Inputs whose products are added up as integers before a scale is applied.
const RUN_INPUTS: usize = 16;

/// The integer of each code and [`INT8_OFFSET`](crate::layout::INT8_OFFSET).
const fn integers(format: CodeFormat) -> [u8; 16] {
    match format {
        CodeFormat::Int4 => [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
        // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, times two.
        _ => [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0],
    }
}

/// What a code's integer is multiplied by to give its value.
const fn unit(format: CodeFormat) -> f32 {
    match format {
        CodeFormat::Int4 => 1.0,
        _ => 0.5,
    }
}

/// The tile in plain Rust, any number of rows.
///
/// # Safety
/// As `multiply_tile`.
#[inline(always)]
pub(crate) unsafe fn portable_tile<S: Simd>(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
    let table = integers(format);
    let runs_per_group = format.group_inputs() / RUN_INPUTS;
    for panel in 0..panels {
        let here = args.at_panel(panel);
        for row in 0..rows {
            let out = here.c.add(row * here.c_stride);
            let mut sums = if here.load { S::load(out) } else { S::zero() };
            for step in 0..here.steps {
                let word = |w: usize| *here.a.add((step * INT8_STEP_WORDS + w) * here.a_stride + row);
                let codes = here.w.wrapping_add(step * format.step_words());
                let scales = here.scales.wrapping_add(format.scale_offset(step));
                for run in 0..STEP_INPUTS / RUN_INPUTS {
                    let row_scale = f32::from_bits(word(INT8_SCALES + run));
                    let mut integers = [word(INT8_CORRECTIONS + run) as i32; LANES];
                    for q in 2 * run..2 * run + 2 {
                        let lanes = codes.add(q * LANES).cast::<[u32; LANES]>().read_unaligned();
                        for (shift, values) in [(0, word(2 * q)), (4, word(2 * q + 1))] {
                            let values = values.to_le_bytes().map(|value| i32::from(value as i8));
                            for (sum, lane) in integers.iter_mut().zip(lanes) {
                                let codes = (lane >> shift).to_le_bytes();
                                for (code, value) in codes.into_iter().zip(values) {
                                    *sum += i32::from(table[usize::from(code & 15)]) * value;
                                }
                            }
                        }
                    }
                    let scales =
                        group_scales(format, scales, run / runs_per_group, here.factors[0] * unit(format));
                    let scales = S::mul(S::load(scales.as_ptr()), S::splat(row_scale));
                    let integers = integers.map(|sum| sum as f32);
                    sums = S::fma(S::load(integers.as_ptr()), scales, sums);
                }
            }
            S::store(sums, out);
        }
    }
}

/// Which scale decoding an instance is compiled for; a const parameter has to be a number.
#[cfg(target_arch = "x86_64")]
mod format {
    use super::CodeFormat;

    pub(super) const NVFP4: u8 = 0;
    pub(super) const MXFP4: u8 = 1;
    pub(super) const INT4: u8 = 2;

    pub(super) const fn of(format: u8) -> CodeFormat {
        match format {
            NVFP4 => CodeFormat::Nvfp4,
            MXFP4 => CodeFormat::Mxfp4,
            _ => CodeFormat::Int4,
        }
    }
}

/// Calls `$run::<F, R, ...>` for the format and the row count.
#[cfg(target_arch = "x86_64")]
macro_rules! by_format_and_rows {
    ($format:expr, $rows:expr, [$($r:literal)*], $run:ident $(, $const:literal)*; $($arg:expr),*) => {
        match $format {
            CodeFormat::Nvfp4 => by_format_and_rows!(@rows format::NVFP4, $rows, [$($r)*], $run, ($($const)*), ($($arg),*)),
            CodeFormat::Mxfp4 => by_format_and_rows!(@rows format::MXFP4, $rows, [$($r)*], $run, ($($const)*), ($($arg),*)),
            CodeFormat::Int4 => by_format_and_rows!(@rows format::INT4, $rows, [$($r)*], $run, ($($const)*), ($($arg),*)),
            CodeFormat::Fp8 => unreachable!("8-bit codes are multiplied as bf16"),
        }
    };
    (@rows $f:expr, $rows:expr, [$($r:literal)*], $run:ident, $consts:tt, $args:tt) => {
        match $rows {
            0 => {}
            $($r => by_format_and_rows!(@call $f, $r, $run, $consts, $args),)*
            _ => unreachable!("no such tile"),
        }
    };
    (@call $f:expr, $r:literal, $run:ident, ($($const:literal)*), ($($arg:expr),*)) => {
        $run::<{ $f }, $r $(, $const)*>($($arg),*)
    };
}

/// Steps that codes are prefetched ahead: 2 KiB.
#[cfg(target_arch = "x86_64")]
const AHEAD_STEPS: usize = 8;

/// Bytes that scales are prefetched ahead.
#[cfg(target_arch = "x86_64")]
const SCALES_AHEAD: usize = 192;

/// Products of bytes in 16 bits, on AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use super::{
        AHEAD_STEPS, INT8_CORRECTIONS, INT8_SCALES, INT8_STEP_WORDS, SCALES_AHEAD, format, integers, unit,
    };
    use crate::layout::{Ahead, CodeFormat, LANES, TileArgs};
    use std::arch::x86_64::*;

    /// Few rows take both halves of a panel in one pass over its codes, more take them one after the other.
    ///
    /// # Safety
    /// As `multiply_tile`; AVX2 and FMA are available; `rows` is at most `simd::avx2::INT8_ROWS`.
    #[inline(always)]
    pub(crate) unsafe fn tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        for panel in 0..panels {
            let here = args.at_panels(panel, 1, panels);
            if rows <= 3 {
                by_format_and_rows!(format, rows, [1 2 3], run, 2; here, 0);
            } else {
                for half in 0..2 {
                    by_format_and_rows!(format, rows, [4 5 6 7 8], run, 1; here, half);
                }
            }
        }
    }

    /// The scales of 8 lanes of a group, the factor applied.
    #[inline(always)]
    unsafe fn scales<const F: u8>(at: *const u8, factor: __m256) -> __m256 {
        match F {
            // The factor comes times 2^120: exponent and mantissa of E4M3 as those of an f32 are 2^-120 too small.
            format::NVFP4 => {
                let bits = _mm256_slli_epi32::<20>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())));
                _mm256_mul_ps(_mm256_castsi256_ps(bits), factor)
            }
            // Code 0 is 2^-127, a subnormal.
            format::MXFP4 => {
                let bits = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())));
                let bits = _mm256_max_epu32(bits, _mm256_set1_epi32(0x0040_0000));
                _mm256_mul_ps(_mm256_castsi256_ps(bits), factor)
            }
            _ => {
                let bits = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())));
                _mm256_castsi256_ps(bits)
            }
        }
    }

    /// The unsigned integers of the low and of the high nibbles of 32 bytes.
    #[inline(always)]
    unsafe fn weights(codes: *const u32, table: __m256i) -> [__m256i; 2] {
        let (codes, low) = (_mm256_loadu_si256(codes.cast()), _mm256_set1_epi8(15));
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low);
        [_mm256_shuffle_epi8(table, _mm256_and_si256(codes, low)), _mm256_shuffle_epi8(table, high)]
    }

    /// `R` rows times `H` halves of a panel, the first of them `half`.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn run<const F: u8, const R: usize, const H: usize>(args: TileArgs, half: usize) {
        let TileArgs { mut a, a_stride, mut w, mut scales, factors, steps, c, c_stride, load, ahead, .. } =
            args;
        let code_format = format::of(F);
        let table = integers(code_format);
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        let exponent = if F == format::NVFP4 { 127 + 120 } else { 127 };
        let factor = _mm256_set1_ps(factors[0] * unit(code_format) * f32::from_bits(exponent << 23));
        let scale_bytes = code_format.scale_offset(1) / if F == format::NVFP4 { 2 } else { 1 };
        let mut sums = [[_mm256_setzero_ps(); H]; R];
        if load {
            for r in 0..R {
                for h in 0..H {
                    sums[r][h] = _mm256_loadu_ps(c.add(r * c_stride + (half + h) * 8));
                }
            }
        }
        let (mut ahead, jump, next) = match ahead {
            Ahead::Own { next } => {
                let jump = AHEAD_STEPS.min(steps);
                (w.wrapping_add(jump * code_format.step_words()), jump, next)
            }
            Ahead::Other(other) => (other, 0, other),
        };
        for step in 0..steps {
            if H == 2 {
                for line in 0..4 {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * LANES).cast());
                }
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(SCALES_AHEAD).cast());
            } else {
                // The second pass over the panel finds it in the cache.
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(half * 2 * LANES).cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add((half * 2 + 1) * LANES).cast());
            }
            for run in 0..2 {
                let group = if F == format::NVFP4 { run } else { 0 };
                for h in 0..H {
                    let lanes = (half + h) * 8;
                    let first = weights(w.wrapping_add(2 * run * LANES + lanes), table);
                    let second = weights(w.wrapping_add((2 * run + 1) * LANES + lanes), table);
                    let at = scales.wrapping_add(group * scale_bytes + lanes * scale_bytes / LANES);
                    let scale = self::scales::<F>(at, factor);
                    for r in 0..R {
                        let word = |i: usize| {
                            _mm256_set1_epi32(a.wrapping_add(i * a_stride + r).cast::<i32>().read())
                        };
                        let products = |weights: [__m256i; 2], i: usize| {
                            _mm256_add_epi16(
                                _mm256_maddubs_epi16(weights[0], word(i)),
                                _mm256_maddubs_epi16(weights[1], word(i + 1)),
                            )
                        };
                        let products =
                            _mm256_add_epi16(products(first, 4 * run), products(second, 4 * run + 2));
                        let integers = _mm256_add_epi32(
                            _mm256_madd_epi16(products, _mm256_set1_epi16(1)),
                            word(INT8_CORRECTIONS + run),
                        );
                        let row_scale = _mm256_castsi256_ps(word(INT8_SCALES + run));
                        let scale = _mm256_mul_ps(scale, row_scale);
                        sums[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), scale, sums[r][h]);
                    }
                }
            }
            a = a.wrapping_add(INT8_STEP_WORDS * a_stride);
            w = w.wrapping_add(code_format.step_words());
            scales = scales.wrapping_add(code_format.scale_offset(1));
            ahead =
                if step + 1 + jump == steps { next } else { ahead.wrapping_add(code_format.step_words()) };
        }
        for r in 0..R {
            for h in 0..H {
                _mm256_storeu_ps(c.add(r * c_stride + (half + h) * 8), sums[r][h]);
            }
        }
    }
}

/// Sums of four products of bytes in 32 bits, on AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni {
    use super::{INT8_CORRECTIONS, INT8_SCALES, INT8_STEP_WORDS, SCALES_AHEAD, format, integers, unit};
    use crate::layout::{Ahead, CodeFormat, LANES, TileArgs};
    use crate::simd::avx512::lines_ahead;
    use std::arch::x86_64::*;

    /// Cache lines of the codes of one step.
    const LINES_PER_STEP: usize = 4;

    /// Rows per tile of two panels.
    const MAX_WIDE_ROWS: usize = 4;

    /// Covers the panels with the widest tiles that `rows` rows leave registers for.
    ///
    /// # Safety
    /// As `multiply_tile`; AVX-512 F, BW, DQ, VL and VNNI are available; `rows` is at most `simd::avx512::VNNI_ROWS`.
    #[inline(always)]
    pub(crate) unsafe fn tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        let at = |panel, width| args.at_panels(panel, width, panels);
        let mut panel = 0;
        if rows <= MAX_WIDE_ROWS {
            while panel + 2 <= panels {
                by_format_and_rows!(format, rows, [1 2 3 4], run, 2; at(panel, 2));
                panel += 2;
            }
        }
        while panel < panels {
            by_format_and_rows!(format, rows, [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16], run, 1; at(panel, 1));
            panel += 1;
        }
    }

    /// The 16 scales of a group, the factor applied.
    #[inline(always)]
    unsafe fn scales<const F: u8>(at: *const u8, factor: __m512) -> __m512 {
        match F {
            // The factor comes times 2^120: exponent and mantissa of E4M3 as those of an f32 are 2^-120 too small.
            format::NVFP4 => {
                let bits = _mm512_slli_epi32::<20>(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())));
                _mm512_mul_ps(_mm512_castsi512_ps(bits), factor)
            }
            // Code 0 is 2^-127, a subnormal.
            format::MXFP4 => {
                let bits = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())));
                let bits = _mm512_max_epu32(bits, _mm512_set1_epi32(0x0040_0000));
                _mm512_mul_ps(_mm512_castsi512_ps(bits), factor)
            }
            _ => {
                let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())));
                _mm512_castsi512_ps(bits)
            }
        }
    }

    /// The unsigned integers of the low and of the high nibbles of 64 bytes.
    #[inline(always)]
    unsafe fn weights(codes: *const u32, table: __m512i) -> [__m512i; 2] {
        let (codes, low) = (_mm512_loadu_si512(codes.cast()), _mm512_set1_epi8(15));
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
        [_mm512_shuffle_epi8(table, _mm512_and_si512(codes, low)), _mm512_shuffle_epi8(table, high)]
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn run<const F: u8, const R: usize, const P: usize>(args: TileArgs) {
        let TileArgs {
            mut a,
            a_stride,
            mut w,
            panel_stride,
            mut scales,
            factors,
            steps,
            c,
            c_stride,
            load,
            ahead,
        } = args;
        let code_format = format::of(F);
        let table = integers(code_format);
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        let exponent = if F == format::NVFP4 { 127 + 120 } else { 127 };
        let factors = factors.map(|f| _mm512_set1_ps(f * unit(code_format) * f32::from_bits(exponent << 23)));
        let groups = if F == format::NVFP4 { 2 } else { 1 };
        let (scale_bytes, registers) = (code_format.scale_offset(1) / groups, 4 / groups);
        let mut sums = [[_mm512_setzero_ps(); P]; R];
        if load {
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = _mm512_loadu_ps(c.add(r * c_stride + p * LANES));
                }
            }
        }
        let (mut ahead, ahead_stride, jump, next) = match ahead {
            Ahead::Own { next } => {
                let jump = (lines_ahead().codes / LINES_PER_STEP / P).min(steps);
                (w.wrapping_add(jump * code_format.step_words()), panel_stride, jump, next)
            }
            Ahead::Other(other) => (other, 0, 0, other),
        };
        for step in 0..steps {
            for p in 0..P {
                for line in 0..4 {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(p * ahead_stride + line * LANES).cast());
                }
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(p * panel_stride * 4 + SCALES_AHEAD).cast());
            }
            for group in 0..groups {
                let mut bytes = [[[_mm512_setzero_si512(); 2]; 4]; P];
                let mut scale = [_mm512_setzero_ps(); P];
                for p in 0..P {
                    for q in 0..registers {
                        let register = group * registers + q;
                        bytes[p][q] = weights(w.wrapping_add(p * panel_stride + register * LANES), table);
                    }
                    let at = scales.wrapping_add(p * panel_stride * 4 + group * scale_bytes);
                    scale[p] = self::scales::<F>(at, factors[p % 2]);
                }
                for r in 0..R {
                    let word =
                        |i: usize| _mm512_set1_epi32(a.wrapping_add(i * a_stride + r).cast::<i32>().read());
                    let row_scale = _mm512_castsi512_ps(word(INT8_SCALES + group));
                    let start = if groups == 2 {
                        word(INT8_CORRECTIONS + group)
                    } else {
                        _mm512_add_epi32(word(INT8_CORRECTIONS), word(INT8_CORRECTIONS + 1))
                    };
                    for p in 0..P {
                        let mut integers = start;
                        for q in 0..registers {
                            let i = 2 * (group * registers + q);
                            integers = _mm512_dpbusd_epi32(integers, bytes[p][q][0], word(i));
                            integers = _mm512_dpbusd_epi32(integers, bytes[p][q][1], word(i + 1));
                        }
                        let scale = _mm512_mul_ps(scale[p], row_scale);
                        sums[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scale, sums[r][p]);
                    }
                }
            }
            a = a.wrapping_add(INT8_STEP_WORDS * a_stride);
            w = w.wrapping_add(code_format.step_words());
            scales = scales.wrapping_add(code_format.scale_offset(1));
            ahead =
                if step + 1 + jump == steps { next } else { ahead.wrapping_add(code_format.step_words()) };
        }
        for r in 0..R {
            for p in 0..P {
                _mm512_storeu_ps(c.add(r * c_stride + p * LANES), sums[r][p]);
            }
        }
    }
}
