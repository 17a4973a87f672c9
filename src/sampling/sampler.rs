//! One token from a row of logits.
//!
//! In vLLM's order: logit bias and forbidden stop tokens, penalties, the grammar's mask, temperature, min_p, top_k, top_p, draw.
//! Logprobs are of the raw logits. The result depends on the arguments alone.

use super::exp::exp_nonpositive;
use super::filter::Filter;
use super::{History, Logprobs, SamplingParams, TokenLogprobs, TokenMask, draw, row};

/// Temperatures between 0 and this are raised to it, as in vLLM: below, differences of logits overflow to no purpose.
const MIN_TEMPERATURE: f32 = 0.01;
/// Weights per partial sum of the draw.
const BLOCK: usize = 64;

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Present when `SamplingParams::logprobs` is.
    pub logprobs: Option<TokenLogprobs>,
}

/// Every logit of the row is NaN or infinite: the model has failed on this sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no logit of the row is finite")]
pub struct NoFiniteLogit;

/// Samples tokens; owns the scratch, and remembers of a call only whether its row was sound.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The row after bias and penalties.
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    /// Sums of `BLOCK` weights each.
    sums: Vec<f32>,
    filter: Filter,
    logprobs: Logprobs,
    /// The last row had a NaN or +inf.
    broken: bool,
}

impl Sampler {
    /// A token from a row of raw logits `[vocab]`. `position` is the index of the token in its reply, from 0: it keys the draw together
    /// with `params.seed`, and decides whether `min_tokens` still forbids the stop tokens. `history` is read only when
    /// `params.uses_history()`. A NaN logit counts as -inf, +inf as the largest finite number.
    pub fn sample(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: &History,
        position: u64,
    ) -> Result<Sampled, NoFiniteLogit> {
        let token = self.choose_token(logits, params, history, position, None)?;
        Ok(Sampled { token, logprobs: self.logprobs(logits, token, params.logprobs) })
    }

    /// Whether the row of the last call had a NaN or a positive infinity in it: it was sampled as well as it can be, but it is no distribution.
    pub fn row_was_broken(&self) -> bool {
        self.broken
    }

    /// Looks at a row without sampling: an error where no logit is finite, and afterwards `row_was_broken` speaks of it.
    pub fn survey(&mut self, logits: &[f32]) -> Result<f32, NoFiniteLogit> {
        let (max, sound) = row::survey(logits);
        self.broken = !sound;
        max.ok_or(NoFiniteLogit)
    }

