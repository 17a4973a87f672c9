//! Stop patterns in decoded text, across token borders.
//!
//! A simulation of the patterns' automaton (Thompson's construction) that keeps, for every state,
//! the earliest start of a match in that state; of two ways into a state the earlier start is kept,
//! because both continue alike. Text from the earliest start on is held back. The match that
//! completes first wins; of matches that complete together, the one that starts first. The result
//! does not depend on where the text is cut.
//!
//! Work per byte is bounded by the automaton's size; there is no backtracking.

use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;

/// Most patterns of one request.
pub const MAX_STOP_PATTERNS: usize = 32;
/// Most bytes of a pattern.
pub const MAX_STOP_PATTERN_BYTES: usize = 1024;
/// Most bytes of the automaton of all patterns together.
const MAX_AUTOMATON_BYTES: usize = 128 * 1024;
/// Most bytes of text in a match; a longer candidate is dropped.
const MAX_MATCH_BYTES: usize = 4096;

/// Reasons why patterns are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Too many patterns.
    #[error("{given} patterns, limit {MAX_STOP_PATTERNS}")]
    TooMany {
        /// Patterns in the list.
        given: usize,
    },
    /// A pattern is too long.
    #[error("pattern {index} has {given} bytes, limit {MAX_STOP_PATTERN_BYTES}")]
    TooLong {
        /// Its index in the list.
        index: usize,
        /// Bytes of the pattern.
        given: usize,
    },
    /// A pattern that does not parse.
    #[error("pattern {index}: {reason}")]
    Syntax {
        /// Its index in the list.
        index: usize,
        /// The parser's message.
        reason: String,
    },
    /// The automaton of all patterns together is too large.
    #[error("the patterns make an automaton of more than {MAX_AUTOMATON_BYTES} bytes; make them simpler")]
    TooLarge,
    /// `^`, `$`, `\b` and the like: the end of the text is not known while it grows.
    #[error("pattern {index} has an anchor or a word boundary, which are not available")]
    Anchored {
        /// Its index in the list.
        index: usize,
    },
    /// A pattern that matches the empty text would stop before the first token.
    #[error("pattern {index} matches the empty text")]
    Empty {
        /// Its index in the list.
        index: usize,
    },
}

/// Compiled patterns of one request.
#[derive(Debug, Clone)]
pub struct StopPatterns {
    patterns: Vec<String>,
    nfa: NFA,
}

impl StopPatterns {
    /// Compiles patterns in the syntax of the `regex` crate, which has no look-around and no back-references.
    pub fn new(patterns: &[String]) -> Result<Self, PatternError> {
        if patterns.len() > MAX_STOP_PATTERNS {
            return Err(PatternError::TooMany { given: patterns.len() });
        }
        let mut trees = Vec::with_capacity(patterns.len());
        for (index, pattern) in patterns.iter().enumerate() {
            if pattern.len() > MAX_STOP_PATTERN_BYTES {
                return Err(PatternError::TooLong { index, given: pattern.len() });
            }
            let tree = syntax::parse(pattern).map_err(|error| {
                // The last line holds the message; the lines before it mark the position.
                let reason = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
                PatternError::Syntax { index, reason }
            })?;
            if !tree.properties().look_set().is_empty() {
                return Err(PatternError::Anchored { index });
            }
            if tree.properties().minimum_len().is_none_or(|least| least == 0) {
                return Err(PatternError::Empty { index });
            }
            trees.push(tree);
        }
        let config = thompson::Config::new()
            .nfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .which_captures(WhichCaptures::None);
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(&trees);
        Ok(Self { patterns: patterns.to_vec(), nfa: nfa.map_err(|_| PatternError::TooLarge)? })
    }

    /// The patterns as given.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }
}

/// A match that may be in progress.
#[derive(Debug, Clone, Copy)]
struct Thread {
    state: StateID,
    /// Start of the match, in bytes of the text.
    start: usize,
}

/// Finds stop patterns in one reply's text.
#[derive(Debug, Clone)]
pub struct PatternMatcher {
    patterns: std::sync::Arc<StopPatterns>,
    include_stop: bool,
    /// Matches completed by one of the first `min_tokens` tokens are ignored.
    min_tokens: u32,
    num_tokens: u32,
    /// Earliest starts first.
    threads: Vec<Thread>,
    /// Round in which a state was last entered.
    entered: Vec<u32>,
    round: u32,
    /// Held-back text, and the number of bytes before it.
    held: String,
    given: usize,
    matched: Option<usize>,
}

