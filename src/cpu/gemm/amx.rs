//! Tiles of the matrix unit (AMX BF16): up to 16 rows times 4 panels, or 32 rows times 2, in one go.
//!
//! Panels are what the unit wants as its second operand, as they stand: 16 steps of 16 pairs are one tile of 32 inputs and 16 outputs.
//! Rows come in blocks of 32 inputs, one row of a block behind the other ([`crate::layout::RowFormat::Blocks`]).
//!
//! Every output is a sum over blocks of 32 inputs in order. In a block the products of even inputs are added up, those of odd inputs too,
//! each in order and in f32, then the two sums, then the block to the output (Intel's Software Developer's Manual, TDPBF16PS; subnormals
//! count as zero). None of it depends on how many rows there are.
#![allow(unsafe_op_in_unsafe_fn)] // The contract is stated once, at `TileArgs`.

use crate::layout::{Ahead, LANES, TileArgs};
use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Steps of a panel in one tile, and rows of one tile.
pub(crate) const TILE_STEPS: usize = 16;

/// Most rows of a call.
pub(crate) const MAX_ROWS: usize = 2 * TILE_STEPS;

/// Words of one tile of a panel.
const TILE_WORDS: usize = TILE_STEPS * LANES;

/// Bytes of one row of a tile.
const ROW_BYTES: usize = 4 * LANES;

/// Shapes of the tile registers: sums 0 to 3, rows 4 and 5, panels 6 and 7.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// For `first` rows of a call, and `second` more.
    fn new(first: usize, second: usize) -> Self {
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let all = TILE_STEPS;
        let heights = match second {
            0 => [first, first, first, first, first, 0, all, all],
            _ => [first, first, second, second, first, second, all, all],
        };
        for (register, height) in heights.into_iter().enumerate() {
            shapes.rows[register] = height as u8;
            shapes.row_bytes[register] = if height > 0 { ROW_BYTES as u16 } else { 0 };
        }
        shapes
    }
}

macro_rules! load {
    ($register:literal, $from:expr, $stride:expr) => {
        asm!(concat!("tileloadd tmm", $register, ", [{from} + {stride}]"), from = in(reg) $from, stride = in(reg) $stride,
            options(nostack, preserves_flags, readonly))
    };
}

macro_rules! multiply {
    ($sums:literal, $rows:literal, $panel:literal) => {
        asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $rows, ", tmm", $panel),
            options(nostack, preserves_flags, nomem)
        )
    };
}

/// `$do` with the literal number of the register of sums `$register`.
macro_rules! with_sums {
    ($register:expr, $do:ident $(, $argument:expr)*) => {
        match $register {
            0 => $do!("0" $(, $argument)*),
            1 => $do!("1" $(, $argument)*),
            2 => $do!("2" $(, $argument)*),
            _ => $do!("3" $(, $argument)*),
        }
    };
}

macro_rules! zero {
    ($register:literal) => {
        asm!(concat!("tilezero tmm", $register), options(nostack, preserves_flags, nomem))
    };
}

macro_rules! store {
    ($register:literal, $to:expr, $stride:expr) => {
        asm!(concat!("tilestored [{to} + {stride}], tmm", $register), to = in(reg) $to, stride = in(reg) $stride,
            options(nostack, preserves_flags))
    };
}

/// Multiplies `rows` rows in blocks with bf16 panels.
///
/// # Safety
/// As `multiply_tile`; the unit is available; `rows <= 32`; `args.steps` is a multiple of 16; `args.a_stride` is `rows`.
pub(crate) unsafe fn tile(rows: usize, panels: usize, args: TileArgs) {
    debug_assert!(rows <= MAX_ROWS && args.steps.is_multiple_of(TILE_STEPS) && args.a_stride == rows);
    if rows == 0 {
        return;
    }
    let first = rows.min(TILE_STEPS);
    let shapes = Shapes::new(first, rows - first);
    asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, preserves_flags, readonly));
    let at = |panel, width| args.at_panels(panel, width, panels);
    let mut panel = 0;
    if rows <= TILE_STEPS {
        while panel + 4 <= panels {
            run::<1, 4>(rows, at(panel, 4));
            panel += 4;
        }
        while panel + 2 <= panels {
            run::<1, 2>(rows, at(panel, 2));
            panel += 2;
        }
        while panel < panels {
            run::<1, 1>(rows, at(panel, 1));
            panel += 1;
        }
    } else {
        while panel + 2 <= panels {
            run::<2, 2>(rows, at(panel, 2));
            panel += 2;
        }
        while panel < panels {
            run::<2, 1>(rows, at(panel, 1));
            panel += 1;
        }
    }
    asm!("tilerelease", options(nostack, preserves_flags, nomem));
}

