//! The shortest way from a state of a reply to its end.
//!
//! The search asks the grammar byte by byte: the parser has accepted every end that is found, so
//! the end is legal, and only its length is a matter of search. Inside JSON the search uses JSON's
//! structure: containers close as soon as they may, a required member gets the shortest value that
//! its schema allows, and alternatives are compared. Strings or numbers with a pattern or limits,
//! and all text outside JSON, are searched breadth first over the lexer's states. The result is
//! shortest for schemas whose alternatives are independent of each other; in others it may be
//! longer than necessary. The number of bytes tried bounds a search.

use std::collections::HashSet;

use llguidance::earley::ParserRecognizer;
use toktrie::Recognizer;

use super::budget;
use super::json_place::{At, JsonPlace};
use perigee_telemetry::heap;

/// Longest end that is searched for, bytes.
pub(super) const MAX_CLOSING_BYTES: usize = 64 * 1024;
/// Deepest nesting of values in an end.
const MAX_DEPTH: usize = 64;
/// Ways kept per length in a breadth-first search: further states are variants of the kept ones.
const MAX_WIDTH: usize = 32;
/// Most bytes tried in a search over all byte values for a short way, and the part of the remaining
/// fuel, one in this many, that such a search may use.
const SHORT_SEARCH_FUEL: usize = 20_000;
const SHORT_SEARCH_SHARE: usize = 8;
/// Memory of new lexer states above which a walk no longer searches over all byte values. The
/// lexer's allowance is `max_step_work`, and an exhausted lexer accepts nothing more; the memory of
/// its states is proportional to their cost.
const SHORT_SEARCH_BYTES: isize = 128 << 10;
/// Most required keys tried at one place.
const MAX_KEYS_TRIED: usize = 16;
/// Comparisons within a row of the parser's table that take as long as trying a byte, or as a step
/// of its lexer.
const ROW_WORK: usize = 1024;
/// Bytes in the order in which they are tried inside text; the quote and the backslash are absent
/// because of their own meaning.
const PLAIN: &[u8] =
    b"a0bcdefghijklmnopqrstuvwxyz123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:/@+ ,;!?()[]{}<>=#$%&'*|~^`";

/// Bytes that may follow a backslash, short escapes first.
const ESCAPES: &[u8] = b"nt\"\\/bfru";

/// The texts that the ends of a grammar consist of. A special token is spelled `0xFF [id]`, as the
/// parser reads it.
#[derive(Debug, Clone, Default)]
pub(super) struct Landmarks {
    /// Tokens that end the reply.
    pub(super) ends: Vec<Vec<u8>>,
    /// Special tokens on the way to the end, closing ones first.
    pub(super) specials: Vec<Special>,
    /// `"key":` of every member that some object requires.
    pub(super) keys: Vec<Vec<u8>>,
    /// Alternative heads, each up to the JSON value after it.
    pub(super) heads: Vec<Vec<u8>>,
    /// Texts after which a JSON value begins.
    pub(super) openers: Vec<Vec<u8>>,
    /// Whether the reply begins with a JSON value.
    pub(super) starts_with_json: bool,
}

/// A special token of the grammar.
#[derive(Debug, Clone)]
pub(super) struct Special {
    pub(super) spelled: Vec<u8>,
    /// Whether a JSON value begins after the token.
    pub(super) opens_json: bool,
}

/// The place in a reply: in JSON, or outside JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Plain,
    Json(JsonPlace),
}

impl Landmarks {
    /// The place before the first byte.
    pub(super) fn start(&self) -> Place {
        if self.starts_with_json { Place::Json(JsonPlace::start()) } else { Place::Plain }
    }

    /// Advances the place over `bytes[from..]`, the newest bytes; specials are spelled.
    pub(super) fn advance(&self, place: &mut Place, bytes: &[u8], from: usize) {
        let mut at = from;
        while at < bytes.len() {
            let byte = bytes[at];
            at += 1;
            if byte == 0xff {
                let end = bytes[at..].iter().position(|&b| b == b']').map_or(bytes.len(), |i| at + i + 1);
                let spelled = &bytes[at - 1..end];
                let opens = self.specials.iter().any(|s| s.opens_json && s.spelled == spelled);
                *place = if opens { Place::Json(JsonPlace::start()) } else { Place::Plain };
                at = end;
                continue;
            }
            match place {
                Place::Json(json) => json.feed(byte),
                Place::Plain => {
                    if self.openers.iter().any(|opener| bytes[..at].ends_with(opener)) {
                        *place = Place::Json(JsonPlace::start());
                    }
                }
            }
        }
    }
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The bytes that lead to the end; the end token itself is not in them.
    Closing(Vec<u8>),
    /// No end within the bounds.
    Nothing,
}

