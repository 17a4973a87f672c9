//! The syntax tree of a pattern, and its notation in the grammar engine's dialect.

use std::fmt::Write;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// The empty text.
    Empty,
    /// One character of a set.
    Class(Class),
    Concat(Vec<Node>),
    Alt(Vec<Node>),
    /// From so many to so many times; `None` is without an upper bound.
    Repeat(Box<Node>, u32, Option<u32>),
    /// The beginning of the text.
    Start,
    /// The end of the text.
    End,
    /// Between a character of a word and another, or (`is` false) elsewhere.
    Boundary {
        is: bool,
    },
    /// A condition on the text that follows (`ahead`) or precedes.
    Look {
        ahead: bool,
        negative: bool,
        node: Box<Node>,
    },
}

/// A set of characters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Class {
    pub(super) set: ClassUnicode,
    /// The set in the notation of the engine's dialect where that is shorter than its ranges.
    pub(super) text: Option<Box<str>>,
}

impl Class {
    pub(super) fn of(set: ClassUnicode) -> Self {
        Self { set, text: None }
    }
}

/// The set of the characters in these ranges.
pub(super) fn set(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|&(from, to)| ClassUnicodeRange::new(from, to)))
}

/// The set of all characters.
pub(super) fn all() -> ClassUnicode {
    set(&[('\0', char::MAX)])
}

impl Node {
    pub(super) fn class(set: ClassUnicode) -> Self {
        Self::Class(Class::of(set))
    }

    /// Any text.
    pub(super) fn any_text() -> Self {
        Self::Repeat(Box::new(Self::class(all())), 0, None)
    }

    /// Whether the part is a condition-free expression: what it matches does not depend on the text
    /// around it.
    pub(super) fn is_pure(&self) -> bool {
        match self {
            Self::Empty | Self::Class(_) => true,
            Self::Concat(parts) | Self::Alt(parts) => parts.iter().all(Self::is_pure),
            Self::Repeat(part, ..) => part.is_pure(),
            Self::Start | Self::End | Self::Boundary { .. } | Self::Look { .. } => false,
        }
    }