/// `A` registers of rows times `P` panels.
#[inline(always)]
unsafe fn run<const A: usize, const P: usize>(rows: usize, args: TileArgs) {
    let TileArgs { mut a, mut w, panel_stride, steps, c, c_stride, load, ahead, .. } = args;
    let blocks = steps / TILE_STEPS;
    let sums = |i: usize| c.wrapping_add(i / P * TILE_STEPS * c_stride + i % P * LANES);
    for i in 0..A * P {
        if load {
            with_sums!(i / P * 2 * (A - 1) + i % P, load, sums(i), 4 * c_stride);
        } else {
            with_sums!(i / P * 2 * (A - 1) + i % P, zero);
        }
    }
    // Blocks ahead of the one multiplied, so that 64 lines of all panels together are on their way.
    let jump = (4 / P).min(blocks);
    for block in 0..blocks {
        let (from, streams, stride) = match ahead {
            Ahead::Own { .. } if block + jump < blocks => {
                (w.wrapping_add(jump * TILE_WORDS), P, panel_stride)
            }
            Ahead::Own { next } => (next.wrapping_add((block + jump - blocks) * TILE_WORDS), P, panel_stride),
            Ahead::Other(other) => (other.wrapping_add(block * TILE_WORDS), 1, 0),
        };
        for stream in 0..streams {
            for line in 0..TILE_STEPS {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(stream * stride + line * LANES).cast());
            }
        }
        load!("4", a, ROW_BYTES);
        if A == 2 {
            load!("5", a.wrapping_add(TILE_WORDS), ROW_BYTES);
        }
        for p in 0..P {
            let panel = w.wrapping_add(p * panel_stride);
            if p % 2 == 0 {
                load!("6", panel, ROW_BYTES);
                match p {
                    0 => multiply!("0", "4", "6"),
                    _ => multiply!("2", "4", "6"),
                }
                if A == 2 {
                    multiply!("2", "5", "6");
                }
            } else {
                load!("7", panel, ROW_BYTES);
                match p {
                    1 => multiply!("1", "4", "7"),
                    _ => multiply!("3", "4", "7"),
                }
                if A == 2 {
                    multiply!("3", "5", "7");
                }
            }
        }
        a = a.wrapping_add(rows * LANES);
        w = w.wrapping_add(TILE_WORDS);
    }
    for i in 0..A * P {
        with_sums!(i / P * 2 * (A - 1) + i % P, store, sums(i), 4 * c_stride);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx::is_available;

    const STEPS: usize = 48;
    const PANELS: usize = 5;

    fn halves(pair: u32) -> [f32; 2] {
        [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
    }

    /// The manual's order: even and odd inputs of a block apart, then together, then to the sum. Products of bf16 are exact in f32.
    fn model(rows: &[u32], panel: &[u32], row: usize, height: usize, lane: usize) -> f32 {
        let mut sum = 0f32;
        for block in 0..STEPS / TILE_STEPS {
            let mut parts = [0f32; 2];
            for k in 0..TILE_STEPS {
                let a = halves(rows[(block * height + row) * LANES + k]);
                let b = halves(panel[(block * TILE_STEPS + k) * LANES + lane]);
                for half in 0..2 {
                    parts[half] = a[half].mul_add(b[half], parts[half]);
                }
            }
            sum += parts[0] + parts[1];
        }
        sum
    }

    /// Bit for bit, for every height and width, whole and stopped half-way.
    #[test]
    fn tiles_add_up_in_the_order_of_the_manual() {
        if !is_available() {
            eprintln!("this machine has no matrix unit: nothing was tested");
            return;
        }
        let mut rng = fastrand::Rng::with_seed(5);
        let mut random = |words: usize| -> Vec<u32> {
            let mut half = || u32::from(half::bf16::from_f32(rng.f32() * 2.0 - 1.0).to_bits());
            (0..words).map(|_| half() | half() << 16).collect()
        };
        let weights = random(PANELS * STEPS * LANES);
        for height in 1..=MAX_ROWS {
            let rows = random(height * STEPS);
            for panels in 1..=PANELS {
                let stride = panels * LANES;
                let mut sums = vec![f32::NAN; height * stride];
                // After the first block the sums rest in memory.
                for (first, steps) in [(0, TILE_STEPS), (TILE_STEPS, STEPS - TILE_STEPS)] {
                    let args = TileArgs {
                        a: rows[first * height..].as_ptr(),
                        a_stride: height,
                        w: weights[first * LANES..].as_ptr(),
                        panel_stride: STEPS * LANES,
                        scales: std::ptr::null(),
                        factors: [1.0; 2],
                        steps,
                        c: sums.as_mut_ptr(),
                        c_stride: stride,
                        load: first > 0,
                        ahead: Ahead::Own { next: weights.as_ptr() },
                    };
                    // SAFETY: the unit is available; rows, weights and sums have the sizes named.
                    unsafe { tile(height, panels, args) };
                }
                for (i, sum) in sums.iter().enumerate() {
                    let (row, panel, lane) = (i / stride, i % stride / LANES, i % LANES);
                    let want = model(&rows, &weights[panel * STEPS * LANES..], row, height, lane);
                    assert_eq!(sum.to_bits(), want.to_bits(), "height {height}, panels {panels}: {i}");
                }
            }
        }
    }
}
