//! Reads patterns of ECMA 262 in Unicode mode, with the leniency of its Annex B that the patterns of
//! real schemas need: characters that are escaped without need, braces and brackets alone.
//!
//! Of other dialects, the flags in front (`(?i)`) and the named groups of Python are read as well:
//! ECMA 262 has no other meaning for them. What it has a meaning for is never read in another one.

use std::str::FromStr;

use regex_syntax::hir::{self, ClassUnicode, ClassUnicodeRange, HirKind};

use super::Refusal;
use super::node::{Class, Node, all, set, write_char};

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 100;
/// Longest pattern, bytes.
const MAX_BYTES: usize = 256 * 1024;
/// Steps that reading one Unicode property takes.
const PROPERTY_STEPS: usize = 100;
/// Largest count of a repetition.
const MAX_COUNT: u32 = 100_000;

/// The syntax tree of a pattern.
///
/// Errors: what ECMA 262 refuses, back-references, and letters behind a backslash that have no
/// meaning.
pub(super) fn parse(pattern: &str, steps: &mut usize) -> Result<Node, Refusal> {
    if pattern.len() > MAX_BYTES {
        return Err(Refusal::syntax(format!("it is longer than {MAX_BYTES} bytes")));
    }
    let mut reader = Reader { chars: pattern.chars().collect(), at: 0, flags: Flags::default(), steps };
    reader.flags_in_front()?;
    let node = reader.alternatives(0)?;
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(Refusal::syntax("a `)` has no `(`")),
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    ignore_case: bool,
    multi_line: bool,
    dot_all: bool,
}

struct Reader<'a> {
    chars: Vec<char>,
    at: usize,
    flags: Flags,
    steps: &'a mut usize,
}

/// An item of a class: a code point, or a set with its notation in the engine's dialect. The half of
/// a surrogate pair is a code point, but no character: no text has one.
enum Item {
    Point(u32),
    Set(ClassUnicode, Option<String>),
}

