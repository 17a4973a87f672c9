//! Refusals of operations and errors of devices.

/// Reason why an operation was not executed.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Two shapes differ that must be equal.
    #[error("{op}: expected shape {expected:?}, got {got:?}")]
    ShapeMismatch {
        /// Name of the operation.
        op: &'static str,
        /// Required shape.
        expected: Vec<usize>,
        /// Given shape.
        got: Vec<usize>,
    },
    /// A stored weight of a dtype or format this backend cannot multiply.
    #[error("{op}: weights of format {dtype} are not supported by the {backend} backend")]
    UnsupportedDtype {
        /// Name of the operation.
        op: &'static str,
        /// Stored dtype.
        dtype: String,
        /// Backend name.
        backend: &'static str,
    },
    /// Activations in a form this backend does not compute.
    #[error("activations {form} are not computed by the {backend} backend: set device.activations to bf16")]
    UnsupportedActivations {
        /// Name of the form.
        form: &'static str,
        /// Backend name.
        backend: &'static str,
    },
    /// An operation of a network beside the model's own, on a backend without it.
    #[error("{op}: the {backend} backend does not have this operation")]
    Absent {
        /// Name of the operation.
        op: &'static str,
        /// Backend name.
        backend: &'static str,
    },
    /// The device could not provide the memory.
    #[error("{what}: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// Purpose of the memory.
        what: &'static str,
        /// Requested size.
        bytes: usize,
    },
    /// A size cannot be split over the number of ranks.
    #[error(
        "{op}: {size} {what} cannot be split into parts like {start}..{end}, only at multiples of {unit}: lower device.ranks"
    )]
    Indivisible {
        /// Name of the operation.
        op: &'static str,
        /// Name of the split dimension.
        what: String,
        /// Whole size of the dimension.
        size: usize,
        /// First index of the part.
        start: usize,
        /// End of the part, exclusive.
        end: usize,
        /// Number of consecutive indices that stay together.
        unit: usize,
    },
    /// A rank would be without a part.
    #[error(
        "{op}: {num_units} {what} are too few for {world} ranks: set device.ranks to at most {num_units}"
    )]
    TooFewUnits {
        /// Name of the operation.
        op: &'static str,
        /// Name of the units.
        what: &'static str,
        /// Number of units that stay whole.
        num_units: usize,
        /// Number of ranks.
        world: usize,
    },
    /// Something of whole experts is asked of ranks that cut them.
    #[error(
        "{op}: ranks that cut every expert do not have its output: set parallel.expert to the number of ranks, or device.ranks to 1"
    )]
    CutExperts {
        /// Name of the operation.
        op: &'static str,
    },
    /// Another rank failed: a sum over ranks cannot be computed.
    #[error("{op}: another rank failed")]
    Abandoned {
        /// Name of the operation.
        op: &'static str,
    },
    /// The device or its driver failed.
    #[error("{op}: device error {code}: {text}")]
    Device {
        /// Name of the operation.
        op: &'static str,
        /// Error code of the driver.
        code: i32,
        /// Error text of the driver.
        text: String,
        /// Whether the device is unusable: the engine then ends at once with this error as the
        /// reason.
        fatal: bool,
    },
}

impl OpError {
    /// Whether no later operation on the device can succeed.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Device { fatal: true, .. })
    }
}

/// Errors: `expected` and `got` differ.
pub fn expect(op: &'static str, expected: &[usize], got: &[usize]) -> Result<(), OpError> {
    if expected == got {
        return Ok(());
    }
    Err(OpError::ShapeMismatch { op, expected: expected.to_vec(), got: got.to_vec() })
}
