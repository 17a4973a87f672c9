//! `perigee doctor`: what keeps this machine's GPUs from being used, or from their speed, and what to do about it.
//!
//! One line per finding. A machine without a GPU has one finding and no problem: the CPU backend serves there.

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use super::commands::{load_settings, print, print_json};
use crate::boot::memory_plan::{available_memory, format_bytes};
use crate::config::args::DoctorArgs;
use crate::cuda::{
    Arch, CacheSettings, CompileError, Compiler, Config, Device, DeviceState, Driver, Hardware, Installation,
    KernelCache, Nvml, Nvrtc, PeerAccess, ProbeError, Program, Volume, kernels,
};

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
/// Open files that a busy server with its checkpoint needs.
const MIN_OPEN_FILES: u64 = 4096;
/// Host memory below which a boot is in doubt: staging memory, tokenizer, requests.
const MIN_HOST_BYTES: u64 = 2 << 30;
/// Free bytes of the cache's volume below which compiled kernels may not fit.
const MIN_CACHE_BYTES: u64 = 64 << 20;

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// Works, with a loss.
    Warning,
    /// Does not work.
    Problem,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// The part of the machine.
    part: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, part: &str, text: impl Into<String>) {
        self.0.push(Finding { level: Level::Ok, part: part.into(), text: text.into(), remedy: None });
    }

    fn warning(&mut self, part: &str, text: impl Into<String>, remedy: &str) {
        let remedy = Some(remedy.into());
        self.0.push(Finding { level: Level::Warning, part: part.into(), text: text.into(), remedy });
    }

    /// `remedy` is empty where the text has it.
    fn problem(&mut self, part: &str, text: impl Into<String>, remedy: &str) {
        let remedy = (!remedy.is_empty()).then(|| remedy.into());
        self.0.push(Finding { level: Level::Problem, part: part.into(), text: text.into(), remedy });
    }

    fn num_problems(&self) -> usize {
        self.0.iter().filter(|finding| finding.level == Level::Problem).count()
    }

    fn lines(&self) -> String {
        let mut text = String::new();
        for Finding { level, part, text: finding, remedy } in &self.0 {
            let level = match level {
                Level::Ok => "ok",
                Level::Warning => "warning",
                Level::Problem => "problem",
            };
            let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
            let _ = writeln!(text, "{level:<7}  {part}: {finding}{remedy}");
        }
        text
    }
}

/// Prints the report; exit code 1 if it has a problem.
pub(super) fn doctor(args: &DoctorArgs) -> ExitCode {
    let loaded = match load_settings(args) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let mut report = Report::default();
    match Installation::probe() {
        Ok(installation) => examine(&mut report, &installation, &loaded.settings.kernels),
        Err(
            error @ (ProbeError::NoDriver | ProbeError::NoDevice | ProbeError::Call { code: NO_DEVICE, .. }),
        ) => report.warning("gpu", error.to_string(), "without one the CPU backend serves"),
        Err(error) => report.problem("driver", error.to_string(), ""),
    }
    let printed = match args.json {
        true => print_json(&serde_json::json!({"problems": report.num_problems(), "findings": report.0})),
        false => print(&report.lines()),
    };
    if report.num_problems() > 0 { ExitCode::FAILURE } else { printed }
}

fn examine(report: &mut Report, installation: &Installation, config: &Config) {
    let nvml = Nvml::open();
    let (major, minor) = installation.version;
    let version =
        nvml.as_ref().ok().and_then(Nvml::driver_version).unwrap_or_else(|| "version unknown".into());
    report.ok("driver", format!("{version}, CUDA {major}.{minor}"));
    if let Err(reason) = &nvml {
        let remedy = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility";
        report.warning("nvml", format!("clocks, power and memory errors are not examined: {reason}"), remedy);
    }
    let headers = config.cache_dir.join("headers");
    let nvrtc = Nvrtc::open(config.nvrtc_library.as_deref(), Some(&headers)).map(Arc::new);
    let cache = Arc::new(KernelCache::open(
        &CacheSettings {
            dir: Some(config.cache_dir.clone()),
            max_bytes: config.max_cache_bytes,
            create: false,
        },
        nvrtc.clone().map(|nvrtc| nvrtc as Arc<dyn Compiler>),
    ));
    // Nothing is compiled for a report.
    cache.freeze();
    let mut opened: Vec<(u32, Hardware)> = Vec::new();
    for device in &installation.devices {
        opened
            .extend(examine_device(report, device, &cache, nvml.as_ref().ok()).map(|h| (device.ordinal, h)));
    }
    examine_peers(report, &mut opened);
    let mut archs: Vec<Arch> = installation.devices.iter().filter_map(Device::arch).collect();
    archs.sort();
    archs.dedup();
    let missing = examine_kernels(report, &cache, &archs);
    examine_compiler(report, nvrtc, missing);
    examine_volume(report, &cache, config);
    examine_host(report);
}

