//! Profiles: named sets of settings, beside the site file or built in.
//!
//! A file wins over a built-in profile of its name. `extends` names the profile that comes first; chains may be long but
//! never closed.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::nearest::nearest;
use super::toml_text::{TomlText, read_file};

/// Profiles that come with the program: (name, TOML).
const BUILT_IN: &[(&str, &str)] = &[
    ("embedded", include_str!("../../config/profiles/embedded.toml")),
    ("exact", include_str!("../../config/profiles/exact.toml")),
    ("kimi-k26-mxfp4", include_str!("../../config/profiles/kimi-k26-mxfp4.toml")),
    ("kimi-k26-nvfp4-8x-b200", include_str!("../../config/profiles/kimi-k26-nvfp4-8x-b200.toml")),
    ("kimi-k26-nvfp4-8x-b300", include_str!("../../config/profiles/kimi-k26-nvfp4-8x-b300.toml")),
    (
        "kimi-k26-reap192-4x-rtx-pro-6000",
        include_str!("../../config/profiles/kimi-k26-reap192-4x-rtx-pro-6000.toml"),
    ),
    ("kimi-k27-code-nvfp4", include_str!("../../config/profiles/kimi-k27-code-nvfp4.toml")),
    ("kimi-official", include_str!("../../config/profiles/kimi-official.toml")),
    ("latency", include_str!("../../config/profiles/latency.toml")),
    ("moonlight", include_str!("../../config/profiles/moonlight.toml")),
    ("reference", include_str!("../../config/profiles/reference.toml")),
    ("throughput", include_str!("../../config/profiles/throughput.toml")),
];

/// A profile that has been read.
struct ProfileText {
    name: String,
    toml: TomlText,
}

/// A profile for a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileSummary {
    /// Its name.
    pub name: String,
    /// Its file; `None` for a built-in one.
    pub path: Option<PathBuf>,
    /// Its `description`.
    pub description: String,
}

/// The profile of this name and all that it extends, weakest first. `asked_by` is the flag or the variable that names it.
pub(super) fn chain(dir: &Path, name: &str, asked_by: &str) -> Result<Vec<TomlText>, ConfigError> {
    let mut chain: Vec<ProfileText> = Vec::new();
    let (mut next, mut place) = (Some(name.to_owned()), asked_by.to_owned());
    while let Some(name) = next.take() {
        let error = |key: &str, problem| ConfigError {
            key: key.into(),
            value: Some(name.clone()),
            origin: Some(place.clone()),
            problem,
        };
        if chain.iter().any(|p| p.name == name) {
            let names: Vec<_> = chain.iter().map(|p| p.name.as_str()).chain([name.as_str()]).collect();
            let problem = format!("profiles extend each other in a circle: {}", names.join(" > "));
            return Err(error("extends", problem));
        }
        let profile = find(dir, &name).map_err(|problem| error("profile", problem))?;
        // A profile that is no TOML extends nothing here; its mistake is reported where its settings are read.
        if let Some(base) =
            profile.toml.parse().ok().and_then(|t| t.get("extends")?.as_str().map(str::to_owned))
        {
            place = profile.toml.place_of("", "extends");
            next = Some(base);
        }
        chain.push(profile);
    }
    Ok(chain.into_iter().rev().map(|profile| profile.toml).collect())
}

/// The profile of this name in `dir`, or the built-in one.
fn find(dir: &Path, name: &str) -> Result<ProfileText, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err("a profile's name has letters, digits, - and _ only".into());
    }
    let path = dir.join(format!("{name}.toml"));
    let built_in = BUILT_IN.iter().find(|(n, _)| *n == name);
    let (place, text) = match (path.try_exists(), built_in) {
        (Ok(false), Some((_, text))) => ("built in".to_owned(), (*text).to_owned()),
        (Ok(false), None) => {
            let names: Vec<_> = list(dir).into_iter().map(|p| p.name).collect();
            let near = nearest(name, names.iter().map(String::as_str));
            let near = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
            return Err(format!(
                "no such profile in {}{near}; there are {}",
                dir.display(),
                names.join(", ")
            ));
        }
        _ => (path.display().to_string(), read_file(&path)?),
    };
    Ok(ProfileText { name: name.into(), toml: TomlText { place: format!("profile {name}, {place}"), text } })
}

/// All profiles by name: those in `dir` and the built-in ones.
pub fn list(dir: &Path) -> Vec<ProfileSummary> {
    let summary = |name: &str, path: Option<PathBuf>, text: &str| {
        let table = text.parse::<toml::Table>().unwrap_or_default();
        let description = table.get("description").and_then(|d| d.as_str()).unwrap_or_default().to_owned();
        ProfileSummary { name: name.into(), path, description }
    };
    let mut found: Vec<ProfileSummary> = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension() == Some("toml".as_ref())
            && let Some(name) = path.file_stem().and_then(|n| n.to_str())
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            found.push(summary(name, Some(path.clone()), &text));
        }
    }
    for (name, text) in BUILT_IN {
        if !found.iter().any(|p| p.name == *name) {
            found.push(summary(name, None, text));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}
