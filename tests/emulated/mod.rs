//! The kernels that ship, compiled by NVRTC and executed by the emulator below the same launch code as on a device.
//!
//! Without NVRTC these tests print that they were skipped; with REQUIRE_NVRTC in the environment they fail instead. With
//! TEST_GPU in the environment they run on the machine's first GPU in place of the emulator, whatever architecture a test
//! names: `scripts/gpu-check`.

pub(crate) mod attention;
mod exchange;
mod fp4;
mod golden_ptx;
mod launches;
mod model;
mod operations;
mod prompts;
pub(crate) mod ranks;
pub(crate) mod sampler;
mod tiled;
pub(crate) mod tuner;
mod vendor;
pub(crate) mod weights;

use std::env;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use perigee_cuda::{
    Arch, CacheSettings, Compiler, CudaBackend, Driver, DriverError, Hardware, Installation, KernelCache,
    LaunchShape, Nvrtc, Program, Transfer,
};
use perigee_emulator::machine::{Options, Report};
use perigee_ops::Activations;

use perigee_emulated::{Change, Compilations, EmulatedDevice, Entry, Loaded, Recorded};

use crate::kernels::nvrtc;

/// An expression of whichever device there is.
macro_rules! either {
    ($device:expr, $name:ident => $then:expr) => {
        match $device {
            Device::Emulated($name) => $then,
            Device::Gpu($name) => $then,
        }
    };
}

/// The backend on an emulated device; `None` without NVRTC.
pub(crate) fn backend(
    arch: Arch,
    seed: Option<u64>,
    arithmetic: Activations,
) -> Option<CudaBackend<TestDriver>> {
    Some(CudaBackend::new(TestDriver::new(arch, seed)?, arithmetic).unwrap())
}

/// The emulator, or a GPU.
pub(crate) struct TestDriver {
    device: Device,
    /// What happened so far.
    pub(crate) counts: Arc<Mutex<Counts>>,
    /// Whether the last call enqueued a kernel, behind which a device may begin the next launch early.
    behind_kernel: bool,
    /// Calls of work until the device is lost: from then on each of them is an error.
    pub(crate) calls_left: Option<u64>,
    /// What is done to programs before they are loaded.
    pub(crate) plant: Option<fn(&mut Program)>,
}

enum Device {
    Emulated(Box<EmulatedDevice>),
    Gpu(Box<Hardware>),
}

/// A value of one of the two devices.
#[derive(Clone)]
pub(crate) enum Of<E, G> {
    Emulated(E),
    Gpu(G),
}

impl TestDriver {
    /// A device of one architecture; with a seed, blocks and warps run in an order of its own and copies happen at
    /// random moments. `None`: no NVRTC, the test is skipped.
    pub(crate) fn new(arch: Arch, seed: Option<u64>) -> Option<Self> {
        let device = match on_gpu() {
            false => {
                let mut alone = EmulatedDevice::several(1, arch, seed, compilations()?);
                Device::Emulated(Box::new(alone.pop()?))
            }
            true => Device::Gpu(Box::new(gpu())),
        };
        Some(Self { device, counts: Arc::default(), behind_kernel: false, calls_left: None, plant: None })
    }

    /// Devices of one machine, which run side by side; `None` without NVRTC. On a GPU they are streams of it.
    pub(crate) fn several(devices: usize, arch: Arch, seed: Option<u64>) -> Option<Vec<Self>> {
        let on = |device| Self {
            device,
            counts: Arc::default(),
            behind_kernel: false,
            calls_left: None,
            plant: None,
        };
        if on_gpu() {
            return Some((0..devices).map(|_| on(Device::Gpu(Box::new(gpu())))).collect());
        }
        let devices = EmulatedDevice::several(devices, arch, seed, compilations()?);
        Some(devices.into_iter().map(|device| on(Device::Emulated(Box::new(device)))).collect())
    }

    /// Takes memory of the host for what devices share; the emulator's devices reach all memory.
    pub(crate) fn sharing_host_memory(mut self) -> Self {
        if let Device::Gpu(hardware) = self.device {
            self.device = Device::Gpu(Box::new(hardware.sharing_host_memory()));
        }
        self
    }

    /// Changes the options of later launches, of all devices of the machine; false on a GPU.
    pub(crate) fn set_options(&mut self, set: impl FnOnce(&mut Options)) -> bool {
        match &mut self.device {
            Device::Emulated(emulator) => emulator.set_options(set),
            Device::Gpu(_) => return false,
        }
        true
    }

    /// Lets the vendor's products of the emulator be wrong.
    pub(crate) fn change_vendor(&mut self, change: Change) {
        if let Device::Emulated(emulator) = &mut self.device {
            emulator.change_vendor(change);
        }
    }

