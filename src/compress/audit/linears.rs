//! Linears of a checkpoint by the name before their last word, in whatever format they are stored.

use perigee_model::checkpoint::Checkpoint;
use perigee_numbers::quant::{Layout, RecognizeError, StoredMatrix, recognize};
use perigee_ops::ExpertMatrices;

/// Linears of a SwiGLU.
const SWIGLU: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// A linear that cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name}: {error}")]
pub struct LinearError {
    /// Name before the last word.
    pub name: String,
    /// What keeps its tensors from being read as a weight.
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

/// What one linear is stored as, from its headers.
pub(super) fn layout(checkpoint: &Checkpoint, stem: &str) -> Result<Layout, RecognizeError> {
    Layout::of(|part: &str| checkpoint.tensor(&format!("{stem}.{part}")))
}

/// The three linears under `stem`.
pub(super) fn swiglu<'a>(checkpoint: &'a Checkpoint, stem: &str) -> Result<ExpertMatrices<'a>, LinearError> {
    let [gate_proj, up_proj, down_proj] =
        SWIGLU.map(|name| linear(checkpoint, &format!("{stem}.{name}")).map(|(_, matrix)| matrix));
    Ok(ExpertMatrices {
        gate_proj: gate_proj?,
        up_proj: up_proj?,
        down_proj: down_proj?,
        input: None,
        inner: None,
    })
}
