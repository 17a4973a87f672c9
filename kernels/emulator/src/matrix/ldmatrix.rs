//! `ldmatrix`: rows of 16 bytes from shared memory become fragments. Also `movmatrix`.

use super::packing::Packing;
use crate::Lanes;

/// A parsed `ldmatrix` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LdMatrixSpec {
    shape: Shape,
    packing: Packing,
    num_matrices: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// 8 rows of 16 bytes; a lane receives four bytes of one row.
    Rows,
    /// 8 x 8 of 16 bits, transposed.
    M8N8Trans,
    /// 16 x 16 of 8 bits, transposed.
    M16N16Trans,
}

impl LdMatrixSpec {
    /// `modifiers`: what follows `ldmatrix.`, split at dots. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str]) -> Result<Self, String> {
        let (mut shape, mut count, mut element) = (None, None, None);
        let (mut trans, mut source) = (false, None);
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "shared" | "shared::cta" => {}
                "m8n8" | "m16n16" | "m8n16" => shape = Some(modifier),
                "x1" => count = Some(1),
                "x2" => count = Some(2),
                "x4" => count = Some(4),
                "trans" => trans = true,
                "b16" | "b8" | "b8x16" => element = Some(modifier),
                "b4x16_p64" | "b6x16_p32" => source = Some(modifier),
                _ => return Err(format!("ldmatrix: unknown modifier .{modifier}")),
            }
        }
        let shape = match (shape, element, trans) {
            (Some("m8n8"), Some("b16"), false) | (Some("m8n16"), Some("b8x16"), false) => Some(Shape::Rows),
            (Some("m8n8"), Some("b16"), true) => Some(Shape::M8N8Trans),
            (Some("m16n16"), Some("b8" | "b8x16"), true) if count != Some(4) => Some(Shape::M16N16Trans),
            _ => None,
        };
        match (shape, Packing::parse(element, source), count) {
            (Some(shape), Some(packing), Some(num_matrices)) => Ok(Self { shape, packing, num_matrices }),
            _ => Err(format!("ldmatrix.{}: unsupported combination", modifiers.join("."))),
        }
    }

    /// 1, 2 or 4.
    pub fn num_matrices(&self) -> usize {
        self.num_matrices
    }

    /// Rows read, of 16 bytes each. Lane r holds the shared address of row r; the addresses of
    /// lanes from `num_rows` on are not used.
    pub fn num_rows(&self) -> usize {
        self.num_matrices * if self.shape == Shape::M16N16Trans { 16 } else { 8 }
    }

    /// Destination registers.
    pub fn num_registers(&self) -> usize {
        self.num_matrices * if self.shape == Shape::M16N16Trans { 2 } else { 1 }
    }

    /// Fills `out` from `rows`; row r was read at lane r's address.
    ///
    /// - `rows`: at least [`LdMatrixSpec::num_rows`]
    /// - `out`: at least [`LdMatrixSpec::num_registers`]
    pub fn distribute(&self, rows: &[[u8; 16]], out: &mut [Lanes]) {
        let mut unpacked = [[0; 16]; 32];
        let rows = match self.packing {
            Packing::Bytes => rows,
            _ => {
                for (row, bytes) in unpacked.iter_mut().zip(&rows[..self.num_rows()]) {
                    *row = self.packing.unpack(*bytes);
                }
                &unpacked
            }
        };
        for (i, lanes) in out[..self.num_registers()].iter_mut().enumerate() {
            for (lane, register) in lanes.iter_mut().enumerate() {
                let (g, c) = (lane / 4, lane % 4);
                *register = u32::from_le_bytes(match self.shape {
                    Shape::Rows => {
                        let row = &rows[8 * i + g];
                        [row[4 * c], row[4 * c + 1], row[4 * c + 2], row[4 * c + 3]]
                    }
                    Shape::M8N8Trans => {
                        let (even, odd) = (&rows[8 * i + 2 * c], &rows[8 * i + 2 * c + 1]);
                        [even[2 * g], even[2 * g + 1], odd[2 * g], odd[2 * g + 1]]
                    }
                    Shape::M16N16Trans => {
                        let (first, column) = (16 * (i / 2) + 4 * c, g + 8 * (i % 2));
                        [0, 1, 2, 3].map(|j| rows[first + j][column])
                    }
                });
            }
        }
    }
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`: transposes the 8 x 8 matrix of 16-bit elements held by
/// a warp.
pub fn movmatrix(source: &Lanes) -> Lanes {
    let half = |row: usize, column: usize| source[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
    std::array::from_fn(|lane| {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        half(column, row) | half(column + 1, row) << 16
    })
}

#[cfg(test)]
mod tests;
