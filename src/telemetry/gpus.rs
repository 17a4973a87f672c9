//! Figures of the GPUs that the engine runs on, shown for as long as they are new.

use std::time::{Duration, Instant};

use super::families::Metric;
use super::recorder::Recorder;

/// Age from which on figures are old: they come every two seconds, unless the driver does not answer.
const OLD: Duration = Duration::from_secs(10);

/// State of a rank's GPU. `None` is not known, and has no series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuFigures {
    /// Name of the product.
    pub name: String,
    /// Address on the PCI bus.
    pub pci_bus_id: String,
    /// Share of the time in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of memory in use.
    pub memory_used: Option<f64>,
    /// Bytes of memory.
    pub memory: Option<f64>,
    /// Power drawn, watts.
    pub power: Option<f64>,
    /// Power limit, watts.
    pub power_limit: Option<f64>,
    /// Clock of the multiprocessors, hertz.
    pub sm_clock: Option<f64>,
    /// Highest clock of the multiprocessors, hertz.
    pub max_sm_clock: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Generation of the PCIe link.
    pub pcie_generation: Option<f64>,
    /// Highest generation of the PCIe link.
    pub max_pcie_generation: Option<f64>,
    /// Lanes of the PCIe link.
    pub pcie_lanes: Option<f64>,
    /// Most lanes of the PCIe link.
    pub max_pcie_lanes: Option<f64>,
    /// Memory errors that could not be corrected, since the driver was loaded.
    pub uncorrected_errors: Option<f64>,
    /// Reasons for a lowered clock, and whether each holds.
    pub throttled: Vec<(&'static str, bool)>,
}

/// A figure of a GPU, and its metric.
type Figure = (Metric, fn(&GpuFigures) -> Option<f64>);

const FIGURES: [Figure; 13] = [
    (Metric::GpuUtilization, |gpu| gpu.utilization),
    (Metric::GpuMemoryUsed, |gpu| gpu.memory_used),
    (Metric::GpuMemory, |gpu| gpu.memory),
    (Metric::GpuPower, |gpu| gpu.power),
    (Metric::GpuPowerLimit, |gpu| gpu.power_limit),
    (Metric::GpuSmClock, |gpu| gpu.sm_clock),
    (Metric::GpuMaxSmClock, |gpu| gpu.max_sm_clock),
    (Metric::GpuTemperature, |gpu| gpu.temperature),
    (Metric::GpuPcieGeneration, |gpu| gpu.pcie_generation),
    (Metric::GpuMaxPcieGeneration, |gpu| gpu.max_pcie_generation),
    (Metric::GpuPcieLanes, |gpu| gpu.pcie_lanes),
    (Metric::GpuMaxPcieLanes, |gpu| gpu.max_pcie_lanes),
    (Metric::GpuUncorrectedErrors, |gpu| gpu.uncorrected_errors),
];

/// The newest figures, by rank.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    latest: Vec<GpuFigures>,
    /// When they came; `None` before the first, and after they became old.
    came: Option<Instant>,
}

impl Gpus {
    pub(super) fn set(&mut self, gpus: Vec<GpuFigures>, now: Instant) {
        (self.latest, self.came) = (gpus, Some(now));
    }

    /// Makes the series those of the newest figures, or none.
    pub(super) fn show(&mut self, recorder: &Recorder, now: Instant) {
        if self.came.is_some_and(|came| now.saturating_duration_since(came) > OLD) {
            tracing::warn!(
                seconds = OLD.as_secs(),
                "NVML does not answer: the figures of GPUs are not shown"
            );
            (self.latest, self.came) = (Vec::new(), None);
        }
        let metrics = FIGURES.iter().map(|(metric, _)| *metric);
        metrics.chain([Metric::GpuInfo, Metric::GpuThrottled]).for_each(|metric| recorder.clear(metric));
        for (rank, gpu) in self.latest.iter().enumerate() {
            let rank = rank.to_string();
            recorder.record_with(Metric::GpuInfo, &[&rank, &gpu.name, &gpu.pci_bus_id], 1.0);
            for (metric, figure) in FIGURES {
                if let Some(value) = figure(gpu) {
                    recorder.record_with(metric, &[&rank], value);
                }
            }
            for (reason, holds) in &gpu.throttled {
                recorder.record_with(Metric::GpuThrottled, &[&rank, reason], f64::from(u8::from(*holds)));
            }
        }
    }
}
