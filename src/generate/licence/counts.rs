//! What the numbers of a message count: copies, things, the length of a text, or nothing.

use super::numbers::Piece;
use super::words::*;
use crate::guard::Allowance;

/// Words around a number that say what it counts.
const WORDS_BEFORE: usize = 2;
const WORDS_BEHIND: usize = 3;
/// Pieces between two numbers of a product.
const NEAR: usize = 4;
/// A byte is written in at most so many characters, its separator aside.
const CHARACTERS_OF_A_BYTE: u64 = 8;

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Copies of anything.
    Times,
    /// Things that are alike by nature, or a number in a formula.
    Things,
    /// Things of any kind.
    Counted,
    /// The end of a range.
    UpTo,
    /// The length of a text.
    Measure,
}

/// The largest numbers of a message by what they count; 0 = none. A number of rows and one of columns are one of cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) times: Count,
    pub(super) things: Count,
    pub(super) counted: Count,
    /// Ranges included.
    pub(super) up_to: Count,
    /// Copies and ranges alone.
    pub(super) ranges: Count,
    /// Measures included.
    pub(super) measures: Count,
}

/// A number, and what it makes with another one beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) most: u64,
    pub(super) product: u64,
}

/// So many copies and a quarter more, of a phrase that is so many copies itself, in units that hold so many, or so many cells.
pub(super) fn copies(count: Count, phrase: u64, inner: u64, cells: u64) -> Option<Allowance> {
    let alone = (count.most * phrase).div_ceil(inner);
    let most = match count.product > count.most {
        true => count.most.max((count.product * phrase).div_ceil(cells)),
        false => alone,
    };
    (most > 0).then(|| Allowance::Copies((most + most.div_ceil(4)).try_into().unwrap_or(u32::MAX)))
}

impl Count {
    fn raise(&mut self, other: Self) {
        self.most = self.most.max(other.most);
        self.product = self.product.max(other.product);
    }
}

impl Counts {
    pub(super) fn of(pieces: &[Piece]) -> Self {
        let mut counts = Self::default();
        for sentence in pieces.split(|piece| *piece == Piece::End) {
            let numbers = numbers_of(sentence);
            let count = |roles: &[Role]| {
                let mut values: Vec<u64> = numbers
                    .iter()
                    .filter(|(_, role)| roles.contains(role))
                    .map(|(value, _)| *value)
                    .collect();
                values.sort_unstable_by(|a, b| b.cmp(a));
                let most = values.first().copied().unwrap_or(0);
                let product = values.iter().take(2).product::<u64>();
                Count { most, product: if most > 0 { product } else { 0 } }
            };
            use Role::{Counted, Measure, Things, Times, UpTo};
            counts.times.raise(if count(&[Times]).most > 0 {
                count(&[Times, Things])
            } else {
                Count::default()
            });
            counts.things.raise(count(&[Times, Things]));
            counts.counted.raise(count(&[Times, Things, Counted]));
            counts.up_to.raise(count(&[Times, Things, Counted, UpTo]));
            counts.ranges.raise(count(&[Times, UpTo]));
            counts.measures.raise(count(&[Times, Things, Counted, Measure]));
        }
        counts
    }
}

/// The numbers of a sentence that count something.
fn numbers_of(sentence: &[Piece]) -> Vec<(u64, Role)> {
    let mut numbers: Vec<(u64, Role)> = Vec::new();
    for (at, piece) in sentence.iter().enumerate() {
        let Piece::Number(value) = piece else { continue };
        if let Some(role) = role(sentence, at, *value, numbers.last().map(|(_, role)| *role)) {
            let behind = words_behind(sentence, at);
            let bytes = role == Role::Things && behind.iter().any(|word| BYTES.has(word));
            numbers.push((if bytes { value * CHARACTERS_OF_A_BYTE } else { *value }, role));
        }
    }
    numbers
}

/// The largest number that is no year, no price and no share.
pub(super) fn largest(pieces: &[Piece]) -> u64 {
    let counts = |at: usize| {
        let near = [at.checked_sub(1), Some(at + 1)].map(|at| at.and_then(|at| pieces.get(at)));
        !near.into_iter().any(|piece| is_money(piece) || is_share(piece))
    };
    let numbers = pieces.iter().enumerate().filter_map(|(at, piece)| piece.number().filter(|_| counts(at)));
    numbers.filter(|value| !(1500..=2100).contains(value)).max().unwrap_or(0)
}

