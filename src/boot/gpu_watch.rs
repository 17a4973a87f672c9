//! Tells the metrics the state of the engine's GPUs, and the log of a rank that the others wait for.
//!
//! It does so on a thread of its own that nothing waits for: a driver that does not answer holds up no step, no scrape and not the end of
//! the process.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use perigee_cuda::{DeviceState, Nvml, XidEvents};
use perigee_telemetry::{GpuFigures, Metrics, Straggler, Throttle};

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// Most critical errors of a GPU that are taken up in one look.
const MAX_XIDS: usize = 16;

/// The GPU of a rank.
#[derive(Debug, Clone)]
pub struct WatchedGpu {
    /// Name of the product.
    pub name: String,
    /// Address on the PCI bus.
    pub pci_bus_id: String,
}

/// Looks at the GPUs of all ranks, in their order, for as long as there are the metrics.
pub fn watch(gpus: Vec<WatchedGpu>, metrics: &Arc<Metrics>) {
    let metrics = Arc::downgrade(metrics);
    let spawned = thread::Builder::new().name("perigee-gpus".into()).spawn(move || run(&gpus, &metrics));
    if let Err(error) = spawned {
        tracing::warn!("no figures of GPUs: {error}");
    }
}

fn run(gpus: &[WatchedGpu], metrics: &Weak<Metrics>) {
    let nvml = Nvml::open();
    if let Err(reason) = &nvml {
        tracing::info!(
            "no figures of GPUs: {reason}; start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        );
    }
    let nvml = nvml.ok();
    let open = |gpu: &WatchedGpu| nvml.as_ref()?.xid_events(&gpu.pci_bus_id);
    let xid_events: Vec<Option<XidEvents>> = gpus.iter().map(open).collect();
    let mut throttle = Throttle::default();
    loop {
        // The library may never return: until then nothing of the metrics is held.
        let state = |gpu: &WatchedGpu| nvml.as_ref()?.state(&gpu.pci_bus_id);
        let states: Vec<DeviceState> = gpus.iter().map(|gpu| state(gpu).unwrap_or_default()).collect();
        let xids = xid_events.iter().map(|events| xids(nvml.as_ref(), events.as_ref()));
        let xids: Vec<Vec<u64>> = xids.collect();
        let Some(metrics) = metrics.upgrade() else { return };
        for (rank, xid) in
            xids.iter().enumerate().flat_map(|(rank, xids)| xids.iter().map(move |xid| (rank, *xid)))
        {
            metrics.record_xid(rank, xid);
            let gpu = &gpus[rank].pci_bus_id;
            tracing::error!(rank, gpu, xid, "the GPU has reported a critical error (XID)");
        }
        if nvml.is_some() {
            metrics.set_gpus(gpus.iter().zip(&states).map(|(gpu, state)| figures(gpu, state)).collect());
        }
        if let Some(straggler) = metrics.straggler()
            && throttle.pass()
        {
            warn_of(straggler, &gpus[straggler.rank], &states[straggler.rank]);
        }
        drop(metrics);
        thread::sleep(EVERY);
    }
}

/// Critical errors since the last call.
fn xids(nvml: Option<&Nvml>, events: Option<&XidEvents>) -> Vec<u64> {
    let next = || nvml?.next_xid(events?);
    std::iter::from_fn(next).take(MAX_XIDS).collect()
}

fn figures(gpu: &WatchedGpu, state: &DeviceState) -> GpuFigures {
    let scaled = |value: Option<u32>, unit: f64| value.map(|value| f64::from(value) * unit);
    let bytes = |value: Option<u64>| value.map(|value| value as f64);
    GpuFigures {
        name: gpu.name.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        utilization: scaled(state.utilization_percent, 1e-2),
        memory_used: bytes(state.memory_used_bytes),
        memory: bytes(state.memory_bytes),
        power: scaled(state.power_mw, 1e-3),
        power_limit: scaled(state.power_limit_mw, 1e-3),
        sm_clock: scaled(state.sm_clock_mhz, 1e6),
        max_sm_clock: scaled(state.max_sm_clock_mhz, 1e6),
        temperature: scaled(state.temperature_c, 1.0),
        pcie_generation: scaled(state.pcie_generation, 1.0),
        max_pcie_generation: scaled(state.max_pcie_generation, 1.0),
        pcie_lanes: scaled(state.pcie_lanes, 1.0),
        max_pcie_lanes: scaled(state.max_pcie_lanes, 1.0),
        uncorrected_errors: bytes(state.uncorrected_errors),
        throttled: state.throttled().collect(),
    }
}

/// Logs a rank that the others wait for, with what may be the reason.
fn warn_of(straggler: Straggler, gpu: &WatchedGpu, state: &DeviceState) {
    let holding = state.throttled().filter(|(_, holds)| *holds);
    let throttled = holding.map(|(reason, _)| reason).collect::<Vec<_>>().join(", ");
    tracing::warn!(
        rank = straggler.rank,
        gpu = gpu.pci_bus_id,
        slowness = format!("{:.2}", straggler.slowness),
        sm_clock_mhz = state.sm_clock_mhz,
        max_sm_clock_mhz = state.max_sm_clock_mhz,
        pcie_lanes = state.pcie_lanes,
        max_pcie_lanes = state.max_pcie_lanes,
        throttled,
        "the other ranks wait for this one: its GPU is slower, or it has more to compute"
    );
}
