//! What is shown of a watched server: figures of the last seconds, and what needs attention.

use std::time::Duration;

use super::format::{count, duration, percent};
use super::histogram::Histogram;
use super::reading::{ByLabel, Reading};
use super::scrape::ServerState;
use super::watch::{Link, Watch};
use super::window::{LATENCY_WINDOW, RATE_WINDOW, Span};

/// Sequences run, and no step has ended for this long: worth a line.
const SLOW_STEP_S: f64 = 10.0;
/// Sequences that wait for this long are worth a line; between two steps some always do.
const QUEUE_LASTS: Duration = Duration::from_secs(5);
/// A cache this full makes sequences wait.
const FULL_CACHE: f64 = 0.95;

/// Figures between two scrapes; `Option` where there may be nothing to divide by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figures {
    /// Time that rates are means over, seconds.
    pub(super) rate_seconds: f64,
    /// Time that latencies, shares and findings are of, seconds.
    pub(super) latency_seconds: f64,
    /// Per second, from here on.
    pub(super) prompt_tokens: f64,
    pub(super) reply_tokens: f64,
    pub(super) finished: ByLabel,
    /// Answers of 400 and above, by status.
    pub(super) errors: ByLabel,
    pub(super) rejected: ByLabel,
    pub(super) refused_connections: f64,
    pub(super) preemptions: f64,
    pub(super) drafts: f64,
    pub(super) cores: f64,
    pub(super) steps: f64,
    /// Share of the time in which the engine is in a step.
    pub(super) busy: f64,
    /// Prompt and reply tokens of one step.
    pub(super) tokens_per_step: Option<f64>,
    /// Of the latency window, from here on.
    pub(super) first_token: Latency,
    pub(super) inter_token: Latency,
    pub(super) step: Latency,
    /// Shares of the time of steps, by part.
    pub(super) step_parts: ByLabel,
    /// Share of the prompt tokens that the prefix cache had.
    pub(super) prefix_hits: Option<f64>,
    /// Share of the drafted tokens that were accepted.
    pub(super) acceptance: Option<f64>,
    /// Tokens that a sequence gains in a step that checks a draft.
    pub(super) tokens_per_draft: Option<f64>,
    /// Findings of the guard, by action.
    pub(super) guard_actions: ByLabel,
    pub(super) numeric_faults: f64,
}

/// A latency, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latency {
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) mean: Option<f64>,
    /// Observations.
    pub(super) count: f64,
}

impl Latency {
    fn of(histogram: &Histogram) -> Self {
        Self {
            p50: histogram.quantile(0.5),
            p99: histogram.quantile(0.99),
            mean: histogram.mean(),
            count: histogram.count(),
        }
    }
}

impl Figures {
    /// `None` of fewer than two scrapes.
    pub(super) fn of(watch: &Watch) -> Option<Self> {
        let recent = watch.window.span(RATE_WINDOW)?;
        let minute = watch.window.span(LATENCY_WINDOW)?;
        let mut errors = recent.rates(|r| &r.http);
        errors.retain(|status, _| status.parse().is_ok_and(|status: u16| status >= 400));
        let steps = recent.rate(|r| r.step.count());
        let drafts = minute.delta(|r| r.drafts);
        // Cached prompt tokens are in no step.
        let computed = |r: &Reading| r.reply_tokens + r.prompt_tokens - r.prefix_hit;
        Some(Self {
            rate_seconds: recent.seconds(),
            latency_seconds: minute.seconds(),
            prompt_tokens: recent.rate(|r| r.prompt_tokens),
            reply_tokens: recent.rate(|r| r.reply_tokens),
            finished: recent.rates(|r| &r.finished),
            errors,
            rejected: recent.rates(|r| &r.rejected),
            refused_connections: recent.rate(|r| r.refused_connections),
            preemptions: recent.rate(|r| r.preemptions),
            drafts: recent.rate(|r| r.drafts),
            cores: recent.rate(|r| r.cpu_seconds),
            steps,
            busy: recent.rate(|r| r.step.sum()).min(1.0),
            tokens_per_step: (steps > 0.0).then(|| recent.rate(computed) / steps),
            first_token: Latency::of(&minute.observed(|r| &r.first_token)),
            inter_token: Latency::of(&minute.observed(|r| &r.inter_token)),
            step: Latency::of(&minute.observed(|r| &r.step)),
            step_parts: shares(&minute),
            prefix_hits: minute.share(|r| r.prefix_hit, |r| r.prefix_queried),
            acceptance: minute.share(|r| r.accepted, |r| r.drafted),
            tokens_per_draft: (drafts > 0.0).then(|| 1.0 + minute.delta(|r| r.accepted) / drafts),
            guard_actions: minute.deltas(|r| &r.guard_actions),
            numeric_faults: minute.delta(|r| r.numeric_faults),
        })
    }

