//! Random numbers as a function of (seed, position): the same wherever and whenever the token is sampled.

/// A number in [0, 1) with 53 random bits. The position is added to the hashed seed as a step of the Weyl sequence of
/// SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014), whose output function then mixes twice:
/// neighbouring positions and neighbouring seeds (`n` replies take seed, seed + 1, ...) give unrelated numbers.
pub(super) fn uniform(seed: u64, position: u64) -> f64 {
    let stream = mix(seed.wrapping_mul(GOLDEN).wrapping_add(GOLDEN));
    let bits = mix(mix(stream ^ position.wrapping_mul(GOLDEN)).wrapping_add(stream));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The odd number nearest to 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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

    #[test]
    fn even_along_positions_and_along_seeds() {
        for seed in [0, 1, 42, u64::MAX] {
            check_even((0..20_000).map(|position| uniform(seed, position)));
        }
        for position in [0, 1, 99] {
            check_even((0..20_000).map(|seed| uniform(seed, position)));
        }
        // Differences of neighbours are even too, so neighbours do not move together.
        check_even((0..20_000).map(|seed| (uniform(seed, 0) - uniform(seed + 1, 0)).rem_euclid(1.0)));
        check_even((0..20_000).map(|at| (uniform(7, at) - uniform(7, at + 1)).rem_euclid(1.0)));
        check_even((0..20_000).map(|at| (uniform(at, at + 1) - uniform(at + 1, at)).rem_euclid(1.0)));
    }

    #[test]
    fn fixed_for_ever() {
        // Replies that users reproduce by seed depend on these bits.
        let bits: Vec<u64> =
            [(0, 0), (0, 1), (1, 0), (u64::MAX, 5)].iter().map(|&(s, p)| uniform(s, p).to_bits()).collect();
        assert_eq!(bits, FIXED);
    }

    const FIXED: [u64; 4] =
        [4596066452387704184, 4606770703254900023, 4606077191433447811, 4595633422757756880];
}
