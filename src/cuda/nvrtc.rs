//! NVRTC: CUDA C++ to CUBIN and PTX, on machines with and without a GPU.
//!
//! The library is bound here and not by cudarc, which finds it by name alone, panics on a missing function, and has
//! result codes as an enum without the codes of later versions. Several threads may compile at once. Resources are
//! checked before a result is given out: a spill, a stack frame, too many registers or serialized instructions are
//! errors.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::library::{Library, file_at};
use super::{Arch, FunctionUsage, Program, SourceError, ptxas_log};

/// Names along the loader's search path, newest first.
const LIBRARY_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// First version that carries the headers of CUDA inside.
const BUNDLED_HEADERS: (u32, u32) = (13, 5);
/// Headers whose contents decide code, for versions that read them from a folder.
const HEADER_STEMS: [&str; 5] = ["cuda_bf16", "cuda_fp16", "cuda_fp8", "cuda_fp6", "cuda_fp4"];

/// A compiler of programs.
pub trait Compiler: Send + Sync {
    /// What decides a CUBIN beside the program: the compiler's name, version and contents.
    fn identity(&self) -> Result<String, CompileError>;
    /// Compiles a program and checks its limits.
    fn compile(&self, program: &Program) -> Result<Compiled, CompileError>;
}

/// Result of a compilation.
#[derive(Debug, Clone, PartialEq)]
pub struct Compiled {
    /// Machine code for the driver.
    pub cubin: Vec<u8>,
    /// PTX text, which the CUBIN was made of.
    pub ptx: String,
    /// Resources by function, in the order of the program's list.
    pub functions: Vec<FunctionUsage>,
    /// The compiler's messages.
    pub log: String,
    /// Time of the compilation.
    pub duration: Duration,
}

/// Reason why there is no CUBIN, with the remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// The library cannot be opened.
    #[error(
        "NVRTC, the compiler of kernels, cannot be opened ({reason}); install it (python3 -m pip install \
         nvidia-cuda-nvrtc) and put the folder of libnvrtc.so.13 on LD_LIBRARY_PATH, or set kernels.nvrtc_library"
    )]
    NoLibrary {
        /// Text of the loader.
        reason: String,
    },
    /// The library lacks a function.
    #[error("{library} has no {function}; set kernels.nvrtc_library to NVRTC of CUDA 12.8 or later")]
    MissingFunction {
        /// File of the library.
        library: PathBuf,
        /// Name of the function.
        function: &'static str,
    },
    /// The library's file, which is hashed, cannot be read.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Error of the operating system.
        reason: String,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// Text of the result code.
        reason: String,
    },
    /// The version does not know the target.
    #[error("NVRTC {}.{} does not know {arch}; install a later version (python3 -m pip install nvidia-cuda-nvrtc)", version.0, version.1)]
    UnknownArch {
        /// Target.
        arch: Arch,
        /// Version of the library: major, minor.
        version: (u32, u32),
    },
    /// There is no place to take headers of CUDA from.
    #[error("kernel {kernel} includes a header of CUDA: {reason}")]
    NoHeaders {
        /// Name of the kernel.
        kernel: String,
        /// Missing thing and remedy.
        reason: String,
    },
    /// The sources do not fit together.
    #[error(transparent)]
    Source(SourceError),
    /// The program is refused.
    #[error("kernel {kernel} does not compile for {arch}:\n{log}")]
    Refused {
        /// Name of the kernel.
        kernel: String,
        /// Target.
        arch: Arch,
        /// The compiler's messages.
        log: String,
    },
    /// The compiler's log or CUBIN lacks a function of the program.
    #[error("kernel {kernel} for {arch}: the compiler's log has no resources of function {function}")]
    MissingUsage {
        /// Name of the kernel.
        kernel: String,
        /// Target.
        arch: Arch,
        /// Name of the function.
        function: String,
    },
    /// Registers do not suffice, or an array is indexed by a variable.
    #[error(
        "kernel {kernel} for {arch}: function {} uses local memory: {} bytes of stack, {} spilled, {} reloaded",
        usage.name, usage.stack_bytes, usage.spill_store_bytes, usage.spill_load_bytes
    )]
    LocalMemory {
        /// Name of the kernel.
        kernel: String,
        /// Target.
        arch: Arch,
        /// Resources of the function.
        usage: FunctionUsage,
    },
    /// More registers than the kernel's limit.
    #[error(
        "kernel {kernel} for {arch}: function {} uses {} registers, its limit is {limit}",
        usage.name, usage.registers
    )]
    Registers {
        /// Name of the kernel.
        kernel: String,
        /// Target.
        arch: Arch,
        /// Resources of the function.
        usage: FunctionUsage,
        /// Most registers.
        limit: u32,
    },
    /// The compiler reports that it serialized instructions.
    #[error("kernel {kernel} for {arch}: {remark}")]
    Slow {
        /// Name of the kernel.
        kernel: String,
        /// Target.
        arch: Arch,
        /// Line of the log.
        remark: String,
    },
}

