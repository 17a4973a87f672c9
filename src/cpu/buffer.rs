//! What the backend hands out: activation buffers, routings, the latent cache.

use std::sync::atomic::{AtomicU64, Ordering};

use super::storage::Storage;
use perigee_ops::{CacheDtype, CacheShape, OpError, peak};

/// Keys per step of attention; a multiple of the lanes.
pub(crate) const KEY_BLOCK: usize = 64;

/// A number that no other call of this process has or gets.
pub(crate) fn unique_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Activations `[rows, cols]` f32 with a fixed capacity.
///
/// Reserved for the largest step, but the system gives pages at first touch: rows that no step uses take no memory.
pub struct Buffer {
    /// Rows set by the last operation that wrote the buffer.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    capacity: usize,
    /// `[capacity, cols]`.
    values: Storage,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer([{} of {}, {}])", self.rows, self.capacity, self.cols)
    }
}

impl Buffer {
    pub(crate) fn allocate(capacity: usize, cols: usize) -> Result<Self, OpError> {
        let what = "activation buffer";
        let count = capacity.checked_mul(cols).ok_or(OpError::OutOfMemory { what, bytes: usize::MAX })?;
        Ok(Self { rows: 0, cols, capacity, values: Storage::zeroed(count, what)? })
    }

    /// Sets the row count; the rows' contents are whatever was there.
    pub(crate) fn set_rows(&mut self, op: &'static str, rows: usize) -> Result<(), OpError> {
        if rows > self.capacity {
            return Err(OpError::ShapeMismatch { op, expected: vec![self.capacity], got: vec![rows] });
        }
        self.rows = rows;
        Ok(())
    }

    /// The rows that are set.
    pub(crate) fn values(&self) -> &[f32] {
        &bytemuck::cast_slice(self.values.words())[..self.rows * self.cols]
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(self.values.words_mut())[..self.rows * self.cols]
    }

    pub(crate) fn row(&self, t: usize) -> &[f32] {
        &self.values()[t * self.cols..(t + 1) * self.cols]
    }
}

/// Chosen experts and their weights, `[rows, top_k]` each, best first.
#[derive(Debug)]
pub struct Routing {
    pub(crate) rows: usize,
    pub(crate) top_k: usize,
    capacity: usize,
    /// Expert ids.
    pub(crate) experts: Vec<u32>,
    /// Routing weights.
    pub(crate) weights: Vec<f32>,
}

impl Routing {
    pub(crate) fn allocate(capacity: usize, top_k: usize) -> Self {
        Self {
            rows: 0,
            top_k,
            capacity,
            experts: vec![0; capacity * top_k],
            weights: vec![0.0; capacity * top_k],
        }
    }

    pub(crate) fn set_rows(&mut self, rows: usize) -> Result<(), OpError> {
        if rows > self.capacity {
            return Err(OpError::ShapeMismatch {
                op: "route",
                expected: vec![self.capacity],
                got: vec![rows],
            });
        }
        self.rows = rows;
        Ok(())
    }
}

/// The paged latent cache.
pub struct Cache {
    pub(crate) shape: CacheShape,
    /// Of no other cache of the process.
    pub(crate) id: u64,
    storage: Storage,
    /// `[num_layers, groups of rows]`: times that a row of the group was written.
    versions: Vec<u32>,
    /// `[num_layers]`: of the scales that rows of an FP8 cache take which have none of their own.
    exponents: Vec<i32>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({:?})", self.shape)
    }
}

