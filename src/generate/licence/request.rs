//! What one message asks to be repeated: its numbers and what they count, its words for repetition, for pictures, for lists.

use super::numbers::{Piece, read};
use super::shared::{Given, Term, given, parts_of, terms_of};
use super::unit::{Unit, run_of, words_of};
use super::words::*;
use crate::guard::Allowance;

/// Tokens of a repetition that was asked for without a number.
const UNCOUNTED: u32 = 16_384;
/// The same of a sentence that a message gives, if something says that it is wanted more than once.
const GIVEN: u32 = 4096;
/// A number from which on it does.
const SEVERAL: u64 = 6;
/// A unit of a prayer that is no word or line of it.
const VERSE_CHARS: usize = 60;
/// What songs and lists without a number multiply.
const USUAL: u32 = 8;
/// Copies back to back by which a message itself shows a repetition.
const SHOWN_COPIES: usize = 3;
/// Words around a number that say what it counts.
const WORDS_BEFORE: usize = 2;
const WORDS_BEHIND: usize = 3;
/// Longest syllable that is known by being drawn out, and most of them.
const MAX_SYLLABLE: usize = 4;
const MAX_SYLLABLES: usize = 16;
/// Pieces between two numbers of a product.
const NEAR: usize = 4;
/// A byte is written in at most so many characters, its separator aside.
const CHARACTERS_OF_A_BYTE: u64 = 8;
/// Lines of one shape that are a list.
const LEAST_ALIKE_LINES: usize = 3;
/// Longest line that is compared with neighbours it does not equal.
const ALIKE_LINE_WORDS: usize = 16;
/// Longest message whose numbers permit what it does not name: longer ones are rules and material.
const SHORT_MESSAGE_WORDS: usize = 100;

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
struct Counts {
    times: Count,
    things: Count,
    counted: Count,
    /// Ranges included.
    up_to: Count,
    /// Measures included.
    measures: Count,
}

/// A number, and what it makes with another one beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    most: u64,
    product: u64,
}

/// One message, ready for questions.
#[derive(Debug)]
pub(super) struct Message {
    /// Lower case, white space made single blanks, a blank at both ends.
    text: String,
    /// The same without anything but letters and digits.
    words: String,
    terms: Vec<Term>,
    counts: Counts,
    /// Beats of what has a rate and lasts: "60 bpm for 4 minutes"; 0 = nothing does.
    beats: u64,
    /// Consecutive lines of one shape, and their mean length in characters.
    alike_lines: u64,
    line_chars: usize,
    /// A word that it repeats itself, with a blank at both ends.
    shown: Option<String>,
    is_short: bool,
    repeats: bool,
    endless: bool,
    filler: bool,
    alike: bool,
    for_each: bool,
    drawn: bool,
    recorded: bool,
    sung: bool,
    prayed: bool,
    /// It wants what it gives to be explained, corrected, translated.
    explains: bool,
    /// That, or it is a question and no wish.
    asks_about: bool,
    /// The largest of its numbers, whatever it counts; no year, no price.
    largest: u64,
    /// A syllable that it draws out itself ("wkwkwk", "aaaa").
    drawn_out: Vec<String>,
}

