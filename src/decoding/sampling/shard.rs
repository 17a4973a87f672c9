//! One token from a row of logits that lies in shards: every holder knows a range of the vocabulary and no other logit.
//!
//! The holders speak in rounds. In each, every holder says a few numbers about its shard, hears those of all, and draws the
//! same conclusion; what is said is counts, sums of integers and best candidates, and never a row. The token is that of
//! [`Sampler`](super::Sampler) on the whole row, to the bit: maxima, counts and integer sums do not depend on where a row is
//! cut. The border of `top_k` and `top_p` is found digit by digit (radix selection), so that even a flat row takes no more
//! words than a steep one.

use super::exp::exp_nonpositive;
use super::filter::mass;
use super::logprobs::{FixedSum, top};
use super::noise::Noise;
use super::sampler::{MIN_TEMPERATURE, adjust, race, weigh};
use super::{Draw, TokenLogprobs, TokenMask, row};

/// Bits of a weight that one round of the selection settles.
const DIGIT: u32 = 6;
const BINS: usize = 1 << DIGIT;
/// Rounds of a selection: the bits of a weight in (0, 1] are at most those of 1.
const DIGITS: u32 = 5;

/// What is wanted of a row.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// How the token is drawn, where it is.
    pub draw: Draw<'a>,
    /// The token, where it is not drawn.
    pub fixed: Option<u32>,
    /// Tokens of which the likeliest is taken if fewer than this many ids have a larger logit.
    pub end: Option<(&'a [u32], u32)>,
    /// Logprobs, and the number of most likely tokens among them.
    pub logprobs: Option<usize>,
}

/// What became of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The token; 0 where no logit is finite.
    pub token: u32,
    /// Whether the row has a finite logit, no NaN and no +inf.
    pub sound: bool,
    /// Whether all logits are equal.
    pub flat: bool,
    /// Whether the token is one of [`Wanted::end`].
    pub ended: bool,
    /// Logprobs of the token, if they are wanted.
    pub logprobs: Option<TokenLogprobs>,
}

/// A holder's shard of a row: the logits of the ids from `first` on.
#[derive(Debug, Clone, Copy)]
pub struct Shard<'a> {
    /// `[ids of the holder]`.
    pub logits: &'a [f32],
    /// The first id.
    pub first: u32,
}

impl Shard<'_> {
    fn clean(&self, id: u32) -> Option<f32> {
        self.raw(id).map(row::clean)
    }

    fn raw(&self, id: u32) -> Option<f32> {
        self.logits.get(id.checked_sub(self.first)? as usize).copied()
    }

    fn ids(&self) -> impl Iterator<Item = (u32, f32)> {
        (self.first..).zip(self.logits.iter().copied())
    }
}

/// A candidate: the largest value, and the lowest id with it. None of value -inf is one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Best {
    value: f32,
    id: u32,
}

impl Best {
    const NONE: Self = Self { value: f32::NEG_INFINITY, id: u32::MAX };

    fn or(self, value: f32, id: u32) -> Self {
        let wins = value > self.value || (value == self.value && id < self.id && self.is_some());
        if wins { Self { value, id } } else { self }
    }

    fn is_some(self) -> bool {
        self.value > f32::NEG_INFINITY
    }

    fn word(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.id)
    }

    fn of_all(words: impl Iterator<Item = u64>) -> Self {
        words.fold(Self::NONE, |best, word| best.or(f32::from_bits((word >> 32) as u32), word as u32))
    }
}

/// A selection of the weights that stay: the largest ones until their number or their mass reaches a goal.
#[derive(Debug, Clone, Copy)]
struct Selection {
    /// Whether the goal is one of mass; otherwise it is a number of tokens.
    by_mass: bool,
    goal: u64,
    digit: u32,
    /// Leading digits of the border's key.
    prefix: u32,
    /// Weights above those that have the prefix.
    before: Totals,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    count: u64,
    mass: u64,
}