/// `nvrtcProgram`.
type Handle = *mut c_void;

/// Declares the functions of the library: field, name, type.
macro_rules! functions {
    ($($field:ident = $name:ident($($kind:ty),*) -> $result:ty;)*) => {
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($kind),*) -> $result,)*
        }

        impl Functions {
            /// Looks all functions up; the error is the name of a missing one.
            fn find(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let name = concat!(stringify!($name), "\0");
                        let name_c = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| stringify!($name))?;
                        let address = library.address(name_c).ok_or(stringify!($name))?;
                        // SAFETY: the type is the function's in nvrtc.h, with `nvrtcResult` as a number.
                        unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> $result>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    version = nvrtcVersion(*mut c_int, *mut c_int) -> c_int;
    num_archs = nvrtcGetNumSupportedArchs(*mut c_int) -> c_int;
    archs = nvrtcGetSupportedArchs(*mut c_int) -> c_int;
    error_text = nvrtcGetErrorString(c_int) -> *const c_char;
    create = nvrtcCreateProgram(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
    destroy = nvrtcDestroyProgram(*mut Handle) -> c_int;
    compile = nvrtcCompileProgram(Handle, c_int, *const *const c_char) -> c_int;
    log_size = nvrtcGetProgramLogSize(Handle, *mut usize) -> c_int;
    log = nvrtcGetProgramLog(Handle, *mut c_char) -> c_int;
    cubin_size = nvrtcGetCUBINSize(Handle, *mut usize) -> c_int;
    cubin = nvrtcGetCUBIN(Handle, *mut c_char) -> c_int;
    ptx_size = nvrtcGetPTXSize(Handle, *mut usize) -> c_int;
    ptx = nvrtcGetPTX(Handle, *mut c_char) -> c_int;
}

/// The library.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    path: PathBuf,
    version: (u32, u32),
    /// Compute capabilities times ten.
    archs: Vec<c_int>,
    headers: Headers,
    identity: OnceLock<Result<String, CompileError>>,
}

/// Where headers of CUDA come from.
#[derive(Debug)]
enum Headers {
    /// From inside the library, by way of this folder.
    Bundled(Option<PathBuf>),
    /// From a folder beside the library; `None` if there is none.
    Folder(Option<PathBuf>),
}

