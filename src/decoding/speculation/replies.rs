//! Finished replies, to look for like places in.
//!
//! A reply is found only by sequences with the same cache salt: a draft that holds makes a reply
//! faster, so whose text was drafted can be told from outside. Memory is bounded: each scope keeps
//! its replies in two generations, and when there are too many tokens the least recently used scope
//! loses its older one.

use std::collections::HashMap;
use std::sync::Arc;

use super::guess::{BORDER, Guess};
use super::occurrences::Occurrences;

/// Most cache salts at a time.
const MAX_SCOPES: usize = 64;

/// Replies of the recent past.
#[derive(Debug)]
pub struct Replies {
    gram: usize,
    /// Most tokens over all scopes; 0 keeps none.
    capacity: usize,
    scopes: HashMap<Option<Arc<str>>, Scope, ahash::RandomState>,
    /// Grows with each use, to find the least recent one.
    clock: u64,
}

#[derive(Debug)]
struct Scope {
    young: Generation,
    old: Generation,
    used: u64,
}

#[derive(Debug)]
struct Generation {
    tokens: Vec<u32>,
    index: Occurrences,
}

impl Generation {
    fn new(gram: usize) -> Self {
        Self { tokens: Vec::new(), index: Occurrences::new(gram) }
    }
}

impl Scope {
    fn tokens(&self) -> usize {
        self.young.tokens.len() + self.old.tokens.len()
    }
}

impl Replies {
    /// No replies yet, and never more than `capacity` tokens.
    pub fn new(gram: usize, capacity: usize) -> Self {
        Self { gram, capacity, scopes: HashMap::default(), clock: 0 }
    }

    /// Tokens kept.
    pub fn num_tokens(&self) -> usize {
        self.scopes.values().map(Scope::tokens).sum()
    }

    /// Keeps a finished reply, cut to half the capacity.
    pub fn add(&mut self, salt: Option<&Arc<str>>, reply: &[u32]) {
        let reply = &reply[..reply.len().min((self.capacity / 2).saturating_sub(1))];
        if reply.len() <= self.gram {
            return;
        }
        self.clock += 1;
        let (gram, clock) = (self.gram, self.clock);
        let new = || Scope { young: Generation::new(gram), old: Generation::new(gram), used: 0 };
        let scope = self.scopes.entry(salt.cloned()).or_insert_with(new);
        scope.used = clock;
        // A scope alone rotates before it fills the whole capacity.
        if scope.young.tokens.len() + reply.len() >= self.capacity / 2 {
            scope.old = std::mem::replace(&mut scope.young, Generation::new(gram));
        }
        scope.young.tokens.extend_from_slice(reply);
        scope.young.tokens.push(BORDER);
        scope.young.index.extend(&scope.young.tokens, usize::MAX);
        while self.num_tokens() > self.capacity || self.scopes.len() > MAX_SCOPES {
            self.drop_oldest();
        }
    }

    /// Drops the older generation of the least recently used scope, or the scope if it has none.
    fn drop_oldest(&mut self) {
        let oldest = self.scopes.iter().min_by_key(|(_, scope)| scope.used).map(|(salt, _)| salt.clone());
        let Some(salt) = oldest else { return };
        let gram = self.gram;
        match self.scopes.get_mut(&salt) {
            Some(scope) if !scope.old.tokens.is_empty() => {
                scope.old = Generation::new(gram);
            }
            _ => drop(self.scopes.remove(&salt)),
        }
    }

    /// Improves a guess by what followed like places in replies with the same salt.
    pub fn vote(&mut self, salt: Option<&Arc<str>>, end: &[u32], limit: usize, guess: &mut Guess) {
        if self.scopes.is_empty() {
            return;
        }
        self.clock += 1;
        let Some(scope) = self.scopes.get_mut(&salt.cloned()) else { return };
        scope.used = self.clock;
        for generation in [&scope.young, &scope.old] {
            guess.vote_in(&generation.index, &generation.tokens, end, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_found_under_its_own_salt_only() {
        let mut replies = Replies::new(2, 100);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        replies.add(Some(&a), &[1, 2, 3, 4, 5]);
        let mut drafted = |salt: Option<&Arc<str>>| {
            let mut guess = Guess::default();
            replies.vote(salt, &[9, 1, 2], 8, &mut guess);
            guess.tokens
        };
        assert_eq!(drafted(Some(&a)), [3, 4, 5], "up to the end of the reply");
        assert_eq!(drafted(Some(&b)), [0u32; 0]);
        assert_eq!(drafted(None), [0u32; 0]);
    }

    #[test]
    fn capacity_bounds_the_tokens_and_the_oldest_go_first() {
        let mut replies = Replies::new(2, 100);
        for i in 0..1000 {
            replies.add(None, &[i, i + 1, i + 2, i + 3]);
            assert!(replies.num_tokens() <= 100);
        }
        let mut found = |token: u32| {
            let mut guess = Guess::default();
            replies.vote(None, &[token, token + 1], 1, &mut guess);
            !guess.tokens.is_empty()
        };
        assert!(found(999) && found(985) && !found(900));
        for i in 0..1000u32 {
            let salt: Arc<str> = i.to_string().into();
            replies.add(Some(&salt), &[1, 2, 3, 4]);
            assert!(replies.num_tokens() <= 100 && replies.scopes.len() <= MAX_SCOPES);
        }
        let mut none = Replies::new(2, 0);
        none.add(None, &[1, 2, 3, 4]);
        assert_eq!(none.num_tokens(), 0);
    }
}
