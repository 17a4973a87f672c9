//! The inputs of a measurement, on the device: weights and activations with the spread of a network's, with outliers and
//! blocks of zeros.

use super::op::{Product, TunedOp};
use crate::kernels::fp4_rows;
use crate::kernels::linear::{self, Output};
use crate::kernels::route::{self, Held, Worklist};
use crate::kernels::row_panels;
use crate::kernels::tiled::{Rows, Slots};
use crate::packer::Packer;
use crate::stream::Buffer;
use crate::weights::{Format, Matrix, Panels, Tiled};
use crate::{Driver, Stream};
use perigee_numbers::quant::{ActivationForm, PackedFormat, PackedMatrix, StoredMatrix, TensorScale};
use perigee_numbers::tensor::{Dtype, ElementType, TensorView};
use perigee_ops::OpError;

/// What buffers are called in an error.
const WHAT: &str = "tuning";
/// Different experts; the others repeat them. A prime: tiles of experts that lie apart by a power of two differ.
const DISTINCT: usize = 7;
/// Random bytes that weights are put together from.
const POOL_BYTES: usize = 1 << 16;
/// Bytes taken from the pool at a time.
const PIECE_BYTES: usize = 4096;
/// Slots of a row of x in the first product of routed experts.
const SLOTS_PER_ROW: usize = 2;

/// A matrix as a checkpoint stores it.
struct HostMatrix {
    format: Option<PackedFormat>,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<u8>,
    scale_dtype: Dtype,
    scale_shape: Vec<usize>,
    tensor_scale: TensorScale,
}

/// Roughly normal, of variance 1, and one of 512 values 16 times larger.
fn value(rng: &mut fastrand::Rng) -> f32 {
    let sum: f32 = (0..4).map(|_| rng.f32() - 0.5).sum();
    sum * 1.73 * if rng.u32(..512) == 0 { 16.0 } else { 1.0 }
}

/// Bytes put together from pieces of a pool. Pieces begin at a multiple of 4, so that values stay whole.
fn fill(rng: &mut fastrand::Rng, count: usize, pool: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + PIECE_BYTES);
    while bytes.len() < count {
        let at = 4 * rng.usize(..(pool.len() - PIECE_BYTES) / 4);
        bytes.extend_from_slice(&pool[at..at + PIECE_BYTES]);
    }
    bytes.truncate(count);
    bytes
}

impl HostMatrix {
    fn random(rng: &mut fastrand::Rng, format: Format, shape: [usize; 2]) -> Self {
        let (count, spread) = (shape[0] * shape[1], 1.0 / (shape[1] as f32).sqrt());
        let Some(packed) = format.packed() else {
            let pool: Vec<u8> = (0..POOL_BYTES / 2)
                .flat_map(|_| half::bf16::from_f32(value(rng) * spread).to_le_bytes())
                .collect();
            let codes = zero_blocks(fill(rng, 2 * count, &pool), 0);
            return Self {
                format: None,
                shape,
                codes,
                scales: Vec::new(),
                scale_dtype: Dtype::BF16,
                scale_shape: Vec::new(),
                tensor_scale: TensorScale::None,
            };
        };
        // E4M3 up to 60: larger codes are rare where a block's largest value is 448.
        let pool: Vec<u8> = match packed.code_bits() {
            4 => (0..POOL_BYTES).map(|_| rng.u8(..)).collect(),
            _ => (0..POOL_BYTES).map(|_| rng.u8(..0x68) | (rng.u8(..) & 0x80)).collect(),
        };
        let zero = packed.row().codes.zeros();
        let codes = zero_blocks(fill(rng, count * packed.code_bits() / 8, &pool), zero);
        let scale_shape = packed.scale_shape(shape);
        let num_scales: usize = scale_shape.iter().product();
        let outlier = |rng: &mut fastrand::Rng| rng.u32(..512) == 0;
        let mut scale_pool = Vec::with_capacity(POOL_BYTES);
        let scale_dtype = packed.row().scale_dtypes[0];
        while scale_pool.len() < POOL_BYTES {
            match scale_dtype {
                // 0.25 to 3.5, sometimes 32, sometimes 0.
                Dtype::F8_E4M3 => scale_pool.push(match rng.u32(..512) {
                    0 => 0x60,
                    1 => 0,
                    _ => rng.u8(0x28..0x46),
                }),
                Dtype::U8 => {
                    let power = 127.0 + (spread / 3.0).log2().round() + if outlier(rng) { 4.0 } else { 0.0 };
                    scale_pool.push(power as u8 + rng.u8(..3));
                }
                Dtype::BF16 => {
                    let scale = (0.5 + rng.f32()) * spread / 5.0 * if outlier(rng) { 16.0 } else { 1.0 };
                    scale_pool.extend(half::bf16::from_f32(scale).to_le_bytes());
                }
                _ => scale_pool.extend(((0.5 + rng.f32()) * spread / 20.0).to_le_bytes()),
            }
        }
        let scales = fill(rng, num_scales * scale_dtype.element_bytes().unwrap_or(1), &scale_pool);
        let tensor_scale = match packed.row().has_tensor_scale {
            true => TensorScale::Multiply(spread / 3.0),
            false => TensorScale::None,
        };
        Self { format: Some(packed), shape, codes, scales, scale_dtype, scale_shape, tensor_scale }
    }

