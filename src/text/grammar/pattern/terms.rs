//! Languages of text as expressions with intersection, complement and conditions, and their
//! derivatives.
//!
//! A pattern becomes the language of the text from a place on: a look-ahead is an intersection with
//! what it asks for, a negative one with the complement (Brzozowski 1964 for both). A condition on
//! the text before the place is a language of its own, followed from the beginning of the text: the
//! condition holds where the text so far is in it. So `^` is "the text so far is empty", and `\b` two
//! conditions, one before and one after. A repetition with conditions in it is a loop, a language
//! that refers to itself.
//!
//! Equal expressions have one id, and the constructors put sums and intersections in order, so that
//! an expression has finitely many derivatives.

use std::collections::HashMap;

use regex_syntax::hir::ClassUnicode;

use super::Refusal;
use super::ecma::WORD;
use super::node::{Node, all, set};

/// Largest pattern that is worked out here, in parts.
const MAX_NODE_SIZE: usize = 500;
/// Most repetitions, of parts with conditions in them, that are written out.
const MAX_COPIES: u32 = 64;
/// Most sets of characters in one automaton.
const MAX_CLASSES: usize = 64;
/// Most kinds of characters that the sets tell apart.
const MAX_KINDS: usize = 128;

pub(super) type Id = u32;

/// A language.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Term {
    /// No text.
    None,
    /// The empty text.
    Empty,
    /// One character of the class.
    Class(usize),
    /// A text of the first, which is free of conditions, then one of the second.
    Concat(Id, Id),
    Or(Vec<Id>),
    And(Vec<Id>),
    Not(Id),
    Repeat(Id, u32, Option<u32>),
    /// Every text where the text before is in this language of `Terms::before`, else none.
    Before(usize),
    /// The language of this loop.
    Loop(usize),
}

const NONE: Id = 0;
const EMPTY: Id = 1;
/// Every text.
pub(super) const ANY: Id = 3;

/// Expressions that share their parts.
pub(super) struct Terms<'a> {
    terms: Vec<Term>,
    ids: HashMap<Term, Id>,
    classes: Vec<ClassUnicode>,
    /// Languages of the text before a place.
    before: Vec<Id>,
    loops: Vec<Id>,
    /// Steps that may still be taken.
    steps: &'a mut usize,
}

/// Where a text stands: the language of what may follow, and the languages of what came before.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) after: Id,
    before: Vec<Id>,
}

impl<'a> Terms<'a> {
    pub(super) fn new(steps: &'a mut usize) -> Self {
        let mut terms = Self {
            terms: Vec::new(),
            ids: HashMap::new(),
            classes: Vec::new(),
            before: Vec::new(),
            loops: Vec::new(),
            steps,
        };
        terms.add(Term::None);
        terms.add(Term::Empty);
        let any = terms.class(&all());
        terms.add(Term::Repeat(any, 0, None));
        terms
    }

    fn add(&mut self, term: Term) -> Id {
        if let Some(&id) = self.ids.get(&term) {
            return id;
        }
        let id = self.terms.len() as Id;
        self.terms.push(term.clone());
        self.ids.insert(term, id);
        id
    }

    fn class(&mut self, set: &ClassUnicode) -> Id {
        if set.ranges().is_empty() {
            return NONE;
        }
        let known = self.classes.iter().position(|class| class == set);
        let number = known.unwrap_or_else(|| {
            self.classes.push(set.clone());
            self.classes.len() - 1
        });
        self.add(Term::Class(number))
    }

    fn concat(&mut self, first: Id, rest: Id) -> Id {
        match (first, rest) {
            (NONE, _) | (_, NONE) => NONE,
            (EMPTY, other) | (other, EMPTY) => other,
            (ANY, ANY) => ANY,
            _ => match self.terms[first as usize] {
                Term::Concat(a, b) => {
                    let rest = self.concat(b, rest);
                    self.concat(a, rest)
                }
                _ => self.add(Term::Concat(first, rest)),
            },
        }
    }

