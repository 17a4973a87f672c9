//! Vision towers on any set of host operations.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::backend::HostWorkspace;
use super::{Gelu, HostOps};
use crate::OpError;
use crate::expect;
use crate::{
    BiasedMatrix, GridIndex, NormVectors, TOWER_NORM_EPS, TowerCapacity, TowerMatrices, TowerOps, TowerShape,
    cubic_taps, patch_rotation,
};
use crate::{MERGE_SIDE, PATCH_VALUES, Picture};

/// Patches whose products are taken at once: enough for their speed, and few enough that inner units of all patches never exist together.
const CHUNK: usize = 1024;

/// Rows of one item of row-wise work.
const ITEM_ROWS: usize = 16;

struct Linear<H: HostOps> {
    weight: H::Matrix,
    bias: Vec<f32>,
}

struct Norm {
    gain: Vec<f32>,
    bias: Vec<f32>,
}

struct Block<H: HostOps> {
    norm0: Norm,
    wqkv: Linear<H>,
    wo: Linear<H>,
    norm1: Norm,
    fc0: Linear<H>,
    fc1: Linear<H>,
}

/// A picture under way.
struct Item {
    /// Its patches.
    patches: Range<usize>,
    rows: usize,
    cols: usize,
}

/// Weights, activations and kept rows.
pub struct HostTower<H: HostOps> {
    shape: TowerShape,
    capacity: TowerCapacity,
    levels: Box<[[f32; 256]; 3]>,
    patch_embed: Linear<H>,
    /// `[table_rows, table_cols, W]`.
    positions: Vec<f32>,
    blocks: Vec<Block<H>>,
    final_norm: Norm,
    pre_norm: Norm,
    linear_1: Linear<H>,
    linear_2: Linear<H>,
    items: Vec<Item>,
    /// Where grids are in `grid_positions`.
    grids: GridIndex,
    /// `[max_patches, W]` at most: positions of the grids that are kept.
    grid_positions: Vec<f32>,
    /// `[P, head_dim]`: cosines, then sines of each patch's place.
    rotations: Vec<f32>,
    /// `[P, W]`.
    hidden: Vec<f32>,
    /// `[P, 3 W]`.
    qkv: Vec<f32>,
    /// `[P, W]`.
    attended: Vec<f32>,
    /// Operands of the products, a chunk of rows each.
    patches: H::Buffer,
    narrow: H::Buffer,
    wide: H::Buffer,
    inner: H::Buffer,
    out: H::Buffer,
    merged: H::Buffer,
    merged_inner: H::Buffer,
    projected: H::Buffer,
    /// `[num_rows, D]`, finished pictures.
    kept: Vec<f32>,
}

impl<H: HostOps> HostTower<H> {
    fn num_patches(&self) -> usize {
        self.items.last().map_or(0, |item| item.patches.end)
    }

    /// Chunks of the patches under way.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<H> {
        chunks(self.num_patches())
    }
}

fn chunks(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(CHUNK).map(move |first| first..(first + CHUNK).min(len))
}

fn load_linear<H: HostOps>(
    ops: &mut H,
    host: &BiasedMatrix<'_>,
    [out, inputs]: [usize; 2],
) -> Result<Linear<H>, OpError> {
    expect("load_tower", &[out, inputs], host.weight.shape())?;
    expect("load_tower", &[out], host.bias.shape)?;
    Ok(Linear { weight: ops.load_matrix(&host.weight)?, bias: host.bias.to_f32() })
}

fn load_norm(host: &NormVectors<'_>, len: usize) -> Result<Norm, OpError> {
    expect("load_tower", &[len], host.gain.shape)?;
    expect("load_tower", &[len], host.bias.shape)?;
    Ok(Norm { gain: host.gain.to_f32(), bias: host.bias.to_f32() })
}

/// `work(t, row t)` for every row of `values`, on all threads.
fn each_row<H: HostOps>(
    ops: &mut H,
    values: &mut [f32],
    cols: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    let items: Vec<_> = values.chunks_mut(ITEM_ROWS * cols).map(Mutex::new).collect();
    ops.for_each(items.len(), &|_, item| {
        let mut rows = items[item].lock().unwrap_or_else(PoisonError::into_inner);
        rows.chunks_exact_mut(cols).enumerate().for_each(|(t, row)| work(item * ITEM_ROWS + t, row));
    });
}

