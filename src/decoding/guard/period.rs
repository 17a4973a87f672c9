//! Distances at which the newest tokens repeat, exactly (`run`) and with noise (`score`), for
//! periods of any length.
//!
//! The obvious way is a counter for every period up to 1,024: a pass over 1,024 counters per token,
//! blind to longer periods. Here a distance is followed from the moment the last `SHORT` (or
//! `LONG`) tokens have occurred before, which a hash table answers in constant time; at most
//! `MAX_FOLLOWED` distances are followed at once. The run of a distance is counted backwards when
//! the distance is taken up, so `run` is exact and a loop is reported at the same token as by the
//! counters (tested).
//!
//! Not seen: a period whose every window of `LONG` tokens has a nearer twin inside the period, and
//! a run below `SHORT`, on which no decision rests.

use super::policy::Judgement;

/// Tokens that must match before a distance is followed.
const SHORT: usize = 6;
/// The same for long periods of few distinct tokens, whose every short window has a nearer twin.
const LONG: usize = 48;
/// Cost of a mismatch: a score grows while at most a fifth of the tokens mismatch.
const MISMATCH: u32 = 4;
/// Most entries of a table. An overwritten window is found again one period later, so longer
/// outputs need no larger table.
const MAX_TABLE: usize = 4096;
/// Longest run that is counted backwards, in tokens.
const MAX_RUN: usize = 1 << 20;
/// Most distances that are followed at once.
const MAX_FOLLOWED: usize = 8;

/// A distance at which the newest tokens repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repeat {
    /// The distance, in tokens.
    pub period: u32,
    /// Newest tokens that equal those `period` before them, without a gap.
    pub run: u32,
    /// Matches less four per mismatch since the distance was taken up, never below 0.
    pub score: u32,
    /// Start of the first copy, in tokens from the start of the sequence.
    pub start: u32,
    /// The guard's judgement of the unit, once there is one.
    pub(super) judgement: Option<Judgement>,
}

impl Repeat {
    /// Copies of the unit, the first one included.
    pub fn copies(&self) -> u32 {
        self.run / self.period + 1
    }
}

/// The followed distances. A new distance replaces the one with the lowest score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Periods {
    short: Windows,
    long: Windows,
    followed: Vec<Repeat>,
}

/// Position of the last occurrence of each window of `width` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Windows {
    width: usize,
    /// Polynomial hash of the last `width` tokens.
    hash: u64,
    /// Weight of the token that leaves the window.
    oldest: u64,
    /// Position after the window, 0 = none; one entry per hash, the latest wins.
    ends: Vec<u32>,
}

const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

impl Periods {
    /// For a sequence of at most `max_tokens` tokens; fewer make smaller tables.
    pub fn new(max_tokens: usize) -> Self {
        let entries = max_tokens.clamp(64, MAX_TABLE).next_power_of_two();
        Self {
            short: Windows::new(SHORT, entries),
            long: Windows::new(LONG, entries),
            followed: Vec::with_capacity(MAX_FOLLOWED),
        }
    }

    /// Empties the tables and keeps their memory.
    pub fn clear(&mut self) {
        self.short.clear();
        self.long.clear();
        self.followed.clear();
    }

    /// Drops every followed distance; a repetition that continues is taken up again.
    pub(super) fn forget_repeats(&mut self) {
        self.followed.clear();
    }

    /// Counts the last token of `tokens`; earlier calls counted the tokens before it.
    pub fn push(&mut self, tokens: &[u32]) {
        let newest = tokens.len() - 1;
        self.followed.retain_mut(|r| {
            let matches = tokens[newest - r.period as usize] == tokens[newest];
            r.run = if matches { r.run + 1 } else { 0 };
            r.score = if matches { r.score + 1 } else { r.score.saturating_sub(MISMATCH) };
            r.score > 0
        });
        for windows in [&mut self.short, &mut self.long] {
            let width = windows.width as u32;
            let known = |distance| self.followed.iter().any(|r| r.period == distance && r.run >= width);
            if let Some(distance) = windows.push(tokens, known) {
                take_up(&mut self.followed, distance, tokens);
            }
        }
    }

    /// The followed distances, in no particular order.
    pub fn repeats(&self) -> &[Repeat] {
        &self.followed
    }

    pub(super) fn repeats_mut(&mut self) -> &mut [Repeat] {
        &mut self.followed
    }

    /// Whether a shorter distance explains at least `tenths` of a repetition at one of its
    /// multiples: a run at p is also one at 2p, 3p and so on.
    pub(super) fn is_explained(
        &self,
        multiple: &Repeat,
        value: impl Fn(&Repeat) -> u32,
        tenths: u64,
    ) -> bool {
        let stretch = |r: &Repeat| u64::from(value(r)) + u64::from(r.period);
        let of = stretch(multiple) * tenths;
        // Divisions are slow, so the cheap comparison comes first.
        let explains = |r: &Repeat| {
            r.period < multiple.period && stretch(r) * 10 >= of && multiple.period.is_multiple_of(r.period)
        };
        self.followed.iter().any(explains)
    }
}

/// Follows a new distance if there is room, or in place of one with a lower score.
fn take_up(followed: &mut Vec<Repeat>, distance: u32, tokens: &[u32]) {
    if followed.iter().any(|r| r.period == distance) {
        return;
    }
    let run = run_at(tokens, distance as usize);
    let start = tokens.len() as u32 - run - distance;
    let repeat = Repeat { period: distance, run, score: run, start, judgement: None };
    if followed.len() < MAX_FOLLOWED {
        followed.push(repeat);
    } else if let Some(least) = followed.iter_mut().min_by_key(|r| r.score).filter(|r| r.score <= run) {
        *least = repeat;
    }
}

/// Newest tokens that equal those `period` before them.
fn run_at(tokens: &[u32], period: usize) -> u32 {
    let pairs = tokens.iter().rev().zip(tokens[..tokens.len() - period].iter().rev());
    pairs.take(MAX_RUN).take_while(|(a, b)| a == b).count() as u32
}

impl Windows {
    fn new(width: usize, entries: usize) -> Self {
        Self { width, hash: 0, oldest: BASE.wrapping_pow(width as u32), ends: vec![0; entries] }
    }

    fn clear(&mut self) {
        self.hash = 0;
        self.ends.fill(0);
    }

    /// Records the newest window; returns the distance to its last occurrence. `known` saves the
    /// comparison.
    fn push(&mut self, tokens: &[u32], known: impl Fn(u32) -> bool) -> Option<u32> {
        let end = tokens.len();
        self.hash = self.hash.wrapping_mul(BASE).wrapping_add(spread(tokens[end - 1]));
        if end < self.width {
            return None;
        }
        if end > self.width {
            let leaving = spread(tokens[end - 1 - self.width]);
            self.hash = self.hash.wrapping_sub(leaving.wrapping_mul(self.oldest));
        }
        // The high bits of a product depend on all bits of the hash.
        let index = (self.hash.wrapping_mul(BASE) >> 32) as usize & (self.ends.len() - 1);
        let before = std::mem::replace(&mut self.ends[index], end as u32) as usize;
        if before < self.width {
            return None;
        }
        let distance = (end - before) as u32;
        // Most entries belong to another window; comparing its last token first rejects them
        // soonest.
        let equal = tokens[before - 1] == tokens[end - 1]
            && (known(distance) || tokens[before - self.width..before] == tokens[end - self.width..]);
        equal.then_some(distance)
    }
}

/// Spreads small, dense token ids over all bits, as the hash needs.
fn spread(token: u32) -> u64 {
    let z = (u64::from(token) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}
