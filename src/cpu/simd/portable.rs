//! Sixteen lanes in plain Rust: correct everywhere, fast nowhere in particular.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `Vector`.

use super::vector::{Kernel, Vector};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map(a: [f32; 16], f: impl Fn(f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[inline(always)]
fn from_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

// SAFETY: needs no instruction set; the pointer requirements are the caller's.
unsafe impl Vector for Portable {
    type V = [f32; 16];
    type Pairs = [u32; 16];
    const FMA_ROWS: [usize; 3] = [0, 1, 4];

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        [0.0; 16]
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        p.cast::<[f32; 16]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(v: Self::V, p: *mut f32) {
        p.cast::<[f32; 16]>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Not `mul_add`: without the instruction that is a library call per lane.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        // Adding and taking away 1.5 * 2^23 rounds to nearest even without a library call; inputs are below 2^22.
        map(a, |x| (x + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        map(n, |n| f32::from_bits((n as i32).wrapping_add(127).wrapping_shl(23) as u32))
    }
    #[inline(always)]
    unsafe fn if_less(x: Self::V, limit: Self::V, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] < limit[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let a: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
        (b[0] + b[2]) + (b[1] + b[3])
    }
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn widen(p: *const u16) -> Self::V {
        let bits = p.cast::<[u16; 16]>().read_unaligned();
        std::array::from_fn(|i| from_bf16(bits[i]))
    }
    #[inline(always)]
    unsafe fn narrow(v: Self::V, p: *mut u16) {
        p.cast::<[u16; 16]>().write_unaligned(std::array::from_fn(|i| bf16_bits(v[i])));
    }
    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        map(v, |x| from_bf16(bf16_bits(x)))
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self::V, high: Self::V, p: *mut u32) {
        let words = std::array::from_fn(|i| bf16_bits(low[i]) as u32 | (bf16_bits(high[i]) as u32) << 16);
        p.cast::<[u32; 16]>().write_unaligned(words);
    }
    #[inline(always)]
    unsafe fn zip(low: *const u16, high: *const u16, to: *mut u32) {
        let (low, high) =
            (low.cast::<[u16; 16]>().read_unaligned(), high.cast::<[u16; 16]>().read_unaligned());
        let words = std::array::from_fn(|i| low[i] as u32 | (high[i] as u32) << 16);
        to.cast::<[u32; 16]>().write_unaligned(words);
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const u32) -> Self::Pairs {
        p.cast::<[u32; 16]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn split(pairs: Self::Pairs) -> (Self::V, Self::V) {
        (
            std::array::from_fn(|i| f32::from_bits(pairs[i] << 16)),
            std::array::from_fn(|i| f32::from_bits(pairs[i] & 0xffff_0000)),
        )
    }
}
