//! The register tile: a few rows times a few panels, one accumulation over `in` in order.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `TileArgs`.

use crate::layout::{LANES, TileArgs};
use crate::simd::{Kernel, Simd};

/// Covers the panels with the widest tiles that `rows` rows leave registers for.
#[inline(always)]
pub(super) unsafe fn fma_tiles<S: Simd, const WIDE: bool>(rows: usize, panels: usize, args: TileArgs) {
    let mut panel = 0;
    while panel + 4 <= panels && rows <= S::FMA_ROWS[0] {
        fma_rows::<S, WIDE, 4>(rows, args.at_panel(panel));
        panel += 4;
    }
    while panel + 2 <= panels && rows <= S::FMA_ROWS[1] {
        fma_rows::<S, WIDE, 2>(rows, args.at_panel(panel));
        panel += 2;
    }
    while panel < panels {
        fma_rows::<S, WIDE, 1>(rows, args.at_panel(panel));
        panel += 1;
    }
}

#[inline(always)]
unsafe fn fma_rows<S: Simd, const WIDE: bool, const P: usize>(rows: usize, args: TileArgs) {
    match rows {
        0 => {}
        1 => S::vectorize(FmaTile::<WIDE, 1, P>(args)),
        2 => S::vectorize(FmaTile::<WIDE, 2, P>(args)),
        3 => S::vectorize(FmaTile::<WIDE, 3, P>(args)),
        4 => S::vectorize(FmaTile::<WIDE, 4, P>(args)),
        5 => S::vectorize(FmaTile::<WIDE, 5, P>(args)),
        6 => S::vectorize(FmaTile::<WIDE, 6, P>(args)),
        7 => S::vectorize(FmaTile::<WIDE, 7, P>(args)),
        8 => S::vectorize(FmaTile::<WIDE, 8, P>(args)),
        _ => unreachable!("f32 tiles have at most 8 rows"),
    }
}

/// `R` rows times `P` panels in f32. `WIDE`: panels of bf16 pairs, two inputs per step.
struct FmaTile<const WIDE: bool, const R: usize, const P: usize>(TileArgs);

impl<const WIDE: bool, const R: usize, const P: usize> Kernel for FmaTile<WIDE, R, P> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let TileArgs { mut a, a_stride, mut w, panel_stride, steps, c, c_stride, load, .. } = self.0;
        let mut sums = [[S::zero(); P]; R];
        if load {
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = S::load(c.add(r * c_stride + p * LANES));
                }
            }
        }
        for _ in 0..steps {
            if WIDE {
                let mut low = [S::zero(); P];
                let mut high = [S::zero(); P];
                for p in 0..P {
                    (low[p], high[p]) = S::split(S::load_pairs(w.add(p * panel_stride)));
                }
                for r in 0..R {
                    let (first, second) = (*a.add(r), *a.add(a_stride + r));
                    for p in 0..P {
                        sums[r][p] = S::fma(low[p], S::splat(f32::from_bits(first)), sums[r][p]);
                        sums[r][p] = S::fma(high[p], S::splat(f32::from_bits(second)), sums[r][p]);
                    }
                }
                a = a.wrapping_add(2 * a_stride);
            } else {
                for r in 0..R {
                    let x = S::splat(f32::from_bits(*a.add(r)));
                    for p in 0..P {
                        sums[r][p] = S::fma(S::load(w.add(p * panel_stride).cast()), x, sums[r][p]);
                    }
                }
                a = a.wrapping_add(a_stride);
            }
            w = w.wrapping_add(LANES);
        }
        for r in 0..R {
            for p in 0..P {
                S::store(sums[r][p], c.add(r * c_stride + p * LANES));
            }
        }
    }
}

/// The tiles of the bf16 dot-product instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) mod dot {
    use crate::layout::{Ahead, LANES, TileArgs};
    use crate::simd::avx512::{Avx512Bf16, lines_ahead};
    use std::arch::x86_64::*;

    /// Steps a panel is prefetched ahead, of `panels` side by side. Fewer streams stand more lines of each.
    fn ahead_steps(panels: usize) -> usize {
        let lines = lines_ahead().bf16;
        match panels {
            4 => lines / 4,
            2 => lines * 5 / 8,
            _ => lines * 2,
        }
    }

    /// Covers the panels with the widest tiles that `rows` rows leave registers for: 24 accumulators, the weights, one broadcast.
    ///
    /// # Safety
    /// As `multiply_tile`; AVX-512 BF16 is available; `rows <= 24`.
    #[inline(always)]
    pub(crate) unsafe fn tile(rows: usize, panels: usize, args: TileArgs) {
        macro_rules! by_rows {
            ($panels:literal, $args:expr, $($rows:literal)*) => {
                match rows {
                    0 => {}
                    $($rows => run::<$rows, $panels>($args),)*
                    _ => unreachable!("no such tile"),
                }
            };
        }
        let at = |panel, width| args.at_panels(panel, width, panels);
        let mut panel = 0;
        if rows <= 6 {
            while panel + 4 <= panels {
                by_rows!(4, at(panel, 4), 1 2 3 4 5 6);
                panel += 4;
            }
        }
        if rows <= 12 {
            while panel + 2 <= panels {
                by_rows!(2, at(panel, 2), 1 2 3 4 5 6 7 8 9 10 11 12);
                panel += 2;
            }
        }
        while panel < panels {
            by_rows!(1, at(panel, 1), 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
            panel += 1;
        }
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn run<const R: usize, const P: usize>(args: TileArgs) {
        let TileArgs { mut a, a_stride, mut w, panel_stride, steps, c, c_stride, load, ahead, .. } = args;
        let mut sums = [[_mm512_setzero_ps(); P]; R];
        if load {
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = _mm512_loadu_ps(c.add(r * c_stride + p * LANES));
                }
            }
        }
        // `jump` steps before the end the prefetch goes on to what follows.
        let (mut ahead, ahead_stride, jump, next) = match ahead {
            Ahead::Own { next } => {
                (w.wrapping_add(ahead_steps(P) * LANES), panel_stride, ahead_steps(P).min(steps), next)
            }
            Ahead::Other(other) => (other, 0, 0, other),
        };
        for left in (0..steps).rev() {
            let mut weights = [_mm512_setzero_si512(); P];
            for p in 0..P {
                weights[p] = _mm512_loadu_si512(w.wrapping_add(p * panel_stride).cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(p * ahead_stride).cast());
            }
            for r in 0..R {
                let x = *a.add(r);
                for p in 0..P {
                    sums[r][p] = Avx512Bf16::dot(sums[r][p], weights[p], x);
                }
            }
            a = a.wrapping_add(a_stride);
            w = w.wrapping_add(LANES);
            ahead = if left == jump { next } else { ahead.wrapping_add(LANES) };
        }
        for r in 0..R {
            for p in 0..P {
                _mm512_storeu_ps(c.add(r * c_stride + p * LANES), sums[r][p]);
            }
        }
    }
}