/// The least weight that stays, and how many tokens of this weight.
#[derive(Debug, Clone, Copy)]
struct Border {
    weight: f32,
    /// Of this holder's; the ids of lower ones come first.
    ties: u64,
    /// Mass of all that stay.
    mass: u64,
}

/// Where a row stands.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Survey,
    /// Sums over the weights, and over the raw row.
    Sums,
    Select(Selection),
    Race,
    /// How many tokens are likelier.
    Rank,
    Done,
}

/// A row that is chosen from by all holders of its shards.
#[derive(Debug)]
pub struct ShardedRow {
    stage: Stage,
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    /// The best raw logit, and the best one that may be drawn.
    raw: Best,
    adjusted_best: Best,
    end: Option<(u32, f32)>,
    ended: bool,
    border: Option<Border>,
    /// The token and its raw logit.
    chosen: Option<(u32, f32)>,
    log_sum: f64,
    top: Vec<(f32, u32)>,
    rank: u32,
    sound: bool,
    flat: bool,
}

impl Default for ShardedRow {
    fn default() -> Self {
        Self {
            stage: Stage::Survey,
            adjusted: Vec::new(),
            weights: Vec::new(),
            raw: Best::NONE,
            adjusted_best: Best::NONE,
            end: None,
            ended: false,
            border: None,
            chosen: None,
            log_sum: 0.0,
            top: Vec::new(),
            rank: 0,
            sound: false,
            flat: false,
        }
    }
}

/// Words about a shard before those of its stops.
const SURVEY_WORDS: usize = 6;

impl ShardedRow {
    /// Begins another row.
    pub fn begin(&mut self) {
        let Self { adjusted, weights, top, .. } = std::mem::take(self);
        *self = Self { adjusted, weights, top, ..Self::default() };
    }

    /// What the holder of `shard` says in this round; nothing more once there is a result.
    pub fn say(&mut self, shard: Shard<'_>, wanted: &Wanted<'_>, out: &mut Vec<u64>) {
        match self.stage {
            Stage::Survey => self.survey(shard, wanted, out),
            Stage::Sums => self.sums(shard, wanted, out),
            Stage::Select(selection) => selection.count(&self.weights, least(&wanted.draw), out),
            Stage::Race => self.race(shard, wanted, out),
            Stage::Rank => {
                let (token, own) = self.chosen.unwrap_or_default();
                let larger = |(id, logit): &(u32, f32)| {
                    let logit = row::clean(*logit);
                    logit > own || (logit == own && *id < token)
                };
                out.push(shard.ids().filter(larger).count() as u64);
            }
            Stage::Done => {}
        }
    }

    /// Takes what the holders said in this round, `words` in the order of their ids. `holder`: the index of this one.
    /// Returns the result in the last round.
    pub fn hear(&mut self, words: &[&[u64]], holder: usize, wanted: &Wanted<'_>) -> Option<Chosen> {
        match self.stage {
            Stage::Survey => self.surveyed(words, wanted),
            Stage::Sums => self.summed(words, wanted),
            Stage::Select(selection) => self.selected(selection, words, holder, wanted),
            Stage::Race => {
                let time = |words: &&[u64]| (f64::from_bits(words[0]), words[1] as u32);
                let earlier = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                let winner = words.iter().map(time).min_by(earlier).map(|winner| winner.1);
                let logit = words.iter().find(|words| Some(words[1] as u32) == winner && words[3] == 1);
                let logit = logit.map_or(f32::NEG_INFINITY, |words| f32::from_bits(words[2] as u32));
                self.choose(winner.unwrap_or(0), logit, wanted);
            }
            Stage::Rank => {
                self.rank = 1 + words.iter().map(|words| words[0]).sum::<u64>() as u32;
                self.stage = Stage::Done;
            }
            Stage::Done => {}
        }
        matches!(self.stage, Stage::Done).then(|| self.result(wanted))
    }

