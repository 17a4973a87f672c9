//! From the settings to an opened GPU: the choice of the device, and its kernels, compiled or from the cache.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::gpu_watch::WatchedGpu;
use super::memory_plan::format_bytes;
use crate::config::device::DeviceConfig;
use crate::config::parallel::Collectives;
use perigee_cuda::tuner::{
    self, BenchSizes, Candidate, Choices, Effort, Identity, KernelTime, KernelTimes, Measurement, Table,
    TuneError, TunedOp,
};
use perigee_cuda::{
    Arch, CacheSettings, Compiler, Cores, CudaBackend, Device, Driver, DriverError, Hardware, Installation,
    Kernel, KernelCache, KernelError, LaunchTimes, Nvml, Nvrtc, PeerAccess, ProbeError, Program, Stream,
    kernels,
};
use perigee_numbers::threads::UploadMeter;
use perigee_ops::{Activations, OpError};
use perigee_telemetry::{KernelFigures, Metrics};

/// Longest wait for a kernel that is tuned: a thousand times what the longest one of them takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kernels that are chosen among.
const PRODUCTS: [&Kernel; 10] = [
    &kernels::tiled_linear::KERNEL,
    &kernels::tiled_swiglu::KERNEL,
    &kernels::wgmma_linear::KERNEL,
    &kernels::wgmma_swiglu::KERNEL,
    &kernels::tcgen05_bf16_linear::KERNEL,
    &kernels::tcgen05_bf16_swiglu::KERNEL,
    &kernels::fp4_linear::KERNEL,
    &kernels::fp4_swiglu::KERNEL,
    &kernels::tcgen05_linear::KERNEL,
    &kernels::tcgen05_swiglu::KERNEL,
];

/// Opened devices, in the order of the ranks.
pub(super) struct OpenGpus {
    /// A backend each.
    pub(super) backends: Vec<CudaBackend<Hardware>>,
    /// By which names and addresses the devices are known.
    pub(super) watched: Vec<WatchedGpu>,
    /// Whether each reads the memory of the others.
    pub(super) reach_each_other: bool,
}

/// A GPU that the engine will run on, or several that share a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    device: Device,
    /// The ranks behind the first one: other devices of its architecture.
    others: Vec<Device>,
    /// Newest version of CUDA that the driver knows.
    cuda_version: (u32, u32),
    kernels: perigee_cuda::Config,
    arithmetic: Activations,
    /// How long a device waits for another one.
    wait: Option<Duration>,
    /// Where devices exchange values.
    collectives: Collectives,
    /// Whether they read each other's memory for more than that.
    needs_peers: bool,
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
    /// Fewer devices than ranks.
    #[error(
        "device.ranks = {ranks}, and there are {found} GPUs of one architecture with kernels ({names}): set device.ranks to at most {found}, or show \
         the process more of them (CUDA_VISIBLE_DEVICES; GPU of compose.yaml)"
    )]
    TooFew {
        /// Ranks that are asked for.
        ranks: usize,
        /// Devices like the first one.
        found: usize,
        /// Names and compute capabilities of all devices.
        names: String,
    },
    /// A device that is asked for is not there.
    #[error("device.devices = {name}, and no GPU has this number or UUID: there are {found}")]
    NoSuchDevice {
        /// The entry of `device.devices`.
        name: String,
        /// Numbers, names and UUIDs of all devices.
        found: String,
    },
    /// Rows in 4-bit floats on a device whose kernels do not multiply them.
    #[error(
        "device.activations = {form} is multiplied on GPUs of Blackwell (B200, B300, RTX PRO 6000, RTX 50), and {gpu} has compute capability {major}.{minor}: \
         set device.activations = auto, or device.backend = cpu"
    )]
    NoFp4 {
        /// Value of the setting.
        form: &'static str,
        /// Name of the device.
        gpu: String,
        /// Major number of its compute capability.
        major: u32,
        /// Minor number of it.
        minor: u32,
    },
    /// A device does not reach another one's memory.
    #[error(
        "GPU {from} ({from_bus}) does not {what} GPU {to} ({to_bus}), as {ranks} ranks (device.ranks) do to exchange values: {remedy}; with \
         parallel.context = 1 parallel.collectives = auto or host does without"
    )]
    Link {
        /// The device that writes.
        from: usize,
        /// PCI address of `from`.
        from_bus: String,
        /// The device that it writes to.
        to: usize,
        /// PCI address of `to`.
        to_bus: String,
        /// The access that fails: "reach the memory of", "write what it should to the memory of".
        what: &'static str,
        /// Number of ranks.
        ranks: usize,
        /// Change of the machine or of the settings that mends the access.
        remedy: &'static str,
    },
    /// A kernel is not in the cache and cannot be compiled.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// `kernels.cublaslt` is set where there is none.
    #[error(
        "kernels.cublaslt = true, and libcublasLt.so.13 cannot be opened: install it (python3 -m pip install nvidia-cublas) and put its \
         folder on LD_LIBRARY_PATH, or set kernels.cublaslt = false"
    )]
    NoCublasLt,
    /// The device cannot be opened.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernels cannot be loaded.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A variant of a kernel made the device unusable, which it stays until the process ends.
    #[error("the GPU is lost: kernel {function} failed while it was measured; {remedy}")]
    Lost {
        /// Function of the variant.
        function: &'static str,
        /// What the next start does, or what to do before it.
        remedy: String,
        /// The device's error.
        source: OpError,
    },
}