impl Nvrtc {
    /// Opens `library`, or the newest version that the loader finds. `headers_dir` is a folder, made when needed, to
    /// which a library that carries headers of CUDA writes them (26 MB).
    pub fn open(library: Option<&Path>, headers_dir: Option<&Path>) -> Result<Self, CompileError> {
        let opened = open_library(library).map_err(|reason| CompileError::NoLibrary { reason })?;
        let file = |address: Option<*const c_void>| address.and_then(file_at);
        let path = file(opened.address(c"nvrtcVersion"))
            .or_else(|| library.map(Path::to_owned))
            .unwrap_or_else(|| LIBRARY_NAMES[0].into());
        let functions = Functions::find(&opened)
            .map_err(|function| CompileError::MissingFunction { library: path.clone(), function })?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: both numbers are writable.
        functions.check("nvrtcVersion", unsafe { (functions.version)(&mut major, &mut minor) })?;
        let version = (major.max(0) as u32, minor.max(0) as u32);
        // Versions without a run path find their own second library only where the loader has it already.
        if let Some(dir) = path.parent() {
            let _ = Library::open(&dir.join(format!("libnvrtc-builtins.so.{major}.{minor}")));
        }
        // SAFETY: the count is writable, and the list has as many numbers.
        functions.check("nvrtcGetNumSupportedArchs", unsafe { (functions.num_archs)(&mut count) })?;
        let mut archs = vec![0; count.max(0) as usize];
        // SAFETY: as above.
        functions.check("nvrtcGetSupportedArchs", unsafe { (functions.archs)(archs.as_mut_ptr()) })?;
        let headers = match version >= BUNDLED_HEADERS {
            true => Headers::Bundled(headers_dir.map(|dir| dir.join(format!("{major}.{minor}")))),
            false => Headers::Folder(headers_beside(&path)),
        };
        Ok(Self { functions, path, version, archs, headers, identity: OnceLock::new() })
    }

    /// Version: major, minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// File of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn compute_identity(&self) -> Result<String, CompileError> {
        let (major, minor) = self.version;
        let mut identity = format!("nvrtc {major}.{minor} {}", hash_of(std::slice::from_ref(&self.path))?);
        if let Headers::Folder(Some(dir)) = &self.headers {
            let files = HEADER_STEMS
                .iter()
                .flat_map(|stem| ["h", "hpp"].map(|end| dir.join(format!("{stem}.{end}"))));
            let files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
            identity.push_str(&format!(" headers {}", hash_of(&files)?));
        }
        Ok(identity)
    }

    /// Option that makes headers of CUDA available to a program that includes one.
    fn header_option(&self, kernel: &str) -> Result<String, CompileError> {
        let missing = |reason: &str| CompileError::NoHeaders { kernel: kernel.into(), reason: reason.into() };
        match &self.headers {
            Headers::Bundled(Some(dir)) => {
                std::fs::create_dir_all(dir).map_err(|e| {
                    missing(&format!("{} cannot be made: {e}; set kernels.cache_dir", dir.display()))
                })?;
                Ok(format!("--use-bundled-headers={}", dir.display()))
            }
            Headers::Bundled(None) => Err(missing("NVRTC needs a folder for them; set kernels.cache_dir")),
            Headers::Folder(Some(dir)) => Ok(format!("--include-path={}", dir.display())),
            Headers::Folder(None) => Err(missing(
                "there are none beside NVRTC; install nvidia-cuda-runtime of the same version, or NVRTC 13.5",
            )),
        }
    }

    /// CUBIN, PTX and log of a program, its limits unchecked.
    fn translate(&self, program: &Program) -> Result<(Vec<u8>, String, String), CompileError> {
        let functions = &self.functions;
        let text = |text: &str| {
            CString::new(text)
                .map_err(|e| CompileError::Call { call: "nvrtcCreateProgram", reason: e.to_string() })
        };
        let source = text(&program.text)?;
        let name = text(&format!("{}.cu", program.kernel))?;
        let mut options = program.options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        if program.cuda_headers {
            options.push(text(&self.header_option(&program.kernel)?)?);
        }
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: text and name are C strings, and there are no headers.
        let code = unsafe {
            let none = std::ptr::null();
            (functions.create)(&mut handle, source.as_ptr(), name.as_ptr(), 0, none, none)
        };
        functions.check("nvrtcCreateProgram", code)?;
        let guard = Handed { functions, handle };
        // SAFETY: the program is alive, and the options are C strings that outlive the call.
        let code = unsafe { (functions.compile)(guard.handle, options.len() as c_int, options.as_ptr()) };
        let log = text_of(guard.read("nvrtcGetProgramLog", functions.log_size, functions.log)?);
        if code != 0 {
            let (kernel, arch) = (program.kernel.clone(), program.arch);
            let reason = functions.text(code);
            let log = if log.trim().is_empty() { reason } else { log };
            return Err(CompileError::Refused { kernel, arch, log: log.trim_end().to_owned() });
        }
        let cubin = guard.read("nvrtcGetCUBIN", functions.cubin_size, functions.cubin)?;
        let ptx = text_of(guard.read("nvrtcGetPTX", functions.ptx_size, functions.ptx)?);
        Ok((cubin, ptx, log))
    }
}

