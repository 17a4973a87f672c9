//! A picture as a vision tower reads it.

use std::fmt;

/// Pixels on a side of a patch.
pub const PATCH_SIDE: usize = 14;
/// Values of a patch: three channels.
pub const PATCH_VALUES: usize = 3 * PATCH_SIDE * PATCH_SIDE;
/// Patches on a side of the square that becomes one token.
pub const MERGE_SIDE: usize = 2;

/// Pixels of an image, resized and padded to whole squares of patches.
pub struct Picture {
    rows: usize,
    cols: usize,
    /// `[rows * PATCH_SIDE, cols * PATCH_SIDE, 3]` u8.
    pixels: Vec<u8>,
    /// Held as long as the pixels are: a share of the memory set aside for them.
    _reservation: Option<Box<dyn Send + Sync>>,
}

impl Picture {
    /// A picture of `rows` x `cols` patches, both multiples of [`MERGE_SIDE`]. `None` if the pixels are of another size.
    pub fn new(rows: usize, cols: usize, pixels: Vec<u8>) -> Option<Self> {
        let whole =
            rows > 0 && cols > 0 && rows.is_multiple_of(MERGE_SIDE) && cols.is_multiple_of(MERGE_SIDE);
        let fits = whole && pixels.len() == rows * cols * PATCH_VALUES;
        fits.then_some(Self { rows, cols, pixels, _reservation: None })
    }

    /// Keeps `reservation` as long as the picture.
    pub fn holding(self, reservation: Box<dyn Send + Sync>) -> Self {
        Self { _reservation: Some(reservation), ..self }
    }

    /// Patches from top to bottom.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Patches from left to right.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Patches of the picture.
    pub fn num_patches(&self) -> usize {
        self.rows * self.cols
    }

    /// Tokens of the picture.
    pub fn num_tokens(&self) -> usize {
        self.num_patches() / (MERGE_SIDE * MERGE_SIDE)
    }

    /// `[rows * PATCH_SIDE, cols * PATCH_SIDE, 3]` u8.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Writes patch `index` (row by row), `[3, PATCH_SIDE, PATCH_SIDE]`, each value by the table of its channel.
    pub fn patch(&self, index: usize, levels: &[[f32; 256]; 3], out: &mut [f32]) {
        let (top, left) = (index / self.cols * PATCH_SIDE, index % self.cols * PATCH_SIDE);
        let width = self.cols * PATCH_SIDE;
        for y in 0..PATCH_SIDE {
            let start = ((top + y) * width + left) * 3;
            for (x, pixel) in self.pixels[start..start + 3 * PATCH_SIDE].chunks_exact(3).enumerate() {
                for (channel, level) in pixel.iter().enumerate() {
                    let at = (channel * PATCH_SIDE + y) * PATCH_SIDE + x;
                    out[at] = levels[channel][*level as usize];
                }
            }
        }
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} x {} patches)", self.rows, self.cols)
    }
}

impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        (self.rows, self.cols, &self.pixels) == (other.rows, other.cols, &other.pixels)
    }
}
