//! `emulated-serve --emulate 4xsm_120 ARGUMENTS`: `perigee serve ARGUMENTS` on emulated devices.
//!
//! The same boot, engine and HTTP as on GPUs, with the kernels that ship, executed on the processor: what several devices do can be
//! tried where there is none. A step takes seconds. Needs NVRTC (`scripts/nvrtc`).

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use perigee::boot::engine::{
    Devices, EngineError, EngineOptions, EngineProgress, StartedEngine, start_on_gpus,
};
use perigee::boot::equipped::EquippedGpus;
use perigee_cuda::{Arch, CudaBackend, Nvrtc};
use perigee_emulated::{Compilations, EmulatedDevice};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::{Activations, OpError};
use perigee_telemetry::Metrics;

/// Memory of a device: what the plan takes of it is the process's.
const DEVICE_BYTES: u64 = 2 << 30;

/// So many devices of an architecture.
struct Emulated {
    devices: usize,
    arch: Arch,
    compilations: Arc<Compilations>,
}

impl Devices for Emulated {
    fn name(&self) -> String {
        format!("{} emulated {}", self.devices, self.arch)
    }

    fn start(
        &self,
        activations: Activations,
        checkpoint: &Checkpoint,
        blueprint: Blueprint,
        options: &EngineOptions,
        metrics: Arc<Metrics>,
        progress: &mut dyn FnMut(EngineProgress),
    ) -> Result<StartedEngine, EngineError> {
        tracing::warn!(devices = self.name(), "emulated devices: for trying out, a step takes seconds");
        let devices = EmulatedDevice::several(self.devices, self.arch, None, &self.compilations);
        let backend = |mut device: EmulatedDevice| {
            device.free_bytes = DEVICE_BYTES;
            CudaBackend::new(device, activations)
        };
        let backends = devices.into_iter().map(backend).collect::<Result<Vec<_>, OpError>>()?;
        start_on_gpus(EquippedGpus::new(backends), checkpoint, blueprint, options, metrics, progress)
    }
}

/// `4xsm_120`, or `sm_90`: number and architecture.
fn parse(spec: &str) -> Option<(usize, Arch)> {
    let (devices, arch) = spec.split_once('x').unwrap_or(("1", spec));
    let devices = devices.parse().ok().filter(|devices| (1..=8).contains(devices))?;
    let arch = Arch::ALL
        .into_iter()
        .find(|known| known.to_string().trim_end_matches('a') == arch.trim_end_matches('a'))?;
    Some((devices, arch))
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let spec = match arguments.iter().position(|argument| argument == "--emulate") {
        Some(at) if at + 1 < arguments.len() => arguments.drain(at..at + 2).nth(1),
        _ => None,
    };
    let Some((devices, arch)) = spec.as_deref().and_then(parse) else {
        let known = Arch::ALL.map(|arch| arch.to_string()).join(", ");
        eprintln!(
            "emulated-serve: --emulate takes a number of devices up to 8 and one of {known}: --emulate 4xsm_120a"
        );
        return ExitCode::from(2);
    };
    let folder = env::temp_dir().join("perigee-emulated");
    let opened = Nvrtc::open(None, Some(&folder.join("headers"))).map_err(|error| error.to_string());
    let compilations = match opened.and_then(|nvrtc| Compilations::open(nvrtc, &folder)) {
        Ok(compilations) => Arc::new(compilations),
        Err(error) => {
            eprintln!("emulated-serve: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Stronger than a profile: the devices are these.
    let set = [("device.backend", "cuda".to_owned()), ("device.ranks", devices.to_string())];
    for (key, value) in set {
        arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    perigee::cli::serve_on(Arc::new(Emulated { devices, arch, compilations }), arguments)
}
