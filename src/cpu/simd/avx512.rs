//! Sixteen lanes as one AVX-512 register, with and without the bf16 dot product.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `Vector`.

use super::vector::{Kernel, Vector};
use std::arch::x86_64::*;
use std::sync::LazyLock;

/// AVX-512 F, BW, DQ, VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// AVX-512 with BF16.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512>()
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512Bf16>()
}

/// Whether sums of four products of bytes are one instruction; most machines with AVX-512 have it, the first did not.
pub(crate) fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// Int8 rows per tile of one panel with VNNI: their sums and the eight weights of a step leave registers for what computing takes.
pub(super) const VNNI_ROWS: usize = 16;

/// Cache lines to have on their way from memory, per thread, while panels are multiplied with one row.
#[derive(Clone, Copy)]
pub(crate) struct LinesAhead {
    /// Panels of bf16.
    pub bf16: usize,
    /// Panels of codes, whose lines take longer to multiply.
    pub codes: usize,
}

/// What this machine's cores like best. Measured with one row and 4 panels, on two cores each: Zen 4 reads 33 GB/s with 16 lines, 30 with 64,
/// 27 with 128, more than the first-level cache has buffers for; Emerald Rapids reads 26 GB/s with 16 and 29 with 32 to 64.
pub(crate) fn lines_ahead() -> LinesAhead {
    static LINES: LazyLock<LinesAhead> = LazyLock::new(|| {
        let vendor = __cpuid(0);
        if (vendor.ebx, vendor.edx, vendor.ecx)
            == (u32::from_le_bytes(*b"Genu"), u32::from_le_bytes(*b"ineI"), u32::from_le_bytes(*b"ntel"))
        {
            LinesAhead { bf16: 32, codes: 64 }
        } else {
            LinesAhead { bf16: 16, codes: 32 }
        }
    });
    *LINES
}

impl Avx512Bf16 {
    /// `acc + w.low * a.low + w.high * a.high` per lane, `a` one pair for all lanes.
    #[inline(always)]
    pub(crate) unsafe fn dot(acc: __m512, w: __m512i, a: u32) -> __m512 {
        let (w, a) = (
            std::mem::transmute::<__m512i, __m512bh>(w),
            std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(a as i32)),
        );
        _mm512_dpbf16_ps(acc, w, a)
    }
}

/// The bf16 (nearest even) of 16 f32, in the low halves of 16 words.
#[inline(always)]
unsafe fn bf16_words(v: __m512) -> __m512i {
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    // A NaN must stay one: adding could carry it into infinity.
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet))
}

