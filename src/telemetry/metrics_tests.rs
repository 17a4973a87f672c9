//! Recorded values appear on the page, and the page is well formed.

use std::sync::Arc;

use super::*;
use crate::page::Page;

fn page(metrics: &Metrics) -> Page {
    Page::parse(&metrics.render(Exposition::Text)).unwrap_or_else(|e| panic!("{e}"))
}

fn record_everything(metrics: &Metrics) {
    let us = Duration::from_micros;
    let times =
        StepTimes { schedule: us(15), forward: us(4000), sample: us(120), commit: us(9), emit: us(40) };
    metrics.record_step(&times);
    metrics.add_tokens(36, 64, 3);
    metrics.set_load(&Load {
        waiting: 2,
        waiting_tokens: 300,
        running: 5,
        used_blocks: 25,
        cached_blocks: 10,
        total_blocks: 100,
    });
    metrics.record_prefix_lookup(100, 64);
    metrics.record_preemptions(Preemption::Blocks, 1);
    metrics.record_rejection(Rejection::QueueRequests);
    metrics.record_rejection(Rejection::QueueTokens);
    metrics.record_first_token(us(30_000));
    metrics.record_token_gap(us(4_000));
    metrics.record_tool_calls([2, 1, 0, 0]);
    metrics.record_params(2, 128);
    let figures = RequestFigures {
        e2e: us(500_000),
        queue: Some(us(10_000)),
        prefill: Some(us(20_000)),
        decode: Some(us(470_000)),
        prompt_tokens: 100,
        cached_tokens: 64,
        generation_tokens: 48,
        preemptions: 1,
    };
    metrics.record_finished(&figures, FinishLabel::Stop);
    metrics.record_finished(&RequestFigures::default(), FinishLabel::Abort);
    metrics.set_engine_info(&EngineInfo {
        backend: "cpu".into(),
        block_size: 32,
        num_blocks: 100,
        cache_dtype: "bf16".into(),
        prefix_caching: true,
        max_model_len: 4096,
    });
    metrics.record_boot_stage("weights", us(250_000));
    metrics.set_boot_time(us(400_000));
    metrics.set_weights_bytes(1 << 40);
    let kernels = KernelFigures { disk: 9, rebuilt: 1, read_seconds: 0.5, ..Default::default() };
    metrics.add_kernels(&kernels);
    metrics.add_kernels(&kernels);
    metrics.set_phase(true, false);
    metrics.set_certificate_end(Some(2_524_607_999));
    metrics.record_http("/v1/models", 200, us(800));
    metrics.record_connection(true);
    metrics.record_in_flight(true);
    metrics.record_in_flight(false);
    metrics.record_refused_connection();
}