impl Message {
    pub(super) fn new(text: &str) -> Self {
        let lower = text.to_lowercase();
        let flat = format!(" {} ", lower.split_whitespace().collect::<Vec<_>>().join(" "));
        let words = words_of(&lower);
        let Lines { alike: alike_lines, mean_chars: line_chars, other_words } = lines_of(&lower);
        let said = Said::new(&words);
        let makes = MAKES.is_in(&said);
        let repeats = REPEATS.is_in(&Said::new(&words.replace(" how many times ", " ")));
        let explains = ASKS_ABOUT.is_in(&said);
        let asks_about = explains || (lower.contains(['?', '？']) && !makes && !BIDS.is_in(&said));
        let repeats = repeats && !explains;
        let pieces = read(&lower);
        Self {
            counts: Counts::of(&pieces),
            beats: match (EVERY_SECOND.is_in(&said), RATES.is_in(&said)) {
                (false, false) => 0,
                (every_second, _) => beats_of(&pieces, every_second),
            },
            terms: terms_of(&lower),
            alike_lines,
            line_chars,
            shown: shown_word(&words),
            is_short: other_words <= SHORT_MESSAGE_WORDS,
            repeats,
            endless: ENDLESS.is_in(&said) && (repeats || SAYS.is_in(&said)),
            filler: FILLER.is_in(&said),
            alike: ALIKE.is_in(&said),
            for_each: FOR_EACH.is_in(&said) && (explains || !asks_about),
            drawn: DRAWN_ALONE.is_in(&said) || (makes && DRAWN.is_in(&said)),
            recorded: makes && RECORDED.is_in(&said),
            prayed: PRAYED.is_in(&said),
            sung: SUNG.is_in(&said) || PRAYED.is_in(&said),
            explains,
            asks_about,
            largest: largest(&pieces),
            drawn_out: drawn_out_in(&words),
            text: flat,
            words,
        }
    }

    /// Whether it is a few words that point to the message before.
    pub(super) fn refers_back(&self) -> bool {
        self.words.split_whitespace().count() <= 12 && REFERS_BACK.is_in(&Said::new(&self.words))
    }

    /// What it permits of a unit that repeats exactly.
    pub(super) fn exact(&self, unit: &Unit) -> Vec<Allowance> {
        let counts = &self.counts;
        let mut granted = Vec::new();
        let mut grant =
            |count: Count, phrase: u64, inner: u64| granted.extend(copies(count, phrase, inner, inner));
        if let Some((phrase, inner)) = self.names(unit) {
            let named = match (self.explains, self.repeats || self.filler) {
                (true, _) => counts.times,
                (false, true) => counts.measures,
                (false, false) => counts.counted,
            };
            grant(named, phrase, inner);
            grant(Count { most: self.beats, product: self.beats }, phrase, inner);
            if self.endless {
                return vec![Allowance::Unlimited];
            }
            if self.repeats || self.sung || (self.for_each && self.quotes(unit)) {
                granted.push(Allowance::Tokens(UNCOUNTED));
            } else if self.for_each {
                granted.push(Allowance::Times(USUAL));
            }
        }
        granted.extend(self.given(unit));
        if !self.is_short {
            return granted;
        }
        let mut grant = |count: Count| granted.extend(copies(count, 1, unit.copies, unit.cells));
        grant(counts.times);
        if unit.is_marks || unit.is_code || self.repeats || self.sung {
            grant(counts.counted);
        } else if self.alike {
            grant(counts.things);
        }
        if unit.is_marks && !unit.is_fault {
            grant(counts.up_to);
        }
        if self.filler {
            grant(counts.measures);
            granted.push(Allowance::Tokens(UNCOUNTED));
        }
        if unit.is_marks && !unit.is_fault && (self.drawn || self.repeats || self.endless) {
            granted.push(Allowance::Tokens(UNCOUNTED));
        }
        // Lines that are edited or translated stay about as long.
        if unit.has_words && unit.chars <= 3 * self.line_chars && self.line_chars <= 3 * unit.chars {
            grant_lines(&mut granted, self.alike_lines);
        }
        let shown = self
            .shown
            .as_ref()
            .is_some_and(|word| unit.forms.iter().any(|(form, _)| format!(" {form} ").contains(word)));
        let draws_out = self.draws_out(unit);
        if shown || draws_out || self.sung || (unit.is_code && self.recorded) {
            granted.push(Allowance::Times(USUAL));
        }
        let verse = self.prayed && unit.chars >= VERSE_CHARS;
        if verse || (draws_out && self.largest >= SEVERAL) {
            granted.push(Allowance::Tokens(GIVEN));
        }
        granted
    }

