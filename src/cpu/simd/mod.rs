//! Instruction sets: which one runs, and the sixteen-lane vector every kernel is written in.
//!
//! A kernel is written once, generic over [`Simd`], as a [`Kernel`] value; [`launch`] picks the instance compiled for the
//! instruction set in use. Everything between a `launch` and the intrinsics is `inline(always)`, so that the
//! whole body is compiled with the features of that instance.
//!
//! Invariant: one instruction set gives one result. Lanes are combined in a fixed order, so bits never depend on how
//! work was cut. Two instruction sets may differ in the last bits (fused or separate multiply-add).
#![allow(unsafe_op_in_unsafe_fn)] // Every function here is a thin unsafe wrapper; the contract is stated once, at `Vector`.

pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

use super::layout::{CodeFormat, TileArgs};
use crate::quant::fp8::decode_e4m3;

/// An instruction set the kernels exist for, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; whatever the target's baseline vectorises to.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL; bf16 products are widened to f32 first.
    Avx512,
    /// The same with the bf16 dot product.
    Avx512Bf16,
    /// The same with the matrix unit, AMX BF16.
    Amx,
}

impl Isa {
    /// Every instruction set this machine can run, slowest first.
    pub fn supported() -> Vec<Isa> {
        let mut found = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                found.push(Isa::Avx2);
            }
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if wide {
                found.push(Isa::Avx512);
            }
            if wide && is_x86_feature_detected!("avx512bf16") {
                found.push(Isa::Avx512Bf16);
                if amx::is_available() {
                    found.push(Isa::Amx);
                }
            }
        }
        found
    }

    /// The fastest one this machine can run.
    pub fn best() -> Isa {
        Self::supported().into_iter().max().unwrap_or(Isa::Portable)
    }

    /// Whether bf16 products run on the dot-product instruction.
    pub(crate) fn has_dot(self) -> bool {
        self >= Isa::Avx512Bf16
    }

    /// Whether two products of bytes are faster than one of bf16: where there is none, and on the cores that have the matrix unit, whose
    /// vector product of bf16 has less than half the speed of their f32.
    pub(crate) fn prefers_byte_products(self) -> bool {
        matches!(self, Isa::Avx2 | Isa::Avx512 | Isa::Amx)
    }

    /// Whether products with bf16 panels run on the matrix unit.
    pub(crate) fn has_tiles(self) -> bool {
        self == Isa::Amx
    }

    /// Largest number of rows one f32 tile can take on this instruction set.
    pub(crate) fn max_fma_rows(self) -> usize {
        match self {
            Isa::Portable => portable::Portable::FMA_ROWS[2],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::Avx2::FMA_ROWS[2],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::Avx512::FMA_ROWS[2],
            #[cfg(not(target_arch = "x86_64"))]
            _ => portable::Portable::FMA_ROWS[2],
        }
    }

    /// Largest number of int8 rows one tile can take.
    pub(crate) fn max_int8_rows(self) -> usize {
        match self {
            Isa::Portable => 16,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if avx512::has_vnni() => avx512::VNNI_ROWS,
            #[cfg(target_arch = "x86_64")]
            _ => avx2::INT8_ROWS,
            #[cfg(not(target_arch = "x86_64"))]
            _ => 16,
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
            Isa::Avx512Bf16 => "AVX-512 BF16",
            Isa::Amx => "AMX BF16",
        })
    }
}

