//! Vision towers on a device. Between the products everything is f32; products have a chunk of rows at a time.

use super::buffers::Values;
use super::projection::Projection;
use super::{CudaBackend, Workspace};
use crate::driver::Driver;
use crate::kernels::linear::Output;
use crate::kernels::vision::{
    self, After, AttendParams, BiasParams, NormParams, PatchesParams, PlaceParams, PositionsParams, QkvParams,
};
use crate::stream::{Buffer, Stream};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::{
    Activations, BiasedMatrix, GridIndex, MERGE_SIDE, NormVectors, OpError, PATCH_VALUES, Picture,
    TOWER_NORM_EPS, TowerCapacity, TowerMatrices, TowerOps, TowerShape, expect, patch_rotation,
};

/// Patches of a chunk; a multiple of the four of a token.
const CHUNK: usize = 2048;
/// Inputs of the first product: [`PATCH_VALUES`] and zeros, as many as kernels move at once.
const PATCH_COLUMNS: usize = PATCH_VALUES.next_multiple_of(8);

/// A product with a bias.
struct Linear {
    weight: Projection,
    /// `[out]` f32.
    bias: Buffer,
}

/// A layer norm.
struct Norm {
    gain: Buffer,
    bias: Buffer,
}

struct Block {
    norm0: Norm,
    wqkv: Linear,
    wo: Linear,
    norm1: Norm,
    fc0: Linear,
    fc1: Linear,
}

/// A picture under way.
struct Item {
    /// Its first patch, and the address of its pixels.
    first: usize,
    pixels: u64,
    rows: usize,
    cols: usize,
}

impl Item {
    fn patches(&self) -> usize {
        self.rows * self.cols
    }
}

/// Weights, activations and kept rows.
pub struct Tower {
    shape: TowerShape,
    capacity: TowerCapacity,
    /// `[3, 256]` f32.
    levels: Buffer,
    patch_embed: Linear,
    /// `[table_rows, table_cols, W]` f32.
    positions: Buffer,
    blocks: Vec<Block>,
    final_norm: Norm,
    pre_norm: Norm,
    linear_1: Linear,
    linear_2: Linear,
    buffers: Buffers,
    items: Vec<Item>,
    /// Where grids are in `buffers.positions`.
    grids: GridIndex,
}

/// Device memory of the pictures under way, f32 unless stated; P patches, chunks of C of them.
struct Buffers {
    /// `[P, 588]` u8.
    pixels: Buffer,
    /// `[P, E]`.
    rotations: Buffer,
    /// `[P, W]`, positions of the grids that are kept.
    positions: Buffer,
    /// `[P, W]`.
    hidden: Buffer,
    /// `[P, 3 W]`.
    qkv: Buffer,
    /// `[P, W]`.
    attended: Values,
    /// `[C, 592]`.
    patches: Values,
    /// `[C, W]`, as `[C / 4, 4 W]` too.
    normed: Values,
    /// `[C, max(3 W, F)]`.
    wide: Buffer,
    /// `[C, F]`, as `[C / 4, 4 W]` too.
    inner: Values,
    /// `[C, W]`, and `[C / 4, D]`.
    out: Buffer,
    /// `[P]` u32, patches in the order of their tokens.
    order: Buffer,
    /// `[P / 4]` u32, where tokens are kept.
    to: Buffer,
    /// `[num_rows, D]`.
    kept: Buffer,
}

/// Bytes of [`Buffers`], in the order of the fields.
fn bytes(shape: &TowerShape, capacity: &TowerCapacity, arithmetic: Activations) -> [usize; 18] {
    let (w, p, inner) = (shape.hidden_size, capacity.max_patches, shape.intermediate_size);
    let half = |values: usize| if arithmetic.are_rounded() { 2 * values } else { 0 };
    let widest = CHUNK * inner.max(w);
    [
        p * PATCH_VALUES,
        4 * p * shape.head_dim(),
        4 * p * w,
        4 * p * w,
        4 * p * 3 * w,
        4 * p * w,
        half(p * w),
        4 * CHUNK * PATCH_COLUMNS,
        half(CHUNK * PATCH_COLUMNS),
        4 * CHUNK * w,
        half(CHUNK * w),
        4 * CHUNK * inner.max(3 * w),
        4 * widest,
        half(widest),
        4 * (CHUNK * w).max(CHUNK / 4 * shape.out_size),
        4 * p,
        p,
        4 * capacity.num_rows * shape.out_size,
    ]
}