    /// What it permits of units that differ from copy to copy.
    pub(super) fn varied(&self, unit: &Unit) -> Vec<Allowance> {
        let mut granted: Vec<Allowance> = self.given(unit).into_iter().collect();
        if !self.is_short {
            return granted;
        }
        if self.endless && self.names(unit).is_some() {
            return vec![Allowance::Unlimited];
        }
        let counts = &self.counts;
        granted.extend(copies(counts.up_to, 1, 1, 1));
        if self.filler {
            granted.extend(copies(counts.measures, 1, 1, 1));
        }
        if self.repeats || self.filler {
            granted.push(Allowance::Tokens(UNCOUNTED));
        }
        grant_lines(&mut granted, self.alike_lines);
        if self.for_each || self.recorded || self.sung || self.drawn {
            granted.push(Allowance::Times(USUAL));
        }
        granted
    }

    /// What it permits of a unit that it gives word for word. Ordinary requests give sentences too, so it must say besides that there are to be
    /// several: by a number, or by words for that.
    fn given(&self, unit: &Unit) -> Option<Allowance> {
        let counts = &self.counts;
        let said =
            self.for_each || self.repeats || self.recorded || self.sung || self.filler || self.beats > 0;
        if counts.times.most == 0 && (self.asks_about || !(said || self.alike || self.largest > 1)) {
            return None;
        }
        let given = given(&self.terms, &unit.terms);
        let number = if given == Given::Quoted { self.largest } else { counts.up_to.most };
        let many = said || number >= SEVERAL;
        match given {
            Given::Nothing => None,
            Given::Title => copies(counts.counted, 1, 1, 1),
            _ if counts.times.most > 0 => copies(counts.times, 1, 1, 1),
            _ if many => Some(Allowance::Tokens(GIVEN)),
            _ if self.alike || given == Given::Quoted => Some(Allowance::Times(USUAL)),
            _ => copies(counts.counted, 1, 1, 1),
        }
    }

    /// Whether it draws out the syllable that a unit is made of.
    fn draws_out(&self, unit: &Unit) -> bool {
        let is_it = |form: &str| self.drawn_out.iter().any(|syllable| form == syllable);
        unit.forms.iter().any(|(form, _)| is_it(form))
    }

    /// Whether it names the unit: how often back to back (a phrase of several copies is one), and how many copies of what it names a unit
    /// of tokens holds.
    fn names(&self, unit: &Unit) -> Option<(u64, u64)> {
        for (form, inner) in &unit.forms {
            if let Some(times) = self.holds(form) {
                return Some((times, *inner));
            }
        }
        None
    }

    /// Whether a form of the unit stands at the beginning of a quotation.
    fn quotes(&self, unit: &Unit) -> bool {
        let mut quoted = parts_of(&self.text).into_iter().skip(1).map(|(part, _)| words_of(part));
        quoted.any(|quotation| {
            unit.forms
                .iter()
                .any(|(form, _)| quotation.trim() == form || quotation.starts_with(&format!(" {form} ")))
        })
    }

    /// How often back to back a form of a unit stands in it.
    fn holds(&self, form: &str) -> Option<u64> {
        let named = |mark: &str| {
            SPOKEN.iter().any(|(written, words)| *written == mark && words.is_in(&Said::new(&self.words)))
        };
        if form.chars().any(char::is_alphanumeric) {
            return run_of(&self.words, form).or_else(|| named(form).then_some(1));
        }
        let stands = !form.trim().is_empty() && self.text.contains(form);
        (stands || named(form)).then_some(1)
    }
}

