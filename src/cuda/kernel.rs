//! What is compiled: a kernel as declared by its twin, and a program, which is one kernel for one architecture.

use serde::{Deserialize, Serialize};

use super::source;
use super::{Arch, SourceError};

/// Options of every program. `-v` of ptxas prints resources and changes no code; `-lineinfo` is absent because it
/// writes the program's name into the CUBIN. What NVRTC finds in its own cache, which it has where there is a driver, comes
/// without the log that the resources are read from.
const COMMON_OPTIONS: &[&str] = &["--no-cache", "--std=c++17", "--no-source-include", "--ptxas-options=-v"];

/// Declaration of a kernel file.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Stem of `kernels/<name>.cu`.
    pub name: &'static str,
    /// Its text, with includes.
    pub text: &'static str,
    /// Its `extern "C" __global__` functions.
    pub functions: &'static [&'static str],
    /// Architectures it is compiled for.
    pub archs: &'static [Arch],
    /// Options for an architecture beside those of every kernel; no option holds a path.
    pub options: fn(Arch) -> &'static [&'static str],
    /// Bounds on what the compiler may use.
    pub limits: Limits,
    /// Most dynamic shared memory of a launch on an architecture, bytes.
    pub shared_bytes: fn(Arch) -> u32,
}

/// Bounds on the resources of each function; a program that exceeds them is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most registers of a thread.
    pub registers: u32,
    /// Whether a stack frame and spills are accepted.
    pub local_memory: bool,
}

/// Resources of one function, from the compiler's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionUsage {
    /// Name of the `__global__` function.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Stack frame of a thread, bytes.
    pub stack_bytes: u32,
    /// Bytes of a thread's registers stored to local memory.
    pub spill_store_bytes: u32,
    /// Bytes of a thread's registers loaded from local memory.
    pub spill_load_bytes: u32,
}

/// Input of the compiler: everything that decides the CUBIN except the compiler itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name of the kernel.
    pub kernel: String,
    /// Architecture that the kernel is compiled for.
    pub arch: Arch,
    /// Source with its includes expanded.
    pub text: String,
    /// Whether the text includes a header of CUDA.
    pub cuda_headers: bool,
    /// Options, sorted, the target included.
    pub options: Vec<String>,
    /// Functions that the CUBIN must have.
    pub functions: Vec<String>,
    /// Bounds on their resources.
    pub limits: Limits,
    /// Most dynamic shared memory of a launch, bytes.
    pub shared_bytes: u32,
}

impl Program {
    /// The program of `kernel` for `arch`.
    pub fn new(kernel: &Kernel, arch: Arch) -> Result<Self, SourceError> {
        let source = source::expand(kernel.name, kernel.text)?;
        let target = format!("--gpu-architecture={arch}");
        let mut options: Vec<String> =
            COMMON_OPTIONS.iter().chain((kernel.options)(arch)).map(|option| (*option).to_owned()).collect();
        options.push(target);
        options.sort();
        Ok(Self {
            kernel: kernel.name.into(),
            arch,
            text: source.text,
            cuda_headers: source.cuda_headers,
            options,
            functions: kernel.functions.iter().map(|name| (*name).to_owned()).collect(),
            limits: kernel.limits,
            shared_bytes: (kernel.shared_bytes)(arch),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;

    /// Static shared memory beside it is known where a program is compiled.
    #[test]
    fn dynamic_shared_memory_fits_in_a_block() {
        for kernel in kernels::ALL {
            for arch in kernel.archs {
                assert!(
                    (kernel.shared_bytes)(*arch) <= arch.max_shared_bytes(),
                    "{} for {arch}",
                    kernel.name
                );
            }
        }
    }

    #[test]
    fn options_are_sorted_and_name_no_path() {
        for kernel in kernels::ALL {
            for arch in kernel.archs {
                let program = Program::new(kernel, *arch).unwrap();
                assert!(program.options.is_sorted());
                assert!(program.options.contains(&format!("--gpu-architecture={arch}")));
                assert!(!program.options.iter().any(|option| option.contains('/')), "{:?}", program.options);
            }
        }
    }
}
