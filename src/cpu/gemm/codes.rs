//! Tiles over panels of codes: weights stay 4 or 8 bits until they are in a register.
//!
//! Every output is a sum over groups of inputs in order: the group's products with the bare codes are added up, then the group's scale
//! multiplies that sum. Codes are exact in bf16 (E2M1, E4M3 and nibbles have at most four significant bits), so nothing of the weight is
//! rounded. Without the dot product the codes are widened to f32 with their scale (one rounding, as the specification does) and multiplied
//! as f32 panels.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `TileArgs`.

use super::tile::fma_tiles;
use crate::layout::{Ahead, CodeFormat, LANES, STEP_INPUTS, TileArgs};
use crate::packed_panels::{group_scales, nibble_shift};
use crate::simd::Simd;

/// Steps that are widened at a time: 8 KiB of f32 per panel, in the first-level cache.
pub(super) const WIDE_STEPS: usize = 4;

/// Panels that are widened at a time.
const WIDE_PANELS: usize = 4;

/// Multiplies f32 rows with codes, by way of f32 panels that exist for a few steps.
///
/// # Safety
/// As `multiply_tile`.
#[inline(always)]
pub(super) unsafe fn wide_tiles<S: Simd>(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
    let mut wide = WideBlock::new();
    for panel in (0..panels).step_by(WIDE_PANELS) {
        let here = args.at_panel(panel);
        let width = WIDE_PANELS.min(panels - panel);
        for step in (0..args.steps).step_by(WIDE_STEPS) {
            wide.fill::<S>(format, here, width, step);
            wide.multiply::<S>(rows, width, TileArgs { load: here.load || step > 0, ..here }, step);
        }
    }
}

/// Some steps of some panels as f32.
pub(super) struct WideBlock([[f32; WIDE_STEPS * STEP_INPUTS * LANES]; WIDE_PANELS]);

impl WideBlock {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([[0.0; WIDE_STEPS * STEP_INPUTS * LANES]; WIDE_PANELS])
    }

    /// Widens the steps from `step` on (as many as there are, at most [`WIDE_STEPS`]) of `panels` panels.
    ///
    /// # Safety
    /// As `multiply_tile`; `panels <= WIDE_PANELS`.
    #[inline(always)]
    pub(super) unsafe fn fill<S: Simd>(
        &mut self,
        format: CodeFormat,
        args: TileArgs,
        panels: usize,
        step: usize,
    ) {
        let table = format.table();
        for (p, wide) in self.0.iter_mut().enumerate().take(panels) {
            let panel = args.at_panel(p);
            for (s, wide) in wide.chunks_exact_mut(STEP_INPUTS * LANES).enumerate().take(args.steps - step) {
                let codes = panel.w.wrapping_add((step + s) * format.step_words());
                let scales = panel.scales.wrapping_add(format.scale_offset(step + s));
                widen_step::<S>(format, &table, codes, scales, panel.factors[0], wide.as_mut_ptr());
            }
        }
    }

    /// Multiplies the rows of `args` with what `fill` widened.
    ///
    /// # Safety
    /// As `multiply_tile`, with the arguments `fill` had.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(&self, rows: usize, panels: usize, args: TileArgs, step: usize) {
        let wide = self.0.as_ptr().cast();
        let tile = TileArgs {
            a: args.a.wrapping_add(step * STEP_INPUTS * args.a_stride),
            w: wide,
            panel_stride: WIDE_STEPS * STEP_INPUTS * LANES,
            steps: WIDE_STEPS.min(args.steps - step) * STEP_INPUTS,
            ahead: Ahead::Other(wide),
            ..args
        };
        fma_tiles::<S, false>(rows, panels, tile);
    }
}

/// Widens one step of one panel to `to` `[32][16]`, scales applied.
#[inline(always)]
unsafe fn widen_step<S: Simd>(
    format: CodeFormat,
    table: &[f32; 16],
    codes: *const u32,
    scales: *const u8,
    factor: f32,
    to: *mut f32,
) {
    let inputs = format.group_inputs();
    for group in 0..STEP_INPUTS / inputs {
        let scale = group_scales(format, scales, group, factor);
        let scale = S::load(scale.as_ptr());
        for i in group * inputs..(group + 1) * inputs {
            let code = match format {
                CodeFormat::Fp8 => S::e4m3(codes.add(i / 4 * LANES), (i % 4 * 8) as u32),
                _ => S::look_up(codes.add(i / 8 * LANES), nibble_shift(i % 8), table),
            };
            S::store(S::mul(scale, code), to.add(i * LANES));
        }
    }
}

