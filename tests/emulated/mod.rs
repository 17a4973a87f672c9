//! The kernels that ship, compiled by NVRTC and executed by the emulator below the same launch code as on a device.
//!
//! Without NVRTC these tests print that they were skipped; with REQUIRE_NVRTC in the environment they fail instead. With
//! TEST_GPU in the environment they run on the machine's first GPU in place of the emulator, whatever architecture a test
//! names: `scripts/gpu-check`.

mod attention;
mod golden_ptx;
mod launches;
mod model;
mod operations;
mod sampler;
mod tiled;
pub(crate) mod tuner;
mod vendor;
mod weights;

use std::collections::VecDeque;
use std::env;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use perigee_cuda::{
    Arch, CacheSettings, Compiler, CudaBackend, Driver, DriverError, Hardware, Installation, KernelCache,
    LaunchShape, Nvrtc, Program, Transfer,
};
use perigee_emulator::case;
use perigee_emulator::machine::{Asynchrony, Kernel, Machine, Module, Options, Report};
use perigee_ops::Activations;

use crate::compilations::Compilations;

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
}

enum Device {
    Emulated(Emulator),
    Gpu(Hardware),
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
            false => Device::Emulated(Emulator::new(arch, seed)?),
            true => Device::Gpu(gpu()),
        };
        Some(Self { device, counts: Arc::default(), behind_kernel: false })
    }

    /// The options of later launches; `None` on a GPU.
    pub(crate) fn options(&mut self) -> Option<&mut Options> {
        match &mut self.device {
            Device::Emulated(emulator) => Some(&mut emulator.machine.options),
            Device::Gpu(_) => None,
        }
    }

    /// Lets the vendor's products of the emulator be wrong.
    pub(crate) fn change_vendor(&mut self, change: Change) {
        if let Device::Emulated(emulator) = &mut self.device {
            emulator.vendor = Some(change);
        }
    }

    /// What the last launch executed; `None` on a GPU.
    pub(crate) fn report(&self) -> Option<&Report> {
        match &self.device {
            Device::Emulated(emulator) => emulator.report.as_ref(),
            Device::Gpu(_) => None,
        }
    }

    fn count(&self, add: impl Fn(&mut Counts)) {
        add(&mut self.counts.lock().unwrap());
    }

    /// Counts what the emulator has executed since `begun`.
    fn count_execution(&mut self, begun: Instant) {
        if let Device::Emulated(emulator) = &mut self.device {
            let executed = mem::take(&mut emulator.executed);
            self.count(|counts| {
                counts.lane_instructions += executed;
                counts.execution += begun.elapsed();
            });
        }
    }
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
    type Module = Of<<Emulator as Driver>::Module, <Hardware as Driver>::Module>;
    type Function = Of<<Emulator as Driver>::Function, <Hardware as Driver>::Function>;
    type Graph = Of<<Emulator as Driver>::Graph, <Hardware as Driver>::Graph>;

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
        self.count(|counts| counts.allocations += 1);
        either!(&mut self.device, device => device.allocate(bytes))
    }

    fn zero(&mut self, address: u64, bytes: usize) -> Result<(), DriverError> {
        self.behind_kernel = false;
        either!(&mut self.device, device => device.zero(address, bytes))
    }

    fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.behind_kernel = false;
        self.count(|counts| counts.uploads += 1);
        either!(&mut self.device, device => device.upload(to, bytes))
    }

    fn download(&mut self, from: u64, bytes: usize) -> Result<Transfer, DriverError> {
        self.behind_kernel = false;
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
                counts.recorded = counts.recorded.max(graph.len() as u64);
                Ok(Of::Emulated(graph))
            }
            Device::Gpu(device) => device.end_capture().map(Of::Gpu),
        }
    }

    fn replay(&mut self, graph: &Self::Graph) -> Result<(), DriverError> {
        self.behind_kernel = false;
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

/// The emulator as a device.
pub(crate) struct Emulator {
    machine: Machine,
    arch: Arch,
    compilations: &'static Compilations,
    downloads: VecDeque<(Transfer, Vec<u8>)>,
    next: u64,
    recording: Option<Vec<Recorded>>,
    /// What the vendor's products do to what is right; `None`: they have not been asked for.
    vendor: Option<Change>,
    /// Lane instructions, and 16 bytes of copies, since the beginning of what is timed.
    work: u64,
    /// Lane instructions that are not yet counted.
    executed: u64,
    report: Option<Report>,
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
    pub(crate) loads: u64,
    pub(crate) vendor_products: u64,
    /// Instructions of lanes that the emulator executed, and the time that this took.
    pub(crate) lane_instructions: u64,
    pub(crate) execution: Duration,
}

/// A program, parsed when a kernel of it is first launched: a test loads all of a backend's and launches some.
pub(crate) struct Loaded(Program, OnceLock<Module>);

/// A kernel, lowered when it is first launched. Beside it the most dynamic shared memory of its launches.
#[derive(Clone)]
pub(crate) struct Entry(Arc<(Arc<Loaded>, String, OnceLock<Kernel>)>, u32);

impl Entry {
    fn kernel(&self, machine: &mut Machine, compilations: &Compilations) -> Result<&Kernel, DriverError> {
        let (loaded, name, kernel) = &*self.0;
        if let Some(kernel) = kernel.get() {
            return Ok(kernel);
        }
        let Loaded(program, module) = &**loaded;
        let module = match module.get() {
            Some(module) => module,
            None => {
                let ptx = compilations.parsed(program).map_err(|text| error("nvrtcCompileProgram", text))?;
                module.get_or_init(|| machine.load_parsed(0, &ptx))
            }
        };
        let lowered = module.kernel(name).map_err(|text| error("cuModuleGetFunction", text))?;
        Ok(kernel.get_or_init(|| lowered))
    }
}

/// What a product of the vendor does to what is right.
pub(crate) type Change = fn(&mut [f32]);

/// What a graph has recorded.
pub(crate) enum Recorded {
    Launch(Kernel, case::LaunchShape, Vec<u8>),
    /// Shape, addresses, whether it is added.
    Product([usize; 3], [u64; 3], bool),
}

impl Emulator {
    fn new(arch: Arch, seed: Option<u64>) -> Option<Self> {
        let compilations = Compilations::shared()?;
        let options = Options {
            shuffle: seed,
            asynchrony: if seed.is_some() { Asynchrony::Random } else { Asynchrony::Issue },
            noise: Some(seed.unwrap_or(1)),
            ..Options::default()
        };
        Some(Self {
            machine: Machine::new(1, options),
            arch,
            compilations,
            downloads: VecDeque::new(),
            next: 0,
            recording: None,
            vendor: None,
            work: 0,
            executed: 0,
            report: None,
        })
    }

    fn run(
        &mut self,
        kernel: &Kernel,
        shape: case::LaunchShape,
        parameters: &[u8],
    ) -> Result<(), DriverError> {
        match self.machine.launch(kernel, shape, parameters) {
            Ok(report) => {
                self.work += report.lane_instructions();
                self.executed += report.lane_instructions();
                self.report = Some(report);
                Ok(())
            }
            Err(fault) => Err(error("cuLaunchKernelEx", fault.to_string())),
        }
    }

    /// Stands in for the vendor's product, with its sums in another order than ours.
    fn product(&mut self, [m, n, k]: [usize; 3], [w, x, y]: [u64; 3], add: bool) -> Result<(), DriverError> {
        const CALL: &str = "cublasLtMatmul";
        let mut read = |at: u64, bytes: usize| {
            let mut content = vec![0; bytes];
            self.machine.read(at, &mut content).map_err(|text| error(CALL, text))?;
            Ok::<_, DriverError>(content)
        };
        let halves = |bytes: Vec<u8>| -> Vec<f32> {
            let half = |pair: &[u8]| half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
            bytes.chunks_exact(2).map(half).collect()
        };
        let (weights, rows) = (halves(read(w, 2 * n * k)?), halves(read(x, 2 * m * k)?));
        let before = if add { read(y, 4 * m * n)? } else { vec![0; 4 * m * n] };
        let mut sums: Vec<f32> = before.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        for (row, sums) in rows.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
            for (weights, sum) in weights.chunks_exact(k).zip(sums) {
                *sum += row.iter().zip(weights).rev().map(|(x, w)| x * w).sum::<f32>();
            }
        }
        if let Some(change) = self.vendor {
            change(&mut sums);
        }
        // As if on tensor cores.
        self.work += (m * n * k / 64) as u64;
        self.machine.write(y, bytemuck::cast_slice(&sums)).map_err(|text| error(CALL, text))
    }

    fn refuse_while_recording(&self, call: &'static str) -> Result<(), DriverError> {
        match self.recording {
            None => Ok(()),
            Some(_) => Err(error(call, "the stream is being captured".into())),
        }
    }
}

