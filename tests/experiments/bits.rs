//! Twin of `bits.cu`: whether `mma.sync` and `wgmma` give the same bits, and which sum of 17 terms these are.

use bytemuck::{Pod, Zeroable};
use perigee_cuda::{Arch, Kernel, LaunchShape, Limits, Program};

use super::{device, on_gpu};

/// Rows and columns of a block's tile, and its K.
const SIDE: usize = 64;
const PANEL_BYTES: usize = SIDE * 128;
/// Products of one instruction.
const STEP: usize = 16;

const KERNEL: Kernel = Kernel {
    name: "experiment_bits",
    text: include_str!("bits.cu"),
    functions: &["experiment_bits_bf16", "experiment_bits_f16"],
    archs: &[Arch::Sm90a],
    options: |_| &[],
    limits: Limits { registers: 255, local_memory: false },
    shared_bytes: |_| 2 * PANEL_BYTES as u32,
};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    panels: u64,
    sums: u64,
    differing: u64,
    seed: u32,
    spread: u32,
}

pub(super) fn program() -> Program {
    Program::new(&KERNEL, Arch::Sm90a).unwrap()
}

pub(super) fn run() -> Option<String> {
    let mut stream = device(&[program()])?;
    let blocks = if on_gpu() { 256 } else { 2 };
    let mut found = Vec::new();
    // Values over so many powers of two: products beside each other differ by twice as many.
    for (function, spread, to_f32) in [
        ("experiment_bits_bf16", 24, bf16 as fn(u16) -> f64),
        ("experiment_bits_f16", 16, f16 as fn(u16) -> f64),
    ] {
        let panels = stream.zeros("panels", 2 * PANEL_BYTES).unwrap().address;
        let sums = stream.zeros("sums", 4 * SIDE * SIDE).unwrap().address;
        let differing = stream.zeros("counts", 8).unwrap().address;
        let params = Params { panels, sums, differing, seed: 71, spread };
        let shape = LaunchShape { grid: [blocks, 1, 1], threads: 128, shared_bytes: 2 * PANEL_BYTES as u32 };
        stream.launch(function, shape, &params).unwrap();
        let counts: Vec<u32> = stream.read(differing, 2).unwrap();
        let tiles: Vec<u8> = stream.read(panels, 2 * PANEL_BYTES).unwrap();
        let sums: Vec<f32> = stream.read(sums, SIDE * SIDE).unwrap();
        let (a, b) = (tile(&tiles[..PANEL_BYTES], to_f32), tile(&tiles[PANEL_BYTES..], to_f32));
        let models: Vec<String> = MODELS
            .iter()
            .map(|model| {
                let others = (0..SIDE * SIDE).filter(|at| {
                    let sum = model.chain(&a[at / SIDE], &b[at % SIDE]);
                    sum.to_bits() != sums[*at].to_bits()
                });
                format!("{} {}", model.name(), others.count())
            })
            .collect();
        found.push(format!(
            "{function}: of {} sums wgmma gives other bits than mma.sync in {}, with A in registers in {}; of {} sums other bits \
             than mma.sync by model: {}",
            blocks as usize * SIDE * SIDE,
            counts[0],
            counts[1],
            SIDE * SIDE,
            models.join(", ")
        ));
    }
    Some(found.join(". "))
}

fn bf16(bits: u16) -> f64 {
    half::bf16::from_bits(bits).to_f64()
}

fn f16(bits: u16) -> f64 {
    half::f16::from_bits(bits).to_f64()
}

/// Rows of a panel: chunk c of 16 bytes of row r is at the place c ^ (r % 8).
fn tile(panel: &[u8], value: fn(u16) -> f64) -> Vec<Vec<f64>> {
    let element = |row: usize, k: usize| {
        let at = row * 128 + ((k / 8) ^ (row % 8)) * 16 + k % 8 * 2;
        value(u16::from_le_bytes([panel[at], panel[at + 1]]))
    };
    (0..SIDE).map(|row| (0..SIDE).map(|k| element(row, k)).collect()).collect()
}

/// A sum of 16 products and what was there before: all terms are cut off `bits` behind the leading bit of the largest exponent, added
/// exactly, and rounded toward zero or to the nearest (as microsoft/MMA-Sim has it).
struct Model {
    bits: i32,
    to_nearest: bool,
}

const MODELS: [Model; 5] = [
    Model { bits: 23, to_nearest: false },
    Model { bits: 24, to_nearest: false },
    Model { bits: 25, to_nearest: false },
    Model { bits: 25, to_nearest: true },
    Model { bits: 26, to_nearest: false },
];

impl Model {
    fn name(&self) -> String {
        format!("{} bits {}", self.bits, if self.to_nearest { "to nearest" } else { "toward zero" })
    }

    fn chain(&self, a: &[f64], b: &[f64]) -> f32 {
        a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).fold(0.0, |sum, (a, b)| self.step(sum, a, b))
    }

    fn step(&self, before: f32, a: &[f64], b: &[f64]) -> f32 {
        let exponent = |x: f64| (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        // A product has the sum of its factors' exponents: its leading bit may be one higher.
        let products = a.iter().zip(b).filter(|(a, b)| **a * **b != 0.0);
        let mut terms: Vec<(f64, i32)> =
            products.map(|(a, b)| (a * b, exponent(*a) + exponent(*b))).collect();
        if before != 0.0 {
            terms.push((f64::from(before), exponent(f64::from(before))));
        }
        let Some(largest) = terms.iter().map(|(_, exponent)| *exponent).max() else { return 0.0 };
        let unit = 2f64.powi(largest - self.bits);
        let sum = terms.iter().map(|(term, _)| (term / unit).trunc()).sum::<f64>() * unit;
        let nearest = sum as f32;
        if self.to_nearest || f64::from(nearest).abs() <= sum.abs() {
            return nearest;
        }
        f32::from_bits(nearest.to_bits() - 1)
    }
}

/// The model's arithmetic on sums that are known.
#[test]
fn a_model_cuts_off_and_rounds() {
    let toward_zero = Model { bits: 25, to_nearest: false };
    let step = |terms: [f64; 2]| toward_zero.step(0.0, &terms, &[1.0, 1.0]);
    assert_eq!(step([1.0, 2f64.powi(-23)]), 1.0 + f32::EPSILON);
    // What is cut off before the addition, and what the sum has too many bits for.
    assert_eq!(step([1.0, -(2f64.powi(-26))]), 1.0);
    assert_eq!(step([1.0, 2f64.powi(-24) * 1.5]), 1.0);
    let nearest = Model { bits: 25, to_nearest: true };
    assert_eq!(nearest.step(0.0, &[1.0, 2f64.powi(-24) * 1.5], &[1.0, 1.0]), 1.0 + f32::EPSILON);
}
