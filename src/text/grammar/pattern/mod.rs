//! Patterns of JSON Schema in the dialect of the grammar engine.
//!
//! A pattern is read as ECMA 262 and written again, part by part, so nothing depends on what the two
//! dialects have in common. The engine knows no conditions (look-around, word boundaries, anchors
//! inside): a pattern with some becomes several expressions that all must match, or the expression of
//! an automaton (`terms.rs`, `automaton.rs`). All work is bounded, and what would take more is
//! refused.

mod automaton;
mod ecma;
mod node;
mod terms;

use automaton::Automaton;
use node::Node;
use terms::{Id, Terms};

/// Steps of the work on the patterns of a request, some tenths of a microsecond each.
pub(super) const MAX_STEPS: usize = 400_000;
/// Most expressions of one pattern.
const MAX_EXPRESSIONS: usize = 32;

/// The reason why a pattern cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(String);

impl Refusal {
    fn syntax(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    fn unsupported(what: impl Into<String>) -> Self {
        Self(format!("{} cannot be enforced", what.into()))
    }

    fn too_large() -> Self {
        Self(
            "its conditions (look-around, `\\b`) and Unicode classes take too much work; make it simpler"
                .into(),
        )
    }
}

/// Counts steps of the work on patterns.
fn spend(steps: &mut usize, count: usize) -> Result<(), Refusal> {
    let left = steps.checked_sub(count);
    *steps = left.unwrap_or(0);
    left.map(|_| ()).ok_or_else(Refusal::too_large)
}

/// A pattern that may match anywhere in a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pattern(Node);

impl Pattern {
    /// Reads a pattern of ECMA 262.
    pub(super) fn read(pattern: &str, steps: &mut usize) -> Result<Self, Refusal> {
        ecma::parse(pattern, steps).map(Self)
    }

    /// The pattern of a text of `min` to `max` characters.
    pub(super) fn of_length(min: u32, max: Option<u32>) -> Self {
        let any = Node::Repeat(Box::new(Node::class(node::all())), min, max);
        Self(Node::Concat(vec![Node::Start, any, Node::End]))
    }

    /// The pattern of these texts.
    pub(super) fn of_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let text = |text: &str| {
            let mut parts = vec![Node::Start];
            parts.extend(text.chars().map(|c| Node::class(node::set(&[(c, c)]))));
            parts.push(Node::End);
            Node::Concat(parts)
        };
        Self(Node::Alt(texts.into_iter().map(text).collect()))
    }

    /// Expressions in the engine's dialect, all of which must match. They are anchored at both ends.
    pub(super) fn expressions(&self, steps: &mut usize) -> Result<Vec<String>, Refusal> {
        let mut expressions = Vec::new();
        self.0.expressions(steps, &mut expressions)?;
        expressions.dedup();
        if expressions.len() > MAX_EXPRESSIONS {
            return Err(Refusal(format!("it has more than {MAX_EXPRESSIONS} conditions")));
        }
        Ok(expressions)
    }
}

/// Texts that match all of some patterns and none of others.
#[derive(Debug, Clone, Default)]
pub(super) struct Texts {
    pub(super) all: Vec<Pattern>,
    pub(super) none: Vec<Pattern>,
}

impl Texts {
    fn automaton(&self, steps: &mut usize) -> Result<Automaton, Refusal> {
        let mut terms = Terms::new(steps);
        let mut parts: Vec<Id> = Vec::new();
        for pattern in &self.all {
            parts.push(terms.pattern(&pattern.0)?);
        }
        for pattern in &self.none {
            let pattern = terms.pattern(&pattern.0)?;
            parts.push(terms.not(pattern));
        }
        let language = terms.and(parts);
        Automaton::of(&mut terms, language)
    }

    /// One expression, anchored at both ends; `None` where there is no such text.
    pub(super) fn expression(&self, steps: &mut usize) -> Result<Option<String>, Refusal> {
        if let ([one], []) = (&self.all[..], &self.none[..])
            && let Some(whole) = one.0.whole()
        {
            return Ok(Some(whole.written()));
        }
        Ok(self.automaton(steps)?.expression(steps)?.map(|node| node.written()))
    }

