//! Sources of guesses that sequences share: finished replies, constraints, and what is known of the
//! chances of each kind of guess.

use std::sync::Arc;

use super::constrained::Constrained;
use perigee_decoding::speculation::{Acceptance, Config, Guess, Occurrences, Replies};

/// Sources of guesses, with the chances that these hold.
pub(super) struct GuessSources {
    follows_text: bool,
    votes: bool,
    replies: Replies,
    pub(super) acceptance: Acceptance,
    vocab_size: usize,
    way: Vec<u32>,
    /// A guess beside the one that a sequence has.
    pub(super) other: Guess,
}

impl GuessSources {
    pub(super) fn new(config: &Config, vocab_size: usize) -> Self {
        let kept = if config.votes() { config.reply_tokens } else { 0 };
        Self {
            follows_text: config.follows_text(),
            votes: config.votes(),
            replies: Replies::new(config.min_match, kept),
            acceptance: Acceptance::default(),
            vocab_size,
            way: Vec::new(),
            other: Guess::default(),
        }
    }

    /// Guesses from like places in the sequence, whose tokens `index` holds, and in finished replies of
    /// its salt.
    pub(super) fn guess_from_text(
        &mut self,
        index: &Occurrences,
        salt: Option<&Arc<str>>,
        tokens: &[u32],
        limit: usize,
        guess: &mut Guess,
    ) {
        if !self.follows_text {
            // The draft model alone.
        } else if self.votes {
            guess.vote(index, tokens, limit);
            self.replies.vote(salt, tokens, limit, guess);
        } else {
            guess.longest(index, tokens, limit);
        }
    }

    /// Sets `other` to a constraint's way to the end of the reply.
    pub(super) fn guess_way(&mut self, constraint: &Constrained, limit: usize) {
        self.way.clear();
        constraint.way(limit, &mut self.way);
        // A grammar may know ids that the network has no row for.
        let known = self.way.iter().position(|token| *token as usize >= self.vocab_size);
        self.way.truncate(known.unwrap_or(self.way.len()));
        self.other.set(&self.way, Guess::WAY);
    }

    /// Keeps a finished reply.
    pub(super) fn learn(&mut self, salt: Option<&Arc<str>>, reply: &[u32]) {
        self.replies.add(salt, reply);
    }
}
