//! One token from a row of logits.
//!
//! In vLLM's order: logit bias and forbidden ids, penalties, the grammar's mask, temperature, min_p, top_k, top_p, draw. The draw
//! is an argmax over keyed noise (see `noise.rs`).

use super::exp::exp_nonpositive;
use super::filter::Filter;
use super::noise::Noise;
use super::{History, TokenMask, row, widest::widest};

/// Temperatures between 0 and this value are raised to it, as in vLLM: below it differences of
/// logits overflow.
pub(super) const MIN_TEMPERATURE: f32 = 0.01;
/// Weights tested together for a possible winner.
const BLOCK: usize = 64;
/// Weight of the last of the 24 leading bits of the noise.
const NOISE_ULP: f32 = 1.0 / 16_777_216.0;

/// Every logit of the row is NaN or infinite: the forward pass failed for this sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no logit of the row is finite")]
pub struct NoFiniteLogit;

/// Inputs of one draw beside the row of logits.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass, in (0, 1].
    pub top_p: f32,
    /// Least probability relative to the best one's, in [0, 1].
    pub min_p: f32,
    /// Most likely tokens kept; 0 is off.
    pub top_k: u32,
    /// See [`super::SamplingParams`].
    pub repetition_penalty: f32,
    /// See [`super::SamplingParams`].
    pub presence_penalty: f32,
    /// See [`super::SamplingParams`].
    pub frequency_penalty: f32,
    /// Seed of the noise, together with `position`.
    pub seed: u64,
    /// Index of the token in its reply.
    pub position: u64,
    /// Added to the logits of these ids.
    pub logit_bias: &'a [(u32, f32)],
    /// Ids that must not be drawn.
    pub forbidden: &'a [u32],
    /// Token counts; read only for a request with a penalty.
    pub history: &'a History,
    /// Ids that may be drawn, at least one; `None` = all. Neither bias nor bans can lead to the draw
    /// of another id.
    pub mask: Option<&'a TokenMask>,
}

impl Draw<'_> {
    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Result of a pass over a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Survey {
    /// The largest logit; +inf counts as the largest finite number. `None`: no logit is finite.
    pub max: Option<f32>,
    /// Whether the row has no NaN and no +inf. A row with one is not a distribution; a draw from it
    /// is best effort.
    pub sound: bool,
}

/// Draws tokens; owns the scratch memory. The result depends on the arguments alone.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The row after bias and penalties.
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    filter: Filter,
}

impl Sampler {
    /// Computes the maximum and the soundness of a row of raw logits `[vocab]`.
    pub fn survey(&self, logits: &[f32]) -> Survey {
        let (max, sound) = row::survey(logits);
        Survey { max, sound }
    }

    /// Draws a token from a row of raw logits `[vocab]` with its `survey`. A NaN logit counts as
    /// -inf, +inf as the largest finite number.
    pub fn draw(&mut self, logits: &[f32], survey: Survey, draw: &Draw<'_>) -> Result<u32, NoFiniteLogit> {
        // The survey is of the raw row: the adjustments must not hide a broken row.
        let Survey { max, sound } = survey;
        let raw_max = max.ok_or(NoFiniteLogit)?;
        if !draw.has_penalties() && draw.mask.is_none() && only_forbids(logits, raw_max, sound, draw) {
            return Ok(self.choose(logits, raw_max, draw));
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend(logits.iter().map(|&logit| row::clean(logit)));
        adjust(&mut adjusted, 0, draw);
        if let Some(mask) = draw.mask {
            mask.apply(&mut adjusted, 0);
        }
        let token = match (row::maximum(&adjusted), draw.mask) {
            (Some(max), _) => self.choose(&adjusted, max, draw),
            // Every id is forbidden: the id with the largest raw logit is drawn.
            (None, None) => row::first_index(logits, raw_max) as u32,
            // Every id that the grammar allows is banned or has no finite logit: the grammar takes
            // precedence, by the raw row.
            (None, Some(mask)) => best_allowed(logits, mask),
        };
        self.adjusted = adjusted;
        Ok(token)
    }

    /// Temperature, filters and noise on a row whose largest logit is `max`. Forbidden ids have no
    /// weight, independent of their logit.
    fn choose(&mut self, logits: &[f32], max: f32, draw: &Draw<'_>) -> u32 {
        if draw.temperature == 0.0 {
            return row::first_index(logits, max) as u32;
        }
        let inverse = 1.0 / draw.temperature.max(MIN_TEMPERATURE);
        weigh(logits, max, inverse, &mut self.weights);
        let unwanted =
            draw.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).map(|(id, _)| id);
        for &id in unwanted.chain(draw.forbidden) {
            if let Some(weight) = self.weights.get_mut(id as usize) {
                *weight = 0.0;
            }
        }
        if draw.top_k > 0 || draw.top_p < 1.0 || draw.min_p > 0.0 {
            self.filter.apply(&mut self.weights, draw);
        }
        let noise = Noise::new(draw.seed, draw.position);
        let favourite = row::first_index(&self.weights, 1.0) as u32;
        race(&self.weights, 0, noise, (noise.time(favourite), favourite)).1
    }
}