#[test]
fn recorded_figures_are_on_the_page() {
    let metrics = Metrics::new("nano", true);
    record_everything(&metrics);
    let page = page(&metrics);
    let vllm: &[(&str, &str)] = &[("model_name", "nano"), ("engine", "0")];
    for (name, expected) in [
        ("vllm:num_requests_running", 5.0),
        ("vllm:num_requests_waiting", 2.0),
        ("vllm:kv_cache_usage_perc", 0.25),
        ("vllm:prefix_cache_queries_total", 100.0),
        ("vllm:prefix_cache_hits_total", 64.0),
        ("vllm:num_preemptions_total", 1.0),
        ("vllm:prompt_tokens_total", 100.0),
        ("vllm:generation_tokens_total", 3.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:inter_token_latency_seconds_count", 1.0),
        ("vllm:request_time_per_output_token_seconds_sum", 0.01),
        ("vllm:e2e_request_latency_seconds_count", 2.0),
        ("vllm:request_queue_time_seconds_sum", 0.01),
        ("vllm:request_prefill_time_seconds_sum", 0.02),
        ("vllm:request_decode_time_seconds_sum", 0.47),
        ("vllm:request_inference_time_seconds_sum", 0.49),
        ("vllm:iteration_tokens_total_sum", 103.0),
        ("vllm:request_prompt_tokens_sum", 100.0),
        ("vllm:request_generation_tokens_sum", 48.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 36.0),
        ("vllm:request_params_max_tokens_sum", 128.0),
        ("vllm:request_params_n_sum", 2.0),
    ] {
        let value = page.value(name, vllm);
        assert!((value - expected).abs() < 1e-9, "{name} is {value}, expected {expected}");
    }
    for (name, labels, expected) in [
        ("vllm:request_success_total", &[("finished_reason", "stop")][..], 1.0),
        ("vllm:request_success_total", &[("finished_reason", "repetition")], 0.0),
        ("vllm:admission_rejections_total", &[("reason", "max_num_queued_reqs")], 1.0),
        ("vllm:engine_sleep_state", &[("sleep_state", "awake")], 1.0),
        (
            "vllm:cache_config_info",
            &[
                ("block_size", "32"),
                ("num_gpu_blocks", "100"),
                ("cache_dtype", "bf16"),
                ("kv_cache_size_tokens", "3200"),
                ("kv_cache_max_concurrency", "0.78125"),
            ],
            1.0,
        ),
        ("vllm:inter_token_latency_seconds_bucket", &[("le", "0.01")], 1.0),
        ("perigee_inter_token_latency_seconds_bucket", &[("le", "0.003")], 0.0),
        ("perigee_inter_token_latency_seconds_bucket", &[("le", "0.005")], 1.0),
        ("perigee_step_part_seconds_sum", &[("part", "forward")], 0.004),
        ("perigee_step_seconds_count", &[], 1.0),
        ("perigee_tls_certificate_not_after_timestamp_seconds", &[], 2_524_607_999.0),
        ("perigee_kv_blocks", &[("state", "used")], 25.0),
        ("perigee_kv_blocks", &[("state", "cached")], 10.0),
        ("perigee_kv_blocks", &[("state", "free")], 65.0),
        ("perigee_prefix_hit_tokens_total", &[], 64.0),
        ("perigee_queue_tokens", &[], 300.0),
        ("perigee_boot_stage_seconds", &[("stage", "weights")], 0.25),
        ("perigee_boot_weights_bytes", &[], 1_099_511_627_776.0),
        ("perigee_kernel_cache_kernels_total", &[("outcome", "disk")], 18.0),
        ("perigee_kernel_cache_kernels_total", &[("outcome", "rebuilt")], 2.0),
        ("perigee_kernel_cache_kernels_total", &[("outcome", "compiled")], 0.0),
        ("perigee_kernel_cache_seconds_total", &[("work", "read")], 1.0),
        ("perigee_kernel_cache_seconds_total", &[("work", "compile")], 0.0),
        ("perigee_tool_calls_total", &[("arguments", "sound")], 2.0),
        ("perigee_tool_calls_total", &[("arguments", "mended")], 1.0),
        ("perigee_tool_calls_total", &[("arguments", "invalid")], 0.0),
        ("perigee_ready", &[], 1.0),
        ("perigee_http_requests_total", &[("route", "/v1/models"), ("status", "200")], 1.0),
        ("perigee_http_connections", &[], 1.0),
        ("perigee_http_requests_in_flight", &[], 0.0),
        ("perigee_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0),
    ] {
        let value = page.value(name, labels);
        assert!((value - expected).abs() < 1e-9, "{name}{labels:?} is {value}, expected {expected}");
    }
    assert!(page.value("perigee_last_step_timestamp_seconds", &[]) > 1e9);
    assert!(metrics.seconds_since_last_step().is_some());
    #[cfg(target_os = "linux")]
    assert!(page.value("process_resident_memory_bytes", &[]) > 0.0);
}

#[test]
fn figures_of_gpus_are_shown_while_they_are_new() {
    let metrics = Metrics::new("nano", false);
    metrics.watch_ranks(|| vec![1.5, 2.5]);
    let gpu = GpuFigures {
        name: "GPU".into(),
        utilization: Some(0.5),
        uncorrected_errors: Some(3.0),
        throttled: vec![("power_cap", true), ("thermal", false)],
        ..GpuFigures::default()
    };
    metrics.set_gpus(vec![gpu.clone(), GpuFigures { utilization: None, ..gpu }]);
    metrics.record_xid(1, 79);
    // A second scrape counts nothing twice.
    drop(page(&metrics));
    let new = page(&metrics);
    for (name, labels, expected) in [
        ("perigee_gpu_utilization_ratio", &[][..], 0.5),
        ("perigee_gpu_ecc_uncorrected_errors_total", &[("rank", "1")], 3.0),
        ("perigee_gpu_throttled", &[("rank", "1"), ("reason", "power_cap")], 1.0),
        ("perigee_gpu_throttled", &[("rank", "1"), ("reason", "thermal")], 0.0),
        ("perigee_gpu_xid_errors_total", &[("rank", "1"), ("xid", "79")], 1.0),
        ("perigee_rank_exchange_seconds_total", &[("rank", "1")], 2.5),
    ] {
        assert_eq!(new.value(name, labels), expected, "{name}{labels:?}");
    }
    let devices = |seconds: u64| {
        metrics.devices().gpus.show(&metrics.recorder, Instant::now() + Duration::from_secs(seconds));
        let families = metrics.recorder.registry.gather();
        families.iter().filter(|family| family.name().starts_with("perigee_gpu_")).count()
    };
    assert_eq!([devices(9), devices(11), devices(0)], [5, 1, 1]);
}

#[test]
fn a_rank_that_the_others_wait_for_is_told() {
    let metrics = Metrics::new("nano", false);
    assert_eq!(metrics.straggler(), None);
    let exchanges = Arc::new(AtomicU64::new(0));
    let of_ranks = exchanges.clone();
    metrics.watch_ranks(move || {
        let steps = of_ranks.load(Ordering::Relaxed) as f64;
        vec![steps * 0.004, steps * 0.001]
    });
    let look = || {
        for _ in 0..100 {
            metrics.record_step(&StepTimes { forward: Duration::from_millis(10), ..StepTimes::default() });
        }
        exchanges.fetch_add(100, Ordering::Relaxed);
        metrics.straggler().map(|straggler| straggler.rank)
    };
    assert_eq!([look(), look(), look()], [None, None, Some(1)]);
    let slowness = page(&metrics).value("perigee_rank_slowness_ratio", &[("rank", "1")]);
    assert!((slowness - 1.5).abs() < 1e-9, "{slowness}");
}

#[test]
fn pages_are_well_formed_before_anything_happens() {
    let metrics = Metrics::new("nano", true);
    assert_eq!(page(&metrics).value("vllm:num_requests_waiting", &[]), 0.0);
    assert!(metrics.seconds_since_last_step().is_none());
}

#[test]
fn vllm_names_can_be_left_out() {
    let metrics = Metrics::new("nano", false);
    record_everything(&metrics);
    assert!(!metrics.render(Exposition::Text).contains("vllm:"));
    assert_eq!(page(&metrics).value("perigee_finished_sequences_total", &[("reason", "stop")]), 1.0);
}

#[test]
fn old_names_are_there_for_who_asks() {
    assert!(!Metrics::new("nano", true).render(Exposition::Text).contains("gpu_"));
    let metrics = Metrics::new("nano", true).with_legacy_names("nano");
    record_everything(&metrics);
    let page = page(&metrics);
    for (name, value) in [
        ("vllm:gpu_cache_usage_perc", 0.25),
        ("vllm:gpu_prefix_cache_queries_total", 100.0),
        ("vllm:gpu_prefix_cache_hits_total", 64.0),
        ("vllm:gpu_prefix_cache_hit_rate", 0.64),
        ("vllm:time_per_output_token_seconds_count", 1.0),
    ] {
        assert_eq!(page.value(name, &[("model_name", "nano"), ("engine", "0")]), value, "{name}");
    }
}

#[test]
fn hostile_model_names_are_escaped() {
    let name = "a\"b\\c\nd\u{e9}";
    let metrics = Metrics::new(name, true);
    assert_eq!(page(&metrics).value("vllm:num_requests_running", &[("model_name", name)]), 0.0);
}

#[test]
fn recording_from_many_threads_loses_nothing() {
    let metrics = Arc::new(Metrics::new("nano", true));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let metrics = metrics.clone();
            std::thread::spawn(move || {
                (0..1000).for_each(|_| metrics.record_token_gap(Duration::from_millis(2)))
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(page(&metrics).value("perigee_inter_token_latency_seconds_count", &[]), 4000.0);
}

#[test]
fn openmetrics_has_every_figure_and_no_family_twice() {
    let metrics = Metrics::new("nano", true).with_legacy_names("nano");
    record_everything(&metrics);
    metrics.note_trace("/v1/models", 7, Duration::from_micros(800), Some(Duration::from_micros(30_000)));
    let (text, open) = (metrics.render(Exposition::Text), metrics.render(Exposition::OpenMetrics));
    let families: Vec<&str> =
        open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for (index, family) in families.iter().enumerate() {
        assert!(!families[..index].contains(family), "{family} twice: a counter's family lacks its _total");
    }
    // Bounds are written in another way, and what the system says of the process moves.
    let names = |page: &str| {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<String> =
            samples.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&open), names(&text));
    assert!(open.ends_with("\n# EOF\n") && open.matches("# {trace_id=").count() == 2, "{open}");
}