/// Sixteen f32 lanes and the bf16 forms the kernels need, on one instruction set.
///
/// # Safety
/// Methods may only run where the instruction set is available, that is inside [`launch`]. Pointers must be valid for the
/// 16 elements (or 16 32-bit words) they name; no alignment is required. `min` and `max` return the second
/// operand when either is NaN.
pub(crate) unsafe trait Vector: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type V: Copy;
    /// Sixteen pairs of bf16.
    type Pairs: Copy;
    /// Largest row count of an f32 tile of 4, 2 and 1 panels.
    const FMA_ROWS: [usize; 3];

    /// Runs a kernel compiled for this instruction set.
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out;
    /// Stores 32 integral values of -128 to 127 as bytes, eight at a time in the order `0 4 1 5 2 6 3 7`, in which panels hold nibbles.
    #[inline(always)]
    unsafe fn quads(low: Self::V, high: Self::V, to: *mut u32) {
        let mut values = [0f32; 32];
        Self::store(low, values.as_mut_ptr());
        Self::store(high, values.as_mut_ptr().add(16));
        for (i, value) in values.chunks_exact(8).enumerate() {
            let bytes = [0, 4, 1, 5, 2, 6, 3, 7].map(|i| value[i] as i8 as u8);
            to.add(2 * i).cast::<[u8; 8]>().write_unaligned(bytes);
        }
    }
    /// Lane `i` is the value of the E4M3 code in the low byte of `words[i] >> shift`, which is not NaN.
    #[inline(always)]
    unsafe fn e4m3(words: *const u32, shift: u32) -> Self::V {
        let words = words.cast::<[u32; 16]>().read_unaligned();
        let lanes = words.map(|word| decode_e4m3((word >> shift) as u8));
        Self::load(lanes.as_ptr())
    }
    /// Lane `i` is `table[words[i] >> shift & 15]`.
    #[inline(always)]
    unsafe fn look_up(words: *const u32, shift: u32, table: &[f32; 16]) -> Self::V {
        let words = words.cast::<[u32; 16]>().read_unaligned();
        let lanes: [f32; 16] = std::array::from_fn(|i| table[(words[i] >> shift & 15) as usize]);
        Self::load(lanes.as_ptr())
    }

    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(v: Self::V, p: *mut f32);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the instruction set can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Nearest integer.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `2^n` for integral `n` in `-126..=128` (128 gives infinity).
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// Per lane: `if x < limit { a } else { b }`.
    unsafe fn if_less(x: Self::V, limit: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Sum of the lanes, as a fixed tree.
    unsafe fn sum(v: Self::V) -> f32;
    /// Largest lane.
    unsafe fn largest(v: Self::V) -> f32;
    /// Widens 16 bf16.
    unsafe fn widen(p: *const u16) -> Self::V;
    /// Rounds to bf16 (nearest even) and stores 16 of them.
    unsafe fn narrow(v: Self::V, p: *mut u16);
    /// Rounds to the nearest bf16, still as f32.
    unsafe fn round_bf16(v: Self::V) -> Self::V;
    /// Stores pairs: lane `i` becomes `low[i]` in the low half and `high[i]` in the high half of word `i`.
    unsafe fn store_pairs(low: Self::V, high: Self::V, p: *mut u32);
    /// Stores pairs of bf16 read from two places: word `i` is `low[i]` and `high[i]`.
    unsafe fn zip(low: *const u16, high: *const u16, to: *mut u32);
    /// `to[c * stride + r] = from[r][c]` for `r < rows`, `c < cols`, both at most 16. Sixteen words of every row are readable.
    #[inline(always)]
    unsafe fn transpose(from: &[*const u32; 16], to: *mut u32, stride: usize, rows: usize, cols: usize) {
        for r in 0..rows {
            for c in 0..cols {
                *to.add(c * stride + r) = from[r].add(c).read_unaligned();
            }
        }
    }
    /// Loads 16 pairs.
    unsafe fn load_pairs(p: *const u32) -> Self::Pairs;
    /// The low and high halves of the pairs, widened.
    unsafe fn split(pairs: Self::Pairs) -> (Self::V, Self::V);
}

/// A [`Vector`] and the tiles that each instruction set has of its own.
///
/// Declared here because [`Kernel`] is generic over it; `gemm`, which has the tiles, implements it.
///
/// # Safety
/// As for [`Vector`]; `args` is valid for `rows` rows and `panels` panels.
pub(crate) unsafe trait Simd: Vector {
    /// Multiplies a tile of bf16 pairs with the dot-product instruction; instruction sets without it never see such pairs.
    unsafe fn dot_tile(_rows: usize, _panels: usize, _args: TileArgs) {
        unreachable!("bf16 pairs are only packed where the dot product exists");
    }
    /// Multiplies a tile of bf16 pairs with codes, by the same instruction.
    unsafe fn dot_codes_tile(_format: CodeFormat, _rows: usize, _panels: usize, _args: TileArgs) {
        unreachable!("bf16 pairs are only packed where the dot product exists");
    }
    /// Multiplies a tile of int8 rows with 4-bit codes.
    unsafe fn int8_tile(format: CodeFormat, rows: usize, panels: usize, args: TileArgs);
}

/// A computation that exists once per instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Out;
    /// The body; implementations are `inline(always)`.
    ///
    /// # Safety
    /// `S`'s instruction set is available, and the kernel's own requirements on its fields hold.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// Runs `kernel` on the instruction set `isa`.
///
/// # Safety
/// `isa` is one of [`Isa::supported`], and the kernel's own requirements on its fields hold.
pub(crate) unsafe fn launch<K: Kernel>(isa: Isa, kernel: K) -> K::Out {
    match isa {
        Isa::Portable => portable::Portable::vectorize(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::Avx2::vectorize(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::Avx512::vectorize(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Amx => avx512::Avx512Bf16::vectorize(kernel),
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable::Portable::vectorize(kernel),
    }
}

/// `e^x` per lane: within 2 units in the last place for `-87.3 < x < 88.3`, 0 below, infinity above, NaN kept.
/// Range reduction by Cody and Waite, polynomial of Cephes `expf`.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    let bounded = S::min(S::splat(89.0), x);
    let n = S::round(S::mul(bounded, S::splat(std::f32::consts::LOG2_E)));
    let r = S::fma(n, S::splat(-0.693_359_4), bounded);
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let mut p = S::splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = S::fma(p, r, S::splat(c));
    }
    let p = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
    S::if_less(x, S::splat(-87.3), S::zero(), S::mul(p, S::pow2(n)))
}

/// `1 / (1 + e^-x)` per lane.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    S::div(S::splat(1.0), S::add(S::splat(1.0), exp::<S>(S::sub(S::zero(), x))))
}

