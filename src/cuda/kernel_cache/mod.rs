//! Compiled kernels: in the process, on the disk, or compiled now.
//!
//! A kernel is taken from memory, else from the cache directory, else it is compiled and stored. Invariant: what is
//! given out was compiled from exactly the program asked for. A file that is damaged, cut or of another program is
//! deleted and compiled again; a directory that is absent, full, read-only or not trusted costs compilations and one
//! warning, never an error. A compiler that is absent, or refuses the program, costs nothing where another one's entry of it is
//! stored. Concurrent threads compile a program once; concurrent processes may compile it twice, and the last complete
//! file stays.

mod directory;
mod entry;
mod volume;
#[cfg(test)]
pub(super) mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Arch, CompileError, Compiled, Compiler, FunctionUsage, Kernel, Program, kernels};
use directory::{Directory, Found};
use entry::{Key, Notes};
pub use volume::Volume;

/// Where compiled kernels are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Directory; `None` keeps them in memory alone.
    pub dir: Option<PathBuf>,
    /// Most bytes of entries in the directory.
    pub max_bytes: u64,
    /// Whether an absent directory is made.
    pub create: bool,
}

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Binary {
    /// Machine code for the driver.
    pub cubin: Vec<u8>,
    /// Resources by function.
    pub functions: Vec<FunctionUsage>,
    /// Where it came from.
    pub origin: Origin,
    /// Time of its compilation, now or earlier.
    pub compile_time: Duration,
}

/// Where a kernel came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A file of the cache directory.
    Disk,
    /// The compiler.
    Compiled,
}

/// Reason why there is no kernel.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// A program that was not loaded before the freeze would have to be compiled.
    #[error(
        "kernel {kernel} for {arch} is not compiled, and the server is past the point where it compiles kernels"
    )]
    Frozen {
        /// Name of the kernel.
        kernel: String,
        /// Architecture that the kernel is compiled for.
        arch: Arch,
    },
    /// The compiler's error.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// A kernel that [`KernelCache::obtain_all`] asked for.
#[derive(Debug)]
pub struct Obtained {
    /// Its declaration.
    pub kernel: &'static Kernel,
    /// Architecture that the kernel is compiled for.
    pub arch: Arch,
    /// The compiled kernel, or the reason why there is none.
    pub result: Result<Arc<Binary>, KernelError>,
    /// Time of the request.
    pub time: Duration,
}

/// What a cache did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Kernels found in memory.
    pub memory_hits: u64,
    /// Kernels read from the directory.
    pub disk_hits: u64,
    /// Kernels found nowhere, damaged entries not counted.
    pub misses: u64,
    /// Damaged entries, compiled again.
    pub rebuilt: u64,
    /// Entries deleted to make room.
    pub evicted: u64,
    /// Time of all compilations, added over threads, seconds.
    pub compile_seconds: f64,
    /// Time of all reads, added over threads, seconds.
    pub read_seconds: f64,
}

type Slot = Arc<OnceLock<Result<Arc<Binary>, KernelError>>>;

/// The cache. One value serves all threads of a process.
pub struct KernelCache {
    compiler: Result<Arc<dyn Compiler>, CompileError>,
    directory: Option<Directory>,
    /// The first reason why the directory is not used or no longer written to.
    degraded: OnceLock<String>,
    /// Ends when the log has a line on the use of another compiler's entries.
    other_compiler: Once,
    slots: Mutex<HashMap<Key, Slot>>,
    frozen: AtomicBool,
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
    rebuilt: AtomicU64,
    evicted: AtomicU64,
    compile_ns: AtomicU64,
    read_ns: AtomicU64,
}

impl KernelCache {
    /// Opens the directory. Without a compiler, or where it refuses a program, stored kernels of the same source are used
    /// whatever compiled them; any other kernel is the compiler's error, or the given one.
    pub fn open(settings: &CacheSettings, compiler: Result<Arc<dyn Compiler>, CompileError>) -> Self {
        let opened =
            settings.dir.as_deref().map(|dir| Directory::open(dir, settings.max_bytes, settings.create));
        let (directory, reason) = match opened {
            Some(Ok(directory)) => (Some(directory), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let cache = Self::with_directory(directory, compiler);
        if let Some(reason) = reason {
            cache.degrade(reason);
        }
        cache
    }

    fn with_directory(
        directory: Option<Directory>,
        compiler: Result<Arc<dyn Compiler>, CompileError>,
    ) -> Self {
        Self {
            compiler,
            directory,
            degraded: OnceLock::new(),
            other_compiler: Once::new(),
            slots: Mutex::default(),
            frozen: AtomicBool::new(false),
            memory_hits: AtomicU64::new(0),
            disk_hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            rebuilt: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            compile_ns: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
        }
    }

    /// The compiled program. Threads that ask for the same one wait for the first.
    pub fn get(&self, program: &Program) -> Result<Arc<Binary>, KernelError> {
        let key = entry::program_key(program);
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(key).or_default())
        };
        let mut first = false;
        let result = slot.get_or_init(|| {
            first = true;
            self.obtain(program, &key).map(Arc::new)
        });
        if !first && result.is_ok() {
            self.memory_hits.fetch_add(1, Ordering::Relaxed);
        }
        result.clone()
    }

