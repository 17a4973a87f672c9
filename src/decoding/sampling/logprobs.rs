//! Log-softmax of raw logits: a token's logprob and rank, and the most likely tokens.

use super::exp::exp_nonpositive;
use super::filter::{UNIT, mass};
use super::row;

/// Logprobs at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token at this position.
    pub token: u32,
    /// Logprob of the token, natural logarithm; -inf for a logit that is -inf or NaN.
    pub logprob: f32,
    /// Rank of the token by raw logit, 1 = most likely (1 + number of tokens with a larger logit,
    /// or an equal one and a lower id).
    pub rank: u32,
    /// The most likely tokens and their logprobs, best first; ties by lower id.
    pub top: Vec<(u32, f32)>,
}

/// Computes logprobs; owns the scratch memory.
#[derive(Debug, Default)]
pub struct Logprobs {
    candidates: Vec<(f32, u32)>,
}

/// Terms computed at a time.
const BLOCK: usize = 64;

impl Logprobs {
    /// Logprobs of `token` in a row of raw logits `[vocab]`, with the `num_top` most likely ones
    /// (at most the whole row). The bits depend on the row alone. In a row without a finite logit
    /// every logprob is -inf. Panics if `token` is outside the row.
    pub fn of(&mut self, logits: &[f32], token: u32, num_top: usize) -> TokenLogprobs {
        let log_sum = log_sum_exp(logits);
        let logprob = |logit: f32| (f64::from(row::clean(logit)) - log_sum) as f32;
        let own = row::clean(logits[token as usize]);
        // Equal logits rank by id: lower ids count as larger, higher ids do not.
        let (before, after) = logits.split_at(token as usize);
        let larger = before.iter().filter(|&&logit| row::clean(logit) >= own).count()
            + after.iter().filter(|&&logit| row::clean(logit) > own).count();
        let top = top(&mut self.candidates, logits, num_top)
            .iter()
            .map(|&(logit, id)| (id, logprob(logit)))
            .collect();
        TokenLogprobs { token, logprob: logprob(own), rank: larger as u32 + 1, top }
    }
}

/// The `num` largest logits, largest first, ties by lower id.
pub(super) fn top<'c>(candidates: &'c mut Vec<(f32, u32)>, logits: &[f32], num: usize) -> &'c [(f32, u32)] {
    let num = num.min(logits.len());
    candidates.clear();
    if num == 0 {
        return candidates;
    }
    let better = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    // Candidates are the logits above the `num`-th best so far; the list is pruned at twice
    // that length.
    let limit = (2 * num).max(64);
    let mut floor = f32::NEG_INFINITY;
    for (number, block) in logits.chunks(BLOCK).enumerate() {
        // Most blocks hold no candidate; a NaN alone never is one.
        if candidates.len() >= num && !block.iter().fold(false, |any, &logit| any | (logit > floor)) {
            continue;
        }
        for (inside, &logit) in block.iter().enumerate() {
            let logit = row::clean(logit) + 0.0;
            // Later ids lose ties: once `num` candidates exist only a larger logit is added.
            if logit > floor || candidates.len() < num {
                candidates.push((logit, (number * BLOCK + inside) as u32));
                if candidates.len() == limit {
                    candidates.select_nth_unstable_by(num - 1, better);
                    candidates.truncate(num);
                    floor = candidates[num - 1].0;
                }
            }
        }
    }
    candidates.sort_unstable_by(better);
    candidates.truncate(num);
    candidates
}

/// A sum of numbers in [0, 1] as an integer, so that it is the same in any order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FixedSum(pub(super) u64);

impl FixedSum {
    #[inline(always)]
    pub(super) fn add(&mut self, term: f32) {
        self.0 += mass(term);
    }

    /// ln of the sum of e^logit, where the terms are e^(logit - max).
    pub(super) fn log_sum_exp(self, max: f32) -> f64 {
        f64::from(max) + (self.0 as f64 / f64::from(UNIT)).ln()
    }
}

/// ln of the sum of e^logit: terms in f32 with the same bits on every machine.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let Some(max) = row::maximum(logits) else { return f64::INFINITY };
    let mut sum = FixedSum::default();
    for block in logits.chunks(BLOCK) {
        // Two loops: the compiler vectorises the first one only without integers in it.
        let mut terms = [0.0; BLOCK];
        for (term, &logit) in terms.iter_mut().zip(block) {
            *term = exp_nonpositive(row::clean(logit) - max);
        }
        terms.iter().for_each(|&term| sum.add(term));
    }
    sum.log_sum_exp(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(logits: &[f32], token: usize, num_top: usize) -> TokenLogprobs {
        let values: Vec<f64> = logits
            .iter()
            .map(|&logit| if logit.is_nan() { f64::NEG_INFINITY } else { logit.into() })
            .collect();
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = max + values.iter().map(|value| (value - max).exp()).sum::<f64>().ln();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
        TokenLogprobs {
            token: token as u32,
            logprob: (values[token] - log_sum) as f32,
            rank: order.iter().position(|&id| id == token).unwrap() as u32 + 1,
            top: order.iter().take(num_top).map(|&id| (id as u32, (values[id] - log_sum) as f32)).collect(),
        }
    }

    #[test]
    fn equal_to_the_definition() {
        let mut rng = fastrand::Rng::with_seed(8);
        let mut logprobs = Logprobs::default();
        for _ in 0..500 {
            let len = rng.usize(1..400);
            // A coarse grid makes many ties.
            let mut logits: Vec<f32> = (0..len).map(|_| rng.i32(-8..8) as f32 * 0.5).collect();
            if len > 1 {
                logits[rng.usize(1..len)] = [f32::NAN, f32::NEG_INFINITY, -0.0][rng.usize(0..3)];
            }
            let (token, num_top) = (rng.usize(0..len), rng.usize(0..40));
            let got = logprobs.of(&logits, token as u32, num_top);
            let expected = naive(&logits.iter().map(|l| l + 0.0).collect::<Vec<_>>(), token, num_top);
            assert_eq!((got.token, got.rank), (expected.token, expected.rank), "{logits:?}");
            assert_eq!(ids(&got), ids(&expected), "{logits:?}");
            for (got, expected) in
                got.top.iter().zip(&expected.top).chain([(&(0, got.logprob), &(0, expected.logprob))])
            {
                assert!(got.1 == expected.1 || (got.1 - expected.1).abs() < 1e-5, "{got:?} {expected:?}");
            }
            // The token's logprob equals that of its entry, and equal logits have equal logprobs.
            for &(id, logprob) in &got.top {
                if id == got.token {
                    assert_eq!(logprob.to_bits(), got.logprob.to_bits());
                }
            }
        }
    }

    fn ids(logprobs: &TokenLogprobs) -> Vec<u32> {
        logprobs.top.iter().map(|entry| entry.0).collect()
    }

    #[test]
    fn logprobs_sum_to_one_and_broken_rows_are_minus_infinity() {
        let logits: Vec<f32> = (0..1000).map(|id| (id as f32 * 0.37).sin() * 9.0).collect();
        let got = Logprobs::default().of(&logits, 3, 1000);
        let total: f64 = got.top.iter().map(|entry| f64::from(entry.1).exp()).sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
        let got = Logprobs::default().of(&[f32::NAN, f32::INFINITY], 1, 2);
        assert_eq!((got.logprob, got.rank), (f32::NEG_INFINITY, 1));
        let got = Logprobs::default().of(&[1.0, f32::INFINITY], 1, 0);
        assert_eq!(got.logprob, 0.0);
    }
}