/// The table of positions, interpolated at the patches of a grid of `[rows, cols]`: `[rows * cols, W]`.
fn interpolate<H: HostOps>(
    ops: &mut H,
    shape: &TowerShape,
    table: &[f32],
    [rows, cols]: [usize; 2],
    positions: &mut [f32],
) {
    let w = shape.hidden_size;
    let across = cubic_taps(shape.table_cols, cols);
    let down = cubic_taps(shape.table_rows, rows);
    let cell = |row: usize, col: usize| &table[(row * shape.table_cols + col) * w..][..w];
    each_row(ops, positions, w, |at, position| {
        let ((cells_x, by_x), (cells_y, by_y)) = (across[at % cols], down[at / cols]);
        position.fill(0.0);
        for (row, by_y) in cells_y.into_iter().zip(by_y) {
            let [a, b, c, d] = cells_x.map(|col| cell(row, col));
            for (i, value) in position.iter_mut().enumerate() {
                *value += by_y * (a[i] * by_x[0] + b[i] * by_x[1] + c[i] * by_x[2] + d[i] * by_x[3]);
            }
        }
    });
}

/// `row += x + bias`.
fn add_biased(row: &mut [f32], x: &[f32], bias: &[f32]) {
    row.iter_mut().zip(x).zip(bias).for_each(|((row, x), bias)| *row += x + bias);
}

/// Rotates the heads of a row by pairs; `rotation`: cosines, then sines.
fn rotate_heads(row: &mut [f32], rotation: &[f32]) {
    let (cosines, sines) = rotation.split_at(rotation.len() / 2);
    for head in row.chunks_exact_mut(rotation.len()) {
        for ((pair, cosine), sine) in head.chunks_exact_mut(2).zip(cosines).zip(sines) {
            let (even, odd) = (pair[0], pair[1]);
            pair[0] = even * cosine - odd * sine;
            pair[1] = even * sine + odd * cosine;
        }
    }
}

impl<H: HostOps> TowerOps for H {
    type Tower = HostTower<H>;

    fn tower_bytes(&self, shape: &TowerShape, capacity: &TowerCapacity) -> u64 {
        let w = shape.hidden_size;
        let patch = 6 * w + shape.head_dim();
        let chunk = PATCH_VALUES + 5 * w + shape.intermediate_size + 3 * w;
        let values = patch * capacity.max_patches
            + chunk * CHUNK
            + capacity.num_rows * shape.out_size
            + shape.table_rows * shape.table_cols * w;
        4 * values as u64
    }

    fn load_tower(
        &mut self,
        host: &TowerMatrices<'_>,
        shape: &TowerShape,
        capacity: &TowerCapacity,
    ) -> Result<HostTower<H>, OpError> {
        let (w, inner, merged) = (shape.hidden_size, shape.intermediate_size, shape.merged_size());
        expect("load_tower", &[shape.table_rows, shape.table_cols, w], host.positions.shape)?;
        expect("load_tower", &[shape.num_layers], &[host.blocks.len()])?;
        let mut blocks = Vec::with_capacity(host.blocks.len());
        for block in &host.blocks {
            blocks.push(Block {
                norm0: load_norm(&block.norm0, w)?,
                wqkv: load_linear(self, &block.wqkv, [3 * w, w])?,
                wo: load_linear(self, &block.wo, [w, w])?,
                norm1: load_norm(&block.norm1, w)?,
                fc0: load_linear(self, &block.fc0, [inner, w])?,
                fc1: load_linear(self, &block.fc1, [w, inner])?,
            });
        }
        let tokens = CHUNK / (MERGE_SIDE * MERGE_SIDE);
        let kept = capacity.num_rows * shape.out_size;
        Ok(HostTower {
            shape: *shape,
            capacity: *capacity,
            levels: Box::new(host.levels),
            patch_embed: load_linear(self, &host.patch_embed, [w, PATCH_VALUES])?,
            positions: host.positions.to_f32(),
            blocks,
            final_norm: load_norm(&host.final_norm, w)?,
            pre_norm: load_norm(&host.pre_norm, w)?,
            linear_1: load_linear(self, &host.linear_1, [merged, merged])?,
            linear_2: load_linear(self, &host.linear_2, [shape.out_size, merged])?,
            items: Vec::new(),
            grids: GridIndex::new(capacity.max_patches),
            grid_positions: Vec::new(),
            rotations: Vec::new(),
            hidden: Vec::new(),
            qkv: Vec::new(),
            attended: Vec::new(),
            patches: self.allocate(CHUNK, PATCH_VALUES)?,
            narrow: self.allocate(CHUNK, w)?,
            wide: self.allocate(CHUNK, 3 * w)?,
            inner: self.allocate(CHUNK, inner)?,
            out: self.allocate(CHUNK, w)?,
            merged: self.allocate(tokens, merged)?,
            merged_inner: self.allocate(tokens, merged)?,
            projected: self.allocate(tokens, shape.out_size)?,
            kept: vec![0.0; kept],
        })
    }

