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
        let (w, h) = (self.width as isize, self.height as isize);
        // Of the turned picture: the pixel that becomes its first, and the way to the next in a row and to
        // the next row.
        let (turns, first, right, down) = match orientation {
            Orientation::NoTransforms => return self,
            Orientation::FlipHorizontal => (false, w - 1, -1, w),
            Orientation::Rotate180 => (false, w * h - 1, -1, -w),
            Orientation::FlipVertical => (false, w * (h - 1), 1, -w),
            Orientation::Rotate90FlipH => (true, 0, w, 1),
            Orientation::Rotate90 => (true, w * (h - 1), -w, 1),
            Orientation::Rotate270FlipH => (true, w * h - 1, -w, -1),
            Orientation::Rotate270 => (true, w - 1, w, -1),
        };
        let (width, height) = if turns { (self.height, self.width) } else { (self.width, self.height) };
        let source = self.pixels.as_chunks::<3>().0;
        let mut pixels = vec![0; self.pixels.len()];
        let target = pixels.as_chunks_mut::<3>().0;
        for top in (0..height).step_by(TILE) {
            for left in (0..width).step_by(TILE) {
                for y in top..(top + TILE).min(height) {
                    let row = &mut target[y * width + left..y * width + (left + TILE).min(width)];
                    let mut from = first + left as isize * right + y as isize * down;
                    for pixel in row {
                        *pixel = source[from as usize];
                        from += right;
                    }
                }
            }
        }
        Rgb { width, height, pixels }
    }
}
