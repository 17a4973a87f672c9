//! Operations of a vision tower with its projector: pictures become rows that stand for embeddings of tokens.
//!
//! MoonViT (Kimi-VL, arXiv 2504.07491, section 2.1) as Kimi K2.5 uses it. Each picture is patches of 14 x 14
//! pixels; every block attends to all patches of the same picture and to no other's; four neighbouring patches
//! become one token.
//!
//! Notation as in `backend.rs`, with P patches of the pictures under way, W the tower's width, D the network's.

use std::collections::HashMap;

use super::{OpError, Picture, Storage};
use perigee_numbers::quant::StoredMatrix;
use perigee_numbers::tensor::TensorView;

/// Epsilon of the norms of the blocks.
pub const TOWER_NORM_EPS: f32 = 1e-5;

/// Sizes of a tower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TowerShape {
    /// W, width of the residual stream.
    pub hidden_size: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Attention heads; W / heads is a multiple of 4.
    pub num_heads: usize,
    /// Inner units of a block's MLP.
    pub intermediate_size: usize,
    /// Rows of the table of positions.
    pub table_rows: usize,
    /// Columns of the table of positions.
    pub table_cols: usize,
    /// D, width of the projector's output.
    pub out_size: usize,
    /// Epsilon of the projector's norm.
    pub projector_eps: f32,
}

impl TowerShape {
    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Values of four neighbouring patches side by side.
    pub fn merged_size(&self) -> usize {
        4 * self.hidden_size
    }
}

/// How many pictures a tower takes at once, and how many rows it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TowerCapacity {
    /// Upper bound on the patches of the pictures under way, and on those of the grids whose positions are kept.
    pub max_patches: usize,
    /// Rows for finished pictures, `[num_rows, D]`.
    pub num_rows: usize,
}

/// A linear map with a bias.
#[derive(Debug, Clone)]
pub struct BiasedMatrix<'a> {
    /// `[out, in]`.
    pub weight: StoredMatrix<'a>,
    /// `[out]`.
    pub bias: TensorView<'a>,
}

/// Gain and bias of a layer norm.
#[derive(Debug, Clone)]
pub struct NormVectors<'a> {
    /// `[W]`.
    pub gain: TensorView<'a>,
    /// `[W]`.
    pub bias: TensorView<'a>,
}

/// Weights of a block.
#[derive(Debug, Clone)]
pub struct TowerBlockMatrices<'a> {
    /// In front of attention.
    pub norm0: NormVectors<'a>,
    /// `[3 W, W]`: queries, keys, values.
    pub wqkv: BiasedMatrix<'a>,
    /// `[W, W]`.
    pub wo: BiasedMatrix<'a>,
    /// In front of the MLP.
    pub norm1: NormVectors<'a>,
    /// `[F, W]`.
    pub fc0: BiasedMatrix<'a>,
    /// `[W, F]`.
    pub fc1: BiasedMatrix<'a>,
}

/// A tower's weights on the host.
#[derive(Debug, Clone)]
pub struct TowerMatrices<'a> {
    /// Value of each level of each channel, `[3, 256]`.
    pub levels: [[f32; 256]; 3],
    /// `[W, 588]`.
    pub patch_embed: BiasedMatrix<'a>,
    /// `[table_rows, table_cols, W]`.
    pub positions: TensorView<'a>,
    /// The blocks, in order.
    pub blocks: Vec<TowerBlockMatrices<'a>>,
    /// Behind the last block.
    pub final_norm: NormVectors<'a>,
    /// In front of the merge.
    pub pre_norm: NormVectors<'a>,
    /// `[4 W, 4 W]`.
    pub linear_1: BiasedMatrix<'a>,
    /// `[D, 4 W]`.
    pub linear_2: BiasedMatrix<'a>,
}

/// Runs a vision tower beside the network.
pub trait TowerOps: Storage {
    /// An uploaded tower: weights, activations of the pictures under way, rows of finished ones.
    type Tower: Send + 'static;

    /// Bytes of a tower besides its weights, before any allocation.
    fn tower_bytes(&self, shape: &TowerShape, capacity: &TowerCapacity) -> u64 {
        let _ = (shape, capacity);
        Default::default()
    }

    /// Uploads a tower.
    fn load_tower(
        &mut self,
        host: &TowerMatrices<'_>,
        shape: &TowerShape,
        capacity: &TowerCapacity,
    ) -> Result<Self::Tower, OpError> {
        let _ = (host, shape, capacity);
        Err(self.absent("load_tower"))
    }

    /// Begins with these pictures, in place of what was under way. Per patch:
    /// `hidden = patch_embed(levels(pixels)) + position`, the position interpolated from the table (bicubic, a = -0.75, centres of cells,
    /// borders repeated, no smoothing) unless the grid is the table's own, once per grid (`GridIndex`).
    fn begin_pictures(&mut self, pictures: &[&Picture], tower: &mut Self::Tower) -> Result<(), OpError> {
        let _ = (pictures, tower);
        Err(self.absent("begin_pictures"))
    }

