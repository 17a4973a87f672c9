//! A backend, and how an engine feeds it: the type of its cache, the order of its weights.

use std::sync::Arc;

use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_cuda::{CudaBackend, Driver};
use perigee_model::{ExpertOrder, Uploads};
use perigee_numbers::threads::UploadMeter;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::host::{Group, Rank};
use perigee_ops::{Activations, Backend, CacheDtype, OpError, Parallelism};

/// A backend, and how an engine feeds it.
pub struct Equipped<B: Backend> {
    pub(super) backend: B,
    /// Element type of the cache unless the settings name another.
    pub(super) cache_dtype: CacheDtype,
    /// Number of ranks that share the model.
    pub(super) ranks: usize,
    /// Bytes of the devices' memory; 0: it is the host's.
    pub(super) device_bytes: u64,
    /// How the backend wants the weights, and where it reports them.
    pub(super) uploads: Uploads,
}

impl<B: Backend> Equipped<B> {
    /// Only the backend, with a cache of `cache_dtype` unless the settings name another.
    pub fn new(backend: B, cache_dtype: CacheDtype) -> Self {
        Self { backend, cache_dtype, ranks: 1, device_bytes: 0, uploads: Uploads::default() }
    }

    /// With weights that come in an order of its own, and are reported.
    pub(super) fn with_uploads(self, order: ExpertOrder, meter: Arc<UploadMeter>) -> Self {
        Self { uploads: Uploads { meter, order, ..Uploads::default() }, ..self }
    }
}

impl Equipped<ReferenceBackend> {
    /// The reference backend.
    pub(super) fn reference() -> Self {
        Self::new(ReferenceBackend, CacheDtype::F32)
    }
}

impl Equipped<CpuBackend> {
    /// The fast CPU backend.
    pub(super) fn cpu(options: CpuOptions) -> Self {
        let meter = Arc::<UploadMeter>::default();
        let backend = CpuBackend::new(options).reporting(meter.clone());
        Self::new(backend, cache_dtype_beside(options.activations)).with_uploads(ExpertOrder::ByExpert, meter)
    }
}

impl Equipped<Group<CpuBackend>> {
    /// Several ranks of the fast CPU backend.
    pub(super) fn cpu_ranks(
        ranks: usize,
        each: CpuOptions,
        parallelism: Parallelism,
    ) -> Result<Self, OpError> {
        let backend = Group::with((0..ranks).map(|_| CpuBackend::new(each)).collect(), parallelism)?;
        Ok(Self { ranks, ..Self::new(backend, cache_dtype_beside(each.activations)) })
    }
}

impl<B: Rank> Equipped<Group<B>> {
    /// These ranks with another division of the model, before anything is loaded.
    pub(super) fn sharing(self, parallelism: Parallelism) -> Self {
        Self { backend: self.backend.sharing(parallelism), ..self }
    }
}

/// Element type of the cache if the settings name none.
fn cache_dtype_beside(activations: Activations) -> CacheDtype {
    match activations {
        Activations::F32 => CacheDtype::F32,
        Activations::Bf16 | Activations::Int8 => CacheDtype::Bf16,
    }
}

/// The backends of one GPU, or of several that share a model.
pub struct EquippedGpus<D: Driver> {
    pub(super) backends: Vec<CudaBackend<D>>,
    /// Bytes of the memory of all devices; 0: nobody asked.
    pub(super) memory_bytes: u64,
    /// Whether each reads the memory of the others.
    pub(super) reach_each_other: bool,
    pub(super) uploads: Uploads,
}

impl<D: Driver> EquippedGpus<D> {
    /// Only the backends, in the order of the ranks.
    pub fn new(backends: Vec<CudaBackend<D>>) -> Self {
        Self { backends, memory_bytes: 0, reach_each_other: true, uploads: Uploads::default() }
    }

    /// The only GPU. Errors: there are several.
    pub(super) fn alone(mut self) -> Result<Equipped<CudaBackend<D>>, Self> {
        match self.backends.pop() {
            Some(backend) if self.backends.is_empty() => Ok(Equipped {
                device_bytes: self.memory_bytes,
                uploads: self.uploads,
                ..Equipped::new(backend, CacheDtype::Bf16)
            }),
            last => {
                self.backends.extend(last);
                Err(self)
            }
        }
    }

    /// The ranks of a group that shares the model so.
    pub fn as_ranks(self, parallelism: Parallelism) -> Result<Equipped<Group<CudaBackend<D>>>, OpError> {
        let ranks = self.backends.len();
        Ok(Equipped {
            ranks,
            device_bytes: self.memory_bytes,
            uploads: self.uploads,
            ..Equipped::new(Group::with(self.backends, parallelism)?, CacheDtype::Bf16)
        })
    }
}