    fn or(&mut self, parts: impl IntoIterator<Item = Id>) -> Id {
        let mut flat = Vec::new();
        for part in parts {
            match &self.terms[part as usize] {
                Term::Or(more) => flat.extend(more),
                Term::None => {}
                _ => flat.push(part),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        match flat[..] {
            [] => NONE,
            [one] => one,
            _ if flat.contains(&ANY) => ANY,
            _ => self.add(Term::Or(flat)),
        }
    }

    /// The texts that are in all of these.
    pub(super) fn and(&mut self, parts: impl IntoIterator<Item = Id>) -> Id {
        let mut flat = Vec::new();
        for part in parts {
            match &self.terms[part as usize] {
                Term::And(more) => flat.extend(more),
                _ if part == ANY => {}
                _ => flat.push(part),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        match flat[..] {
            [] => ANY,
            [one] => one,
            _ if flat.contains(&NONE) => NONE,
            _ => self.add(Term::And(flat)),
        }
    }

    /// The texts that are not in this.
    pub(super) fn not(&mut self, part: Id) -> Id {
        match self.terms[part as usize] {
            Term::None => ANY,
            Term::Not(inner) => inner,
            _ if part == ANY => NONE,
            _ => self.add(Term::Not(part)),
        }
    }

    fn repeat(&mut self, part: Id, min: u32, max: Option<u32>) -> Id {
        match (part, min, max) {
            (_, _, Some(0)) | (EMPTY, ..) => EMPTY,
            (NONE, 0, _) => EMPTY,
            (NONE, ..) => NONE,
            (part, 1, Some(1)) => part,
            (ANY, ..) => ANY,
            _ => self.add(Term::Repeat(part, min, max)),
        }
    }

    /// The language of a pattern that may match anywhere in a text.
    pub(super) fn pattern(&mut self, node: &Node) -> Result<Id, Refusal> {
        if node.size() > MAX_NODE_SIZE {
            return Err(Refusal::too_large());
        }
        let found = self.after(node, ANY)?;
        Ok(if begins_at_start(node) { found } else { self.concat(ANY, found) })
    }

    /// The language of a pure part.
    fn pure(&mut self, node: &Node) -> Id {
        match node {
            Node::Empty => EMPTY,
            Node::Class(class) => self.class(&class.set),
            Node::Concat(parts) => parts.iter().rev().fold(EMPTY, |rest, part| {
                let part = self.pure(part);
                self.concat(part, rest)
            }),
            Node::Alt(parts) => {
                let parts: Vec<Id> = parts.iter().map(|part| self.pure(part)).collect();
                self.or(parts)
            }
            Node::Repeat(part, min, max) => {
                let part = self.pure(part);
                self.repeat(part, *min, *max)
            }
            Node::Start | Node::End | Node::Boundary { .. } | Node::Look { .. } => NONE,
        }
    }

    /// The language of the text from this part on, where `rest` follows it.
    fn after(&mut self, node: &Node, rest: Id) -> Result<Id, Refusal> {
        if node.is_pure() {
            let first = self.pure(node);
            return Ok(self.concat(first, rest));
        }
        self.step()?;
        Ok(match node {
            Node::Concat(parts) => parts.iter().rev().try_fold(rest, |rest, part| self.after(part, rest))?,
            Node::Alt(parts) => {
                let parts: Result<Vec<Id>, Refusal> =
                    parts.iter().map(|part| self.after(part, rest)).collect();
                self.or(parts?)
            }
            Node::Repeat(part, min, max) => self.repeated(part, *min, *max, rest)?,
            Node::Start => {
                let begin = self.before(EMPTY);
                self.and([begin, rest])
            }
            Node::End => self.and([EMPTY, rest]),
            Node::Boundary { is } => {
                let word = self.class(&set(&WORD));
                let follows = self.concat(word, ANY);
                let precedes = self.concat(ANY, word);
                let precedes = self.before(precedes);
                let (no_word, no_word_before) = (self.not(follows), self.not(precedes));
                let (begins, ends) = match is {
                    true => ([no_word_before, follows], [precedes, no_word]),
                    false => ([precedes, follows], [no_word_before, no_word]),
                };
                let (begins, ends) = (self.and(begins), self.and(ends));
                let here = self.or([begins, ends]);
                self.and([here, rest])
            }
            Node::Look { ahead, negative, node } => {
                let holds = if *ahead { self.after(node, ANY)? } else { self.preceded(node)? };
                let holds = if *negative { self.not(holds) } else { holds };
                self.and([holds, rest])
            }
            Node::Empty | Node::Class(_) => rest,
        })
    }

    fn repeated(&mut self, part: &Node, min: u32, max: Option<u32>, rest: Id) -> Result<Id, Refusal> {
        if min > MAX_COPIES || max.is_some_and(|max| max > MAX_COPIES) {
            return Err(Refusal::too_large());
        }
        let mut language = rest;
        match max {
            Some(max) => {
                for _ in min..max {
                    let again = self.after(part, language)?;
                    language = self.or([rest, again]);
                }
            }
            None => {
                let number = self.loops.len();
                self.loops.push(NONE);
                let own = self.add(Term::Loop(number));
                let again = self.after(part, own)?;
                self.loops[number] = self.or([rest, again]);
                language = own;
            }
        }
        (0..min).try_fold(language, |rest, _| self.after(part, rest))
    }

    /// The condition that the text before the place ends with this part.
    fn preceded(&mut self, node: &Node) -> Result<Id, Refusal> {
        if let Node::Alt(parts) = node {
            let parts: Result<Vec<Id>, Refusal> = parts.iter().map(|part| self.preceded(part)).collect();
            return Ok(self.or(parts?));
        }
        let (is_whole, part) = match node {
            Node::Start => (true, Node::Empty),
            Node::Concat(parts) if parts[0] == Node::Start => (true, Node::Concat(parts[1..].to_vec())),
            node => (false, node.clone()),
        };
        if !part.is_pure() {
            return Err(Refusal::unsupported("a look-behind with conditions in it"));
        }
        let mut language = self.pure(&part);
        if !is_whole {
            language = self.concat(ANY, language);
        }
        Ok(self.before(language))
    }

    fn before(&mut self, language: Id) -> Id {
        let known = self.before.iter().position(|&known| known == language);
        let number = known.unwrap_or_else(|| {
            self.before.push(language);
            self.before.len() - 1
        });
        self.add(Term::Before(number))
    }

    /// Counts a step.
    fn step(&mut self) -> Result<(), Refusal> {
        self.steps(1)
    }

    /// Counts steps.
    pub(super) fn steps(&mut self, count: usize) -> Result<(), Refusal> {
        super::spend(self.steps, count)
    }

    /// The state before the first character.
    pub(super) fn start(&self, language: Id) -> State {
        State { after: language, before: self.before.clone() }
    }

    /// Whether the text may end here.
    pub(super) fn ends(&self, state: &State) -> bool {
        let holds = self.holds(state);
        self.nullable(state.after, &holds, &mut Vec::new())
    }

    /// Which conditions hold.
    fn holds(&self, state: &State) -> Vec<bool> {
        state.before.iter().map(|&before| self.nullable(before, &[], &mut Vec::new())).collect()
    }

    fn nullable(&self, id: Id, holds: &[bool], inside: &mut Vec<usize>) -> bool {
        match &self.terms[id as usize] {
            Term::None | Term::Class(_) => false,
            Term::Empty => true,
            Term::Concat(first, rest) => {
                self.nullable(*first, holds, inside) && self.nullable(*rest, holds, inside)
            }
            Term::Or(parts) => parts.iter().any(|&part| self.nullable(part, holds, inside)),
            Term::And(parts) => parts.iter().all(|&part| self.nullable(part, holds, inside)),
            Term::Not(part) => !self.nullable(*part, holds, inside),
            Term::Repeat(part, min, _) => *min == 0 || self.nullable(*part, holds, inside),
            Term::Before(number) => holds.get(*number).copied().unwrap_or(false),
            Term::Loop(number) => {
                // A loop that comes back without a character adds no text.
                if inside.contains(number) {
                    return false;
                }
                inside.push(*number);
                let ends = self.nullable(self.loops[*number], holds, inside);
                inside.pop();
                ends
            }
        }
    }

    /// One set for each kind of character that the languages tell apart.
    pub(super) fn kinds(&mut self) -> Result<Kinds, Refusal> {
        if self.classes.len() > MAX_CLASSES {
            return Err(Refusal::too_large());
        }
        let mut sets = vec![all()];
        let ranges: usize = self.classes.iter().map(|class| class.ranges().len()).sum();
        self.steps(ranges)?;
        for class in &self.classes {
            let mut finer = Vec::with_capacity(sets.len() + 1);
            for set in sets {
                let (mut inside, mut outside) = (set.clone(), set);
                inside.intersect(class);
                outside.difference(class);
                finer.extend([inside, outside].into_iter().filter(|part| !part.ranges().is_empty()));
            }
            if finer.len() > MAX_KINDS {
                return Err(Refusal::too_large());
            }
            sets = finer;
        }
        let has = |class: &ClassUnicode, set: &ClassUnicode| {
            let mut both = set.clone();
            both.intersect(class);
            !both.ranges().is_empty()
        };
        let members =
            self.classes.iter().map(|class| sets.iter().map(|set| has(class, set)).collect()).collect();
        Ok(Kinds { sets, members })
    }

    /// The state after one more character, of this kind.
    pub(super) fn next(&mut self, state: &State, kinds: &Kinds, kind: usize) -> Result<State, Refusal> {
        let holds = self.holds(state);
        let mut derivative =
            Derivative { kinds, kind, holds: &holds, known: HashMap::new(), inside: Vec::new() };
        let after = derivative.of(self, state.after)?;
        let mut before = Vec::with_capacity(state.before.len());
        let mut derivative =
            Derivative { kinds, kind, holds: &[], known: HashMap::new(), inside: Vec::new() };
        for &language in &state.before {
            before.push(derivative.of(self, language)?);
        }
        if after == NONE || after == ANY {
            // Nothing is asked of the text before any more.
            before.fill(NONE);
        }
        Ok(State { after, before })
    }
}

/// Kinds of characters: their sets, and for each class which kinds are in it.
pub(super) struct Kinds {
    pub(super) sets: Vec<ClassUnicode>,
    members: Vec<Vec<bool>>,
}

/// The derivatives by one character in one place.
struct Derivative<'a> {
    kinds: &'a Kinds,
    kind: usize,
    /// Which conditions hold.
    holds: &'a [bool],
    known: HashMap<Id, Id>,
    /// Loops whose derivative is being worked out.
    inside: Vec<usize>,
}

impl Derivative<'_> {
    fn of(&mut self, terms: &mut Terms<'_>, id: Id) -> Result<Id, Refusal> {
        if let Some(&known) = self.known.get(&id) {
            return Ok(known);
        }
        terms.step()?;
        let derivative = match terms.terms[id as usize].clone() {
            Term::None | Term::Empty => NONE,
            Term::Class(class) => {
                if self.kinds.members[class][self.kind] {
                    EMPTY
                } else {
                    NONE
                }
            }
            Term::Concat(first, rest) => {
                let stays = self.of(terms, first)?;
                let stays = terms.concat(stays, rest);
                if terms.nullable(first, self.holds, &mut Vec::new()) {
                    let goes = self.of(terms, rest)?;
                    terms.or([stays, goes])
                } else {
                    stays
                }
            }
            Term::Or(parts) => {
                let parts: Result<Vec<Id>, Refusal> =
                    parts.iter().map(|&part| self.of(terms, part)).collect();
                terms.or(parts?)
            }
            Term::And(parts) => {
                let parts: Result<Vec<Id>, Refusal> =
                    parts.iter().map(|&part| self.of(terms, part)).collect();
                terms.and(parts?)
            }
            Term::Not(part) => {
                let part = self.of(terms, part)?;
                terms.not(part)
            }
            _ if id == ANY => ANY,
            Term::Repeat(part, min, max) => {
                let once = self.of(terms, part)?;
                let min =
                    if terms.nullable(part, self.holds, &mut Vec::new()) { 0 } else { min.saturating_sub(1) };
                let rest = terms.repeat(part, min, max.map(|max| max - 1));
                terms.concat(once, rest)
            }
            Term::Before(number) => {
                if self.holds.get(number).copied().unwrap_or(false) {
                    ANY
                } else {
                    NONE
                }
            }
            Term::Loop(number) => {
                if self.inside.contains(&number) {
                    return Ok(NONE);
                }
                self.inside.push(number);
                let derivative = self.of(terms, terms.loops[number]);
                self.inside.pop();
                derivative?
            }
        };
        // Inside a loop the derivative lacks what the loop adds.
        if self.inside.is_empty() {
            self.known.insert(id, derivative);
        }
        Ok(derivative)
    }
}

/// Whether a pattern matches at the beginning of a text only.
fn begins_at_start(node: &Node) -> bool {
    match node {
        Node::Start => true,
        Node::Concat(parts) => parts.first().is_some_and(begins_at_start),
        Node::Alt(parts) => parts.iter().all(begins_at_start),
        Node::Repeat(part, 1.., _) => begins_at_start(part),
        _ => false,
    }
}
