//! `emulated-serve --emulate 4xsm_120 ARGUMENTS`: `perigee serve ARGUMENTS` on emulated devices.
//!
//! The same boot, engine and HTTP as on GPUs, with the kernels that ship, executed on the processor: what several devices do can be
//! tried where there is none. A step takes seconds. Needs NVRTC (`scripts/nvrtc`). With `--fail lost:1:5000` device 1 is lost at its 5,000th
//! call; `hangs` does not return from it, and `silent:1:300` gives nothing to the others from exchange 300 on.

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use perigee::boot::engine::{
    Devices, EngineError, EngineOptions, EngineProgress, StartedEngine, start_on_gpus,
};
use perigee::boot::equipped::EquippedGpus;
use perigee_cuda::{Arch, CudaBackend, Nvrtc};
use perigee_emulated::{Compilations, EmulatedDevice, Failure, Fault};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::{Activations, OpError};
use perigee_telemetry::Metrics;

/// How long an emulated device waits for another one: its clock counts a million instructions of a warp as a millisecond, so that a second
/// takes a minute.
const WAIT: Duration = Duration::from_millis(50);
/// Memory of a device: what the plan takes of it is the process's.
const DEVICE_BYTES: u64 = 2 << 30;

/// So many devices of an architecture.
struct Emulated {
    devices: usize,
    arch: Arch,
    compilations: Arc<Compilations>,
    /// What befalls one of them.
    failure: Option<(usize, Failure)>,
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
        let mut devices = EmulatedDevice::several(self.devices, self.arch, None, &self.compilations);
        if let Some((device, failure)) = self.failure {
            devices[device].fail(failure);
        }
        let backend = |mut device: EmulatedDevice| {
            device.free_bytes = DEVICE_BYTES;
            let mut backend = CudaBackend::new(device, activations)?;
            backend.set_wait(WAIT);
            Ok(backend)
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

/// `lost:1:5000`: fault, device of so many, and calls or exchanges before it.
fn parse_failure(spec: &str, devices: usize) -> Option<(usize, Failure)> {
    let mut parts = spec.split(':');
    let fault = match parts.next()? {
        "lost" => Fault::Lost,
        "hangs" => Fault::Hangs,
        "silent" => Fault::Silent,
        _ => return None,
    };
    let device = parts.next()?.parse().ok().filter(|device| *device < devices)?;
    let after = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((device, Failure { fault, after }))
}

/// Takes `name VALUE` out of the arguments.
fn take(arguments: &mut Vec<String>, name: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    (at + 1 < arguments.len()).then(|| arguments.drain(at..at + 2).nth(1)).flatten()
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let spec = take(&mut arguments, "--emulate");
    let Some((devices, arch)) = spec.as_deref().and_then(parse) else {
        let known = Arch::ALL.map(|arch| arch.to_string()).join(", ");
        eprintln!(
            "emulated-serve: --emulate takes a number of devices up to 8 and one of {known}: --emulate 4xsm_120a"
        );
        return ExitCode::from(2);
    };
    let failure = match take(&mut arguments, "--fail") {
        None => None,
        Some(spec) => match parse_failure(&spec, devices) {
            None => {
                eprintln!(
                    "emulated-serve: --fail takes lost, hangs or silent, a device below {devices}, and a number of calls or exchanges: lost:1:5000"
                );
                return ExitCode::from(2);
            }
            failure => failure,
        },
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
    perigee::cli::serve_on(Arc::new(Emulated { devices, arch, compilations, failure }), arguments)
}
