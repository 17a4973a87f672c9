//! Profiles: named sets of settings, beside the site file or built in.
//!
//! A file wins over a built-in profile of its name. `extends` names the profile that comes first; chains may be long but
//! never closed.

use std::path::{Path, PathBuf};

/// Profiles that come with the program: (name, TOML).
const BUILT_IN: &[(&str, &str)] = &[
    ("exact", include_str!("../../config/profiles/exact.toml")),
    ("kimi-official", include_str!("../../config/profiles/kimi-official.toml")),
    ("latency", include_str!("../../config/profiles/latency.toml")),
    ("reference", include_str!("../../config/profiles/reference.toml")),
    ("throughput", include_str!("../../config/profiles/throughput.toml")),
];

/// A profile's text and where it came from.
pub(super) struct ProfileText {
    pub(super) name: String,
    /// `None` for a built-in one.
    pub(super) path: Option<PathBuf>,
    pub(super) text: String,
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

/// The profile of this name in `dir`, or the built-in one.
pub(super) fn find(dir: &Path, name: &str) -> Result<ProfileText, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err("a profile's name has letters, digits, - and _ only".into());
    }
    let path = dir.join(format!("{name}.toml"));
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(ProfileText { name: name.into(), path: Some(path), text }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(format!("{} cannot be read: {e}", path.display())),
    }
    match BUILT_IN.iter().find(|(n, _)| *n == name) {
        Some((_, text)) => Ok(ProfileText { name: name.into(), path: None, text: (*text).into() }),
        None => {
            let names: Vec<_> = list(dir).into_iter().map(|p| p.name).collect();
            Err(format!("no such profile in {}; there are {}", dir.display(), names.join(", ")))
        }
    }
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
