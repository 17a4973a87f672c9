//! `perigee health`: the container's health check, one GET.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

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
            eprintln!("perigee: {url} answered {status}: {}{rest}", reason(&body));
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("perigee: {url}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The message of an answer that is an error of the API, else the answer as it is.
fn reason(body: &str) -> String {
    let error: Option<Value> = serde_json::from_str(body).ok();
    let message = error.as_ref().and_then(|error| error["error"]["message"].as_str());
    message.unwrap_or(body.trim_end()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_http::api::ApiError;

    #[test]
    fn a_refusal_is_said_in_its_words() {
        let refusal = ApiError::too_many_connections(8);
        let body = String::from_utf8(refusal.body()).unwrap();
        assert_eq!(reason(&body), "all 8 connections (server.max_connections) are in use; try again soon");
        for body in [r#"{"status":"starting"}"#, "no JSON", ""] {
            assert_eq!(reason(&format!("{body}\n")), body);
        }
    }
}
