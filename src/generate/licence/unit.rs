//! What repeats in a reply, as text: the forms in which a request may name it, and whether it is words, marks or code.

use super::numbers::is_unspaced;
use super::shared::{Term, terms_of};

/// Marks that code and data have and sentences do not.
const CODE_MARKS: &str = "{}[]()<>=_/\\|;#:*&$@^~+\"'";

/// A letter so often in a row is no letter of a word.
const LEAST_DRAWN_OUT: usize = 8;
/// Longest unit without blanks of which every rotation is looked for.
const MAX_TURNED: usize = 32;

/// A unit of tokens as text.
#[derive(Debug)]
pub(super) struct Unit {
    /// Forms to look for, and how many copies of the form the unit holds: "AAAA" is four of "a".
    pub(super) forms: Vec<(String, u64)>,
    /// Its words.
    pub(super) terms: Vec<Term>,
    /// Copies of its own smallest part, whatever encloses them: cells of a row.
    pub(super) cells: u64,
    /// The same where it is nothing but such copies.
    pub(super) copies: u64,
    /// No words: marks, digits, or one letter all over ("gooooooooal" too).
    pub(super) is_marks: bool,
    /// A tenth of it is digits and marks that code has.
    pub(super) is_code: bool,
    /// Characters, without blanks at its ends.
    pub(super) chars: usize,
    /// It has letters.
    pub(super) has_words: bool,
    /// Line breaks or "!" alone, which broken models print too.
    pub(super) is_fault: bool,
}

impl Unit {
    /// From the texts of its rotations; the first one is the unit as it began.
    pub(super) fn new(rotations: &[String]) -> Self {
        let lower: Vec<String> = rotations.iter().map(|text| text.to_lowercase()).collect();
        let first = lower.first().map_or("", String::as_str);
        let (seen, blanks): (Vec<char>, Vec<char>) = first.chars().partition(|c| !c.is_whitespace());
        let letters = seen.iter().filter(|c| c.is_alphabetic()).count();
        let code = seen.iter().filter(|c| c.is_ascii_digit() || CODE_MARKS.contains(**c)).count();
        let mut forms = Vec::new();
        let mut add = |form: (String, u64)| {
            if !forms.contains(&form) {
                forms.push(form);
            }
        };
        let mut whole: Vec<String> = lower.iter().map(|text| form_of(text)).collect();
        let (part, inner) = reduced(whole.first().map_or("", String::as_str));
        whole.dedup();
        let parts: Vec<(String, u64)> =
            whole.iter().map(|form| reduced(form)).filter(|(_, inner)| *inner > 1).collect();
        whole.into_iter().filter(|form| !form.is_empty()).for_each(|form| add((form, 1)));
        parts.into_iter().for_each(&mut add);
        // Tokens need not end where copies do: "ahah" is "ha" as well.
        if blanks.is_empty() && part.chars().count() <= MAX_TURNED {
            let chars: Vec<char> = part.chars().collect();
            (1..chars.len())
                .for_each(|turn| add((chars[turn..].iter().chain(&chars[..turn]).collect(), inner)));
        }
        if seen.is_empty() {
            add((if blanks.contains(&'\n') { "\n" } else { " " }.into(), blanks.len().max(1) as u64));
        }
        let part_len = smallest_period(&seen);
        let alike = seen.iter().all(|c| *c == seen[0]);
        let drawn_out = seen.chunk_by(|a, b| a == b).map(<[char]>::len).max().unwrap_or(0);
        Self {
            forms,
            terms: terms_of(whole_words(&lower)),
            cells: cells(&seen),
            copies: if seen.len().is_multiple_of(part_len) {
                (seen.len() / part_len).max(1) as u64
            } else {
                1
            },
            is_marks: letters == 0 || alike || (drawn_out >= LEAST_DRAWN_OUT && drawn_out * 2 >= seen.len()),
            has_words: letters > 0,
            chars: first.trim().chars().count(),
            is_code: code * 10 >= seen.len(),
            is_fault: is_fault(first),
        }
    }
}

/// Line breaks or "!" alone, which broken models print.
pub(super) fn is_fault(text: &str) -> bool {
    let mut seen = text.chars().filter(|c| !c.is_whitespace()).peekable();
    match seen.peek() {
        None => text.contains('\n'),
        Some(_) => seen.all(|c| c == '!'),
    }
}

/// The first rotation that does not begin inside a word.
fn whole_words(rotations: &[String]) -> &str {
    let whole = rotations.iter().find(|text| is_whole_words(text));
    whole.or(rotations.first()).map_or("", String::as_str)
}

/// Whether a rotation of a text does not begin inside a word.
pub(super) fn is_whole_words(text: &str) -> bool {
    let (first, last) = (text.chars().next(), text.chars().next_back());
    !(first.is_some_and(char::is_alphanumeric) && last.is_some_and(char::is_alphanumeric))
}

/// A text as words parted by single blanks, without anything but letters and digits; a blank at both ends.
pub(super) fn words_of(lower: &str) -> String {
    let mut words = String::from(" ");
    let mut before = ' ';
    for c in lower.chars() {
        // Signs of Indic vowels belong to the word.
        let kept = c.is_alphanumeric() || matches!(c, '\u{0900}'..='\u{0dff}' | '\u{0e00}'..='\u{0e7f}');
        let c = if kept { c } else { ' ' };
        let parts = c.is_alphanumeric() && before.is_alphanumeric() && c.is_numeric() != before.is_numeric();
        if (c == ' ' || parts) && before != ' ' {
            words.push(' ');
        }
        if c != ' ' {
            words.push(c);
        }
        before = c;
    }
    if !words.ends_with(' ') {
        words.push(' ');
    }
    words
}

