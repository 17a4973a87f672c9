//! What is known of a server over time. Knows no terminal and no clock: times are handed in, since any fixed moment.

use std::time::Duration;

use super::history::{History, Point};
use super::scrape::{Problem, Scrape, ServerState};
use super::window::Window;

/// Longest wait between two attempts to reach a server that is gone, unless the interval is longer.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(3);

/// A server that is watched.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) url: String,
    /// Time between scrapes.
    pub(super) interval: Duration,
    pub(super) link: Link,
    pub(super) window: Window,
    pub(super) history: History,
    /// When it was first scraped after a restart.
    pub(super) restarted: Option<Duration>,
}

/// Whether the server answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Link {
    /// Not asked yet.
    Asking,
    Up(ServerState),
    Lost(Loss),
}

/// Attempts without an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Loss {
    pub(super) problem: Problem,
    pub(super) attempts: u32,
    /// When the last answer came; `None` of no answer so far.
    pub(super) last_seen: Option<Duration>,
    /// When the next attempt begins.
    pub(super) retry_at: Duration,
}

impl Watch {
    pub(super) fn new(url: String, interval: Duration) -> Self {
        Self {
            url,
            interval,
            link: Link::Asking,
            window: Window::default(),
            history: History::default(),
            restarted: None,
        }
    }

    /// Takes up the outcome of a scrape; returns how long to wait before the next one.
    pub(super) fn record(&mut self, now: Duration, outcome: Result<Scrape, Problem>) -> Duration {
        match outcome {
            Ok(scrape) => {
                self.read(now, scrape);
                self.interval
            }
            Err(problem) => {
                let (attempts, last_seen) = match &self.link {
                    Link::Asking => (1, None),
                    Link::Up(_) => (1, self.window.last_at()),
                    Link::Lost(loss) => (loss.attempts.saturating_add(1), loss.last_seen),
                };
                let wait = self.interval.saturating_mul(1 << (attempts - 1).min(16));
                let wait = wait.min(MAX_RETRY_WAIT.max(self.interval));
                self.link = Link::Lost(Loss { problem, attempts, last_seen, retry_at: now + wait });
                wait
            }
        }
    }

    fn read(&mut self, now: Duration, scrape: Scrape) {
        // The rates of the first scrape after a gap would be means over it.
        let gap = !matches!(self.link, Link::Up(_));
        self.link = Link::Up(scrape.state);
        if self.window.push(now, scrape.reading) {
            self.restarted = Some(now);
        }
        if let Some(last) = self.window.last()
            && let Some(step) = self.window.step().filter(|_| !gap)
        {
            let point = Point {
                prompt: step.rate(|r| r.prompt_tokens),
                reply: step.rate(|r| r.reply_tokens),
                running: last.running,
                waiting: last.waiting,
                cache: last.cache_use(),
                busy: step.rate(|r| r.step.sum()).min(1.0),
                first_token: step.observed(|r| &r.first_token).mean(),
                inter_token: step.observed(|r| &r.inter_token).mean(),
            };
            self.history.push(now, point);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::reading::Reading;

    const SECOND: Duration = Duration::from_secs(1);

    fn scrape(reply_tokens: f64) -> Result<Scrape, Problem> {
        Ok(Scrape { state: ServerState::Ready, reading: Reading { reply_tokens, ..Reading::default() } })
    }

    fn problem() -> Result<Scrape, Problem> {
        Err(Problem { kind: "unreachable", text: "refused".into() })
    }

    #[test]
    fn a_server_that_is_gone_is_asked_less_often_and_comes_back() {
        let mut watch = Watch::new("u".into(), SECOND);
        assert_eq!(watch.record(SECOND, scrape(1.0)), SECOND);
        let waits: Vec<u64> = (2..8).map(|at| watch.record(SECOND * at, problem()).as_secs()).collect();
        assert_eq!(waits, [1, 2, 3, 3, 3, 3]);
        let Link::Lost(loss) = &watch.link else { panic!("{:?}", watch.link) };
        assert_eq!((loss.attempts, loss.last_seen, loss.retry_at), (6, Some(SECOND), SECOND * 10));
        assert_eq!(watch.record(SECOND * 12, scrape(2.0)), SECOND);
        assert_eq!((&watch.link, watch.restarted), (&Link::Up(ServerState::Ready), None));
        assert_eq!(watch.record(SECOND * 13, scrape(1.0)), SECOND);
        assert_eq!(watch.restarted, Some(SECOND * 13));
    }

    #[test]
    fn waits_are_bounded() {
        let mut watch = Watch::new("u".into(), SECOND * 30);
        for _ in 0..100 {
            assert_eq!(watch.record(SECOND, problem()), SECOND * 30);
        }
        assert!(matches!(&watch.link, Link::Lost(loss) if loss.last_seen.is_none()));
    }

    #[test]
    fn points_have_the_rates_of_their_interval() {
        let mut watch = Watch::new("u".into(), SECOND);
        for (at, tokens) in [(1, Some(0.0)), (2, Some(10.0)), (3, None), (9, Some(100.0)), (10, Some(120.0))]
        {
            watch.record(SECOND * at, tokens.map_or_else(problem, scrape));
        }
        let columns = watch.history.columns(10, SECOND, SECOND * 10, |point| Some(point.reply));
        let expected = [None, Some(10.0), None, None, None, None, None, None, None, Some(20.0)];
        assert_eq!(columns, expected);
    }
}
