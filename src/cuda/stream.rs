//! A driver with the loaded kernels and the division of its memory: what the backend launches through.

use std::collections::HashMap;

use bytemuck::{NoUninit, Pod};

use super::driver::{ALIGNMENT, Driver, DriverError, LaunchShape};
use super::{Arch, Kernel, Program, SourceError, kernels};
use perigee_ops::OpError;

/// The device as the backend sees it.
pub struct Stream<D: Driver> {
    driver: D,
    functions: HashMap<String, D::Function>,
    /// Kept, because a function lives as long as its module.
    _modules: Vec<D::Module>,
    arena: Arena,
    /// Where rows are put for products that read them as panels.
    panels: Buffer,
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

/// Buffers are cut from a chunk up to the 64th part of it.
///
/// One that does not fit leaves the rest of the chunk unused. With the weights of Kimi K2 and chunks of 256 MiB, these rests and
/// the granularity of larger allocations (2 MiB) are less than 160 MiB; with a quarter in place of the 64th part they are 1.4 GiB.
const CHUNK_SHARE: usize = 64;

/// The rest of the last chunk.
#[derive(Debug, Default)]
struct Arena {
    next: u64,
    left: usize,
}

impl Arena {
    /// The address of a new buffer: in a chunk of `chunk` bytes, or an allocation of its own. `allocate` gives either.
    fn place<E>(
        &mut self,
        bytes: usize,
        chunk: usize,
        allocate: impl FnOnce(usize) -> Result<u64, E>,
    ) -> Result<u64, E> {
        let rounded = bytes.max(1).next_multiple_of(ALIGNMENT as usize);
        if rounded > self.left {
            if rounded > chunk / CHUNK_SHARE {
                return allocate(bytes.max(1));
            }
            *self = Self { next: allocate(chunk)?, left: chunk };
        }
        let address = self.next;
        self.next += rounded as u64;
        self.left -= rounded;
        Ok(address)
    }
}

impl<D: Driver> Stream<D> {
    /// Loads every kernel for the driver's architecture.
    pub fn new(driver: D) -> Result<Self, OpError> {
        let mut stream = Self {
            driver,
            functions: HashMap::new(),
            _modules: Vec::new(),
            arena: Arena::default(),
            panels: Buffer::NONE,
        };
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
        self.load_program(&program)
    }

    /// Loads the functions of a program.
    pub fn load_program(&mut self, program: &Program) -> Result<(), OpError> {
        let module = self.driver.load(program)?;
        for name in &program.functions {
            let function = self.driver.function(&module, name, program.shared_bytes)?;
            self.functions.insert(name.clone(), function);
        }
        self._modules.push(module);
        Ok(())
    }

    /// Memory that is free while a product runs, for rows as panels; without it products read rows themselves.
    pub fn set_panels(&mut self, panels: Buffer) {
        self.panels = panels;
    }

    /// The memory of [`Stream::set_panels`].
    pub fn panels(&self) -> Buffer {
        self.panels
    }

    /// The driver, for calls that are not launches.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Name of the backend.
    pub fn name(&self) -> &'static str {
        self.driver.name()
    }

    /// Architecture of the device.
    pub fn arch(&self) -> Arch {
        self.driver.arch()
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.driver.multiprocessors()
    }

