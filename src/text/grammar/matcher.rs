//! Follows a reply through its grammar: masks, advances, rewinds, and keeps a way to the end within
//! the budget.
//!
//! Invariant: `closing`, if present, leads from the present state to an end of the reply, and its
//! tokens fit in the remaining budget. The invariant holds at the start (the request is refused
//! otherwise), and `take` preserves it: a sampled token after which no such way is found is
//! refused, and the next mask allows only the first token of the known way. `closing` is absent
//! only for a grammar without a known end at the start.

use std::fmt;
use std::sync::Arc;

use super::budget::{Budget, Over};
use super::closing::{Found, Place};
use super::compiled::Grammar;
use super::parser::{Parser, broken};
use perigee_decoding::sampling::{ConstraintBroken, Taken, TokenConstraint, TokenMask};
use perigee_telemetry::heap;

/// Bytes that a search may try while a reply runs: about a millisecond.
const SEARCH_FUEL: usize = 20_000;
/// Additional bytes that a search may try per byte of the previously known way.
const FUEL_PER_BYTE: usize = 200;
/// Bytes of a reply that a search sees.
const RECENT_BYTES: usize = 512;
/// The same for a second search, before a token is refused because the first search found no way:
/// some milliseconds, and rare.
const PATIENT_FUEL: usize = 100_000;

/// The rest of a way to the end. Shared, because most tokens leave it unchanged or take from its
/// front.
#[derive(Debug, Clone)]
struct Way {
    bytes: Arc<[u8]>,
    from: usize,
}

impl Way {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into(), from: 0 }
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    /// The way without its first `len` bytes.
    fn behind(&self, len: usize) -> Self {
        Self { bytes: self.bytes.clone(), from: self.from + len }
    }
}

/// Knowledge of the end after a token.
enum Outlook {
    /// A way that fits; the flag says that the reply must end at once.
    Fits(Way, bool),
    /// A way that takes more tokens than remain.
    TooLong,
    /// No way was found within the bounds of a search.
    Unknown,
}

/// One token of the reply.
#[derive(Debug, Clone)]
struct ReplyToken {
    token: u32,
    /// Start of the token's bytes.
    from: usize,
    /// The way to the end known before the token.
    way: Option<Way>,
}

/// The constraint of one reply.
pub(super) struct Matcher {
    grammar: Arc<Grammar>,
    /// Created on demand, so that a waiting reply holds no parser.
    parser: Option<Parser>,
    /// Bytes that the parser holds.
    parser_bytes: usize,
    /// The reply so far, special tokens spelled, and its tokens.
    bytes: Vec<u8>,
    tokens: Vec<ReplyToken>,
    place: Place,
    closing: Option<Way>,
    mask: Option<TokenMask>,
    /// Number of the token from which the known way is followed without the grammar engine, after
    /// that failed.
    given_up_at: Option<usize>,
    /// A token was refused for lack of room: the next one follows the known way.
    refused: bool,
}

/// Reasons why the grammar engine gave no answer.
enum Failed {
    /// The grammar engine cannot continue.
    Broken(ConstraintBroken),
    /// The answer would take more memory or work than a reply may use.
    TooMuch(Over),
}

impl From<Failed> for ConstraintBroken {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Broken(why) => why,
            Failed::TooMuch(Over::Memory) => {
                Self("it takes more memory than one reply may (structured_output.max_grammar_bytes)".into())
            }
            Failed::TooMuch(Over::Panic) => Self("the grammar engine panicked".into()),
            Failed::TooMuch(_) => {
                Self("a token takes more work than it may (structured_output.max_step_work)".into())
            }
        }
    }
}

impl Grammar {
    /// A constraint for one reply.
    pub fn start(self: &Arc<Self>) -> Box<dyn TokenConstraint> {
        Box::new(Matcher::new(self.clone(), self.shortest.clone()))
    }
}

impl Matcher {
    pub(super) fn new(grammar: Arc<Grammar>, closing: Option<Vec<u8>>) -> Self {
        let place = grammar.marks.start();
        Self {
            grammar,
            parser: None,
            parser_bytes: 0,
            bytes: Vec::new(),
            tokens: Vec::new(),
            place,
            closing: closing.map(Way::new),
            mask: None,
            given_up_at: None,
            refused: false,
        }
    }