/// Its words; of marks alone, the marks.
fn form_of(lower: &str) -> String {
    let words = words_of(lower);
    match words.trim() {
        "" => lower.split_whitespace().collect::<Vec<_>>().join(" "),
        words => words.to_owned(),
    }
}

/// The smallest part that a form is made of, and how often.
fn reduced(form: &str) -> (String, u64) {
    let words: Vec<&str> = form.split(' ').collect();
    let period = smallest_period(&words);
    if period * 2 <= words.len() {
        return (words[..period].join(" "), (words.len() / period) as u64);
    }
    let chars: Vec<char> = form.chars().filter(|c| !c.is_whitespace()).collect();
    let period = smallest_period(&chars);
    match period * 2 <= chars.len() {
        true => (chars[..period].iter().collect(), (chars.len() / period) as u64),
        false => (form.to_owned(), 1),
    }
}

/// How often the smallest part of a row of cells stands in it, whatever encloses the row.
fn cells(seen: &[char]) -> u64 {
    let has = |c: &char| c.is_alphanumeric();
    let (from, to) = match (seen.iter().position(has), seen.iter().rposition(has)) {
        (Some(from), Some(to)) => (from, to + 1),
        _ => (0, seen.len()),
    };
    let core = &seen[from..to];
    let period = smallest_period(core);
    if period * 2 <= core.len() { core.len().div_ceil(period) as u64 } else { 1 }
}

/// The smallest period of a list, its own length if it has none; by its prefix function, for units may be long.
fn smallest_period<T: PartialEq>(list: &[T]) -> usize {
    let mut border = vec![0; list.len()];
    for at in 1..list.len() {
        let mut length: usize = border[at - 1];
        while length > 0 && list[at] != list[length] {
            length = border[length - 1];
        }
        border[at] = length + usize::from(list[at] == list[length]);
    }
    (list.len() - border.last().copied().unwrap_or(0)).max(1)
}

/// How often back to back a form stands in a text of words, as a word or phrase of its own: "a" is not found in "cat", but "null" in
/// "nulls".
pub(super) fn run_of(words: &str, form: &str) -> Option<u64> {
    let apart = |inside: Option<char>, outside: Option<char>| {
        let joins = |c: char| c.is_alphanumeric() && !is_unspaced(c);
        // A Korean word takes endings.
        let ending = |c: char| matches!(c, '\u{ac00}'..='\u{d7a3}');
        !(inside.is_some_and(joins) && outside.is_some_and(joins))
            || (inside.is_some_and(ending) && outside.is_some_and(ending))
    };
    let (first, last) = (form.chars().next(), form.chars().next_back());
    let (mut longest, mut run, mut end) = (0u64, 0u64, usize::MAX);
    for (at, _) in words.match_indices(form) {
        let behind = at + form.len();
        let rest = &words[behind..];
        let plural = form.len() >= 3 && ["s ", "es "].iter().any(|ending| rest.starts_with(ending));
        if !apart(first, words[..at].chars().next_back()) || !(plural || apart(last, rest.chars().next())) {
            continue;
        }
        let follows = end != usize::MAX && words[end.min(at)..at].trim().is_empty();
        run = if follows { run + 1 } else { 1 };
        (longest, end) = (longest.max(run), behind);
    }
    (longest > 0).then_some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_units() {
        let unit = |text: &str| Unit::new(&[text.to_owned()]);
        let has = |text: &str, form: &str, inner: u64| unit(text).forms.contains(&(form.to_owned(), inner));
        assert!(has("AAAA", "a", 4) && has("AAAA", "aaaa", 1));
        assert!(has("ahah", "ha", 2) && !has("a ha", "ha a", 1));
        assert!(has(" Ha, ha,", "ha", 2) && has("#.", "#.", 1) && has("\n\n", "\n", 2));
        assert!(unit("#.#.\n").is_marks && unit("GGG\n").is_marks && !unit("get\n").is_marks);
        assert!(unit("GOOOOOOOOOOOAL!\n").is_marks && !unit("good balloon\n").is_marks);
        assert!(unit("f(x)").is_code && !unit("I will not talk in class.\n").is_code);
        assert!(unit("!!").is_fault && unit("\n").is_fault && !unit("-").is_fault);
        for (text, inner) in
            [("[ ] [ ] [ ]\n", 3), ("[0.0, 0.0, 0.0],", 3), ("GGGG\n", 4), ("abc", 1), ("0,", 1)]
        {
            assert_eq!(unit(text).cells, inner, "{text}");
        }
    }

    #[test]
    fn terms_are_whole_words() {
        assert_eq!(whole_words(&["w a no".into(), " a now".into()]), " a now");
        assert_eq!(whole_words(&["a".into()]), "a");
        assert_eq!(whole_words(&[]), "");
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words_of("say \"ha-ha\", 300w!"), " say ha ha 300 w ");
        assert_eq!(run_of(" say ha ha ha 9 times ", "ha"), Some(3));
        assert_eq!(run_of(" the cat ", "a"), None);
        assert_eq!(run_of(" 把我爱你写一百遍 ", "我爱你"), Some(1));
        assert_eq!(run_of(" 사랑해를 백 번 ", "사랑해"), Some(1));
    }
}
