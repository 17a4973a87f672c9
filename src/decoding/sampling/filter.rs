//! Filters on the tokens of a draw: top_k, top_p, min_p.
//!
//! Input: unnormalised weights, the best token's being 1; filtered weights become 0. Only the few
//! tokens around the border are sorted: a histogram over the leading bits of the weights, which
//! order as the weights do, finds the border.

use std::cmp::Ordering;

use super::Draw;

/// Leading bits that are dropped: 64 bins per power of two.
const SHIFT: u32 = 17;
/// Bins down to 2^-32; smaller weights share the last one.
const NUM_BINS: usize = 32 * 64;
/// The bin after the last one counts the tokens that min_p removed.
const OUT: usize = NUM_BINS;
/// Unit of summed masses: integer sums are the same in any order. 2^18 weights of 1 stay below
/// 2^63.
pub(super) const UNIT: f32 = (1u64 << 44) as f32;

/// Scratch memory of the filters.
#[derive(Debug, Default)]
pub(super) struct Filter {
    bins: Vec<Bin>,
    border: Vec<Candidate>,
}

/// Count and mass of tokens of about the same weight.
#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    count: u64,
    mass: u64,
}

/// A token's weight and id.
type Candidate = (f32, u32);

impl Filter {
    /// Sets the weights of filtered tokens to 0; at least the best one stays.
    ///
    /// The order is vLLM's: min_p, then top_k, then top_p on the remaining mass. Of tokens with
    /// equal weight at a border, those with lower ids stay.
    pub(super) fn apply(&mut self, weights: &mut [f32], params: &Draw<'_>) {
        // The best weight is 1, so min_p is the least weight itself.
        let least = params.min_p.max(f32::MIN_POSITIVE);
        let (weight, id) = if params.top_k > 0 || params.top_p < 1.0 {
            self.last_that_stays(weights, params, least)
        } else {
            (least, u32::MAX)
        };
        for (at, other) in (0..).zip(weights) {
            let stays = (*other > weight) | ((*other == weight) & (at <= id));
            *other = if stays { *other } else { 0.0 };
        }
    }

    fn last_that_stays(&mut self, weights: &[f32], params: &Draw<'_>, least: f32) -> Candidate {
        self.bins.clear();
        self.bins.resize(NUM_BINS + 1, Bin::default());
        for &weight in weights {
            let bin = &mut self.bins[bin_of(weight, least)];
            bin.count += 1;
            bin.mass += mass(weight);
        }
        self.bins.truncate(NUM_BINS);
        let mut last = (least, u32::MAX);
        let mut total: u64 = self.bins.iter().map(|bin| bin.mass).sum();
        if params.top_k > 0
            && let Some((bin, before)) = self.border(u64::from(params.top_k), |bin| bin.count)
        {
            self.collect(weights, bin, least);
            // The border bin holds at least the missing tokens.
            let missing = (u64::from(params.top_k) - before.count) as usize;
            last = *self.border.select_nth_unstable_by(missing - 1, better).1;
            total = before.mass + self.border[..missing].iter().map(|&(weight, _)| mass(weight)).sum::<u64>();
        }
        if params.top_p < 1.0 {
            let goal = (f64::from(params.top_p) * total as f64).ceil().max(1.0) as u64;
            if let Some((bin, before)) = self.border(goal, |bin| bin.mass) {
                self.collect(weights, bin, least);
                self.border.sort_unstable_by(better);
                let mut sum = before.mass;
                for &candidate in &self.border {
                    sum += mass(candidate.0);
                    if sum >= goal {
                        return candidate;
                    }
                }
            }
        }
        last
    }

    /// The bin in which the running total reaches `goal`, and the totals before it; `None` if the
    /// sum of all bins is below `goal`.
    fn border(&self, goal: u64, of: impl Fn(&Bin) -> u64) -> Option<(usize, Bin)> {
        let mut before = Bin::default();
        for (index, bin) in self.bins.iter().enumerate() {
            if of(&before) + of(bin) >= goal {
                return Some((index, before));
            }
            before.count += bin.count;
            before.mass += bin.mass;
        }
        None
    }

    fn collect(&mut self, weights: &[f32], bin: usize, least: f32) {
        let members = weights.iter().zip(0..).filter(|&(&weight, _)| bin_of(weight, least) == bin);
        self.border.clear();
        self.border.extend(members.map(|(&weight, id)| (weight, id)));
    }
}

/// Bin of a weight in [0, 1]; a larger weight never has a larger bin.
#[inline(always)]
fn bin_of(weight: f32, least: f32) -> usize {
    let bin = ((1f32.to_bits().wrapping_sub(weight.to_bits())) >> SHIFT) as usize;
    if weight < least { OUT } else { bin.min(NUM_BINS - 1) }
}

/// A weight as an integer.
#[inline(always)]
pub(super) fn mass(weight: f32) -> u64 {
    (weight * UNIT) as i64 as u64
}

fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::super::{History, SamplingParams};
    use super::*;

    /// Every filter by its definition, after a full sort.
    fn naive(weights: &[f32], params: &SamplingParams) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = weights.iter().copied().zip(0..).collect();
        all.sort_by(better);
        all.retain(|&(weight, _)| weight > 0.0 && weight >= params.min_p);
        if params.top_k > 0 {
            all.truncate(params.top_k as usize);
        }
        if params.top_p < 1.0 {
            let goal =
                f64::from(params.top_p) * all.iter().map(|&(weight, _)| f64::from(weight)).sum::<f64>();
            let mut sum = 0.0;
            let keep = all.iter().position(|&(weight, _)| {
                sum += f64::from(weight);
                sum >= goal
            });
            all.truncate(keep.map_or(all.len(), |at| at + 1));
        }
        all
    }

    #[test]
    fn equal_to_the_definition() {
        let mut rng = fastrand::Rng::with_seed(9);
        let mut filter = Filter::default();
        for round in 0..3_000 {
            let len = rng.usize(1..if round % 10 == 0 { 5_000 } else { 300 });
            let steep = [0.0, 0.5, 2.0][rng.usize(0..3)];
            // Multiples of 1/64 make many ties, and sums that are exact in any order.
            let mut weights: Vec<f32> = (0..len)
                .map(|_| (rng.f32() * 64.0 * (-steep * rng.f32() * 4.0).exp()).floor() / 64.0)
                .collect();
            weights[rng.usize(0..len)] = 1.0;
            if len > 9 {
                weights[..3].copy_from_slice(&[f32::MIN_POSITIVE, 1e-30, 1e-12]);
            }
            let params = SamplingParams {
                top_k: [0, 1, 5, 50, 1_000][rng.usize(0..5)],
                top_p: [1.0, 0.95, 0.5, 0.01][rng.usize(0..4)],
                min_p: [0.0, 0.05, 0.5, 1.0][rng.usize(0..4)],
                ..SamplingParams::default()
            };
            let mut expected = naive(&weights, &params);
            expected.sort_by_key(|candidate| candidate.1);
            let mut filtered = weights.clone();
            filter.apply(&mut filtered, &params.draw(&History::default(), 0, &[]));
            let left: Vec<Candidate> = filtered.into_iter().zip(0..).filter(|left| left.0 > 0.0).collect();
            assert_eq!(left, expected, "{params:?} {weights:?}");
        }
    }
}
