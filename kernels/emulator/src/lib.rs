//! Executes PTX, as NVRTC prints it, on the CPU: the kernels that ship, checked without a GPU.
//!
//! Values follow the PTX ISA (8.7 to 9.4); time and caches are not modelled, and the weak memory model only
//! by the races that it makes of accesses without an order.
//! An instruction that the emulator does not know is an error with its text.

/// The 32 values of a 32-bit register of a warp, one per lane. Narrower values are zero-extended.
pub type Lanes = [u32; 32];
/// The 32 values of a 64-bit register of a warp.
pub type WideLanes = [u64; 32];

pub mod text;
pub mod number;
pub mod matrix;
pub mod transfer;
pub mod case;
mod execute;
mod program;
mod lower;
pub mod machine;
