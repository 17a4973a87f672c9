//! Merges the sources and checks the result.

use std::collections::BTreeMap;
use std::path::PathBuf;

use figment::Figment;
use figment::providers::Serialized;

use super::error::{ConfigError, ConfigErrors};
use super::origin::Origin;
use super::settings::{self, Settings};
use super::sources::{Environment, LoadRequest, Sources};

/// Settings, and how they came to be.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Origin of every key, `section.key`.
    pub origins: BTreeMap<String, Origin>,
    /// What is worth a line in the log but no error.
    pub warnings: Vec<String>,
    /// The site file that was read.
    pub site: Option<PathBuf>,
    /// The profile that was applied.
    pub profile: Option<String>,
    /// Where profiles are looked for.
    pub profile_dir: PathBuf,
}

/// Loads the settings from all sources.
///
/// Errors: every problem of every source, and every value outside its limits.
pub fn load(request: &LoadRequest, environment: &Environment) -> Result<Loaded, ConfigErrors> {
    let mut sources = Sources::new(request, environment);
    let figment = Figment::from(Serialized::defaults(Settings::default()))
        .merge(sources.site())
        .merge(sources.profiles())
        .merge(sources.environment())
        .merge(sources.flags());
    let mut origins = BTreeMap::new();
    for (section, keys) in settings::keys().iter() {
        for key in keys {
            origins.insert(format!("{section}.{key}"), Origin::of(&figment, section, key));
        }
    }
    let mut errors = sources.errors;
    match figment.extract::<Settings>() {
        Ok(settings) => {
            errors.extend(settings.violations().into_iter().map(|(section, key, problem)| {
                let name = format!("{section}.{key}");
                let value = figment.find_value(&name).ok().filter(|_| !settings::is_secret(section, key));
                ConfigError {
                    value: value.map(|v| super::coerce::display(&v)),
                    origin: Some(Origin::of(&figment, section, key).place),
                    key: name,
                    problem,
                }
            }));
            if errors.is_empty() {
                let profile = sources.profile.map(|(name, _)| name);
                let Sources { site, profile_dir, warnings, .. } = sources;
                return Ok(Loaded { settings, origins, warnings, site, profile, profile_dir });
            }
        }
        // Each value has been checked against its key's type, so together they cannot fail; if they do, it is said.
        Err(e) => errors.push(ConfigError {
            key: e.path.join("."),
            value: None,
            origin: None,
            problem: e.kind.to_string(),
        }),
    }
    Err(ConfigErrors(errors))
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