impl Buffers {
    fn new<D: Driver>(stream: &mut Stream<D>, bytes: [usize; 18]) -> Result<Self, OpError> {
        let mut sizes = bytes.into_iter();
        let mut next = || match sizes.next().unwrap_or(0) {
            0 => Ok(Buffer::NONE),
            bytes => stream.allocate("vision activations", bytes),
        };
        Ok(Self {
            pixels: next()?,
            rotations: next()?,
            positions: next()?,
            hidden: next()?,
            qkv: next()?,
            attended: Values { exact: next()?, rounded: next()? },
            patches: Values { exact: next()?, rounded: next()? },
            normed: Values { exact: next()?, rounded: next()? },
            wide: next()?,
            inner: Values { exact: next()?, rounded: next()? },
            out: next()?,
            order: next()?,
            to: next()?,
            kept: next()?,
        })
    }
}

/// Values from row `row` of `columns` values on.
fn rows_from(values: Values, row: usize, columns: usize) -> Values {
    let [exact, rounded] = values.row(row, columns);
    let at = |buffer: Buffer, address| Buffer { address, ..buffer };
    Values { exact: at(values.exact, exact), rounded: at(values.rounded, rounded) }
}

/// Addresses of values in f32 and bf16.
fn addresses(values: Values) -> [u64; 2] {
    values.row(0, 0)
}

fn chunks(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len).step_by(CHUNK).map(move |first| first..(first + CHUNK).min(len))
}

impl<D: Driver> CudaBackend<D> {
    fn load_linear(&mut self, host: &BiasedMatrix<'_>, shape: [usize; 2]) -> Result<Linear, OpError> {
        expect("load_tower", &shape, host.weight.shape())?;
        expect("load_tower", &shape[..1], host.bias.shape)?;
        let weight = self.load_projection("load_tower", &host.weight)?;
        Ok(Linear { weight, bias: self.stream.store("weights", &host.bias.to_f32())? })
    }

    fn load_norm(&mut self, host: &NormVectors<'_>, width: usize) -> Result<Norm, OpError> {
        expect("load_tower", &[width], host.gain.shape)?;
        expect("load_tower", &[width], host.bias.shape)?;
        Ok(Norm {
            gain: self.stream.store("weights", &host.gain.to_f32())?,
            bias: self.stream.store("weights", &host.bias.to_f32())?,
        })
    }

    /// Norm of `count` rows of `source`, or of those that the list at `rows` names.
    fn layer_norm(
        &mut self,
        count: usize,
        (source, rows): (u64, u64),
        norm: &Norm,
        to: Values,
        (width, eps): (usize, f32),
    ) -> Result<(), OpError> {
        let [to, rounded] = addresses(to);
        let (gain, bias, width) = (norm.gain.address, norm.bias.address, width as i32);
        vision::launch(
            &mut self.stream,
            count,
            &NormParams { source, rows, gain, bias, to, rounded, width, eps },
        )
    }

    /// Product, bias and what follows, of `count` rows; `raw` has room for the product.
    fn linear(
        &mut self,
        count: usize,
        (x, linear, raw): (Values, &Linear, Buffer),
        (to, rows): ([u64; 2], u64),
        after: After,
    ) -> Result<(), OpError> {
        self.project(count, x, 0, &linear.weight, raw, Output::Set)?;
        let (columns, bias) = (linear.weight.out_features() as i32, linear.bias.address);
        let ([to, rounded], (mode, added)) = (to, after.params());
        vision::launch(
            &mut self.stream,
            count,
            &BiasParams { x: raw.address, bias, added, to, rounded, rows, columns, mode },
        )
    }
}

