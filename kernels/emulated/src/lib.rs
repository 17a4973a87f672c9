//! Emulated devices: what the GPU backend drives where there is no GPU.
//!
//! NVRTC compiles the kernels that ship, and the emulator executes them (`device.rs`), several devices side by side if there
//! are several. Tests run the backend on them; `emulated-serve` is the whole server on them, for trying out what several GPUs
//! do, thousands of times slower.

#![forbid(unsafe_code)]

mod compilations;
mod device;

pub use compilations::{Code, Compilations};
pub use device::{Change, EmulatedDevice, Entry, Failure, Fault, Loaded, Recorded};
