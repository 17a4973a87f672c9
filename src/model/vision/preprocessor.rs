//! From the size of a picture to its grid of patches, as the checkpoint's image processor computes it.
//!
//! Sources: `media_utils.py` of the K2.5 line and `image_processing_kimi_vl.py`. All arithmetic is in f64 and
//! in their order: the results are truncated to whole pixels, so another order gives another size now and
//! then.

mod parse;
#[cfg(test)]
mod tests;

pub use parse::PreprocessorError;

/// Side of a patch, in pixels.
pub(super) const PATCH: usize = 14;
/// Patches on each side of the square that becomes one token.
const MERGE: usize = 2;
/// Pixels that the padded sides are multiples of.
pub(super) const UNIT: usize = PATCH * MERGE;

/// Settings of a checkpoint's image processor, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessor {
    rule: Rule,
    /// Patches of a picture before it is padded.
    patch_limit: usize,
    /// Patches on a side.
    side_limit: usize,
    mean: [f64; 3],
    std: [f64; 3],
}

/// The two ways from a size to a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// K2.5, K2.6, K2.7-Code: long sides are scaled down too.
    KimiK25,
    /// Kimi-VL: long sides are refused.
    KimiVl,
}

/// Patches of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Width and height after the resize and before the padding, in pixels.
    pub resized: [usize; 2],
    /// Rows of patches, even.
    pub rows: usize,
    /// Columns of patches, even.
    pub cols: usize,
}

/// A size without a grid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// Nothing to see.
    #[error("the image has {width}x{height} pixels, at least 1x1 is needed")]
    NoPixels {
        /// Pixels in a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A side that the model has no positions for.
    #[error(
        "the longer side of the image needs {patches} patches of 14 pixels, fewer than {limit} are possible"
    )]
    SideTooLong {
        /// Patches on the longer side.
        patches: usize,
        /// The least number that is refused.
        limit: usize,
    },
}

impl Grid {
    /// Patches, padding included.
    pub fn patches(&self) -> usize {
        self.rows * self.cols
    }

    /// Tokens of the prompt: a square of 2x2 patches each.
    pub fn tokens(&self) -> usize {
        (self.rows / MERGE) * (self.cols / MERGE)
    }

    /// Width and height with the padding, in pixels.
    pub fn padded(&self) -> [usize; 2] {
        [self.cols * PATCH, self.rows * PATCH]
    }

    fn new(width: usize, height: usize) -> Grid {
        let patches = |pixels: usize| pixels.div_ceil(UNIT) * MERGE;
        Grid { resized: [width, height], rows: patches(height), cols: patches(width) }
    }
}

impl Preprocessor {
    /// The same with at most `limit` patches of a picture before its padding; a higher limit than the
    /// checkpoint's changes nothing, nor does 0.
    pub fn with_patch_limit(mut self, limit: usize) -> Preprocessor {
        if limit > 0 {
            self.patch_limit = self.patch_limit.min(limit);
        }
        self
    }

    /// Patches of a picture of `width` x `height` pixels. Padding may add patches beyond the limit; see
    /// [`Self::max_patches`].
    pub fn grid(&self, width: usize, height: usize) -> Result<Grid, GridError> {
        if width == 0 || height == 0 {
            return Err(GridError::NoPixels { width, height });
        }
        match self.rule {
            Rule::KimiK25 => Ok(self.grid_k25(width, height)),
            Rule::KimiVl => self.grid_vl(width, height),
        }
    }

    fn grid_k25(&self, width: usize, height: usize) -> Grid {
        let (w, h) = (width as f64, height as f64);
        let side_pixels = (self.side_limit * PATCH) as f64;
        let cols = (width / PATCH).max(1) as f64;
        let rows = (height / PATCH).max(1) as f64;
        let by_area = (self.patch_limit as f64 / (cols * rows)).sqrt();
        let scale = 1f64.min(by_area).min(side_pixels / w).min(side_pixels / h);
        let scaled = |side: f64| ((side * scale) as usize).max(1).min(self.side_limit * PATCH);
        Grid::new(scaled(w), scaled(h))
    }

    fn grid_vl(&self, width: usize, height: usize) -> Result<Grid, GridError> {
        let patches = (width / PATCH) * (height / PATCH);
        let (mut w, mut h) = (width, height);
        if patches > self.patch_limit {
            let scale = (self.patch_limit as f64 / patches as f64).sqrt();
            let scaled = |side: usize| ((side as f64 * scale) as usize).max(1);
            (w, h) = (scaled(width), scaled(height));
        }
        let longer = w.max(h) / PATCH;
        if longer >= self.side_limit {
            return Err(GridError::SideTooLong { patches: longer, limit: self.side_limit });
        }
        Ok(Grid::new(w, h))
    }

    /// Patches that no picture exceeds, padding included.
    ///
    /// Proof. Let a picture have i columns and j rows of tokens, i and j at least 2, and let it be scaled by
    /// s <= 1 to X = w*s, Y = h*s. Its whole pixels number at least 28(i-1) + 1 in a row, so X is at least
    /// that. The columns of patches before scaling, which the limit L counts, are a >= (w - 13) / 14, hence
    /// a*s >= (X - 13) / 14; likewise b. The rules make a*s * b*s at most L, therefore (28(i-1) - 12) *
    /// (28(j-1) - 12) <= 196 L. With i = 1 or j = 1 only the side limits the other. The bound is 17,856 for
    /// the released limits, which a picture of 7083x489 pixels reaches.
    pub fn max_patches(&self) -> usize {
        let longest = self.side_limit / MERGE;
        let area = (PATCH * PATCH * self.patch_limit) as u64;
        let least_pixels = |tokens: usize| (UNIT * (tokens - 1) - (PATCH - 2)) as u64;
        let most_rows = |cols: usize| match cols {
            1 => longest,
            _ => {
                let rows_pixels = area / least_pixels(cols);
                let rows = (rows_pixels as usize + PATCH - 2) / UNIT + 1;
                rows.min(longest)
            }
        };
        (1..=longest).map(|cols| cols * most_rows(cols)).max().unwrap_or(1) * MERGE * MERGE
    }

    /// Values of the encoder's input for each channel and pixel value, red first.
    pub fn levels(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| {
            let (mean, inverse_std) = (self.mean[channel], 1.0 / self.std[channel]);
            // The reference keeps pixels in f32 and the constants in f64: one rounding for each of its three
            // steps.
            std::array::from_fn(|value| {
                let fraction = (value as f64 / 255.0) as f32;
                let centered = (f64::from(fraction) - mean) as f32;
                (f64::from(centered) * inverse_std) as f32
            })
        })
    }

    /// Everything that pixels and grids depend on, in a fixed layout of bytes.
    pub(super) fn fingerprint(&self) -> Vec<u8> {
        let mut bytes = vec![self.rule as u8];
        for count in [self.patch_limit, self.side_limit] {
            bytes.extend_from_slice(&(count as u64).to_le_bytes());
        }
        for value in self.mean.iter().chain(&self.std) {
            bytes.extend_from_slice(&value.to_bits().to_le_bytes());
        }
        bytes
    }
}
