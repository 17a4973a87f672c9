//! A device that the emulator stands in for, and several of them as one machine.
//!
//! A device alone does each call at once. Of several, each has a queue: what a call enqueues is done when something waits, and then
//! all queues run side by side, as on devices whose hosts are ahead of them.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use perigee_cuda::{Arch, Driver, DriverError, LaunchShape, Program, Transfer};
use perigee_emulator::case;
use perigee_emulator::machine::{Asynchrony, Kernel, Launch, Machine, Module, Options, Report};

use super::compilations::Compilations;

/// Devices in one address space.
struct Node {
    machine: Machine,
    queues: Vec<Queue>,
    /// What the vendor's products do to what is right; `None`: they have not been asked for.
    vendor: Option<Change>,
}

/// What a device has to do, and what it has done.
#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    downloads: VecDeque<(Transfer, Vec<u8>)>,
    /// Lane instructions, and 16 bytes of copies, since the beginning of what is timed.
    work: u64,
    /// Lane instructions that are not yet counted.
    executed: u64,
    report: Option<Report>,
}

/// What a stream does. Launches and products are recorded too.
#[derive(Clone)]
enum Command {
    Launch(Kernel, case::LaunchShape, Vec<u8>),
    /// Shape, addresses, whether it is added.
    Product([usize; 3], [u64; 3], bool),
    Write(u64, Vec<u8>),
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Read {
        from: u64,
        bytes: usize,
        transfer: Transfer,
    },
}

/// What a product of the vendor does to what is right.
pub type Change = fn(&mut [f32]);

/// Commands that a graph has recorded.
pub struct Recorded(Vec<Command>);

impl Recorded {
    /// Number of launches and products.
    pub fn num_launches(&self) -> usize {
        self.0.len()
    }
}

fn locked(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    fn new(devices: usize, seed: Option<u64>) -> Self {
        let options = Options {
            shuffle: seed,
            asynchrony: if seed.is_some() { Asynchrony::Random } else { Asynchrony::Issue },
            noise: Some(seed.unwrap_or(1)),
            ..Options::default()
        };
        let queues = (0..devices).map(|_| Queue::default()).collect();
        Self { machine: Machine::new(devices, options), queues, vendor: None }
    }

    /// Enqueues what a device does; alone, it does it now.
    fn enqueue(
        &mut self,
        device: usize,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<(), DriverError> {
        self.queues[device].commands.extend(commands);
        match self.queues.len() {
            1 => self.pump(),
            _ => Ok(()),
        }
    }

    /// Does what is enqueued. Launches of all devices that nothing but launches lies between run side by side.
    fn pump(&mut self) -> Result<(), DriverError> {
        let done = self.pump_all();
        if done.is_err() {
            self.queues.iter_mut().for_each(|queue| queue.commands.clear());
        }
        done
    }

    fn pump_all(&mut self) -> Result<(), DriverError> {
        loop {
            let mut launches: Vec<Vec<(Kernel, case::LaunchShape, Vec<u8>)>> = Vec::new();
            for device in 0..self.queues.len() {
                let mut first = Vec::new();
                while let Some(command) = self.queues[device].commands.pop_front() {
                    match command {
                        Command::Launch(kernel, shape, parameters) => first.push((kernel, shape, parameters)),
                        other if first.is_empty() => self.execute(device, other)?,
                        other => {
                            self.queues[device].commands.push_front(other);
                            break;
                        }
                    }
                }
                launches.push(first);
            }
            if launches.iter().all(Vec::is_empty) {
                return Ok(());
            }
            let queues: Vec<Vec<Launch<'_>>> = launches
                .iter()
                .map(|launches| {
                    launches
                        .iter()
                        .map(|(kernel, shape, parameters)| Launch { kernel, shape: *shape, parameters })
                        .collect()
                })
                .collect();
            let queues: Vec<&[Launch<'_>]> = queues.iter().map(Vec::as_slice).collect();
            let reports = self.machine.run(&queues);
            let reports = reports.map_err(|fault| error("cuLaunchKernelEx", fault.to_string()))?;
            for (queue, reports) in self.queues.iter_mut().zip(reports) {
                for report in reports {
                    queue.work += report.lane_instructions();
                    queue.executed += report.lane_instructions();
                    queue.report = Some(report);
                }
            }
        }
    }

    fn execute(&mut self, device: usize, command: Command) -> Result<(), DriverError> {
        match command {
            Command::Launch(..) => Ok(()),
            Command::Product(shape, at, add) => self.product(device, shape, at, add),
            Command::Write(to, bytes) => {
                self.machine.write(to, &bytes).map_err(|text| error("cuMemcpyHtoDAsync", text))
            }
            Command::Copy { to, from, bytes } => {
                const CALL: &str = "cuMemcpyDtoDAsync";
                let mut content = vec![0; bytes];
                self.queues[device].work += bytes as u64 / 16;
                self.machine.read(from, &mut content).map_err(|text| error(CALL, text))?;
                self.machine.write(to, &content).map_err(|text| error(CALL, text))
            }
            Command::Read { from, bytes, transfer } => {
                let mut content = vec![0; bytes];
                self.machine.read(from, &mut content).map_err(|text| error("cuMemcpyDtoHAsync", text))?;
                self.queues[device].downloads.push_back((transfer, content));
                Ok(())
            }
        }
    }

    /// Stands in for the vendor's product, with its sums in another order than ours.
    fn product(
        &mut self,
        device: usize,
        [m, n, k]: [usize; 3],
        [w, x, y]: [u64; 3],
        add: bool,
    ) -> Result<(), DriverError> {
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
        self.queues[device].work += (m * n * k / 64) as u64;
        self.machine.write(y, bytemuck::cast_slice(&sums)).map_err(|text| error(CALL, text))
    }
}

/// A device of a machine.
pub struct EmulatedDevice {
    node: Arc<Mutex<Node>>,
    device: usize,
    arch: Arch,
    compilations: Arc<Compilations>,
    /// What the memory plan is told.
    pub free_bytes: u64,
    next: u64,
    recording: Option<Vec<Command>>,
    failure: Option<Failure>,
    /// Calls that gave the device work.
    calls: u64,
}

/// What befalls a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its calls fail, as behind an error that no context survives.
    Lost,
    /// A call does not return, as one that waits for a kernel without an end.
    Hangs,
    /// Its exchanges give nothing.
    Silent,
}

/// A fault, and the number of the call that gives the device work, or of the exchange, from which on it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What befalls the device.
    pub fault: Fault,
    /// Calls, or exchanges, before it.
    pub after: u64,
}

