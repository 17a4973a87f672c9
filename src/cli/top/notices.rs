//! Notices: the server's state, then its figures, worst first.

use std::time::Duration;

use super::exposition::Page;
use super::format::{count, duration, percent};
use super::notice::{Notice, Weight};
use super::watch::{LATENCY_WINDOW, Link, RATE_WINDOW, Span, Watch};
use perigee_telemetry::SLOW_RANK;

/// Sequences run, and no step has ended for this long: worth a line.
const SLOW_STEP_S: f64 = 10.0;
/// Sequences that wait for this long are worth a line; between two steps some always do.
const QUEUE_LASTS: Duration = Duration::from_secs(5);
/// A cache this full makes sequences wait.
const FULL_CACHE: f64 = 0.95;

/// `now_s`: seconds on the clock of the watch.
pub(super) fn notices(watch: &Watch, now_s: f64) -> Vec<Notice> {
    let age = |at: Duration| now_s - at.as_secs_f64();
    let (state, last) = match &watch.link {
        Link::Asking => return Vec::new(),
        Link::Lost { problem, retry_at } => {
            let wait = (-age(*retry_at)).ceil();
            let next = if wait > 0.0 { format!("next attempt in {wait} s") } else { "asking again".into() };
            let seen = watch.last_at().map(|at| format!(", figures of {} ago", duration(age(at))));
            let seen = seen.unwrap_or_default();
            return vec![Weight::Problem.says(format!("{}; {next}{seen}", problem.text))];
        }
        Link::Up(state) => (state.notice.clone(), watch.last()),
    };
    let restarted = watch.restarted.map(age).filter(|age| *age < LATENCY_WINDOW.as_secs_f64());
    let restarted = restarted.map(|age| format!("the server was restarted, noticed {} ago", duration(age)));
    let is_told = state.as_ref().is_some_and(|notice| notice.weight == Weight::Problem);
    let mut figures = last.map_or_else(Vec::new, |last| of_figures(watch, last, is_told));
    figures.extend(restarted.map(|text| Weight::Note.says(text)));
    figures.sort_by_key(|notice| std::cmp::Reverse(notice.weight));
    state.into_iter().chain(figures).collect()
}

