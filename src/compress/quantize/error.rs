//! Errors of a quantization; each names the module, the file or the folder, and what to do.

use std::path::PathBuf;

use super::source::SourceError;
use perigee_model::checkpoint::{CheckpointError, WriteError};
use perigee_numbers::quant::FormatError;

/// Why a folder could not be quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The source has a module that cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source has a file that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A module does not fit the format.
    #[error("{module}: {error}; choose other --modules or --format fp8")]
    Format {
        /// Module name.
        module: String,
        /// Rule of the format that it breaks.
        error: FormatError,
    },
    /// Nothing to do.
    #[error("the source has no module that --modules {modules} names")]
    Nothing {
        /// As given.
        modules: &'static str,
    },
    /// The source's config.json is missing or no JSON object.
    #[error("config.json of the source cannot be used: {0}")]
    Config(String),
    /// The folder holds something else.
    #[error(
        "target {target} is not empty ({found} is there) and was not begun by this command with this source and these options ({why}); \
         name another folder or empty it"
    )]
    Foreign {
        /// Target folder.
        target: PathBuf,
        /// A file of it.
        found: String,
        /// What differs.
        why: String,
    },
    /// Activations could not be measured.
    #[error("activations could not be measured")]
    Calibration(#[source] MeasureError),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why a measurement failed: the backend is handed in, and its errors with it.
pub type MeasureError = Box<dyn std::error::Error + Send + Sync>;
