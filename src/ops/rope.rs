//! Rotary position embedding as a table of frequencies. Su et al., arXiv 2104.09864.

/// Inverse frequencies of the R/2 rotated pairs, and the cos/sin multiplier.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// `[R / 2]`, radians per position.
    pub inv_freq: Vec<f32>,
    /// Factor on cosines and sines.
    pub multiplier: f32,
}

impl RopeTable {
    /// Appends the rotation of `position` to `out`: R/2 cosines, then R/2 sines. The angle is rounded to f32 as the reference
    /// implementations do; its cosine is exact to f32.
    pub fn rotation(&self, position: u32, out: &mut Vec<f32>) {
        let angles = self.inv_freq.iter().map(|f| f64::from(position as f32 * f));
        out.extend(angles.clone().map(|a| a.cos() as f32 * self.multiplier));
        out.extend(angles.map(|a| a.sin() as f32 * self.multiplier));
    }
}