impl<D: Driver> TowerOps for CudaBackend<D> {
    type Tower = Tower;

    fn tower_bytes(&self, shape: &TowerShape, capacity: &TowerCapacity) -> u64 {
        let table = 4 * shape.table_rows * shape.table_cols * shape.hidden_size;
        (bytes(shape, capacity, self.arithmetic).iter().sum::<usize>() + table) as u64
    }

    fn load_tower(
        &mut self,
        host: &TowerMatrices<'_>,
        shape: &TowerShape,
        capacity: &TowerCapacity,
    ) -> Result<Tower, OpError> {
        let (w, inner, merged) = (shape.hidden_size, shape.intermediate_size, shape.merged_size());
        let limit = vision::MAX_HEAD;
        expect("load_tower", &[limit.max(shape.head_dim())], &[limit])?;
        expect("load_tower", &[shape.table_rows, shape.table_cols, w], host.positions.shape)?;
        // The rows of the first product end in zeros.
        expect("load_tower", &[w, PATCH_VALUES], host.patch_embed.weight.shape())?;
        let values = host.patch_embed.weight.to_f32();
        let padded: Vec<u8> = values
            .chunks_exact(PATCH_VALUES)
            .flat_map(|row| {
                let zeros = std::iter::repeat_n(0.0, PATCH_COLUMNS - PATCH_VALUES);
                row.iter().copied().chain(zeros).flat_map(|x: f32| half::bf16::from_f32(x).to_le_bytes())
            })
            .collect();
        let padded_shape = [w, PATCH_COLUMNS];
        let view = TensorView { dtype: Dtype::BF16, shape: &padded_shape, bytes: &padded };
        let patch_embed = BiasedMatrix { weight: StoredMatrix::Plain(view), bias: host.patch_embed.bias };
        let mut blocks = Vec::with_capacity(host.blocks.len());
        for block in &host.blocks {
            blocks.push(Block {
                norm0: self.load_norm(&block.norm0, w)?,
                wqkv: self.load_linear(&block.wqkv, [3 * w, w])?,
                wo: self.load_linear(&block.wo, [w, w])?,
                norm1: self.load_norm(&block.norm1, w)?,
                fc0: self.load_linear(&block.fc0, [inner, w])?,
                fc1: self.load_linear(&block.fc1, [w, inner])?,
            });
        }
        let sizes = bytes(shape, capacity, self.arithmetic);
        Ok(Tower {
            shape: *shape,
            capacity: *capacity,
            levels: self.stream.store("weights", host.levels.as_flattened())?,
            patch_embed: self.load_linear(&patch_embed, padded_shape)?,
            positions: self.stream.store("weights", &host.positions.to_f32())?,
            blocks,
            final_norm: self.load_norm(&host.final_norm, w)?,
            pre_norm: self.load_norm(&host.pre_norm, w)?,
            linear_1: self.load_linear(&host.linear_1, [merged, merged])?,
            linear_2: self.load_linear(&host.linear_2, [shape.out_size, merged])?,
            buffers: Buffers::new(&mut self.stream, sizes)?,
            items: Vec::new(),
            grids: GridIndex::new(capacity.max_patches),
        })
    }