/// A walk through the grammar from its present state; every byte can be undone.
pub(super) struct Walk<'a, 'b> {
    parser: &'a mut ParserRecognizer<'b>,
    marks: &'a Landmarks,
    path: Vec<u8>,
    /// Number of bytes that may still be tried.
    fuel: usize,
    /// Bytes that the thread held when the walk began.
    held_at_start: isize,
}

/// The goal of a breadth-first search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// The quote that ends a string; included in the way.
    Quote,
    /// A place where a number or literal may end; the byte after it is not part of the way.
    Boundary,
    /// A special token or the end, outside JSON; not part of the way.
    Landmark,
}

/// The bytes that a breadth-first search tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// Every byte at every place.
    All,
    /// The bytes of `PLAIN`; others only where none of those leads to a new state.
    Usual,
}

/// A way that a breadth-first search extends.
#[derive(Debug, Default)]
struct Trail {
    /// Bytes after the common start of all ways.
    bytes: Vec<u8>,
    /// Rows of the parser's table that the way has added.
    rows: usize,
}

impl<'a, 'b> Walk<'a, 'b> {
    /// A walk of at most `fuel` tries.
    pub(super) fn begin(parser: &'a mut ParserRecognizer<'b>, marks: &'a Landmarks, fuel: usize) -> Self {
        parser.trie_started("closing");
        Self { parser, marks, path: Vec::new(), fuel, held_at_start: heap::allocated() }
    }

    /// Ends the walk and undoes all its bytes.
    pub(super) fn finish(mut self) {
        self.pop_to(0);
        self.parser.trie_finished();
    }

    /// Whether these bytes lead from the present state to the end.
    pub(super) fn closes(&mut self, bytes: &[u8]) -> bool {
        let start = self.path.len();
        let closes = self.push_all(bytes) && self.can_end();
        self.pop_to(start);
        closes
    }

    /// Whether the reply may end at the present state.
    pub(super) fn can_end(&mut self) -> bool {
        let marks = self.marks;
        // The grammar allows either all end tokens or none.
        marks.ends.first().is_some_and(|end| self.allows(end))
    }

    /// Whether the grammar allows nothing but an end token at the present state.
    pub(super) fn must_end(&mut self) -> bool {
        let marks = self.marks;
        if !self.can_end() || marks.specials.iter().any(|special| self.allows(&special.spelled)) {
            return false;
        }
        // The likeliest bytes first, so that an open text is recognised at once.
        (0x20..=0xfe).chain(0..0x20).all(|byte: u8| !self.allows(&[byte]))
    }

    /// Searches for the shortest end. `recent` are the last bytes of the reply so far.
    pub(super) fn close(&mut self, mut place: Place, recent: &[u8]) -> Found {
        let start = self.path.len();
        let mut text = recent.to_vec();
        loop {
            if self.can_end() {
                let closing = self.path[start..].to_vec();
                self.pop_to(start);
                return Found::Closing(closing);
            }
            let before = self.path.len();
            let advanced = self.path.len() - start < MAX_CLOSING_BYTES && self.step(&place, &text);
            if !advanced || self.path.len() == before {
                self.pop_to(start);
                return Found::Nothing;
            }
            let from = text.len();
            text.extend_from_slice(&self.path[before..]);
            self.marks.advance(&mut place, &text, from);
        }
    }

    /// One move towards the end.
    fn step(&mut self, place: &Place, text: &[u8]) -> bool {
        match place {
            Place::Plain => {
                self.special()
                    || self.head()
                    || self.opener(text)
                    || self.shortest(Goal::Landmark, usize::MAX)
            }
            Place::Json(json) => match json.at() {
                At::After | At::Scalar => {
                    self.push(b'}')
                        || self.push(b']')
                        || self.special()
                        || self.push(b',')
                        || self.shortest(Goal::Boundary, usize::MAX)
                        // After a complete value: a literal end tag.
                        || self.shortest(Goal::Landmark, usize::MAX)
                }
                At::Key => self.push(b'}') || self.member(usize::MAX, 0),
                At::Colon => self.push(b':'),
                At::Value => self.push(b']') || self.value(usize::MAX, 0),
                At::KeyText | At::ValueText => {
                    let whole = !json.is_escaped() || ESCAPES.iter().any(|&byte| self.push(byte));
                    whole && self.shortest(Goal::Quote, usize::MAX)
                }
            },
        }
    }

    /// Takes a special token that is allowed at the present state.
    fn special(&mut self) -> bool {
        let marks = self.marks;
        marks.specials.iter().any(|special| self.push_all(&special.spelled))
    }