    fn view(&self) -> Result<StoredMatrix<'_>, OpError> {
        let Some(format) = self.format else {
            return Ok(TensorView { dtype: Dtype::BF16, shape: &self.shape, bytes: &self.codes }.into());
        };
        let scales = TensorView { dtype: self.scale_dtype, shape: &self.scale_shape, bytes: &self.scales };
        let matrix = PackedMatrix::new(format, self.shape, &self.codes, scales, self.tensor_scale);
        let matrix = matrix.map_err(|error| OpError::UnsupportedDtype {
            op: "tune",
            dtype: error.to_string(),
            backend: "cuda",
        })?;
        Ok(matrix.into())
    }
}

/// One of 97 pieces of 32 bytes becomes zeros.
fn zero_blocks(mut codes: Vec<u8>, zero: u8) -> Vec<u8> {
    codes.chunks_mut(32).step_by(97).for_each(|block| block.fill(zero));
    codes
}

/// The slots of a launch: whose they are.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    /// Number of slots.
    pub(super) num_slots: usize,
    /// Expert of each slot; `None`: rows of one matrix.
    chosen: Option<Vec<u32>>,
}

/// Weights and activations of an op.
pub(super) struct Problem {
    /// The op in the sizes that are measured.
    pub(super) op: TunedOp,
    routed: bool,
    /// The weights, and copies of them.
    pub(super) copies: Vec<Tiled>,
    /// The same in panels, of [`Problem::with_panels`], on devices that multiply them.
    pub(super) panels: Vec<Panels>,
    /// For the f32 kernel: distinct experts; matrices of each.
    exact: Vec<Vec<Matrix>>,
    x: Buffer,
    x_exact: Buffer,
    /// Rows of x in the op's form of 4-bit floats, which [`Problem::set_terms`] makes.
    x_coded: Buffer,
    /// Most slots of a workload.
    pub(super) max_slots: usize,
}

impl Problem {
    /// Makes the weights of a product, of which at most `max_bytes` are measured, and inputs for the workloads of the buckets of all
    /// `ops`, which are of this product, and for `least_slots` slots. It begins with the first op.
    pub(super) fn new<D: Driver>(
        stream: &mut Stream<D>,
        ops: &[TunedOp],
        max_bytes: usize,
        least_slots: usize,
        seed: u64,
    ) -> Result<Self, OpError> {
        let in_panels = ops.iter().any(|op| op.terms > 0);
        Self::with_panels(stream, ops, max_bytes, least_slots, seed, in_panels)
    }

