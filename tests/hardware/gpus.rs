//! Figures of GPUs while an engine serves, over a made-up libnvidia-ml.

use std::env;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use perigee::boot::gpu_watch::{WatchedGpu, watch};
use perigee_telemetry::{Exposition, Metrics};

use super::{INSIDE, made_up, run_inside};

/// Watches two GPUs in a process whose libnvidia-ml is the made-up one. `name` is the test's.
fn with_nvml(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&Metrics)) {
    if env::var_os(INSIDE).is_none() {
        let dir = tempfile::tempdir().unwrap();
        let Some(folder) = made_up(dir.path(), "libnvidia_ml.c", "libnvidia-ml.so.1") else { return };
        return run_inside(name, &folder, variables);
    }
    let gpu = |bus: usize| WatchedGpu {
        name: "Made-up \"GPU\"".into(),
        pci_bus_id: format!("0000:{bus:02X}:00.0"),
    };
    let metrics = Arc::new(Metrics::new("m", false));
    watch(vec![gpu(1), gpu(2)], &metrics);
    body(&metrics);
}

/// Lines of the metrics page that are of GPUs, once all figures are there: critical errors come before them.
fn figures(metrics: &Metrics) -> Vec<String> {
    loop {
        let page = metrics.render(Exposition::Text);
        let lines = page.lines().filter_map(|line| line.strip_prefix("perigee_gpu_"));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        if lines.iter().any(|line| line.starts_with("info{")) {
            return lines;
        }
        thread::yield_now();
    }
}

#[test]
fn every_rank_has_its_figures() {
    // The power cap and thermal.
    let variables = [("FAKE_THROTTLE", "36"), ("FAKE_ERRORS", "3"), ("FAKE_XID", "79"), ("FAKE_LANES", "8")];
    with_nvml("gpus::every_rank_has_its_figures", &variables, |metrics| {
        let lines = figures(metrics);
        for rank in [0, 1] {
            for (name, value) in [
                ("utilization_ratio", 0.93),
                ("memory_used_bytes", 805_306_368.0),
                ("memory_bytes", 1_073_741_824.0),
                ("power_watts", 612.5),
                ("power_limit_watts", 700.0),
                ("sm_clock_hertz", 345e6),
                ("max_sm_clock_hertz", 1.98e9),
                ("pcie_generation", 1.0),
                ("max_pcie_generation", 5.0),
                ("pcie_lanes", 8.0),
                ("max_pcie_lanes", 16.0),
                ("ecc_uncorrected_errors_total", 3.0),
            ] {
                let series = format!("{name}{{rank=\"{rank}\"}} ");
                let found = lines.iter().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
                assert_eq!(found, Some(value), "{series}: {lines:?}");
            }
            for (reason, holds) in
                [("power_cap", 1), ("thermal", 1), ("hw_thermal", 0), ("application_clocks", 0)]
            {
                let line = format!("throttled{{rank=\"{rank}\",reason=\"{reason}\"}} {holds}");
                assert!(lines.contains(&line), "{line}: {lines:?}");
            }
            let info = format!(
                r#"info{{name="Made-up \"GPU\"",pci_bus_id="0000:0{}:00.0",rank="{rank}"}} 1"#,
                rank + 1
            );
            assert!(lines.contains(&info), "{info}: {lines:?}");
        }
        let xids: Vec<&String> = lines.iter().filter(|line| line.starts_with("xid")).collect();
        assert_eq!(xids, ["xid_errors_total{rank=\"1\",xid=\"79\"} 1"]);
        // The library has no function for it.
        assert!(!lines.iter().any(|line| line.starts_with("temperature")), "{lines:?}");
    });
}

#[test]
fn what_is_not_told_has_no_series() {
    let variables = [("FAKE_LOST", "1"), ("FAKE_OLD", "1")];
    with_nvml("gpus::what_is_not_told_has_no_series", &variables, |metrics| {
        let lines = figures(metrics);
        let of_second: Vec<&String> = lines.iter().filter(|line| line.contains("rank=\"1\"")).collect();
        assert!(of_second.len() == 1 && of_second[0].starts_with("info"), "{of_second:?}");
        let has = |name: &str| lines.iter().any(|line| line.starts_with(name));
        assert!(has("power_watts") && !has("power_limit_watts") && !has("ecc"), "{lines:?}");
    });
}

/// Neither a scrape nor the end of the process waits for a driver that does not answer.
#[test]
fn a_driver_that_does_not_answer_holds_nothing_up() {
    let name = "gpus::a_driver_that_does_not_answer_holds_nothing_up";
    for function in ["nvmlInit_v2", "nvmlDeviceGetPowerUsage"] {
        with_nvml(name, &[("FAKE_HANG", function)], |metrics| {
            while !hangs() {
                thread::yield_now();
            }
            let page = metrics.render(Exposition::Text);
            assert!(page.contains("perigee_ready") && !page.contains("perigee_gpu_"), "{page}");
        });
    }
}

/// Whether a call of the library does not return.
fn hangs() -> bool {
    // SAFETY: the library is opened, if it is not open yet, and stays open; the variable has this type.
    unsafe {
        let library = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(library, c"fake_hangs".as_ptr());
        assert!(!address.is_null());
        let hangs: &AtomicI32 = AtomicI32::from_ptr(address.cast::<c_int>());
        hangs.load(Ordering::SeqCst) != 0
    }
}
