//! Test support: the tables of `fragments.json`, and operands placed by them.

use crate::Lanes;
use serde::Deserialize;
use serde_json::Value;

/// The golden tables.
pub(super) fn fragments() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/fragments.json");
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_slice(&bytes).expect("fragments.json is JSON")
}

/// The modifiers of an instruction: its text less the opcode, split at dots.
pub(super) fn modifiers(instruction: &str) -> Vec<&str> {
    instruction.split('.').skip(1).collect()
}

/// A fragment table: `index[lane][value]` is `row * cols + col`.
#[derive(Clone, Deserialize)]
pub(super) struct Fragment {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) bits: usize,
    pub(super) regs: usize,
    pub(super) per_reg: usize,
    pub(super) index: Vec<Vec<usize>>,
}

impl Fragment {
    pub(super) fn new(value: &Value) -> Self {
        Self::deserialize(value).expect("a fragment table")
    }

    pub(super) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// 32-bit registers: an f64 takes two.
    pub(super) fn registers(&self) -> usize {
        self.regs * self.bits.div_ceil(32).max(1)
    }

    /// Registers of one warp that hold the row-major `codes`; `warp` selects 32 threads of the
    /// table.
    pub(super) fn place(&self, codes: &[u64], warp: usize) -> Vec<Lanes> {
        let mut registers = vec![[0; 32]; self.registers()];
        self.each(warp, |lane, register, shift, index| {
            let code = codes[index] << shift;
            registers[register][lane] |= code as u32;
            if self.bits == 64 {
                registers[register + 1][lane] = (code >> 32) as u32;
            }
        });
        registers
    }

    /// Inverse of [`Fragment::place`]: overwrites the codes that the warp holds.
    pub(super) fn take(&self, registers: &[Lanes], warp: usize, codes: &mut [u64]) {
        self.each(warp, |lane, register, shift, index| {
            let low = registers[register][lane] as u64 >> shift;
            let high = if self.bits == 64 { (registers[register + 1][lane] as u64) << 32 } else { 0 };
            codes[index] = (low | high) & (u64::MAX >> (64 - self.bits));
        });
    }

    /// Calls with lane, first 32-bit register, shift, element.
    fn each(&self, warp: usize, mut visit: impl FnMut(usize, usize, usize, usize)) {
        for lane in 0..32 {
            for (v, &index) in self.index[32 * warp + lane].iter().enumerate() {
                let words = self.bits.div_ceil(32).max(1);
                visit(lane, v / self.per_reg * words, self.bits * (v % self.per_reg), index);
            }
        }
    }
}

/// A small generator of test data (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Codes of `element` whose values are multiples of `step` up to `limit` in magnitude.
    pub(super) fn codes(&mut self, element: &str, len: usize, step: f64, limit: f64) -> Vec<u64> {
        (0..len).map(|_| self.code(element, step, limit)).collect()
    }

    fn code(&mut self, element: &str, step: f64, limit: f64) -> u64 {
        let bits = element_bits(element);
        if bits > 8 {
            let count = (limit / step) as i64;
            let value = (self.next() as i64).rem_euclid(2 * count + 1) - count;
            return encode(element, value as f64 * step);
        }
        loop {
            let code = self.next() & ((1 << bits) - 1);
            let value = decode(element, code);
            if value.abs() <= limit && (value / step).fract() == 0.0 {
                return code;
            }
        }
    }
}

pub(super) fn element_bits(element: &str) -> usize {
    match element {
        "f64" => 64,
        "f32" | "tf32" | "s32" => 32,
        "f16" | "bf16" => 16,
        "e2m3" | "e3m2" => 6,
        "e2m1" | "s4" | "u4" => 4,
        "b1" => 1,
        _ => 8,
    }
}

/// The value of a code, written for clarity: sign, exponent and mantissa fields of each format.
pub(super) fn decode(element: &str, code: u64) -> f64 {
    let signed = |bits: u32| ((code << (64 - bits)) as i64 >> (64 - bits)) as f64;
    let (exponent_bits, mantissa_bits) = match element {
        "f64" => return f64::from_bits(code),
        "f32" | "tf32" => return f32::from_bits(code as u32) as f64,
        "bf16" => return f32::from_bits((code as u32) << 16) as f64,
        "s32" => return signed(32),
        "s8" => return signed(8),
        "s4" => return signed(4),
        "u8" | "u4" | "b1" => return code as f64,
        "ue8m0" => return if code == 0xff { f64::NAN } else { 2f64.powi(code as i32 - 127) },
        "ue4m3" => return decode("e4m3", code & 0x7f),
        "f16" => (5, 10),
        "e5m2" => (5, 2),
        "e4m3" => (4, 3),
        "e3m2" => (3, 2),
        "e2m3" => (2, 3),
        "e2m1" => (2, 1),
        _ => panic!("no element {element}"),
    };
    let mantissa = code & ((1 << mantissa_bits) - 1);
    let top = (1 << exponent_bits) - 1;
    let exponent = code >> mantissa_bits & top;
    let sign = if code >> (mantissa_bits + exponent_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let ieee = matches!(element, "f16" | "e5m2");
    if ieee && exponent == top {
        return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
    }
    if element == "e4m3" && code & 0x7f == 0x7f {
        return f64::NAN;
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let hidden = if exponent == 0 { 0.0 } else { 1.0 };
    let fraction = hidden + mantissa as f64 / (1u64 << mantissa_bits) as f64;
    sign * fraction * 2f64.powi(exponent.max(1) as i32 - bias)
}

/// The code of an exactly representable value, for formats of 16 bits and more.
pub(super) fn encode(element: &str, value: f64) -> u64 {
    let code = match element {
        "f64" => value.to_bits(),
        "f32" | "tf32" => (value as f32).to_bits() as u64,
        "bf16" => ((value as f32).to_bits() >> 16) as u64,
        "s32" => (value as i32) as u32 as u64,
        "f16" if value == 0.0 => 0,
        "f16" => {
            let bits = (value as f32).to_bits();
            ((bits >> 16 & 0x8000) | ((bits & 0x7fff_ffff) - (112 << 23)) >> 13) as u64
        }
        _ => panic!("no wide element {element}"),
    };
    assert_eq!(decode(element, code), value, "{element} holds {value}");
    code
}
