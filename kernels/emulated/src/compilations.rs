//! What NVRTC makes of programs, once for all processes: a compiler's time is most of what tests of kernels take.
//!
//! Each test runs in a process of its own, so compiled programs are files, named after the program, the compiler and the code that
//! checks what it gave. A process that finds a program locked by another one compiles one of the same architecture that nobody has
//! begun, since it is likely to need that next.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use perigee_cuda::{Arch, Compiler, Nvrtc, Program, kernels};
use perigee_emulator::machine::Ptx;

/// A compiled program that is within its limits.
#[derive(Debug)]
pub struct Code {
    /// For the device.
    pub cubin: Vec<u8>,
    /// For the emulator.
    pub ptx: String,
}

/// The compiler, and what it has compiled.
pub struct Compilations {
    nvrtc: Nvrtc,
    identity: String,
    folder: PathBuf,
    /// What this process has parsed.
    parsed: Mutex<HashMap<blake3::Hash, Arc<Ptx>>>,
}

impl Compilations {
    /// Those in a folder, which is made where it is not there. Errors say why it cannot be made.
    pub fn open(nvrtc: Nvrtc, folder: &Path) -> Result<Self, String> {
        let checks =
            [include_str!("../../../src/cuda/compiler.rs"), include_str!("../../../src/cuda/ptxas_log.rs")];
        let identity = format!("{:?} {}", nvrtc.version(), blake3::hash(checks.concat().as_bytes()));
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { nvrtc, identity, folder: folder.to_owned(), parsed: Mutex::default() })
    }

    /// The parsed PTX of a program.
    pub fn parsed(&self, program: &Program) -> Result<Arc<Ptx>, String> {
        let key = self.key(program);
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ptx) = parsed.get(&key) {
            return Ok(ptx.clone());
        }
        let ptx = Ptx::parse(&self.ptx(program)?)?;
        parsed.insert(key, ptx.clone());
        Ok(ptx)
    }

    /// The PTX of a program.
    pub fn ptx(&self, program: &Program) -> Result<String, String> {
        self.obtain(program)?;
        fs::read_to_string(self.path(program, "ptx")).map_err(|e| e.to_string())
    }

    /// A program's machine code and PTX.
    pub fn code(&self, program: &Program) -> Result<Code, String> {
        let ptx = self.ptx(program)?;
        Ok(Code { cubin: fs::read(self.path(program, "cubin")).map_err(|e| e.to_string())?, ptx })
    }

    fn key(&self, program: &Program) -> blake3::Hash {
        blake3::hash(format!("{} {program:?}", self.identity).as_bytes())
    }

    fn path(&self, program: &Program, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{ending}", self.key(program).to_hex()))
    }

    /// The PTX comes last: where it is, the rest is too.
    fn is_there(&self, program: &Program) -> bool {
        self.path(program, "ptx").exists()
    }

    /// Sees to it that a program is compiled.
    fn obtain(&self, program: &Program) -> Result<(), String> {
        let lock = |program: &Program| File::create(self.path(program, "lock")).map_err(|e| e.to_string());
        while !self.is_there(program) {
            let wanted = lock(program)?;
            if wanted.try_lock().is_ok() {
                return self.compile(program);
            }
            let free = |other: &Program| {
                let other = lock(other).ok().filter(|_| !self.is_there(other))?;
                other.try_lock().is_ok().then_some(other)
            };
            match of_architecture(program.arch).find_map(|other| Some((free(&other)?, other))) {
                Some((_locked, other)) => self.compile(&other)?,
                None => wanted.lock().map_err(|e| e.to_string())?,
            }
        }
        Ok(())
    }

    /// Compiles a program that is locked, unless somebody has.
    fn compile(&self, program: &Program) -> Result<(), String> {
        if self.is_there(program) {
            return Ok(());
        }
        let compiled = self.nvrtc.compile(program).map_err(|e| e.to_string())?;
        println!("{} {}: compiled in {:?}", program.kernel, program.arch, compiled.duration);
        for (ending, bytes) in [("cubin", &compiled.cubin[..]), ("ptx", compiled.ptx.as_bytes())] {
            let partial = self.path(program, "partial");
            let stored =
                fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, self.path(program, ending)));
            stored.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

/// The programs that ship for an architecture.
fn of_architecture(arch: Arch) -> impl Iterator<Item = Program> {
    let kernels = kernels::ALL.iter().filter(move |kernel| kernel.archs.contains(&arch));
    kernels.filter_map(move |kernel| Program::new(kernel, arch).ok())
}