/// The tiles of the bf16 dot-product instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) mod dot_codes {
    use crate::layout::{Ahead, CodeFormat, LANES, STEP_INPUTS, TileArgs};
    use crate::simd::avx512::{Avx512Bf16, lines_ahead};
    use std::arch::x86_64::*;

    const NVFP4: u8 = 0;
    const MXFP4: u8 = 1;
    const INT4: u8 = 2;
    const FP8: u8 = 3;

    const fn format_of(format: u8) -> CodeFormat {
        match format {
            NVFP4 => CodeFormat::Nvfp4,
            MXFP4 => CodeFormat::Mxfp4,
            INT4 => CodeFormat::Int4,
            _ => CodeFormat::Fp8,
        }
    }

    /// Covers the panels with the widest tiles that `rows` rows leave registers for: a sum and a partial sum per output.
    ///
    /// # Safety
    /// As `multiply_tile`; AVX-512 BF16 is available; `rows <= 24`.
    #[inline(always)]
    pub(crate) unsafe fn tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs) {
        match format {
            CodeFormat::Nvfp4 => tiles::<NVFP4>(rows, panels, args),
            CodeFormat::Mxfp4 => tiles::<MXFP4>(rows, panels, args),
            CodeFormat::Int4 => tiles::<INT4>(rows, panels, args),
            CodeFormat::Fp8 => tiles::<FP8>(rows, panels, args),
        }
    }

    #[inline(always)]
    unsafe fn tiles<const F: u8>(rows: usize, panels: usize, args: TileArgs) {
        macro_rules! by_rows {
            ($panels:literal, $args:expr, $($rows:literal)*) => {
                match rows {
                    0 => {}
                    $($rows => run::<F, $rows, $panels>($args),)*
                    _ => unreachable!("no such tile"),
                }
            };
        }
        let at = |panel, width| args.at_panels(panel, width, panels);
        let mut panel = 0;
        if rows <= 3 {
            while panel + 4 <= panels {
                by_rows!(4, at(panel, 4), 1 2 3);
                panel += 4;
            }
        }
        if rows <= 6 {
            while panel + 2 <= panels {
                by_rows!(2, at(panel, 2), 1 2 3 4 5 6);
                panel += 2;
            }
        }
        while panel < panels {
            by_rows!(1, at(panel, 1), 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
            panel += 1;
        }
    }

    /// The bf16 of each 4-bit code, twice.
    const fn table_of(values: [f32; 16]) -> [u16; 32] {
        let mut table = [0; 32];
        let mut i = 0;
        while i < 32 {
            table[i] = (values[i % 16].to_bits() >> 16) as u16;
            i += 1;
        }
        table
    }

    static E2M1_TABLE: [u16; 32] = table_of(CodeFormat::Nvfp4.table());
    static NIBBLE_TABLE: [u16; 32] = table_of(CodeFormat::Int4.table());

    /// Steps of four lines that the codes of each panel are prefetched ahead.
    fn ahead_steps(panels: usize) -> usize {
        (lines_ahead().codes / 4).div_ceil(panels)
    }

    /// Bytes that scales are prefetched ahead.
    const SCALES_AHEAD: usize = 192;

    /// The 16 scales of a group, the factor applied: exactly the specification's f32 product.
    #[inline(always)]
    unsafe fn scales<const F: u8>(at: *const u8, factor: __m512) -> __m512 {
        let scale = match F {
            // The factor comes times 2^120: exponent and mantissa of E4M3 as those of an f32 are 2^-120 too small.
            NVFP4 => {
                _mm512_castsi512_ps(_mm512_slli_epi32::<20>(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()))))
            }
            // Code 0 is 2^-127, a subnormal.
            MXFP4 => _mm512_castsi512_ps(_mm512_max_epu32(
                _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()))),
                _mm512_set1_epi32(0x0040_0000),
            )),
            INT4 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                at.cast(),
            )))),
            _ => return _mm512_loadu_ps(at.cast()),
        };
        if F == NVFP4 { _mm512_mul_ps(scale, factor) } else { scale }
    }

    /// The lowest bf16 pair of the four a register of nibbles holds; moves the next one down. `table` has each value twice: the index's
    /// fifth bit is the next nibble's.
    #[inline(always)]
    unsafe fn pair_of_nibbles(codes: &mut __m512i, table: __m512i) -> __m512i {
        let pair = _mm512_permutexvar_epi16(*codes, table);
        *codes = _mm512_srli_epi16::<4>(*codes);
        pair
    }

    /// The lower bf16 pair of the two a register of bytes holds; moves the upper one down.
    #[inline(always)]
    unsafe fn pair_of_bytes(codes: &mut __m512i) -> __m512i {
        // Each byte to the upper half of 16 bits.
        let low = _mm_set_epi8(13, -1, 12, -1, 9, -1, 8, -1, 5, -1, 4, -1, 1, -1, 0, -1);
        let spread = _mm512_shuffle_epi8(*codes, _mm512_broadcast_i32x4(low));
        *codes = _mm512_srli_epi32::<16>(*codes);
        let bits = _mm512_and_si512(_mm512_srai_epi16::<4>(spread), _mm512_set1_epi16(0x87f0u16 as i16));
        let wide = _mm512_add_epi16(bits, _mm512_set1_epi16(120 << 7));
        let subnormal = _mm512_testn_epi16_mask(spread, _mm512_set1_epi16(0x7800));
        if subnormal == 0 {
            return wide;
        }
        // Zeros and subnormals, m * 2^-9: few among weights that fill the range.
        let values: [u16; 32] =
            std::array::from_fn(|i| [0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60][i % 8]);
        let mantissa = _mm512_srli_epi16::<4>(bits);
        let small = _mm512_permutexvar_epi16(mantissa, _mm512_loadu_si512(values.as_ptr().cast()));
        let sign = _mm512_and_si512(bits, _mm512_set1_epi16(0x8000u16 as i16));
        _mm512_mask_mov_epi16(wide, subnormal, _mm512_or_si512(small, sign))
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
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
        let format = format_of(F);
        let table = if F == INT4 { &NIBBLE_TABLE } else { &E2M1_TABLE };
        let table = _mm512_loadu_si512(table.as_ptr().cast());
        let factors = factors.map(|factor| _mm512_set1_ps(factor * f32::from_bits((127 + 120) << 23)));
        let mut sums = [[_mm512_setzero_ps(); P]; R];
        if load {
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = _mm512_loadu_ps(c.add(r * c_stride + p * LANES));
                }
            }
        }
        // `jump` steps before the end the prefetch goes on to what follows.
        let lines = format.step_words() / LANES;
        let (mut ahead, ahead_stride, jump, next) = match ahead {
            Ahead::Own { next } => {
                let steps_ahead = ahead_steps(P).min(steps);
                (w.wrapping_add(steps_ahead * format.step_words()), panel_stride, steps_ahead, next)
            }
            Ahead::Other(other) => (other, 0, 0, other),
        };
        let registers = format.group_inputs() * format.step_words() / STEP_INPUTS / LANES;
        let pairs = if F == FP8 { 2 } else { 4 };
        for step in 0..steps {
            for p in 0..P {
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(p * panel_stride * 4 + SCALES_AHEAD).cast());
            }
            for group in 0..STEP_INPUTS / format.group_inputs() {
                let mut partial = [[_mm512_setzero_ps(); P]; R];
                for q in 0..registers {
                    let mut codes = [_mm512_setzero_si512(); P];
                    for p in 0..P {
                        let register = w.wrapping_add(p * panel_stride + (group * registers + q) * LANES);
                        codes[p] = _mm512_loadu_si512(register.cast());
                        let line = p * ahead_stride + (group * registers + q) * LANES;
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line).cast());
                    }
                    for _ in 0..pairs {
                        let mut weights = [_mm512_setzero_si512(); P];
                        for p in 0..P {
                            weights[p] = if F == FP8 {
                                pair_of_bytes(&mut codes[p])
                            } else {
                                pair_of_nibbles(&mut codes[p], table)
                            };
                        }
                        for r in 0..R {
                            let x = *a.add(r);
                            for p in 0..P {
                                partial[r][p] = Avx512Bf16::dot(partial[r][p], weights[p], x);
                            }
                        }
                        a = a.wrapping_add(a_stride);
                    }
                }
                for p in 0..P {
                    let at = scales.wrapping_add(p * panel_stride * 4 + group * LANES);
                    let scale = self::scales::<F>(at, factors[p % 2]);
                    for r in 0..R {
                        sums[r][p] = _mm512_fmadd_ps(partial[r][p], scale, sums[r][p]);
                    }
                }
            }
            w = w.wrapping_add(format.step_words());
            scales = scales.wrapping_add(format.scale_offset(step + 1) - format.scale_offset(step));
            ahead = if step + 1 + jump == steps { next } else { ahead.wrapping_add(lines * LANES) };
        }
        for r in 0..R {
            for p in 0..P {
                _mm512_storeu_ps(c.add(r * c_stride + p * LANES), sums[r][p]);
            }
        }
    }
}
