//! A server over time: the pages of the last minute, for rates and latencies between two of them,
//! and one point per scrape for the chart. Knows no terminal and no clock: times are handed in, since
//! any fixed moment.
//!
//! All pages that are kept are of one server process: no difference spans a restart.

use std::collections::VecDeque;
use std::time::Duration;

use super::exposition::{ByLabel, Page};
use super::histogram::Histogram;
use super::scrape::{Problem, Scrape, State};

/// Rates are means over this time.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Latencies are of the observations in this time.
pub(super) const LATENCY_WINDOW: Duration = Duration::from_secs(60);
/// Time of one column of the chart, unless the interval is longer: a column has a point.
const COLUMN: Duration = Duration::from_secs(3);
/// Time that the chart reaches back, on the widest screen.
const HISTORY: Duration = Duration::from_secs(900);
/// Least time between two pages that are kept, and the last one.
const PAGE_GAP: Duration = Duration::from_secs(1);
/// Wait between two attempts to reach a server that is gone, unless the interval is longer.
const RETRY_WAIT: Duration = Duration::from_secs(3);

/// A server that is watched.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) url: String,
    /// Time between scrapes.
    pub(super) interval: Duration,
    pub(super) link: Link,
    /// When the server was first scraped after a restart.
    pub(super) restarted: Option<Duration>,
    /// By rising time, the last minute.
    pages: VecDeque<(Duration, Page)>,
    /// By rising time.
    points: VecDeque<(Duration, Point)>,
}

/// Whether the server answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Link {
    /// Not asked yet.
    Asking,
    Up(State),
    Lost {
        problem: Problem,
        retry_at: Duration,
    },
}

/// Two pages of one process, or one page twice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'a> {
    first: &'a Page,
    last: &'a Page,
    /// Time between the two; 0 of one page.
    pub(super) seconds: f64,
}

/// Tokens per second between a page and the one before it.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) prompt: f64,
    pub(super) reply: f64,
}

impl Watch {
    pub(super) fn new(url: String, interval: Duration) -> Self {
        let (pages, points) = (VecDeque::new(), VecDeque::new());
        Self { url, interval, link: Link::Asking, restarted: None, pages, points }
    }

    /// Takes up the outcome of a scrape; returns how long to wait before the next one.
    pub(super) fn record(&mut self, now: Duration, outcome: Result<Scrape, Problem>) -> Duration {
        match outcome {
            Ok(scrape) => {
                self.read(now, scrape);
                self.interval
            }
            Err(problem) => {
                let wait = self.interval.max(RETRY_WAIT);
                self.link = Link::Lost { problem, retry_at: now + wait };
                wait
            }
        }
    }

