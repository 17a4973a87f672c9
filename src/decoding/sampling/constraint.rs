//! Interface of a grammar's constraint on the next token. The engine and the sampler use it and
//! know no grammars.
//!
//! A constraint follows its reply token by token through `take`, and can be rewound. Invariant,
//! guaranteed to the caller: as long as every token came from `take`, the reply is a prefix of a
//! text that the grammar allows.

use std::fmt;

/// Bits per word.
const WORD: usize = u32::BITS as usize;

/// The set of token ids allowed next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32`; ids beyond the last word are not allowed.
    words: Vec<u32>,
}

impl TokenMask {
    /// A mask from its words: bit `id % 32` of word `id / 32` allows `id`.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// The words of the mask, as [`TokenMask::from_words`] takes them.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// A mask that allows these ids.
    pub fn of(ids: &[u32]) -> Self {
        let len = ids.iter().max().map_or(0, |&id| id as usize / WORD + 1);
        let mut words = vec![0; len];
        for &id in ids {
            words[id as usize / WORD] |= 1 << (id as usize % WORD);
        }
        Self { words }
    }

    /// Whether the mask contains the id.
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / WORD).is_some_and(|word| word >> (id as usize % WORD) & 1 == 1)
    }

    /// The smallest allowed id; `None` if no id is allowed.
    pub fn first(&self) -> Option<u32> {
        let at = self.words.iter().position(|&word| word != 0)?;
        Some((at * WORD) as u32 + self.words[at].trailing_zeros())
    }

    /// Number of allowed ids.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Sets the logits of ids that are not allowed to -inf. `row` has those of the ids from `first` on.
    pub fn apply(&self, row: &mut [f32], first: u32) {
        if !(first as usize).is_multiple_of(WORD) {
            let forbidden = (first..).zip(row).filter(|(id, _)| !self.allows(*id));
            return forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        let words = self.words.get(first as usize / WORD..).unwrap_or_default();
        let covered = row.len().min(words.len() * WORD);
        let (inside, beyond) = row.split_at_mut(covered);
        beyond.fill(f32::NEG_INFINITY);
        for (logits, &word) in inside.chunks_mut(WORD).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
    }
}

/// Result of offering a sampled token to a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The token is part of the reply.
    Accepted {
        /// Whether the reply is complete and only an end token could follow: no further token is
        /// needed.
        ends: bool,
    },
    /// The token would leave too few tokens to complete the reply. The reply is unchanged, and the
    /// next mask allows only the path to its end: another token is to be sampled.
    Refused,
}

/// The constraint cannot compute the allowed tokens any more; the sequence cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grammar cannot go on: {0}")]
pub struct ConstraintBroken(pub String);

/// Follows one reply and computes the tokens allowed next.
pub trait TokenConstraint: Send + fmt::Debug {
    /// An independent copy in the same state.
    fn fork(&self) -> Box<dyn TokenConstraint>;

    /// Computes the mask of the next token, with `left` tokens still to come (at least 1), and
    /// keeps it for `mask`. May take milliseconds: the engine calls it beside the forward pass. A
    /// repeated call before the next `take` or `rewind` costs no time.
    fn prepare(&mut self, left: usize) -> Result<(), ConstraintBroken>;

    /// The mask computed by `prepare`; `None` before the first one.
    fn mask(&self) -> Option<&TokenMask>;

    /// Takes an allowed token with room for `left` more after it, or refuses it. A token from the
    /// mask after a refusal is not refused.
    fn take(&mut self, sampled: u32, left: usize) -> Result<Taken, ConstraintBroken>;

    /// Whether a path to the end of the reply is known: `take` follows it when no other tokens
    /// remain.
    fn knows_end(&self) -> bool;

    /// Appends the first tokens, at most `limit`, of the known path to the end of the reply: the
    /// likeliest continuation as far as the constraint alone decides. None where no path is known.
    fn way(&self, _limit: usize, _tokens: &mut Vec<u32>) {}

    /// Removes the last `tokens` tokens. The state then equals that of a reply without them.
    fn rewind(&mut self, tokens: usize) -> Result<(), ConstraintBroken>;
}

impl Clone for Box<dyn TokenConstraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_allow_what_they_name_and_nothing_else() {
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..300 {
            let vocab = rng.usize(1..300);
            let ids: Vec<u32> = (0..rng.usize(0..20)).map(|_| rng.u32(0..350)).collect();
            let mask = TokenMask::of(&ids);
            let mut row: Vec<f32> = (0..vocab).map(|id| id as f32 - 40.0).collect();
            mask.apply(&mut row, 0);
            for (id, logit) in (0..).zip(&row) {
                assert_eq!(mask.allows(id), ids.contains(&id));
                assert_eq!(*logit, if ids.contains(&id) { id as f32 - 40.0 } else { f32::NEG_INFINITY });
            }
            assert_eq!(mask.first(), ids.iter().min().copied());
            let mut distinct = ids.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(mask.count(), distinct.len());
        }
        assert!(!TokenMask::default().allows(0));
        assert!(TokenMask::from_words(vec![u32::MAX]).allows(31));
    }
}
