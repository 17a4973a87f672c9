//! The machine: devices with memory, modules, launches.

mod memory;
mod random;
mod fault;
mod late;
mod pending;
mod block;
mod cluster;
mod access;
mod atomic;
mod multimem;
mod collective;
mod transfer;
mod matrix;
mod tensor;
mod execute;
mod grid;
mod spin;
mod queue;
mod case_device;
mod observe;
mod race;
mod profile;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use case_device::CaseDevice;
pub use fault::Fault;
pub use profile::{Class, InstructionCount, Report, Total, Traffic};
pub use queue::Launch;

use crate::case::LaunchShape;
use crate::lower::lower;
use crate::program::Program;
use crate::text::{self, Space};
use memory::{Memory, Region};

/// When asynchronous transfers happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Asynchrony {
    /// When they are issued.
    #[default]
    Issue,
    /// When something waits for them.
    Late,
    /// At either moment, by the seed.
    Random,
}

/// How kernels are executed and what is looked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// Order of warps and blocks: `None` is ascending.
    pub shuffle: Option<u64>,
    /// When asynchronous transfers happen.
    pub asynchrony: Asynchrony,
    /// `mbarrier.try_wait` fails at random though it could go on.
    pub spurious: bool,
    /// Registers start with bits of this seed instead of zero.
    pub noise: Option<u64>,
    /// A read of memory that was never written is a fault.
    pub uninitialized: bool,
    /// Accesses of different warps that nothing orders are a fault, and so are different values that
    /// the lanes of one instruction write to one place.
    pub races: bool,
    /// Weak stores to the memory of other devices arrive late and in any order, by the seed, until a release of
    /// system scope: kernels that lack one may then give wrong answers.
    pub late_stores: bool,
    /// Bank conflicts of shared memory and sectors of global memory are counted.
    pub profile: bool,
    /// Most instructions of a launch, in warps.
    pub max_instructions: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shuffle: None,
            asynchrony: Asynchrony::Issue,
            spurious: false,
            noise: None,
            uninitialized: true,
            races: false,
            late_stores: false,
            profile: false,
            max_instructions: 20_000_000_000,
        }
    }
}

/// A parsed module, to be loaded by any number of machines.
#[derive(Debug)]
pub struct Ptx {
    module: text::Module,
    /// Kernels by name, lowered for machines on which the module has no memory of its own: they are the same on all.
    programs: Mutex<HashMap<String, Arc<Program>>>,
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    ptx: Arc<Ptx>,
    device: usize,
    globals: Vec<u64>,
    variables: Vec<u64>,
}

/// A kernel of a loaded module.
#[derive(Debug, Clone)]
pub struct Kernel {
    program: Arc<Program>,
    /// The device that its module is loaded on.
    device: usize,
}

/// Devices with one address space.
#[derive(Debug)]
pub struct Machine {
    memory: Memory,
    /// How the next launches are executed.
    pub options: Options,
}

impl Machine {
    /// A machine with so many devices.
    pub fn new(devices: usize, options: Options) -> Self {
        Self { memory: Memory::new(devices), options }
    }

    /// Allocates memory of a device, aligned to 256 bytes or more, without content.
    pub fn allocate(&mut self, device: usize, bytes: u64, align: u64) -> u64 {
        self.memory.allocate(device, Region::new(bytes as usize), align)
    }

    /// Frees an allocation; false if there is none at this address.
    pub fn free(&mut self, address: u64) -> bool {
        self.memory.free(address)
    }

    /// Names an allocation, for messages; false if there is none at this address.
    pub fn name(&mut self, address: u64, name: &str) -> bool {
        self.memory.name(address, name)
    }

    /// An address at which `multimem` instructions reach allocations of one size, on several devices. Errors
    /// name the allocation that is missing or differs.
    pub fn multicast(&mut self, copies: &[u64]) -> Result<u64, String> {
        self.memory.multicast(copies)
    }