    /// Number of parts.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Concat(parts) | Self::Alt(parts) => 1 + parts.iter().map(Self::size).sum::<usize>(),
            Self::Repeat(part, ..) | Self::Look { node: part, .. } => 1 + part.size(),
            _ => 1,
        }
    }

    /// The length of every text of a pure part, in characters, if it is the same for all.
    pub(super) fn fixed_length(&self) -> Option<u32> {
        match self {
            Self::Empty => Some(0),
            Self::Class(_) => Some(1),
            Self::Concat(parts) => {
                parts.iter().try_fold(0_u32, |sum, part| sum.checked_add(part.fixed_length()?))
            }
            Self::Alt(parts) => {
                let (first, rest) = parts.split_first()?;
                let length = first.fixed_length()?;
                rest.iter().all(|part| part.fixed_length() == Some(length)).then_some(length)
            }
            Self::Repeat(part, min, Some(max)) if min == max => part.fixed_length()?.checked_mul(*min),
            _ => None,
        }
    }

    /// Two parts one after the other.
    pub(super) fn then(self, next: Self) -> Self {
        let mut parts = match self {
            Self::Empty => return next,
            Self::Concat(parts) => parts,
            part => vec![part],
        };
        let after = match next {
            Self::Empty => Vec::new(),
            Self::Concat(parts) => parts,
            part => vec![part],
        };
        for part in after {
            match (parts.last_mut(), part) {
                (Some(last), part) if last.counts(&part) => {
                    let (_, min, max) = part.counted();
                    let (unit, before_min, before_max) = std::mem::replace(last, Self::Empty).counted();
                    let max = before_max.zip(max).map(|(a, b)| a.saturating_add(b));
                    *last = Self::Repeat(Box::new(unit), before_min.saturating_add(min), max);
                }
                (_, part) => parts.push(part),
            }
        }
        if parts.len() == 1 { parts.remove(0) } else { Self::Concat(parts) }
    }

    /// The part that is repeated, and how often.
    fn counted(self) -> (Self, u32, Option<u32>) {
        match self {
            Self::Repeat(unit, min, max) => (*unit, min, max),
            unit => (unit, 1, Some(1)),
        }
    }

    /// Whether both are repetitions of the same set.
    fn counts(&self, other: &Self) -> bool {
        let unit = |node: &Self| match node {
            Self::Repeat(unit, ..) => matches!(**unit, Self::Class(_)).then(|| (**unit).clone()),
            Self::Class(_) => Some(node.clone()),
            _ => None,
        };
        unit(self).is_some_and(|mine| unit(other) == Some(mine))
    }

    /// One of two parts.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Class(mut a), Self::Class(b)) => {
                a.set.union(&b.set);
                Self::class(a.set)
            }
            (Self::Empty, part) | (part, Self::Empty) => match part {
                Self::Repeat(unit, 0 | 1, max) if max != Some(0) => Self::Repeat(unit, 0, max),
                part => Self::Repeat(Box::new(part), 0, Some(1)),
            },
            (a, b) => Self::factored(a, b),
        }
    }

    /// One of two parts, whose common beginning or end is written once.
    fn factored(a: Self, b: Self) -> Self {
        let list = |node: Self| match node {
            Self::Concat(parts) => parts,
            part => vec![part],
        };
        let (mut a, mut b) = (list(a), list(b));
        let join = |parts: Vec<Self>| parts.into_iter().fold(Self::Empty, Self::then);
        let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        if same > 0 {
            let (a_rest, b_rest) = (a.split_off(same), b.split_off(same));
            return join(a).then(join(a_rest).or(join(b_rest)));
        }
        let same = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
        if same > 0 {
            let end = a.split_off(a.len() - same);
            b.truncate(b.len() - same);
            return join(a).or(join(b)).then(join(end));
        }
        let mut parts = Vec::new();
        for node in [join(a), join(b)] {
            match node {
                Self::Alt(more) => parts.extend(more),
                part => parts.push(part),
            }
        }
        parts.dedup();
        Self::Alt(parts)
    }

    /// Any number of times.
    pub(super) fn star(self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Repeat(unit, 0 | 1, None) => Self::Repeat(unit, 0, None),
            Self::Repeat(unit, 0, Some(1)) => Self::Repeat(unit, 0, None),
            part => Self::Repeat(Box::new(part), 0, None),
        }
    }

    /// A pure part as an expression that matches a whole text, in the engine's dialect.
    pub(super) fn written(&self) -> String {
        let mut text = String::from("^(?:");
        self.write(&mut text);
        text.push_str(")$");
        text
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Empty => {}
            Self::Class(class) => class.write(out),
            Self::Concat(parts) => parts.iter().for_each(|part| match part {
                Self::Alt(_) => part.write_group(out),
                _ => part.write(out),
            }),
            Self::Alt(parts) => {
                for (number, part) in parts.iter().enumerate() {
                    if number > 0 {
                        out.push('|');
                    }
                    part.write(out);
                }
            }
            Self::Repeat(part, min, max) => {
                match **part {
                    Self::Class(_) => part.write(out),
                    _ => part.write_group(out),
                }
                let _ = match (min, max) {
                    (0, None) => out.write_char('*'),
                    (1, None) => out.write_char('+'),
                    (0, Some(1)) => out.write_char('?'),
                    (1, Some(1)) => Ok(()),
                    (min, None) => write!(out, "{{{min},}}"),
                    (min, Some(max)) if min == max => write!(out, "{{{min}}}"),
                    (min, Some(max)) => write!(out, "{{{min},{max}}}"),
                };
            }
            // Only pure parts are written.
            Self::Start | Self::End | Self::Boundary { .. } | Self::Look { .. } => {}
        }
    }

    fn write_group(&self, out: &mut String) {
        out.push_str("(?:");
        self.write(out);
        out.push(')');
    }
}

impl Class {
    fn write(&self, out: &mut String) {
        if let Some(text) = &self.text {
            return out.push_str(text);
        }
        let ranges = self.set.ranges();
        match ranges {
            [one] if one.start() == one.end() => return write_char(one.start(), out),
            [one] if one.start() == '\0' && one.end() == char::MAX => return out.push_str("(?s:.)"),
            _ => {}
        }
        // A set is short in one of its two forms.
        let mut others = self.set.clone();
        others.negate();
        let (ranges, open) = match others.ranges() {
            fewer if !fewer.is_empty() && fewer.len() < ranges.len() => (fewer, "[^"),
            _ => (ranges, "["),
        };
        if ranges.is_empty() {
            return out.push_str(r"[^\u{0}-\u{10FFFF}]");
        }
        out.push_str(open);
        for range in ranges {
            write_char(range.start(), out);
            if range.end() > range.start() {
                out.push('-');
                write_char(range.end(), out);
            }
        }
        out.push(']');
    }
}

/// A character that stands for itself, in a class or outside of one.
pub(super) fn write_char(c: char, out: &mut String) {
    if c.is_ascii_alphanumeric() || " _,:;@!%=<>\"'".contains(c) {
        out.push(c);
    } else {
        let _ = write!(out, "\\u{{{:X}}}", u32::from(c));
    }
}