    /// Runs block `block`: `h += wo(attend(norm0(h)))`, `h += fc1(gelu(fc0(norm1(h))))`, gelu by its tanh form. Queries and keys are rotated by
    /// pairs `(2i, 2i + 1)`: pair 2i by the patch's column, pair 2i + 1 by its row, times `10000^(-4i / head_dim)`.
    fn tower_block(&mut self, block: usize, tower: &mut Self::Tower) -> Result<(), OpError> {
        let _ = (block, tower);
        Err(self.absent("tower_block"))
    }

    /// Finishes the pictures: final norm, then per token the norms of its four patches (upper left, upper right, lower left, lower right) side by
    /// side through `linear_2(gelu(linear_1(x)))`, gelu exact. Row `i` of all tokens of all pictures is kept as row `to[i]`.
    fn project_pictures(&mut self, to: &[u32], tower: &mut Self::Tower) -> Result<(), OpError> {
        let _ = (to, tower);
        Err(self.absent("project_pictures"))
    }

    /// Replaces the residual stream of the step's rows that are media ([`super::TokenSource::Media`]) by kept rows; behind
    /// [`super::Backend::embed`], and recorded with it.
    fn place_rows(&mut self, tower: &Self::Tower, workspace: &mut Self::Workspace) -> Result<(), OpError> {
        let _ = (tower, workspace);
        Err(self.absent("place_rows"))
    }

    /// For tests: kept rows, `[rows.len(), D]`.
    fn read_rows(&mut self, rows: &[u32], tower: &Self::Tower) -> Result<Vec<f32>, OpError> {
        let _ = (rows, tower);
        Err(self.absent("read_rows"))
    }

    /// For tests: the residual stream behind the final norm, `[P, W]`.
    fn read_encoded(&mut self, tower: &mut Self::Tower) -> Result<Vec<f32>, OpError> {
        let _ = tower;
        Err(self.absent("read_encoded"))
    }
}

/// Places of the positions of grids, in an array of a bounded number of patches. Positions depend on the grid
/// alone, and most pictures of a service come in few sizes. A grid that no longer fits begins the array again:
/// beside one grid of the largest size no order of eviction would keep another.
#[derive(Debug)]
pub struct GridIndex {
    max_patches: usize,
    taken: usize,
    first_patches: HashMap<[usize; 2], usize>,
}

impl GridIndex {
    /// An empty array of so many patches.
    pub fn new(max_patches: usize) -> Self {
        Self { max_patches, taken: 0, first_patches: HashMap::new() }
    }

    /// First patch of a grid of `[rows, cols]`, and whether its positions are yet to be written. The place holds until the next call.
    pub fn place(&mut self, [rows, cols]: [usize; 2]) -> (usize, bool) {
        if let Some(first) = self.first_patches.get(&[rows, cols]) {
            return (*first, false);
        }
        if self.taken + rows * cols > self.max_patches {
            self.first_patches.clear();
            self.taken = 0;
        }
        let first = self.taken;
        self.taken += rows * cols;
        self.first_patches.insert([rows, cols], first);
        (first, true)
    }
}

/// Cubic interpolation of a table of `len` cells at `size` places: the four cells of each place and their weights. a = -0.75, centres
/// of cells, borders repeated; in f32, as the reference computes it.
pub fn cubic_taps(len: usize, size: usize) -> Vec<([usize; 4], [f32; 4])> {
    const A: f32 = -0.75;
    let near = |t: f32| ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0;
    let far = |t: f32| ((A * t - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A;
    let scale = len as f32 / size as f32;
    let last = len as isize - 1;
    (0..size)
        .map(|i| {
            let place = (i as f32 + 0.5) * scale - 0.5;
            let base = place.floor();
            let t = place - base;
            let cells = std::array::from_fn(|k| (base as isize - 1 + k as isize).clamp(0, last) as usize);
            (cells, [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)])
        })
        .collect()
}

/// Cosines, then sines, of the `head_dim / 2` pairs of a patch at `(row, col)`.
pub fn patch_rotation(row: usize, col: usize, head_dim: usize, out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(head_dim / 2);
    for i in 0..head_dim / 4 {
        let frequency = (10000f64.powf(-4.0 * i as f64 / head_dim as f64)) as f32;
        for (pair, place) in [(2 * i, col), (2 * i + 1, row)] {
            let angle = place as f32 * frequency;
            (cosines[pair], sines[pair]) = (angle.cos(), angle.sin());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_its_own_size_is_not_changed() {
        for (i, (cells, weights)) in cubic_taps(7, 7).into_iter().enumerate() {
            assert_eq!(weights, [0.0, 1.0, 0.0, 0.0]);
            assert_eq!(cells[1], i);
        }
    }

    #[test]
    fn grids_keep_their_place_until_the_array_is_full() {
        let mut grids = GridIndex::new(100);
        assert_eq!(grids.place([4, 10]), (0, true));
        assert_eq!(grids.place([10, 4]), (40, true));
        assert_eq!(grids.place([4, 10]), (0, false));
        assert_eq!(grids.place([2, 10]), (80, true), "up to the last patch");
        assert_eq!(grids.place([2, 2]), (0, true), "begins again");
        assert_eq!(grids.place([10, 10]), (0, true), "the largest grid");
        assert_eq!(grids.place([4, 10]), (0, true));
    }

    #[test]
    fn weights_sum_to_one() {
        for (_, weights) in cubic_taps(64, 23) {
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
    }
}