impl PatternMatcher {
    /// A matcher at the start of a reply.
    pub fn new(patterns: std::sync::Arc<StopPatterns>, include_stop: bool, min_tokens: u32) -> Self {
        let entered = vec![0; patterns.nfa.states().len()];
        Self {
            patterns,
            include_stop,
            min_tokens,
            num_tokens: 0,
            threads: Vec::new(),
            entered,
            round: 0,
            held: String::new(),
            given: 0,
            matched: None,
        }
    }

    /// Takes the text of one more token and appends the text that can be shown to `out`. Returns
    /// the pattern that was found; after a match no more text is appended.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        self.num_tokens = self.num_tokens.saturating_add(1);
        self.advance(text, out)
    }

    /// Ends the reply, or this part of it: takes text that came without a token and appends all
    /// held-back text.
    pub fn finish(&mut self, text: &str, out: &mut String) -> Option<usize> {
        let found = self.advance(text, out);
        if found.is_none() {
            self.threads.clear();
            self.give(self.held.len(), out);
        }
        found
    }

    /// Number of compiled patterns.
    pub fn num_patterns(&self) -> usize {
        self.patterns.patterns.len()
    }

    fn advance(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.matched.is_some() {
            return self.matched;
        }
        let counts = self.num_tokens > self.min_tokens;
        let before = self.given + self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let end = before + at + 1;
            if let Some((pattern, start)) = self.step(byte, end).filter(|_| counts) {
                let upto = if self.include_stop { end } else { start };
                self.give(upto - self.given, out);
                self.held.clear();
                self.matched = Some(pattern);
                return self.matched;
            }
        }
        let end = before + text.len();
        self.threads.retain(|thread| end - thread.start <= MAX_MATCH_BYTES);
        let hold_from = self.threads.first().map_or(end, |thread| thread.start);
        self.give(hold_from - self.given, out);
        None
    }

    /// Takes the byte before `end`; returns the pattern and the start of the first match that ends
    /// there.
    fn step(&mut self, byte: u8, end: usize) -> Option<(usize, usize)> {
        let patterns = std::sync::Arc::clone(&self.patterns);
        let nfa = &patterns.nfa;
        let mut threads = std::mem::take(&mut self.threads);
        // A match that begins with this byte has the latest start of all.
        self.round += 1;
        let mut fresh = Vec::new();
        self.enter(nfa, nfa.start_anchored(), end - 1, &mut fresh);
        threads.extend(fresh);
        self.round += 1;
        let (mut next, mut found) = (Vec::with_capacity(threads.len()), None);
        for Thread { state, start } in threads {
            let target = match nfa.state(state) {
                State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
                State::Sparse(sparse) => sparse.matches_byte(byte),
                State::Dense(dense) => dense.matches_byte(byte),
                _ => None,
            };
            if let Some(target) = target
                && let Some(pattern) = self.enter(nfa, target, start, &mut next)
            {
                found = found.or(Some((pattern, start)));
            }
        }
        self.threads = next;
        found
    }

    /// Adds the states that wait for a byte and are reachable from `state` without one; returns a
    /// pattern that is complete.
    fn enter(&mut self, nfa: &NFA, state: StateID, start: usize, threads: &mut Vec<Thread>) -> Option<usize> {
        let (mut open, mut found) = (vec![state], None);
        while let Some(state) = open.pop() {
            if std::mem::replace(&mut self.entered[state.as_usize()], self.round) == self.round {
                continue;
            }
            match nfa.state(state) {
                State::Union { alternates } => open.extend(alternates.iter().rev()),
                State::BinaryUnion { alt1, alt2 } => open.extend([*alt2, *alt1]),
                State::Capture { next, .. } => open.push(*next),
                State::Match { pattern_id } => found = found.or(Some(pattern_id.as_usize())),
                // Anchors and word boundaries were refused when the patterns were compiled.
                State::Look { .. } | State::Fail => {}
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => {
                    threads.push(Thread { state, start });
                }
            }
        }
        found
    }

    /// Appends the first bytes of the held text.
    fn give(&mut self, bytes: usize, out: &mut String) {
        out.extend(self.held.drain(..bytes));
        self.given += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn patterns(list: &[&str]) -> Result<StopPatterns, PatternError> {
        StopPatterns::new(&list.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
    }

    /// The text shown for `pieces`, and the pattern that ended it.
    fn run(list: &[&str], include: bool, pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = PatternMatcher::new(Arc::new(patterns(list).unwrap()), include, 0);
        let mut out = String::new();
        for piece in pieces {
            if let Some(found) = matcher.push(piece, &mut out) {
                return (out, Some(found));
            }
        }
        let found = matcher.finish("", &mut out);
        (out, found)
    }

    #[test]
    fn the_first_match_to_complete_ends_the_text_however_it_is_cut() {
        let shown = |text: &str, found: Option<usize>| (text.to_owned(), found);
        for (list, include, text, expected) in [
            (&["[0-9]+!"][..], false, "ab 12!c", shown("ab ", Some(0))),
            (&["[0-9]+!"], true, "ab 12!c", shown("ab 12!", Some(0))),
            (&["x", "[0-9]"], false, "ab1x", shown("ab", Some(1))),
            (&["a.*b"], false, "1a22b3", shown("1", Some(0))),
            (&["a.*b"], false, "1a22c3", shown("1a22c3", None)),
            (&["ab|b"], false, "xab", shown("x", Some(0))),
            (&["(?i)end"], false, "the END", shown("the ", Some(0))),
            (&["é+ß"], false, "aééßb", shown("a", Some(0))),
            (&[r"\d{2}"], false, "1a2b34", shown("1a2b", Some(0))),
        ] {
            assert_eq!(run(list, include, &[text]), expected, "{list:?} in {text}");
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(list, include, &pieces), expected, "{list:?} in {text}, one by one");
        }
    }

    #[test]
    fn what_may_become_a_match_is_held_back_and_no_more() {
        let mut matcher = PatternMatcher::new(Arc::new(patterns(&["ab+c"]).unwrap()), false, 0);
        let mut shown = |text: &str| {
            let mut out = String::new();
            matcher.push(text, &mut out);
            out
        };
        assert_eq!(shown("xxa"), "xx");
        assert_eq!(shown("bb"), "");
        assert_eq!(shown("d"), "abbd");
        assert_eq!(shown(&"b".repeat(10)), "b".repeat(10));
        assert_eq!(shown("a"), "");
        let long = "b".repeat(2 * MAX_MATCH_BYTES);
        assert_eq!(shown(&long), format!("a{long}"), "too long to be a match");
    }

    #[test]
    fn matches_before_the_least_number_of_tokens_do_not_count() {
        let mut matcher = PatternMatcher::new(Arc::new(patterns(&["a"]).unwrap()), false, 2);
        let mut out = String::new();
        assert_eq!(matcher.push("a", &mut out), None);
        assert_eq!(matcher.push("ba", &mut out), None);
        assert_eq!(matcher.push("ca", &mut out), Some(0));
        assert_eq!(out, "abac");
    }

    #[test]
    fn patterns_that_cannot_be_followed_are_refused() {
        use PatternError::*;
        assert_eq!(patterns(&["a*"]).unwrap_err(), Empty { index: 0 });
        assert_eq!(patterns(&["a", "^b"]).unwrap_err(), Anchored { index: 1 });
        assert_eq!(patterns(&[r"\bb"]).unwrap_err(), Anchored { index: 0 });
        assert!(matches!(patterns(&["("]).unwrap_err(), Syntax { index: 0, .. }));
        assert!(matches!(patterns(&[r"(a)\1"]).unwrap_err(), Syntax { .. }));
        assert!(matches!(patterns(&[r"(?:\w{900}){900}"]).unwrap_err(), TooLarge | Syntax { .. }));
        let long = "a".repeat(MAX_STOP_PATTERN_BYTES + 1);
        assert_eq!(patterns(&[&long]).unwrap_err(), TooLong { index: 0, given: long.len() });
        assert_eq!(patterns(&["a?b"; 33]).unwrap_err(), TooMany { given: 33 });
    }

    /// A pattern with exponential run time in backtracking engines.
    #[test]
    fn no_pattern_is_catastrophic() {
        let text = "a".repeat(20_000);
        assert_eq!(run(&["(a|a)*(a|aa)+b", "(a+)+c"], false, &[&text]), (text.clone(), None));
    }
}
