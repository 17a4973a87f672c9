//! Servers for tests: metrics pages as a server writes them, scraped for a minute.

use std::fmt::Write as _;
use std::time::Duration;

use super::exposition::Page;
use super::reading::Reading;
use super::scrape::{Problem, Scrape, ServerState};
use super::watch::Watch;

/// Asserts that a text is what a file of `test_screens/` has; a fault prints it as it is.
pub(super) fn assert_screen(name: &str, text: &str) {
    let path = format!("{}/src/cli/top/test_screens/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "the screen is not {name}.txt but\n{text}");
}

const URL: &str = "http://127.0.0.1:8000";
/// Unix time of the server's start.
const STARTED: f64 = 1_700_000_000.0;

/// The page of a server that has worked for `seconds`, one unit of load per second.
fn page(seconds: f64) -> String {
    let mut page = String::from(
        "perigee_build_info{model_name=\"perigee-nano\",version=\"0.1.0\"} 1\n\
         perigee_engine_info{backend=\"cpu\",block_size=\"32\",cache_dtype=\"f32\",max_model_len=\"8192\",num_blocks=\"1000\",\
         prefix_caching=\"true\"} 1\n",
    );
    let mut line = |name: &str, value: f64| writeln!(page, "{name} {value}").unwrap();
    line("process_start_time_seconds", STARTED);
    line("process_resident_memory_bytes", 114_044_928.0);
    line("process_threads", 9.0);
    line("process_cpu_seconds_total", (seconds * 1.5).floor());
    line("perigee_http_connections", 15.0);
    let busy = f64::from(u8::from(seconds > 0.0));
    let wave = 1.0 + (seconds / 8.0).sin() * 0.5;
    line("perigee_running_sequences", (busy * 12.0 * wave).round());
    line("perigee_queue_sequences", busy * 3.0);
    line("perigee_queue_tokens", busy * 1234.0);
    line("perigee_kv_blocks{state=\"used\"}", busy * (430.0 * wave).round());
    line("perigee_kv_blocks{state=\"cached\"}", busy * 120.0);
    line("perigee_kv_blocks{state=\"free\"}", 880.0 - busy * (430.0 * wave).round());
    let tokens = 8.0 * (8.0 - 8.0 * (seconds / 8.0).cos() * 0.5) + seconds * 100.0;
    line("perigee_prompt_tokens_total", (tokens * 2.5).round());
    line("perigee_generation_tokens_total", (tokens * 34.0).round());
    line("perigee_prefix_query_tokens_total", (tokens * 2.5).round());
    line("perigee_prefix_hit_tokens_total", (tokens * 2.5 * 0.63).round());
    line("perigee_finished_sequences_total{reason=\"stop\"}", (seconds * 4.0).round());
    line("perigee_finished_sequences_total{reason=\"length\"}", (seconds * 0.2).floor());
    line("perigee_finished_sequences_total{reason=\"error\"}", 0.0);
    line(
        "perigee_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}",
        (seconds * 4.0).round(),
    );
    line(
        "perigee_http_requests_total{route=\"/v1/chat/completions\",status=\"429\"}",
        (seconds * 0.3).floor(),
    );
    line("perigee_rejected_requests_total{limit=\"max_queue_len\"}", (seconds * 0.3).floor());
    line("perigee_speculation_drafted_tokens_total", seconds * 1000.0);
    line("perigee_speculation_accepted_tokens_total", seconds * 820.0);
    line("perigee_speculation_draft_length_tokens_count", seconds * 250.0);
    line("perigee_speculation_seconds_saved", seconds * 0.5);
    line("perigee_guard_events_total{action=\"stopped\",kind=\"loop\",phase=\"answer\"}", 3.0 * busy);
    line("perigee_guard_rescue_success_total", 2.0 * busy);
    line("perigee_guard_discarded_tokens_total", 1234.0 * busy);
    line("perigee_last_step_timestamp_seconds", STARTED + 7400.0 + seconds);
    for (part, share) in
        [("schedule", 0.01), ("forward", 0.9), ("sample", 0.05), ("commit", 0.01), ("emit", 0.03)]
    {
        line(&format!("perigee_step_part_seconds_sum{{part=\"{part}\"}}"), seconds * 0.87 * share);
    }
    let mut histogram = |name: &str, edges: [(&str, f64); 4], mean: f64| {
        for (edge, count) in edges {
            line(&format!("{name}_bucket{{le=\"{edge}\"}}"), count * seconds);
        }
        line(&format!("{name}_sum"), mean * edges[3].1 * seconds);
    };
    let edges = [("0.01", 1.0), ("0.02", 3.0), ("0.05", 4.0), ("+Inf", 4.0)];
    histogram("perigee_time_to_first_token_seconds", edges, 0.015);
    let edges = [("0.002", 1000.0), ("0.005", 3000.0), ("0.01", 3400.0), ("+Inf", 3400.0)];
    histogram("perigee_inter_token_latency_seconds", edges, 0.0031);
    let edges = [("0.005", 20.0), ("0.01", 95.0), ("0.02", 100.0), ("+Inf", 100.0)];
    histogram("perigee_step_seconds", edges, 0.0087);
    page
}

fn scraped(watch: &mut Watch, at: u64, load_seconds: f64) {
    let reading = Reading::of(&Page::parse(&page(load_seconds)).unwrap(), 0.0).unwrap();
    watch.record(Duration::from_secs(at), Ok(Scrape { state: ServerState::Ready, reading }));
}

/// A server under load for a minute.
pub(super) fn busy() -> Watch {
    let mut watch = Watch::new(URL.into(), Duration::from_secs(1));
    (0..=60).for_each(|at| scraped(&mut watch, at, at as f64));
    watch
}

/// A server without a request so far.
pub(super) fn idle() -> Watch {
    let mut watch = Watch::new(URL.into(), Duration::from_secs(1));
    (0..=5).for_each(|at| scraped(&mut watch, at, 0.0));
    watch
}

/// A server that was busy and is gone.
pub(super) fn lost() -> Watch {
    let mut watch = busy();
    for at in [61, 62, 64] {
        watch.record(Duration::from_secs(at), Err(refused()));
    }
    watch
}

/// A server that was never there.
pub(super) fn absent() -> Watch {
    let mut watch = Watch::new(URL.into(), Duration::from_secs(1));
    watch.record(Duration::from_secs(60), Err(refused()));
    watch
}

fn refused() -> Problem {
    Problem { kind: "unreachable", text: "Connection refused (os error 111)".into() }
}