widest! {
    /// Softmax weights of a row, the largest logit's being 1. A NaN logit has weight 0.
    fn weigh(logits: &[f32], max: f32, inverse_temperature: f32, weights: &mut Vec<f32>) {
        // A loop, not `extend`: its closures would be compiled for the baseline.
        weights.resize(logits.len(), 0.0);
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            let difference = (logit - max) * inverse_temperature;
            // Of a +inf logit the difference would be positive.
            *weight = exp_nonpositive(if difference > 0.0 { 0.0 } else { difference });
        }
    }
}

widest! {
    /// The smallest `time / weight` and its id, which is the one with the largest `ln(weight) + gumbel`; ties by
    /// lower id. The weights are those of the ids from `from` on, at most 1. `start` is one of the candidates.
    ///
    /// An id whose noise alone excludes it is skipped: its time is at least the uniform number it
    /// is computed from.
    fn race(weights: &[f32], from: u32, noise: Noise, start: (f64, u32)) -> (f64, u32) {
        let (mut best, mut winner) = start;
        for (number, block) in weights.chunks(BLOCK).enumerate() {
            let first = from + (number * BLOCK) as u32;
            // Rounded up: an f32 product may be too small by some units in its last place.
            let limit = best as f32 * 1.000_001;
            // Kept, because hashing again costs more than a load.
            let mut least = [0.0; BLOCK];
            for (index, time) in (0..).zip(&mut least) {
                *time = least_time(noise, first.wrapping_add(index));
            }
            let may_win = |(&least, &weight): (&f32, &f32)| least <= weight * limit;
            if !least.iter().zip(block).fold(false, |any, pair| any | may_win(pair)) {
                continue;
            }
            for (id, pair) in (first..).zip(least.iter().zip(block)) {
                let weight = *pair.1;
                if weight > 0.0 && may_win(pair) {
                    let time = noise.time(id) / f64::from(weight);
                    if time < best || (time == best && id < winner) {
                        (winner, best) = (id, time);
                    }
                }
            }
        }
        (best, winner)
    }
}

/// A lower bound of an id's time: the leading bits of its noise, which convert to f32 exactly and
/// in vector registers.
#[inline(always)]
fn least_time(noise: Noise, id: u32) -> f32 {
    (noise.bits(id) >> 8) as i32 as f32 * NOISE_ULP
}

/// Whether bias and bans only forbid ids other than the best one of a sound row: the weights of the
/// other ids then equal those of the raw row, and no copy is needed.
fn only_forbids(logits: &[f32], max: f32, sound: bool, draw: &Draw<'_>) -> bool {
    let beaten = |id: u32| logits.get(id as usize).is_none_or(|&logit| logit < max);
    if draw.logit_bias.is_empty() && draw.forbidden.is_empty() {
        return true;
    }
    sound
        && draw.logit_bias.iter().all(|&(id, bias)| bias == f32::NEG_INFINITY && beaten(id))
        && draw.forbidden.iter().all(|&id| beaten(id))
}

/// The allowed id with the largest raw logit, ties by lower id; the first allowed one if none of
/// these logits is finite.
fn best_allowed(logits: &[f32], mask: &TokenMask) -> u32 {
    let mut best = (f32::NEG_INFINITY, mask.first().unwrap_or(0));
    for (id, &logit) in (0..).zip(logits) {
        if row::clean(logit) > best.0 && mask.allows(id) {
            best = (row::clean(logit), id);
        }
    }
    best.1
}

/// Applies bias, bans and penalties in place to the logits of the ids from `first` on. Other ids have no effect.
pub(super) fn adjust(row: &mut [f32], first: u32, draw: &Draw<'_>) {
    let at = |token: u32| token.wrapping_sub(first) as usize;
    for &(token, bias) in draw.logit_bias {
        if let Some(logit) = row.get_mut(at(token)) {
            *logit += bias;
        }
    }
    for &token in draw.forbidden {
        if let Some(logit) = row.get_mut(at(token)) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if !draw.has_penalties() {
        return;
    }
    for entry in draw.history.entries() {
        let Some(logit) = row.get_mut(at(entry.token)) else { continue };
        if entry.in_prompt || entry.in_reply > 0 {
            let penalty = draw.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        if entry.in_reply > 0 {
            *logit -= draw.frequency_penalty * entry.in_reply as f32 + draw.presence_penalty;
        }
    }
}

#[cfg(test)]
mod tests;
