//! Matrix instructions of PTX as pure functions over register values.
//!
//! Every instruction is parsed once from its modifiers into a specification; the specification then
//! moves or multiplies [`crate::Lanes`]. Positions of elements (fragments, swizzles, descriptors)
//! are closed formulas. Memory is reached only through row buffers or a read function of the
//! caller.
//!
//! Sums of floats are rounded as tensor cores of the module's `.target` do (`rounding.rs`): PTX leaves
//! their order open (PTX ISA 9.0, "mma"), and a published model that agrees with the devices says
//! what it is. NaN results are the canonical NaN.

mod decode;
mod element;
mod packing;
mod product;
mod rounding;
pub mod block_scale;
pub mod mma;
pub mod ldmatrix;
pub mod stmatrix;
pub mod swizzle;
pub mod shared_descriptor;
mod shared_tile;
pub mod wgmma;
pub mod tensor_memory;
pub mod tensor_memory_access;
pub mod tensor_memory_copy;
pub mod instruction_descriptor;
pub mod tcgen05_mma;

#[cfg(test)]
mod golden;

pub use block_scale::{BlockScales, ScaleFormat};
pub use instruction_descriptor::InstructionDescriptor;
pub use ldmatrix::{LdMatrixSpec, movmatrix};
pub use mma::{MmaSpec, Registers};
pub use shared_descriptor::{Major, SharedDescriptor};
pub use stmatrix::StMatrixSpec;
pub use swizzle::Swizzle;
pub use tcgen05_mma::{Tcgen05A, Tcgen05MmaSpec, Tcgen05Operands};
pub use tensor_memory::TensorMemory;
pub use tensor_memory_access::TensorMemoryAccess;
pub use tensor_memory_copy::TensorMemoryCopy;
pub use wgmma::{WgmmaA, WgmmaControl, WgmmaSpec};
