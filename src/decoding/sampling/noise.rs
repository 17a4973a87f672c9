//! The noise of a draw: one number per (seed, position, token id), independent of the machine, the
//! step and the batch.
//!
//! A draw is the argmax of `logit / temperature + gumbel(seed, position, id)` (Gumbel, "Statistical
//! Theory of Extreme Values", 1954, as used by Maddison, Tarlow, Minka, "A* Sampling", arXiv
//! 1411.0030). Removed ids take no part, and the others keep their numbers, so two distributions
//! that are close draw the same token with a probability close to one: a draft model with the same
//! noise proposes what the target model draws.

/// The noise of one position of one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noise {
    first: u32,
    second: u32,
}

/// 2^-32, the distance of two uniform numbers.
const ULP: f64 = 1.0 / (1u64 << 32) as f64;

impl Noise {
    /// The noise of reply position `position` under `seed`. Neighbouring positions and neighbouring seeds (`n` replies take seed,
    /// seed + 1, ...) are unrelated: both pass through the output function of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
    /// Pseudorandom Number Generators", 2014).
    pub(super) fn new(seed: u64, position: u64) -> Self {
        let stream = mix(seed.wrapping_mul(GOLDEN).wrapping_add(GOLDEN));
        let key = mix(mix(stream ^ position.wrapping_mul(GOLDEN)).wrapping_add(stream));
        Self { first: key as u32, second: (key >> 32) as u32 }
    }

    /// 32 random bits of a token id. Two rounds of a 32-bit finaliser with a key before each: integer products only, so that a
    /// loop over ids becomes vector code.
    #[inline(always)]
    pub(super) fn bits(self, id: u32) -> u32 {
        finalise(finalise(id ^ self.first).wrapping_add(self.second))
    }

    /// Time of an id in an exponential race of rate 1: the smallest `time / weight` wins.
    pub(super) fn time(self, id: u32) -> f64 {
        -(-uniform(self.bits(id))).ln_1p()
    }
}

/// Bits as a number in (0, 1).
pub(super) fn uniform(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) * ULP
}

/// The odd number nearest to 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A bijection of 32 bits in which every input bit changes every output bit with a chance near one half; multipliers found by
/// search (Wellons, "Prospecting for Hash Functions", 2018).
#[inline(always)]
fn finalise(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chi-square of counts against equal shares, 15 degrees of freedom; 44.3 is passed by chance once in 10,000.
    fn check_even(numbers: impl Iterator<Item = f64>) {
        let mut counts = [0u32; 16];
        let mut total = 0.0;
        for number in numbers {
            assert!((0.0..1.0).contains(&number));
            counts[(number * 16.0) as usize] += 1;
            total += 1.0;
        }
        let share = total / 16.0;
        let chi: f64 = counts.iter().map(|&count| (f64::from(count) - share).powi(2) / share).sum();
        assert!(chi < 44.3, "chi-square {chi}, counts {counts:?}");
    }

    fn at(seed: u64, position: u64, id: u32) -> f64 {
        uniform(Noise::new(seed, position).bits(id))
    }

    #[test]
    fn even_along_ids_positions_and_seeds() {
        for fixed in [0, 1, 42, 99] {
            check_even((0..20_000).map(|id| at(fixed, 7, id)));
            check_even((0..20_000).map(|position| at(fixed, position, 5)));
            check_even((0..20_000).map(|seed| at(seed, fixed, 163_839)));
        }
        // Differences of neighbours are even too: neighbours are not correlated.
        check_even((0..20_000).map(|id| (at(7, 3, id) - at(7, 3, id + 1)).rem_euclid(1.0)));
        check_even((0..20_000).map(|seed| (at(seed, 0, 3) - at(seed + 1, 0, 3)).rem_euclid(1.0)));
        check_even((0..20_000).map(|p| (at(7, p, 3) - at(7, p + 1, 3)).rem_euclid(1.0)));
        check_even((0..20_000).map(|p| (at(7, p, 3) - at(7, p, 4)).rem_euclid(1.0)));
        check_even((0..20_000).map(|p| (at(p, p + 1, 9) - at(p + 1, p, 9)).rem_euclid(1.0)));
    }

    #[test]
    fn fixed_for_ever() {
        // Replies reproduced by seed depend on these bits.
        let bits = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1), (u64::MAX, 5, 163_839)]
            .map(|(seed, position, id)| Noise::new(seed, position).bits(id));
        assert_eq!(bits, FIXED);
    }

    const FIXED: [u32; 5] = [1371451409, 2448839416, 1482357119, 620489044, 1780815825];
}
