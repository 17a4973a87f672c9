//! What one message asks to be repeated: its numbers and what they count, its words for repetition, for pictures, for lists.

use super::counts::{Count, Counts, beats_of, copies, largest};
use super::numbers::read;
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
/// Longest syllable that is known by being drawn out, and most of them.
const MAX_SYLLABLE: usize = 4;
const MAX_SYLLABLES: usize = 16;
/// Consonants of a word that imitates a sound together with the next.
const LEAST_CONSONANTS: usize = 2;
/// Lines of one shape that are a list.
const LEAST_ALIKE_LINES: usize = 3;
/// Longest line that is compared with neighbours it does not equal.
const ALIKE_LINE_WORDS: usize = 16;
/// Brackets and the like that make a program.
const LEAST_CODE_MARKS: usize = 5;
/// Longest message whose numbers permit what it does not name: longer ones are rules and material.
const SHORT_MESSAGE_WORDS: usize = 100;

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
    /// A program stands in it.
    has_code: bool,
    repeats: bool,
    endless: bool,
    /// Something in it has no end.
    on_and_on: bool,
    /// Numbers are to be said.
    counts_out: bool,
    /// Something makes a noise, or says the same again.
    sounds: bool,
    /// Something in it takes long.
    long: bool,
    /// Nothing of what is alike is to be left out.
    in_full: bool,
    filler: bool,
    alike: bool,
    for_each: bool,
    drawn: bool,
    recorded: bool,
    sung: bool,
    prayed: bool,
    /// It wants what it gives to be explained, corrected, translated.
    explains: bool,
    /// It wants something to be made, that or not.
    makes: bool,
    /// That, or it is a question and no wish.
    asks_about: bool,
    /// It wants a text about something, or is a question; or it says nothing at all.
    wants_prose: bool,
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
        let bids = BIDS.is_in(&said);
        let asks_about = explains || (lower.contains(['?', '？']) && !makes && !bids);
        let has_code = has_code(&lower);
        let no_end = ENDLESS.is_in(&said);
        let repeats = repeats && !explains && (!asks_about || has_code);
        let asks = asks_about || (said.begins_with(QUESTIONS) && !makes && !bids);
        let wants_prose = explains || PROSE.is_in(&said) || said.is_empty() || (asks && !has_code);
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
            has_code,
            is_short: other_words <= SHORT_MESSAGE_WORDS,
            repeats,
            endless: no_end && (repeats || SAYS.is_in(&said)),
            on_and_on: no_end && !asks_about && (bids || !said.begins_with(QUESTIONS)),
            counts_out: COUNTS_OUT.is_in(&said),
            sounds: SOUNDS.is_in(&said) || imitates_sound(&flat),
            long: LONG.is_in(&said),
            in_full: IN_FULL.is_in(&said) && !wants_prose,
            filler: FILLER.is_in(&said),
            alike: ALIKE.is_in(&said),
            for_each: FOR_EACH.is_in(&said) && (explains || !asks_about),
            drawn: DRAWN_ALONE.is_in(&said) || (makes && DRAWN.is_in(&said)),
            recorded: makes && RECORDED.is_in(&said),
            prayed: PRAYED.is_in(&said),
            sung: (SUNG.is_in(&said) && !explains) || PRAYED.is_in(&said),
            explains,
            makes,
            asks_about,
            wants_prose,
            largest: largest(&pieces),
            drawn_out: drawn_out_in(&words),
            text: flat,
            words,
        }
    }

    /// Bytes of its text.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether it is a few words that point to the message before.
    pub(super) fn refers_back(&self) -> bool {
        self.words.split_whitespace().count() <= 12 && REFERS_BACK.is_in(&Said::new(&self.words))
    }

    /// Whether it permits nothing of any unit, as most do: no number, no word for repeating, nothing that repeats in itself.
    pub(super) fn permits_nothing(&self) -> bool {
        let said = [
            self.repeats,
            self.endless,
            self.on_and_on,
            self.in_full,
            self.long,
            self.filler,
            self.alike,
            self.for_each,
            self.drawn,
            self.recorded,
            self.sung,
            self.prayed,
        ];
        self.counts == Counts::default()
            && self.beats == 0
            && self.largest <= 1
            && self.alike_lines == 0
            && self.shown.is_none()
            && self.drawn_out.is_empty()
            && !said.contains(&true)
    }

    /// What it permits of a reply that is nothing but repetition: a text about something is no such thing.
    pub(super) fn whole_reply(&self) -> Allowance {
        match self.wants_prose {
            true => Allowance::None,
            false if self.repeats || self.on_and_on || !self.drawn_out.is_empty() => {
                Allowance::Tokens(UNCOUNTED)
            }
            false if self.largest >= SEVERAL => Allowance::Tokens(2 * GIVEN),
            false => Allowance::Tokens(GIVEN),
        }
    }

    /// What it permits of a unit that repeats exactly.
    pub(super) fn exact(&self, unit: &Unit) -> Vec<Allowance> {
        let counts = &self.counts;
        let mut granted = Vec::new();
        let mut grant =
            |count: Count, phrase: u64, inner: u64| granted.extend(copies(count, phrase, inner, inner));
        if let Some((phrase, inner)) = self.names(unit) {
            let named = match (self.explains, self.repeats || self.filler) {
                (true, _) if !self.makes => counts.times,
                (false, true) => counts.measures,
                _ => counts.counted,
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
            if self.long && !self.wants_prose {
                granted.push(Allowance::Tokens(GIVEN));
            }
        }
        granted.extend(self.given(unit));
        if !self.is_short {
            return granted;
        }
        let mut grant = |count: Count| granted.extend(copies(self.sized(count), 1, unit.copies, unit.cells));
        grant(counts.times);
        let is_wanted = !self.asks_about || self.has_code || (self.explains && self.alike && unit.is_code);
        if is_wanted && (unit.is_marks || unit.is_code || self.repeats || self.sung) {
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
        // "Only the siren, on and on": what it sounds like is not said.
        let goes_on = self.on_and_on || self.long || self.repeats;
        let sounds_on = !self.asks_about && ((self.sounds && goes_on) || (self.sung && self.repeats));
        if self.in_full || sounds_on || (self.on_and_on && self.alike && !self.wants_prose) {
            granted.push(Allowance::Tokens(GIVEN));
        }
        let verse = self.prayed && unit.chars >= VERSE_CHARS;
        if verse || ((draws_out || self.prayed) && self.largest >= SEVERAL) {
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
        let wanted = !self.wants_prose || self.counts_out || (self.explains && self.alike);
        granted.extend(copies(if wanted { counts.up_to } else { counts.ranges }, 1, 1, 1));
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

    /// What two numbers make is a size where something is to be laid out, and nothing where something is to be told.
    fn sized(&self, count: Count) -> Count {
        if self.wants_prose { Count { product: count.most, ..count } } else { count }
    }

    /// What it permits of a unit that it gives word for word. Ordinary requests give sentences too, so it must say besides that there are to be
    /// several: by a number, or by words for that.
    fn given(&self, unit: &Unit) -> Option<Allowance> {
        let counts = &self.counts;
        let said = self.for_each
            || self.repeats
            || self.on_and_on
            || self.recorded
            || self.sung
            || self.filler
            || self.beats > 0;
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

/// Whether a program stands in it: what that prints may be asked for.
fn has_code(text: &str) -> bool {
    text.chars().filter(|c| "(){}[];=<>".contains(*c)).count() >= LEAST_CODE_MARKS
}

/// The syllables of words that are nothing but one again and again: three times, or four times one letter. Each rotation of them.
fn drawn_out_in(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in words.split_whitespace() {
        // A Korean laugh takes endings.
        let is_laugh = |c: char| matches!(c, '\u{3131}'..='\u{318e}');
        let word = if word.starts_with(is_laugh) { word.trim_end_matches(|c| !is_laugh(c)) } else { word };
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

/// Whether it imitates a sound: two words of equal consonants, parted by a hyphen ("chugga-chugga") or first "i", then "a" or "o" ("tick
/// tock").
fn imitates_sound(text: &str) -> bool {
    let is_vowel = |c: &char| "aeiouyàáâäåèéêëìíîïòóôöøùúûüаеиоуыэюяё".contains(*c);
    let vowel = |word: &str| word.chars().find(is_vowel);
    let consonants =
        |word: &str| -> Vec<char> { word.chars().filter(|c| c.is_alphabetic() && !is_vowel(c)).collect() };
    // Each word with the mark behind it.
    let parts = text.split_inclusive(|c: char| !c.is_alphabetic());
    let words: Vec<&str> = parts.filter(|part| part.starts_with(char::is_alphabetic)).collect();
    words.windows(2).any(|pair| {
        let from_i = vowel(pair[0]) == Some('i') && matches!(vowel(pair[1]), Some('a' | 'o'));
        (pair[0].ends_with('-') || from_i) && {
            let rest = consonants(pair[0]);
            rest.len() >= LEAST_CONSONANTS && rest == consonants(pair[1])
        }
    })
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
    fn lines_of_one_shape() {
        let lines = |alike, mean_chars, other_words| Lines { alike, mean_chars, other_words };
        assert_eq!(lines_of("see these:\n1, a\n2, b c\n\n3, d\nend"), lines(3, 4, 3));
        assert_eq!(lines_of("one\ntwo!"), lines(0, 0, 2));
        assert_eq!(shown_word(" all of the na na na ").as_deref(), Some(" na "));
    }

    #[test]
    fn sounds_are_imitated() {
        for text in
            [" go chugga-chugga ", " the clock's tick tock ", " das klipp-klapp-klapp ", " ding dong "]
        {
            assert!(imitates_sound(text), "{text}");
        }
        for text in [
            " had had it ",
            " a well-known one, from form ",
            " so-so ",
            " very very long ",
            " this is, as was ",
        ] {
            assert!(!imitates_sound(text), "{text}");
        }
    }
}