    /// Asks the parser, within the reply's limits; a new parser first replays the reply. `work`
    /// returns its answer and the number of bytes consumed. A parser that exceeded its limits is
    /// dropped.
    fn ask<T>(
        &mut self,
        work: impl FnOnce(&mut Parser) -> Result<(T, usize), ConstraintBroken>,
    ) -> Result<T, Failed> {
        let limits = &self.grammar.limits;
        // A new parser replays the whole reply.
        let consumed = if self.parser.is_some() { 1 } else { 1 + self.tokens.len() as u64 };
        let budget = Budget {
            bytes: limits.bytes_for(self.parser_bytes).saturating_sub(self.parser_bytes),
            work: limits.work.saturating_mul(consumed),
            stop: None,
        };
        let before = heap::allocated();
        let (parser, grammar, tokens) = (&mut self.parser, &self.grammar, &self.tokens);
        let (outcome, _) = budget.run(|| {
            let parser = match parser {
                Some(parser) => parser,
                None => {
                    let mut new = grammar.parser();
                    tokens
                        .iter()
                        .filter(|t| !grammar.is_end(t.token))
                        .try_for_each(|t| new.consume(t.token))?;
                    parser.insert(new)
                }
            };
            work(parser)
        });
        match outcome {
            Ok(Ok((answer, bytes))) => {
                let grown = heap::allocated().wrapping_sub(before).wrapping_sub(bytes as isize);
                self.account(self.parser_bytes.saturating_add_signed(grown));
                Ok(answer)
            }
            Ok(Err(why)) => Err(Failed::Broken(why)),
            Err(over) => {
                self.forget_parser();
                Err(Failed::TooMuch(over))
            }
        }
    }

    /// Records the bytes that the parser holds.
    fn account(&mut self, bytes: usize) {
        self.grammar.limits.account.change(std::mem::replace(&mut self.parser_bytes, bytes), bytes);
    }

    fn forget_parser(&mut self) {
        self.parser = None;
        self.account(0);
    }

    /// Follows the known way from here on, without the grammar engine. Errors: no way is known.
    fn give_up(&mut self, failed: Failed) -> Result<(), ConstraintBroken> {
        if self.closing.is_none() {
            return Err(failed.into());
        }
        self.forget_parser();
        self.given_up_at = Some(self.tokens.len());
        Ok(())
    }

    /// The first token of the known way, unless the way is at its end.
    fn next_on_way(&self) -> Option<(u32, usize)> {
        let closing = self.closing.as_ref().map(Way::left).filter(|closing| !closing.is_empty())?;
        Some(self.grammar.spelling.first_token(closing))
    }

    /// The mask that allows only the next token of the known way.
    fn way_mask(&self) -> Option<TokenMask> {
        let closing = self.closing.as_ref()?.left();
        if !closing.is_empty() {
            return Some(TokenMask::of(&[self.grammar.spelling.first_token(closing).0]));
        }
        let ends = self.grammar.marks.ends.iter();
        let ids: Vec<u32> =
            ends.filter_map(|end| toktrie::parse_numeric_token(&end[1..]).map(|(_, id)| id)).collect();
        Some(TokenMask::of(&ids))
    }

    /// Whether the known way takes all remaining tokens, so that it must be followed.
    fn must_follow(&self, left: usize) -> bool {
        let closing = self.closing.as_ref().map(Way::left).filter(|closing| !closing.is_empty());
        let Some(closing) = closing else { return false };
        // Bytes are an upper bound on tokens that costs nothing.
        closing.len() >= left && self.grammar.spelling.count_tokens(closing) >= left
    }

    fn note(&mut self, token: u32) {
        self.tokens.push(ReplyToken { token, from: self.bytes.len(), way: self.closing.clone() });
        let from = self.bytes.len();
        let trie = self.grammar.spelling.0.tok_trie();
        self.bytes.extend_from_slice(&trie.decode_raw(&[token]));
        self.grammar.marks.advance(&mut self.place, &self.bytes, from);
    }