    /// Device memory without content; `what` names its purpose in the error.
    pub fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<Buffer, OpError> {
        let Self { driver, arena, .. } = self;
        let placed = arena.place(bytes, driver.arena_bytes(), |bytes| driver.allocate(bytes));
        Ok(Buffer { address: placed.map_err(|error| no_memory(error, what, bytes))?, bytes })
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

    /// Memory with this content that other devices reach; its content is there when the call returns.
    pub fn share(&mut self, what: &'static str, content: &[u8]) -> Result<Buffer, OpError> {
        let bytes = content.len();
        let address = self.driver.share(content).map_err(|error| no_memory(error, what, bytes))?;
        Ok(Buffer { address, bytes })
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
        self.with_function(name, |driver, function| {
            driver.launch(function, &shape, bytemuck::bytes_of(parameters))
        })
    }

    /// Clusters of so many blocks of the kernel `name` that run at once.
    pub fn resident_clusters(
        &mut self,
        name: &'static str,
        shape: LaunchShape,
        blocks: u32,
    ) -> Result<u32, OpError> {
        self.with_function(name, |driver, function| driver.resident_clusters(function, &shape, blocks))
    }

    fn with_function<R>(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut D, &D::Function) -> Result<R, DriverError>,
    ) -> Result<R, OpError> {
        let function = self.functions.get(name).ok_or_else(|| DriverError {
            call: "cuModuleGetFunction",
            code: 0,
            text: format!("no kernel {name} for {}", self.driver.arch()),
            fatal: false,
        })?;
        let result = call(&mut self.driver, function);
        result.map_err(|error| DriverError { text: format!("{name}: {}", error.text), ..error }.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Sizes of the weights of Kimi K2 in the order in which they are loaded: experts in NVFP4, everything else of `bits` bits a value.
    fn kimi_k2(bits: usize) -> Vec<usize> {
        let (hidden, vocab, experts) = (7168, 163_840, 384);
        let vector = |values: usize| 4 * values;
        // Codes, scales of blocks of 128 x 128, the factors of a matrix or of a pair.
        let matrix = |values: usize| [values * bits / 8, values / 4096, 8];
        let packed = |values: usize| [experts * values / 2, experts * values / 16, 8 * experts];
        let mut sizes = vec![2 * vocab * hidden];
        for layer in 0..61 {
            sizes.push(vector(hidden));
            sizes.extend(matrix(1536 * hidden));
            sizes.push(vector(1536));
            sizes.extend([matrix(12_288 * 1536), matrix(576 * hidden)].concat());
            sizes.extend([vector(512), 2 * 16_384 * 512]);
            sizes.extend(matrix(hidden * 8192));
            sizes.push(vector(hidden));
            if layer == 0 {
                sizes.extend([matrix(2 * 18_432 * hidden), matrix(18_432 * hidden)].concat());
                continue;
            }
            sizes.extend([vector(experts * hidden), vector(experts)]);
            sizes.extend([packed(2 * 2048 * hidden), packed(2048 * hidden)].concat());
            sizes.extend([matrix(2 * 2048 * hidden), matrix(2048 * hidden)].concat());
        }
        sizes.push(vector(hidden));
        sizes.extend(matrix(vocab * hidden));
        sizes
    }

    /// What allocations lose is a part of the gibibyte that the memory plan sets aside.
    #[test]
    fn the_weights_of_kimi_k2_lose_little_memory() {
        for bits in [16, 8, 4] {
            let (mut arena, mut taken) = (Arena::default(), 0usize);
            let sizes = kimi_k2(bits);
            for bytes in &sizes {
                let allocate = |bytes: usize| {
                    taken += bytes.next_multiple_of(2 * MIB);
                    Ok::<u64, ()>(0)
                };
                arena.place(*bytes, 256 * MIB, allocate).unwrap();
            }
            let lost = taken - arena.left - sizes.iter().sum::<usize>();
            println!("{bits} bits: {} MiB lost in {} buffers", lost / MIB, sizes.len());
            assert!(lost < 160 * MIB, "{bits} bits: {} MiB", lost / MIB);
        }
    }

    #[test]
    fn buffers_of_a_chunk_do_not_overlap() {
        let mut arena = Arena::default();
        let mut next = 4096;
        let mut place = |bytes: usize| {
            let allocate = |bytes: usize| {
                let address = next;
                next += bytes as u64;
                Ok::<u64, ()>(address)
            };
            arena.place(bytes, 65_536, allocate).unwrap()
        };
        // A chunk of 64 KiB; 1 KiB and less are cut from it, and what fits.
        assert_eq!([place(1), place(256), place(257), place(0)], [4096, 4352, 4608, 5120]);
        assert_eq!([place(2048), place(65_000), place(1024)], [5376, 4096 + 65_536, 7424]);
    }
}
