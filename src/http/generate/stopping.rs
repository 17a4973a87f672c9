//! Ends a reply by its text: stop strings and stop patterns in sequence.
//!
//! Patterns read the text first, strings read the text that the patterns release; both hold back
//! text that may still become a match.

use std::sync::Arc;

use perigee_text::{PatternMatcher, StopMatcher, StopOptions, StopPatterns};

/// Stop strings and patterns of one reply.
pub(super) struct Stops {
    strings: StopMatcher,
    patterns: Option<PatternMatcher>,
    /// The strings, then the patterns, as the request gives them.
    names: Vec<String>,
}

impl Stops {
    pub(super) fn new(strings: &[String], patterns: Option<Arc<StopPatterns>>, options: StopOptions) -> Self {
        // The strings were validated with the request; a list that is refused here matches nothing.
        let matcher = StopMatcher::new(strings, options)
            .or_else(|_| StopMatcher::new(&[], options))
            .expect("a matcher without strings");
        let of_patterns = patterns.iter().flat_map(|patterns| patterns.patterns());
        let names = strings.iter().chain(of_patterns).cloned().collect();
        let patterns =
            patterns.map(|patterns| PatternMatcher::new(patterns, options.include_stop, options.min_tokens));
        Self { strings: matcher, patterns, names }
    }

    /// Takes the text of one more token and appends the text that can be shown to `shown`. Returns
    /// the string or pattern that was found.
    pub(super) fn push(&mut self, text: &str, shown: &mut String) -> Option<String> {
        let Some(patterns) = &mut self.patterns else {
            let found = self.strings.push(text, shown)?;
            return self.names.get(found.index).cloned();
        };
        let mut passed = String::new();
        let pattern = patterns.push(text, &mut passed);
        let string = self.strings.push(&passed, shown).map(|found| found.index);
        self.found(string, pattern, shown)
    }

    /// Ends the reply: takes text that came without a token, and releases all held-back text.
    pub(super) fn finish(&mut self, text: &str, shown: &mut String) -> Option<String> {
        let (mut passed, mut pattern) = (text.to_owned(), None);
        if let Some(patterns) = &mut self.patterns {
            passed.clear();
            pattern = patterns.finish(text, &mut passed);
        }
        let string = self.strings.finish(&passed, shown).map(|found| found.index);
        self.found(string, pattern, shown)
    }

    /// A found string precedes a found pattern, because the pattern released the string's text.
    fn found(&mut self, string: Option<usize>, pattern: Option<usize>, shown: &mut String) -> Option<String> {
        let strings = self.names.len() - self.patterns.as_ref().map_or(0, PatternMatcher::num_patterns);
        if string.is_none() && pattern.is_some() {
            self.strings.finish("", shown);
        }
        self.names.get(string.or(pattern.map(|pattern| strings + pattern))?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(strings: &[&str], patterns: &[&str], text: &str) -> (String, Option<String>) {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let patterns = (!patterns.is_empty()).then(|| Arc::new(StopPatterns::new(&owned(patterns)).unwrap()));
        let mut stops = Stops::new(&owned(strings), patterns, StopOptions::default());
        let mut shown = String::new();
        for c in text.chars() {
            if let Some(found) = stops.push(c.encode_utf8(&mut [0; 4]), &mut shown) {
                return (shown, Some(found));
            }
        }
        let found = stops.finish("", &mut shown);
        (shown, found)
    }

    #[test]
    fn strings_and_patterns_end_the_same_text() {
        for (strings, patterns, text, shown, found) in [
            (&["END"][..], &["[0-9]+!"][..], "a ENDb 1!", "a ", Some("END")),
            (&["END"], &["[0-9]+!"], "a 1!END", "a ", Some("[0-9]+!")),
            (&["b1"], &["[0-9]!"], "ab1!", "ab", Some("[0-9]!")),
            (&["b1"], &["[0-9]!"], "ab12", "a", Some("b1")),
            (&["END"], &["[0-9]+!"], "a EN 1", "a EN 1", None),
            (&[], &["x+y"], "axxy", "a", Some("x+y")),
            (&["x"], &[], "axxy", "a", Some("x")),
        ] {
            let expected = (shown.to_owned(), found.map(str::to_owned));
            assert_eq!(run(strings, patterns, text), expected, "{strings:?} {patterns:?} in {text}");
        }
    }
}