/// Figures that are not as they should be. `is_told`: a notice of the state explains a slow step.
fn of_figures(watch: &Watch, last: &Page, is_told: bool) -> Vec<Notice> {
    const QUEUE: &str = "perigee_queue_sequences";
    let mut notices = Vec::new();
    let mut say = |weight: Weight, text: String| notices.push(weight.says(text));
    let (running, since) =
        (last.value("perigee_running_sequences"), last.value("perigee_since_last_step_seconds"));
    if running > 0.0 && since > SLOW_STEP_S && !is_told {
        say(Weight::Problem, format!("no step has ended for {}", duration(since)));
    }
    if let Some(span) = watch.span(RATE_WINDOW) {
        let statuses = span.rates("perigee_http_requests_total", "status");
        let failures: f64 = statuses.iter().filter(|(s, _)| s.starts_with('5')).map(|(_, rate)| rate).sum();
        if failures > 0.0 {
            say(Weight::Problem, format!("{} answers/s are server errors", count(failures)));
        }
        let rejected = span.rates("perigee_rejected_requests_total", "limit");
        if !rejected.is_empty() {
            let rate = count(rejected.values().sum::<f64>());
            let limits = rejected.into_keys().collect::<Vec<_>>().join(", ");
            say(Weight::Warning, format!("{rate} requests/s are refused: the queue is full ({limits})"));
        }
        for (counter, text) in [
            ("perigee_http_refused_connections_total", "connections/s are refused (server.max_connections)"),
            ("perigee_preemptions_total", "preemptions/s: the KV cache is too small for what runs"),
        ] {
            if let Some(rate) = span.rate(counter).filter(|rate| *rate > 0.0) {
                say(Weight::Warning, format!("{} {text}", count(rate)));
            }
        }
    }
    for (rank, errors) in last.by_label("perigee_gpu_ecc_uncorrected_errors_total", "rank") {
        if errors > 0.0 {
            say(Weight::Problem, format!("GPU {rank}: {} uncorrected memory errors", count(errors)));
        }
    }
    for (rank, slowness) in last.by_label("perigee_rank_slowness_ratio", "rank") {
        if slowness > SLOW_RANK {
            say(Weight::Warning, format!("GPU {rank} takes {} times as long as the others", count(slowness)));
        }
    }
    let lasts = |span: &Span<'_>| span.seconds >= QUEUE_LASTS.as_secs_f64() && span.least(QUEUE) > 0.0;
    if watch.span(QUEUE_LASTS).is_some_and(|span| lasts(&span)) {
        let (waiting, (_, used, _)) = (count(last.value(QUEUE)), last.blocks());
        let text = match used > FULL_CACHE {
            true => format!("{waiting} wait: the KV cache is {} full", percent(used)),
            false => format!("{waiting} wait while {} run", count(running)),
        };
        say(Weight::Warning, text);
    }
    if let Some(span) = watch.span(LATENCY_WINDOW) {
        let faults = span.delta("perigee_guard_numeric_faults_total");
        if faults > 0.0 {
            say(Weight::Problem, format!("{} replies ended for invalid logits", count(faults)));
        }
        let findings = span.deltas("perigee_guard_events_total", "action");
        if let Some(stopped) = findings.get("stopped").filter(|stopped| **stopped > 0.0) {
            say(Weight::Note, format!("the guard ended {} replies in the last minute", count(*stopped)));
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::scrape::{Problem, Scrape, State};

    /// A server whose page changes to `page`, and then stays so for as long as a queue needs to be
    /// noticed; all rates are means over 10 s.
    fn watch(notice: Option<Notice>, page: &str) -> Watch {
        let state = State { word: "up".into(), notice, boot: None };
        let mut watch = Watch::new("u".into(), Duration::from_secs(1));
        let before = "process_start_time_seconds 1\nperigee_kv_blocks{state=\"free\"} 100\n";
        for (at, text) in [(1, before)].into_iter().chain((6..=11).map(|at| (at, page))) {
            let started = if text.contains("start_time") { "" } else { "process_start_time_seconds 1\n" };
            let page = Page::parse(&format!("perigee_ready 1\n{started}{text}"), 0.0).unwrap();
            watch.record(Duration::from_secs(at), Ok(Scrape { state: state.clone(), page }));
        }
        watch
    }

    fn said(watch: &Watch) -> Vec<String> {
        notices(watch, 12.0).into_iter().map(|notice| notice.text).collect()
    }

    #[test]
    fn what_needs_attention() {
        let check = |page: &str, expected: &[&str]| assert_eq!(said(&watch(None, page)), expected);
        check("", &[]);
        let load = "perigee_queue_sequences 3\nperigee_running_sequences 8\n";
        check(load, &["3 wait while 8 run"]);
        check(
            "perigee_queue_sequences 3\nperigee_preemptions_total 20\n\
             perigee_kv_blocks{state=\"used\"} 99\nperigee_kv_blocks{state=\"free\"} 1\n",
            &[
                "2 preemptions/s: the KV cache is too small for what runs",
                "3 wait: the KV cache is 99 % full",
            ],
        );
        let errors = "perigee_http_requests_total{status=\"503\"} 40\n";
        check(errors, &["4 answers/s are server errors"]);
        let slow = "perigee_running_sequences 1\nperigee_since_last_step_seconds 75\n";
        check(slow, &["no step has ended for 1 min 15 s"]);
        let stuck = Weight::Problem.says("stuck");
        assert_eq!(
            said(&watch(Some(stuck), &format!("{errors}{slow}"))),
            ["stuck", "4 answers/s are server errors"]
        );
        check(
            "perigee_rejected_requests_total{limit=\"max_queue_len\"} 10\n",
            &["1 requests/s are refused: the queue is full (max_queue_len)"],
        );
        check(
            "perigee_guard_numeric_faults_total{kind=\"flat\"} 2\n\
             perigee_guard_events_total{action=\"stopped\"} 3\n",
            &["2 replies ended for invalid logits", "the guard ended 3 replies in the last minute"],
        );
        let restart = "process_start_time_seconds 7\n";
        check(restart, &["the server was restarted, noticed 6 s ago"]);
    }

    #[test]
    fn a_server_that_is_gone() {
        let mut watch = watch(None, "perigee_queue_sequences 5\n");
        watch.record(Duration::from_secs(12), Err(Problem { kind: "unreachable", text: "refused".into() }));
        assert_eq!(said(&watch), ["refused; next attempt in 3 s, figures of 1 s ago"]);
    }
}
