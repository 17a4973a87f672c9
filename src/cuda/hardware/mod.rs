//! A GPU through libcuda: the [`Driver`] of machines that have one.
//!
//! One context, one stream. Bytes from and to the host pass through pinned memory (`staging.rs`). Objects of the
//! driver are destroyed on drop, the context last (`context.rs`). Addresses and parameter sizes are checked here,
//! since the driver would read or write whatever they name.
//!
//! `tests/hardware` runs this module against a made-up libcuda.

mod context;
mod cublaslt;
mod functions;
mod launch_times;
mod peer;
mod staging;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{
    CUevent, CUfunction, CUgraphExec, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUmodule, CUstream,
};

use super::driver::allocate_with;
use super::{Arch, Device, Driver, DriverError, KernelCache, LaunchShape, Program, Transfer};
use context::{Context, Owned, Pinned};
pub use cublaslt::has_cublaslt;
use cublaslt::{CublasLt, WORKSPACE_BYTES};
use functions::{CAPTURE_UNSUPPORTED, Functions, INVALID_IMAGE, INVALID_VALUE, refusal};
pub use launch_times::{LaunchTime, LaunchTimes};
use launch_times::{Marks, Stopwatch};
pub use peer::PeerAccess;
use perigee_numbers::threads::UploadMeter;
use staging::{Downloads, UploadRing};

/// Size of the allocations that small buffers are cut from.
const ARENA_BYTES: usize = 256 << 20;
/// Shared memory of a block, static and dynamic, that a kernel has without asking.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// A GPU.
pub struct Hardware {
    cache: Arc<KernelCache>,
    arch: Arch,
    multiprocessors: u32,
    capturing: bool,
    /// Whether launches are dependent, and whether the last call enqueued a kernel for one to depend on.
    dependent: bool,
    behind_kernel: Cell<bool>,
    /// See [`Hardware::sharing`].
    shared_memory_percent: Option<u8>,
    /// Whether what other devices reach lies in the host's memory.
    shares_host_memory: bool,
    /// Host memory that other devices reach.
    shared: Vec<Pinned>,
    /// By address.
    allocations: BTreeMap<u64, Allocation>,
    uploads: UploadRing,
    downloads: Downloads,
    /// The vendor's products, once they were asked for.
    vendor: Option<Box<CublasLt>>,
    /// Measures every launch; `None`: nobody asked for it.
    stopwatch: Option<Stopwatch>,
    /// Beginning and end of what is timed.
    timing: Option<[Owned<CUevent>; 2]>,
    stream: Owned<CUstream>,
    context: Arc<Context>,
    meter: Arc<UploadMeter>,
}

struct Allocation {
    bytes: usize,
    _memory: Owned<u64>,
}

/// A loaded program.
pub struct Module {
    /// Loaded until the context is released.
    handle: CUmodule,
    /// Whether its functions may use local memory.
    local_memory: bool,
}

/// A kernel of a loaded program.
#[derive(Clone)]
pub struct Function {
    handle: CUfunction,
    name: Arc<str>,
    /// Size of its parameter block.
    parameter_bytes: usize,
}

/// Recorded launches, on the device.
pub struct Graph {
    executable: Owned<CUgraphExec>,
    /// Of its launches, if they are measured.
    marks: Marks,
}