    fn survey(&mut self, shard: Shard<'_>, wanted: &Wanted<'_>, out: &mut Vec<u64>) {
        let logits = shard.logits;
        let raw = shard.ids().fold(Best::NONE, |best, (id, logit)| best.or(row::clean(logit), id));
        let any_finite = logits.iter().any(|logit| logit.is_finite());
        let unsound = logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY);
        let all_equal = logits.iter().all(|logit| *logit == logits[0]);
        self.adjusted.clear();
        self.adjusted.extend(logits.iter().map(|&logit| row::clean(logit)));
        adjust(&mut self.adjusted, shard.first, &wanted.draw);
        if let Some(mask) = wanted.draw.mask {
            mask.apply(&mut self.adjusted, shard.first);
        }
        let adjusted = (shard.first..).zip(&self.adjusted);
        let adjusted = adjusted.fold(Best::NONE, |best, (id, logit)| best.or(row::clean(*logit), id));
        let allowed = |mask: &TokenMask| {
            let allowed = shard.ids().filter(|(id, _)| mask.allows(*id));
            allowed.fold(Best::NONE, |best, (id, logit)| best.or(row::clean(logit), id))
        };
        let allowed = wanted.draw.mask.map_or(Best::NONE, allowed);
        let flags = u64::from(any_finite) | u64::from(unsound) << 1 | u64::from(all_equal) << 2;
        let first = logits.first().copied().unwrap_or(f32::NAN);
        out.extend([raw.word(), adjusted.word(), allowed.word(), flags, u64::from(first.to_bits())]);
        out.push(present(shard.clean(wanted.fixed.unwrap_or(0))));
        let stops = wanted.end.map_or(&[][..], |(stops, _)| stops);
        out.extend(stops.iter().map(|&stop| present(shard.raw(stop))));
    }

    fn surveyed(&mut self, words: &[&[u64]], wanted: &Wanted<'_>) {
        let all = |at: usize| words.iter().map(move |words| words[at]);
        let any_finite = all(3).any(|flags| flags & 1 != 0);
        self.sound = any_finite && !all(3).any(|flags| flags & 2 != 0);
        let first = f32::from_bits(words[0][4] as u32);
        let equal = |(flags, other): (u64, u64)| flags & 4 != 0 && f32::from_bits(other as u32) == first;
        self.flat = all(3).zip(all(4)).all(equal);
        self.raw = if any_finite { Best::of_all(all(0)) } else { Best::NONE };
        self.adjusted_best = Best::of_all(all(1));
        let given = |at: usize| {
            let logit = all(at).find(|word| word >> 32 == 1).map(|word| f32::from_bits(word as u32));
            logit.unwrap_or(f32::NEG_INFINITY)
        };
        if let Some((stops, _)) = wanted.end {
            let stops = stops.iter().enumerate().map(|(at, &stop)| (stop, given(SURVEY_WORDS + at)));
            let best = stops.max_by(|a, b| a.1.total_cmp(&b.1));
            self.end = best.filter(|(_, logit)| logit.is_finite());
        }
        let fixed = wanted.fixed.map(|token| (token, given(5)));
        let (any, drawable) = (self.raw.is_some(), self.adjusted_best.is_some());
        self.chosen = fixed.or_else(|| match (any, drawable, wanted.draw.mask) {
            (false, ..) => Some((0, given(5))),
            (true, true, _) => None,
            // Every id is forbidden: the one with the largest raw logit is drawn.
            (true, false, None) => Some((self.raw.id, self.raw.value)),
            // Every id that the mask allows is banned or has no finite logit: the mask takes precedence.
            (true, false, Some(mask)) => {
                let best = Best::of_all(all(2));
                Some(match best.is_some() {
                    true => (best.id, best.value),
                    false => (mask.first().unwrap_or(0), f32::NEG_INFINITY),
                })
            }
        });
        self.stage = Stage::Sums;
    }

    /// Whether a token is still to be drawn.
    fn draws(&self) -> bool {
        self.chosen.is_none()
    }

    fn sums(&mut self, shard: Shard<'_>, wanted: &Wanted<'_>, out: &mut Vec<u64>) {
        let draw = &wanted.draw;
        let mut totals = Totals::default();
        if self.draws() && draw.temperature != 0.0 {
            let inverse = 1.0 / draw.temperature.max(MIN_TEMPERATURE);
            weigh(&self.adjusted, self.adjusted_best.value, inverse, &mut self.weights);
            let held = self.weights.iter().filter(|weight| **weight >= least(draw));
            held.for_each(|weight| {
                totals.count += 1;
                totals.mass += mass(*weight);
            });
        }
        let larger = self.end.map_or(0, |(_, end)| shard.logits.iter().filter(|logit| **logit > end).count());
        let sum = match (wanted.logprobs, self.raw.is_some()) {
            (Some(_), true) => {
                let mut sum = FixedSum::default();
                let terms =
                    shard.logits.iter().map(|&logit| exp_nonpositive(row::clean(logit) - self.raw.value));
                terms.for_each(|term| sum.add(term));
                sum.0
            }
            _ => 0,
        };
        out.extend([totals.count, totals.mass, larger as u64, sum]);
        if let Some(num_top) = wanted.logprobs {
            let best = top(&mut self.top, shard.logits, num_top);
            out.extend(best.iter().map(|&(value, id)| Best { value, id: id + shard.first }.word()));
        }
    }

    fn summed(&mut self, words: &[&[u64]], wanted: &Wanted<'_>) {
        let sum = |at: usize| words.iter().map(|words| words[at]).sum::<u64>();
        if let Some(num_top) = wanted.logprobs {
            self.log_sum = match self.raw.is_some() {
                true => FixedSum(sum(3)).log_sum_exp(self.raw.value),
                false => f64::INFINITY,
            };
            let words = words.iter().flat_map(|words| &words[4..]);
            self.top.clear();
            self.top.extend(words.map(|word| (f32::from_bits((word >> 32) as u32), *word as u32)));
            self.top.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            self.top.truncate(num_top);
        }
        let end = wanted.end.and_then(|(_, rank)| self.end.filter(|_| sum(2) < u64::from(rank)));
        if let (Some((token, logit)), None) = (end, wanted.fixed) {
            self.ended = true;
            return self.choose(token, row::clean(logit), wanted);
        }
        let draw = &wanted.draw;
        match self.chosen {
            Some((token, logit)) => self.choose(token, logit, wanted),
            None if draw.temperature == 0.0 => {
                // A race of one, in which its raw logit is said.
                self.stage = Stage::Race;
            }
            None => {
                let least = Border { weight: least(draw), ties: u64::MAX, mass: sum(1) };
                self.border = (draw.top_k > 0 || draw.top_p < 1.0 || draw.min_p > 0.0).then_some(least);
                let by_count = draw.top_k > 0 && sum(0) >= u64::from(draw.top_k);
                self.stage = match by_count {
                    true => Stage::Select(Selection::new(false, u64::from(draw.top_k))),
                    false => self.nucleus(draw),
                };
            }
        }
    }

    /// The stage behind `top_k`.
    fn nucleus(&self, draw: &Draw<'_>) -> Stage {
        match (draw.top_p < 1.0, self.border) {
            (true, Some(border)) => {
                let goal = (f64::from(draw.top_p) * border.mass as f64).ceil().max(1.0) as u64;
                if goal > border.mass { Stage::Race } else { Stage::Select(Selection::new(true, goal)) }
            }
            _ => Stage::Race,
        }
    }

    fn selected(&mut self, mut selection: Selection, words: &[&[u64]], holder: usize, wanted: &Wanted<'_>) {
        let bin = selection.settle(words);
        if selection.digit < DIGITS {
            self.stage = Stage::Select(selection);
            return;
        }
        let weight = f32::from_bits(1f32.to_bits() - selection.prefix);
        let missing = match selection.by_mass {
            true => (selection.goal - selection.before.mass).div_ceil(mass(weight).max(1)),
            false => selection.goal - selection.before.count,
        };
        let lower: u64 = words[..holder].iter().map(|words| words[2 * bin]).sum();
        let mass = selection.before.mass + missing * mass(weight);
        self.border = Some(Border { weight, ties: missing.saturating_sub(lower), mass });
        self.stage = if selection.by_mass { Stage::Race } else { self.nucleus(&wanted.draw) };
    }

    /// What the holder's best token is in the race of those that stay.
    fn race(&mut self, shard: Shard<'_>, wanted: &Wanted<'_>, out: &mut Vec<u64>) {
        let (time, id) = match wanted.draw.temperature == 0.0 {
            true => (0.0, self.adjusted_best.id),
            false => {
                let mut ties = self.border.map_or(u64::MAX, |border| border.ties);
                let least = self.border.map_or(0.0, |border| border.weight);
                for weight in &mut self.weights {
                    let is_tie = *weight == least;
                    *weight = if *weight > least || (is_tie && ties > 0) { *weight } else { 0.0 };
                    ties = ties.saturating_sub(u64::from(is_tie && ties < u64::MAX));
                }
                let noise = Noise::new(wanted.draw.seed, wanted.draw.position);
                let favourite = (shard.first..).zip(&self.weights).find(|(_, weight)| **weight >= 1.0);
                let start = favourite.map_or((f64::INFINITY, u32::MAX), |(id, _)| (noise.time(id), id));
                race(&self.weights, shard.first, noise, start)
            }
        };
        let logit = shard.clean(id);
        out.extend([
            time.to_bits(),
            u64::from(id),
            u64::from(logit.unwrap_or(0.0).to_bits()),
            u64::from(logit.is_some()),
        ]);
    }

    fn choose(&mut self, token: u32, logit: f32, wanted: &Wanted<'_>) {
        self.chosen = Some((token, logit));
        self.stage = if wanted.logprobs.is_some() { Stage::Rank } else { Stage::Done };
    }

    fn result(&mut self, wanted: &Wanted<'_>) -> Chosen {
        let (token, logit) = self.chosen.unwrap_or_default();
        let logprob = |logit: f32| (f64::from(logit) - self.log_sum) as f32;
        let logprobs = wanted.logprobs.map(|_| TokenLogprobs {
            token,
            logprob: logprob(logit),
            rank: self.rank,
            top: self.top.iter().map(|&(logit, id)| (id, logprob(logit))).collect(),
        });
        Chosen { token, sound: self.sound, flat: self.flat, ended: self.ended, logprobs }
    }
}

