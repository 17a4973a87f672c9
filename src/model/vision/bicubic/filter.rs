//! Weights of one axis.

/// Bits after the point of a weight.
pub(super) const PRECISION: u32 = 22;
/// Half a unit of the result.
pub(super) const HALF: i32 = 1 << (PRECISION - 1);
/// Taps that the vector loop takes together in a row.
pub(super) const GROUP: usize = 4;
/// Bytes that the vector loop reads for a group of taps.
const GROUP_READ_BYTES: usize = 16;

/// For every output position of an axis, the inputs under the filter and their weights.
pub(super) struct Filter {
    /// First input under each output.
    first: Vec<usize>,
    /// Start of each output's weights; one more than there are outputs.
    start: Vec<usize>,
    /// Fixed-point weights, one after the other.
    weights: Vec<i32>,
    /// The same weights in groups.
    groups: Vec<SplitGroup>,
    /// Start of each output's groups; one more than there are outputs.
    group_start: Vec<usize>,
}

/// Weights of a group of four taps, split for the vector loop: see [`SplitPair`].
#[derive(Clone, Copy)]
pub(super) struct SplitGroup(pub(super) [SplitPair; 2]);

/// Weights of two taps as factors of 16 bits, weight = 256 * high + low, each the first's in the lower half.
#[derive(Clone, Copy)]
pub(super) struct SplitPair {
    pub(super) high: i32,
    pub(super) low: i32,
}

impl SplitPair {
    pub(super) fn new(first: i32, second: i32) -> SplitPair {
        let both = |first: i32, second: i32| first & 0xffff | second << 16;
        SplitPair { high: both(first >> 8, second >> 8), low: both(first & 255, second & 255) }
    }
}

impl Filter {
    /// The filter from `inputs` positions to `outputs`.
    pub(super) fn new(inputs: usize, outputs: usize) -> Filter {
        let scale = inputs as f64 / outputs as f64;
        let filter_scale = scale.max(1.0);
        let support = 2.0 * filter_scale;
        let inverse = 1.0 / filter_scale;
        let (mut first, mut start, mut weights) = (Vec::with_capacity(outputs), vec![0], Vec::new());
        let mut exact = Vec::new();
        for x in 0..outputs {
            let center = (x as f64 + 0.5) * scale;
            let low = (center - support + 0.5).max(0.0) as usize;
            let high = ((center + support + 0.5) as usize).min(inputs);
            exact.clear();
            exact.extend((0..high - low).map(|i| cubic(((low + i) as f64 - center + 0.5) * inverse)));
            let sum: f64 = exact.iter().sum();
            weights.extend(
                exact.iter().map(|&weight| fixed_point(if sum == 0.0 { weight } else { weight / sum })),
            );
            first.push(low);
            start.push(weights.len());
        }
        // Weights of a normalized cubic are below 1.1 in size; the split into 16 bits needs less than 2.
        assert!(
            weights.iter().all(|weight: &i32| weight.unsigned_abs() < 2 << PRECISION),
            "a weight of 2 or more"
        );
        let (groups, group_start) = split_groups(&weights, &start);
        Filter { first, start, weights, groups, group_start }
    }

    /// Output positions.
    pub(super) fn outputs(&self) -> usize {
        self.first.len()
    }

    /// First input under output `x`, and the weights from there on.
    pub(super) fn output(&self, x: usize) -> (usize, &[i32]) {
        (self.first[x], &self.weights[self.start[x]..self.start[x + 1]])
    }

    /// Largest number of weights of an output.
    pub(super) fn max_taps(&self) -> usize {
        self.start.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    /// Bytes of a row of three-byte pixels that the vector loop reads.
    pub(super) fn read_bytes(&self) -> usize {
        let last_group = |x| {
            let (first, weights) = self.output(x);
            (first + (weights.len().div_ceil(GROUP) - 1) * GROUP) * 3 + GROUP_READ_BYTES
        };
        (0..self.outputs()).map(last_group).max().unwrap_or(0)
    }

    /// First input under output `x`, and its weights in groups for the vector loop.
    #[inline]
    pub(super) fn split_output(&self, x: usize) -> (usize, &[SplitGroup]) {
        (self.first[x], &self.groups[self.group_start[x]..self.group_start[x + 1]])
    }
}

/// Weights in groups, each output's filled up with zeros, and the start of each output's groups (one more
/// than outputs).
fn split_groups(weights: &[i32], start: &[usize]) -> (Vec<SplitGroup>, Vec<usize>) {
    let mut groups = Vec::new();
    let mut group_start = vec![0];
    for bounds in start.windows(2) {
        for taps in weights[bounds[0]..bounds[1]].chunks(GROUP) {
            let weight = |i| taps.get(i).copied().unwrap_or(0);
            let pair = |i| SplitPair::new(weight(i), weight(i + 1));
            groups.push(SplitGroup([pair(0), pair(2)]));
        }
        group_start.push(groups.len());
    }
    (groups, group_start)
}

/// The cubic of Keys with a = -0.5.
fn cubic(t: f64) -> f64 {
    const A: f64 = -0.5;
    let t = t.abs();
    if t < 1.0 {
        ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0
    } else if t < 2.0 {
        (((t - 5.0) * t + 8.0) * t - 4.0) * A
    } else {
        0.0
    }
}

/// `weight` in units of 2^-22, rounded half away from zero.
fn fixed_point(weight: f64) -> i32 {
    let scaled = weight * f64::from(1u32 << PRECISION);
    (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}
