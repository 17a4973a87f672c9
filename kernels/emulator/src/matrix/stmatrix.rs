//! `stmatrix`: fragments become rows of 16 bytes in shared memory.

use crate::Lanes;

/// A parsed `stmatrix` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StMatrixSpec {
    shape: Shape,
    num_matrices: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// 8 x 8 of 16 bits.
    M8N8,
    /// 8 x 8 of 16 bits, transposed.
    M8N8Trans,
    /// 16 x 8 of 8 bits, transposed: 8 rows in memory.
    M16N8Trans,
}

impl StMatrixSpec {
    /// `modifiers`: what follows `stmatrix.`, split at dots. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str]) -> Result<Self, String> {
        let (mut shape, mut count, mut element, mut trans) = (None, None, None, false);
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "shared" | "shared::cta" => {}
                "m8n8" | "m16n8" => shape = Some(modifier),
                "x1" => count = Some(1),
                "x2" => count = Some(2),
                "x4" => count = Some(4),
                "trans" => trans = true,
                "b16" | "b8" => element = Some(modifier),
                _ => return Err(format!("stmatrix: unknown modifier .{modifier}")),
            }
        }
        let shape = match (shape, element, trans) {
            (Some("m8n8"), Some("b16"), false) => Some(Shape::M8N8),
            (Some("m8n8"), Some("b16"), true) => Some(Shape::M8N8Trans),
            (Some("m16n8"), Some("b8"), true) => Some(Shape::M16N8Trans),
            _ => None,
        };
        match (shape, count) {
            (Some(shape), Some(num_matrices)) => Ok(Self { shape, num_matrices }),
            _ => Err(format!("stmatrix.{}: unsupported combination", modifiers.join("."))),
        }
    }

    /// 1, 2 or 4; also the number of source registers.
    pub fn num_matrices(&self) -> usize {
        self.num_matrices
    }

    /// Rows written, of 16 bytes each. Lane r holds the shared address of row r; the addresses of
    /// lanes from `num_rows` on are not used.
    pub fn num_rows(&self) -> usize {
        8 * self.num_matrices
    }

    /// Fills `rows`; row r goes to lane r's address.
    ///
    /// - `registers`: at least [`StMatrixSpec::num_matrices`]
    /// - `rows`: at least [`StMatrixSpec::num_rows`]
    pub fn collect(&self, registers: &[Lanes], rows: &mut [[u8; 16]]) {
        for (lanes, rows) in registers[..self.num_matrices].iter().zip(rows.chunks_exact_mut(8)) {
            for (lane, register) in lanes.iter().enumerate() {
                let (g, c) = (lane / 4, lane % 4);
                let bytes = register.to_le_bytes();
                match self.shape {
                    Shape::M8N8 => rows[g][4 * c..4 * c + 4].copy_from_slice(&bytes),
                    Shape::M8N8Trans => {
                        rows[2 * c][2 * g..2 * g + 2].copy_from_slice(&bytes[..2]);
                        rows[2 * c + 1][2 * g..2 * g + 2].copy_from_slice(&bytes[2..]);
                    }
                    Shape::M16N8Trans => {
                        rows[2 * c][g] = bytes[0];
                        rows[2 * c + 1][g] = bytes[1];
                        rows[2 * c][g + 8] = bytes[2];
                        rows[2 * c + 1][g + 8] = bytes[3];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