/// Opens a device, for the checks that need several.
fn examine_device(
    report: &mut Report,
    device: &Device,
    cache: &Arc<KernelCache>,
    nvml: Option<&Nvml>,
) -> Option<Hardware> {
    let part = format!("device {}", device.ordinal);
    let (major, minor) = device.capability;
    let what = format!("{}, compute capability {major}.{minor}", device.name);
    let Some(arch) = device.arch() else {
        let remedy = "hide it with CUDA_VISIBLE_DEVICES";
        report.problem(&part, format!("{what}: there are no kernels for it"), remedy);
        return None;
    };
    let opened = Hardware::open(device, cache.clone()).and_then(|mut hardware| {
        let free = hardware.free_bytes()?;
        Ok((free, hardware.pci_bus_id()?, hardware))
    });
    let (free, address, hardware) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            report.problem(&part, format!("{what}: {error}"), "see nvidia-smi and the kernel's log");
            return None;
        }
    };
    let (free, total) = (format_bytes(free), format_bytes(device.memory_bytes));
    report.ok(&part, format!("{what}, kernels {arch}, {free} of {total} free, at {address}"));
    if let Some(state) = nvml.and_then(|nvml| nvml.state(&address)) {
        examine_state(report, &part, &state);
    }
    Some(hardware)
}

/// What NVML tells of a device.
fn examine_state(report: &mut Report, part: &str, state: &DeviceState) {
    match (state.ecc, state.uncorrected_errors) {
        (_, Some(errors @ 1..)) => report.problem(
            part,
            format!("{errors} uncorrected memory errors since the driver was loaded"),
            "reset the GPU (nvidia-smi --gpu-reset) or restart; replace it if they come back",
        ),
        (Some(false), _) => report.warning(
            part,
            "ECC is off: memory errors change results unseen",
            "turn it on (nvidia-smi --ecc-config=1, then restart)",
        ),
        (Some(true), _) => report.ok(part, "ECC is on, no uncorrected errors"),
        (None, _) => report.ok(part, "the GPU has no ECC"),
    }
    if let (Some(now), Some(most)) = (state.sm_clock_mhz, state.max_sm_clock_mhz) {
        // A GPU without work lowers its clock.
        report.ok(part, format!("SM clock {now} MHz now, {most} MHz at most"));
    }
    if let (Some(limit), Some(default)) = (state.power_limit_mw, state.default_power_limit_mw) {
        let text = format!("power limit {} W of {} W as delivered", limit / 1000, default / 1000);
        match limit < default {
            true => report.warning(part, text, "raise it (nvidia-smi --power-limit), unless it is meant"),
            false => report.ok(part, text),
        }
    }
}

/// Copies bytes between all pairs of devices.
fn examine_peers(report: &mut Report, opened: &mut [(u32, Hardware)]) {
    for end in 1..opened.len() {
        let (before, after) = opened.split_at_mut(end);
        let (second, b) = &mut after[0];
        for (first, a) in before {
            peer(report, (*first, a), (*second, b));
            peer(report, (*second, b), (*first, a));
        }
    }
}

