//! Stop strings in decoded text, across token borders.
//!
//! An Aho-Corasick automaton over bytes: the node after a text spells the longest suffix that is a
//! prefix of a stop string, which is exactly the text that must be held back. A state is therefore
//! one node number, and a rewind is free. The match that completes first wins; of matches that
//! complete together, the longest. The result does not depend on where the text is cut.

use std::sync::Arc;

/// Most stop strings of one request.
pub const MAX_STOP_STRINGS: usize = 64;
/// Most bytes of all stop strings of one request together.
pub const MAX_STOP_BYTES: usize = 8192;

/// A list of stop strings that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// Too many strings.
    #[error("stop: {given} strings, limit {MAX_STOP_STRINGS}")]
    TooMany {
        /// Strings in the list.
        given: usize,
    },
    /// Too many bytes.
    #[error("stop: {given} bytes in all, limit {MAX_STOP_BYTES}")]
    TooLong {
        /// Bytes of all strings together.
        given: usize,
    },
    /// An empty string would stop before the first token.
    #[error("stop: string {index} is empty")]
    Empty {
        /// Its index in the list.
        index: usize,
    },
}

/// How matches are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopOptions {
    /// Keep the stop string at the end of the text (`include_stop_str_in_output`).
    pub include_stop: bool,
    /// Matches completed by one of the first `min_tokens` tokens are ignored.
    pub min_tokens: u32,
}

/// A stop string that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Index of the stop string in the request's list.
    pub index: usize,
    /// Tokens of the reply up to and including the one that completed the match.
    pub num_tokens: usize,
}

/// Finds stop strings in one reply's text.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    automaton: Arc<Automaton>,
    options: StopOptions,
    /// Node of the automaton, whose text is held back.
    node: u32,
    num_tokens: usize,
    matched: Option<StopMatch>,
}

impl StopMatcher {
    /// A matcher at the start of a reply. With no strings, text passes through.
    pub fn new(stops: &[String], options: StopOptions) -> Result<Self, StopError> {
        if stops.len() > MAX_STOP_STRINGS {
            return Err(StopError::TooMany { given: stops.len() });
        }
        let given = stops.iter().map(String::len).sum();
        if given > MAX_STOP_BYTES {
            return Err(StopError::TooLong { given });
        }
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(StopError::Empty { index });
        }
        Ok(Self {
            automaton: Arc::new(Automaton::new(stops)),
            options,
            node: ROOT,
            num_tokens: 0,
            matched: None,
        })
    }

    /// Takes the text of one more token (possibly empty) and appends the text that can be shown to
    /// `out`. After a match no more text is appended, and the match is returned again.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.matched.is_none() {
            self.num_tokens += 1;
            self.advance(text, out);
        }
        self.matched
    }

    /// Ends the reply: takes text that came without a token (the detokenizer's `finish`) and
    /// appends all held-back text.
    pub fn finish(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.matched.is_none() {
            self.advance(text, out);
        }
        if self.matched.is_none() {
            out.push_str(self.automaton.text(self.node));
            self.node = ROOT;
        }
        self.matched
    }

    fn advance(&mut self, text: &str, out: &mut String) {
        let automaton = Arc::clone(&self.automaton);
        if automaton.nodes.len() == 1 {
            return out.push_str(text);
        }
        let counts = self.num_tokens > self.options.min_tokens as usize;
        // Held text precedes `text`; both together are appended up to the part that stays held.
        let held = automaton.text(self.node);
        let mut node = self.node;
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            node = automaton.next(node, byte);
            let Some(index) = automaton.nodes[node as usize].stop.filter(|_| counts) else { continue };
            let mut end = held.len() + at + 1;
            if !self.options.include_stop {
                end -= automaton.stops[index as usize].len();
            }
            give(held, text, end, out);
            self.node = ROOT;
            let num_tokens = self.num_tokens;
            self.matched = Some(StopMatch { index: index as usize, num_tokens });
            return;
        }
        // A complete stop string that did not count is held only as the beginning of a longer one.
        while node != ROOT && automaton.nodes[node as usize].children.is_empty() {
            node = automaton.nodes[node as usize].fail;
        }
        give(held, text, held.len() + text.len() - automaton.nodes[node as usize].depth as usize, out);
        self.node = node;
    }
}

/// Appends the first `end` bytes of `held` followed by `text`.
fn give(held: &str, text: &str, end: usize, out: &mut String) {
    out.push_str(&held[..end.min(held.len())]);
    out.push_str(&text[..end.saturating_sub(held.len())]);
}

const ROOT: u32 = 0;

#[derive(Debug)]
struct Automaton {
    stops: Vec<String>,
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Sorted by byte.
    children: Vec<(u8, u32)>,
    /// Node of the longest proper suffix.
    fail: u32,
    /// Length of the node's text in bytes.
    depth: u32,
    /// A stop string that begins with the node's text.
    of: u32,
    /// The longest stop string that the node's text ends with; of equal strings the first in the
    /// list.
    stop: Option<u32>,
}

impl Automaton {
    fn new(stops: &[String]) -> Self {
        let mut nodes = vec![Node::default()];
        for (index, stop) in stops.iter().enumerate() {
            let mut node = 0;
            for (depth, &byte) in stop.as_bytes().iter().enumerate() {
                node = match nodes[node].children.binary_search_by_key(&byte, |child| child.0) {
                    Ok(at) => nodes[node].children[at].1 as usize,
                    Err(at) => {
                        let new = nodes.len();
                        nodes.push(Node { depth: depth as u32 + 1, of: index as u32, ..Node::default() });
                        nodes[node].children.insert(at, (byte, new as u32));
                        new
                    }
                };
            }
            nodes[node].stop.get_or_insert(index as u32);
        }
        let mut automaton = Self { stops: stops.to_vec(), nodes };
        automaton.link();
        automaton
    }