    /// Takes the head and value that are shortest together.
    fn head(&mut self) -> bool {
        let marks = self.marks;
        let start = self.path.len();
        let mut best: Option<Vec<u8>> = None;
        for head in &marks.heads {
            let bound = best.as_ref().map_or(usize::MAX, Vec::len);
            if head.len() < bound && self.push_all(head) && self.value(bound - head.len(), 0) {
                best = Some(self.path[start..].to_vec());
            }
            self.pop_to(start);
        }
        best.is_some_and(|best| self.push_all(&best))
    }

    /// Takes the rest of an opener that has begun, or a whole opener.
    fn opener(&mut self, text: &[u8]) -> bool {
        let marks = self.marks;
        marks.openers.iter().any(|opener| {
            (0..opener.len())
                .rev()
                .any(|done| text.ends_with(&opener[..done]) && self.push_all(&opener[done..]))
        })
    }

    /// Takes a member that the object must have: a required key where one is known, else the first
    /// key allowed. At most `bound` bytes.
    fn member(&mut self, bound: usize, depth: usize) -> bool {
        let marks = self.marks;
        let start = self.path.len();
        let mut best: Option<Vec<u8>> = None;
        let mut tried = 0;
        for key in &marks.keys {
            if tried == MAX_KEYS_TRIED || !self.push_all(key) {
                continue;
            }
            tried += 1;
            let bound = best.as_ref().map_or(bound, |best| best.len().min(bound));
            if self.value(bound.saturating_sub(key.len()), depth + 1) && self.path.len() - start < bound {
                best = Some(self.path[start..].to_vec());
            }
            self.pop_to(start);
        }
        if let Some(best) = best {
            return self.push_all(&best);
        }
        let found = self.push(b'"')
            && self.shortest(Goal::Quote, bound)
            && self.push(b':')
            && self.value(bound, depth + 1);
        if !found {
            self.pop_to(start);
        }
        found
    }

    /// Takes the shortest value allowed at the present state, of fewer than `bound` bytes.
    fn value(&mut self, mut bound: usize, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        let start = self.path.len();
        let mut best: Option<Vec<u8>> = None;
        // The cheapest kinds first, so that searches for the others are abandoned early.
        for kind in *b"0\"[{-ntf" {
            let found = match kind {
                b'0' => {
                    (b'0'..=b'9').any(|digit| self.allows(&[digit])) && self.shortest(Goal::Boundary, bound)
                }
                b'-' if best.is_some() => false,
                b'-' => self.push(b'-') && self.shortest(Goal::Boundary, bound),
                b'"' => self.push(b'"') && self.shortest(Goal::Quote, bound),
                b'[' => bound > 2 && self.push(b'[') && self.items(start, bound, depth),
                b'{' => bound > 2 && self.push(b'{') && self.members(start, bound, depth),
                b'n' => self.push_all(b"null"),
                b't' => self.push_all(b"true"),
                _ => self.push_all(b"false"),
            };
            let len = self.path.len() - start;
            if found && len > 0 && len < bound {
                best = Some(self.path[start..].to_vec());
                bound = len;
            }
            self.pop_to(start);
            if self.fuel == 0 || bound <= 2 {
                break;
            }
        }
        best.is_some_and(|best| self.push_all(&best))
    }

    /// Takes the rest of an array that has just been opened.
    fn items(&mut self, start: usize, bound: usize, depth: usize) -> bool {
        loop {
            if self.push(b']') {
                return true;
            }
            let used = self.path.len() - start;
            if used >= bound || !self.value(bound - used, depth + 1) {
                return false;
            }
            if !self.allows(b"]") && !self.push(b',') {
                return false;
            }
        }
    }

    /// Takes the rest of an object that has just been opened.
    fn members(&mut self, start: usize, bound: usize, depth: usize) -> bool {
        loop {
            if self.push(b'}') {
                return true;
            }
            let used = self.path.len() - start;
            if used >= bound || !self.member(bound - used, depth) {
                return false;
            }
            if !self.allows(b"}") && !self.push(b',') {
                return false;
            }
        }
    }

    /// Takes the shortest way to the goal, of fewer than `bound` bytes: a short way over all byte
    /// values, or else a longer one over usual bytes.
    fn shortest(&mut self, goal: Goal, bound: usize) -> bool {
        if goal == Goal::Quote && self.push(b'"') {
            return true;
        }
        let fuel = self.fuel;
        self.fuel = (fuel / SHORT_SEARCH_SHARE).min(SHORT_SEARCH_FUEL);
        let kept = fuel - self.fuel;
        let found = self.breadth_first(goal, bound, Bytes::All);
        self.fuel += kept;
        found || self.breadth_first(goal, bound, Bytes::Usual)
    }

    /// Whether the searches over all byte values have used their share of the lexer's allowance,
    /// which other searches need too.
    fn short_work_is_spent(&self) -> bool {
        heap::allocated().wrapping_sub(self.held_at_start) > SHORT_SEARCH_BYTES
    }