// SAFETY: the handle is an address that only libcuda follows, from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Hardware {
    /// Opens a device of [`Installation::probe`](super::Installation::probe); kernels come from `cache`. Takes 64 MiB of
    /// pinned host memory.
    pub fn open(device: &Device, cache: Arc<KernelCache>) -> Result<Self, DriverError> {
        const MULTIPROCESSOR_COUNT: c_uint = 16;
        let arch = device.arch().ok_or_else(|| {
            let (major, minor) = device.capability;
            let text =
                format!("there are no kernels for {} (compute capability {major}.{minor})", device.name);
            DriverError { call: "cuDeviceGet", code: 0, text, fatal: true }
        })?;
        let context = Context::open(device.ordinal)?;
        Ok(Self {
            cache,
            arch,
            multiprocessors: context.attribute(MULTIPROCESSOR_COUNT)?,
            capturing: false,
            dependent: false,
            behind_kernel: Cell::new(false),
            shared_memory_percent: None,
            shares_host_memory: false,
            shared: Vec::new(),
            allocations: BTreeMap::new(),
            uploads: UploadRing::new(&context)?,
            downloads: Downloads::new(),
            vendor: None,
            stopwatch: None,
            timing: None,
            stream: context.stream()?,
            context,
            meter: Arc::default(),
        })
    }

    /// Takes memory of the host for what other devices read and write, where these do not reach one another's.
    pub fn sharing_host_memory(mut self) -> Self {
        self.shares_host_memory = true;
        self
    }

    /// Reports uploads to `meter` when their bytes are in pinned memory.
    pub fn reporting(mut self, meter: Arc<UploadMeter>) -> Self {
        self.meter = meter;
        self
    }

    /// Adds the time of every launch to `times`. A step takes longer: there are events between its kernels, and the host waits
    /// for each recorded one.
    pub fn measuring(mut self, times: Arc<LaunchTimes>) -> Self {
        self.stopwatch = Some(Stopwatch::new(times));
        self
    }

    /// Lets a kernel that follows another one begin before that one has ended, where the device can: its blocks are placed
    /// and wait in `begin_kernel` (`kernels/include/types.cuh`). Programmatic dependent launch; compute capability 9.0.
    pub fn dependent(mut self, on: bool) -> Self {
        self.dependent = on && self.arch.has_dependent_launch();
        self
    }

    /// Percent of a multiprocessor's first-level memory that functions loaded from now on prefer as shared memory; `None`: the driver's
    /// choice. The driver may divide the memory anew, and wait for it, between kernels with other preferences (CUDA Driver API,
    /// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`).
    pub fn sharing(mut self, percent: Option<u8>) -> Self {
        self.shared_memory_percent = percent;
        self
    }

    /// Ends waits that take longer with a fatal error: a kernel that never ends, such as one that is tried for the first time on this
    /// device, cannot be stopped but by the end of the process.
    pub fn patient_for(self, limit: Duration) -> Self {
        self.context.patience.get_or_init(|| limit);
        self
    }

    /// Makes the context current for a call that is neither recorded nor part of a recording. The driver would give up
    /// the recording on most of them.
    fn enter(&self, call: &'static str) -> Result<&Functions, DriverError> {
        if self.capturing {
            return Err(refusal(call, CAPTURE_UNSUPPORTED, "the stream is being captured"));
        }
        self.behind_kernel.set(false);
        self.context.make_current()?;
        Ok(&self.context.functions)
    }

    /// Errors: bytes outside of one allocation.
    fn check_range(&self, call: &'static str, address: u64, bytes: usize) -> Result<(), DriverError> {
        check_range(&self.allocations, call, address, bytes)
    }
}

/// Errors: bytes outside of one allocation.
fn check_range(
    allocations: &BTreeMap<u64, Allocation>,
    call: &'static str,
    address: u64,
    bytes: usize,
) -> Result<(), DriverError> {
    let inside = allocations.range(..=address).next_back().is_some_and(|(start, allocation)| {
        let at = address - start;
        at.checked_add(bytes as u64).is_some_and(|end| end <= allocation.bytes as u64)
    });
    if inside {
        return Ok(());
    }
    Err(refusal(call, INVALID_VALUE, format!("{bytes} bytes at {address:#x} are not in one allocation")))
}

/// A launch attribute whose value is still to be set.
fn attribute(id: CUlaunchAttributeID) -> CUlaunchAttribute {
    CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad: [0; 64] } }
}

impl Hardware {
    /// Configuration of a launch of this shape on the stream, with one attribute at most.
    fn config(&self, shape: &LaunchShape, attribute: Option<*mut CUlaunchAttribute>) -> CUlaunchConfig {
        CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: self.stream.handle(),
            attrs: attribute.unwrap_or(null_mut()),
            numAttrs: u32::from(attribute.is_some()),
        }
    }
}