impl From<char> for Item {
    fn from(c: char) -> Self {
        Self::Point(c.into())
    }
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let length = text.chars().count();
        let found = self
            .chars
            .get(self.at..self.at + length)
            .is_some_and(|next| next.iter().copied().eq(text.chars()));
        if found {
            self.at += length;
        }
        found
    }

    /// `(?i)` before everything else.
    fn flags_in_front(&mut self) -> Result<(), Refusal> {
        let begin = self.at;
        if self.eat("(?") {
            let letters = self.letters_of_flags();
            if !letters.is_empty() && self.eat(")") {
                return self.set_flags(&letters, true);
            }
        }
        self.at = begin;
        Ok(())
    }

    fn letters_of_flags(&mut self) -> Vec<char> {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
            self.at += 1;
        }
        self.chars[begin..self.at].to_vec()
    }

    fn set_flags(&mut self, letters: &[char], on: bool) -> Result<(), Refusal> {
        for letter in letters {
            match letter {
                'i' => self.flags.ignore_case = on,
                'm' => self.flags.multi_line = on,
                's' => self.flags.dot_all = on,
                'u' => {}
                other => return Err(Refusal::syntax(format!("`{other}` is no flag"))),
            }
        }
        Ok(())
    }

    fn alternatives(&mut self, depth: usize) -> Result<Node, Refusal> {
        if depth > MAX_DEPTH {
            return Err(Refusal::syntax(format!("groups are nested more than {MAX_DEPTH} deep")));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.eat("|") {
            alternatives.push(self.sequence(depth)?);
        }
        Ok(if alternatives.len() == 1 { alternatives.remove(0) } else { Node::Alt(alternatives) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, Refusal> {
        let mut parts = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let part = self.atom(depth)?;
            match self.repeated(part)? {
                Node::Empty => {}
                Node::Concat(more) => parts.extend(more),
                part => parts.push(part),
            }
        }
        Ok(match parts.len() {
            0 => Node::Empty,
            1 => parts.remove(0),
            _ => Node::Concat(parts),
        })
    }

    fn repeated(&mut self, part: Node) -> Result<Node, Refusal> {
        let Some((min, max)) = self.count()? else { return Ok(part) };
        // A lazy repetition matches the same texts.
        self.eat("?");
        let again = self.at;
        if self.peek().is_some_and(|c| "*+?".contains(c)) || self.count()?.is_some() {
            self.at = again;
            return Err(Refusal::syntax("a repetition is repeated; a group is needed around it"));
        }
        Ok(match (min, max) {
            (_, Some(0)) => Node::Empty,
            (1, Some(1)) => part,
            _ if part == Node::Empty => part,
            (min, max) => Node::Repeat(Box::new(part), min, max),
        })
    }

    /// A quantifier, if one comes next.
    fn count(&mut self) -> Result<Option<(u32, Option<u32>)>, Refusal> {
        let begin = self.at;
        match self.peek() {
            Some('*') => self.at += 1,
            Some('+') => {
                self.at += 1;
                return Ok(Some((1, None)));
            }
            Some('?') => {
                self.at += 1;
                return Ok(Some((0, Some(1))));
            }
            Some('{') => {
                self.at += 1;
                let min = self.number()?;
                let comma = self.eat(",");
                let max = if comma { self.number()? } else { min };
                if !self.eat("}") || min.is_none() {
                    let is_other = self.chars[self.at - 1] == '}' && comma && max.is_some();
                    self.at = begin;
                    return match is_other {
                        // Other dialects count from 0, and ECMA 262 has text or an error here.
                        true => Err(Refusal::syntax("`{,n}` is no repetition; write `{0,n}`")),
                        false => Ok(None),
                    };
                }
                let min = min.unwrap_or(0);
                if max.is_some_and(|max| max < min) {
                    return Err(Refusal::syntax("the numbers of a repetition are out of order"));
                }
                return Ok(Some((min, max)));
            }
            _ => return Ok(None),
        }
        Ok(Some((0, None)))
    }

    fn number(&mut self) -> Result<Option<u32>, Refusal> {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        if begin == self.at {
            return Ok(None);
        }
        let digits: String = self.chars[begin..self.at].iter().collect();
        let number = u32::from_str(&digits).ok().filter(|&number| number <= MAX_COUNT);
        number.map(Some).ok_or_else(|| Refusal::syntax(format!("a repetition counts beyond {MAX_COUNT}")))
    }

    fn atom(&mut self, depth: usize) -> Result<Node, Refusal> {
        let Some(c) = self.next() else { return Ok(Node::Empty) };
        match c {
            '^' if self.flags.multi_line => Ok(Node::Alt(vec![Node::Start, look(false, false, line_end())])),
            '$' if self.flags.multi_line => Ok(Node::Alt(vec![Node::End, look(true, false, line_end())])),
            '^' => Ok(Node::Start),
            '$' => Ok(Node::End),
            '.' if self.flags.dot_all => Ok(Node::class(all())),
            '.' => Ok(Node::class(negated(line_ends()))),
            '(' => self.group(depth),
            '[' => self.class(),
            '\\' => self.escape(),
            '*' | '+' | '?' => Err(Refusal::syntax(format!("`{c}` has nothing to repeat"))),
            '{' => {
                self.at -= 1;
                if self.count()?.is_some() {
                    return Err(Refusal::syntax("a repetition has nothing to repeat"));
                }
                self.at += 1;
                Ok(self.literal('{'))
            }
            c => Ok(self.literal(c)),
        }
    }

    fn literal(&self, c: char) -> Node {
        self.class_of(set(&[(c, c)]), None)
    }

    fn class_of(&self, mut set: ClassUnicode, text: Option<String>) -> Node {
        if self.flags.ignore_case && set.try_case_fold_simple().is_ok() {
            return Node::class(set);
        }
        Node::Class(Class { set, text: text.map(String::into_boxed_str) })
    }

    fn group(&mut self, depth: usize) -> Result<Node, Refusal> {
        let before = self.flags;
        let mut condition = None;
        if self.eat("?") {
            if self.eat(":") {
            } else if self.eat("=") {
                condition = Some((true, false));
            } else if self.eat("!") {
                condition = Some((true, true));
            } else if self.eat("<=") {
                condition = Some((false, false));
            } else if self.eat("<!") {
                condition = Some((false, true));
            } else if self.eat("<") || self.eat("P<") {
                self.name()?;
            } else {
                self.flags_of_group()?;
            }
        }
        let node = self.alternatives(depth + 1)?;
        if !self.eat(")") {
            return Err(Refusal::syntax("a `(` has no `)`"));
        }
        self.flags = before;
        Ok(match condition {
            None => node,
            Some((ahead, negative)) => look(ahead, negative, node),
        })
    }

    fn name(&mut self) -> Result<(), Refusal> {
        let begin = self.at;
        while let Some(c) = self.next() {
            match c {
                '>' if self.at > begin + 1 => return Ok(()),
                c if c.is_alphanumeric() || c == '_' || c == '$' => {}
                _ => break,
            }
        }
        Err(Refusal::syntax("the name of a group is not complete"))
    }

    /// `i:`, `i-s:` after `(?`.
    fn flags_of_group(&mut self) -> Result<(), Refusal> {
        let on = self.letters_of_flags();
        let off = if self.eat("-") { self.letters_of_flags() } else { Vec::new() };
        if (on.is_empty() && off.is_empty()) || !self.eat(":") {
            let next = self.peek().map_or_else(String::new, String::from);
            let on: String = on.into_iter().collect();
            return Err(Refusal::syntax(format!("`(?{on}{next}` is no group of ECMA 262")));
        }
        self.set_flags(&on, true)?;
        self.set_flags(&off, false)
    }

    /// A class, after its `[`.
    fn class(&mut self) -> Result<Node, Refusal> {
        let negate = self.eat("^");
        let mut whole = ClassUnicode::empty();
        let mut text = String::new();
        let mut named = false;
        loop {
            let item = match self.next() {
                None => return Err(Refusal::syntax("a `[` has no `]`")),
                Some(']') => break,
                Some('\\') => self.escape_in_class()?,
                Some(c) => c.into(),
            };
            let next = self.chars.get(self.at + 1);
            let is_range = self.peek() == Some('-') && next.is_some_and(|&next| next != ']');
            match item {
                Item::Point(from) if is_range => {
                    let begin = self.at;
                    self.at += 1;
                    let to = match self.next() {
                        Some('\\') => self.escape_in_class()?,
                        Some(c) => c.into(),
                        None => return Err(Refusal::syntax("a `[` has no `]`")),
                    };
                    let Item::Point(to) = to else {
                        // A set is no end of a range: the hyphen is one of the characters.
                        self.at = begin + 1;
                        add(&mut whole, &mut text, from, from);
                        add(&mut whole, &mut text, u32::from('-'), u32::from('-'));
                        continue;
                    };
                    if from > to {
                        return Err(Refusal::syntax("a range in a class is out of order"));
                    }
                    add(&mut whole, &mut text, from, to);
                }
                Item::Point(point) => add(&mut whole, &mut text, point, point),
                Item::Set(set, notation) => {
                    named |= notation.is_some();
                    match notation {
                        Some(notation) => text.push_str(&notation),
                        None => set
                            .ranges()
                            .iter()
                            .for_each(|range| write_range(range.start(), range.end(), &mut text)),
                    }
                    whole.union(&set);
                }
            }
        }
        let text = named.then(|| if negate { format!("[^{text}]") } else { format!("[{text}]") });
        if negate && self.flags.ignore_case && whole.try_case_fold_simple().is_err() {
            return Err(Refusal::syntax("a class cannot ignore the case"));
        }
        if negate {
            whole.negate();
            // Folded already.
            return Ok(Node::Class(Class {
                set: whole,
                text: text.filter(|_| !self.flags.ignore_case).map(String::into_boxed_str),
            }));
        }
        Ok(self.class_of(whole, text))
    }

    fn escape(&mut self) -> Result<Node, Refusal> {
        match self.peek() {
            Some('b') => {
                self.at += 1;
                Ok(Node::Boundary { is: true })
            }
            Some('B') => {
                self.at += 1;
                Ok(Node::Boundary { is: false })
            }
            Some(digit @ '1'..='9') => Err(Refusal::unsupported(format!("the back-reference `\\{digit}`"))),
            Some('k') => Err(Refusal::unsupported("a back-reference `\\k`")),
            _ => Ok(match self.escape_of_both()? {
                Item::Point(point) => match char::from_u32(point) {
                    Some(c) => self.literal(c),
                    None => Node::class(ClassUnicode::empty()),
                },
                Item::Set(set, text) => self.class_of(set, text),
            }),
        }
    }

    fn escape_in_class(&mut self) -> Result<Item, Refusal> {
        if self.eat("b") { Ok('\u{8}'.into()) } else { self.escape_of_both() }
    }

    /// An escape that means the same in a class and outside of one.
    fn escape_of_both(&mut self) -> Result<Item, Refusal> {
        let Some(c) = self.next() else { return Err(Refusal::syntax("a `\\` ends the pattern")) };
        let of = |ranges: &[(char, char)]| Ok(Item::Set(set(ranges), None));
        let but = |ranges: &[(char, char)]| Ok(Item::Set(negated(set(ranges)), None));
        match c {
            'd' => of(&DIGITS),
            'D' => but(&DIGITS),
            'w' => of(&WORD),
            'W' => but(&WORD),
            's' => of(&SPACE),
            'S' => but(&SPACE),
            't' => Ok('\t'.into()),
            'n' => Ok('\n'.into()),
            'v' => Ok('\u{b}'.into()),
            'f' => Ok('\u{c}'.into()),
            'r' => Ok('\r'.into()),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => Ok('\0'.into()),
            'c' => match self.next().filter(char::is_ascii_alphabetic) {
                Some(letter) => Ok(Item::Point(u32::from(letter) % 32)),
                None => Err(Refusal::syntax("`\\c` needs a letter")),
            },
            'x' => self
                .hex(2)
                .map(Item::Point)
                .ok_or_else(|| Refusal::syntax("`\\x` needs two hexadecimal digits")),
            'u' => self.unicode(),
            'p' | 'P' => self.property(c == 'P'),
            c if c.is_ascii_alphanumeric() => {
                Err(Refusal::syntax(format!("`\\{c}` is no escape of ECMA 262")))
            }
            c => Ok(c.into()),
        }
    }

    /// So many hexadecimal digits.
    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text: String = self.chars.get(self.at..self.at + digits)?.iter().collect();
        if !text.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        self.at += digits;
        u32::from_str_radix(&text, 16).ok()
    }

    fn unicode(&mut self) -> Result<Item, Refusal> {
        let bad = || Refusal::syntax("`\\u` needs four hexadecimal digits, or a code point in braces");
        if self.eat("{") {
            let begin = self.at;
            while self.peek().is_some_and(|c| c.is_ascii_hexdigit()) {
                self.at += 1;
            }
            let digits: String = self.chars[begin..self.at].iter().collect();
            let point = u32::from_str_radix(&digits, 16).ok().filter(|&point| point <= 0x10_FFFF);
            let point = point.filter(|_| self.eat("}")).ok_or_else(bad)?;
            return Ok(Item::Point(point));
        }
        let first = self.hex(4).ok_or_else(bad)?;
        let begin = self.at;
        if (0xD800..0xDC00).contains(&first)
            && self.eat("\\u")
            && let Some(second) = self.hex(4)
            && (0xDC00..0xE000).contains(&second)
        {
            let point = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
            return Ok(Item::Point(point));
        }
        self.at = begin;
        Ok(Item::Point(first))
    }

    /// `\p{...}`, after the letter.
    fn property(&mut self, negate: bool) -> Result<Item, Refusal> {
        let begin = self.at;
        let end = self.chars[begin..].iter().position(|&c| c == '}').map(|length| begin + length);
        let name: String = match end {
            Some(end) if self.peek() == Some('{') => self.chars[begin + 1..end].iter().collect(),
            _ => return Err(Refusal::syntax("`\\p` needs a property in braces")),
        };
        self.at = begin + name.chars().count() + 2;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '=';
        let letter = if negate { 'P' } else { 'p' };
        let text = format!("\\{letter}{{{name}}}");
        let unknown = || Refusal::syntax(format!("`{text}` is no property that is known"));
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(unknown());
        }
        super::spend(self.steps, PROPERTY_STEPS)?;
        let hir = regex_syntax::parse(&text).map_err(|_| unknown())?;
        match hir.kind() {
            HirKind::Class(hir::Class::Unicode(set)) => Ok(Item::Set(set.clone(), Some(text))),
            _ => Err(unknown()),
        }
    }
}

