//! The machine apart from its GPUs: processor, memory, limits of the process.

use std::fs;

use super::report::Report;
use crate::boot::memory_plan::format_bytes;
use crate::boot::{available_memory, files_needed};
use crate::config::{Settings, device};
use perigee_cpu::Isa;

/// Host memory below which a boot is in doubt: staging memory, tokenizer, requests.
const MIN_HOST_BYTES: u64 = 2 << 30;
/// Columns of `/proc/self/limits`.
const SOFT: usize = 0;
const HARD: usize = 1;

pub(super) fn examine(report: &mut Report, settings: &Settings) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    processor(report, settings, Isa::best(), cores);
    memory(report, available_memory());
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    // The server raises the soft limit.
    open_files(report, limit(&limits, "Max open files", HARD), settings.server.max_connections);
    // Pinned memory of the driver does not count against it.
    if let Some(locked) = limit(&limits, "Max locked memory", SOFT) {
        report.ok("locked memory", locked.map_or_else(|| "unlimited".into(), format_bytes));
    }
}

fn processor(report: &mut Report, settings: &Settings, isa: Isa, cores: usize) {
    let name = match isa {
        Isa::Portable => "no AVX2",
        Isa::Avx2 => "AVX2",
        Isa::Avx512 => "AVX-512",
        Isa::Avx512Bf16 => "AVX-512 with BF16",
        Isa::Amx => "AMX",
    };
    let text = format!("{name}, {cores} {}", if cores == 1 { "core" } else { "cores" });
    let computes =
        matches!(settings.device.backend, device::BackendChoice::Auto | device::BackendChoice::Cpu);
    if isa == Isa::Portable && computes {
        let remedy = "use another processor; in a virtual machine, pass the host's model through";
        return report.warning("cpu", format!("{text}: products are slow"), remedy);
    }
    if computes && settings.device.threads > cores {
        let text = format!("{text}, fewer than device.threads = {}", settings.device.threads);
        return report.warning("cpu", text, "set device.threads = 0, which takes them all");
    }
    report.ok("cpu", text);
}

fn memory(report: &mut Report, available: Option<u64>) {
    match available {
        Some(bytes) if bytes < MIN_HOST_BYTES => report.warning(
            "host memory",
            format!("{} available", format_bytes(bytes)),
            "raise the container's memory limit, or end other processes",
        ),
        Some(bytes) => {
            report.ok("host memory", format!("{} available, control group included", format_bytes(bytes)))
        }
        None => {
            report.warning("host memory", "neither /proc/meminfo nor a control group tells it", "mount /proc")
        }
    }
}

/// `limit` is that of the process: `Some(None)` is unlimited, `None` unknown.
fn open_files(report: &mut Report, limit: Option<Option<u64>>, connections: usize) {
    let needed = files_needed(connections);
    match limit {
        Some(Some(files)) if files < needed => report.warning(
            "open files",
            format!("at most {files}, and server.max_connections = {connections} needs {needed}: later clients would hang"),
            &format!("raise it (ulimit -Hn {}), or lower server.max_connections", needed.next_power_of_two()),
        ),
        Some(Some(files)) => report.ok("open files", format!("at most {files}")),
        Some(None) => report.ok("open files", "unlimited"),
        None => {}
    }
}

/// The limit in a column of a line of `/proc/self/limits`; `Some(None)`: unlimited.
fn limit(limits: &str, name: &str, column: usize) -> Option<Option<u64>> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_whitespace().nth(column)? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_unlimited() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 1048576              files\n\
                    Max locked memory         unlimited            unlimited            bytes\n";
        assert_eq!(limit(text, "Max open files", SOFT), Some(Some(1024)));
        assert_eq!(limit(text, "Max open files", HARD), Some(Some(1048576)));
        assert_eq!(limit(text, "Max locked memory", SOFT), Some(None));
        assert_eq!(limit(text, "Max processes", SOFT), None);
        let own = fs::read_to_string("/proc/self/limits").unwrap();
        assert!(limit(&own, "Max open files", HARD).is_some());
    }

    fn check(examined: impl Fn(&mut Report), expected: &str) {
        let mut report = Report::default();
        examined(&mut report);
        assert!(report.lines().starts_with(expected), "{expected}: {}", report.lines());
    }

    #[test]
    fn each_shortage_warns() {
        check(|r| open_files(r, Some(Some(1024)), 1024), "warn  open files  at most 1024, and server.max");
        check(|r| open_files(r, Some(Some(1088)), 1024), "ok    open files  at most 1088");
        check(|r| open_files(r, Some(None), 1024), "ok    open files  unlimited");
        check(|r| memory(r, Some(1 << 30)), "warn  host memory  1.0 GiB available");
        check(|r| memory(r, None), "warn  host memory");
        let mut settings = Settings::default();
        check(|r| processor(r, &settings, Isa::Avx2, 1), "ok    cpu  AVX2, 1 core\n");
        check(
            |r| processor(r, &settings, Isa::Portable, 2),
            "warn  cpu  no AVX2, 2 cores: products are slow",
        );
        settings.device.threads = 4;
        check(
            |r| processor(r, &settings, Isa::Amx, 2),
            "warn  cpu  AMX, 2 cores, fewer than device.threads = 4",
        );
        settings.device.backend = device::BackendChoice::Cuda;
        check(|r| processor(r, &settings, Isa::Portable, 2), "ok    cpu  no AVX2, 2 cores\n");
    }
}
