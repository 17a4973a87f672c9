//! GPUs of NVIDIA: the driver, the kernels of `kernels/`, and everything else that knows cudarc.
//!
//! A binary with this crate builds, starts and passes its tests on a machine without CUDA: libraries are
//! opened at run time, a missing one is an error with its remedy, and no call panics because of it. Kernels
//! are compiled once per architecture and kept as CUBINs in the kernel cache; after [`KernelCache::freeze`]
//! nothing compiles.
//!
//! `backend.rs` implements the operations over `stream.rs`, which launches through a `driver.rs`: libcuda's
//! (`hardware/`), or the emulator's in tests.
//!
//! Knows neither the model nor any other backend.

mod arch;
mod config;
mod cores;
mod probe;
mod source;
mod kernel;
mod weights;
pub mod kernels;
mod ptxas_log;
mod compiler;
mod library;
mod nvml;
mod nvrtc;
mod kernel_cache;
mod driver;
mod exchange_times;
mod hardware;
mod stream;
mod packer;
pub mod tuner;
mod sampler;
mod attention;
mod step;
mod backend;

pub use arch::Arch;
pub use attention::{Addresses, Attention, AttentionCapacity, KvUp, KvUpType};
pub use backend::{CudaBackend, device_needs};
pub use compiler::{CompileError, Compiled, Compiler};
pub use config::Config;
pub use cores::Cores;
pub use driver::{Driver, DriverError, LaunchShape, Transfer};
pub use exchange_times::ExchangeTimes;
pub use hardware::{Hardware, LaunchTime, LaunchTimes, PeerAccess, has_cublaslt};
pub use kernel::{FunctionUsage, Kernel, Limits, Program};
pub use kernel_cache::{Binary, CacheSettings, Counters, KernelCache, KernelError, Obtained, Origin, Volume};
pub use nvml::{DeviceState, Nvml, XidEvents};
pub use nvrtc::Nvrtc;
pub use packer::Packer;
pub use probe::{Device, Installation, ProbeError};
pub use sampler::Sampler;
pub use source::SourceError;
pub use stream::{Buffer, Stream};
pub use weights::{Format, Matrix, PanelFormat, PanelWeight, Panels, Tiled, TiledWeight, WeightParams};
