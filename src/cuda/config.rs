//! Settings of the compiled kernels.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Smallest bound of the cache directory, bytes: the kernels of one architecture.
const MIN_CACHE_BYTES: u64 = 16 << 20;

/// Longest tuning at a start, seconds.
const MAX_TUNE_SECONDS: u64 = 3600;

/// Kernels for GPUs, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of compiled kernels, relative to the working directory. Without a usable folder kernels are compiled at
    /// each start.
    pub cache_dir: PathBuf,
    /// Most bytes of compiled kernels in cache_dir; above it the oldest unused ones are deleted. Larger: more disk,
    /// fewer compilations after a change of version.
    pub max_cache_bytes: u64,
    /// Most seconds of a start that go into timing variants of kernels for the model and this GPU, 0 = none. What is
    /// timed is kept in cache_dir and not timed again; `perigee tune` times everything. Larger: slower first starts,
    /// never other results.
    pub tune_seconds: u64,
    /// Whether dense products of BF16 weights with more than 96 rows, in steps with rows of a prompt, are cuBLASLt's where they were timed
    /// and are faster: prompts of models with such weights take less time. Its sums depend on the number of rows: with it, what else is
    /// being computed can change a reply. Takes the memory of the largest such matrix, and 64 MiB. Needs libcublasLt.so.13 (or .12).
    pub cublaslt: bool,
    /// Whether kernels of steps with few rows that leave the memory idle bring weights of the kernels behind them into the second cache,
    /// on GPUs of compute capability 9.0 and later: never other results. Not measured on a GPU yet.
    pub fetch_ahead: bool,
    /// Whether a kernel's blocks may be placed before the kernel in front of it has ended (programmatic dependent launch), on GPUs of
    /// compute capability 9.0 and later: shorter gaps between the kernels of a step, never other results. A small model decodes 10 % faster
    /// (H200); layers of Kimi K2 were 3 % slower (H100).
    pub dependent_launch: bool,
    /// Percent of a multiprocessor's first-level memory that each kernel asks the driver to set aside as shared memory; not set = the
    /// driver chooses for each kernel. With one value for all kernels no launch waits for another division of that memory: never other
    /// results. Not measured on a GPU yet.
    pub shared_memory_percent: Option<u8>,
    /// Library file of NVRTC, which compiles kernels; not set = libnvrtc.so.13 (or .12) as the system's loader finds
    /// it.
    pub nvrtc_library: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cache_dir: "jit-cache".into(),
            max_cache_bytes: 1 << 30,
            tune_seconds: 10,
            cublaslt: false,
            fetch_ahead: false,
            dependent_launch: false,
            shared_memory_percent: None,
            nvrtc_library: None,
        }
    }
}

impl Config {
    /// Problems as (key, limit).
    pub fn validate(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.cache_dir.as_os_str().is_empty() {
            problems.push(("cache_dir", "must name a folder".into()));
        }
        if self.max_cache_bytes < MIN_CACHE_BYTES {
            problems.push(("max_cache_bytes", format!("must be at least {MIN_CACHE_BYTES}")));
        }
        if self.shared_memory_percent.is_some_and(|percent| percent > 100) {
            problems.push(("shared_memory_percent", "must be at most 100".into()));
        }
        if self.tune_seconds > MAX_TUNE_SECONDS {
            problems.push(("tune_seconds", format!("must be at most {MAX_TUNE_SECONDS}")));
        }
        problems
    }
}