fn is_money(piece: Option<&Piece>) -> bool {
    matches!(piece, Some(Piece::Mark(mark)) if "$€£¥₹₽".contains(*mark))
}

fn is_share(piece: Option<&Piece>) -> bool {
    matches!(piece, Some(Piece::Mark('%' | '‰' | '％')))
}

/// How often something with a rate happens as long as the message says: once a second, or as many times a minute as its largest number says.
pub(super) fn beats_of(pieces: &[Piece], every_second: bool) -> u64 {
    let numbers =
        || pieces.iter().enumerate().filter_map(|(at, piece)| piece.number().map(|value| (at, value)));
    let seconds = |(at, value): (usize, u64)| {
        let unit = words_behind(pieces, at);
        let unit = unit.first().copied().unwrap_or_default();
        let of = |words: Words, each: u64| words.has(unit).then(|| value.saturating_mul(each));
        of(SECONDS, 1).or_else(|| of(MINUTES, 60)).or_else(|| of(HOURS, 3600)).map(|seconds| (at, seconds))
    };
    let Some((at, lasts)) = numbers().filter_map(seconds).max_by_key(|(_, seconds)| *seconds) else {
        return 0;
    };
    let rate = numbers().filter(|(other, _)| *other != at).map(|(_, value)| value).max().unwrap_or(1);
    let by_rate = (lasts / 60).saturating_mul(rate);
    if every_second { lasts.max(by_rate) } else { by_rate }.min(u64::from(u32::MAX))
}

fn words_behind(sentence: &[Piece], at: usize) -> Vec<&str> {
    let behind = sentence[at + 1..].iter().take_while(|piece| !matches!(piece, Piece::Number(_)));
    behind.filter_map(Piece::word).take(WORDS_BEHIND).collect()
}

