//! The calls that the backend makes to a GPU. Thin enough for an emulator to stand in for the device below the same
//! launch code.

use std::time::Duration;

use super::{Arch, Program};
use perigee_ops::OpError;

/// Bytes to which [`Driver::allocate`] aligns.
pub(super) const ALIGNMENT: u64 = 256;

/// One device with one stream: work is done in the order of the calls. Calls return before their work is done, except
/// [`Driver::finish`], [`Driver::end_timing`] and the calls of the boot (`allocate`, `load`, `function`, `end_capture`).
pub trait Driver: Send + 'static {
    /// A loaded program.
    type Module: Send + 'static;
    /// A kernel of a loaded program.
    type Function: Clone + Send + 'static;
    /// Recorded launches.
    type Graph: Send + 'static;

    /// Name of the backend in logs and errors.
    fn name(&self) -> &'static str;
    /// Target of the programs.
    fn arch(&self) -> Arch;
    /// Number of multiprocessors.
    fn multiprocessors(&self) -> u32;
    /// Bytes of device memory that [`Driver::allocate`] could still give out.
    fn free_bytes(&mut self) -> Result<u64, DriverError>;
    /// Bytes that the backend allocates at once and divides itself; 0: every buffer is its own allocation.
    fn arena_bytes(&self) -> usize;

    /// Device memory without content, at a multiple of 256. Freed when the driver is dropped.
    fn allocate(&mut self, bytes: usize) -> Result<u64, DriverError>;
    /// Memory with this content that kernels of other devices reach too, at a multiple of 256; the content is there when the call
    /// returns.
    fn share(&mut self, content: &[u8]) -> Result<u64, DriverError> {
        allocate_with(self, content)
    }
    /// Sets bytes of device memory to 0.
    fn zero(&mut self, address: u64, bytes: usize) -> Result<(), DriverError>;
    /// Copies bytes to the device; `bytes` may change when the call has returned.
    fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError>;
    /// Starts a copy from the device to the host. Waits for downloads before it where they take much memory.
    fn download(&mut self, from: u64, bytes: usize) -> Result<Transfer, DriverError>;
    /// Waits for a download, not for later work, and appends its bytes. Downloads are finished in their order; a later
    /// one drops those before it.
    fn finish(&mut self, transfer: Transfer, into: &mut Vec<u8>) -> Result<(), DriverError>;

    /// Loads a program, compiled or from the kernel cache.
    fn load(&mut self, program: &Program) -> Result<Self::Module, DriverError>;
    /// A kernel by name, for launches with up to `shared_bytes` of dynamic shared memory.
    fn function(
        &mut self,
        module: &Self::Module,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Self::Function, DriverError>;
    /// Enqueues a kernel, or records it between [`Driver::begin_capture`] and [`Driver::end_capture`]. `parameters` is
    /// its parameter block.
    fn launch(
        &mut self,
        function: &Self::Function,
        shape: &LaunchShape,
        parameters: &[u8],
    ) -> Result<(), DriverError>;

    /// Clusters of so many blocks in x that run at once, of launches of this shape; at least 1. Here one of as many multiprocessors.
    fn resident_clusters(
        &mut self,
        _function: &Self::Function,
        _shape: &LaunchShape,
        blocks: u32,
    ) -> Result<u32, DriverError> {
        Ok((self.multiprocessors() / blocks).max(1))
    }

    /// The next launch begins when everything in front of it has ended, also where launches may begin early. Called behind kernels that
    /// write what others read in front of their wait: weights (`begin_kernel` of `kernels/include/types.cuh`).
    fn order_next_launch(&mut self);

    /// From now on launches are recorded; other calls are errors.
    fn begin_capture(&mut self) -> Result<(), DriverError>;
    /// Ends a recording. Its launches have not run.
    fn end_capture(&mut self) -> Result<Self::Graph, DriverError>;
    /// Enqueues the launches of a graph in their order.
    fn replay(&mut self, graph: &Self::Graph) -> Result<(), DriverError>;

    /// Copies bytes of device memory to other device memory.
    fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError>;
    /// Marks the beginning of work to be timed: what is enqueued from here to [`Driver::end_timing`].
    fn begin_timing(&mut self) -> Result<(), DriverError>;
    /// Waits for the work since [`Driver::begin_timing`], and returns how long the device took over it.
    fn end_timing(&mut self) -> Result<Duration, DriverError>;

    /// Opens the vendor's library of products and takes its workspace; `false`: it is not installed. Not between
    /// [`Driver::begin_capture`] and [`Driver::end_capture`].
    fn open_vendor(&mut self) -> Result<bool, DriverError>;
    /// Enqueues `y [m, n] f32 = x [m, k] bf16 * (w [n, k] bf16)^T` by the vendor's library, which is open, or adds it to y; `shape` is
    /// `[m, n, k]`, `at` the addresses `[w, x, y]`. The first product of a shape is not recorded.
    fn vendor_product(&mut self, shape: [usize; 3], at: [u64; 3], add: bool) -> Result<(), DriverError>;
}

/// Device memory with this content, which is there when the call returns.
pub(super) fn allocate_with<D: Driver + ?Sized>(driver: &mut D, content: &[u8]) -> Result<u64, DriverError> {
    let address = driver.allocate(content.len().max(1))?;
    driver.upload(address, content)?;
    let transfer = driver.download(address, 1)?;
    driver.finish(transfer, &mut Vec::new())?;
    Ok(address)
}

/// Identifies a [`Driver::download`] that is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer(pub u64);

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block, in x.
    pub threads: u32,
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with code {code}: {text}")]
pub struct DriverError {
    /// Name of the call.
    pub call: &'static str,
    /// `CUresult`.
    pub code: i32,
    /// Text of the driver.
    pub text: String,
    /// Whether no later call on the device can succeed.
    pub fatal: bool,
}

impl From<DriverError> for OpError {
    fn from(error: DriverError) -> Self {
        Self::Device { op: error.call, code: error.code, text: error.text, fatal: error.fatal }
    }
}
