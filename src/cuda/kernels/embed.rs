//! Twin of `kernels/embed.cu`: rows of the embedding table.

use bytemuck::{Pod, Zeroable};

use super::plain;
use crate::weights::{Format, Matrix};
use crate::{Driver, Kernel, LaunchShape, Stream};
use perigee_ops::{OpError, TokenSource};

/// The declaration.
pub const KERNEL: Kernel = plain!("embed", &["embed_f32", "embed_bf16"], 64);

/// Set in a token's word: the rest is a slot.
const LAST_SAMPLED: u32 = 1 << 31;

/// `EmbedParams` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Params {
    /// `[T]` u32, see [`word`].
    pub tokens: u64,
    /// `[slots]` u32, the last sampled tokens.
    pub last_tokens: u64,
    /// `[R, D]`.
    pub table: u64,
    /// `[T, D]` f32.
    pub hidden: u64,
    /// D.
    pub columns: i64,
    /// Rows of the table.
    pub rows: i64,
    /// Id of the first one.
    pub first: i64,
    /// Ids.
    pub vocab: i64,
}

/// The ids of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// Id of the first row.
    pub first: usize,
    /// Number of ids of all ranks; those that the table lacks are rows of 0.
    pub vocab: usize,
}

impl Ids {
    /// Those of a whole table.
    pub fn all_of(table: &Matrix) -> Self {
        Self { first: 0, vocab: table.out_features }
    }
}

/// A row's token on the device.
pub fn word(token: TokenSource) -> u32 {
    match token {
        TokenSource::Known(id) | TokenSource::Media { token: id, .. } => id.0,
        TokenSource::LastSampled(slot) => slot.0 | LAST_SAMPLED,
    }
}

/// A row's picture on the device: the kept row that it stands for.
pub fn media_word(token: TokenSource) -> u32 {
    match token {
        TokenSource::Media { row, .. } => row,
        TokenSource::Known(_) | TokenSource::LastSampled(_) => super::vision::NO_ROW,
    }
}

/// Enqueues the rows of `num_rows` tokens.
pub fn launch<D: Driver>(
    stream: &mut Stream<D>,
    num_rows: usize,
    table: &Matrix,
    ids: Ids,
    [tokens, last_tokens, hidden]: [u64; 3],
) -> Result<(), OpError> {
    let name = match table.format {
        Format::F32 => "embed_f32",
        Format::Bf16 => "embed_bf16",
        format => {
            let dtype = format.name().into();
            return Err(OpError::UnsupportedDtype { op: "embed", dtype, backend: "cuda" });
        }
    };
    let shape = LaunchShape { grid: [num_rows as u32, 1, 1], threads: 256, shared_bytes: 0 };
    let (columns, rows) = (table.in_features as i64, table.out_features as i64);
    let (first, vocab) = (ids.first as i64, ids.vocab as i64);
    let table = table.params.codes;
    stream.launch(name, shape, &Params { tokens, last_tokens, table, hidden, columns, rows, first, vocab })
}