/// What the number at `at` counts; `None` if it is a year, a name or a limit.
fn role(sentence: &[Piece], at: usize, value: u64, earlier: Option<Role>) -> Option<Role> {
    let seen = |piece: &&Piece| **piece != Piece::Gap;
    let (before, behind) = (sentence[..at].iter().rev().find(seen), sentence[at + 1..].iter().find(seen));
    let words_before: Vec<&str> = sentence[..at]
        .iter()
        .rev()
        .take_while(|piece| piece.number().is_none())
        .filter_map(Piece::word)
        .take(WORDS_BEFORE)
        .collect();
    let words = words_behind(sentence, at);
    let next = words.first().copied().unwrap_or_default();
    let joined = matches!(sentence.get(at + 1), Some(Piece::Word(_)));
    if joined && ["st", "nd", "rd", "th", "s"].contains(&next) {
        return None;
    }
    if words_before.iter().any(|word| LIMITS.has(word)) {
        return None;
    }
    let number_behind =
        sentence[at + 1..].iter().filter(seen).nth(1).is_some_and(|p| matches!(p, Piece::Number(_)));
    let times = words.iter().take(2).position(|word| TIMES.has(word));
    if let Some(place) = times {
        let mut rest = sentence[at + 1..].iter().filter(seen).skip_while(|p| p.word() != Some(words[place]));
        let compares = rest.nth(1).and_then(Piece::word).is_some_and(|word| COMPARES.has(word));
        return (!compares).then_some(Role::Times);
    }
    if words_before.first().is_some_and(|word| REPEATS.has(word)) || (next == "x" && joined && !number_behind)
    {
        return Some(Role::Times);
    }
    if is_money(before) || is_money(behind) {
        return None;
    }
    let year = (1500..=2100).contains(&value);
    let by = |piece: Option<&Piece>| {
        piece.is_some_and(|piece| match piece {
            Piece::Word(word) => ["x", "by", "mal", "auf", "por", "par", "на"].contains(&word.as_str()),
            Piece::Mark(mark) => "×*".contains(*mark),
            _ => false,
        })
    };
    let number_before =
        sentence[..at].iter().rev().filter(seen).nth(1).is_some_and(|p| matches!(p, Piece::Number(_)));
    if (by(behind) && number_behind) || (by(before) && number_before) {
        return Some(Role::Things);
    }
    // "40 columns × 36 rows"
    let crosses = |near: &[&Piece]| {
        let cross = near.iter().position(|p| matches!(p, Piece::Mark('×') | Piece::Number(_)));
        cross.is_some_and(|at| {
            *near[at] == Piece::Mark('×') && near[at..].iter().any(|p| p.number().is_some())
        })
    };
    let near_behind: Vec<&Piece> = sentence[at + 1..].iter().filter(seen).take(NEAR).collect();
    let near_before: Vec<&Piece> = sentence[..at].iter().rev().filter(seen).take(NEAR).collect();
    if crosses(&near_behind) || crosses(&near_before) {
        return Some(Role::Things);
    }
    // "a hundred O's"
    let letters = is_letter(behind) && words.get(1) == Some(&"s");
    if letters || words.iter().any(|word| THINGS.has(word)) {
        return Some(Role::Things);
    }
    let inside = matches!((before, behind), (Some(Piece::Mark(';')), Some(Piece::Mark(']' | ')'))));
    // "(62, likes fishing)" counts nothing, "(25, 40)" does.
    let remark = behind == Some(&Piece::Mark(',')) && !number_behind;
    let marked = |marks: &str| matches!(before, Some(Piece::Mark(mark)) if marks.contains(*mark)) && !remark;
    let option =
        sentence[..at].iter().rev().filter(seen).nth(1) == Some(&Piece::Mark('-')) && is_letter(before);
    // "300w20b", but not "34f".
    let coded = |at: usize| matches!(sentence.get(at), Some(Piece::Number(_)));
    let letter = joined && is_letter(behind) && (coded(at + 2) || (at >= 2 && coded(at - 2)));
    if !year
        && (inside
            || marked("*(=[×")
            || option
            || letter
            || (marked(",") && earlier == Some(Role::Things) && number_before))
    {
        return Some(Role::Things);
    }
    // "500 words", "20 short sentences", but not "1400 as sentences".
    let measured = words.iter().take(2).position(|word| MEASURES.has(word));
    if measured.is_some_and(|place| place == 0 || !NO_THINGS.has(next)) {
        return Some(Role::Measure);
    }
    let last = words_before.first().copied().unwrap_or_default();
    if UP_TO.has(last) && !year {
        return Some(Role::UpTo);
    }
    if words_before.iter().any(|word| TOPICS.has(word)) {
        return None;
    }
    let of_them =
        next == "of" && words.get(1).is_some_and(|word| ["them", "these", "those", "it"].contains(word));
    let thing = matches!(behind, Some(Piece::Word(_))) && (of_them || !NO_THINGS.has(next));
    (thing || (SIZED.has(last) && !year)).then_some(Role::Counted)
}

fn is_letter(piece: Option<&Piece>) -> bool {
    matches!(piece, Some(Piece::Word(word)) if word.chars().count() == 1 && word.is_ascii())
}

#[cfg(test)]
mod tests {
    use super::super::numbers::read;
    use super::*;

    #[test]
    fn what_numbers_count() {
        use Role::*;
        for (text, expected) in [
            ("write it 500 times", vec![(500, Times)]),
            ("make 300 short lines of it", vec![(300, Things)]),
            ("a 64x32 grid, 20 by 30", vec![(64, Things), (32, Things), (20, Things), (30, Things)]),
            ("print('ha' * 300)", vec![(300, Things)]),
            ("np.zeros((25, 40))", vec![(25, Things), (40, Things)]),
            ("head -n 200, decode 300w20b", vec![(200, Things), (300, Things), (20, Things)]),
            ("3000 zero bytes", vec![(24_000, Things)]),
            ("a plan with 60 tasks, a tail of 25", vec![(60, Counted), (25, Counted)]),
            ("count from 1 to 500", vec![(500, UpTo)]),
            ("an essay of 500 words in 20 short sentences", vec![(500, Measure), (20, Measure)]),
            ("写五十条测试数据，200字", vec![(50, Things), (200, Measure)]),
            ("in 1984, the 300 spartans, the 20th time, 100 times better", vec![]),
            ("at most 200 lines, boeing 747", vec![]),
        ] {
            assert_eq!(numbers_of(&read(text)), expected, "{text}");
        }
    }
}
