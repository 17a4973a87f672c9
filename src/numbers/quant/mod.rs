//! Number formats of quantized checkpoints, as pure maths. Knows no file and no device.
//!
//! A linear weight is either plain floats or one of the packed formats; [`StoredMatrix`] borrows
//! both from the checkpoint. [`recognize()`] determines the format of a linear's tensors,
//! [`check_scales`] whether its scales can be used. `row_to_f32` is the specification that every
//! fast product is tested against. [`Packing`] is the reverse direction: f32 rows in, codes and
//! scales out, byte for byte as the reference packages write them.

mod activation;
mod cached_row;
pub mod distortion;
mod format;
pub mod fp4;
pub mod fp8;
pub mod fp8_block;
pub mod int4;
pub mod mxfp4;
pub mod nvfp4;
mod packed;
mod recognize;
mod scales;
mod packing;
mod stored;

pub use activation::{ActivationForm, BlockScale, MAX_TERMS, TermScales, UNMEASURED_INPUT_SCALE};
pub use cached_row::{CachedRowFormat, covering_exponent};
pub use format::{Codes, FP8_BLOCK, FormatRow, PackedFormat};
pub use packed::{FormatError, PackedMatrix, TensorScale};
pub use packing::{MatrixEncoder, PackedBuffer, Packing};
pub use recognize::{Dialect, FloatType, Layout, PART_NAMES, RecognizeError, recognize, scalar};
pub use scales::{ScaleCheck, ScaleFault, ScaleRange, check_scales, repaired_scales, scale_range};
pub use stored::StoredMatrix;