/// One cached row, `[C + R]`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CachedRow<'a> {
    Bf16(&'a [u16]),
    F32(&'a [f32]),
    /// As stored; widened to bf16 before it is used.
    Fp8(&'a [u8]),
}

impl Cache {
    pub(crate) fn allocate(shape: &CacheShape) -> Result<Self, OpError> {
        let bytes = [shape.num_blocks, shape.block_size, shape.row_bytes()]
            .iter()
            .try_fold(shape.num_layers, |product, n| product.checked_mul(*n))
            .ok_or(OpError::OutOfMemory { what: "latent cache", bytes: usize::MAX })?;
        let storage = Storage::zeroed(bytes.div_ceil(4), "latent cache")?;
        let mut cache = Self {
            shape: *shape,
            id: unique_id(),
            storage,
            versions: Vec::new(),
            exponents: vec![0; shape.num_layers],
        };
        cache.versions = vec![0; shape.num_layers * cache.slots().div_ceil(cache.group_rows())];
        Ok(cache)
    }

    /// Rows that share a version: those of a block, at most 64.
    fn group_rows(&self) -> usize {
        self.shape.block_size.min(KEY_BLOCK)
    }

    /// Notes that a row is written.
    fn touch(&mut self, layer: usize, slot: usize) {
        let group_rows = self.group_rows();
        let first = layer * self.slots().div_ceil(group_rows);
        self.versions[first + slot / group_rows] += 1;
    }

    /// The groups of rows of 64 positions from `first` on, in order, and their versions: while these are the same, so are the rows.
    /// `table` has the blocks of the sequence. `None` if 64 positions have more than `N` groups, or not whole ones.
    pub(crate) fn groups<const N: usize>(
        &self,
        layer: usize,
        table: &[u32],
        first: usize,
    ) -> Option<([u32; N], [u32; N])> {
        if !self.shape.block_size.is_power_of_two() || KEY_BLOCK / self.group_rows() > N {
            return None;
        }
        let (size, group_rows) = (self.shape.block_size, self.group_rows());
        let of_layer = &self.versions[layer * self.slots().div_ceil(group_rows)..];
        let (mut groups, mut versions) = ([u32::MAX; N], [0; N]);
        for (i, position) in (first..first + KEY_BLOCK).step_by(group_rows).enumerate() {
            let group = (table[position / size] as usize * size + position % size) / group_rows;
            (groups[i], versions[i]) = (group as u32, of_layer[group]);
        }
        Some((groups, versions))
    }

    /// `exponents` has one entry per layer.
    pub(crate) fn set_exponents(&mut self, exponents: &[i32]) {
        self.exponents.copy_from_slice(exponents);
    }

    /// The largest magnitude of a row; NaN if one of its values is.
    pub(crate) fn peak(&self, layer: usize, slot: usize) -> f32 {
        let of_bits = |bits: &u16| half::bf16::from_bits(*bits).to_f32();
        match (self.row(layer, slot), self.shape.dtype) {
            (CachedRow::F32(row), _) => peak(row.iter().copied()),
            (CachedRow::Bf16(row), _) => peak(row.iter().map(of_bits)),
            (CachedRow::Fp8(row), CacheDtype::Fp8(format)) => {
                let mut wide = vec![0; self.shape.latent_dim];
                format.decode(row, self.shape.latent_dim - self.shape.rope_dim, &mut wide);
                peak(wide.iter().map(of_bits))
            }
            (CachedRow::Fp8(_), _) => unreachable!("rows are of the cache's type"),
        }
    }

    /// Slots per layer.
    pub(crate) fn slots(&self) -> usize {
        self.shape.num_blocks * self.shape.block_size
    }

    /// Elements of a row; bytes in the FP8 format.
    fn at(&self, layer: usize, slot: usize) -> std::ops::Range<usize> {
        debug_assert!(layer < self.shape.num_layers && slot < self.slots());
        let row = match self.shape.dtype {
            CacheDtype::F32 | CacheDtype::Bf16 => self.shape.latent_dim,
            CacheDtype::Fp8(_) => self.shape.row_bytes(),
        };
        let start = (layer * self.slots() + slot) * row;
        start..start + row
    }

    pub(crate) fn row(&self, layer: usize, slot: usize) -> CachedRow<'_> {
        let at = self.at(layer, slot);
        match self.shape.dtype {
            CacheDtype::Bf16 => CachedRow::Bf16(&bytemuck::cast_slice(self.storage.words())[at]),
            CacheDtype::F32 => CachedRow::F32(&bytemuck::cast_slice(self.storage.words())[at]),
            CacheDtype::Fp8(_) => CachedRow::Fp8(&bytemuck::cast_slice(self.storage.words())[at]),
        }
    }

    /// Bytes of a row in the whole cache.
    fn bytes_at(&self, layer: usize, slot: usize) -> std::ops::Range<usize> {
        let row = self.shape.row_bytes();
        let start = (layer * self.slots() + slot) * row;
        start..start + row
    }

    /// A row as it is stored.
    pub(crate) fn row_bytes(&self, layer: usize, slot: usize) -> &[u8] {
        &bytemuck::cast_slice(self.storage.words())[self.bytes_at(layer, slot)]
    }

    /// The same, to fill.
    pub(crate) fn row_bytes_mut(&mut self, layer: usize, slot: usize) -> &mut [u8] {
        self.touch(layer, slot);
        let at = self.bytes_at(layer, slot);
        &mut bytemuck::cast_slice_mut(self.storage.words_mut())[at]
    }

    /// Stores a row, rounded to the cache's type.
    pub(crate) fn store(&mut self, layer: usize, slot: usize, values: &[f32]) {
        self.touch(layer, slot);
        let at = self.at(layer, slot);
        match self.shape.dtype {
            CacheDtype::F32 => {
                bytemuck::cast_slice_mut::<u32, f32>(self.storage.words_mut())[at].copy_from_slice(values);
            }
            CacheDtype::Bf16 => {
                let row = &mut bytemuck::cast_slice_mut::<u32, u16>(self.storage.words_mut())[at];
                row.iter_mut().zip(values).for_each(|(to, x)| *to = half::bf16::from_f32(*x).to_bits());
            }
            CacheDtype::Fp8(format) => {
                let row = &mut bytemuck::cast_slice_mut::<u32, u8>(self.storage.words_mut())[at];
                let latents = self.shape.latent_dim - self.shape.rope_dim;
                format.encode(values, latents, self.exponents[layer], row);
            }
        }
    }
}
