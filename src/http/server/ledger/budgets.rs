//! What each client has used of the running day and month.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::moment;
use super::line::Line;

/// Tokens of clients in the running day and month, UTC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Budgets {
    /// The day that is counted.
    day: String,
    /// By client: of the day, of its month.
    clients: BTreeMap<String, [u64; 2]>,
}

impl Budgets {
    /// Counts a line.
    pub(super) fn count(&mut self, line: &Line) {
        let Line::End(ended) = line else { return };
        self.roll(&ended.opened.at);
        if let Some(client) = &ended.opened.client {
            let tokens = ended.tokens.total();
            let spent = self.clients.entry(client.clone()).or_default();
            *spent = spent.map(|sum| sum.saturating_add(tokens));
        }
    }

    /// Tokens of a client in the day and in the month of the moment `at`.
    pub(super) fn of(&mut self, client: &str, at: &str) -> [u64; 2] {
        self.roll(at);
        self.clients.get(client).copied().unwrap_or_default()
    }

    /// Begins the day of `at`. A clock that goes back begins none.
    fn roll(&mut self, at: &str) {
        let Some(((day, month), begun)) = at.get(..10).map(moment::day_and_month).zip(self.day.get(..7))
        else {
            self.day = at.get(..10).unwrap_or_default().into();
            return;
        };
        if month > begun {
            self.clients.clear();
        } else if *day > *self.day {
            self.clients.values_mut().for_each(|[of_day, _]| *of_day = 0);
        } else {
            return;
        }
        self.day = day.into();
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::{Ended, Opened, Tokens};
    use super::*;

    #[test]
    fn days_and_months_begin_anew() {
        let mut budgets = Budgets::default();
        let mut used = |at: &str, tokens: u64| {
            let opened = Opened {
                number: 1,
                at: at.into(),
                id: String::new(),
                client: Some("a".into()),
                route: String::new(),
            };
            let tokens = Tokens { prompt_tokens: tokens, ..Tokens::default() };
            let ended =
                Ended { opened, request_id: None, status: 200, finish: String::new(), tokens, seconds: 0.0 };
            budgets.count(&Line::End(ended));
            budgets.of("a", at)
        };
        assert_eq!(used("2026-11-29T10:00:00.000Z", 3), [3, 3]);
        assert_eq!(used("2026-11-29T23:59:59.999Z", 4), [7, 7]);
        assert_eq!(used("2026-11-30T00:00:00.000Z", 5), [5, 12]);
        // A clock that was set back by a second.
        assert_eq!(used("2026-11-29T23:59:59.500Z", 1), [6, 13]);
        assert_eq!(used("2026-12-01T00:00:00.000Z", 2), [2, 2]);
        assert_eq!(budgets.of("a", "2026-12-02T00:00:00.000Z"), [0, 2]);
        assert_eq!(budgets.of("b", "2027-01-01T00:00:00.000Z"), [0, 0]);
        assert_eq!(budgets.of("a", "2027-01-01T00:00:00.000Z"), [0, 0]);
    }
}
