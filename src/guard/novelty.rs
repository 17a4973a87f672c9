//! How much of the newest text is new: the share of n-grams in the last 1,024 and 2,048 tokens that had not stood in this reply before.
//!
//! Catches what has no period: the same sentences in another order, a soup of few words. Says nothing about a cause, so it is only a
//! hint: a long table is not new either.

/// Longest window, tokens.
const WINDOW: usize = 2048;

/// A ring of one bit per token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Novelty {
    bits: Box<[u64; WINDOW / 64]>,
    len: usize,
    new_in_1024: u32,
    new_in_2048: u32,
}

impl Default for Novelty {
    fn default() -> Self {
        Self { bits: Box::new([0; WINDOW / 64]), len: 0, new_in_1024: 0, new_in_2048: 0 }
    }
}

impl Novelty {
    /// Notes whether the n-gram that ends with this token is new.
    pub fn push(&mut self, is_new: bool) {
        if self.len >= 1024 {
            self.new_in_1024 -= u32::from(self.bit(self.len - 1024));
        }
        if self.len >= WINDOW {
            self.new_in_2048 -= u32::from(self.bit(self.len - WINDOW));
        }
        let (word, mask) = (self.len % WINDOW / 64, 1u64 << (self.len % 64));
        if is_new {
            self.bits[word] |= mask
        } else {
            self.bits[word] &= !mask
        }
        self.new_in_1024 += u32::from(is_new);
        self.new_in_2048 += u32::from(is_new);
        self.len += 1;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        (self.len, self.new_in_1024, self.new_in_2048) = (0, 0, 0);
    }

    /// Whether hardly anything is new: below 8 % of 1,024 tokens or 15 % of 2,048.
    pub fn is_low(&self) -> bool {
        (self.len >= 1024 && self.new_in_1024 * 100 < 8 * 1024)
            || (self.len >= WINDOW && self.new_in_2048 * 100 < 15 * 2048)
    }

    /// Whether it is worth to look closer: below 30 % of 1,024 tokens.
    pub fn is_falling(&self) -> bool {
        self.len >= 1024 && self.new_in_1024 * 100 < 30 * 1024
    }

    fn bit(&self, position: usize) -> bool {
        self.bits[position % WINDOW / 64] >> (position % 64) & 1 == 1
    }
}