    /// What the last launch executed; `None` on a GPU.
    pub(crate) fn report(&self) -> Option<Report> {
        match &self.device {
            Device::Emulated(emulator) => emulator.report(),
            Device::Gpu(_) => None,
        }
    }

    /// Counts a call of work. Errors: the device is lost.
    fn call(&mut self, call: &'static str) -> Result<(), DriverError> {
        match &mut self.calls_left {
            None => Ok(()),
            Some(0) => Err(DriverError { call, code: 719, text: "the device is lost".into(), fatal: true }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn count(&self, add: impl Fn(&mut Counts)) {
        add(&mut self.counts.lock().unwrap());
    }

    /// Counts what the emulator has executed since `begun`.
    fn count_execution(&mut self, begun: Instant) {
        if let Device::Emulated(emulator) = &mut self.device {
            let executed = emulator.executed();
            self.count(|counts| {
                counts.lane_instructions += executed;
                counts.execution += begun.elapsed();
            });
        }
    }
}

/// What NVRTC has made of the kernels; `None` where tests are skipped.
pub(crate) fn compilations() -> Option<&'static Arc<Compilations>> {
    static SHARED: OnceLock<Option<Arc<Compilations>>> = OnceLock::new();
    let open = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
        Some(Arc::new(Compilations::open(nvrtc(None)?, &folder).unwrap()))
    };
    SHARED.get_or_init(open).as_ref()
}

fn error(call: &'static str, text: String) -> DriverError {
    DriverError { call, code: 700, text, fatal: true }
}

/// Whether tests run on a GPU.
pub(crate) fn on_gpu() -> bool {
    env::var_os("TEST_GPU").is_some()
}

/// The first GPU. TEST_GPU names the folder of compiled kernels; what is missing there is compiled if there is NVRTC.
fn gpu() -> Hardware {
    // The one that is kept holds the device's context, which would be made again for each test, and the kernels' bytes.
    static KEPT: OnceLock<(Installation, Arc<KernelCache>, Mutex<Hardware>)> = OnceLock::new();
    let (installation, cache, _) = KEPT.get_or_init(|| {
        let compiler = Nvrtc::open(None, None).map(|nvrtc| Arc::new(nvrtc) as Arc<dyn Compiler>);
        let dir = env::var_os("TEST_GPU").map(PathBuf::from);
        let cache =
            Arc::new(KernelCache::open(&CacheSettings { dir, max_bytes: 1 << 30, create: true }, compiler));
        let installation = Installation::probe().unwrap();
        let kept = Hardware::open(&installation.devices[0], cache.clone()).unwrap();
        (installation, cache, Mutex::new(kept))
    });
    let hardware = Hardware::open(&installation.devices[0], cache.clone()).unwrap();
    hardware.dependent(env::var_os("TEST_GPU_DEPENDENT").is_some())
}

impl Driver for TestDriver {
    type Module = Of<Arc<Loaded>, <Hardware as Driver>::Module>;
    type Function = Of<Entry, <Hardware as Driver>::Function>;
    type Graph = Of<Recorded, <Hardware as Driver>::Graph>;

    fn name(&self) -> &'static str {
        either!(&self.device, device => device.name())
    }

    fn arch(&self) -> Arch {
        either!(&self.device, device => device.arch())
    }

    fn multiprocessors(&self) -> u32 {
        either!(&self.device, device => device.multiprocessors())
    }

    fn free_bytes(&mut self) -> Result<u64, DriverError> {
        either!(&mut self.device, device => device.free_bytes())
    }