impl Selection {
    fn new(by_mass: bool, goal: u64) -> Self {
        Self { by_mass, goal, digit: 0, prefix: 0, before: Totals::default() }
    }

    /// Counts the weights that have the prefix, by their next digit.
    fn count(&self, weights: &[f32], least: f32, out: &mut Vec<u64>) {
        let shift = DIGIT * (DIGITS - 1 - self.digit);
        let at = out.len();
        out.resize(at + 2 * BINS, 0);
        let bins = &mut out[at..];
        for &weight in weights.iter().filter(|weight| **weight >= least) {
            let key = 1f32.to_bits().saturating_sub(weight.to_bits());
            if key.checked_shr(shift + DIGIT).unwrap_or(0) == self.prefix {
                let bin = 2 * (key >> shift) as usize % (2 * BINS);
                bins[bin] += 1;
                bins[bin + 1] += mass(weight);
            }
        }
    }

    /// Settles a digit: the bin that reaches the goal. There is one, as all weights together do.
    fn settle(&mut self, words: &[&[u64]]) -> usize {
        let total = |at: usize| words.iter().map(|words| words[at]).sum::<u64>();
        let mut found = BINS - 1;
        for bin in 0..BINS {
            let (count, mass) = (total(2 * bin), total(2 * bin + 1));
            let reached = match self.by_mass {
                true => self.before.mass + mass,
                false => self.before.count + count,
            };
            if reached >= self.goal {
                found = bin;
                break;
            }
            self.before.count += count;
            self.before.mass += mass;
        }
        self.prefix = self.prefix << DIGIT | found as u32;
        self.digit += 1;
        found
    }
}