/// `x / (1 + e^-x)` per lane.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::V) -> S::V {
    S::div(x, S::add(S::splat(1.0), exp::<S>(S::sub(S::zero(), x))))
}

/// The sixteen rows of a square of words, for [`Vector::transpose`].
#[inline(always)]
pub(crate) fn square_rows(square: &[u32; 256]) -> [*const u32; 16] {
    std::array::from_fn(|r| square[r * 16..].as_ptr())
}

/// The first `n` values at `p`, the other lanes zero.
#[inline(always)]
pub(crate) unsafe fn load_first<S: Simd>(p: *const f32, n: usize) -> S::V {
    if n >= 16 {
        return S::load(p);
    }
    let mut lanes = [0.0f32; 16];
    std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
    S::load(lanes.as_ptr())
}

/// Stores the first `n` lanes at `p`.
#[inline(always)]
pub(crate) unsafe fn store_first<S: Simd>(v: S::V, p: *mut f32, n: usize) {
    if n >= 16 {
        return S::store(v, p);
    }
    let mut lanes = [0.0f32; 16];
    S::store(v, lanes.as_mut_ptr());
    std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a mut [f32; 16]);
    impl Kernel for Exp<'_> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let v = exp::<S>(S::load(self.0.as_ptr()));
            S::store(v, self.0.as_mut_ptr());
        }
    }

    fn exp_of(isa: Isa, x: [f32; 16]) -> [f32; 16] {
        let mut lanes = x;
        // SAFETY: `isa` comes from `supported`; the array holds 16 lanes.
        unsafe { launch(isa, Exp(&mut lanes)) };
        lanes
    }

    #[test]
    fn exp_is_within_two_ulp() {
        for isa in Isa::supported() {
            let mut worst = 0.0f64;
            for step in 0..20_000 {
                let base = -87.2 + step as f32 * (175.4 / 20_000.0);
                let x: [f32; 16] = std::array::from_fn(|i| base + i as f32 * 5e-4);
                for (got, x) in exp_of(isa, x).iter().zip(x) {
                    let want = (x as f64).exp();
                    let ulp = f32::from_bits((want as f32).to_bits() + 1) as f64 - want as f32 as f64;
                    worst = worst.max((*got as f64 - want).abs() / ulp);
                }
            }
            assert!(worst < 2.0, "{isa}: {worst} ulp");
        }
    }

    #[test]
    fn exp_keeps_the_special_values() {
        for isa in Isa::supported() {
            let mut x = [0.0; 16];
            x[..6].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -200.0, 200.0, -0.0]);
            let y = exp_of(isa, x);
            assert_eq!(
                (y[0], y[1], y[3], y[4], y[5]),
                (0.0, f32::INFINITY, 0.0, f32::INFINITY, 1.0),
                "{isa}"
            );
            assert!(y[2].is_nan(), "{isa}");
        }
    }

    struct Narrow<'a>(&'a [f32; 16], &'a mut [u16; 16], &'a mut [f32; 16], &'a mut [u32; 16]);
    impl Kernel for Narrow<'_> {
        type Out = (f32, f32);
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> (f32, f32) {
            let v = S::load(self.0.as_ptr());
            S::narrow(v, self.1.as_mut_ptr());
            S::store(S::round_bf16(v), self.2.as_mut_ptr());
            S::store_pairs(v, S::widen(self.1.as_ptr()), self.3.as_mut_ptr());
            (S::sum(v), S::largest(v))
        }
    }

    #[test]
    fn bf16_rounding_is_to_nearest_even() {
        let mut rng = fastrand::Rng::with_seed(7);
        for isa in Isa::supported() {
            for _ in 0..500 {
                let x: [f32; 16] = std::array::from_fn(|i| {
                    // Ties and carries on purpose: the low half is often exactly one half.
                    let bits = (rng.f32() * 4.0 - 2.0).to_bits();
                    f32::from_bits(if i % 2 == 0 { bits & 0xffff_0000 | 0x8000 } else { bits })
                });
                let (mut narrow, mut rounded, mut pairs) = ([0u16; 16], [0.0f32; 16], [0u32; 16]);
                // SAFETY: `isa` comes from `supported`; every array holds 16 elements.
                let (sum, largest) =
                    unsafe { launch(isa, Narrow(&x, &mut narrow, &mut rounded, &mut pairs)) };
                for i in 0..16 {
                    let want = half::bf16::from_f32(x[i]);
                    assert_eq!((narrow[i], rounded[i]), (want.to_bits(), want.to_f32()), "{isa}");
                    assert_eq!(pairs[i], want.to_bits() as u32 * 0x1_0001, "{isa}");
                }
                assert!((sum - x.iter().sum::<f32>()).abs() < 1e-5, "{isa}");
                assert_eq!(largest, x.iter().copied().fold(f32::NEG_INFINITY, f32::max), "{isa}");
            }
        }
    }
}
