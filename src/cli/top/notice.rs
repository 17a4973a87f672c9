//! One line that asks for attention.

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// Worth knowing.
    Note,
    /// Costs speed or requests.
    Warning,
    /// Does not work.
    Problem,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) weight: Weight,
    pub(super) text: String,
}

impl Weight {
    pub(super) fn says(self, text: impl Into<String>) -> Notice {
        Notice { weight: self, text: text.into() }
    }
}
