//! The fast CPU backend: packed weights, vector kernels chosen at run time, its own threads.
//!
//! Contract, bit for bit: an output row depends on its input row and the cache alone, never on how many rows
//! share the batch, on their order, on the number of threads or on how work was cut. It holds because every
//! output element is one accumulation in a fixed order, whatever tile computed it (`gemm`), because attention
//! walks key blocks at fixed positions (`mla`), and because one worker adds up all experts of an output in
//! order of k (`moe`). Different instruction sets may differ in the last bits.
//!
//! Knows neither the model nor any other backend.

mod simd;
mod backend;
mod bandwidth;
mod buffer;
mod elementwise;
mod gemm;
mod layout;
mod matrix;
mod mla;
mod moe;
mod packed_panels;
mod row_steps;
mod rows;
mod storage;
mod transpose;
#[cfg(test)]
pub(crate) mod tests;

pub use backend::{CpuBackend, CpuOptions};
pub use bandwidth::read_bandwidth;
pub use buffer::{Buffer, Cache, Routing};
pub use matrix::Panels;
pub use mla::KvUp;
pub use moe::{Experts, Router};
pub use simd::Isa;
