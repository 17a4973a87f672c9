//! The automaton of a language, and the regular expression of an automaton.

use std::collections::{BTreeMap, HashMap, VecDeque};

use regex_syntax::hir::ClassUnicode;

use super::Refusal;
use super::node::Node;
use super::terms::{Id, State, Terms};

/// Most states of an automaton.
const MAX_STATES: usize = 100;
/// Most parts of the expression of an automaton.
const MAX_EXPRESSION_SIZE: usize = 1500;

/// A deterministic automaton over kinds of characters. State 0 is the first.
pub(super) struct Automaton {
    kinds: Vec<ClassUnicode>,
    /// Per state and kind, the next state.
    next: Vec<Vec<usize>>,
    /// Per state, whether a text may end there.
    ends: Vec<bool>,
}

impl Automaton {
    /// The automaton of a language of these terms, with the fewest states.
    pub(super) fn of(terms: &mut Terms<'_>, language: Id) -> Result<Self, Refusal> {
        let kinds = terms.kinds()?;
        let num_kinds = kinds.sets.len();
        let start = terms.start(language);
        let mut known: HashMap<State, usize> = HashMap::from([(start.clone(), 0)]);
        let mut waiting = VecDeque::from([start]);
        let (mut next, mut ends) = (Vec::new(), Vec::new());
        while let Some(state) = waiting.pop_front() {
            ends.push(terms.ends(&state));
            let mut row = Vec::with_capacity(kinds.sets.len());
            for kind in 0..kinds.sets.len() {
                let after = terms.next(&state, &kinds, kind)?;
                let fresh = known.len();
                let number = *known.entry(after.clone()).or_insert(fresh);
                if number == fresh {
                    if fresh >= MAX_STATES {
                        return Err(Refusal::too_large());
                    }
                    waiting.push_back(after);
                }
                row.push(number);
            }
            next.push(row);
        }
        // Joining states looks at all of them again and again.
        terms.steps(next.len() * num_kinds)?;
        Ok(Self { kinds: kinds.sets, next, ends }.fewest())
    }

    /// Joins states that no text tells apart (Moore 1956).
    fn fewest(self) -> Self {
        let mut group: Vec<usize> = self.ends.iter().map(|&ends| usize::from(ends)).collect();
        let mut count = 0;
        loop {
            let mut known: HashMap<(usize, Vec<usize>), usize> = HashMap::new();
            let mut finer = Vec::with_capacity(group.len());
            for (state, row) in self.next.iter().enumerate() {
                let seen = (group[state], row.iter().map(|&next| group[next]).collect());
                let fresh = known.len();
                finer.push(*known.entry(seen).or_insert(fresh));
            }
            let (before, now) = (count, known.len());
            (group, count) = (finer, now);
            if before == now {
                break;
            }
        }
        let mut next = vec![Vec::new(); count];
        let mut ends = vec![false; count];
        for (state, row) in self.next.iter().enumerate() {
            ends[group[state]] = self.ends[state];
            next[group[state]] = row.iter().map(|&next| group[next]).collect();
        }
        // The first state is in the first group.
        Self { kinds: self.kinds, next, ends }
    }

    /// Whether the automaton accepts a text.
    pub(super) fn accepts(&self, text: &str) -> bool {
        let kind_of = |c: char| {
            let inside = |kind: &ClassUnicode| {
                kind.ranges().iter().any(|range| range.start() <= c && c <= range.end())
            };
            self.kinds.iter().position(inside)
        };
        let mut state = 0;
        for c in text.chars() {
            let Some(kind) = kind_of(c) else { return false };
            state = self.next[state][kind];
        }
        self.ends[state]
    }

    /// Whether it accepts no text.
    pub(super) fn is_empty(&self) -> bool {
        // Every state can be reached.
        !self.ends.contains(&true)
    }

    /// A regular expression of the same language: states are removed one by one, and the ways
    /// through them become expressions (Brzozowski and McCluskey 1963). `None` where it is empty.
    pub(super) fn expression(&self, steps: &mut usize) -> Result<Option<Node>, Refusal> {
        let states = self.next.len();
        let live = self.live();
        // Two more states: before the first, and after every end.
        let (begin, end) = (states, states + 1);
        let mut ways: Vec<BTreeMap<usize, Node>> = vec![BTreeMap::new(); states + 2];
        for (state, row) in self.next.iter().enumerate().filter(|&(state, _)| live[state]) {
            for (kind, &to) in row.iter().enumerate().filter(|&(_, &to)| live[to]) {
                add(&mut ways[state], to, Node::class(self.kinds[kind].clone()));
            }
            if self.ends[state] {
                add(&mut ways[state], end, Node::Empty);
            }
        }
        if live[0] {
            add(&mut ways[begin], 0, Node::Empty);
        }
        let mut left: Vec<usize> = (0..states).filter(|&state| live[state]).collect();
        while !left.is_empty() {
            // What finding the cheapest takes.
            super::spend(steps, left.len() * ways.len() / 8)?;
            let cheapest = (0..left.len()).min_by_key(|&at| cost(&ways, left[at])).unwrap_or(0);
            let state = left.swap_remove(cheapest);
            let mut out = std::mem::take(&mut ways[state]);
            let around = out.remove(&state).map_or(Node::Empty, Node::star);
            for from in 0..ways.len() {
                let Some(way) = ways[from].remove(&state) else { continue };
                let way = way.then(around.clone());
                for (&to, rest) in &out {
                    add(&mut ways[from], to, way.clone().then(rest.clone()));
                }
            }
            let size: usize = ways.iter().flat_map(BTreeMap::values).map(Node::size).sum();
            // Ways of one character are many and small.
            if size > MAX_EXPRESSION_SIZE + 4 * states * self.kinds.len().min(states) {
                return Err(Refusal::too_large());
            }
            super::spend(steps, size / 8)?;
        }
        let whole = ways[begin].remove(&end);
        match whole {
            Some(node) if node.size() > MAX_EXPRESSION_SIZE => Err(Refusal::too_large()),
            whole => Ok(whole),
        }
    }

    /// States from which some text leads to an end.
    fn live(&self) -> Vec<bool> {
        let mut live = self.ends.clone();
        loop {
            let mut changed = false;
            for (state, row) in self.next.iter().enumerate() {
                if !live[state] && row.iter().any(|&next| live[next]) {
                    (live[state], changed) = (true, true);
                }
            }
            if !changed {
                return live;
            }
        }
    }
}

/// What removing a state adds to the expressions.
fn cost(ways: &[BTreeMap<usize, Node>], state: usize) -> usize {
    let around = ways[state].get(&state).map_or(0, Node::size);
    let into: Vec<usize> = (0..ways.len())
        .filter(|&from| from != state)
        .filter_map(|from| ways[from].get(&state).map(Node::size))
        .collect();
    let out: Vec<usize> =
        ways[state].iter().filter(|&(&to, _)| to != state).map(|(_, way)| way.size()).collect();
    into.iter().sum::<usize>() * out.len()
        + out.iter().sum::<usize>() * into.len()
        + around * into.len() * out.len()
}

fn add(ways: &mut BTreeMap<usize, Node>, to: usize, way: Node) {
    let way = match ways.remove(&to) {
        Some(other) => other.or(way),
        None => way,
    };
    ways.insert(to, way);
}