    /// Sets `fail` and `stop` breadth first, so that shorter texts come before longer ones.
    fn link(&mut self) {
        let mut queue = std::collections::VecDeque::from([ROOT]);
        while let Some(node) = queue.pop_front() {
            for (byte, child) in self.nodes[node as usize].children.clone() {
                let fail = if node == ROOT { ROOT } else { self.next(self.nodes[node as usize].fail, byte) };
                let inherited = self.nodes[fail as usize].stop;
                let child_node = &mut self.nodes[child as usize];
                child_node.fail = fail;
                child_node.stop = child_node.stop.or(inherited);
                queue.push_back(child);
            }
        }
    }

    fn next(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            let children = &self.nodes[node as usize].children;
            match children.binary_search_by_key(&byte, |child| child.0) {
                Ok(at) => return children[at].1,
                Err(_) if node == ROOT => return ROOT,
                Err(_) => node = self.nodes[node as usize].fail,
            }
        }
    }

    fn text(&self, node: u32) -> &str {
        let node = &self.nodes[node as usize];
        // All text pushed so far consists of complete characters, so its suffix does too.
        self.stops.get(node.of as usize).map_or("", |stop| &stop[..node.depth as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|&stop| stop.to_owned()).collect()
    }

    /// The definition: the match with the smallest end, then the longest; found by trying every end.
    fn naive(stops: &[String], tokens: &[&str], options: StopOptions) -> (String, Option<StopMatch>) {
        let mut text = String::new();
        for (number, token) in tokens.iter().enumerate() {
            for c in token.chars() {
                text.push(c);
                if number < options.min_tokens as usize {
                    continue;
                }
                let found = (0..stops.len())
                    .filter(|&index| text.ends_with(&stops[index]))
                    .max_by_key(|&index| (stops[index].len(), std::cmp::Reverse(index)));
                if let Some(index) = found {
                    let keep = text.len() - if options.include_stop { 0 } else { stops[index].len() };
                    return (text[..keep].to_owned(), Some(StopMatch { index, num_tokens: number + 1 }));
                }
            }
        }
        (text, None)
    }

    fn run(matcher: &mut StopMatcher, tokens: &[&str]) -> (String, Option<StopMatch>) {
        let mut out = String::new();
        for token in tokens {
            matcher.push(token, &mut out);
        }
        let found = matcher.finish("", &mut out);
        (out, found)
    }

    fn check(stops: &[&str], tokens: &[&str], expected: &str, found: Option<(usize, usize)>) {
        let found = found.map(|(index, num_tokens)| StopMatch { index, num_tokens });
        let mut matcher = StopMatcher::new(&strings(stops), StopOptions::default()).unwrap();
        assert_eq!(run(&mut matcher, tokens), (expected.to_owned(), found), "{stops:?} in {tokens:?}");
    }

    #[test]
    fn matches() {
        check(&[], &["a", "b"], "ab", None);
        check(&["END"], &["some E", "", "N", "D and more", "x"], "some ", Some((0, 4)));
        check(&["END"], &["EN", "EN", "E"], "ENENE", None);
        check(&["abcd", "bc"], &["xabcd"], "xa", Some((1, 1)));
        check(&["b", "ab"], &["xa", "b"], "x", Some((1, 2)));
        check(&["aab"], &["aa", "aa", "b"], "aa", Some((0, 3)));
        check(&["é!"], &["è", "é", "è!", "é", "!"], "èéè!", Some((0, 5)));
        check(&["a", "a"], &["a"], "", Some((0, 1)));
    }

    #[test]
    fn text_leaves_as_soon_as_it_can() {
        let mut matcher = StopMatcher::new(&strings(&["\n\nQ:"]), StopOptions::default()).unwrap();
        let mut step = |text: &str| {
            let mut out = String::new();
            matcher.push(text, &mut out);
            out
        };
        assert_eq!(step("yes\n"), "yes");
        assert_eq!(step("\n"), "");
        assert_eq!(step("\n"), "\n");
        assert_eq!(step("Q"), "");
        assert_eq!(step("."), "\n\nQ.");
    }

    #[test]
    fn limits() {
        let refused = |stops: &[String]| StopMatcher::new(stops, StopOptions::default()).unwrap_err();
        assert_eq!(refused(&vec!["a".to_owned(); 65]), StopError::TooMany { given: 65 });
        assert_eq!(refused(&["a".repeat(8193)]), StopError::TooLong { given: 8193 });
        assert_eq!(refused(&strings(&["a", ""])), StopError::Empty { index: 1 });
    }

    fn random_text(rng: &mut fastrand::Rng, most: usize) -> String {
        (0..rng.usize(0..=most)).map(|_| ['a', 'b', 'é', '🙂'][rng.usize(0..4)]).collect()
    }

    fn random_case(rng: &mut fastrand::Rng) -> (Vec<String>, StopOptions) {
        let stops = (0..rng.usize(0..4)).map(|_| format!("{}a", random_text(rng, 4))).collect();
        (stops, StopOptions { include_stop: rng.bool(), min_tokens: rng.u32(0..4) })
    }

    fn random_tokens(rng: &mut fastrand::Rng) -> Vec<String> {
        (0..rng.usize(0..12)).map(|_| random_text(rng, 3)).collect()
    }

    #[test]
    fn any_cut_gives_what_the_definition_gives() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..50_000 {
            let (stops, options) = random_case(&mut rng);
            let tokens = random_tokens(&mut rng);
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let mut matcher = StopMatcher::new(&stops, options).unwrap();
            let expected = naive(&stops, &tokens, options);
            assert_eq!(run(&mut matcher, &tokens), expected, "{stops:?} {options:?} in {tokens:?}");
        }
    }
}