const DIGITS: [(char, char); 1] = [('0', '9')];
pub(super) const WORD: [(char, char); 4] = [('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')];
/// White space and line ends of ECMA 262.
const SPACE: [(char, char); 10] = [
    ('\t', '\r'),
    (' ', ' '),
    ('\u{a0}', '\u{a0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{2000}', '\u{200a}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{202f}', '\u{202f}'),
    ('\u{205f}', '\u{205f}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{feff}', '\u{feff}'),
];

fn line_ends() -> ClassUnicode {
    set(&[('\n', '\n'), ('\r', '\r'), ('\u{2028}', '\u{2029}')])
}

fn line_end() -> Node {
    Node::class(line_ends())
}

fn negated(mut set: ClassUnicode) -> ClassUnicode {
    set.negate();
    set
}

fn look(ahead: bool, negative: bool, node: Node) -> Node {
    Node::Look { ahead, negative, node: Box::new(node) }
}

/// Adds the characters from one code point to another.
fn add(set: &mut ClassUnicode, text: &mut String, from: u32, to: u32) {
    for (from, to) in [(from, to.min(0xD7FF)), (from.max(0xE000), to)] {
        if from <= to
            && let (Some(from), Some(to)) = (char::from_u32(from), char::from_u32(to))
        {
            set.push(ClassUnicodeRange::new(from, to));
            write_range(from, to, text);
        }
    }
}

fn write_range(from: char, to: char, text: &mut String) {
    write_char(from, text);
    if to > from {
        text.push('-');
        write_char(to, text);
    }
}