    fn begin_pictures(&mut self, pictures: &[&Picture], tower: &mut Tower) -> Result<(), OpError> {
        let total: usize = pictures.iter().map(|picture| picture.num_patches()).sum();
        let most = tower.capacity.max_patches;
        expect("begin_pictures", &[most.max(total)], &[most])?;
        let Tower { shape, buffers, items, .. } = tower;
        let (w, head) = (shape.hidden_size, shape.head_dim());
        items.clear();
        let mut rotations = vec![0.0; total * head];
        let (mut first, mut order) = (0, Vec::with_capacity(total));
        for picture in pictures {
            let (rows, cols) = (picture.rows(), picture.cols());
            let pixels = buffers.pixels.address + (first * PATCH_VALUES) as u64;
            self.stream.upload(pixels, picture.pixels())?;
            for (at, rotation) in
                rotations[first * head..].chunks_exact_mut(head).take(rows * cols).enumerate()
            {
                patch_rotation(at / cols, at % cols, head, rotation);
            }
            for row in (0..rows).step_by(MERGE_SIDE) {
                for col in (0..cols).step_by(MERGE_SIDE) {
                    let corner = (first + row * cols + col) as u32;
                    order.extend([corner, corner + 1, corner + cols as u32, corner + cols as u32 + 1]);
                }
            }
            items.push(Item { first, pixels, rows, cols });
            first += rows * cols;
        }
        self.stream.upload(buffers.rotations.address, bytemuck::cast_slice(&rotations))?;
        self.stream.upload(buffers.order.address, bytemuck::cast_slice(&order))?;
        let Tower { shape, buffers, items, grids, .. } = tower;
        let at = |buffer: Buffer, patch: usize| buffer.address + (4 * patch * w) as u64;
        for item in items {
            let (grid, is_new) = grids.place([item.rows, item.cols]);
            if is_new {
                let params = PositionsParams {
                    table: tower.positions.address,
                    positions: at(buffers.positions, grid),
                    rows: item.rows as i32,
                    cols: item.cols as i32,
                    table_rows: shape.table_rows as i32,
                    table_cols: shape.table_cols as i32,
                    width: w as i32,
                    padding: 0,
                };
                vision::launch(&mut self.stream, item.patches(), &params)?;
            }
            for chunk in chunks(item.patches()) {
                let [to, rounded] = addresses(buffers.patches);
                let (pixels, levels, first) = (item.pixels, tower.levels.address, chunk.start as i32);
                let (cols, columns) = (item.cols as i32, PATCH_COLUMNS as i32);
                let patches = PatchesParams { pixels, levels, to, rounded, first, cols, columns, padding: 0 };
                vision::launch(&mut self.stream, chunk.len(), &patches)?;
                let hidden = at(buffers.hidden, item.first + chunk.start);
                let positions = After::Add(at(buffers.positions, grid + chunk.start));
                let product = (buffers.patches, &tower.patch_embed, buffers.out);
                self.linear(chunk.len(), product, ([hidden, 0], 0), positions)?;
            }
        }
        Ok(())
    }

    fn tower_block(&mut self, block: usize, tower: &mut Tower) -> Result<(), OpError> {
        let Tower { shape, buffers, items, .. } = &*tower;
        let (w, head) = (shape.hidden_size, shape.head_dim());
        let total = items.last().map_or(0, |item| item.first + item.patches());
        let Some(weights) = tower.blocks.get(block) else { return expect("tower_block", &[0], &[block]) };
        let at = |buffer: Buffer, patch: usize, columns: usize| buffer.address + (4 * patch * columns) as u64;
        for chunk in chunks(total) {
            let source = (at(buffers.hidden, chunk.start, w), 0);
            self.layer_norm(chunk.len(), source, &weights.norm0, buffers.normed, (w, TOWER_NORM_EPS))?;
            let wqkv = &weights.wqkv;
            self.project(chunk.len(), buffers.normed, 0, &wqkv.weight, buffers.wide, Output::Set)?;
            let qkv = QkvParams {
                x: buffers.wide.address,
                bias: wqkv.bias.address,
                rotations: at(buffers.rotations, chunk.start, head),
                qkv: at(buffers.qkv, chunk.start, 3 * w),
                width: w as i32,
                head_dim: head as i32,
            };
            vision::launch(&mut self.stream, chunk.len(), &qkv)?;
        }
        for item in items {
            let [attended, rounded] = buffers.attended.row(item.first, w);
            let params = AttendParams {
                qkv: at(buffers.qkv, item.first, 3 * w),
                attended,
                rounded,
                patches: item.patches() as i32,
                num_heads: shape.num_heads as i32,
                head_dim: head as i32,
                scale: (head as f32).powf(-0.5),
            };
            vision::launch_attend(&mut self.stream, &params)?;
        }
        for chunk in chunks(total) {
            let (hidden, count) = (at(buffers.hidden, chunk.start, w), chunk.len());
            let attended = rows_from(buffers.attended, chunk.start, w);
            self.linear(count, (attended, &weights.wo, buffers.out), ([hidden, 0], 0), After::Add(hidden))?;
            self.layer_norm(count, (hidden, 0), &weights.norm1, buffers.normed, (w, TOWER_NORM_EPS))?;
            let inner = (addresses(buffers.inner), 0);
            self.linear(count, (buffers.normed, &weights.fc0, buffers.wide), inner, After::Tanh)?;
            let inner = (buffers.inner, &weights.fc1, buffers.out);
            self.linear(count, inner, ([hidden, 0], 0), After::Add(hidden))?;
        }
        Ok(())
    }