    fn consume(&mut self, token: u32) -> Result<(), Failed> {
        self.ask(|parser| parser.consume(token).map(|()| ((), 0)))
    }

    /// Follows the known way by one token, or ends at its end, without asking the grammar engine.
    fn follow(&mut self) -> Result<Taken, ConstraintBroken> {
        match (self.next_on_way(), self.way_mask()) {
            (Some((token, len)), _) => Ok(self.go_on_way(token, len)),
            (None, Some(ends)) => {
                let end = ends.first().ok_or_else(|| ConstraintBroken("no token ends it".into()))?;
                self.note(end);
                Ok(Taken::Accepted { ends: true })
            }
            (None, None) => Err(ConstraintBroken("no way to its end is known".into())),
        }
    }

    /// Records the first token of the known way, of `len` bytes.
    fn go_on_way(&mut self, token: u32, len: usize) -> Taken {
        self.note(token);
        self.closing = self.closing.as_ref().map(|way| way.behind(len));
        let ends = self.closing.as_ref().is_some_and(|way| way.left().is_empty());
        Taken::Accepted { ends }
    }

    /// Searches for a way to the end, of at most `left` tokens, from the state after the last
    /// token.
    fn outlook(&mut self, left: usize, fuel: usize) -> Result<Outlook, Failed> {
        let from = self.tokens.last().map_or(0, |t| t.from);
        let taken = self.bytes[from..].to_vec();
        let place = self.place.clone();
        let recent = self.bytes[self.bytes.len().saturating_sub(RECENT_BYTES)..].to_vec();
        let old = self.closing.clone();
        // A way that was long to find may be as long to find again.
        let fuel = fuel + FUEL_PER_BYTE * old.as_ref().map_or(0, |way| way.left().len());
        let (found, must_end) = self.ask(|parser| {
            let (found, must_end) = parser.walk(fuel, |walk| {
                if walk.can_end() {
                    return (Some(Way::new(Vec::new())), walk.must_end());
                }
                // Most tokens follow the old way, leave it unchanged, or stand for a part of it.
                if let Some(old) = old {
                    let shorter = (taken.len() < old.left().len()).then(|| old.behind(taken.len()));
                    let ways = match old.left().starts_with(&taken) {
                        true => [shorter, Some(old)],
                        false => [Some(old), shorter],
                    };
                    for way in ways.into_iter().flatten().filter(|way| !way.left().is_empty()) {
                        if walk.closes(way.left()) {
                            return (Some(way), false);
                        }
                    }
                }
                match walk.close(place, &recent) {
                    Found::Closing(bytes) => (Some(Way::new(bytes)), false),
                    Found::Nothing => (None, false),
                }
            });
            let bytes = found.as_ref().map_or(0, |way| way.bytes.len());
            Ok(((found, must_end), bytes))
        })?;
        let spelling = &self.grammar.spelling;
        Ok(match found {
            // Bytes are an upper bound on tokens that costs nothing.
            Some(way) if way.left().len() <= left || spelling.count_tokens(way.left()) <= left => {
                Outlook::Fits(way, must_end)
            }
            Some(_) => Outlook::TooLong,
            None => Outlook::Unknown,
        })
    }

    /// Cuts the reply back to `keep` tokens.
    fn cut(&mut self, keep: usize) {
        let Some(first) = self.tokens.get(keep) else { return };
        self.bytes.truncate(first.from);
        self.closing = first.way.clone();
        // End tokens are never consumed.
        let consumed = self.tokens[keep..].iter().filter(|t| !self.grammar.is_end(t.token)).count();
        self.tokens.truncate(keep);
        self.place = self.grammar.marks.start();
        self.grammar.marks.advance(&mut self.place, &self.bytes, 0);
        let given_up = self.given_up_at.take();
        let rolled_back = given_up.is_none()
            && self.parser.is_some()
            && self
                .ask(|parser| {
                    let back = parser.inner.rollback(consumed);
                    // The cache names states by number, and other states will get the same numbers.
                    parser.inner.invalidate_bias_cache();
                    back.map(|()| ((), 0)).map_err(|error| broken(&error))
                })
                .is_ok();
        if !rolled_back {
            // The parser has failed or cannot rewind: a new one replays the reply.
            self.forget_parser();
        }
    }
}