    /// Sequences that ended, per second.
    pub(super) fn all_finished(&self) -> f64 {
        self.finished.values().sum()
    }
}

fn shares(span: &Span<'_>) -> ByLabel {
    let parts = span.deltas(|r| &r.step_parts);
    let total: f64 = parts.values().sum();
    parts.into_iter().map(|(part, seconds)| (part, seconds / total)).collect()
}

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

/// One line on what needs attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) weight: Weight,
    pub(super) text: String,
}

/// What needs attention: the server's state, then its figures, worst first.
pub(super) fn notices(watch: &Watch, figures: Option<&Figures>, now_s: f64) -> Vec<Notice> {
    let mut notices = state_notice(watch, now_s).into_iter().collect::<Vec<_>>();
    let num_state = notices.len();
    let mut say = |weight, text: String| notices.push(Notice { weight, text });
    if let (Link::Up(state), Some(last)) = (&watch.link, watch.window.last()) {
        if last.running > 0.0 && last.since_last_step > SLOW_STEP_S && *state != ServerState::EngineStuck {
            let text = format!("no step has ended for {}", duration(last.since_last_step));
            say(Weight::Problem, text);
        }
        if let Some(figures) = figures {
            let queue_lasts = watch.window.least(QUEUE_LASTS, |r| r.waiting).is_some_and(|least| least > 0.0);
            pressing(last, figures, queue_lasts, &mut say);
        }
        if let Some(at) = watch.restarted {
            let age = now_s - at.as_secs_f64();
            if age < LATENCY_WINDOW.as_secs_f64() {
                say(Weight::Note, format!("the server was restarted, noticed {} ago", duration(age)));
            }
        }
    }
    notices[num_state..].sort_by_key(|notice| std::cmp::Reverse(notice.weight));
    notices
}

/// What is to be said of the server's state.
fn state_notice(watch: &Watch, now_s: f64) -> Option<Notice> {
    let (weight, text) = match &watch.link {
        Link::Asking | Link::Up(ServerState::Ready | ServerState::Booting(_)) => return None,
        Link::Lost(loss) => {
            let wait = (loss.retry_at.as_secs_f64() - now_s).max(0.0).ceil();
            let next = if wait > 0.0 { format!("next attempt in {wait} s") } else { "asking again".into() };
            let seen = loss.last_seen.map_or(String::new(), |at| {
                format!(", figures of {} ago", duration(now_s - at.as_secs_f64()))
            });
            (Weight::Problem, format!("{}; {next}{seen}", loss.problem.text))
        }
        Link::Up(state) => match state {
            ServerState::Leaving => {
                (Weight::Warning, "the server leaves: routers are told to send no more".into())
            }
            ServerState::Draining => {
                (Weight::Warning, "the server ends: running requests go on, new ones are refused".into())
            }
            ServerState::Failed(reason) => (Weight::Problem, format!("the boot failed: {reason}")),
            ServerState::EngineStopped => (Weight::Problem, "the engine has stopped".into()),
            ServerState::EngineStuck => (Weight::Problem, "the engine is stuck in a step".into()),
            state => (Weight::Warning, format!("the server says: {}", state.word())),
        },
    };
    Some(Notice { weight, text })
}