    fn project_pictures(&mut self, to: &[u32], tower: &mut Tower) -> Result<(), OpError> {
        let Tower { shape, buffers, items, .. } = &*tower;
        let w = shape.hidden_size;
        let total = items.last().map_or(0, |item| item.first + item.patches());
        expect("project_pictures", &[total / 4], &[to.len()])?;
        let limit = tower.capacity.num_rows;
        let highest = to.iter().max().map_or(0, |row| *row as usize + 1);
        expect("project_pictures", &[limit.max(highest)], &[limit])?;
        self.stream.upload(buffers.to.address, bytemuck::cast_slice(to))?;
        for chunk in chunks(total) {
            let order = buffers.order.address + 4 * chunk.start as u64;
            let final_norm = (w, TOWER_NORM_EPS);
            // The final norm's rows, in the order of the tokens; then the projector's norm of them, in place: a thread reads and
            // writes the same values.
            self.layer_norm(
                chunk.len(),
                (buffers.hidden.address, order),
                &tower.final_norm,
                buffers.inner,
                final_norm,
            )?;
            let source = (buffers.inner.exact.address, 0);
            self.layer_norm(chunk.len(), source, &tower.pre_norm, buffers.normed, (w, shape.projector_eps))?;
            let count = chunk.len() / 4;
            let inner = (addresses(buffers.inner), 0);
            self.linear(count, (buffers.normed, &tower.linear_1, buffers.wide), inner, After::Exact)?;
            let rows = buffers.to.address + chunk.start as u64;
            let kept = ([buffers.kept.address, 0], rows);
            self.linear(count, (buffers.inner, &tower.linear_2, buffers.out), kept, After::Set)?;
        }
        Ok(())
    }

    fn place_rows(&mut self, tower: &Tower, w: &mut Workspace<D>) -> Result<(), OpError> {
        let params = PlaceParams {
            media: w.step.media(),
            kept: tower.buffers.kept.address,
            hidden: w.activations.hidden.address,
            columns: w.shape.hidden_size as i64,
        };
        vision::launch(&mut self.stream, w.step.padded_rows(), &params)
    }

    fn read_rows(&mut self, rows: &[u32], tower: &Tower) -> Result<Vec<f32>, OpError> {
        let d = tower.shape.out_size;
        let mut values = Vec::with_capacity(rows.len() * d);
        for row in rows {
            let at = tower.buffers.kept.address + (4 * *row as usize * d) as u64;
            values.extend(self.stream.read::<f32>(at, d)?);
        }
        Ok(values)
    }

    fn read_encoded(&mut self, tower: &mut Tower) -> Result<Vec<f32>, OpError> {
        let w = tower.shape.hidden_size;
        let total = tower.items.last().map_or(0, |item| item.first + item.patches());
        let mut encoded = Vec::with_capacity(total * w);
        for chunk in chunks(total) {
            let source = (tower.buffers.hidden.address + (4 * chunk.start * w) as u64, 0);
            let eps = (w, TOWER_NORM_EPS);
            self.layer_norm(chunk.len(), source, &tower.final_norm, tower.buffers.normed, eps)?;
            encoded.extend(self.stream.read::<f32>(tower.buffers.normed.exact.address, chunk.len() * w)?);
        }
        Ok(encoded)
    }
}