    /// The shortest way to the goal, of fewer than `bound` bytes, breadth first. Ways to the same
    /// lexer state in the same row of the parser count as one: exact inside a lexeme, a heuristic
    /// across lexemes.
    fn breadth_first(&mut self, goal: Goal, bound: usize, bytes: Bytes) -> bool {
        let start = self.path.len();
        let mut frontier = vec![Trail::default()];
        let mut known = HashSet::new();
        for length in 1..bound.min(MAX_CLOSING_BYTES) {
            if let [only] = &mut frontier[..] {
                // A single way is committed, so that its bytes need not be replayed for each try.
                if !self.push_all(&std::mem::take(&mut only.bytes)) {
                    break;
                }
            }
            let mut next: Vec<Trail> = Vec::new();
            for trail in &frontier {
                let base = self.path.len();
                if !self.push_all(&trail.bytes) {
                    continue;
                }
                let escaped = goal == Goal::Quote && self.ends_in_escape(start);
                let unusual = (0..=0xfe).filter(|byte| !PLAIN.contains(byte));
                for (number, byte) in PLAIN.iter().copied().chain(unusual).enumerate() {
                    // Unusual bytes only where no usual byte leads on: the middle of a character,
                    // an escape, a control character.
                    if bytes == Bytes::All && number % 16 == 0 && self.short_work_is_spent() {
                        self.pop_to(start);
                        return false;
                    }
                    let enough = number >= PLAIN.len() && !next.is_empty() || next.len() >= MAX_WIDTH;
                    if bytes == Bytes::Usual && enough {
                        break;
                    }
                    let scalar = !b"{}[]\":, ".contains(&byte);
                    let items = self.parser.stats_mut().all_items;
                    if goal == Goal::Quote && byte == b'"' && !escaped
                        || goal == Goal::Boundary && !scalar
                        || !self.push(byte)
                    {
                        continue;
                    }
                    let rows = trail.rows + usize::from(self.parser.stats_mut().all_items > items);
                    if known.insert((rows, self.parser.lexer_state())) {
                        // A quote after a backslash is part of the text.
                        if !(goal == Goal::Quote && self.ends_in_escape(start)) && self.reached(goal) {
                            return true;
                        }
                        if next.len() < MAX_WIDTH {
                            next.push(Trail { bytes: [trail.bytes.as_slice(), &[byte]].concat(), rows });
                        }
                    }
                    self.pop_to(self.path.len() - 1);
                }
                self.pop_to(base);
            }
            if next.is_empty() || self.fuel == 0 || length == MAX_CLOSING_BYTES {
                break;
            }
            frontier = next;
        }
        self.pop_to(start);
        false
    }

    /// Whether the way from `start`, which is inside quotes, ends with a backslash that still needs
    /// its escaped byte.
    fn ends_in_escape(&self, start: usize) -> bool {
        self.path[start..].iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
    }

    fn reached(&mut self, goal: Goal) -> bool {
        match goal {
            Goal::Quote => self.push(b'"'),
            Goal::Boundary => {
                [b"}", b"]", b","].iter().any(|byte| self.allows(*byte)) || self.reached(Goal::Landmark)
            }
            Goal::Landmark => {
                let marks = self.marks;
                self.can_end() || marks.specials.iter().any(|special| self.allows(&special.spelled))
            }
        }
    }

    fn allows(&mut self, bytes: &[u8]) -> bool {
        let before = self.path.len();
        let allowed = self.push_all(bytes);
        self.pop_to(before);
        allowed
    }

    /// Advances over all the bytes, or over none.
    fn push_all(&mut self, bytes: &[u8]) -> bool {
        let before = self.path.len();
        let all = bytes.iter().all(|&byte| self.push(byte));
        if !all {
            self.pop_to(before);
        }
        all
    }

    fn push(&mut self, byte: u8) -> bool {
        if self.fuel == 0 {
            return false;
        }
        self.fuel -= 1;
        let items = self.parser.stats_mut().all_items;
        let allowed = self.parser.try_push_byte(byte);
        let added = self.parser.stats_mut().all_items - items;
        if added > 0 {
            // The parser compares each item of a row with all of the row.
            let work = added * added / ROW_WORK;
            self.fuel = self.fuel.saturating_sub(work);
            if budget::spend(work as u64).is_some() {
                self.fuel = 0;
            }
        }
        if allowed {
            self.path.push(byte);
        }
        allowed
    }

    fn pop_to(&mut self, len: usize) {
        let back = self.path.len() - len;
        if back > 0 {
            self.parser.pop_bytes(back);
            self.path.truncate(len);
        }
    }
}