/// The least weight that can be drawn.
fn least(draw: &Draw<'_>) -> f32 {
    draw.min_p.max(f32::MIN_POSITIVE)
}

/// A value that may not be there.
fn present(value: Option<f32>) -> u64 {
    value.map_or(0, |value| 1 << 32 | u64::from(value.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::super::{History, Logprobs, Sampler};
    use super::*;

    /// What a holder of the whole row gives.
    fn whole(logits: &[f32], wanted: &Wanted<'_>) -> Chosen {
        let mut sampler = Sampler::default();
        let survey = sampler.survey(logits);
        let drawn = || sampler.draw(logits, survey, &wanted.draw).unwrap_or(0);
        let end = wanted.end.and_then(|(stops, rank)| {
            let logit = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            let best = stops.iter().copied().max_by(|a, b| logit(a).total_cmp(&logit(b)))?;
            let larger = logits.iter().filter(|other| **other > logit(&best)).count();
            (larger < rank as usize && logit(&best).is_finite()).then_some(best)
        });
        let end = end.filter(|_| wanted.fixed.is_none());
        let token = wanted.fixed.or(end).unwrap_or_else(drawn);
        Chosen {
            token,
            sound: survey.sound && survey.max.is_some(),
            flat: logits.len() > 1 && logits.iter().all(|logit| *logit == logits[0]),
            ended: end.is_some(),
            logprobs: wanted.logprobs.map(|top| Logprobs::default().of(logits, token, top)),
        }
    }

    /// What the holders of the row cut at these ids conclude, and the most words that one of them said in a round.
    fn sharded(logits: &[f32], cuts: &[usize], wanted: &Wanted<'_>) -> (Chosen, usize) {
        let shards: Vec<Shard<'_>> = cuts
            .windows(2)
            .map(|cut| Shard { logits: &logits[cut[0]..cut[1]], first: cut[0] as u32 })
            .collect();
        let mut rows: Vec<ShardedRow> = shards.iter().map(|_| ShardedRow::default()).collect();
        let mut most = 0;
        for _ in 0..32 {
            let said: Vec<Vec<u64>> = rows
                .iter_mut()
                .zip(&shards)
                .map(|(row, shard)| {
                    let mut words = Vec::new();
                    row.say(*shard, wanted, &mut words);
                    words
                })
                .collect();
            most = said.iter().map(Vec::len).max().unwrap().max(most);
            let said: Vec<&[u64]> = said.iter().map(Vec::as_slice).collect();
            let mut chosen: Vec<Option<Chosen>> =
                rows.iter_mut().enumerate().map(|(holder, row)| row.hear(&said, holder, wanted)).collect();
            assert!(chosen.windows(2).all(|two| two[0] == two[1]), "{chosen:?}");
            if let Some(chosen) = chosen.swap_remove(0) {
                return (chosen, most);
            }
        }
        panic!("no end of the rounds");
    }

    fn random_row(rng: &mut fastrand::Rng) -> Vec<f32> {
        let most = if rng.u8(..) < 20 { 4_000 } else { 300 };
        let len = rng.usize(2..most);
        // A coarse grid makes many ties, a fine one weights that differ in their last bits.
        let grid = [0.5, 0.01, 1e-7][rng.usize(0..3)];
        let mut row: Vec<f32> = (0..len).map(|_| (rng.f32() * 16.0 / grid).floor() * grid - 8.0).collect();
        match rng.u8(0..12) {
            0 => row.fill(1.5),
            1 => row[rng.usize(0..len)] = f32::NAN,
            2 => row[rng.usize(0..len)] = f32::INFINITY,
            3 => row.fill([f32::NAN, f32::NEG_INFINITY, f32::INFINITY][rng.usize(0..3)]),
            4 => row[..len / 2].fill(f32::NEG_INFINITY),
            _ => {}
        }
        row
    }

    /// Every parameter, mask and rule, on rows that are cut anywhere: the same token and the same bits of logprobs.
    #[test]
    fn a_cut_row_is_chosen_from_as_the_whole_one() {
        let mut rng = fastrand::Rng::with_seed(51);
        for round in 0..20_000 {
            let logits = random_row(&mut rng);
            let len = logits.len();
            let some_ids = |rng: &mut fastrand::Rng| -> Vec<u32> {
                (0..rng.usize(0..6)).map(|_| rng.u32(0..len as u32 + 2)).collect()
            };
            let mut history = History::new(&some_ids(&mut rng));
            some_ids(&mut rng).into_iter().for_each(|id| history.add(id));
            let (forbidden, stops) = (some_ids(&mut rng), some_ids(&mut rng));
            let biased = some_ids(&mut rng).into_iter();
            let logit_bias: Vec<(u32, f32)> =
                biased.map(|id| (id, [-100.0, 3.0, f32::NEG_INFINITY][id as usize % 3])).collect();
            let allowed: Vec<u32> = (0..len as u32).filter(|id| rng.bool() || *id == 0).collect();
            let mask = TokenMask::of(if rng.bool() { &allowed } else { &allowed[..1] });
            let plain = rng.bool();
            let draw = Draw {
                temperature: [0.0, 0.001, 0.7, 1.0, 2.0][rng.usize(0..5)],
                top_p: [1.0, 0.95, 0.5, 0.01][rng.usize(0..4)],
                min_p: [0.0, 0.0, 0.05, 1.0][rng.usize(0..4)],
                top_k: [0, 1, 5, 50, 100_000][rng.usize(0..5)],
                repetition_penalty: if plain { 1.0 } else { 1.3 },
                presence_penalty: if plain { 0.0 } else { 0.5 },
                frequency_penalty: if plain { 0.0 } else { -0.5 },
                seed: rng.u64(..),
                position: rng.u64(0..100),
                logit_bias: if rng.bool() { &logit_bias } else { &[] },
                forbidden: if rng.bool() { &forbidden } else { &[] },
                history: &history,
                mask: (rng.u8(0..4) == 0).then_some(&mask),
            };
            let wanted = Wanted {
                draw,
                fixed: (rng.u8(0..8) == 0).then(|| rng.u32(0..len as u32)),
                end: (rng.u8(0..4) == 0).then_some((&stops[..], 20)),
                logprobs: rng.bool().then(|| rng.usize(0..30)),
            };
            let holders = rng.usize(1..6).min(len);
            let mut cuts: Vec<usize> = (0..len - 1).map(|at| at + 1).collect();
            rng.shuffle(&mut cuts);
            cuts.truncate(holders - 1);
            cuts.extend([0, len]);
            cuts.sort_unstable();
            let (chosen, _) = sharded(&logits, &cuts, &wanted);
            let expected = whole(&logits, &wanted);
            let same_top = |a: &TokenLogprobs, b: &TokenLogprobs| {
                let bits = |l: &TokenLogprobs| (l.logprob.to_bits(), l.rank, format!("{:?}", l.top));
                bits(a) == bits(b)
            };
            let same = (chosen.token, chosen.sound, chosen.flat, chosen.ended)
                == (expected.token, expected.sound, expected.flat, expected.ended)
                && match (&chosen.logprobs, &expected.logprobs) {
                    (Some(a), Some(b)) => same_top(a, b),
                    (a, b) => a.is_none() == b.is_none(),
                };
            assert!(
                same,
                "round {round}: {chosen:?}, not {expected:?}: {wanted:?} of {logits:?} cut at {cuts:?}"
            );
        }
    }

    #[test]
    fn what_is_said_does_not_grow_with_the_row() {
        let history = History::default();
        let draw = super::super::SamplingParams { top_k: 40, top_p: 0.9, ..Default::default() };
        let wanted = Wanted { draw: draw.draw(&history, 0, &[]), fixed: None, end: None, logprobs: Some(20) };
        let mut rng = fastrand::Rng::with_seed(3);
        let steep: Vec<f32> = (0..163_840).map(|_| rng.f32() * 30.0).collect();
        for row in [&steep, &vec![0.0; 163_840]] {
            let (chosen, most) = sharded(row, &[0, 40_960, 81_920, 122_880, 163_840], &wanted);
            assert_eq!(chosen, whole(row, &wanted));
            assert_eq!(most, 2 * BINS, "one kilobyte a round");
        }
    }
}