/// The devices that an operator lists, in that order; all of them for an empty list.
fn chosen(devices: Vec<Device>, wanted: &[String]) -> Result<Vec<Device>, GpuError> {
    if wanted.is_empty() {
        return Ok(devices);
    }
    let named = |name: &String| {
        let device = devices.iter().find(|device| device.is_called(name)).cloned();
        device.ok_or_else(|| {
            let uuid = |device: &Device| device.uuid.clone().unwrap_or_default();
            let text = |device: &Device| format!("{}: {} {}", device.ordinal, device.name, uuid(device));
            let found = devices.iter().map(text).collect::<Vec<_>>().join(", ");
            GpuError::NoSuchDevice { name: name.clone(), found }
        })
    };
    wanted.iter().map(named).collect()
}

impl GpuError {
    /// Whether the device, its driver or its kernels are missing or refuse, and another device can serve in its place. If not, a device
    /// that was used has broken.
    pub(super) fn is_lack(&self) -> bool {
        !matches!(self, Self::Lost { .. } | Self::Op(OpError::Device { fatal: true, .. }))
    }
}

impl Gpu {
    /// Devices and arithmetic, in words.
    pub(super) fn arithmetic(&self) -> String {
        format!("{} {:?} on {} ranks", self.device.name, self.arithmetic, self.ranks())
    }

    /// The first of the wanted devices with kernels, and with more than one rank as many as there are ranks: all of one architecture, since a product
    /// that every rank computes must have the same bits on all.
    pub fn find(
        kernels: &perigee_cuda::Config,
        arithmetic: Activations,
        wanted: &DeviceConfig,
    ) -> Result<Self, GpuError> {
        let Installation { version, devices } = Installation::probe()?;
        let ranks = wanted.ranks;
        let devices = chosen(devices, &wanted.devices)?;
        let names: Vec<String> = devices
            .iter()
            .map(|d| format!("{} (compute capability {}.{})", d.name, d.capability.0, d.capability.1))
            .collect();
        let mut devices = devices.into_iter().filter(|device| device.arch().is_some());
        let device = devices.next().ok_or_else(|| GpuError::NoArch(names.join(", ")))?;
        let alike = |other: &Device| other.arch() == device.arch();
        let others: Vec<Device> = devices.filter(alike).take(ranks.saturating_sub(1)).collect();
        if others.len() + 1 < ranks {
            return Err(GpuError::TooFew { ranks, found: others.len() + 1, names: names.join(", ") });
        }
        let multiplies_fp4 = device.arch().is_some_and(Arch::multiplies_fp4);
        if let Some(form) = wanted.activations.fp4().filter(|_| !multiplies_fp4) {
            let (gpu, (major, minor)) = (device.name, device.capability);
            return Err(GpuError::NoFp4 { form: form.name(), gpu, major, minor });
        }
        Ok(Self {
            device,
            others,
            cuda_version: version,
            kernels: kernels.clone(),
            arithmetic,
            wait: None,
            collectives: Collectives::Auto,
            needs_peers: false,
        })
    }