/// So many copies and a quarter more, of a phrase that is so many copies itself, in units that hold so many, or so many cells.
fn copies(count: Count, phrase: u64, inner: u64, cells: u64) -> Option<Allowance> {
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
    fn of(pieces: &[Piece]) -> Self {
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

/// The largest number that is no year and no price.
fn largest(pieces: &[Piece]) -> u64 {
    let counts = |at: usize| {
        let near = [at.checked_sub(1), Some(at + 1)].map(|at| at.and_then(|at| pieces.get(at)));
        !near.into_iter().any(is_money)
    };
    let numbers = pieces.iter().enumerate().filter_map(|(at, piece)| piece.number().filter(|_| counts(at)));
    numbers.filter(|value| !(1500..=2100).contains(value)).max().unwrap_or(0)
}

fn is_money(piece: Option<&Piece>) -> bool {
    matches!(piece, Some(Piece::Mark(mark)) if "$€£¥₹₽".contains(*mark))
}

/// How often something with a rate happens as long as the message says: once a second, or as many times a minute as its largest number says.
fn beats_of(pieces: &[Piece], every_second: bool) -> u64 {
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
        let compares = words.get(place + 1).is_some_and(|word| COMPARES.has(word));
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
    let marked = |marks: &str| matches!(before, Some(Piece::Mark(mark)) if marks.contains(*mark));
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
    let last = words_before.first().copied().unwrap_or_default();
    if UP_TO.has(last) && !year {
        return Some(Role::UpTo);
    }
    // "500 words", "20 short sentences", but not "1400 as sentences".
    let measured = words.iter().take(2).position(|word| MEASURES.has(word));
    if measured.is_some_and(|place| place == 0 || !NO_THINGS.has(next)) {
        return Some(Role::Measure);
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

/// As many copies as there are lines, and a quarter more.
fn grant_lines(granted: &mut Vec<Allowance>, lines: u64) {
    granted.extend(copies(Count { most: lines, product: lines }, 1, 1, 1));
}

/// The lines of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lines {
    /// The longest run of lines of one shape: the same marks in the same order, and short unless they are equal.
    alike: u64,
    /// Their mean length.
    mean_chars: usize,
    /// Words outside of such runs.
    other_words: usize,
}

fn lines_of(lower: &str) -> Lines {
    let shape_of = |line: &str| -> String {
        line.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace()).collect()
    };
    let lines: Vec<&str> = lower.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).collect();
    let shapes: Vec<String> = lines.iter().map(|line| shape_of(line)).collect();
    let words = |line: &str| line.split_whitespace().count();
    let alike = |at: usize| {
        lines[at] == lines[at - 1] || (words(lines[at]) <= ALIKE_LINE_WORDS && shapes[at] == shapes[at - 1])
    };
    let mut found = Lines::default();
    let mut begin = 0;
    for end in 1..=lines.len() {
        if end < lines.len() && alike(end) {
            continue;
        }
        let run = &lines[begin..end];
        if run.len() < LEAST_ALIKE_LINES {
            found.other_words += run.iter().map(|line| words(line)).sum::<usize>();
        } else if run.len() as u64 > found.alike {
            found.alike = run.len() as u64;
            found.mean_chars = run.iter().map(|line| line.chars().count()).sum::<usize>() / run.len();
        }
        begin = end;
    }
    found
}

/// The syllables of words that are nothing but one again and again: three times, or four times one letter. Each rotation of them.
fn drawn_out_in(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in words.split_whitespace() {
        let chars: Vec<char> = word.chars().collect();
        // "www" and "iii" are words.
        let least = if word.is_ascii() { 4 } else { 3 };
        let syllable = (1..=MAX_SYLLABLE).find(|&len| {
            chars.len() >= (3 * len).max(least) && chars.iter().zip(&chars[len..]).all(|(a, b)| a == b)
        });
        let Some(len) = syllable.filter(|_| !chars[0].is_numeric() && found.len() < MAX_SYLLABLES) else {
            continue;
        };
        found.extend((0..len).map(|turn| chars[turn..turn + len].iter().collect::<String>()));
    }
    found
}

/// A word that stands several times back to back.
fn shown_word(words: &str) -> Option<String> {
    let list: Vec<&str> = words.split_whitespace().collect();
    let equal = |run: &&[&str]| run.iter().all(|word| *word == run[0]);
    list.windows(SHOWN_COPIES).find(equal).map(|run| format!(" {} ", run[0]))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn lines_of_one_shape() {
        let lines = |alike, mean_chars, other_words| Lines { alike, mean_chars, other_words };
        assert_eq!(lines_of("see these:\n1, a\n2, b c\n\n3, d\nend"), lines(3, 4, 3));
        assert_eq!(lines_of("one\ntwo!"), lines(0, 0, 2));
        assert_eq!(shown_word(" all of the na na na ").as_deref(), Some(" na "));
    }
}
