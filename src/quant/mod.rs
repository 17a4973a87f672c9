//! Number formats of quantized checkpoints, as pure maths. Knows no file and no device.
//!
//! A linear weight is either plain floats or one of the packed formats; [`StoredMatrix`] is both, borrowed as it lies in the
//! checkpoint. Its `row_to_f32` is the specification that every fast product is tested against. The way back is [`Packing`]: f32
//! rows in, codes and scales out, byte for byte as the reference packages write them.

pub mod distortion;
pub mod fp4;
pub mod fp8;
pub mod fp8_block;
pub mod int4;
pub mod mxfp4;
pub mod nvfp4;
mod packed;
mod packing;
mod stored;

pub use packed::{FP8_BLOCK, FormatError, PackedFormat, PackedMatrix, TensorScale};
pub use packing::{MatrixEncoder, PackedBuffer, Packing};
pub use stored::StoredMatrix;
