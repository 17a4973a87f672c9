//! A compiler of programs, what it gives and why it refuses.
//!
//! Resources are checked before a result is given out: a spill, a stack frame, too many registers, too much shared memory or
//! serialized instructions are errors.

use std::path::PathBuf;
use std::time::Duration;

use super::{Arch, FunctionUsage, Program, SourceError, ptxas_log};

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
    #[error("{library} has no {function}; set kernels.nvrtc_library to NVRTC of CUDA 12.9 or later")]
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
        /// Architecture that the kernel is compiled for.
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
        /// Architecture that the kernel is compiled for.
        arch: Arch,
        /// The compiler's messages.
        log: String,
    },
    /// The compiler's log or CUBIN lacks a function of the program.
    #[error("kernel {kernel} for {arch}: the compiler's log has no resources of function {function}")]
    MissingUsage {
        /// Name of the kernel.
        kernel: String,
        /// Architecture that the kernel is compiled for.
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
        /// Architecture that the kernel is compiled for.
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
        /// Architecture that the kernel is compiled for.
        arch: Arch,
        /// Resources of the function.
        usage: FunctionUsage,
        /// Most registers.
        limit: u32,
    },
    /// More shared memory than a block of the target has.
    #[error(
        "kernel {kernel} for {arch}: function {} uses {} bytes of shared memory beside {dynamic} of its launches, a block has {limit}",
        usage.name, usage.shared_bytes
    )]
    SharedMemory {
        /// Name of the kernel.
        kernel: String,
        /// Architecture that the kernel is compiled for.
        arch: Arch,
        /// Resources of the function.
        usage: FunctionUsage,
        /// Most dynamic shared memory of a launch, bytes.
        dynamic: u32,
        /// Most shared memory of a block, bytes.
        limit: u32,
    },
    /// The compiler reports that it serialized instructions.
    #[error("kernel {kernel} for {arch}: {remark}")]
    Slow {
        /// Name of the kernel.
        kernel: String,
        /// Architecture that the kernel is compiled for.
        arch: Arch,
        /// Line of the log.
        remark: String,
    },
}

/// Resources of the program's functions; errors: one is missing or exceeds a limit.
pub(super) fn checked_usage(program: &Program, log: &str) -> Result<Vec<FunctionUsage>, CompileError> {
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
        let (dynamic, limit) = (program.shared_bytes, arch.max_shared_bytes());
        if usage.shared_bytes.saturating_add(dynamic) > limit {
            return Err(CompileError::SharedMemory { kernel: kernel(), arch, usage, dynamic, limit });
        }
        functions.push(usage);
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, kernels};

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
        // Beside the 8 bytes of the log.
        program.shared_bytes = Arch::Sm90a.max_shared_bytes() - 8;
        assert!(check(&program, &[("a", 1, 0, 0), ("b", 1, 0, 0)]).is_ok());
        program.shared_bytes += 1;
        let error = check(&program, &[("a", 1, 0, 0), ("b", 1, 0, 0)]).unwrap_err();
        assert!(matches!(error, CompileError::SharedMemory { limit: 232_448, .. }), "{error}");
    }
}