/// A program, parsed when a kernel of it is first launched: a test loads all of a backend's and launches some.
pub struct Loaded(Program, OnceLock<Module>);

/// A kernel, lowered when it is first launched. Beside it the most dynamic shared memory of its launches.
#[derive(Clone)]
pub struct Entry(Arc<(Arc<Loaded>, String, OnceLock<Kernel>)>, u32);

impl Entry {
    fn kernel(
        &self,
        node: &Mutex<Node>,
        device: usize,
        compilations: &Compilations,
    ) -> Result<&Kernel, DriverError> {
        let (loaded, name, kernel) = &*self.0;
        if let Some(kernel) = kernel.get() {
            return Ok(kernel);
        }
        let Loaded(program, module) = &**loaded;
        let module = match module.get() {
            Some(module) => module,
            None => {
                let ptx = compilations.parsed(program).map_err(|text| error("nvrtcCompileProgram", text))?;
                module.get_or_init(|| locked(node).machine.load_parsed(device, &ptx))
            }
        };
        let lowered = module.kernel(name).map_err(|text| error("cuModuleGetFunction", text))?;
        Ok(kernel.get_or_init(|| lowered))
    }
}

impl EmulatedDevice {
    /// The devices of a new machine; with a seed, blocks and warps run in an order of its own and copies happen at random moments.
    pub fn several(
        devices: usize,
        arch: Arch,
        seed: Option<u64>,
        compilations: &Arc<Compilations>,
    ) -> Vec<Self> {
        let node = Arc::new(Mutex::new(Node::new(devices, seed)));
        let device = |device| {
            let (node, compilations) = (node.clone(), compilations.clone());
            Self {
                node,
                device,
                arch,
                compilations,
                next: 0,
                recording: None,
                failure: None,
                calls: 0,
                free_bytes: 4 << 30,
            }
        };
        (0..devices).map(device).collect()
    }

    /// Changes the options of later launches, of all devices of the machine.
    pub fn set_options(&mut self, set: impl FnOnce(&mut Options)) {
        set(&mut locked(&self.node).machine.options);
    }

    /// Lets a fault befall this device.
    pub fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// A call that gives the device work.
    fn call(&mut self, call: &'static str) -> Result<(), DriverError> {
        self.calls += 1;
        match self.failure {
            Some(Failure { fault: Fault::Lost, after }) if self.calls > after => {
                Err(DriverError { call, code: 719, text: "the device is lost".into(), fatal: true })
            }
            Some(Failure { fault: Fault::Hangs, after }) if self.calls > after => loop {
                std::thread::park();
            },
            _ => Ok(()),
        }
    }

    /// Lets the vendor's products be wrong.
    pub fn change_vendor(&mut self, change: Change) {
        locked(&self.node).vendor = Some(change);
    }

    /// What the last launch executed.
    pub fn report(&self) -> Option<Report> {
        locked(&self.node).queues[self.device].report.clone()
    }

    /// Lane instructions since the last call.
    pub fn executed(&mut self) -> u64 {
        mem::take(&mut locked(&self.node).queues[self.device].executed)
    }

    fn enqueue(&mut self, command: Command) -> Result<(), DriverError> {
        locked(&self.node).enqueue(self.device, [command])
    }

    fn refuse_while_recording(&self, call: &'static str) -> Result<(), DriverError> {
        match self.recording {
            None => Ok(()),
            Some(_) => Err(error(call, "the stream is being captured".into())),
        }
    }
}