impl Compiler for Nvrtc {
    fn identity(&self) -> Result<String, CompileError> {
        self.identity.get_or_init(|| self.compute_identity()).clone()
    }

    fn compile(&self, program: &Program) -> Result<Compiled, CompileError> {
        if !self.archs.contains(&program.arch.number()) {
            return Err(CompileError::UnknownArch { arch: program.arch, version: self.version });
        }
        let start = Instant::now();
        let (cubin, ptx, log) = self.translate(program)?;
        let functions = checked_usage(program, &log)?;
        Ok(Compiled { cubin, ptx, functions, log, duration: start.elapsed() })
    }
}

/// Resources of the program's functions; errors: one is missing or exceeds a limit.
fn checked_usage(program: &Program, log: &str) -> Result<Vec<FunctionUsage>, CompileError> {
    let (kernel, arch) = (&program.kernel, program.arch);
    let kernel = || kernel.clone();
    if let Some(remark) = ptxas_log::slow_remark(log) {
        return Err(CompileError::Slow { kernel: kernel(), arch, remark: remark.into() });
    }
    let logged = ptxas_log::functions(log);
    let mut functions = Vec::with_capacity(program.functions.len());
    for function in &program.functions {
        let usage = logged.iter().find(|usage| usage.name == *function).cloned();
        let usage = usage.ok_or_else(|| CompileError::MissingUsage {
            kernel: kernel(),
            arch,
            function: function.clone(),
        })?;
        let local = usage.stack_bytes + usage.spill_store_bytes + usage.spill_load_bytes;
        if local > 0 && !program.limits.local_memory {
            return Err(CompileError::LocalMemory { kernel: kernel(), arch, usage });
        }
        let limit = program.limits.registers;
        if usage.registers > limit {
            return Err(CompileError::Registers { kernel: kernel(), arch, usage, limit });
        }
        functions.push(usage);
    }
    Ok(functions)
}

impl Functions {
    fn text(&self, code: c_int) -> String {
        // SAFETY: the library takes any number and returns a constant C string.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CompileError> {
        if code == 0 { Ok(()) } else { Err(CompileError::Call { call, reason: self.text(code) }) }
    }
}

/// A program of the library, destroyed on drop.
struct Handed<'f> {
    functions: &'f Functions,
    handle: Handle,
}

