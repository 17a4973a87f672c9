//! Servers for tests: metrics pages as a server writes them, scraped for a minute.

use std::fmt::Write as _;
use std::time::Duration;

use super::exposition::Page;
use super::scrape::{Problem, Scrape, State};
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
    let busy = f64::from(u8::from(seconds > 0.0));
    let wave = 1.0 + (seconds / 8.0).sin() * 0.5;
    let used = busy * (430.0 * wave).round();
    let tokens = 8.0 * (8.0 - 8.0 * (seconds / 8.0).cos() * 0.5) + seconds * 100.0;
    let mut page = String::from(
        "perigee_build_info{model_name=\"perigee-nano\",version=\"0.1.0\"} 1\n\
         perigee_engine_info{backend=\"cpu\",block_size=\"32\",cache_dtype=\"f32\",max_model_len=\"8192\"} 1\n",
    );
    let mut line = |series: &str, value: f64| writeln!(page, "{series} {value}").unwrap();
    for (series, value) in [
        ("process_start_time_seconds", STARTED),
        ("process_resident_memory_bytes", 114_044_928.0),
        ("process_threads", 9.0),
        ("process_cpu_seconds_total", (seconds * 1.5).floor()),
        ("perigee_last_step_timestamp_seconds", STARTED + 7400.0 + seconds),
        ("perigee_http_connections", 15.0),
        ("perigee_running_sequences", (busy * 12.0 * wave).round()),
        ("perigee_queue_sequences", busy * 3.0),
        ("perigee_queue_tokens", busy * 1234.0),
        ("perigee_kv_blocks{state=\"used\"}", used),
        ("perigee_kv_blocks{state=\"cached\"}", busy * 120.0),
        ("perigee_kv_blocks{state=\"free\"}", 880.0 - used),
        ("perigee_prompt_tokens_total", (tokens * 2.5).round()),
        ("perigee_generation_tokens_total", (tokens * 34.0).round()),
        ("perigee_prefix_query_tokens_total", (tokens * 2.5).round()),
        ("perigee_prefix_hit_tokens_total", (tokens * 2.5 * 0.63).round()),
        ("perigee_finished_sequences_total{reason=\"stop\"}", (seconds * 4.0).round()),
        ("perigee_finished_sequences_total{reason=\"length\"}", (seconds * 0.2).floor()),
        ("perigee_finished_sequences_total{reason=\"error\"}", 0.0),
        ("perigee_http_requests_total{route=\"/v1\",status=\"200\"}", (seconds * 4.0).round()),
        ("perigee_http_requests_total{route=\"/v1\",status=\"429\"}", (seconds * 0.3).floor()),
        ("perigee_rejected_requests_total{limit=\"max_queue_len\"}", (seconds * 0.3).floor()),
        ("perigee_speculation_drafted_tokens_total", seconds * 1000.0),
        ("perigee_speculation_accepted_tokens_total", seconds * 820.0),
        ("perigee_speculation_draft_length_tokens_count", seconds * 250.0),
        ("perigee_speculation_seconds_saved", seconds * 0.5),
        ("perigee_guard_events_total{action=\"stopped\"}", busy * 3.0),
        ("perigee_guard_rescue_success_total", busy * 2.0),
        ("perigee_guard_discarded_tokens_total", busy * 1234.0),
        ("perigee_step_part_seconds_sum{part=\"schedule\"}", seconds * 0.0087),
        ("perigee_step_part_seconds_sum{part=\"forward\"}", seconds * 0.783),
        ("perigee_step_part_seconds_sum{part=\"sample\"}", seconds * 0.0435),
        ("perigee_step_part_seconds_sum{part=\"commit\"}", seconds * 0.0087),
        ("perigee_step_part_seconds_sum{part=\"emit\"}", seconds * 0.0261),
    ] {
        line(series, value);
    }
    for (name, edges, counts, mean) in [
        ("perigee_time_to_first_token_seconds", ["0.01", "0.02", "0.05"], [1.0, 3.0, 4.0], 0.015),
        ("perigee_inter_token_latency_seconds", ["0.002", "0.005", "0.01"], [1e3, 3e3, 3.4e3], 0.0031),
        ("perigee_step_seconds", ["0.005", "0.01", "0.02"], [20.0, 95.0, 100.0], 0.0087),
    ] {
        let all = counts[2] * seconds;
        for (edge, count) in edges.into_iter().zip(counts) {
            line(&format!("{name}_bucket{{le=\"{edge}\"}}"), count * seconds);
        }
        line(&format!("{name}_bucket{{le=\"+Inf\"}}"), all);
        line(&format!("{name}_sum"), mean * all);
        line(&format!("{name}_count"), all);
    }
    page
}

fn scraped(watch: &mut Watch, at: u64, load_seconds: f64) {
    record(watch, at, &page(load_seconds));
}

fn record(watch: &mut Watch, at: u64, page: &str) {
    let page = Page::parse(page, 0.0).unwrap();
    let state = State { word: "ready".into(), notice: None, boot: None };
    watch.record(Duration::from_secs(at), Ok(Scrape { state, page }));
}

/// A server under load for a minute.
pub(super) fn busy() -> Watch {
    let mut watch = Watch::new(URL.into(), Duration::from_secs(1));
    (0..=60).for_each(|at| scraped(&mut watch, at, at as f64));
    watch
}

/// A server under load for a minute, on two GPUs, of which one is throttled.
pub(super) fn on_gpus() -> Watch {
    let mut watch = Watch::new(URL.into(), Duration::from_secs(1));
    for at in 0..=60u32 {
        let mut text = page(f64::from(at));
        for (rank, power, exchanges) in [(0, 612.4, 0.3), (1, 700.1, 0.05)] {
            for (name, value) in [
                ("gpu_info", 1.0),
                ("gpu_utilization_ratio", 0.93),
                ("gpu_memory_used_bytes", 132.5 * f64::from(1 << 30)),
                ("gpu_memory_bytes", 141.0 * f64::from(1 << 30)),
                ("gpu_power_watts", power),
                ("gpu_power_limit_watts", 700.0),
                ("gpu_sm_clock_hertz", 1.98e9),
                ("gpu_temperature_celsius", 64.0),
                ("gpu_ecc_uncorrected_errors_total", 0.0),
                ("rank_exchange_seconds_total", exchanges * f64::from(at) * 0.87),
                ("rank_slowness_ratio", 1.36 * f64::from(rank)),
            ] {
                writeln!(text, "perigee_{name}{{rank=\"{rank}\"}} {value}").unwrap();
            }
            for (reason, holds) in [("power_cap", rank), ("thermal", 0)] {
                writeln!(text, "perigee_gpu_throttled{{rank=\"{rank}\",reason=\"{reason}\"}} {holds}")
                    .unwrap();
            }
        }
        record(&mut watch, at.into(), &text);
    }
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