    fn begin_pictures(&mut self, pictures: &[&Picture], tower: &mut HostTower<H>) -> Result<(), OpError> {
        let total: usize = pictures.iter().map(|picture| picture.num_patches()).sum();
        let most = tower.capacity.max_patches;
        expect("begin_pictures", &[most.max(total)], &[most])?;
        let HostTower { shape, items, grids, grid_positions, rotations, hidden, .. } = tower;
        let (w, head) = (shape.hidden_size, shape.head_dim());
        items.clear();
        rotations.resize(total * head, 0.0);
        hidden.resize(total * w, 0.0);
        for picture in pictures {
            let first = items.last().map_or(0, |item: &Item| item.patches.end);
            let (rows, cols) = (picture.rows(), picture.cols());
            let patches = first..first + picture.num_patches();
            for (at, rotation) in rotations[first * head..].chunks_exact_mut(head).enumerate() {
                patch_rotation(at / cols, at % cols, head, rotation);
            }
            let (grid, is_new) = grids.place([rows, cols]);
            let span = grid * w..(grid + patches.len()) * w;
            if is_new {
                let missing = span.end.saturating_sub(grid_positions.len());
                grid_positions.reserve_exact(missing);
                grid_positions.resize(grid_positions.len() + missing, 0.0);
                let to = &mut grid_positions[span.clone()];
                interpolate(self, shape, &tower.positions, [rows, cols], to);
            }
            hidden[patches.start * w..patches.end * w].copy_from_slice(&grid_positions[span]);
            items.push(Item { patches, rows, cols });
        }
        let mut pixels = Vec::new();
        for (item, picture) in tower.items.iter().zip(pictures) {
            for chunk in chunks(item.patches.len()) {
                pixels.resize(chunk.len() * PATCH_VALUES, 0.0);
                let levels = &tower.levels;
                each_row(self, &mut pixels, PATCH_VALUES, |at, row| {
                    picture.patch(chunk.start + at, levels, row);
                });
                self.write(&pixels, &mut tower.patches)?;
                self.project(&tower.patches, &tower.patch_embed.weight, &mut tower.out)?;
                let rows = H::values(&tower.out).chunks_exact(w);
                let first = item.patches.start + chunk.start;
                for (hidden, row) in tower.hidden[first * w..].chunks_exact_mut(w).zip(rows) {
                    add_biased(hidden, row, &tower.patch_embed.bias);
                }
            }
        }
        Ok(())
    }

    fn tower_block(&mut self, block: usize, tower: &mut HostTower<H>) -> Result<(), OpError> {
        let (w, head) = (tower.shape.hidden_size, tower.shape.head_dim());
        let all = tower.chunks();
        let HostTower { hidden, qkv, attended, narrow, wide, inner, out, rotations, items, .. } = tower;
        let Some(weights) = tower.blocks.get(block) else { return expect("tower_block", &[0], &[block]) };
        qkv.resize(3 * hidden.len(), 0.0);
        attended.resize(hidden.len(), 0.0);
        for chunk in all {
            let rows = &hidden[chunk.start * w..chunk.end * w];
            self.layer_norm(rows, &weights.norm0.gain, &weights.norm0.bias, TOWER_NORM_EPS, narrow)?;
            self.project(narrow, &weights.wqkv.weight, wide)?;
            let (from, bias) = (H::values(wide), &weights.wqkv.bias);
            each_row(self, &mut qkv[3 * chunk.start * w..3 * chunk.end * w], 3 * w, |at, row| {
                let from = &from[3 * at * w..3 * (at + 1) * w];
                row.iter_mut().zip(from).zip(bias).for_each(|((row, x), bias)| *row = x + bias);
                let patch = chunk.start + at;
                rotate_heads(&mut row[..2 * w], &rotations[patch * head..(patch + 1) * head]);
            });
        }
        let pictures: Vec<_> = items.iter().map(|item| item.patches.clone()).collect();
        self.attend_patches(tower.shape.num_heads, head, qkv, &pictures, attended)?;
        for chunk in chunks(hidden.len() / w) {
            let span = chunk.start * w..chunk.end * w;
            self.write(&attended[span.clone()], narrow)?;
            self.project(narrow, &weights.wo.weight, out)?;
            let (from, bias) = (H::values(out), &weights.wo.bias);
            each_row(self, &mut hidden[span.clone()], w, |at, row| add_biased(row, &from[at * w..], bias));
            let rows = &hidden[span.clone()];
            self.layer_norm(rows, &weights.norm1.gain, &weights.norm1.bias, TOWER_NORM_EPS, narrow)?;
            self.project(narrow, &weights.fc0.weight, inner)?;
            self.bias_gelu(&weights.fc0.bias, Gelu::Tanh, inner)?;
            self.project(inner, &weights.fc1.weight, out)?;
            let (from, bias) = (H::values(out), &weights.fc1.bias);
            each_row(self, &mut hidden[span], w, |at, row| add_biased(row, &from[at * w..], bias));
        }
        Ok(())
    }