    fn read(&mut self, now: Duration, scrape: Scrape) {
        // The rates of the first scrape after a gap would be means over it.
        let gap = !matches!(self.link, Link::Up(_));
        self.link = Link::Up(scrape.state);
        if self.last().is_some_and(|last| scrape.page.began_after(last)) {
            self.pages.clear();
            self.restarted = Some(now);
        }
        let earlier = self.pages.len().checked_sub(2).and_then(|index| self.pages.get(index));
        if earlier.is_some_and(|(at, _)| now.saturating_sub(*at) < PAGE_GAP) {
            self.pages.pop_back();
        }
        self.pages.push_back((now, scrape.page));
        // One page from before the window stays: the differences reach back to it.
        while self.pages.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= LATENCY_WINDOW) {
            self.pages.pop_front();
        }
        if let Some(span) = self.span(Duration::ZERO).filter(|_| !gap)
            && let Some(prompt) = span.rate("perigee_prompt_tokens_total")
            && let Some(reply) = span.rate("perigee_generation_tokens_total")
        {
            self.points.push_back((now, Point { prompt, reply }));
        }
        while self.points.front().is_some_and(|(at, _)| now.saturating_sub(*at) > HISTORY) {
            self.points.pop_front();
        }
    }

    /// The last page.
    pub(super) fn last(&self) -> Option<&Page> {
        self.pages.back().map(|(_, page)| page)
    }

    /// When it was scraped.
    pub(super) fn last_at(&self) -> Option<Duration> {
        self.pages.back().map(|(at, _)| *at)
    }

    /// From the newest page that is at least `length` old to the last one; with fewer, from the
    /// first.
    pub(super) fn span(&self, length: Duration) -> Option<Span<'_>> {
        let (until, last) = self.pages.back()?;
        let age = |at: &Duration| until.saturating_sub(*at);
        let mut earlier = self.pages.iter().rev().skip(1);
        let (from, first) = earlier.find(|(at, _)| age(at) >= length).or(self.pages.front())?;
        Some(Span { first, last, seconds: age(from).as_secs_f64() })
    }

    /// Time of one column of the chart.
    pub(super) fn column(&self) -> Duration {
        COLUMN.max(self.interval)
    }

    /// Means of a figure over columns of time, of which the last has `now`; `None` where no point
    /// is. Columns begin at multiples of their length, so that a chart moves and its columns do not
    /// change.
    pub(super) fn columns(
        &self,
        num_columns: usize,
        now: Duration,
        figure: fn(&Point) -> f64,
    ) -> Vec<Option<f64>> {
        let column = self.column().as_secs_f64();
        let index = |time: Duration| (time.as_secs_f64() / column).floor() as usize;
        let mut sums = vec![(0.0, 0u32); num_columns];
        for (at, point) in &self.points {
            let age = index(now).checked_sub(index(*at)).filter(|age| *age < num_columns);
            if let Some(age) = age {
                let (sum, count) = &mut sums[num_columns - 1 - age];
                (*sum, *count) = (*sum + figure(point), *count + 1);
            }
        }
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect()
    }
}

