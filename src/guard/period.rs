//! At which distances the newest tokens repeat: exactly (`run`) and with noise (`score`), for periods of any length.
//!
//! A counter for every period up to 1,024 is the obvious way; it costs a pass over 1,024 counters per token and sees no longer
//! period. Here a distance is followed from the moment the last `SHORT` (or `LONG`) tokens have stood there before, which a table
//! of hashes tells in constant time; at most `SLOTS` distances are followed at once. A period's run is counted backwards when its
//! distance is taken up, so what is said of it is exact, and a loop is reported at the same token as by the counters (tested).
//!
//! What is lost: a period whose every window of `LONG` tokens has a nearer twin inside the period. A run below `SHORT` is not seen
//! either; nothing is decided on so few tokens.

/// Distances followed at once; the one with the least score makes room.
const SLOTS: usize = 8;
/// Tokens that must match before a distance is followed. Also the n-gram of [`super::Novelty`].
pub(super) const SHORT: usize = 6;
/// The same for long periods of few distinct tokens, whose short windows all have nearer twins.
const LONG: usize = 48;
/// What a mismatch takes from a score: noise of up to a fifth of the tokens leaves it growing.
const MISMATCH: u32 = 4;
/// Entries of a table, at most. A window that was overwritten is found again one period later, so longer outputs need no larger table.
const MAX_TABLE: usize = 4096;
/// Farthest that a run is counted backwards.
const MAX_RUN: usize = 1 << 20;

/// A distance at which the newest tokens repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repeat {
    /// The distance, tokens.
    pub period: u32,
    /// Newest tokens that equal those `period` before them, without a gap.
    pub run: u32,
    /// Matches less four per mismatch since the distance was taken up, never below 0.
    pub score: u32,
}

impl Repeat {
    /// Copies of the unit, the first one included.
    pub fn copies(&self) -> u32 {
        self.run / self.period + 1
    }
}

/// The distances that are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Periods {
    short: Windows,
    long: Windows,
    slots: [Repeat; SLOTS],
    num_slots: usize,
    /// By slot, a bit for each other one whose distance is shorter and divides its own.
    divisors: [u8; SLOTS],
}

/// Where each window of `width` tokens was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Windows {
    width: usize,
    /// Polynomial hash of the last `width` tokens.
    hash: u64,
    /// Weight of the token that leaves.
    oldest: u64,
    /// Position behind the window, 0 = none; one entry per hash, the latest wins.
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
            slots: [Repeat::default(); SLOTS],
            num_slots: 0,
            divisors: [0; SLOTS],
        }
    }

    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.short.clear();
        self.long.clear();
        (self.num_slots, self.divisors) = (0, [0; SLOTS]);
    }

    /// Takes the last token of `tokens`; the others are those it was fed before. Returns whether the last `SHORT` tokens have stood
    /// somewhere before, which is what novelty counts.
    pub fn push(&mut self, tokens: &[u32]) -> bool {
        let newest = tokens.len() - 1;
        let token = tokens[newest];
        let (mut at, mut changed) = (0, false);
        while at < self.num_slots {
            let slot = &mut self.slots[at];
            if tokens[newest - slot.period as usize] == token {
                slot.run += 1;
                slot.score += 1;
            } else {
                slot.run = 0;
                slot.score = slot.score.saturating_sub(MISMATCH);
                if slot.score == 0 {
                    self.num_slots -= 1;
                    self.slots[at] = self.slots[self.num_slots];
                    changed = true;
                    continue;
                }
            }
            at += 1;
        }
        let seen = self.short.push(tokens, |distance| known(&self.slots[..self.num_slots], distance, SHORT));
        let seen_long =
            self.long.push(tokens, |distance| known(&self.slots[..self.num_slots], distance, LONG));
        for distance in [seen, seen_long].into_iter().flatten() {
            changed |= self.follow(distance, tokens);
        }
        if changed {
            self.find_divisors();
        }
        seen.is_some()
    }

    /// The distances that are followed, in no particular order.
    pub fn repeats(&self) -> &[Repeat] {
        &self.slots[..self.num_slots]
    }

    /// Whether a shorter distance, of which the one at `index` is a multiple, says as much (in tenths) of what repeats: a run at p is also one
    /// at 2p, 3p and so on.
    pub fn is_explained(&self, index: usize, value: impl Fn(&Repeat) -> u32, tenths: u64) -> bool {
        let stretch = |r: &Repeat| u64::from(value(r)) + u64::from(r.period);
        let of = stretch(&self.slots[index]) * tenths;
        let mut left = self.divisors[index];
        while left != 0 {
            if stretch(&self.slots[left.trailing_zeros() as usize]) * 10 >= of {
                return true;
            }
            left &= left - 1;
        }
        false
    }

    /// Divisions are slow, and distances change far less often than they are looked at.
    fn find_divisors(&mut self) {
        let slots = &self.slots[..self.num_slots];
        let divides = |a: &Repeat, b: &Repeat| a.period < b.period && b.period.is_multiple_of(a.period);
        for (of, divisors) in slots.iter().zip(&mut self.divisors) {
            *divisors =
                slots.iter().enumerate().fold(0, |bits, (at, slot)| bits | u8::from(divides(slot, of)) << at);
        }
        self.divisors[self.num_slots..].fill(0);
    }

    /// Whether the distances are others now.
    fn follow(&mut self, distance: u32, tokens: &[u32]) -> bool {
        if self.slots[..self.num_slots].iter().any(|slot| slot.period == distance) {
            return false;
        }
        let run = run_at(tokens, distance as usize);
        let slot = Repeat { period: distance, run, score: run };
        if self.num_slots < SLOTS {
            self.slots[self.num_slots] = slot;
            self.num_slots += 1;
            return true;
        }
        let least = (0..SLOTS).min_by_key(|&at| self.slots[at].score).expect("there are slots");
        let replaces = self.slots[least].score <= run;
        if replaces {
            self.slots[least] = slot;
        }
        replaces
    }
}

/// Newest tokens that equal those `period` before them.
pub(super) fn run_at(tokens: &[u32], period: usize) -> u32 {
    let pairs = tokens.iter().rev().zip(tokens[..tokens.len() - period].iter().rev());
    pairs.take(MAX_RUN).take_while(|(a, b)| a == b).count() as u32
}

/// Whether a followed distance already shows that its last `width` tokens match.
fn known(slots: &[Repeat], distance: u32, width: usize) -> bool {
    slots.iter().any(|slot| slot.period == distance && slot.run as usize >= width)
}

impl Windows {
    fn new(width: usize, entries: usize) -> Self {
        Self { width, hash: 0, oldest: BASE.wrapping_pow(width as u32), ends: vec![0; entries] }
    }

    fn clear(&mut self) {
        self.hash = 0;
        self.ends.fill(0);
    }

    /// Notes the newest window; returns the distance to where it stood last. `known` saves the comparison.
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
        let equal = known(distance) || tokens[before - self.width..before] == tokens[end - self.width..];
        equal.then_some(distance)
    }
}

/// Token ids are small and dense; a hash wants all bits.
fn spread(token: u32) -> u64 {
    let z = (u64::from(token) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}