    /// The token alone, within `mask` where there is one: an id outside it is never chosen, whatever bias, penalties and `min_tokens`
    /// say. The mask allows at least one id.
    pub fn choose_token(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: &History,
        position: u64,
        mask: Option<&TokenMask>,
    ) -> Result<u32, NoFiniteLogit> {
        let forbids_stops = position < u64::from(params.min_tokens) && !params.stop_token_ids.is_empty();
        // A row that was broken before must not be mended by the adjustments, so the raw one is looked at first.
        let raw_max = self.survey(logits)?;
        let adjusts = forbids_stops || params.uses_history() || mask.is_some();
        if !adjusts && self.only_forbids(logits, raw_max, params) {
            return Ok(self.choose(logits, raw_max, params, position));
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend(logits.iter().map(|&logit| row::clean(logit)));
        adjust(&mut adjusted, params, history, forbids_stops);
        if let Some(mask) = mask {
            mask.apply(&mut adjusted);
        }
        let token = match (row::maximum(&adjusted), mask) {
            (Some(max), _) => self.choose(&adjusted, max, params, position),
            // Everything is forbidden: the raw best is the least wrong.
            (None, None) => row::first_index(logits, raw_max) as u32,
            // What the grammar allows was forbidden by something else, or has no finite logit: the grammar decides, by the raw row.
            (None, Some(mask)) => best_allowed(logits, mask),
        };
        self.adjusted = adjusted;
        Ok(token)
    }

    /// Whether the bias, if there is any, only forbids ids other than the best one of a sound row: then the others' weights stay what they are
    /// in the raw row, and no copy of it is needed.
    fn only_forbids(&self, logits: &[f32], max: f32, params: &SamplingParams) -> bool {
        let forbids = |&(id, bias): &(u32, f32)| {
            bias == f32::NEG_INFINITY && logits.get(id as usize).is_none_or(|&logit| logit < max)
        };
        params.logit_bias.is_empty() || (!self.broken && params.logit_bias.iter().all(forbids))
    }

    /// Logprobs of `token` in the raw row and of this many others, if any are wanted.
    pub fn logprobs(&mut self, logits: &[f32], token: u32, wanted: Option<u32>) -> Option<TokenLogprobs> {
        wanted.map(|num_top| self.logprobs.of(logits, token, num_top as usize))
    }

    /// Temperature, filters and draw on a row whose largest logit is `max`. Forbidden ids have no weight, whatever their logit says.
    fn choose(&mut self, logits: &[f32], max: f32, params: &SamplingParams, position: u64) -> u32 {
        if params.temperature == 0.0 {
            return row::first_index(logits, max) as u32;
        }
        let inverse = 1.0 / params.temperature.max(MIN_TEMPERATURE);
        self.weights.clear();
        // A NaN difference (of a NaN logit) gives weight 0. `min` is for +inf logits, whose difference would be positive.
        self.weights.extend(logits.iter().map(|&logit| {
            let difference = (logit - max) * inverse;
            exp_nonpositive(if difference > 0.0 { 0.0 } else { difference })
        }));
        for &(id, _) in params.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY) {
            if let Some(weight) = self.weights.get_mut(id as usize) {
                *weight = 0.0;
            }
        }
        let uniform = draw::uniform(params.seed, position);
        if params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0 {
            self.filter.apply(&mut self.weights, params);
        }
        self.pick(uniform)
    }

    /// The token at which the running sum of weights, in id order, passes the drawn share of the total.
    fn pick(&mut self, uniform: f64) -> u32 {
        self.sums.clear();
        self.sums.extend(self.weights.chunks(BLOCK).map(block_sum));
        let total: f64 = self.sums.iter().map(|&sum| f64::from(sum)).sum();
        let mut left = uniform * total;
        let mut last = 0;
        for (block, &sum) in self.sums.iter().enumerate() {
            let sum = f64::from(sum);
            if left >= sum {
                left -= sum;
                continue;
            }
            for (id, &weight) in self.weights.iter().enumerate().skip(block * BLOCK).take(BLOCK) {
                if weight > 0.0 {
                    last = id;
                    left -= f64::from(weight);
                    if left < 0.0 {
                        return id as u32;
                    }
                }
            }
            // Rounding put the block's sum above its running sum: its last token it is.
            return last as u32;
        }
        // Rounding put the share at the very end: the last token that can be drawn.
        self.weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0) as u32
    }
}

/// The allowed id with the largest raw logit, ties by lower id; the first allowed one if none of them is finite.
fn best_allowed(logits: &[f32], mask: &TokenMask) -> u32 {
    let mut best = (f32::NEG_INFINITY, mask.first().unwrap_or(0));
    for (id, &logit) in (0..).zip(logits) {
        if row::clean(logit) > best.0 && mask.allows(id) {
            best = (row::clean(logit), id);
        }
    }
    best.1
}

/// A sum with a fixed order that the compiler can make vector code of.
fn block_sum(block: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for chunk in block.chunks(16) {
        for (lane, &weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    lanes.iter().sum()
}

/// Bias, forbidden stop tokens and penalties, in place. Ids outside the row are nobody's.
fn adjust(row: &mut [f32], params: &SamplingParams, history: &History, forbids_stops: bool) {
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = row.get_mut(token as usize) {
            *logit += bias;
        }
    }
    if forbids_stops {
        for &token in &params.stop_token_ids {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if !params.uses_history() {
        return;
    }
    for entry in history.entries() {
        let Some(logit) = row.get_mut(entry.token as usize) else { continue };
        if entry.in_prompt || entry.in_reply > 0 {
            let penalty = params.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        if entry.in_reply > 0 {
            *logit -= params.frequency_penalty * entry.in_reply as f32 + params.presence_penalty;
        }
    }
}

#[cfg(test)]
mod tests;
