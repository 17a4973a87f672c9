//! `perigee doctor`: what keeps this machine from serving with these settings, or from its speed, and the
//! remedy.
//!
//! One line per finding, and one below it for the remedy. Nothing is loaded, compiled or changed. A missing
//! GPU is no failure: the CPU backend serves there.

mod cache;
mod gpu;
mod host;
mod model;
mod report;

use std::process::ExitCode;

use self::report::{Level, Report};
use super::commands::{check_settings, print, print_json};
use crate::config::args::DoctorArgs;
use crate::config::{Checked, Settings, device};
use perigee_cuda::{Installation, ProbeError};

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;

/// Prints the report; exit code 1 if it has a failure.
pub(super) fn doctor(args: &DoctorArgs) -> ExitCode {
    let mut report = Report::default();
    let checked = check_settings(args);
    configuration(&mut report, &checked);
    let plans = checked.errors.is_empty();
    // The machine's own parts can be examined without a configuration too.
    let settings = checked.loaded.map_or_else(Settings::default, |loaded| loaded.settings);
    host::examine(&mut report, &settings);
    let installation = Installation::probe();
    model::examine(&mut report, &settings, plans, installation.as_ref().ok());
    gpus(&mut report, &settings, installation);
    let printed = match args.json {
        true => print_json(&report.json()),
        false => print(&report.lines()),
    };
    if report.count(Level::Problem) > 0 { ExitCode::FAILURE } else { printed }
}

/// What `perigee config check` says.
fn configuration(report: &mut Report, checked: &Checked) {
    let part = "configuration";
    for error in &checked.errors {
        report.problem(part, error.to_string(), "");
    }
    let Some(loaded) = &checked.loaded else { return };
    for warning in &loaded.warnings {
        report.warning(part, warning.as_str(), "");
    }
    if checked.errors.is_empty() {
        let site = loaded.site.as_ref().map_or("no site file".into(), |site| site.display().to_string());
        let profile =
            loaded.profile.as_ref().map_or("no profile".into(), |profile| format!("profile {profile}"));
        report.ok(part, format!("{site}, {profile}"));
    }
}

/// Driver, devices, kernels, and the volume that keeps them.
fn gpus(report: &mut Report, settings: &Settings, installation: Result<Installation, ProbeError>) {
    let asked_for = settings.device.backend == device::BackendChoice::Cuda;
    match &installation {
        Ok(installation) => return gpu::examine(report, installation, &settings.kernels),
        // A finding about the configuration then.
        Err(_) if asked_for => {}
        Err(
            error @ (ProbeError::NoDriver | ProbeError::NoDevice | ProbeError::Call { code: NO_DEVICE, .. }),
        ) => report.warning("gpu", error.to_string(), "without one the CPU backend serves"),
        Err(error) => report.problem("driver", error.to_string(), ""),
    }
    cache::examine(report, &settings.kernels.cache_dir, asked_for);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigError, Environment, FlagValue, LoadRequest, check};

    #[test]
    fn the_configuration_has_all_that_the_check_says() {
        let flag = |key: &str, value: &str| FlagValue {
            key: key.into(),
            value: value.into(),
            flag: format!("--set {key}"),
        };
        let mut checked = check(
            &LoadRequest {
                config: None,
                profile: Some("kimi-k26-reap192-4x-rtx-pro-6000".into()),
                flags: vec![flag("scheduler.max_queue_len", "0"), flag("speculation.method", "suffix")],
            },
            &Environment::of(&[]),
            &|_| vec![("model", "path", "there is no such folder".into())],
        );
        let mut report = Report::default();
        configuration(&mut report, &checked);
        assert_eq!(
            (report.count(Level::Problem), report.count(Level::Warning)),
            (2, 1),
            "{}",
            report.lines()
        );
        assert_eq!(report.count(Level::Ok), 0);
        checked.errors = Vec::<ConfigError>::new();
        let mut report = Report::default();
        configuration(&mut report, &checked);
        assert!(report.lines().contains("profile kimi-k26-reap192"), "{}", report.lines());
    }
}
