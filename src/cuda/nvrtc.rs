//! NVRTC: CUDA C++ to CUBIN and PTX, on machines with and without a GPU.
//!
//! The library is bound here and not by cudarc, which finds it by name alone, panics on a missing function, and has
//! result codes as an enum without the codes of later versions. Several threads may compile at once.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use super::compiler::checked_usage;
use super::library::{Library, file_at};
use super::{CompileError, Compiled, Compiler, Program};

/// Names along the loader's search path, newest first.
const LIBRARY_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// First version that carries the headers of CUDA inside.
const BUNDLED_HEADERS: (u32, u32) = (13, 5);
/// Headers whose contents decide code, for versions that read them from a folder.
const HEADER_STEMS: [&str; 5] = ["cuda_bf16", "cuda_fp16", "cuda_fp8", "cuda_fp6", "cuda_fp4"];

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

    #[test]
    fn a_library_that_is_not_nvrtc_is_refused_with_the_remedy() {
        let missing = Nvrtc::open(Some(Path::new("/no/such/libnvrtc.so.13")), None).unwrap_err();
        assert!(matches!(missing, CompileError::NoLibrary { .. }));
        assert!(missing.to_string().contains("kernels.nvrtc_library"), "{missing}");
        let other = Nvrtc::open(Some(Path::new("libc.so.6")), None).unwrap_err();
        assert!(matches!(other, CompileError::MissingFunction { function: "nvrtcVersion", .. }), "{other}");
    }
}
