//! Merges the sources and checks the result.

use std::collections::BTreeMap;
use std::path::PathBuf;

use figment::providers::Serialized;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};

use super::error::{ConfigError, ConfigErrors};
use super::origin::Origin;
use super::settings::{self, Settings};
use super::sources::{Assignment, Environment, LoadRequest, Sources};

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
    let sources = Sources::read(request, environment);
    let Sources { assignments, mut errors, warnings, site, profile, profile_dir } = sources;
    let mut figment = Figment::from(Serialized::defaults(Settings::default()));
    for (index, assignment) in assignments.iter().enumerate() {
        figment = figment.merge(Layer { assignment, index });
    }
    let origins = origins(&figment, &assignments);
    match figment.extract::<Settings>() {
        Ok(settings) => {
            errors.extend(settings.violations().into_iter().map(|(section, key, limit)| {
                let name = format!("{section}.{key}");
                let value = figment.find_value(&name).ok().map(|v| super::coerce::display(&v));
                ConfigError {
                    value: value.filter(|_| !settings::is_secret(section, key)),
                    origin: origins.get(&name).cloned(),
                    key: name,
                    problem: limit,
                }
            }));
            if errors.is_empty() {
                return Ok(Loaded { settings, origins, warnings, site, profile, profile_dir });
            }
        }
        // Each assignment has been checked against its key's type, so together they cannot fail; if they do, it is said.
        Err(e) => errors.push(ConfigError {
            key: e.path.join("."),
            value: None,
            origin: None,
            problem: e.kind.to_string(),
        }),
    }
    Err(ConfigErrors(errors))
}

/// One assignment as a source of figment's; its place in the list comes back as the origin of the value.
struct Layer<'a> {
    assignment: &'a Assignment,
    index: usize,
}

impl Provider for Layer<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.assignment.origin.to_string()).source(Source::Custom(self.index.to_string()))
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let Assignment { section, key, value, .. } = self.assignment;
        let keys: Dict = BTreeMap::from([(key.clone(), value.clone())]);
        let sections: Dict = BTreeMap::from([(section.clone(), Value::from(keys))]);
        Ok(Profile::Default.collect(sections))
    }
}

/// Where the winning value of every key came from.
fn origins(figment: &Figment, assignments: &[Assignment]) -> BTreeMap<String, Origin> {
    let mut origins = BTreeMap::new();
    for (section, keys) in settings::keys().iter() {
        for key in keys {
            let name = format!("{section}.{key}");
            let index =
                figment.find_metadata(&name).and_then(|m| m.source.as_ref()?.custom()?.parse::<usize>().ok());
            let origin = index.and_then(|i| assignments.get(i)).map_or(Origin::Default, |a| a.origin.clone());
            origins.insert(name, origin);
        }
    }
    origins
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