fn peer(report: &mut Report, (from, source): (u32, &mut Hardware), (to, target): (u32, &mut Hardware)) {
    let part = format!("peers {from} -> {to}");
    match source.check_peer(target) {
        Ok(PeerAccess::Direct) => report.ok(&part, "direct copies arrive whole"),
        Ok(PeerAccess::Absent) => report.warning(
            &part,
            "no direct access, copies pass through host memory",
            "see nvidia-smi topo -p2p r; on PCIe, put the GPUs below one root or switch",
        ),
        Ok(PeerAccess::Corrupt { differing, of }) => report.problem(
            &part,
            format!("{differing} of {of} copied bytes arrive wrong"),
            "turn the IOMMU off or to passthrough (iommu=pt), and ACS off on PCIe switches",
        ),
        Err(error) => report.problem(&part, error.to_string(), "see nvidia-smi topo -p2p r"),
    }
}

/// Compiled kernels per architecture; returns how many are missing.
fn examine_kernels(report: &mut Report, cache: &KernelCache, archs: &[Arch]) -> usize {
    let mut all_missing = 0;
    for arch in archs {
        let wanted: Vec<_> = kernels::ALL.iter().filter(|kernel| kernel.archs.contains(arch)).collect();
        let present = |kernel| Program::new(kernel, *arch).is_ok_and(|program| cache.get(&program).is_ok());
        let missing = wanted.iter().filter(|kernel| !present(kernel)).count();
        all_missing += missing;
        let text = format!("{} of {} compiled for {arch}", wanted.len() - missing, wanted.len());
        match missing {
            0 => report.ok("kernels", text),
            _ => report.warning(
                "kernels",
                format!("{text}, the others are compiled at the start"),
                "compile them before (perigee kernels build --arch native)",
            ),
        }
    }
    all_missing
}

fn examine_compiler(report: &mut Report, nvrtc: Result<Arc<Nvrtc>, CompileError>, missing: usize) {
    match nvrtc {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            report.ok("nvrtc", format!("{major}.{minor}, {}", nvrtc.path().display()));
        }
        Err(_) if missing == 0 => report.ok("nvrtc", "not found, and not needed: all kernels are compiled"),
        Err(error) => report.problem("nvrtc", format!("{missing} kernels cannot be compiled: {error}"), ""),
    }
}

fn examine_volume(report: &mut Report, cache: &KernelCache, config: &Config) {
    let shown = config.cache_dir.display();
    if let Some(reason) = cache.degraded() {
        let remedy = "until then kernels are compiled at each start";
        return report.warning("kernel cache", reason, remedy);
    }
    match Volume::examine(&config.cache_dir) {
        Err(error) => report.warning("kernel cache", format!("{shown}: {error}"), "set kernels.cache_dir"),
        Ok(Volume { writable: false, .. }) => report.warning(
            "kernel cache",
            format!("{shown} cannot be written"),
            "make it writable, or set kernels.cache_dir; stored kernels are used all the same",
        ),
        Ok(Volume { free_bytes, .. }) => {
            let text = format!("{shown}, {} free", format_bytes(free_bytes));
            match free_bytes < MIN_CACHE_BYTES {
                true => report.warning("kernel cache", text, "make room on its volume"),
                false => report.ok("kernel cache", text),
            }
        }
    }
}

fn examine_host(report: &mut Report) {
    match available_memory() {
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
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    // Pinned memory of the driver does not count against it.
    if let Some(locked) = limit(&limits, "Max locked memory") {
        report.ok("locked memory", locked.map_or_else(|| "unlimited".into(), format_bytes));
    }
    match limit(&limits, "Max open files") {
        Some(Some(files)) if files < MIN_OPEN_FILES => {
            report.warning("open files", format!("at most {files}"), "raise it (ulimit -n 65536)")
        }
        Some(Some(files)) => report.ok("open files", format!("at most {files}")),
        Some(None) => report.ok("open files", "unlimited"),
        None => {}
    }
}

/// The soft limit in a line of `/proc/self/limits`; `Some(None)`: unlimited.
fn limit(limits: &str, name: &str) -> Option<Option<u64>> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_whitespace().next()? {
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
        assert_eq!(limit(text, "Max open files"), Some(Some(1024)));
        assert_eq!(limit(text, "Max locked memory"), Some(None));
        assert_eq!(limit(text, "Max processes"), None);
        let own = fs::read_to_string("/proc/self/limits").unwrap();
        assert!(limit(&own, "Max open files").is_some());
    }
}
