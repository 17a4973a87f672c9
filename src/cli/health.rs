//! `perigee health`: the container's health check, one GET.

use std::process::ExitCode;
use std::time::Duration;

use super::client::{self, Address, Answer};
use super::commands::load_settings;
use super::trust::Trust;
use crate::config::args::HealthArgs;

/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Sends the request; exit code 0 if the answer is a 2xx, 1 otherwise.
pub(super) fn health(args: &HealthArgs) -> ExitCode {
    let timeout = Duration::try_from_secs_f64(args.timeout).unwrap_or(Duration::from_secs(2));
    let (url, target) = match &args.url {
        Some(url) => {
            let trust = Trust::of(args.ca.as_deref());
            (url.clone(), trust.and_then(|trust| Address::of_url(url, trust)))
        }
        None => match load_settings(&args.settings) {
            Ok(loaded) => {
                // The question goes to this machine, and has no secret.
                let address = Address::configured(&loaded.settings.server, Trust::Anyone);
                let path = "/health/ready".to_owned();
                (address.url(&path), Ok((address, path)))
            }
            Err(_) => return ExitCode::FAILURE,
        },
    };
    let answer = target.and_then(|(address, path)| {
        client::within(timeout, address.get(&path, "perigee-health", None, MAX_ANSWER_BYTES))
    });
    match answer {
        Ok(Answer { status, body, .. }) if (200..300).contains(&status) => {
            println!("{}", body.trim_end());
            ExitCode::SUCCESS
        }
        Ok(Answer { status, body, cut }) => {
            let rest = if cut { "…" } else { "" };
            eprintln!("perigee: {url} answered {status}: {}{rest}", body.trim_end());
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("perigee: {url}: {problem}");
            ExitCode::FAILURE
        }
    }
}
