//! One counter for every period up to a limit: the definition that [`super::Periods`] is tested
//! against. Requests with a rule of their own in vLLM's form run on these counters, because two
//! copies of two tokens may count there.

/// `repetition_detection` as vLLM has it: stop when the last `min_count` copies of any unit of
/// `min_size` to `max_size` tokens are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatternRule {
    /// Shortest unit, at least 1.
    pub min_size: u32,
    /// Longest unit, at most [`PatternRule::LONGEST`].
    pub max_size: u32,
    /// Copies, at least 2.
    pub min_count: u32,
}

impl PatternRule {
    /// Longest unit of a rule: each token costs a pass over this many counters.
    pub const LONGEST: u32 = 1024;
}

/// Runs at every period `1..=limit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllPeriods {
    /// `runs[p - 1]`: newest tokens that equal those `p` before them.
    runs: Vec<u32>,
}

impl AllPeriods {
    /// Counters for periods up to `limit`.
    pub fn new(limit: u32) -> Self {
        Self { runs: vec![0; limit as usize] }
    }

    /// Sets every run to 0.
    pub fn clear(&mut self) {
        self.runs.fill(0);
    }

    /// Counts the last token of `tokens`; earlier calls counted the tokens before it.
    pub fn push(&mut self, tokens: &[u32]) {
        let newest = tokens.len() - 1;
        let before = newest.min(self.runs.len());
        for (run, other) in self.runs[..before].iter_mut().zip(tokens[..newest].iter().rev()) {
            *run = if *other == tokens[newest] { *run + 1 } else { 0 };
        }
    }

    /// Newest tokens that equal those `period` before them; `period` is from 1 to the limit.
    pub fn run(&self, period: u32) -> u32 {
        self.runs[period as usize - 1]
    }

    /// The shortest period at which `rule` is met.
    pub fn meets(&self, rule: &PatternRule) -> Option<u32> {
        (rule.min_size.max(1)..=rule.max_size.min(self.runs.len() as u32))
            .find(|&period| self.run(period) >= period * (rule.min_count - 1))
    }
}
