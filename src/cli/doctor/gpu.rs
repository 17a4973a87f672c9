//! Driver, GPUs and their compiled kernels.

use std::sync::Arc;

use super::cache;
use super::report::Report;
use crate::boot::memory_plan::format_bytes;
use perigee_cuda::{
    Arch, CacheSettings, CompileError, Compiler, Config, Device, DeviceState, Driver, Hardware, Installation,
    KernelCache, Nvml, Nvrtc, PeerAccess, Program, has_cublaslt, kernels,
};

pub(super) fn examine(report: &mut Report, installation: &Installation, config: &Config) {
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
    if config.cublaslt {
        examine_cublaslt(report);
    }
    examine_volume(report, &cache, config);
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
    if let (Some(lanes), Some(most)) = (state.pcie_lanes, state.max_pcie_lanes) {
        let generation = match (state.pcie_generation, state.max_pcie_generation) {
            // A GPU without work lowers it.
            (Some(now), Some(most)) => format!(", generation {now} now, {most} at most"),
            _ => String::new(),
        };
        let text = format!("PCIe x{lanes} of x{most}{generation}");
        match lanes < most {
            true => {
                report.warning(part, text, "seat the GPU and its riser anew, or take a slot with all lanes")
            }
            false => report.ok(part, text),
        }
    }
    let holding: Vec<&str> =
        state.throttled().filter(|(_, holds)| *holds).map(|(reason, _)| reason).collect();
    if !holding.is_empty() {
        report.warning(
            part,
            format!("the clock is lowered: {}", holding.join(", ")),
            "see nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE: cooling, power supply, limits that were set",
        );
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

fn examine_cublaslt(report: &mut Report) {
    match has_cublaslt() {
        true => report.ok("cublaslt", "found, as kernels.cublaslt needs it"),
        false => report.problem(
            "cublaslt",
            "kernels.cublaslt = true, and libcublasLt.so.13 cannot be opened",
            "install it (python3 -m pip install nvidia-cublas) and put its folder on LD_LIBRARY_PATH, or set kernels.cublaslt = false",
        ),
    }
}

fn examine_volume(report: &mut Report, cache: &KernelCache, config: &Config) {
    match cache.degraded() {
        Some(reason) => {
            report.warning("kernel cache", reason, "until then kernels are compiled at each start");
        }
        None => cache::examine(report, &config.cache_dir, true),
    }
}