impl Driver for Hardware {
    type Module = Module;
    type Function = Function;
    type Graph = Graph;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn arch(&self) -> Arch {
        self.arch
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    fn free_bytes(&mut self) -> Result<u64, DriverError> {
        let functions = self.enter("cuMemGetInfo_v2")?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: outputs are writable.
        unsafe { functions.cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok(free as u64)
    }

    fn arena_bytes(&self) -> usize {
        ARENA_BYTES
    }

    /// `cuMemAlloc` aligns to 256 bytes and more (CUDA C++ Programming Guide, "Device Memory Accesses").
    fn allocate(&mut self, bytes: usize) -> Result<u64, DriverError> {
        self.enter("cuMemAlloc_v2")?;
        // SAFETY: the output is writable.
        let create = |f: &Functions, out| unsafe { f.cuMemAlloc_v2(out, bytes) };
        let memory = self.context.own(0, create, Functions::cuMemFree_v2)?;
        let address = memory.handle();
        self.allocations.insert(address, Allocation { bytes, _memory: memory });
        Ok(address)
    }

    fn share(&mut self, content: &[u8]) -> Result<u64, DriverError> {
        if !self.shares_host_memory {
            return allocate_with(self, content);
        }
        self.enter("cuMemHostAlloc")?;
        let memory = self.context.pinned(content.len().max(1))?;
        // SAFETY: the memory has the bytes, and no device knows its address yet.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), memory.pointer(), content.len()) };
        // One address on the host and on all devices (CUDA C++ Programming Guide, "Unified Virtual Address Space").
        let address = memory.pointer() as u64;
        self.shared.push(memory);
        Ok(address)
    }

    fn zero(&mut self, address: u64, bytes: usize) -> Result<(), DriverError> {
        let functions = self.enter("cuMemsetD8Async")?;
        if bytes == 0 {
            return Ok(());
        }
        self.check_range("cuMemsetD8Async", address, bytes)?;
        // SAFETY: the range is in an allocation.
        unsafe { functions.cuMemsetD8Async(address, 0, bytes, self.stream.handle()) }
    }

    fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.enter("cuMemcpyHtoDAsync_v2")?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.check_range("cuMemcpyHtoDAsync_v2", to, bytes.len())?;
        self.uploads.upload(&self.context, &self.stream, to, bytes, &self.meter)
    }

    fn download(&mut self, from: u64, bytes: usize) -> Result<Transfer, DriverError> {
        self.enter("cuMemcpyDtoHAsync_v2")?;
        if bytes > 0 {
            self.check_range("cuMemcpyDtoHAsync_v2", from, bytes)?;
        }
        self.downloads.start(&self.context, &self.stream, from, bytes)
    }

    fn finish(&mut self, transfer: Transfer, into: &mut Vec<u8>) -> Result<(), DriverError> {
        self.enter("cuEventSynchronize")?;
        if let Some(stopwatch) = &mut self.stopwatch {
            stopwatch.add(&self.stream)?;
        }
        self.downloads.finish(transfer, into)
    }

    fn load(&mut self, program: &Program) -> Result<Module, DriverError> {
        self.enter("cuModuleLoadData")?;
        let binary = self.cache.get(program);
        let binary = binary.map_err(|error| refusal("nvrtcCompileProgram", 0, error.to_string()))?;
        // What is no ELF file the driver takes for PTX, and reads until a zero byte that is not there.
        if !binary.cubin.starts_with(b"\x7fELF") {
            let text = format!("the compiled {} is no CUBIN", program.kernel);
            return Err(refusal("cuModuleLoadData", INVALID_IMAGE, text));
        }
        let handle = self.context.load(&binary.cubin)?;
        Ok(Module { handle, local_memory: program.limits.local_memory })
    }

    fn function(&mut self, module: &Module, name: &str, shared_bytes: u32) -> Result<Function, DriverError> {
        const SHARED_SIZE_BYTES: c_uint = 1;
        const LOCAL_SIZE_BYTES: c_uint = 3;
        const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_uint = 8;
        const PREFERRED_SHARED_MEMORY_CARVEOUT: c_uint = 9;
        let functions = self.enter("cuModuleGetFunction")?;
        let name_c = CString::new(name)
            .map_err(|error| refusal("cuModuleGetFunction", INVALID_VALUE, error.to_string()))?;
        let mut handle = null_mut();
        // SAFETY: the module stays loaded, and the name is a C string.
        unsafe { functions.cuModuleGetFunction(&mut handle, module.handle, name_c.as_ptr()) }
            .map_err(|error| DriverError { text: format!("{name}: {}", error.text), ..error })?;
        // By default code is loaded at the first launch, which may be one that is recorded.
        // SAFETY: the function is the module's.
        unsafe { functions.cuFuncLoad(handle) }?;
        let attribute = |attribute: c_uint| {
            let mut value = 0;
            // SAFETY: as above, and the value is writable.
            unsafe { functions.cuFuncGetAttribute(&mut value, attribute, handle) }?;
            Ok(value.max(0) as u32)
        };
        let local = attribute(LOCAL_SIZE_BYTES)?;
        if local > 0 && !module.local_memory {
            let text = format!("{name} uses {local} bytes of local memory");
            return Err(refusal("cuFuncGetAttribute", INVALID_IMAGE, text));
        }
        if attribute(SHARED_SIZE_BYTES)?.saturating_add(shared_bytes) > DEFAULT_SHARED_BYTES {
            let value = i32::try_from(shared_bytes).unwrap_or(i32::MAX);
            // SAFETY: the function is the module's.
            unsafe { functions.cuFuncSetAttribute(handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, value) }
                .map_err(|error| DriverError { text: format!("{name}: {}", error.text), ..error })?;
        }
        if let Some(percent) = self.shared_memory_percent {
            // SAFETY: as above.
            unsafe {
                functions.cuFuncSetAttribute(handle, PREFERRED_SHARED_MEMORY_CARVEOUT, percent.into())
            }?;
        }
        let (mut offset, mut parameter_bytes) = (0, 0);
        // SAFETY: as above, and outputs are writable.
        match unsafe { functions.cuFuncGetParamInfo(handle, 0, &mut offset, &mut parameter_bytes) } {
            // A kernel without parameters.
            Err(error) if error.code == INVALID_VALUE => parameter_bytes = 0,
            result => result?,
        }
        Ok(Function { handle, name: name.into(), parameter_bytes })
    }

    fn launch(
        &mut self,
        function: &Function,
        shape: &LaunchShape,
        parameters: &[u8],
    ) -> Result<(), DriverError> {
        self.context.make_current()?;
        if parameters.len() != function.parameter_bytes {
            let (given, wanted) = (parameters.len(), function.parameter_bytes);
            let text = format!("{given} bytes of parameters, the kernel has {wanted}");
            return Err(refusal("cuLaunchKernelEx", INVALID_VALUE, text));
        }
        let mut attribute =
            attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let is_behind = self.behind_kernel.replace(true);
        if let Some(stopwatch) = &mut self.stopwatch {
            stopwatch.before(&self.context, &self.stream, self.capturing, !is_behind)?;
        }
        let is_dependent = is_behind && self.dependent;
        let config = self.config(shape, is_dependent.then_some(&raw mut attribute));
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END of cuda.h.
        const BUFFER_POINTER: *mut c_void = without_provenance_mut(1);
        const BUFFER_SIZE: *mut c_void = without_provenance_mut(2);
        const END: *mut c_void = null_mut();
        let mut bytes = parameters.len();
        let block = parameters.as_ptr().cast_mut().cast();
        let mut extra = [BUFFER_POINTER, block, BUFFER_SIZE, (&raw mut bytes).cast(), END];
        // SAFETY: the function's module stays loaded, and the attribute until the call returns. The parameter block has the kernel's size; the driver copies it
        // before the call returns, also into a recording, and does not write to it.
        unsafe {
            let functions = &self.context.functions;
            functions.cuLaunchKernelEx(&config, function.handle, null_mut(), extra.as_mut_ptr())
        }?;
        match &mut self.stopwatch {
            Some(stopwatch) => stopwatch.behind(&self.context, &self.stream, self.capturing, &function.name),
            None => Ok(()),
        }
    }

    fn resident_clusters(
        &mut self,
        function: &Function,
        shape: &LaunchShape,
        blocks: u32,
    ) -> Result<u32, DriverError> {
        let functions = self.enter("cuOccupancyMaxActiveClusters")?;
        let mut attribute = attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        attribute.value.clusterDim.x = blocks;
        attribute.value.clusterDim.y = 1;
        attribute.value.clusterDim.z = 1;
        let config = self.config(shape, Some(&raw mut attribute));
        let mut clusters = 0;
        // SAFETY: the function's module stays loaded, the attribute until the call returns, and the output is writable.
        unsafe { functions.cuOccupancyMaxActiveClusters(&mut clusters, function.handle, &config) }?;
        Ok(u32::try_from(clusters).unwrap_or_default().max(1))
    }

    fn order_next_launch(&mut self) {
        self.behind_kernel.set(false);
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        // Calls of other threads, such as an allocation on another device, do not end the recording.
        const THREAD_LOCAL: c_uint = 1;
        self.enter("cuStreamBeginCapture_v2")?;
        if let Some(stopwatch) = &mut self.stopwatch {
            stopwatch.add(&self.stream)?;
        }
        // SAFETY: the stream is alive.
        unsafe { self.context.functions.cuStreamBeginCapture_v2(self.stream.handle(), THREAD_LOCAL) }?;
        self.capturing = true;
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        if !self.capturing {
            return Err(refusal("cuStreamEndCapture", INVALID_VALUE, "nothing is being captured"));
        }
        // Also after an error: the driver gives a failed recording up.
        self.capturing = false;
        self.behind_kernel.set(false);
        let marks = self.stopwatch.as_mut().map(Stopwatch::take_recording).unwrap_or_default();
        // SAFETY: the output is writable; the stream is alive and being captured.
        let end = |f: &Functions, out| unsafe { f.cuStreamEndCapture(self.stream.handle(), out) };
        let graph = self.context.own(null_mut(), end, Functions::cuGraphDestroy)?;
        // SAFETY: the output is writable, and the graph is alive until after the call.
        let create = |f: &Functions, out| unsafe { f.cuGraphInstantiateWithFlags(out, graph.handle(), 0) };
        let executable = self.context.own(null_mut(), create, Functions::cuGraphExecDestroy)?;
        // Now, not at the first replay.
        // SAFETY: both are alive.
        unsafe { self.context.functions.cuGraphUpload(executable.handle(), self.stream.handle()) }?;
        Ok(Graph { executable, marks })
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), DriverError> {
        self.enter("cuGraphLaunch")?;
        if let Some(stopwatch) = &mut self.stopwatch {
            stopwatch.add(&self.stream)?;
        }
        let functions = &self.context.functions;
        // SAFETY: both are alive, and so are the modules of the recorded kernels.
        unsafe { functions.cuGraphLaunch(graph.executable.handle(), self.stream.handle()) }?;
        match &mut self.stopwatch {
            Some(stopwatch) => stopwatch.add_replay(&self.stream, &graph.marks),
            None => Ok(()),
        }
    }

    fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        const CALL: &str = "cuMemcpyDtoDAsync_v2";
        let functions = self.enter(CALL)?;
        if bytes == 0 {
            return Ok(());
        }
        self.check_range(CALL, to, bytes)?;
        self.check_range(CALL, from, bytes)?;
        // SAFETY: both ranges are in allocations.
        unsafe { functions.cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.handle()) }
    }

    fn begin_timing(&mut self) -> Result<(), DriverError> {
        self.enter("cuEventRecord")?;
        let [begin, _] = match &mut self.timing {
            Some(events) => events,
            None => self.timing.insert([self.context.timed_event()?, self.context.timed_event()?]),
        };
        begin.record(&self.stream)
    }

    fn end_timing(&mut self) -> Result<Duration, DriverError> {
        const CALL: &str = "cuEventElapsedTime";
        self.enter(CALL)?;
        let Some([begin, end]) = &self.timing else {
            return Err(refusal(CALL, INVALID_VALUE, "nothing is being timed"));
        };
        end.record(&self.stream)?;
        end.wait()?;
        let seconds = f64::from(end.milliseconds_since(begin)?) / 1e3;
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }

    fn open_vendor(&mut self) -> Result<bool, DriverError> {
        self.enter("cublasLtCreate")?;
        if self.vendor.is_none()
            && let Some(mut vendor) = CublasLt::open()?
        {
            vendor.workspace = self.allocate(WORKSPACE_BYTES)?;
            self.vendor = Some(Box::new(vendor));
        }
        Ok(self.vendor.is_some())
    }

    fn vendor_product(&mut self, shape: [usize; 3], at: [u64; 3], add: bool) -> Result<(), DriverError> {
        const CALL: &str = "cublasLtMatmul";
        self.context.make_current()?;
        let is_behind = self.behind_kernel.replace(false);
        let Some(vendor) = &mut self.vendor else {
            return Err(refusal(CALL, INVALID_VALUE, "the library is not open"));
        };
        let [m, n, k] = shape;
        for (address, bytes) in at.into_iter().zip([2 * n * k, 2 * m * k, 4 * m * n]) {
            check_range(&self.allocations, CALL, address, bytes)?;
        }
        if let Some(stopwatch) = &mut self.stopwatch {
            stopwatch.before(&self.context, &self.stream, self.capturing, !is_behind)?;
        }
        vendor.product(shape, at, add, self.stream.handle().cast())?;
        match &mut self.stopwatch {
            Some(stopwatch) => {
                stopwatch.behind(&self.context, &self.stream, self.capturing, &"cuBLASLt".into())
            }
            None => Ok(()),
        }
    }
}

impl Drop for Hardware {
    /// Waits for the stream: what is dropped after this is memory that copies and kernels use. Fails only where the
    /// context is unusable and nothing runs.
    fn drop(&mut self) {
        if self.capturing {
            let _ = self.end_capture();
        }
        if context::is_abandoned() {
            return;
        }
        let _ = self.context.make_current();
        // SAFETY: the stream is alive.
        let _ = unsafe { self.context.functions.cuStreamSynchronize(self.stream.handle()) };
    }
}