impl Handed<'_> {
    /// A result whose size and bytes two functions give.
    fn read(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, CompileError> {
        let mut bytes = 0usize;
        // SAFETY: the program is alive and the size is writable.
        self.functions.check(call, unsafe { size(self.handle, &mut bytes) })?;
        let mut out = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the library asked for.
        self.functions.check(call, unsafe { read(self.handle, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

impl Drop for Handed<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is alive and not used again.
        let _ = unsafe { (self.functions.destroy)(&mut self.handle) };
    }
}

/// Text before the first zero byte.
fn text_of(bytes: Vec<u8>) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn open_library(library: Option<&Path>) -> Result<Library, String> {
    if let Some(path) = library {
        return Library::open(path);
    }
    let mut reason = String::new();
    for name in LIBRARY_NAMES {
        match Library::open(Path::new(name)) {
            Ok(library) => return Ok(library),
            Err(error) if reason.is_empty() => reason = error,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The include folder of the installation that a library belongs to: wheels and toolkits have it beside `lib`.
fn headers_beside(library: &Path) -> Option<PathBuf> {
    let library = library.canonicalize().ok()?;
    library
        .ancestors()
        .skip(2)
        .take(3)
        .map(|dir| dir.join("include"))
        .find(|dir| dir.join("cuda_bf16.h").is_file())
}

/// blake3 of files in their order, in hexadecimal. SHA-256 would take several times as long on the library's 141 MB,
/// which are read at each start.
fn hash_of(files: &[PathBuf]) -> Result<String, CompileError> {
    let mut hasher = blake3::Hasher::new();
    for path in files {
        let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut hasher));
        read.map_err(|e| CompileError::Unreadable { path: path.clone(), reason: e.to_string() })?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Limits, kernels};

    fn log_of(functions: &[(&str, u32, u32, u32)]) -> String {
        functions
            .iter()
            .map(|(name, registers, stack, spill)| {
                format!(
                    "ptxas info : Compiling entry function '{name}' for 'sm_90a'\n\
                     {stack} bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads\n\
                     ptxas info : Used {registers} registers, 8 bytes smem\n"
                )
            })
            .collect()
    }

    #[test]
    fn limits_are_checked_for_every_function_of_the_program() {
        let mut program = Program::new(&kernels::rms_norm::KERNEL, Arch::Sm90a).unwrap();
        program.functions = vec!["a".into(), "b".into()];
        program.limits = Limits { registers: 64, local_memory: false };
        let check = |program: &Program, functions: &[_]| checked_usage(program, &log_of(functions));
        let good = check(&program, &[("b", 64, 0, 0), ("a", 10, 0, 0)]).unwrap();
        assert_eq!(
            good.iter().map(|usage| (&*usage.name, usage.registers)).collect::<Vec<_>>(),
            [("a", 10), ("b", 64)]
        );
        let error = |functions: &[_]| check(&program, functions).unwrap_err();
        assert!(
            matches!(error(&[("a", 10, 0, 0)]), CompileError::MissingUsage { function, .. } if function == "b")
        );
        assert!(matches!(error(&[("a", 10, 8, 0), ("b", 1, 0, 0)]), CompileError::LocalMemory { .. }));
        assert!(matches!(error(&[("a", 10, 0, 4), ("b", 1, 0, 0)]), CompileError::LocalMemory { .. }));
        assert!(matches!(
            error(&[("a", 10, 0, 0), ("b", 65, 0, 0)]),
            CompileError::Registers { limit: 64, .. }
        ));
        let log = format!("{}info : (C7508) setmaxnreg ignored", log_of(&[("a", 1, 0, 0), ("b", 1, 0, 0)]));
        assert!(matches!(checked_usage(&program, &log), Err(CompileError::Slow { .. })));
        program.limits.local_memory = true;
        assert!(check(&program, &[("a", 10, 8, 4), ("b", 1, 0, 0)]).is_ok());
    }

    #[test]
    fn a_library_that_is_not_nvrtc_is_refused_with_the_remedy() {
        let missing = Nvrtc::open(Some(Path::new("/no/such/libnvrtc.so.13")), None).unwrap_err();
        assert!(matches!(missing, CompileError::NoLibrary { .. }));
        assert!(missing.to_string().contains("kernels.nvrtc_library"), "{missing}");
        let other = Nvrtc::open(Some(Path::new("libc.so.6")), None).unwrap_err();
        assert!(matches!(other, CompileError::MissingFunction { function: "nvrtcVersion", .. }), "{other}");
    }
}