    /// Whether there is no such text.
    pub(super) fn is_empty(&self, steps: &mut usize) -> Result<bool, Refusal> {
        self.automaton(steps).map(|automaton| automaton.is_empty())
    }

    /// Whether each of these texts is one.
    pub(super) fn accept<'a>(
        &self,
        texts: impl IntoIterator<Item = &'a str>,
        steps: &mut usize,
    ) -> Result<Vec<bool>, Refusal> {
        let automaton = self.automaton(steps)?;
        let texts: Vec<&str> = texts.into_iter().collect();
        spend(steps, texts.iter().map(|text| text.len()).sum())?;
        Ok(texts.into_iter().map(|text| automaton.accepts(text)).collect())
    }
}

impl Node {
    fn expressions(&self, steps: &mut usize, out: &mut Vec<String>) -> Result<(), Refusal> {
        if let Some(whole) = self.whole() {
            out.push(whole.written());
            return Ok(());
        }
        if let Some(split) = Split::of(self) {
            for part in &split.must {
                part.expressions(steps, out)?;
            }
            for part in split.must_not {
                let texts = Texts { all: Vec::new(), none: vec![Pattern(part)] };
                out.push(written(texts.automaton(steps)?.expression(steps)?));
            }
            return Ok(());
        }
        let texts = Texts { all: vec![Pattern(self.clone())], none: Vec::new() };
        let found = texts.automaton(steps).and_then(|automaton| automaton.expression(steps));
        match found {
            Ok(found) => out.push(written(found)),
            // Conditions in front that may hold from any place on: asked at the beginning, where
            // they leave fewer texts.
            Err(_) if self.begins_with_look() => {
                Self::Start.then(self.clone()).expressions(steps, out)?;
            }
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    fn begins_with_look(&self) -> bool {
        match self {
            Self::Look { ahead, .. } => *ahead,
            Self::Concat(parts) => parts.first().is_some_and(Self::begins_with_look),
            _ => false,
        }
    }

    /// The pure expression of the texts in which the pattern is found, if its only conditions are
    /// anchors at its ends.
    fn whole(&self) -> Option<Self> {
        Ends { begin_open: true, end_open: true }.whole(self, &mut { MAX_DISTRIBUTED })
    }
}

fn written(expression: Option<Node>) -> String {
    expression.unwrap_or(Node::class(node::set(&[]))).written()
}

/// Whether text may come before and after what a pattern matches.
#[derive(Clone, Copy)]
struct Ends {
    begin_open: bool,
    end_open: bool,
}

/// Most parts that joining alternatives with what stands beside them may write.
const MAX_DISTRIBUTED: usize = 4000;

impl Ends {
    fn whole(mut self, node: &Node, room: &mut usize) -> Option<Node> {
        if let Node::Alt(parts) = node
            && !node.is_pure()
        {
            let parts: Option<Vec<Node>> = parts.iter().map(|part| self.whole(part, room)).collect();
            return parts.map(Node::Alt);
        }
        let mut parts = match node {
            Node::Concat(parts) => &parts[..],
            node => std::slice::from_ref(node),
        };
        while let [Node::Start, rest @ ..] = parts {
            (parts, self.begin_open) = (rest, false);
        }
        while let [rest @ .., Node::End] = parts {
            (parts, self.end_open) = (rest, false);
        }
        if parts.iter().all(Node::is_pure) {
            let any = |open: bool| if open { Node::any_text() } else { Node::Empty };
            let inner = parts.iter().cloned().fold(any(self.begin_open), Node::then);
            return Some(inner.then(any(self.end_open)));
        }
        self.distributed(parts, room)
    }

    /// Alternatives with anchors in them, at one of the ends.
    fn distributed(self, parts: &[Node], room: &mut usize) -> Option<Node> {
        let size: usize = parts.iter().map(Node::size).sum();
        let mut alternatives = Vec::new();
        match parts {
            [one] => return matches!(one, Node::Alt(_)).then(|| self.whole(one, room))?,
            [Node::Alt(first), rest @ ..] if !parts[0].is_pure() => {
                for part in first {
                    *room = room.checked_sub(size)?;
                    let whole = rest.iter().cloned().fold(part.clone(), Node::then);
                    alternatives.push(self.whole(&whole, room)?);
                }
            }
            [rest @ .., Node::Alt(last)] if !parts[parts.len() - 1].is_pure() => {
                for part in last {
                    *room = room.checked_sub(size)?;
                    let before = rest.iter().cloned().fold(Node::Empty, Node::then);
                    alternatives.push(self.whole(&before.then(part.clone()), room)?);
                }
            }
            _ => return None,
        }
        Some(Node::Alt(alternatives))
    }
}

/// A pattern as patterns that must match and must not.
struct Split {
    must: Vec<Node>,
    must_not: Vec<Node>,
}

impl Split {
    /// Takes the conditions out of a pattern that stand at a fixed distance from the beginning of the
    /// text, and the look-behinds at its end. `None` where there are none.
    fn of(node: &Node) -> Option<Self> {
        let Node::Concat(parts) = node else { return None };
        if parts.first() != Some(&Node::Start) {
            return None;
        }
        let mut split = Self { must: Vec::new(), must_not: Vec::new() };
        let mut rest = vec![Node::Start];
        let mut distance = Some(0_u32);
        for part in parts {
            match (part, distance) {
                (Node::Start, Some(0)) => {}
                (Node::Look { ahead: true, negative, node }, Some(distance)) => {
                    let any = Node::class(node::all());
                    let any = match distance {
                        0 => Node::Empty,
                        distance => Node::Repeat(Box::new(any), distance, Some(distance)),
                    };
                    split.add(*negative, Node::Start.then(any).then((**node).clone()));
                }
                (part, before) => {
                    distance = before.zip(part.fixed_length()).map(|(a, b)| a.saturating_add(b));
                    rest.push(part.clone());
                }
            }
        }
        let ends = rest.iter().rev().take_while(|part| **part == Node::End).count();
        if ends > 0 {
            rest.truncate(rest.len() - ends);
            while let Some(Node::Look { ahead: false, negative, node }) = rest.last() {
                split.add(*negative, (**node).clone().then(Node::End));
                rest.pop();
            }
            rest.push(Node::End);
        }
        if split.must.is_empty() && split.must_not.is_empty() {
            return None;
        }
        split.must.push(Node::Concat(rest));
        Some(split)
    }

    fn add(&mut self, negative: bool, node: Node) {
        if negative { self.must_not.push(node) } else { self.must.push(node) }
    }
}

#[cfg(test)]
mod tests {
    use derivre::{RegexAst, RegexBuilder};

    use super::*;

    fn expressions(pattern: &str) -> Result<Vec<String>, Refusal> {
        let steps = &mut { MAX_STEPS };
        Pattern::read(pattern, steps)?.expressions(steps)
    }

    /// The engine's matcher for all expressions of a pattern.
    fn engine(pattern: &str) -> derivre::Regex {
        let expressions = expressions(pattern);
        let expressions = expressions.unwrap_or_else(|why| panic!("{pattern}: {why}"));
        let mut builder = RegexBuilder::new();
        let all = expressions.into_iter().map(RegexAst::SearchRegex).collect();
        let all = builder.mk(&RegexAst::And(all)).unwrap_or_else(|why| panic!("{pattern}: {why}"));
        builder.to_regex_limited(all, 1_000_000).unwrap_or_else(|why| panic!("{pattern}: {why}"))
    }

    fn check(pattern: &str, found: &[&str], not_found: &[&str]) {
        let mut engine = engine(pattern);
        for (texts, wanted) in [(found, true), (not_found, false)] {
            for text in texts {
                assert_eq!(engine.is_match(text), wanted, "{pattern}: {text:?}");
            }
        }
    }

    #[test]
    fn classes_and_escapes_are_those_of_ecma_262() {
        check("^[[a-c]]$", &["a]", "[]"], &["a", "["]);
        check(r"^[^[\]]{1,4}$", &["ab", "^"], &["[", "a]"]);
        check("^[a&&b]$", &["&", "a"], &["&&"]);
        check("^[+--b~~]$", &["-", ",", "~"], &["c"]);
        check("[]", &[], &["", "a"]);
        check("^[^]$", &["a", "\n"], &["", "ab"]);
        check(r"^[\w-.]+$", &["a-.", "_"], &["é", ","]);
        check(r"^[\b]$", &["\u{8}"], &["b"]);
        check("^{[a-z]{2}}$", &["{ab}"], &["ab"]);
        check("^x{a$", &["x{a"], &["x"]);
        check("^a]}$", &["a]}"], &["a"]);
        check(r"^\<\-\_\/\@\#$", &["<-_/@#"], &["\\<"]);
        check(r"^\x41\u0042\u{43}\cA\0$", &["ABC\u{1}\0"], &["ABC"]);
        check(r"^\ud83d\ude00[\u{1F600}-\u{1F602}]$", &["😀😁"], &["😀"]);
        check(r"^[^\uD800-\uDFFF]+$", &["a😀", "-"], &[""]);
        check(r"^\d\D\w\W$", &["1a_é"], &["\u{661}a_!"]);
        check(r"^\s+$", &["\u{feff}\u{a0}\u{2028}\t\u{b} "], &["\u{85}", "a"]);
        check("^.$", &["a", "\u{85}"], &["\n", "\r", "\u{2028}"]);
        check(r"^\p{Lu}\P{L}[\p{Script=Greek}\d]$", &["ÄΩ".replace('Ω', "1α").as_str()], &["a1α"]);
        check(r"^(?<year>\d{4})-(?P<month>\d\d)$", &["2024-01"], &["2024"]);
        check(r"^a+?b*?c??$", &["aab", "ac"], &["b"]);
        check("(?i)^straße$", &["STRAßE"], &["strasse"]);
        check("^(?i:a)b$", &["Ab"], &["AB"]);
        check(r"^(?:\r\n|[^\n])*$", &["a\r\n"], &["\n"]);
    }

    #[test]
    fn anchors_stand_anywhere() {
        check("a|b", &["xay", "b"], &["c", ""]);
        check("^a|b$", &["ac", "cb"], &["ca", "bc"]);
        check("(^a|b)c", &["ac", "xbc"], &["xac"]);
        check("a(b|c$)", &["xabx", "ac"], &["acx"]);
        check("(^|,)a($|,)", &["a", "x,a,y"], &["xa"]);
        check("a*^b", &["b"], &["ab", "xb"]);
        check("a$b", &[], &["ab", "a"]);
        check("^$", &[""], &["a"]);
        check("(?:^a)+b", &["ab"], &["aab", "xab"]);
        check("(?m:^b$)", &["b", "a\nb"], &["ab"]);
        check(r"\bcat\b", &["cat", "a cat."], &["cats", "_cat"]);
        check(r"cat\B", &["cats"], &["cat", "cat "]);
    }

    #[test]
    fn look_around_is_enforced() {
        check("^(?=.*[A-Z]).{3,8}$", &["abC"], &["abc", "AB"]);
        check(r"^(?=.*[a-z])(?=.*\d)(?!.*\s).{4,}$", &["abc1"], &["abcd", "a b1c"]);
        check("(?=.*[a-z])(?=.*[0-9]).{8,}", &["abcdefg1"], &["abcdefgh", "a1"]);
        check(r"^(?!\.)(?!.*\.\.)[a-z.]+@x$", &["a.b@x"], &[".a@x", "a..b@x"]);
        check(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", &["1.5", "+0", ".5"], &["", "+", ".", "a"]);
        check(r"^(?!0{3})\d{3}-(?!00)\d{2}$", &["123-45"], &["000-45", "123-00"]);
        check("^(?!-)[a-z-]{1,63}(?<!-)$", &["a-b"], &["-a", "a-"]);
        check("^(?:(?!--)[a-z-])+$", &["a-b-"], &["a--b"]);
        check("^(?:(?!foo).)*$", &["fo", ""], &["a foo"]);
        check("^(?!(?:con|aux)$)[a-z]+$", &["cons", "au"], &["con", "aux"]);
        check("(?<=foo)bar", &["foobar"], &["bar", "fobar"]);
        check("(?<!foo)bar", &["bar", "foobarbar"], &["foobar"]);
        check("^(?<=^a|^)b", &["b"], &["ab"]);
        check("(?!)", &[], &["", "a"]);
        check("^(?=a(?!b)).c?$", &["ac", "a"], &["bc"]);
        check(r"^(?:(?:\d{1,3})(?:\.(?!$)|$)){4}$", &["1.2.3.4"], &["1.2.3.", "1.2.3"]);
    }

    #[test]
    fn what_has_no_language_is_refused_by_name() {
        for (pattern, part) in [
            (r"^(a)\1$", "back-reference"),
            (r"(?<n>a)\k<n>", "back-reference"),
            (r"\Z", r"`\Z`"),
            (r"[\a]", r"`\a`"),
            ("(?>a)", "(?>"),
            ("a++", "repeated"),
            ("a{2}{3}", "repeated"),
            ("a{,3}", "{,n}"),
            ("a{3,2}", "out of order"),
            ("[z-a]", "out of order"),
            ("*a", "nothing to repeat"),
            ("{2}", "nothing to repeat"),
            ("(a", "no `)`"),
            ("a)", "no `(`"),
            ("[a", "no `]`"),
            ("a\\", "ends"),
            (r"\p{No_such}", "no property"),
            (r"\u{110000}", "code point"),
            ("a{100001}", "100000"),
            ("(?<=(?=a)b)c", "look-behind"),
            (&r"\p{L}".repeat(5000), "too much work"),
            (&"a".repeat(300_000), "longer than"),
            (&"(".repeat(200), "nested"),
            (r"^(?:(?!a)[a-z]{100}){60}\b.{90}\bx", "too much work"),
        ] {
            let refused = expressions(pattern);
            let why = refused.expect_err(pattern).to_string();
            assert!(why.contains(part), "{pattern}: {why}");
        }
    }

    /// The expressions that are written, and the automaton, are two ways to the same texts.
    #[test]
    fn expressions_and_automata_agree() {
        let mut rng = fastrand::Rng::with_seed(41);
        let pieces = [
            "a", "b", "[ab]", "[^a]", "(?:a|bc)", "a*", "(?:ab)+", "b{1,2}", "(?=a)", "(?!ab)", "(?=.*b)",
            "(?<!a)", r"\b", "^", "$", "|",
        ];
        let texts: Vec<String> = (0..120)
            .map(|_| (0..rng.usize(0..6)).map(|_| *rng.choice(&['a', 'b', 'c', ' ']).unwrap()).collect())
            .collect();
        let mut automata = 0;
        for _ in 0..400 {
            let pattern: String = (0..rng.usize(1..6)).map(|_| *rng.choice(&pieces[..]).unwrap()).collect();
            let read =
                Pattern::read(&pattern, &mut { MAX_STEPS }).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            let texts_of = Texts { all: vec![read], none: Vec::new() };
            let Ok(accepted) = texts_of.accept(texts.iter().map(String::as_str), &mut { MAX_STEPS }) else {
                continue;
            };
            automata += 1;
            let mut engine = engine(&pattern);
            for (text, accepted) in texts.iter().zip(accepted) {
                assert_eq!(engine.is_match(text), accepted, "{pattern}: {text:?}");
            }
        }
        assert!(automata > 300, "{automata}");
    }

    #[test]
    fn languages_are_joined_and_compared() {
        let read = |pattern: &str| Pattern::read(pattern, &mut { MAX_STEPS }).unwrap();
        let steps = &mut { MAX_STEPS };
        let both = |a: &str, b: &str| Texts { all: vec![read(a), read(b)], none: Vec::new() };
        assert!(both("^a", "^b").is_empty(steps).unwrap());
        assert!(!both("a", "b").is_empty(steps).unwrap());
        assert_eq!(both("^a$", "b").expression(steps), Ok(None));
        let texts =
            Texts { all: vec![Pattern::of_length(1, Some(2))], none: vec![Pattern::of_texts(["a", "bé"])] };
        assert_eq!(
            texts.accept(["a", "bé", "é", "ab", "", "abc"], steps),
            Ok(vec![false, false, true, true, false, false])
        );
        let before = *steps;
        read("^(?!.*a)b").expressions(steps).unwrap();
        assert!(*steps < before, "work is counted");
        assert!(read("^(?!.*a)b").expressions(&mut 3).is_err());
    }
}
