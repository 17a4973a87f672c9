//! What an operation refuses, and what a device reports.

/// An operation that was not done.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Two shapes that must agree do not.
    #[error("{op}: expected shape {expected:?}, got {got:?}")]
    ShapeMismatch {
        /// Operation.
        op: &'static str,
        /// What it needs.
        expected: Vec<usize>,
        /// What it was given.
        got: Vec<usize>,
    },
    /// A stored weight of a dtype or format this backend cannot multiply.
    #[error("{op}: weights of format {dtype} are not supported by the {backend} backend")]
    UnsupportedDType {
        /// Operation.
        op: &'static str,
        /// Stored dtype.
        dtype: String,
        /// Backend name.
        backend: &'static str,
    },
    /// The device could not provide the memory.
    #[error("{what}: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// The size asked for.
        bytes: usize,
    },
    /// Something cannot be split over that many ranks.
    #[error(
        "{op}: {size} {what} cannot be split into parts like {start}..{end}, only at multiples of {unit}: lower device.ranks"
    )]
    Indivisible {
        /// Operation.
        op: &'static str,
        /// What is split.
        what: String,
        /// How much there is of it.
        size: usize,
        /// Where the part would begin.
        start: usize,
        /// Where it would end.
        end: usize,
        /// What stays together.
        unit: usize,
    },
    /// Another rank failed, so that a sum over ranks cannot be made.
    #[error("{op}: another rank failed")]
    Abandoned {
        /// Operation.
        op: &'static str,
    },
    /// The device or its driver failed.
    #[error("{op}: device error {code}: {text}")]
    Device {
        /// Operation.
        op: &'static str,
        /// The driver's code.
        code: i32,
        /// The driver's words.
        text: String,
        /// The device cannot be used any more: the engine ends at once, with this as the reason.
        fatal: bool,
    },
}

impl OpError {
    /// Whether no later operation on the device can succeed.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Device { fatal: true, .. })
    }
}

/// `Err` unless `expected == got`.
pub(crate) fn expect(op: &'static str, expected: &[usize], got: &[usize]) -> Result<(), OpError> {
    if expected == got {
        return Ok(());
    }
    Err(OpError::ShapeMismatch { op, expected: expected.to_vec(), got: got.to_vec() })
}