fn pressing(last: &Reading, figures: &Figures, queue_lasts: bool, say: &mut impl FnMut(Weight, String)) {
    let failures: f64 = figures.errors.iter().filter(|(s, _)| s.starts_with('5')).map(|(_, rate)| rate).sum();
    if failures > 0.0 {
        say(Weight::Problem, format!("{} answers/s are server errors", count(failures)));
    }
    if figures.numeric_faults > 0.0 {
        say(Weight::Problem, format!("{} replies ended for invalid logits", count(figures.numeric_faults)));
    }
    let rejected: f64 = figures.rejected.values().sum();
    if rejected > 0.0 {
        let limits: Vec<&str> = figures.rejected.keys().map(String::as_str).collect();
        say(
            Weight::Warning,
            format!("{} requests/s are refused: the queue is full ({})", count(rejected), limits.join(", ")),
        );
    }
    if figures.refused_connections > 0.0 {
        let rate = count(figures.refused_connections);
        say(Weight::Warning, format!("{rate} connections/s are refused (server.max_connections)"));
    }
    if figures.preemptions > 0.0 {
        let rate = count(figures.preemptions);
        say(Weight::Warning, format!("{rate} preemptions/s: the KV cache is too small for what runs"));
    }
    let used = last.cache_use();
    if queue_lasts {
        let waiting = count(last.waiting);
        say(
            Weight::Warning,
            match used > FULL_CACHE {
                true => format!("{waiting} wait: the KV cache is {} full", percent(Some(used))),
                false => format!("{waiting} wait while {} run", count(last.running)),
            },
        );
    }
    let stopped = figures.guard_actions.get("stopped").copied().unwrap_or(0.0);
    if stopped > 0.0 {
        say(Weight::Note, format!("the guard ended {} replies in the last minute", count(stopped)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::scrape::{Problem, Scrape};

    /// A server that changes, and then stays so for as long as a queue needs to be noticed; all rates are means over 10 s.
    fn watch(state: ServerState, change: impl Fn(&mut Reading)) -> Watch {
        let mut watch = Watch::new("u".into(), Duration::from_secs(1));
        let mut reading = Reading { blocks_free: 100.0, ..Reading::default() };
        watch.record(Duration::from_secs(1), Ok(Scrape { state: state.clone(), reading: reading.clone() }));
        change(&mut reading);
        for at in 6..=11 {
            watch.record(
                Duration::from_secs(at),
                Ok(Scrape { state: state.clone(), reading: reading.clone() }),
            );
        }
        watch
    }

    fn said(watch: &Watch) -> Vec<String> {
        let figures = Figures::of(watch);
        notices(watch, figures.as_ref(), 12.0).into_iter().map(|notice| notice.text).collect()
    }

    #[test]
    fn shares_of_nothing_are_none() {
        let figures = Figures::of(&watch(ServerState::Ready, |_| {})).unwrap();
        assert_eq!((figures.prefix_hits, figures.acceptance, figures.tokens_per_step), (None, None, None));
        assert_eq!((figures.first_token.p50, figures.busy, figures.all_finished()), (None, 0.0, 0.0));
        assert!(Figures::of(&Watch::new("u".into(), Duration::from_secs(1))).is_none());
    }

    #[test]
    fn figures_of_drafts_and_steps() {
        let watch = watch(ServerState::Ready, |r| {
            (r.drafted, r.accepted, r.drafts) = (10.0, 8.0, 4.0);
            (r.prefix_queried, r.prefix_hit, r.prompt_tokens, r.reply_tokens) = (40.0, 10.0, 40.0, 20.0);
            r.step = Histogram::new(vec![(1.0, 5.0), (f64::INFINITY, 5.0)], 5.0);
            r.step_parts = ByLabel::from([("forward".into(), 0.4), ("sample".into(), 0.1)]);
            r.http = ByLabel::from([("200".into(), 10.0), ("429".into(), 20.0), ("x".into(), 90.0)]);
        });
        let figures = Figures::of(&watch).unwrap();
        assert_eq!((figures.acceptance, figures.tokens_per_draft), (Some(0.8), Some(3.0)));
        assert_eq!((figures.prefix_hits, figures.tokens_per_step), (Some(0.25), Some(10.0)));
        assert_eq!((figures.busy, figures.step_parts["forward"]), (0.5, 0.8));
        assert_eq!(figures.errors, ByLabel::from([("429".into(), 2.0)]));
    }

    #[test]
    fn what_needs_attention() {
        let check = |state: ServerState, change: &dyn Fn(&mut Reading), expected: &[&str]| {
            assert_eq!(said(&watch(state, change)), expected);
        };
        check(ServerState::Ready, &|_| {}, &[]);
        check(ServerState::EngineStopped, &|_| {}, &["the engine has stopped"]);
        check(ServerState::Ready, &|r| (r.waiting, r.running) = (3.0, 8.0), &["3 wait while 8 run"]);
        check(
            ServerState::Ready,
            &|r| (r.waiting, r.blocks_used, r.blocks_free, r.preemptions) = (3.0, 99.0, 1.0, 20.0),
            &[
                "2 preemptions/s: the KV cache is too small for what runs",
                "3 wait: the KV cache is 99 % full",
            ],
        );
        check(
            ServerState::Draining,
            &|r| r.http = ByLabel::from([("503".into(), 40.0)]),
            &[
                "the server ends: running requests go on, new ones are refused",
                "4 answers/s are server errors",
            ],
        );
        check(
            ServerState::Ready,
            &|r| (r.running, r.since_last_step) = (1.0, 75.0),
            &["no step has ended for 1 min 15 s"],
        );
        check(
            ServerState::Ready,
            &|r| r.rejected = ByLabel::from([("max_queue_len".into(), 10.0)]),
            &["1 requests/s are refused: the queue is full (max_queue_len)"],
        );
        check(
            ServerState::Ready,
            &|r| r.facts.started = Some(7.0),
            &["the server was restarted, noticed 6 s ago"],
        );
    }

    #[test]
    fn a_server_that_is_gone() {
        let mut watch = watch(ServerState::Ready, |r| r.waiting = 5.0);
        watch.record(Duration::from_secs(12), Err(Problem { kind: "unreachable", text: "refused".into() }));
        assert_eq!(said(&watch), ["refused; next attempt in 1 s, figures of 1 s ago"]);
    }
}
