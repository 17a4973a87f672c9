//! Token counts of prompt and reply, for the penalties. Sparse; kept only for requests with a
//! penalty.

use std::collections::HashMap;

/// The set of prompt tokens and the count of each reply token.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// One entry per distinct token, in order of first appearance; removed tokens keep theirs, with
    /// a count of 0.
    entries: Vec<Entry>,
    index: HashMap<u32, u32>,
}

/// Counts of one token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) token: u32,
    pub(super) in_prompt: bool,
    pub(super) in_reply: u32,
}

impl History {
    /// Counts of a prompt with an empty reply. Sequences without penalties use the empty
    /// `History::default()`.
    pub fn new(prompt: &[u32]) -> Self {
        let mut history = Self::default();
        for &token in prompt {
            let entry = history.entry(token);
            history.entries[entry].in_prompt = true;
        }
        history
    }

    /// Counts a further reply token.
    pub fn add(&mut self, token: u32) {
        let entry = self.entry(token);
        self.entries[entry].in_reply += 1;
    }

    /// Takes a reply token back; no effect on one that is not counted.
    pub fn remove(&mut self, token: u32) {
        if let Some(&entry) = self.index.get(&token) {
            let count = &mut self.entries[entry as usize].in_reply;
            *count = count.saturating_sub(1);
        }
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn entry(&mut self, token: u32) -> usize {
        let entries = &mut self.entries;
        let index = self.index.entry(token).or_insert_with(|| {
            entries.push(Entry { token, in_prompt: false, in_reply: 0 });
            entries.len() as u32 - 1
        });
        *index as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(history: &History) -> Vec<(u32, bool, u32)> {
        let mut counts: Vec<_> = history
            .entries()
            .iter()
            .filter(|entry| entry.in_prompt || entry.in_reply > 0)
            .map(|entry| (entry.token, entry.in_prompt, entry.in_reply))
            .collect();
        counts.sort_unstable();
        counts
    }

    #[test]
    fn counts_prompt_and_reply_apart() {
        let mut history = History::new(&[5, 7, 5]);
        for token in [7, 9, 9] {
            history.add(token);
        }
        assert_eq!(counts(&history), [(5, true, 0), (7, true, 1), (9, false, 2)]);
    }

    #[test]
    fn rewound_then_continued_equals_never_having_gone_there() {
        let mut rng = fastrand::Rng::with_seed(6);
        let mut tokens = |most| -> Vec<u32> { (0..rng.usize(0..most)).map(|_| rng.u32(0..8)).collect() };
        for _ in 0..1_000 {
            let (prompt, kept, lost, new) = (tokens(6), tokens(9), tokens(9), tokens(9));
            let mut rewound = History::new(&prompt);
            kept.iter().chain(&lost).for_each(|&token| rewound.add(token));
            lost.iter().for_each(|&token| rewound.remove(token));
            rewound.remove(8);
            new.iter().for_each(|&token| rewound.add(token));
            let mut straight = History::new(&prompt);
            kept.iter().chain(&new).for_each(|&token| straight.add(token));
            assert_eq!(counts(&rewound), counts(&straight));
        }
    }
}
