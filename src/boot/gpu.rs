//! From the settings to an opened GPU: the choice of the device, and its kernels, compiled or from the cache.

use std::sync::Arc;
use std::time::Instant;

use crate::cuda::{
    self, Arch, CacheSettings, Compiler, CudaBackend, Device, DriverError, Hardware, Installation,
    KernelCache, KernelError, Nvrtc, ProbeError, kernels,
};
use crate::ops::OpError;
use crate::telemetry::{KernelFigures, Metrics};
use crate::threads::UploadMeter;

/// A GPU that the engine will run on.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    device: Device,
    kernels: cuda::Config,
}

/// Reason why no GPU can be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no driver or no device.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No device has an architecture with kernels.
    #[error("no GPU with kernels: {0}")]
    NoArch(String),
    /// A kernel is not in the cache and cannot be compiled.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device cannot be opened.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernels cannot be loaded.
    #[error(transparent)]
    Op(#[from] OpError),
}

impl Gpu {
    /// The first device with kernels.
    pub fn find(kernels: &cuda::Config) -> Result<Self, GpuError> {
        let devices = Installation::probe()?.devices;
        let names: Vec<String> = devices
            .iter()
            .map(|d| format!("{} (compute capability {}.{})", d.name, d.capability.0, d.capability.1))
            .collect();
        let device = devices.into_iter().find(|device| device.arch().is_some());
        let device = device.ok_or_else(|| GpuError::NoArch(names.join(", ")))?;
        Ok(Self { device, kernels: kernels.clone() })
    }

    /// One line of the log on the GPU that `device.backend = auto` does not use, or on there being none.
    pub(super) fn note_unused(kernels: &cuda::Config) {
        match Self::find(kernels) {
            Ok(gpu) => tracing::info!(
                device = gpu.device.name,
                "the GPU is not used: device.backend = auto computes on the CPU, cuda on the GPU"
            ),
            Err(error) => tracing::info!("no GPU, computing on the CPU: {error}"),
        }
    }

    /// Opens the device with every kernel loaded. From here on no kernel is compiled.
    pub(super) fn open(
        &self,
        meter: Arc<UploadMeter>,
        metrics: &Metrics,
    ) -> Result<CudaBackend<Hardware>, GpuError> {
        let begun = Instant::now();
        let config = &self.kernels;
        let headers = config.cache_dir.join("headers");
        let nvrtc = Nvrtc::open(config.nvrtc_library.as_deref(), Some(&headers));
        let compiler = nvrtc.map(|nvrtc| Arc::new(nvrtc) as Arc<dyn Compiler>);
        let (dir, max_bytes) = (Some(config.cache_dir.clone()), config.max_cache_bytes);
        let cache = Arc::new(KernelCache::open(&CacheSettings { dir, max_bytes, create: true }, compiler));
        let archs: Vec<Arch> = self.device.arch().into_iter().collect();
        for obtained in cache.obtain_all(&archs, 0, &|_, _, _| ()) {
            obtained.result?;
        }
        let hardware = Hardware::open(&self.device, cache.clone())?.reporting(meter);
        let backend = CudaBackend::new(hardware)?;
        cache.freeze();
        let counters = cache.counters();
        metrics.add_kernels(&KernelFigures {
            memory: counters.memory_hits,
            disk: counters.disk_hits,
            compiled: counters.misses,
            rebuilt: counters.rebuilt,
            evicted: counters.evicted,
            read_seconds: counters.read_seconds,
            compile_seconds: counters.compile_seconds,
        });
        tracing::info!(
            device = self.device.name,
            kernels = kernels::ALL.len(),
            compiled = counters.misses + counters.rebuilt,
            damaged = counters.rebuilt,
            from_cache = counters.disk_hits,
            seconds = format!("{:.3}", begun.elapsed().as_secs_f64()),
            "GPU opened"
        );
        Ok(backend)
    }
}
