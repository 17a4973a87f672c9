//! The sixteen-lane vector every kernel is written in.
//!
//! Invariant: one instruction set gives one result. Lanes are combined in a fixed order, so bits never depend on how
//! work was cut. Two instruction sets may differ in the last bits (fused or separate multiply-add).
#![allow(unsafe_op_in_unsafe_fn)] // Every function here is a thin unsafe wrapper; the contract is stated once, at `Vector`.

use crate::layout::{CodeFormat, TileArgs};
use perigee_numbers::quant::fp8::decode_e4m3;

/// Sixteen f32 lanes and the bf16 forms the kernels need, on one instruction set.
///
/// # Safety
/// Methods may only run where the instruction set is available, that is inside [`super::launch`]. Pointers must be valid for the
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
