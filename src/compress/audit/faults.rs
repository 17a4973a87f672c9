//! Faults of an audited folder: all are counted, the first are kept.

use serde::Serialize;

/// Most faults that are written out; all are counted.
const MAX_LISTED: usize = 200;

/// What is wrong, one line each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// All.
    pub count: usize,
    /// The first 200.
    pub listed: Vec<String>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: String) {
        self.count += 1;
        if self.listed.len() < MAX_LISTED {
            self.listed.push(fault);
        }
    }
}