    fn arena_bytes(&self) -> usize {
        either!(&self.device, device => device.arena_bytes())
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, DriverError> {
        self.behind_kernel = false;
        self.count(|counts| {
            counts.allocations += 1;
            counts.allocated_bytes += bytes as u64;
        });
        either!(&mut self.device, device => device.allocate(bytes))
    }

    fn share(&mut self, content: &[u8]) -> Result<u64, DriverError> {
        self.behind_kernel = false;
        self.count(|counts| {
            counts.allocations += 1;
            counts.allocated_bytes += content.len() as u64;
        });
        either!(&mut self.device, device => device.share(content))
    }

    fn zero(&mut self, address: u64, bytes: usize) -> Result<(), DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.zero(address, bytes))
    }

    fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.behind_kernel = false;
        self.call("cuMemcpyHtoDAsync_v2")?;
        self.count(|counts| counts.uploads += 1);
        either!(&mut self.device, device => device.upload(to, bytes))
    }

    fn download(&mut self, from: u64, bytes: usize) -> Result<Transfer, DriverError> {
        self.behind_kernel = false;
        self.call("cuMemcpyDtoHAsync_v2")?;
        self.count(|counts| counts.downloads += 1);
        either!(&mut self.device, device => device.download(from, bytes))
    }

    fn finish(&mut self, transfer: Transfer, into: &mut Vec<u8>) -> Result<(), DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.finish(transfer, into))
    }

    fn load(&mut self, program: &Program) -> Result<Self::Module, DriverError> {
        self.behind_kernel = false;
        self.count(|counts| counts.loads += 1);
        let mut program = program.clone();
        if let Some(plant) = self.plant {
            plant(&mut program);
        }
        let program = &program;
        match &mut self.device {
            Device::Emulated(device) => device.load(program).map(Of::Emulated),
            Device::Gpu(device) => device.load(program).map(Of::Gpu),
        }
    }

    fn function(
        &mut self,
        module: &Self::Module,
        name: &str,
        shared: u32,
    ) -> Result<Self::Function, DriverError> {
        match (&mut self.device, module) {
            (Device::Emulated(device), Of::Emulated(module)) => {
                device.function(module, name, shared).map(Of::Emulated)
            }
            (Device::Gpu(device), Of::Gpu(module)) => device.function(module, name, shared).map(Of::Gpu),
            _ => Err(error("cuModuleGetFunction", "a module of another device".into())),
        }
    }

    fn launch(
        &mut self,
        function: &Self::Function,
        shape: &LaunchShape,
        parameters: &[u8],
    ) -> Result<(), DriverError> {
        self.call("cuLaunchKernelEx")?;
        let early = mem::replace(&mut self.behind_kernel, true);
        self.count(|counts| {
            counts.launches += 1;
            counts.early += u64::from(early);
            counts.blocks += shape.grid.iter().map(|blocks| u64::from(*blocks)).product::<u64>();
        });
        match (&mut self.device, function) {
            (Device::Emulated(device), Of::Emulated(function)) => {
                let begun = Instant::now();
                device.launch(function, shape, parameters)?;
                self.count_execution(begun);
                Ok(())
            }
            (Device::Gpu(device), Of::Gpu(function)) => device.launch(function, shape, parameters),
            _ => Err(error("cuLaunchKernelEx", "a function of another device".into())),
        }
    }

    fn resident_clusters(
        &mut self,
        function: &Self::Function,
        shape: &LaunchShape,
        blocks: u32,
    ) -> Result<u32, DriverError> {
        match (&mut self.device, function) {
            (Device::Gpu(device), Of::Gpu(function)) => device.resident_clusters(function, shape, blocks),
            (device, _) => Ok((either!(device, device => device.multiprocessors()) / blocks).max(1)),
        }
    }

    fn order_next_launch(&mut self) {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.order_next_launch())
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.begin_capture())
    }

    fn end_capture(&mut self) -> Result<Self::Graph, DriverError> {
        self.behind_kernel = false;
        match &mut self.device {
            Device::Emulated(device) => {
                let graph = device.end_capture()?;
                let mut counts = self.counts.lock().unwrap();
                counts.recorded = counts.recorded.max(graph.num_launches() as u64);
                Ok(Of::Emulated(graph))
            }
            Device::Gpu(device) => device.end_capture().map(Of::Gpu),
        }
    }

    fn replay(&mut self, graph: &Self::Graph) -> Result<(), DriverError> {
        self.behind_kernel = false;
        self.call("cuGraphLaunch")?;
        self.count(|counts| counts.replays += 1);
        match (&mut self.device, graph) {
            (Device::Emulated(device), Of::Emulated(graph)) => {
                let begun = Instant::now();
                device.replay(graph)?;
                self.count_execution(begun);
                Ok(())
            }
            (Device::Gpu(device), Of::Gpu(graph)) => device.replay(graph),
            _ => Err(error("cuGraphLaunch", "a graph of another device".into())),
        }
    }

    fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.copy(to, from, bytes))
    }

    fn begin_timing(&mut self) -> Result<(), DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.begin_timing())
    }

    fn end_timing(&mut self) -> Result<Duration, DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.end_timing())
    }

    fn open_vendor(&mut self) -> Result<bool, DriverError> {
        either!(&mut self.device, device => device.open_vendor())
    }

    fn vendor_product(&mut self, shape: [usize; 3], at: [u64; 3], add: bool) -> Result<(), DriverError> {
        self.behind_kernel = false;
        self.count(|counts| counts.vendor_products += 1);
        either!(&mut self.device, device => device.vendor_product(shape, at, add))
    }
}

/// Number of calls of a driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) uploads: u64,
    pub(crate) downloads: u64,
    pub(crate) launches: u64,
    /// Blocks of all launches.
    pub(crate) blocks: u64,
    pub(crate) replays: u64,
    /// Launches directly behind another one, which a device may begin before that one has ended.
    pub(crate) early: u64,
    /// Launches of the longest recorded graph.
    pub(crate) recorded: u64,
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) loads: u64,
    pub(crate) vendor_products: u64,
    /// Instructions of lanes that the emulator executed, and the time that this took.
    pub(crate) lane_instructions: u64,
    pub(crate) execution: Duration,
}
