//! Instruction sets, and which one runs.
//!
//! A kernel is written once, generic over [`Simd`], as a [`Kernel`] value; [`launch`] picks the instance
//! compiled for the instruction set in use. Everything between a `launch` and the intrinsics is
//! `inline(always)`, so that the whole body is compiled with the features of that instance.
#![allow(unsafe_op_in_unsafe_fn)] // Every function here is a thin unsafe wrapper; the contract is stated once, at `Vector`.

pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod vector;

pub(crate) use vector::{Kernel, Simd, Vector, exp, load_first, sigmoid, silu, square_rows, store_first};

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
