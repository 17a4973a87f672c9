//! Merges the sources and checks the result.

use std::collections::BTreeMap;
use std::path::PathBuf;

use figment::Figment;
use figment::providers::Serialized;

use super::error::{ConfigError, ConfigErrors};
use super::origin::Origin;
use super::settings::{self, Settings, Violation};
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

/// Settings as far as they could be read, and everything that is wrong with them.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The settings, faulty values included; `None` if they cannot be put together. Faulty sources are left out.
    pub loaded: Option<Loaded>,
    /// Every problem.
    pub errors: Vec<ConfigError>,
}

impl Checked {
    /// The settings, if nothing is wrong with them.
    pub fn into_result(self) -> Result<Loaded, ConfigErrors> {
        match self.loaded {
            Some(loaded) if self.errors.is_empty() => Ok(loaded),
            _ => Err(ConfigErrors(self.errors)),
        }
    }
}

/// Loads the settings from all sources.
///
/// Errors: every problem of every source, and every value outside its limits.
pub fn load(request: &LoadRequest, environment: &Environment) -> Result<Loaded, ConfigErrors> {
    check(request, environment, &|_| Vec::new()).into_result()
}

/// Reads all sources and checks them; `more` adds violations that a section cannot know, such as those of the machine.
pub fn check(
    request: &LoadRequest,
    environment: &Environment,
    more: &dyn Fn(&Settings) -> Vec<Violation>,
) -> Checked {
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
            let violations = settings.violations().into_iter().chain(more(&settings));
            errors.extend(violations.map(|(section, key, problem)| {
                let name = format!("{section}.{key}");
                let value = figment.find_value(&name).ok().filter(|_| !settings::is_secret(section, key));
                ConfigError {
                    value: value.map(|v| super::coerce::display(&v)),
                    origin: Some(Origin::of(&figment, section, key).place),
                    key: name,
                    problem,
                }
            }));
            let profile = sources.profile.map(|(name, _)| name);
            let Sources { site, profile_dir, mut warnings, .. } = sources;
            warnings.extend(settings.risks());
            let loaded = Loaded { settings, origins, warnings, site, profile, profile_dir };
            Checked { loaded: Some(loaded), errors }
        }
        // Each value has been checked against its key's type, so together they cannot fail; if they do, it is said.
        Err(e) => {
            let (key, problem) = (e.path.join("."), e.kind.to_string());
            errors.push(ConfigError { key, value: None, origin: None, problem });
            Checked { loaded: None, errors }
        }
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