    /// Writes device memory. Errors name the range.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        let (region, offset) = self.memory.find(address, bytes.len())?;
        region.set(offset, bytes);
        Ok(())
    }

    /// Reads device memory; bytes that were never written are 0xff. Errors name the range.
    pub fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let (region, offset) = self.memory.find(address, into.len())?;
        into.copy_from_slice(region.get(offset, into.len()).0);
        Ok(())
    }

    /// Loads a module from its PTX onto a device.
    pub fn load(&mut self, device: usize, ptx: &str) -> Result<Module, String> {
        Ok(self.load_parsed(device, &Ptx::parse(ptx)?))
    }

    /// Loads a parsed module onto a device.
    pub fn load_parsed(&mut self, device: usize, ptx: &Arc<Ptx>) -> Module {
        let mut variables = Vec::new();
        let globals = ptx
            .module
            .variables
            .iter()
            .map(|variable| match variable.space {
                Space::Shared => 0,
                _ => {
                    let mut bytes = variable.init.clone();
                    bytes.resize(variable.size as usize, 0);
                    let address = self.memory.allocate(device, Region::of(bytes), variable.align);
                    variables.push(address);
                    address
                }
            })
            .collect();
        Module { ptx: ptx.clone(), device, globals, variables }
    }

    /// Frees a module's variables.
    pub fn unload(&mut self, module: Module) {
        for address in module.variables {
            self.memory.free(address);
        }
    }

    /// Runs a kernel to its end. `parameters` is the parameter block.
    pub fn launch(
        &mut self,
        kernel: &Kernel,
        shape: LaunchShape,
        parameters: &[u8],
    ) -> Result<Report, Fault> {
        let mut reports = self.run(&[&[Launch { kernel, shape, parameters }]])?;
        Ok(reports.pop().and_then(|mut queue| queue.pop()).expect("a report of each launch"))
    }

    /// Runs kernels at the same time, as several devices would: each gets a turn after the other.
    pub fn launch_together(
        &mut self,
        launches: &[(&Kernel, LaunchShape, &[u8])],
    ) -> Result<Vec<Report>, Fault> {
        let launch = |&(kernel, shape, parameters): &_| [Launch { kernel, shape, parameters }];
        let launches: Vec<_> = launches.iter().map(launch).collect();
        let queues: Vec<&[Launch<'_>]> = launches.iter().map(|launch| &launch[..]).collect();
        Ok(self.run(&queues)?.into_iter().flatten().collect())
    }

    /// Runs queues of launches at the same time, as several devices would: the launches of a queue one after
    /// the other, with nothing to order those of different queues. Reports are in the order of the launches.
    pub fn run(&mut self, queues: &[&[Launch<'_>]]) -> Result<Vec<Vec<Report>>, Fault> {
        queue::run(&mut self.memory, &self.options, queues)
    }
}

impl Module {
    /// Names of the kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.ptx
            .module
            .functions
            .iter()
            .filter(|function| function.entry)
            .map(|function| function.name.as_str())
    }

    /// A kernel by name. Errors name what the module has, or the instruction that is not known.
    pub fn kernel(&self, name: &str) -> Result<Kernel, String> {
        let module = &self.ptx.module;
        let shared = self.variables.is_empty().then_some(&self.ptx.programs);
        let programs = || shared.map(|programs| programs.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(program) = programs().and_then(|programs| programs.get(name).cloned()) {
            return Ok(Kernel { program, device: self.device });
        }
        let function = module.function(name).filter(|function| function.entry).ok_or_else(|| {
            format!("no kernel `{name}`; the module has {}", self.kernels().collect::<Vec<_>>().join(", "))
        })?;
        let program = lower(module, function, &self.globals).map_err(|error| format!("{name}, {error}"))?;
        let program = Arc::new(program);
        if let Some(mut programs) = programs() {
            programs.insert(name.to_owned(), program.clone());
        }
        Ok(Kernel { program, device: self.device })
    }
}

impl Ptx {
    /// Parses a module. Errors name the line.
    pub fn parse(text: &str) -> Result<Arc<Self>, String> {
        let module = text::parse(text).map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { module, programs: Mutex::default() }))
    }
}

impl Kernel {
    /// Bytes of the parameter block.
    pub fn parameter_bytes(&self) -> u64 {
        self.program.parameter_bytes
    }

    /// Blocks of a cluster in x, y, z: those that the kernel requires, or one.
    pub fn cluster(&self) -> [u32; 3] {
        self.program.directives.required_cluster.unwrap_or([1; 3])
    }

    /// Bytes of static shared memory.
    pub fn static_shared_bytes(&self) -> u32 {
        self.program.static_shared
    }

    /// Bytes of local memory of a thread.
    pub fn local_bytes(&self) -> u32 {
        self.program.local_bytes
    }
}