impl TokenConstraint for Matcher {
    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(Self {
            grammar: self.grammar.clone(),
            parser: None,
            parser_bytes: 0,
            bytes: self.bytes.clone(),
            tokens: self.tokens.clone(),
            place: self.place.clone(),
            closing: self.closing.clone(),
            mask: self.mask.clone(),
            given_up_at: self.given_up_at,
            refused: self.refused,
        })
    }

    fn prepare(&mut self, left: usize) -> Result<(), ConstraintBroken> {
        if self.mask.is_some() {
            return Ok(());
        }
        if self.given_up_at.is_some() || self.refused || self.must_follow(left) {
            self.mask = self.way_mask();
            return Ok(());
        }
        let set = self.ask(|parser| {
            let set = parser.inner.compute_mask().map_err(|error| broken(&error))?;
            let words = set.as_slice().to_vec();
            drop(set);
            let bytes = size_of_val(&words[..]);
            Ok((words, bytes))
        });
        match set {
            Ok(words) => self.mask = Some(TokenMask::from_words(words)),
            Err(failed) => {
                // The grammar takes more than its allowed cost. The known way still leads to a
                // complete end.
                self.give_up(failed)?;
                self.mask = self.way_mask();
            }
        }
        Ok(())
    }

    fn mask(&self) -> Option<&TokenMask> {
        self.mask.as_ref()
    }

    fn take(&mut self, sampled: u32, left: usize) -> Result<Taken, ConstraintBroken> {
        self.mask = None;
        let follows = std::mem::take(&mut self.refused);
        if self.grammar.is_end(sampled) {
            self.note(sampled);
            return Ok(Taken::Accepted { ends: true });
        }
        if self.given_up_at.is_some() {
            return self.follow();
        }
        if let Err(failed) = self.consume(sampled) {
            // The token was allowed, so the failure is a bound of the grammar engine.
            self.give_up(failed)?;
            return if follows { self.follow() } else { Ok(Taken::Refused) };
        }
        if follows && let Some((token, len)) = self.next_on_way() {
            return Ok(self.go_on_way(token, len));
        }
        self.note(sampled);
        let overlong = matches!(&self.place, Place::Json(place) if place.is_overlong());
        let mut outlook = if overlong { Ok(Outlook::TooLong) } else { self.outlook(left, SEARCH_FUEL) };
        if matches!(outlook, Ok(Outlook::Unknown)) && self.closing.is_some() {
            outlook = self.outlook(left, PATIENT_FUEL);
        }
        match outlook {
            Ok(Outlook::Fits(way, must_end)) => {
                let ends = way.left().is_empty() && (must_end || left == 0);
                self.closing = Some(way);
                return Ok(Taken::Accepted { ends });
            }
            Err(Failed::Broken(why)) => return Err(why),
            Err(failed) if self.closing.is_none() => return Err(failed.into()),
            _ => {}
        }
        if self.closing.is_none() {
            return Ok(Taken::Accepted { ends: false });
        }
        self.cut(self.tokens.len() - 1);
        self.refused = true;
        Ok(Taken::Refused)
    }

    fn knows_end(&self) -> bool {
        self.closing.is_some()
    }

    fn way(&self, limit: usize, tokens: &mut Vec<u32>) {
        let mut left = self.closing.as_ref().map(Way::left).unwrap_or_default();
        for _ in 0..limit {
            if left.is_empty() {
                return;
            }
            let (token, len) = self.grammar.spelling.first_token(left);
            tokens.push(token);
            left = &left[len..];
        }
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), ConstraintBroken> {
        (self.mask, self.refused) = (None, false);
        let keep = self.tokens.len().checked_sub(tokens);
        let keep = keep.ok_or_else(|| ConstraintBroken("rewound further than it went".into()))?;
        self.cut(keep);
        Ok(())
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        self.forget_parser();
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}
