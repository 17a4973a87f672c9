//! Sixteen lanes as two AVX2 registers, with FMA.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `Vector`.

use super::vector::{Kernel, Vector};
use std::arch::x86_64::*;

/// AVX2 with FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

#[target_feature(enable = "avx2,fma")]
unsafe fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2>()
}

/// Int8 rows per tile: sums of half a panel, the four weights of a run and what computing with them takes fill the 16 registers.
pub(super) const INT8_ROWS: usize = 8;

/// The bf16 (nearest even) of 8 f32, in the low halves of 8 words.
#[inline(always)]
unsafe fn bf16_words(v: __m256) -> __m256i {
    let bits = _mm256_castps_si256(v);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    // A NaN must stay one: adding could carry it into infinity.
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
}

#[inline(always)]
unsafe fn widen8(p: *const u16) -> __m256 {
    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
}

#[inline(always)]
unsafe fn pow2_8(n: __m256) -> __m256 {
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
}

macro_rules! lanewise {
    ($name:ident, $intrinsic:ident, $($arg:ident),+) => {
        #[inline(always)]
        unsafe fn $name($($arg: Self::V),+) -> Self::V {
            ($intrinsic($($arg.0),+), $intrinsic($($arg.1),+))
        }
    };
}

// SAFETY: used only inside `run`, whose caller made sure of AVX2 and FMA; the pointer requirements are the caller's.
unsafe impl Vector for Avx2 {
    type V = (__m256, __m256);
    type Pairs = (__m256i, __m256i);
    const FMA_ROWS: [usize; 3] = [1, 2, 4];

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        run(kernel)
    }
    #[inline(always)]
    unsafe fn quads(low: Self::V, high: Self::V, to: *mut u32) {
        let words = |v: Self::V| _mm256_packs_epi32(_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1));
        // The lower half has the first four of every eight values, the upper half the other four.
        let bytes = _mm256_packs_epi16(words(low), words(high));
        let (first, second) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        _mm_storeu_si128(to.cast(), _mm_unpacklo_epi8(first, second));
        _mm_storeu_si128(to.add(4).cast(), _mm_unpackhi_epi8(first, second));
    }

    lanewise!(add, _mm256_add_ps, a, b);
    lanewise!(sub, _mm256_sub_ps, a, b);
    lanewise!(mul, _mm256_mul_ps, a, b);
    lanewise!(div, _mm256_div_ps, a, b);
    lanewise!(max, _mm256_max_ps, a, b);
    lanewise!(min, _mm256_min_ps, a, b);
    lanewise!(fma, _mm256_fmadd_ps, a, b, c);
    lanewise!(pow2, pow2_8, n);

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        (_mm256_setzero_ps(), _mm256_setzero_ps())
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        (_mm256_set1_ps(x), _mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        (_mm256_loadu_ps(p), _mm256_loadu_ps(p.wrapping_add(8)))
    }
    #[inline(always)]
    unsafe fn store(v: Self::V, p: *mut f32) {
        _mm256_storeu_ps(p, v.0);
        _mm256_storeu_ps(p.wrapping_add(8), v.1);
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        (_mm256_round_ps::<NEAREST>(a.0), _mm256_round_ps::<NEAREST>(a.1))
    }
    #[inline(always)]
    unsafe fn if_less(x: Self::V, limit: Self::V, a: Self::V, b: Self::V) -> Self::V {
        (
            _mm256_blendv_ps(b.0, a.0, _mm256_cmp_ps::<_CMP_LT_OQ>(x.0, limit.0)),
            _mm256_blendv_ps(b.1, a.1, _mm256_cmp_ps::<_CMP_LT_OQ>(x.1, limit.1)),
        )
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let half = _mm256_add_ps(v.0, v.1);
        let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
    }
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        let half = _mm256_max_ps(v.0, v.1);
        let quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        let pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
        _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
    }
    #[inline(always)]
    unsafe fn widen(p: *const u16) -> Self::V {
        (widen8(p), widen8(p.wrapping_add(8)))
    }
    #[inline(always)]
    unsafe fn narrow(v: Self::V, p: *mut u16) {
        let packed = _mm256_packus_epi32(bf16_words(v.0), bf16_words(v.1));
        _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
    }
    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        (
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bf16_words(v.0))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bf16_words(v.1))),
        )
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self::V, high: Self::V, p: *mut u32) {
        let first = _mm256_or_si256(bf16_words(low.0), _mm256_slli_epi32::<16>(bf16_words(high.0)));
        let second = _mm256_or_si256(bf16_words(low.1), _mm256_slli_epi32::<16>(bf16_words(high.1)));
        _mm256_storeu_si256(p.cast(), first);
        _mm256_storeu_si256(p.wrapping_add(8).cast(), second);
    }
    #[inline(always)]
    unsafe fn zip(low: *const u16, high: *const u16, to: *mut u32) {
        for half in [0, 8] {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(low.add(half).cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(high.add(half).cast()));
            _mm256_storeu_si256(to.add(half).cast(), _mm256_or_si256(low, _mm256_slli_epi32::<16>(high)));
        }
    }
    #[inline(always)]
    unsafe fn look_up(words: *const u32, shift: u32, table: &[f32; 16]) -> Self::V {
        let (low, high) = (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8)));
        let shift = _mm256_set1_epi32(shift as i32);
        let half = |words: *const u32| {
            let index = _mm256_srlv_epi32(_mm256_loadu_si256(words.cast()), shift);
            // The fourth bit, moved to the sign, chooses the half of the table.
            let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
            _mm256_blendv_ps(
                _mm256_permutevar8x32_ps(low, index),
                _mm256_permutevar8x32_ps(high, index),
                upper,
            )
        };
        (half(words), half(words.add(8)))
    }
    #[inline(always)]
    unsafe fn e4m3(words: *const u32, shift: u32) -> Self::V {
        let shift = _mm256_set1_epi32(24 - shift as i32);
        let half = |words: *const u32| {
            // The code on top: its sign where an f32 has it, exponent and mantissa four bits higher.
            let top = _mm256_sllv_epi32(_mm256_loadu_si256(words.cast()), shift);
            let sign = _mm256_and_si256(top, _mm256_set1_epi32(i32::MIN));
            let rest = _mm256_and_si256(_mm256_srli_epi32::<4>(top), _mm256_set1_epi32(0x07f0_0000));
            // The exponents' biases differ by 120; subnormal codes are subnormals here, and the product is exact.
            let value = _mm256_mul_ps(
                _mm256_castsi256_ps(rest),
                _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23)),
            );
            _mm256_or_ps(value, _mm256_castsi256_ps(sign))
        };
        (half(words), half(words.add(8)))
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const u32) -> Self::Pairs {
        (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.wrapping_add(8).cast()))
    }
    #[inline(always)]
    unsafe fn split(pairs: Self::Pairs) -> (Self::V, Self::V) {
        let mask = _mm256_set1_epi32(0xffff_0000u32 as i32);
        (
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs.0)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs.1)),
            ),
            (
                _mm256_castsi256_ps(_mm256_and_si256(pairs.0, mask)),
                _mm256_castsi256_ps(_mm256_and_si256(pairs.1, mask)),
            ),
        )
    }
}