fn error(call: &'static str, text: String) -> DriverError {
    DriverError { call, code: 700, text, fatal: true }
}

impl Driver for Emulator {
    type Module = Arc<Loaded>;
    type Function = Entry;
    type Graph = Vec<Recorded>;

    fn name(&self) -> &'static str {
        "emulated"
    }

    fn arch(&self) -> Arch {
        self.arch
    }

    fn multiprocessors(&self) -> u32 {
        4
    }

    fn free_bytes(&mut self) -> Result<u64, DriverError> {
        Ok(4 << 30)
    }

    fn arena_bytes(&self) -> usize {
        0
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, DriverError> {
        self.refuse_while_recording("cuMemAlloc")?;
        Ok(self.machine.allocate(0, bytes as u64, 256))
    }

    fn zero(&mut self, address: u64, bytes: usize) -> Result<(), DriverError> {
        self.refuse_while_recording("cuMemsetD8Async")?;
        self.machine.write(address, &vec![0; bytes]).map_err(|text| error("cuMemsetD8Async", text))
    }

    fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.refuse_while_recording("cuMemcpyHtoDAsync")?;
        self.machine.write(to, bytes).map_err(|text| error("cuMemcpyHtoDAsync", text))
    }

    fn download(&mut self, from: u64, bytes: usize) -> Result<Transfer, DriverError> {
        self.refuse_while_recording("cuMemcpyDtoHAsync")?;
        let mut content = vec![0; bytes];
        self.machine.read(from, &mut content).map_err(|text| error("cuMemcpyDtoHAsync", text))?;
        let transfer = Transfer(self.next);
        self.next += 1;
        self.downloads.push_back((transfer, content));
        Ok(transfer)
    }

    fn finish(&mut self, transfer: Transfer, into: &mut Vec<u8>) -> Result<(), DriverError> {
        while let Some((at, content)) = self.downloads.pop_front() {
            if at == transfer {
                into.extend(content);
                return Ok(());
            }
        }
        Err(error("cuEventSynchronize", format!("{transfer:?} is not in flight")))
    }

    fn load(&mut self, program: &Program) -> Result<Self::Module, DriverError> {
        Ok(Arc::new(Loaded(program.clone(), OnceLock::new())))
    }

    fn function(&mut self, module: &Arc<Loaded>, name: &str, shared: u32) -> Result<Entry, DriverError> {
        if !module.0.functions.iter().any(|function| function == name) {
            return Err(error("cuModuleGetFunction", format!("no kernel {name}")));
        }
        Ok(Entry(Arc::new((module.clone(), name.to_owned(), OnceLock::new())), shared))
    }

    fn launch(
        &mut self,
        function: &Entry,
        shape: &LaunchShape,
        parameters: &[u8],
    ) -> Result<(), DriverError> {
        let (function, declared) = (function.kernel(&mut self.machine, self.compilations)?, function.1);
        if shape.shared_bytes > declared {
            let text = format!("{} bytes of shared memory, declared are {declared}", shape.shared_bytes);
            return Err(error("cuLaunchKernelEx", text));
        }
        let wanted = function.parameter_bytes();
        if wanted != parameters.len() as u64 {
            let text = format!("{} bytes of parameters, the kernel has {wanted}", parameters.len());
            return Err(error("cuLaunchKernelEx", text));
        }
        if shape.grid.contains(&0) || shape.grid[1] > 65_535 || shape.grid[2] > 65_535 {
            return Err(error("cuLaunchKernelEx", format!("invalid grid {:?}", shape.grid)));
        }
        let shape = case::LaunchShape {
            grid: shape.grid,
            block: [shape.threads, 1, 1],
            cluster: function.cluster(),
            dynamic_shared_bytes: shape.shared_bytes,
        };
        if let Some(recording) = &mut self.recording {
            recording.push(Recorded::Launch(function.clone(), shape, parameters.to_vec()));
            return Ok(());
        }
        self.run(function, shape, parameters)
    }

    fn order_next_launch(&mut self) {}

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.refuse_while_recording("cuStreamBeginCapture")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Vec<Recorded>, DriverError> {
        self.recording.take().ok_or_else(|| error("cuStreamEndCapture", "nothing is being captured".into()))
    }

    fn replay(&mut self, graph: &Vec<Recorded>) -> Result<(), DriverError> {
        self.refuse_while_recording("cuGraphLaunch")?;
        graph.iter().try_for_each(|recorded| match recorded {
            Recorded::Launch(kernel, shape, parameters) => self.run(kernel, *shape, parameters),
            Recorded::Product(shape, at, add) => self.product(*shape, *at, *add),
        })
    }

    fn open_vendor(&mut self) -> Result<bool, DriverError> {
        self.refuse_while_recording("cublasLtCreate")?;
        self.vendor.get_or_insert(|_| ());
        Ok(true)
    }

    fn vendor_product(&mut self, shape: [usize; 3], at: [u64; 3], add: bool) -> Result<(), DriverError> {
        if self.vendor.is_none() {
            let text = "the library is not open".into();
            return Err(DriverError { call: "cublasLtMatmul", code: 1, text, fatal: false });
        }
        if let Some(recording) = &mut self.recording {
            recording.push(Recorded::Product(shape, at, add));
            return Ok(());
        }
        self.product(shape, at, add)
    }

    fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        const CALL: &str = "cuMemcpyDtoDAsync";
        self.refuse_while_recording(CALL)?;
        let mut content = vec![0; bytes];
        self.work += bytes as u64 / 16;
        self.machine.read(from, &mut content).map_err(|text| error(CALL, text))?;
        self.machine.write(to, &content).map_err(|text| error(CALL, text))
    }

    fn begin_timing(&mut self) -> Result<(), DriverError> {
        self.refuse_while_recording("cuEventRecord")?;
        self.work = 0;
        Ok(())
    }

    /// A nanosecond for a lane instruction: the same whenever a test runs.
    fn end_timing(&mut self) -> Result<Duration, DriverError> {
        self.refuse_while_recording("cuEventElapsedTime")?;
        Ok(Duration::from_nanos(self.work))
    }
}