    fn project_pictures(&mut self, to: &[u32], tower: &mut HostTower<H>) -> Result<(), OpError> {
        let (w, d) = (tower.shape.hidden_size, tower.shape.out_size);
        let encoded = self.read_encoded(tower)?;
        // The patches of a token one behind the other.
        let mut order = Vec::with_capacity(tower.num_patches());
        for item in &tower.items {
            for row in (0..item.rows).step_by(MERGE_SIDE) {
                for col in (0..item.cols).step_by(MERGE_SIDE) {
                    let corner = item.patches.start + row * item.cols + col;
                    order.extend([corner, corner + 1, corner + item.cols, corner + item.cols + 1]);
                }
            }
        }
        expect("project_pictures", &[order.len() / 4], &[to.len()])?;
        let HostTower { pre_norm, linear_1, linear_2, narrow, merged, merged_inner, projected, kept, .. } =
            tower;
        let mut rows = Vec::new();
        for (patches, to) in order.chunks(CHUNK).zip(to.chunks(CHUNK / 4)) {
            rows.clear();
            patches.iter().for_each(|patch| rows.extend_from_slice(&encoded[patch * w..(patch + 1) * w]));
            self.layer_norm(&rows, &pre_norm.gain, &pre_norm.bias, tower.shape.projector_eps, narrow)?;
            self.write(H::values(narrow), merged)?;
            self.project(merged, &linear_1.weight, merged_inner)?;
            self.bias_gelu(&linear_1.bias, Gelu::Exact, merged_inner)?;
            self.project(merged_inner, &linear_2.weight, projected)?;
            for (row, to) in H::values(projected).chunks_exact(d).zip(to) {
                let to = *to as usize;
                expect(
                    "project_pictures",
                    &[tower.capacity.num_rows.max(to + 1)],
                    &[tower.capacity.num_rows],
                )?;
                let out = kept[to * d..(to + 1) * d].iter_mut();
                out.zip(row).zip(&linear_2.bias).for_each(|((out, x), bias)| *out = x + bias);
            }
        }
        Ok(())
    }

    fn place_rows(&mut self, tower: &HostTower<H>, workspace: &mut HostWorkspace<H>) -> Result<(), OpError> {
        let d = tower.shape.out_size;
        let HostWorkspace { plan, hidden, .. } = workspace;
        let hidden = H::values_mut(hidden);
        for (at, row) in &plan.media {
            let row = *row as usize;
            expect("place_rows", &[tower.capacity.num_rows.max(row + 1)], &[tower.capacity.num_rows])?;
            hidden[at * d..(at + 1) * d].copy_from_slice(&tower.kept[row * d..(row + 1) * d]);
        }
        Ok(())
    }

    fn read_rows(&mut self, rows: &[u32], tower: &HostTower<H>) -> Result<Vec<f32>, OpError> {
        let d = tower.shape.out_size;
        Ok(rows
            .iter()
            .flat_map(|row| &tower.kept[*row as usize * d..(*row as usize + 1) * d])
            .copied()
            .collect())
    }

    fn read_encoded(&mut self, tower: &mut HostTower<H>) -> Result<Vec<f32>, OpError> {
        let w = tower.shape.hidden_size;
        let mut encoded = Vec::with_capacity(tower.hidden.len());
        for chunk in tower.chunks() {
            let (rows, norm) = (&tower.hidden[chunk.start * w..chunk.end * w], &tower.final_norm);
            self.layer_norm(rows, &norm.gain, &norm.bias, TOWER_NORM_EPS, &mut tower.narrow)?;
            encoded.extend_from_slice(H::values(&tower.narrow));
        }
        Ok(encoded)
    }
}
