//! Linears of a checkpoint by the name before their last word, in whatever format they are stored.

use crate::checkpoint::Checkpoint;
use crate::ops::ExpertMatrices;
use crate::quant::{Layout, RecognizeError, StoredMatrix, recognize};

/// A linear that cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name}: {error}")]
pub struct LinearError {
    /// Name before the last word.
    pub name: String,
    /// Why.
    pub error: RecognizeError,
}

/// One linear, borrowed.
pub(super) fn linear<'a>(
    checkpoint: &'a Checkpoint,
    stem: &str,
) -> Result<(Layout, StoredMatrix<'a>), LinearError> {
    recognize(|part| checkpoint.tensor(&format!("{stem}.{part}")))
        .map_err(|error| LinearError { name: stem.to_owned(), error })
}

/// The three linears under `stem`.
pub(super) fn swiglu<'a>(checkpoint: &'a Checkpoint, stem: &str) -> Result<ExpertMatrices<'a>, LinearError> {
    let matrix = |name: &str| linear(checkpoint, &format!("{stem}.{name}")).map(|(_, matrix)| matrix);
    Ok(ExpertMatrices {
        gate_proj: matrix("gate_proj")?,
        up_proj: matrix("up_proj")?,
        down_proj: matrix("down_proj")?,
    })
}