    /// The same, if `in_panels` with the weights in panels too.
    pub(super) fn with_panels<D: Driver>(
        stream: &mut Stream<D>,
        ops: &[TunedOp],
        max_bytes: usize,
        least_slots: usize,
        seed: u64,
        in_panels: bool,
    ) -> Result<Self, OpError> {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let Some(op) = ops.first().map(|op| op.within(max_bytes)) else {
            return Err(OpError::UnsupportedDtype { op: "tune", dtype: "no op".into(), backend: "cuda" });
        };
        let routed = ops.iter().any(|op| op.count > 1);
        let (shape, distinct) = ([op.out_features, op.in_features], op.count.min(DISTINCT));
        let mut hosts = Vec::new();
        for _ in 0..distinct * op.product.matrices() {
            hosts.push(HostMatrix::random(rng, op.format, shape));
        }
        let views = hosts.iter().map(HostMatrix::view).collect::<Result<Vec<_>, _>>()?;
        let (lower, upper) = views.split_at(distinct);
        let of_all = |list: &'_ [StoredMatrix<'_>]| -> Vec<usize> {
            (0..op.count).map(|e| e % list.len().max(1)).collect()
        };
        let lower_all: Vec<&StoredMatrix<'_>> = of_all(lower).into_iter().map(|e| &lower[e]).collect();
        let upper_all: Vec<&StoredMatrix<'_>> = match op.product {
            Product::Linear => Vec::new(),
            Product::Swiglu => of_all(upper).into_iter().map(|e| &upper[e]).collect(),
        };
        let upper_all = Some(&upper_all[..]).filter(|all| !all.is_empty());
        let mut packer = Packer::default();
        let matrix = packer.pack(stream, "tune", &lower_all, upper_all)?;
        let is_fp4 = matches!(op.format, Format::Nvfp4 | Format::Mxfp4);
        let panels = match in_panels && is_fp4 && stream.arch().multiplies_fp4() {
            true => vec![packer.pack_panels(stream, "tune", &lower_all, upper_all)?],
            false => Vec::new(),
        };
        packer.check(stream)?;
        let mut exact = Vec::new();
        for e in 0..distinct {
            let of_one = [lower.get(e), upper.get(e)].into_iter().flatten();
            exact.push(of_one.map(|view| Matrix::load(stream, "tune", &[view])).collect::<Result<_, _>>()?);
        }
        let mut problem = Self {
            op,
            routed,
            copies: vec![matrix],
            panels,
            exact,
            x: Buffer::NONE,
            x_exact: Buffer::NONE,
            x_coded: Buffer::NONE,
            max_slots: 0,
        };
        let rows = ops.iter().flat_map(|op| op.rows.rows(routed));
        let most = rows.map(|rows| problem.workload(rows).num_slots).max();
        problem.max_slots = most.unwrap_or(0).max(least_slots);
        let values = problem.max_slots * op.in_features;
        let panels = row_panels::bytes(problem.max_slots, op.in_features);
        if row_panels::KERNEL.archs.contains(&stream.arch()) && !routed && stream.panels().bytes < panels {
            let panels = stream.allocate(WHAT, panels)?;
            stream.set_panels(panels);
        }
        let pool: Vec<u8> =
            (0..POOL_BYTES / 2).flat_map(|_| half::bf16::from_f32(value(rng)).to_le_bytes()).collect();
        let x = fill(rng, 2 * values, &pool);
        let bits = x.chunks_exact(2).map(|bytes| u32::from(u16::from_le_bytes([bytes[0], bytes[1]])));
        let x_exact: Vec<f32> = bits.map(|bits| f32::from_bits(bits << 16)).collect();
        problem.x = stream.store(WHAT, &x)?;
        problem.x_exact = stream.store(WHAT, &x_exact)?;
        problem.set_terms(stream, op.terms)?;
        Ok(problem)
    }

    /// Makes rows of x in so many terms of 4-bit floats for the products that follow, or in none.
    pub(super) fn set_terms<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        terms: usize,
    ) -> Result<(), OpError> {
        /// Rows of a launch.
        const ROWS: usize = 1 << 15;
        self.op.terms = terms;
        let Some(form) = self.op.form() else { return Ok(()) };
        let (columns, stride) = (self.op.in_features, fp4_rows::row_bytes(self.op.in_features, terms));
        let num_rows = self.max_slots.div_ceil(self.slots_per_row());
        self.x_coded = stream.allocate(WHAT, num_rows * stride)?;
        for first in (0..num_rows).step_by(ROWS) {
            let x = Rows { address: self.x_exact.address + (4 * first * columns) as u64, stride: columns };
            let to = self.x_coded.address + (first * stride) as u64;
            fp4_rows::launch(stream, &[form.into()], ROWS.min(num_rows - first), columns, x, &[to])?;
        }
        Ok(())
    }

    /// Rows of x in 4-bit floats, with a stride in bytes.
    pub(super) fn coded(&self) -> Option<(ActivationForm, Rows)> {
        let form = self.op.form()?;
        let stride = fp4_rows::row_bytes(self.op.in_features, form.num_terms());
        Some((form, Rows { address: self.x_coded.address, stride }))
    }

    /// Copies of the weights that a launch may read.
    pub(super) fn num_copies(&self) -> usize {
        self.copies.len()
    }

    /// Copies the weights until they, with copies, are `bytes` or there are `most` of them.
    pub(super) fn rotate<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        bytes: usize,
        most: usize,
    ) -> Result<(), OpError> {
        let original = self.copies[0];
        let each = self.op.expert_bytes() * self.op.count;
        let wanted = bytes.div_ceil(each.max(1)).clamp(1, most);
        while self.copies.len() < wanted {
            let mut copy = original;
            let (from, to) = (&original.weight, &mut copy.weight);
            let count = original.count;
            to.codes = copied(stream, from.codes, from.codes_stride as usize * count)?;
            to.scales = copied(stream, from.scales, from.scales_stride as usize * count)?;
            to.upper_scales = match from.upper_scales == from.scales {
                true => to.scales,
                false => copied(stream, from.upper_scales, from.scales_stride as usize * count)?,
            };
            self.copies.push(copy);
        }
        let Some(original) = self.panels.first().copied() else { return Ok(()) };
        while self.panels.len() < wanted {
            let mut copy = original;
            let bytes = original.weight.expert_bytes as usize * original.count;
            copy.weight.panels = copied(stream, original.weight.panels, bytes)?;
            self.panels.push(copy);
        }
        Ok(())
    }

    /// Numbers of rows that are checked; the last one is timed.
    pub(super) fn rows(&self) -> [usize; 3] {
        self.op.rows.rows(self.routed)
    }

    /// About `rows` slots for each matrix: of four experts one has twice as many and one none.
    pub(super) fn workload(&self, rows: usize) -> Workload {
        if !self.routed {
            return Workload { num_slots: rows, chosen: None };
        }
        let mut chosen = Vec::new();
        for expert in 0..self.op.count {
            let slots = match expert % 4 {
                0 => 2 * rows,
                3 => 0,
                _ => rows,
            };
            chosen.extend(std::iter::repeat_n(expert as u32, slots));
        }
        fastrand::Rng::with_seed(rows as u64).shuffle(&mut chosen);
        Workload { num_slots: chosen.len(), chosen: Some(chosen) }
    }

    /// The slots of `rows` rows of a step, of which each has `top_k` different experts, all equally likely.
    pub(super) fn step(&self, rows: usize, top_k: usize) -> Workload {
        if !self.routed {
            return Workload { num_slots: rows, chosen: None };
        }
        let mut rng = fastrand::Rng::with_seed(rows as u64);
        let top_k = top_k.min(self.op.count);
        let chosen: Vec<u32> =
            (0..rows).flat_map(|_| rng.choose_multiple(0..self.op.count as u32, top_k)).collect();
        Workload { num_slots: chosen.len(), chosen: Some(chosen) }
    }

    pub(super) fn slots_per_row(&self) -> usize {
        match (self.routed, self.op.product) {
            (true, Product::Swiglu) => SLOTS_PER_ROW,
            _ => 1,
        }
    }

    /// Rows of x.
    pub(super) fn x(&self) -> Rows {
        Rows { address: self.x.address, stride: self.op.in_features }
    }

    /// Bytes that a launch has to move at least: weights of experts with slots, inputs, outputs.
    pub(super) fn least_bytes(&self, workload: &Workload) -> u64 {
        let active = match &workload.chosen {
            None => 1,
            Some(chosen) => {
                let mut experts = chosen.clone();
                experts.sort_unstable();
                experts.dedup();
                experts.len()
            }
        };
        let num_rows = workload.num_slots.div_ceil(self.slots_per_row());
        let (values, columns) = (workload.num_slots * self.op.out_features, self.op.in_features);
        let (inputs, outputs) = match (self.op.terms, self.op.product) {
            (0, product) => (2 * num_rows * columns, product.value_bytes() * values),
            (terms, Product::Linear) => (num_rows * fp4_rows::row_bytes(columns, terms), 4 * values),
            (terms, Product::Swiglu) => {
                let inner = fp4_rows::row_bytes(self.op.out_features, terms);
                (num_rows * fp4_rows::row_bytes(columns, terms), workload.num_slots * inner)
            }
        };
        (active * self.op.expert_bytes() + inputs + outputs) as u64
    }

    /// Writes the worklist of a workload for blocks of `tile_rows` rows; `None` for rows of one matrix.
    pub(super) fn worklist<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        workload: &Workload,
        tile_rows: usize,
    ) -> Result<Option<Worklist>, OpError> {
        let Some(chosen) = &workload.chosen else { return Ok(None) };
        let max_tiles = route::max_tiles(workload.num_slots, self.op.count, tile_rows);
        let chosen = stream.store(WHAT, chosen)?.address;
        let list = Worklist {
            num_tiles: stream.allocate(WHAT, 4)?.address,
            tiles: stream.allocate(WHAT, 12 * max_tiles)?.address,
            slots: stream.allocate(WHAT, 4 * workload.num_slots)?.address,
            tile_rows,
            max_tiles,
            held: Held::all(self.op.count),
        };
        route::launch_tiles(stream, workload.num_slots, chosen, &list)?;
        Ok(Some(list))
    }

    /// The slots of a launch.
    pub(super) fn slots<'a>(&self, workload: &Workload, list: Option<&'a Worklist>) -> Slots<'a> {
        match list {
            Some(list) => Slots::Routed(list, self.slots_per_row()),
            None => Slots::Rows(workload.num_slots, 0),
        }
    }

    /// The outputs by the f32 kernel, `[slots, N]`.
    pub(super) fn expected<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        workload: &Workload,
    ) -> Result<Vec<f32>, OpError> {
        let width = self.op.out_features;
        let mut expected = vec![0.0; workload.num_slots * width];
        let x = linear::Rows { address: self.x_exact.address, stride: self.op.in_features };
        let y = stream.allocate(WHAT, 4 * workload.num_slots * width)?;
        let y_rows = linear::Rows { address: y.address, stride: width };
        for (e, matrices) in self.exact.iter().enumerate() {
            let slots: Vec<usize> = match &workload.chosen {
                None => (0..workload.num_slots).collect(),
                Some(chosen) => {
                    (0..chosen.len()).filter(|slot| chosen[*slot] as usize % self.exact.len() == e).collect()
                }
            };
            if slots.is_empty() {
                continue;
            }
            let rows: Vec<u32> = slots.iter().map(|slot| (slot / self.slots_per_row()) as u32).collect();
            let list = stream.store(WHAT, &rows)?.address;
            let mut outputs = Vec::new();
            for matrix in matrices {
                linear::launch(stream, rows.len(), matrix, x, list, y_rows, Output::Set)?;
                outputs.push(stream.read::<f32>(y.address, rows.len() * width)?);
            }
            let ups = outputs.get(1);
            for (i, slot) in slots.iter().enumerate() {
                for n in 0..width {
                    let gate = outputs[0][i * width + n];
                    expected[slot * width + n] =
                        ups.map_or(gate, |ups| gate / (1.0 + (-gate).exp()) * ups[i * width + n]);
                }
            }
        }
        Ok(expected)
    }
}

/// A copy of device memory.
fn copied<D: Driver>(stream: &mut Stream<D>, from: u64, bytes: usize) -> Result<u64, OpError> {
    let buffer = stream.allocate(WHAT, bytes)?;
    stream.driver().copy(buffer.address, from, bytes)?;
    Ok(buffer.address)
}