impl Span<'_> {
    /// The lesser value of a gauge.
    pub(super) fn least(&self, gauge: &str) -> f64 {
        self.first.value(gauge).min(self.last.value(gauge))
    }

    /// Rise of a counter.
    pub(super) fn delta(&self, counter: &str) -> f64 {
        (self.last.value(counter) - self.first.value(counter)).max(0.0)
    }

    /// Rise of a counter per second; `None` of one page.
    pub(super) fn rate(&self, counter: &str) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.delta(counter) / self.seconds)
    }

    /// Rises of the counters of a family.
    pub(super) fn deltas(&self, family: &str, label: &str) -> ByLabel {
        let before = self.first.by_label(family, label);
        let mut deltas = self.last.by_label(family, label);
        let earlier = |label: &String| before.get(label).copied().unwrap_or(0.0);
        deltas.iter_mut().for_each(|(label, value)| *value = (*value - earlier(label)).max(0.0));
        deltas
    }

    /// Rises of the counters of a family per second. Counters that did not rise are left out.
    pub(super) fn rates(&self, family: &str, label: &str) -> ByLabel {
        let rises = self.deltas(family, label).into_iter().filter(|(_, delta)| *delta > 0.0);
        rises.map(|(label, delta)| (label, delta / self.seconds)).collect()
    }

    /// Observations of a histogram.
    pub(super) fn observed(&self, name: &str) -> Histogram {
        let sum = self.delta(&format!("{name}_sum"));
        Histogram::new(&self.deltas(&format!("{name}_bucket"), "le"), sum)
    }

    /// The share that one counter's rise is of another's; `None` if that did not rise.
    pub(super) fn share(&self, part: &str, whole: &str) -> Option<f64> {
        let whole = self.delta(whole);
        (whole > 0.0).then(|| self.delta(part) / whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const REPLY: &str = "perigee_generation_tokens_total";

    fn scrape(reply_tokens: f64) -> Result<Scrape, Problem> {
        let text = format!(
            "process_start_time_seconds 1\n{REPLY} {reply_tokens}\n\
             perigee_finished_sequences_total{{reason=\"stop\"}} {}\n\
             perigee_finished_sequences_total{{reason=\"error\"}} 1\n",
            reply_tokens / 10.0
        );
        let state = State { word: "ready".into(), notice: None, boot: None };
        Ok(Scrape { state, page: Page::parse(&text, 0.0).unwrap() })
    }

    fn problem() -> Result<Scrape, Problem> {
        Err(Problem { kind: "unreachable", text: "refused".into() })
    }

    fn watch(scrapes: &[(u32, f64)]) -> Watch {
        let mut watch = Watch::new("u".into(), SECOND);
        for (at, tokens) in scrapes {
            watch.record(SECOND * *at, scrape(*tokens));
        }
        watch
    }

    #[test]
    fn a_server_that_is_gone_is_asked_again_and_comes_back() {
        let mut watch = watch(&[(1, 1.0)]);
        let waits: Vec<u64> = (2..4).map(|at| watch.record(SECOND * at, problem()).as_secs()).collect();
        assert_eq!(waits, [3, 3]);
        assert!(matches!(&watch.link, Link::Lost { retry_at, .. } if *retry_at == SECOND * 6));
        assert_eq!(watch.record(SECOND * 12, scrape(2.0)), SECOND);
        assert!(matches!(watch.link, Link::Up(_)) && watch.restarted.is_none());
    }

    #[test]
    fn rates_reach_back_to_the_window() {
        let check = |scrapes: &[(u32, f64)], expected: Option<f64>| {
            assert_eq!(watch(scrapes).span(RATE_WINDOW).and_then(|span| span.rate(REPLY)), expected);
        };
        check(&[], None);
        check(&[(0, 5.0)], None);
        check(&[(0, 5.0), (2, 9.0)], Some(2.0));
        check(&[(0, 0.0), (10, 100.0), (20, 300.0)], Some(20.0));
        check(&[(0, 0.0), (11, 100.0), (20, 300.0)], Some(15.0));
        // Pages that are further apart than the window.
        check(&[(0, 0.0), (100, 100.0), (200, 300.0)], Some(2.0));
    }

    #[test]
    fn families() {
        let watch = watch(&[(0, 0.0), (2, 40.0)]);
        let span = watch.span(Duration::ZERO).unwrap();
        let rates = span.rates("perigee_finished_sequences_total", "reason");
        assert_eq!(rates, ByLabel::from([("stop".into(), 2.0)]));
        assert_eq!(span.share(REPLY, "perigee_prompt_tokens_total"), None);
        assert_eq!(span.share("perigee_finished_sequences_total", REPLY), Some(0.1));
    }

    #[test]
    fn no_difference_spans_a_restart() {
        let mut watch = watch(&[(0, 1000.0), (1, 2000.0), (2, 10.0)]);
        assert_eq!(watch.restarted, Some(SECOND * 2));
        assert_eq!(watch.span(RATE_WINDOW).unwrap().rate(REPLY), None);
        watch.record(SECOND * 3, scrape(15.0));
        assert_eq!(watch.span(RATE_WINDOW).unwrap().rate(REPLY), Some(5.0));
        assert_eq!(watch.points.len(), 2);
    }

    #[test]
    fn pages_and_points_are_bounded() {
        let mut watch = watch(&[]);
        for at in 0..10_000 {
            watch.record(Duration::from_millis(at * 100), scrape(at as f64));
        }
        assert!(watch.pages.len() < 70, "{}", watch.pages.len());
        assert_eq!(watch.points.len(), 9001);
        let minute = watch.span(LATENCY_WINDOW).unwrap();
        assert!((60.0..61.5).contains(&minute.seconds) && minute.rate(REPLY) == Some(10.0));
    }

    #[test]
    fn columns_have_the_means_of_their_points() {
        let mut watch = watch(&[(1, 0.0), (2, 10.0)]);
        watch.record(SECOND * 3, problem());
        for (at, tokens) in [(9, 100.0), (10, 120.0), (11, 180.0)] {
            watch.record(SECOND * at, scrape(tokens));
        }
        let columns = |now: u32| watch.columns(6, SECOND * now, |point| point.reply);
        assert_eq!(columns(11), [None, None, Some(10.0), None, None, Some(40.0)]);
        assert_eq!(columns(13), [None, Some(10.0), None, None, Some(40.0), None]);
        assert_eq!(columns(500), [None; 6]);
    }
}