/// Transposes 16 x 16 words: pairs, then quads of rows inside 128-bit lanes, then the lanes.
#[inline(always)]
unsafe fn transpose(from: &[*const u32; 16], to: *mut u32, stride: usize, rows: usize, cols: usize) {
    let mut pairs = [_mm512_setzero_si512(); 16];
    for i in 0..8 {
        let (a, b) = (_mm512_loadu_si512(from[2 * i].cast()), _mm512_loadu_si512(from[2 * i + 1].cast()));
        pairs[2 * i] = _mm512_unpacklo_epi32(a, b);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(a, b);
    }
    // Lane l of quads[4 g + j] is column 4 l + j of rows 4 g..4 g + 4.
    let mut quads = [_mm512_setzero_si512(); 16];
    for g in 0..4 {
        for h in 0..2 {
            let (a, b) = (pairs[4 * g + h], pairs[4 * g + h + 2]);
            quads[4 * g + 2 * h] = _mm512_unpacklo_epi64(a, b);
            quads[4 * g + 2 * h + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut columns = [_mm512_setzero_si512(); 16];
    for j in 0..4 {
        let (a, b, c, d) = (quads[j], quads[4 + j], quads[8 + j], quads[12 + j]);
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even2, odd2) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_i32x4::<0x88>(even, even2);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
    }
    let mask = (0xffffu32 >> (16 - rows.min(16))) as u16;
    for (c, column) in columns.into_iter().enumerate() {
        if c < cols {
            _mm512_mask_storeu_epi32(to.add(c * stride).cast(), mask, column);
        }
    }
}

macro_rules! common {
    () => {
        type V = __m512;
        type Pairs = __m512i;
        const FMA_ROWS: [usize; 3] = [4, 8, 8];

        #[inline(always)]
        unsafe fn zero() -> Self::V {
            _mm512_setzero_ps()
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::V {
            _mm512_set1_ps(x)
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self::V {
            _mm512_loadu_ps(p)
        }
        #[inline(always)]
        unsafe fn store(v: Self::V, p: *mut f32) {
            _mm512_storeu_ps(p, v);
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            _mm512_add_ps(a, b)
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            _mm512_sub_ps(a, b)
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            _mm512_mul_ps(a, b)
        }
        #[inline(always)]
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
            _mm512_div_ps(a, b)
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            _mm512_max_ps(a, b)
        }
        #[inline(always)]
        unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
            _mm512_min_ps(a, b)
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            _mm512_fmadd_ps(a, b, c)
        }
        #[inline(always)]
        unsafe fn round(a: Self::V) -> Self::V {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
        }
        #[inline(always)]
        unsafe fn pow2(n: Self::V) -> Self::V {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
        #[inline(always)]
        unsafe fn if_less(x: Self::V, limit: Self::V, a: Self::V, b: Self::V) -> Self::V {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, limit), b, a)
        }
        #[inline(always)]
        unsafe fn sum(v: Self::V) -> f32 {
            _mm512_reduce_add_ps(v)
        }
        #[inline(always)]
        unsafe fn largest(v: Self::V) -> f32 {
            _mm512_reduce_max_ps(v)
        }
        #[inline(always)]
        unsafe fn widen(p: *const u16) -> Self::V {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
        #[inline(always)]
        unsafe fn zip(low: *const u16, high: *const u16, to: *mut u32) {
            let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(low.cast()));
            let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(high.cast()));
            _mm512_storeu_si512(to.cast(), _mm512_or_si512(low, _mm512_slli_epi32::<16>(high)));
        }
        #[inline(always)]
        unsafe fn transpose(from: &[*const u32; 16], to: *mut u32, stride: usize, rows: usize, cols: usize) {
            transpose(from, to, stride, rows, cols);
        }
        #[inline(always)]
        unsafe fn quads(low: Self::V, high: Self::V, to: *mut u32) {
            let order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            for (i, v) in [low, high].into_iter().enumerate() {
                let bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v));
                _mm_storeu_si128(to.add(4 * i).cast(), _mm_shuffle_epi8(bytes, order));
            }
        }
        #[inline(always)]
        unsafe fn look_up(words: *const u32, shift: u32, table: &[f32; 16]) -> Self::V {
            let index = _mm512_srlv_epi32(_mm512_loadu_si512(words.cast()), _mm512_set1_epi32(shift as i32));
            _mm512_permutexvar_ps(index, _mm512_loadu_ps(table.as_ptr()))
        }
        #[inline(always)]
        unsafe fn e4m3(words: *const u32, shift: u32) -> Self::V {
            // The code on top: its sign where an f32 has it, exponent and mantissa four bits higher.
            let top =
                _mm512_sllv_epi32(_mm512_loadu_si512(words.cast()), _mm512_set1_epi32(24 - shift as i32));
            let sign = _mm512_and_si512(top, _mm512_set1_epi32(i32::MIN));
            let rest = _mm512_and_si512(_mm512_srli_epi32::<4>(top), _mm512_set1_epi32(0x07f0_0000));
            // The exponents' biases differ by 120; subnormal codes are subnormals here, and the product is exact.
            let value =
                _mm512_mul_ps(_mm512_castsi512_ps(rest), _mm512_set1_ps(f32::from_bits((127 + 120) << 23)));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(value), sign))
        }
        #[inline(always)]
        unsafe fn load_pairs(p: *const u32) -> Self::Pairs {
            _mm512_loadu_si512(p.cast())
        }
        #[inline(always)]
        unsafe fn split(pairs: Self::Pairs) -> (Self::V, Self::V) {
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high))
        }
    };
}

// SAFETY: used only inside `run`, whose caller made sure of the features; the pointer requirements are the caller's.
unsafe impl Vector for Avx512 {
    common!();

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        run(kernel)
    }
    #[inline(always)]
    unsafe fn narrow(v: Self::V, p: *mut u16) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(bf16_words(v)));
    }
    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bf16_words(v)))
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self::V, high: Self::V, p: *mut u32) {
        let words = _mm512_or_si512(bf16_words(low), _mm512_slli_epi32::<16>(bf16_words(high)));
        _mm512_storeu_si512(p.cast(), words);
    }
}

// SAFETY: used only inside `run_bf16`, whose caller made sure of the features; the pointer requirements are the caller's.
unsafe impl Vector for Avx512Bf16 {
    common!();

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        run_bf16(kernel)
    }
    #[inline(always)]
    unsafe fn narrow(v: Self::V, p: *mut u16) {
        let packed = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
        _mm256_storeu_si256(p.cast(), packed);
    }
    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        let packed = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(packed)))
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self::V, high: Self::V, p: *mut u32) {
        let low = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(low));
        let high = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(high));
        let words =
            _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high)));
        _mm512_storeu_si512(p.cast(), words);
    }
}
