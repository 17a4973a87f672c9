//! What settings ask of this machine and it does not have. `config check`, `doctor` and `serve` refuse in these words.

use std::io;
use std::path::Path;

use super::gpu::Gpu;
use crate::config::{Settings, Violation, device};
use perigee_engine::{kv_events, kv_tiers};
use perigee_http::server::Tls;
use perigee_ops::Activations;

/// Everything that is missing, with its remedy. Opens no device, reads no weights, and leaves nothing behind.
pub(crate) fn shortcomings(settings: &Settings) -> Vec<Violation> {
    let mut found = Vec::new();
    if settings.device.backend == device::BackendChoice::Cuda
        && let Err(error) = Gpu::find(&settings.kernels, Activations::Bf16, &settings.device)
    {
        found.push(("device", "backend", error.to_string()));
    }
    found.extend(settings.model.lacks_model().map(|problem| ("model", "required", problem.to_owned())));
    let draft = settings.speculation.draft.as_ref().filter(|_| settings.speculation.is_on());
    for (section, key, path, is_folder) in [
        ("model", "path", settings.model.path.as_ref(), true),
        ("model", "chat_template", settings.model.chat_template.as_ref(), false),
        ("speculation", "draft", draft, true),
    ] {
        let problem = path.and_then(|path| path_problem(path, is_folder));
        found.extend(problem.map(|problem| (section, key, problem)));
    }
    if let Err(error) = Tls::read(&settings.server) {
        found.push(("server", error.key, error.problem));
    }
    let cache = &settings.kv_cache;
    if cache.host_bytes > 0
        && !cache.disk_path.is_empty()
        && let Err(error) = kv_tiers::try_folder(Path::new(&cache.disk_path))
    {
        found.push(("kv_cache", "disk_path", error.to_string()));
    }
    let addresses = kv_events::unusable_addresses(&settings.kv_events);
    found.extend(addresses.into_iter().map(|error| ("kv_events", error.key, error.problem)));
    found
}

/// Why a folder or a file cannot be what it should.
fn path_problem(path: &Path, is_folder: bool) -> Option<String> {
    let kind = if is_folder { "folder" } else { "file" };
    match path.metadata() {
        Ok(found) if found.is_dir() == is_folder => None,
        Ok(_) => Some(format!("is no {kind}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A relative path is the usual reason.
            let from = match (path.is_relative(), std::env::current_dir()) {
                (true, Ok(current)) => format!(" below {}", current.display()),
                _ => String::new(),
            };
            Some(format!("there is no such {kind}{from}; in a container it must be mounted at this path"))
        }
        Err(error) => Some(format!("cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn check(edit: impl Fn(&mut Settings), expected: &[(&str, &str, &str)]) {
        let mut settings = Settings::default();
        edit(&mut settings);
        let found = shortcomings(&settings);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, (section, key, words)) in found.iter().zip(expected) {
            assert!((found.0, found.1) == (*section, *key) && found.2.contains(words), "{found:?}");
        }
    }

    #[test]
    fn paths_that_are_not_there_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        check(|_| (), &[]);
        check(|s| s.model.path = Some(dir.path().into()), &[]);
        check(|s| s.model.required = true, &[("model", "required", "needs model.path")]);
        check(
            |s| {
                s.model.required = true;
                s.model.path = Some(dir.path().into());
            },
            &[],
        );
        check(|s| s.model.path = Some(file.clone()), &[("model", "path", "is no folder")]);
        check(
            |s| s.model.chat_template = Some(dir.path().into()),
            &[("model", "chat_template", "is no file")],
        );
        check(
            |s| {
                s.model.path = Some("no/such".into());
                s.speculation.draft = Some("/no/such".into());
            },
            &[("model", "path", "no such folder below /"), ("speculation", "draft", "no such folder; in a")],
        );
        check(
            |s| {
                s.speculation = perigee_decoding::speculation::Config::off();
                s.speculation.draft = Some("/no/such".into());
            },
            &[],
        );
    }

    #[test]
    fn files_of_tls_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let with = |certificate: PathBuf| {
            let file = file.clone();
            move |s: &mut Settings| {
                s.server.tls_certificate = Some(certificate.clone());
                s.server.tls_key = Some(file.clone());
            }
        };
        check(with("/no/such".into()), &[("server", "tls_certificate", "no such file")]);
        check(with(file.clone()), &[("server", "tls_certificate", "has no certificate")]);
        check(with(dir.path().into()), &[("server", "tls_certificate", "cannot be read")]);
    }

    #[test]
    fn the_folder_of_blocks_and_the_addresses_of_events_are_tried() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let with = |path: PathBuf, host_bytes: u64| {
            move |s: &mut Settings| {
                s.kv_cache.disk_path = path.display().to_string();
                s.kv_cache.host_bytes = host_bytes;
            }
        };
        check(with(dir.path().join("kv"), 1 << 30), &[]);
        assert!(!dir.path().join("kv").exists());
        check(with(file.join("kv"), 1 << 30), &[("kv_cache", "disk_path", "that this process may write")]);
        check(with(file.join("kv"), 0), &[]);
        check(|s| s.kv_events.endpoint = "tcp://127.0.0.1:0".into(), &[]);
        check(
            |s| s.kv_events.endpoint = "tcp://192.0.2.1:5557".into(),
            &[("kv_events", "endpoint", "choose another address")],
        );
    }

    #[test]
    fn a_gpu_is_missed_only_where_one_is_asked_for() {
        let settings = Settings::default();
        let found = Gpu::find(&settings.kernels, Activations::Bf16, &settings.device);
        let expected: &[_] = match &found {
            Ok(_) => &[],
            Err(_) => &[("device", "backend", "driver")],
        };
        check(|s| s.device.backend = device::BackendChoice::Cuda, expected);
    }
}