    /// Devices that wait so long for each other, exchange values there, and may have to reach each other's memory.
    pub(crate) fn exchanging(self, wait: Duration, collectives: Collectives, needs_peers: bool) -> Self {
        Self { wait: Some(wait), collectives, needs_peers, ..self }
    }

    /// Number of devices.
    pub(crate) fn ranks(&self) -> usize {
        self.others.len() + 1
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        [&self.device].into_iter().chain(&self.others)
    }

    /// Name of the product.
    pub(crate) fn name(&self) -> &str {
        &self.device.name
    }

    /// Bytes of the whole memory of all devices.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.devices().map(|device| device.memory_bytes).sum()
    }

    /// Why weights of so many bytes cannot lie on the device. By its whole memory, without opening it: how much of it is free, and what
    /// else the model needs, is the memory plan's to say.
    pub(crate) fn lacks_room(&self, weights_bytes: u64) -> Option<String> {
        let memory_bytes = self.memory_bytes();
        (weights_bytes >= memory_bytes).then(|| {
            let (weights, memory) = (format_bytes(weights_bytes), format_bytes(memory_bytes));
            match self.ranks() {
                1 => format!(
                    "weights of {weights} do not fit in the GPU's {memory}: device.ranks divides them among several GPUs"
                ),
                ranks => format!("weights of {weights} do not fit in the {memory} of {ranks} GPUs (device.ranks)"),
            }
        })
    }

    /// Opens the devices with every kernel loaded, and the measured variants of `ops`; those that were never measured are
    /// tuned now on the first device, within `kernels.tune_seconds`, for all. From here on no kernel is compiled. `tuning` is called
    /// with the number of ops done and of all. Launches of the first device are measured for `times`, if there are any.
    pub(super) fn open(
        &self,
        ops: &[TunedOp],
        tuning: &mut dyn FnMut(usize, usize),
        meter: &Arc<UploadMeter>,
        times: Option<Arc<LaunchTimes>>,
        metrics: &Metrics,
    ) -> Result<OpenGpus, GpuError> {
        let begun = Instant::now();
        let cache = self.kernels()?;
        let through_host = self.through_host(&cache)?;
        let mut hardware = self.hardware(&cache)?;
        let mut table = None;
        if self.has_variants() {
            let read = self.table(&hardware, &cache)?;
            let wanted: Vec<TunedOp> =
                ops.iter().filter(|op| read.wants(op, self.uses_vendor())).copied().collect();
            let budget = Duration::from_secs(self.kernels.tune_seconds);
            let read = table.insert(read);
            if !wanted.is_empty() && !budget.is_zero() {
                // Its memory.
                drop(hardware);
                self.tune_at_boot(&cache, read, ops, &wanted, begun + budget, tuning)?;
                hardware = self.hardware(&cache)?;
            } else {
                note(read, ops, 0, Duration::ZERO);
            }
        }
        if let Some(times) = times {
            hardware = hardware.measuring(times);
        }
        let mut all = vec![hardware];
        for device in &self.others {
            all.push(self.hardware_of(device, &cache)?);
        }
        if through_host {
            all = all.into_iter().map(Hardware::sharing_host_memory).collect();
        }
        for from in 0..all.len() {
            for to in (0..all.len()).filter(|to| *to != from && !through_host) {
                all[from].reach(&all[to])?;
            }
        }
        let mut watched = Vec::with_capacity(all.len());
        for (hardware, device) in all.iter().zip(self.devices()) {
            watched.push(WatchedGpu { name: device.name.clone(), pci_bus_id: hardware.pci_bus_id()? });
        }
        let mut backends = Vec::with_capacity(all.len());
        for (hardware, gpu) in all.into_iter().zip(&watched) {
            let mut backend = CudaBackend::new(hardware.reporting(meter.clone()), self.arithmetic)?;
            backend.set_cores(Cores::beside(&gpu.pci_bus_id));
            backend.fetch_ahead(self.kernels.fetch_ahead);
            if self.uses_vendor() && !backend.use_vendor()? {
                return Err(GpuError::NoCublasLt);
            }
            if let Some(table) = &table {
                backend.set_choices(Choices::of(table));
            }
            if let Some(wait) = self.wait {
                backend.set_wait(wait);
            }
            backends.push(backend);
        }
        if self.kernels.cublaslt && !self.uses_vendor() {
            tracing::warn!(
                "kernels.cublaslt changes nothing: products of f32 activations (device.activations) are none of its"
            );
        }
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
            ranks = self.ranks(),
            kernels = kernels::ALL.len(),
            compiled = counters.misses + counters.rebuilt,
            damaged = counters.rebuilt,
            from_cache = counters.disk_hits,
            seconds = format!("{:.3}", begun.elapsed().as_secs_f64()),
            "GPU opened"
        );
        Ok(OpenGpus { backends, watched, reach_each_other: !through_host })
    }

    /// Whether devices exchange values in the host's memory: as the operator says, or where a link between them fails. Errors: a link
    /// that fails where the operator, or a cache in parts, needs all of them.
    fn through_host(&self, cache: &Arc<KernelCache>) -> Result<bool, GpuError> {
        if self.others.is_empty() || self.collectives == Collectives::Host {
            return Ok(!self.others.is_empty());
        }
        match self.check_links(cache) {
            Ok(()) => Ok(false),
            Err(error @ GpuError::Link { .. })
                if self.collectives == Collectives::Auto && !self.needs_peers =>
            {
                tracing::warn!(
                    "GPUs exchange values in the host's memory, which is several times slower: {}",
                    error.to_string()
                );
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies bytes between every two devices, each way, and compares them. Errors: a device that does not reach another one, or
    /// whose bytes do not arrive.
    fn check_links(&self, cache: &Arc<KernelCache>) -> Result<(), GpuError> {
        let mut all = Vec::with_capacity(self.ranks());
        for device in self.devices() {
            all.push(self.hardware_of(device, cache)?);
        }
        for to in 0..all.len() {
            let (before, rest) = all.split_at_mut(to);
            let Some((target, behind)) = rest.split_first_mut() else { continue };
            for (from, source) in before.iter_mut().enumerate().chain((to + 1..).zip(behind)) {
                let (what, remedy) = match source.check_peer(target)? {
                    PeerAccess::Direct => continue,
                    PeerAccess::Absent => (
                        "reach the memory of",
                        "the GPUs must be connected by NVLink or be behind root ports that allow peer access (nvidia-smi topo -p2p r); \
                         device.ranks = 1 uses one",
                    ),
                    PeerAccess::Corrupt { .. } => (
                        "write what it should to the memory of",
                        "an IOMMU or ACS remaps what they write: switch both off in the BIOS, or start the kernel with iommu=pt and \
                         clear ACS of the PCI bridges (setpci ECAP_ACS+6.w=0)",
                    ),
                };
                let (from_bus, to_bus) = (source.pci_bus_id()?, target.pci_bus_id()?);
                return Err(GpuError::Link { from, from_bus, to, to_bus, what, ranks: self.ranks(), remedy });
            }
        }
        Ok(())
    }

    fn hardware(&self, cache: &Arc<KernelCache>) -> Result<Hardware, DriverError> {
        self.hardware_of(&self.device, cache)
    }

    fn hardware_of(&self, device: &Device, cache: &Arc<KernelCache>) -> Result<Hardware, DriverError> {
        let hardware = Hardware::open(device, cache.clone())?;
        Ok(hardware.dependent(self.kernels.dependent_launch).sharing(self.kernels.shared_memory_percent))
    }

    /// Whether products may be the vendor's.
    fn uses_vendor(&self) -> bool {
        self.kernels.cublaslt && self.has_variants()
    }

    /// Whether products have variants: those on tensor cores do.
    pub(crate) fn has_variants(&self) -> bool {
        self.arithmetic.are_rounded()
    }

    /// Tunes `ops` and stores each measurement as soon as it is there. `done` is called with the number of those before
    /// and the measurement. Returns the table, and the reason why it could not be stored.
    pub(crate) fn tune(
        &self,
        ops: &[TunedOp],
        done: &mut dyn FnMut(usize, &Measurement),
    ) -> Result<(Table, Option<String>), GpuError> {
        let cache = self.kernels()?;
        let mut table = self.table(&self.hardware(&cache)?, &cache)?;
        let mut unstored = None;
        self.tune_into(&cache, &mut table, ops, None, &mut unstored, done)?;
        Ok((table, unstored))
    }

    /// Times of the kernels at a model's sizes. `done` is called with each.
    pub(crate) fn kernel_times(
        &self,
        sizes: &BenchSizes,
        rows: &[usize],
        context: usize,
        done: &mut dyn FnMut(&KernelTime),
    ) -> Result<KernelTimes, GpuError> {
        let cache = self.kernels()?;
        let table = self.table(&self.hardware(&cache)?, &cache)?;
        let mut open = || Stream::new(self.hardware(&cache)?);
        // All experts of Kimi K2 in four bits: how many are read decides the time.
        let effort = Effort { max_weight_bytes: 16 << 30, ..Effort::GPU };
        Ok(tuner::kernel_times(&mut open, sizes, rows, context, (&effort, &table.lost), done)?)
    }

    /// Errors that leave the device usable cost speed alone: the defaults serve.
    fn tune_at_boot(
        &self,
        cache: &Arc<KernelCache>,
        table: &mut Table,
        ops: &[TunedOp],
        wanted: &[TunedOp],
        deadline: Instant,
        tuning: &mut dyn FnMut(usize, usize),
    ) -> Result<(), GpuError> {
        let (begun, mut unstored) = (Instant::now(), None);
        tuning(0, wanted.len());
        let mut tuned = 0;
        let result = self.tune_into(cache, table, wanted, Some(deadline), &mut unstored, &mut |before, _| {
            tuned += 1;
            tuning(before + 1, wanted.len());
        });
        match result {
            Err(
                error @ (GpuError::NoCublasLt
                | GpuError::Lost { .. }
                | GpuError::Op(OpError::Device { fatal: true, .. })),
            ) => {
                return Err(error);
            }
            Err(error) => tracing::warn!("tuning ended, the shipped defaults serve: {error}"),
            Ok(()) => {
                // Otherwise each start would go on with them and take as long as the first one: a large model has some fifty.
                table.leave(wanted, self.uses_vendor());
                unstored = unstored.or(table.save(&self.kernels.cache_dir).err());
            }
        }
        if let Some(reason) = unstored {
            tracing::warn!(
                "measurements of kernels are not stored, and are taken again at the next start: {reason}"
            );
        }
        note(table, ops, tuned, begun.elapsed());
        Ok(())
    }

    fn tune_into(
        &self,
        cache: &Arc<KernelCache>,
        table: &mut Table,
        ops: &[TunedOp],
        deadline: Option<Instant>,
        unstored: &mut Option<String>,
        done: &mut dyn FnMut(usize, &Measurement),
    ) -> Result<(), GpuError> {
        let effort = Effort { vendor: self.uses_vendor(), ..Effort::GPU };
        if effort.vendor && !perigee_cuda::has_cublaslt() {
            return Err(GpuError::NoCublasLt);
        }
        let mut open = || {
            let mut hardware = self.hardware(cache)?.patient_for(PATIENCE);
            if effort.vendor {
                hardware.open_vendor()?;
            }
            Stream::new(hardware)
        };
        let lost = table.lost.clone();
        let candidates = |op: &TunedOp| -> Vec<Candidate> {
            Candidate::shipped(op).into_iter().filter(|candidate| candidate.is_usable(&lost)).collect()
        };
        let date = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut store = |before: usize, measurement: &Measurement| {
            table.add(vec![measurement.clone()]);
            if unstored.is_none() {
                *unstored = table.save(&self.kernels.cache_dir).err();
            }
            done(before, measurement);
        };
        let tuned = tuner::tune(&mut open, ops, &candidates, &effort, deadline, date, &mut store);
        match tuned {
            Ok(_) => Ok(()),
            Err(TuneError::Op(error)) => Err(error.into()),
            Err(TuneError::Lost { function, source }) => {
                table.lose(function, source.to_string());
                Err(after_loss(table, &self.kernels.cache_dir, function, source))
            }
        }
    }

    /// The stored measurements for this GPU, driver and these programs.
    fn table(&self, hardware: &Hardware, cache: &KernelCache) -> Result<Table, GpuError> {
        let mut programs = Vec::new();
        for kernel in PRODUCTS.iter().filter(|kernel| kernel.archs.contains(&hardware.arch())) {
            let program = Program::new(kernel, hardware.arch());
            let program = program.map_err(|error| KernelError::Compile(error.into()))?;
            programs.push(cache.get(&program)?);
        }
        let cubins: Vec<&[u8]> = programs.iter().map(|program| program.cubin.as_slice()).collect();
        let nvml = Nvml::open().ok();
        let state =
            hardware.pci_bus_id().ok().and_then(|address| nvml.as_ref()?.state(&address)).unwrap_or_default();
        let version = nvml.as_ref().and_then(Nvml::driver_version);
        let identity = Identity {
            gpu: self.device.name.clone(),
            multiprocessors: hardware.multiprocessors(),
            memory_clock_mhz: state.max_memory_clock_mhz,
            power_limit_w: state.power_limit_mw.map(|limit| limit / 1000),
            driver: match &version {
                // 580.65 of 580.65.06.
                Some(version) => version.split('.').take(2).collect::<Vec<_>>().join("."),
                None => format!("CUDA {}.{}", self.cuda_version.0, self.cuda_version.1),
            },
            programs: Identity::hash_of(&cubins),
        };
        Ok(Table::load(&self.kernels.cache_dir, identity))
    }

    /// Every kernel of the device, from the cache or compiled.
    fn kernels(&self) -> Result<Arc<KernelCache>, GpuError> {
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
        cache.freeze();
        Ok(cache)
    }
}

/// Stores a table that says with which function the device was lost. Without it every start would run that function again.
fn after_loss(table: &Table, cache_dir: &Path, function: &'static str, source: OpError) -> GpuError {
    let remedy = match table.save(cache_dir) {
        Ok(_) => "the next start leaves it out".into(),
        Err(reason) => {
            format!("that is not stored, so set kernels.tune_seconds = 0, which measures nothing: {reason}")
        }
    };
    GpuError::Lost { function, remedy, source }
}

/// Logs where the variants of kernels come from: ops found in the table, tuned now, and left to the defaults.
fn note(table: &Table, ops: &[TunedOp], tuned: usize, took: Duration) {
    let seconds = format!("{:.3}", took.as_secs_f64());
    let measured = ops.iter().filter(|op| table.get(op).is_some()).count();
    let (in_table, left) = (measured.saturating_sub(tuned), ops.len() - measured);
    match left {
        0 => tracing::info!(in_table, tuned, left, seconds, "variants of kernels chosen"),
        _ => tracing::info!(
            in_table,
            tuned,
            left,
            seconds,
            "variants of kernels chosen; those left are the defaults until `perigee tune` measures them"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_loses_the_device_is_stored_before_the_boot_ends() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            gpu: "Made-up GPU".into(),
            multiprocessors: 4,
            memory_clock_mhz: None,
            power_limit_w: None,
            driver: "580.65".into(),
            programs: String::new(),
        };
        let function = "tiled_linear_nvfp4_split32x8";
        let mut table = Table::load(dir.path(), identity.clone());
        table.lose(function, "code 719".into());
        let lost = |cache_dir: &Path| {
            let source =
                OpError::Device { op: "cuEventSynchronize", code: 719, text: String::new(), fatal: true };
            after_loss(&table, cache_dir, function, source).to_string()
        };
        let text = lost(dir.path());
        assert!(text.contains(function) && text.ends_with("the next start leaves it out"), "{text}");
        assert_eq!(Table::load(dir.path(), identity).lost[0].function, function);
        // A file in place of the folder.
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let text = lost(&file);
        assert!(text.contains("kernels.tune_seconds = 0") && text.contains("cannot be written"), "{text}");
    }
}
