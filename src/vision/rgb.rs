//! Decoded pixels of one picture, and their turn into upright position.

use image::metadata::Orientation;

/// Pixels of a picture, three bytes each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

/// Side of the squares in which a picture is turned, in pixels: two of them fit the first-level cache.
const TILE: usize = 32;

impl Rgb {
    /// A picture of `pixels`, `[height, width, 3]` u8. Panics if their number is another.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Rgb {
        assert!(width > 0 && height > 0, "a picture of {width}x{height} pixels");
        assert_eq!(pixels.len(), width * height * 3, "bytes of {width}x{height} pixels");
        Rgb { width, height, pixels }
    }

    /// Pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// `[height, width, 3]` u8.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// One row, `[width, 3]` u8.
    pub fn row(&self, y: usize) -> &[u8] {
        &self.pixels[y * self.width * 3..][..self.width * 3]
    }

    /// The picture as `orientation`, an EXIF tag, says it is shown.
    pub(super) fn turned(self, orientation: Orientation) -> Rgb {
        let (width, height) = (self.width, self.height);
        // Source of the pixel at (x, y) of the turned picture.
        match orientation {
            Orientation::NoTransforms => self,
            Orientation::FlipHorizontal => self.gather(width, height, |x, y| (width - 1 - x, y)),
            Orientation::Rotate180 => self.gather(width, height, |x, y| (width - 1 - x, height - 1 - y)),
            Orientation::FlipVertical => self.gather(width, height, |x, y| (x, height - 1 - y)),
            Orientation::Rotate90FlipH => self.gather(height, width, |x, y| (y, x)),
            Orientation::Rotate90 => self.gather(height, width, |x, y| (y, height - 1 - x)),
            Orientation::Rotate270FlipH => self.gather(height, width, |x, y| (width - 1 - y, height - 1 - x)),
            Orientation::Rotate270 => self.gather(height, width, |x, y| (width - 1 - y, x)),
        }
    }

    /// A picture of `width` x `height` whose pixel (x, y) is the pixel `source(x, y)` of this one.
    fn gather(&self, width: usize, height: usize, source: impl Fn(usize, usize) -> (usize, usize)) -> Rgb {
        let mut pixels = vec![0; width * height * 3];
        for top in (0..height).step_by(TILE) {
            for left in (0..width).step_by(TILE) {
                for y in top..(top + TILE).min(height) {
                    for x in left..(left + TILE).min(width) {
                        let (from_x, from_y) = source(x, y);
                        let from = (from_y * self.width + from_x) * 3;
                        let to = (y * width + x) * 3;
                        pixels[to..to + 3].copy_from_slice(&self.pixels[from..from + 3]);
                    }
                }
            }
        }
        Rgb { width, height, pixels }
    }
}
