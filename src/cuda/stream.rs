//! A driver with the loaded kernels and the division of its memory: what the backend launches through.

use std::collections::HashMap;

use bytemuck::{NoUninit, Pod};

use super::driver::{ALIGNMENT, Driver, DriverError, LaunchShape};
use super::{Kernel, Program, SourceError, kernels};
use crate::ops::OpError;

/// The device as the backend sees it.
pub struct Stream<D: Driver> {
    driver: D,
    functions: HashMap<String, D::Function>,
    /// Kept, because a function lives as long as its module.
    _modules: Vec<D::Module>,
    arena: Arena,
}

/// Device memory: an address and a size. Freed with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Address, a multiple of 256.
    pub address: u64,
    /// Size in bytes.
    pub bytes: usize,
}

impl Buffer {
    /// No memory.
    pub const NONE: Self = Self { address: 0, bytes: 0 };
}

/// The rest of the last allocation.
#[derive(Debug, Default)]
struct Arena {
    next: u64,
    left: usize,
}

impl<D: Driver> Stream<D> {
    /// Loads every kernel for the driver's architecture.
    pub fn new(driver: D) -> Result<Self, OpError> {
        let mut stream =
            Self { driver, functions: HashMap::new(), _modules: Vec::new(), arena: Arena::default() };
        let arch = stream.driver.arch();
        for kernel in kernels::ALL.iter().filter(|kernel| kernel.archs.contains(&arch)) {
            stream.load(kernel)?;
        }
        Ok(stream)
    }

    fn load(&mut self, kernel: &Kernel) -> Result<(), OpError> {
        let program = Program::new(kernel, self.driver.arch()).map_err(|error: SourceError| DriverError {
            call: "nvrtcCompileProgram",
            code: 0,
            text: error.to_string(),
            fatal: true,
        })?;
        self.load_program(&program, kernel.shared_bytes)
    }

    /// Loads the functions of a program, for launches with up to `shared_bytes` of dynamic shared memory.
    pub fn load_program(&mut self, program: &Program, shared_bytes: u32) -> Result<(), OpError> {
        let module = self.driver.load(program)?;
        for name in &program.functions {
            let function = self.driver.function(&module, name, shared_bytes)?;
            self.functions.insert(name.clone(), function);
        }
        self._modules.push(module);
        Ok(())
    }

    /// The driver, for calls that are not launches.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Name of the backend.
    pub fn name(&self) -> &'static str {
        self.driver.name()
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.driver.multiprocessors()
    }

    /// Device memory without content; `what` names its purpose in the error.
    pub fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<Buffer, OpError> {
        let rounded = bytes.max(1).next_multiple_of(ALIGNMENT as usize);
        let chunk = self.driver.arena_bytes();
        if rounded > self.arena.left {
            if rounded > chunk / 4 {
                let address =
                    self.driver.allocate(bytes.max(1)).map_err(|error| no_memory(error, what, bytes))?;
                return Ok(Buffer { address, bytes });
            }
            let next = self.driver.allocate(chunk).map_err(|error| no_memory(error, what, bytes))?;
            self.arena = Arena { next, left: chunk };
        }
        let address = self.arena.next;
        self.arena.next += rounded as u64;
        self.arena.left -= rounded;
        Ok(Buffer { address, bytes })
    }

    /// Copies bytes to the device.
    pub fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), OpError> {
        match bytes {
            [] => Ok(()),
            bytes => Ok(self.driver.upload(to, bytes)?),
        }
    }

    /// Device memory with this content.
    pub fn store<T: NoUninit>(&mut self, what: &'static str, content: &[T]) -> Result<Buffer, OpError> {
        let bytes: &[u8] = bytemuck::cast_slice(content);
        let buffer = self.allocate(what, bytes.len())?;
        self.upload(buffer.address, bytes)?;
        Ok(buffer)
    }

    /// Device memory of zeros.
    pub fn zeros(&mut self, what: &'static str, bytes: usize) -> Result<Buffer, OpError> {
        let buffer = self.allocate(what, bytes)?;
        self.driver.zero(buffer.address, buffer.bytes.max(1))?;
        Ok(buffer)
    }

    /// Values of device memory on the host; waits for the work before.
    pub fn read<T: Pod>(&mut self, from: u64, count: usize) -> Result<Vec<T>, OpError> {
        let mut bytes = Vec::new();
        if count > 0 {
            let transfer = self.driver.download(from, count * size_of::<T>())?;
            self.driver.finish(transfer, &mut bytes)?;
        }
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Enqueues the kernel `name` with its parameter struct. A grid without blocks costs nothing.
    pub fn launch<P: NoUninit>(
        &mut self,
        name: &'static str,
        shape: LaunchShape,
        parameters: &P,
    ) -> Result<(), OpError> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let function = self.functions.get(name).ok_or_else(|| DriverError {
            call: "cuModuleGetFunction",
            code: 0,
            text: format!("no kernel {name} for {}", self.driver.arch()),
            fatal: false,
        })?;
        let launched = self.driver.launch(function, &shape, bytemuck::bytes_of(parameters));
        launched.map_err(|error| DriverError { text: format!("{name}: {}", error.text), ..error }.into())
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

fn no_memory(error: DriverError, what: &'static str, bytes: usize) -> OpError {
    match error.code {
        OUT_OF_MEMORY => OpError::OutOfMemory { what, bytes },
        _ => error.into(),
    }
}