/// A program whose exchanges end before they give anything, from number `after` on.
fn silent(text: &str, after: u64) -> String {
    const BEGIN: &str = "    const Exchange exchange = begin_exchange(link);\n";
    let stop = format!("{BEGIN}    if (exchange.epoch >= {after}) {{\n        return;\n    }}\n");
    text.replace(BEGIN, &stop)
}

fn error(call: &'static str, text: String) -> DriverError {
    DriverError { call, code: 700, text, fatal: true }
}

impl Driver for EmulatedDevice {
    type Module = Arc<Loaded>;
    type Function = Entry;
    type Graph = Recorded;

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
        Ok(self.free_bytes)
    }

    fn arena_bytes(&self) -> usize {
        0
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, DriverError> {
        self.refuse_while_recording("cuMemAlloc")?;
        Ok(locked(&self.node).machine.allocate(self.device, bytes as u64, 256))
    }

    fn zero(&mut self, address: u64, bytes: usize) -> Result<(), DriverError> {
        self.refuse_while_recording("cuMemsetD8Async")?;
        self.enqueue(Command::Write(address, vec![0; bytes]))
    }

    fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.refuse_while_recording("cuMemcpyHtoDAsync")?;
        self.call("cuMemcpyHtoDAsync")?;
        self.enqueue(Command::Write(to, bytes.to_vec()))
    }

    fn download(&mut self, from: u64, bytes: usize) -> Result<Transfer, DriverError> {
        self.refuse_while_recording("cuMemcpyDtoHAsync")?;
        self.call("cuMemcpyDtoHAsync")?;
        let transfer = Transfer(self.next);
        self.next += 1;
        self.enqueue(Command::Read { from, bytes, transfer })?;
        Ok(transfer)
    }

    fn finish(&mut self, transfer: Transfer, into: &mut Vec<u8>) -> Result<(), DriverError> {
        let mut node = locked(&self.node);
        node.pump()?;
        while let Some((at, content)) = node.queues[self.device].downloads.pop_front() {
            if at == transfer {
                into.extend(content);
                return Ok(());
            }
        }
        Err(error("cuEventSynchronize", format!("{transfer:?} is not in flight")))
    }

    fn load(&mut self, program: &Program) -> Result<Self::Module, DriverError> {
        let mut program = program.clone();
        if let Some(Failure { fault: Fault::Silent, after }) = self.failure {
            program.text = silent(&program.text, after);
        }
        Ok(Arc::new(Loaded(program, OnceLock::new())))
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
        self.call("cuLaunchKernelEx")?;
        let declared = function.1;
        let function = function.kernel(&self.node, self.device, &self.compilations)?;
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
        let launch = Command::Launch(function.clone(), shape, parameters.to_vec());
        match &mut self.recording {
            Some(recording) => {
                recording.push(launch);
                Ok(())
            }
            None => self.enqueue(launch),
        }
    }

    fn order_next_launch(&mut self) {}

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.refuse_while_recording("cuStreamBeginCapture")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Recorded, DriverError> {
        let recording = self.recording.take().map(Recorded);
        recording.ok_or_else(|| error("cuStreamEndCapture", "nothing is being captured".into()))
    }

    fn replay(&mut self, graph: &Recorded) -> Result<(), DriverError> {
        self.refuse_while_recording("cuGraphLaunch")?;
        self.call("cuGraphLaunch")?;
        locked(&self.node).enqueue(self.device, graph.0.iter().cloned())
    }

    fn open_vendor(&mut self) -> Result<bool, DriverError> {
        self.refuse_while_recording("cublasLtCreate")?;
        locked(&self.node).vendor.get_or_insert(|_| ());
        Ok(true)
    }

    fn vendor_product(&mut self, shape: [usize; 3], at: [u64; 3], add: bool) -> Result<(), DriverError> {
        if locked(&self.node).vendor.is_none() {
            let text = "the library is not open".into();
            return Err(DriverError { call: "cublasLtMatmul", code: 1, text, fatal: false });
        }
        let product = Command::Product(shape, at, add);
        match &mut self.recording {
            Some(recording) => {
                recording.push(product);
                Ok(())
            }
            None => self.enqueue(product),
        }
    }

    fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        self.refuse_while_recording("cuMemcpyDtoDAsync")?;
        self.enqueue(Command::Copy { to, from, bytes })
    }

    fn begin_timing(&mut self) -> Result<(), DriverError> {
        self.refuse_while_recording("cuEventRecord")?;
        locked(&self.node).queues[self.device].work = 0;
        Ok(())
    }

    /// A nanosecond for a lane instruction: the same whenever a test runs.
    fn end_timing(&mut self) -> Result<Duration, DriverError> {
        self.refuse_while_recording("cuEventElapsedTime")?;
        let mut node = locked(&self.node);
        node.pump()?;
        Ok(Duration::from_nanos(node.queues[self.device].work))
    }
}