    /// Takes every kernel for each of `archs` that it is made for, on `threads` threads (0: all cores). `done` is called
    /// for each with the number of those before it and the number of all.
    pub fn obtain_all(
        &self,
        archs: &[Arch],
        threads: usize,
        done: &(dyn Fn(usize, usize, &Obtained) + Sync),
    ) -> Vec<Obtained> {
        let made_for = |kernel: &&'static Kernel| {
            let kernel = *kernel;
            archs.iter().filter(|arch| kernel.archs.contains(arch)).map(move |arch| (kernel, *arch))
        };
        let wanted: Vec<(&'static Kernel, Arch)> = kernels::ALL.iter().flat_map(made_for).collect();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if threads == 0 { cores } else { threads }.min(wanted.len());
        let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((kernel, arch)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                let program = Program::new(kernel, *arch).map_err(|error| KernelError::Compile(error.into()));
                let result = program.and_then(|program| self.get(&program));
                let obtained = Obtained { kernel, arch: *arch, result, time: start.elapsed() };
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                done(all.len(), wanted.len(), &obtained);
                all.push(obtained);
            }
        };
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        all.sort_by_key(|obtained| (obtained.kernel.name, obtained.arch));
        all
    }

    /// From now on a program that is neither in memory nor in the directory is an error.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            memory_hits: read(&self.memory_hits),
            disk_hits: read(&self.disk_hits),
            misses: read(&self.misses),
            rebuilt: read(&self.rebuilt),
            evicted: read(&self.evicted),
            compile_seconds: read(&self.compile_ns) as f64 / 1e9,
            read_seconds: read(&self.read_ns) as f64 / 1e9,
        }
    }

    /// Why kernels are not kept in the directory, if they are not.
    pub fn degraded(&self) -> Option<&str> {
        self.degraded.get().map(String::as_str)
    }

    fn obtain(&self, program: &Program, key: &Key) -> Result<Binary, KernelError> {
        let compiler = self.compiler.as_ref().map_err(Clone::clone);
        let compiler = compiler.and_then(|compiler| Ok((compiler, compiler.identity()?)));
        let identity = compiler.as_ref().ok().map(|(_, identity)| identity.as_str());
        let (found, damaged) = self.read(program, key, identity);
        if let Some(binary) = found {
            return Ok(binary);
        }
        if self.frozen.load(Ordering::Acquire) {
            let error = KernelError::Frozen { kernel: program.kernel.clone(), arch: program.arch };
            tracing::error!("{error}");
            return Err(error);
        }
        let compiled = compiler
            .map_err(KernelError::from)
            .and_then(|(compiler, identity)| self.compile(program, key, &**compiler, &identity));
        if let Err(error) = &compiled
            && let (Some(binary), _) = self.read(program, key, None)
        {
            let warn = || tracing::warn!("stored kernels of another compiler are used: {error}");
            self.other_compiler.call_once(warn);
            return Ok(binary);
        }
        let counter = if damaged { &self.rebuilt } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        compiled
    }

    /// An entry of the program, of the compiler `identity` or of any, and whether a damaged one was found.
    fn read(&self, program: &Program, key: &Key, identity: Option<&str>) -> (Option<Binary>, bool) {
        let start = Instant::now();
        let (found, damaged) = self.find(program, key, identity);
        add_time(&self.read_ns, start.elapsed());
        self.disk_hits.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        (found, damaged)
    }

    fn find(&self, program: &Program, key: &Key, identity: Option<&str>) -> (Option<Binary>, bool) {
        let Some(directory) = &self.directory else { return (None, false) };
        let paths = match identity {
            Some(identity) => {
                let name = entry::file_name(&program.kernel, key, &entry::entry_key(key, identity));
                vec![directory.path(program.arch, &name)]
            }
            None => directory.list(program.arch, &entry::file_stem(&program.kernel, key)),
        };
        let mut damaged = false;
        for path in paths {
            let reason = match directory.read(&path) {
                Found::Absent => continue,
                Found::Unreadable(reason) => reason,
                Found::File(bytes) => match entry::decode(&bytes, key, identity) {
                    Ok((notes, cubin)) => return (Some(binary_of(notes, cubin)), damaged),
                    Err(reason) => reason.into(),
                },
            };
            damaged = true;
            tracing::warn!("compiled kernel {} is damaged and compiled again: {reason}", path.display());
            directory.discard(&path);
        }
        (None, damaged)
    }

    fn compile(
        &self,
        program: &Program,
        key: &Key,
        compiler: &dyn Compiler,
        identity: &str,
    ) -> Result<Binary, KernelError> {
        let start = Instant::now();
        let compiled = compiler.compile(program);
        let compile_time = start.elapsed();
        add_time(&self.compile_ns, compile_time);
        let compiled = compiled?;
        if let Some(directory) = self.directory.as_ref().filter(|_| self.degraded().is_none()) {
            let compile_ms = compile_time.as_secs_f64() * 1e3;
            let notes = entry::notes(program, identity, compiled.functions.clone(), compile_ms);
            let name = entry::file_name(&program.kernel, key, &entry::entry_key(key, identity));
            let path = directory.path(program.arch, &name);
            match directory.store(&path, &entry::encode(key, &notes, &compiled.cubin)) {
                Ok(evicted) => drop(self.evicted.fetch_add(evicted, Ordering::Relaxed)),
                Err(e) => self.degrade(format!("{} cannot be written: {e}", path.display())),
            }
        }
        let Compiled { cubin, functions, .. } = compiled;
        Ok(Binary { cubin, functions, origin: Origin::Compiled, compile_time })
    }

    /// Warns once: kernels compiled from now on are kept in memory alone.
    fn degrade(&self, reason: String) {
        if self.degraded.set(reason).is_ok()
            && let Some(reason) = self.degraded()
        {
            tracing::warn!("compiled kernels are not kept for the next start: {reason}");
        }
    }
}

fn add_time(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn binary_of(notes: Notes, cubin: &[u8]) -> Binary {
    Binary {
        cubin: cubin.to_vec(),
        functions: notes.functions,
        origin: Origin::Disk,
        compile_time: Duration::try_from_secs_f64(notes.compile_ms / 1e3).unwrap_or_default(),
    }
}
