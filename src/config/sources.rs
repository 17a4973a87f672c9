//! The sources of settings as figment's providers: site file, profiles, environment, flags.
//!
//! Figment merges them and keeps the source of every value. Each source is checked on its own as it is read: figment stops at the first
//! mistake and sees only what is left after the merge, a load reports every mistake, also one that a stronger source hides. For
//! the same reason figment's `Env` and `Toml` providers are not used: `Env` gives a text a type before its key is known, `Toml` has no
//! line for a mistake.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::error::ConfigError;
use super::toml_text::{TomlText, read_file};
use super::{coerce, nearest, profiles, settings};

/// Site file that is read when none is named, if it exists.
const DEFAULT_SITE_FILE: &str = "config/perigee.toml";
/// Variables with a meaning of their own.
const CONFIG_VARIABLE: &str = "PERIGEE_CONFIG";
const PROFILE_VARIABLE: &str = "PERIGEE_PROFILE";
/// The folder of the model, as `--model` is among the flags. compose.yaml hands MODEL over in it: an empty one there hides no
/// `PERIGEE_MODEL__PATH` of another source, as an empty variable of that name would.
const MODEL_VARIABLE: &str = "PERIGEE_MODEL";
const MODEL_PATH_VARIABLE: &str = "PERIGEE_MODEL__PATH";
const PREFIX: &str = "PERIGEE_";
/// What a profile may have beside the sections.
const PROFILE_KEYS: &[&str] = &["description", "extends"];

/// What the command line says about settings.
#[derive(Debug, Clone, Default)]
pub struct LoadRequest {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--profile`.
    pub profile: Option<String>,
    /// Values by flags, in their order.
    pub flags: Vec<FlagValue>,
}

/// One value by a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagValue {
    /// `section.key`.
    pub key: String,
    /// Its value as text.
    pub value: String,
    /// The flag as written, without the value, for messages.
    pub flag: String,
}

/// The environment variables that concern settings, by name. `None` is a value that is not UTF-8.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, Option<String>>);

impl Environment {
    /// The variables of this process.
    pub fn from_process() -> Self {
        let wanted = |name: &str| name.starts_with(PREFIX) || name == "RUST_LOG" || name == "NO_COLOR";
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self(variables.filter(|(n, _)| wanted(n)).map(|(n, value)| (n, value.into_string().ok())).collect())
    }

    /// These variables, for tests.
    pub fn of(variables: &[(&str, &str)]) -> Self {
        Self(variables.iter().map(|(n, v)| ((*n).to_owned(), Some((*v).to_owned()))).collect())
    }

    /// A variable's value; one that is empty counts as not set, as composing tools cannot leave a variable out.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_deref().filter(|value| !value.is_empty())
    }

    /// The secrets in the file that a variable names, one per line; lines that begin with # are comments.
    fn secret_lines(&self, variable: &str, path: &str) -> Result<Vec<String>, String> {
        let plain = &variable[..variable.len() - "_FILE".len()];
        if self.0.contains_key(plain) {
            return Err(format!("{plain} is set too: keep one of them"));
        }
        let text = read_file(Path::new(path))?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        if lines.is_empty() { Err("the file is empty".into()) } else { Ok(lines) }
    }
}

/// What one source says. Every value has its key's type.
pub(super) struct Layer {
    /// The kind of source, as origins have it.
    kind: &'static str,
    /// Values by section and key.
    sections: Map<String, Dict>,
    /// Where each value is written, by `section.key`.
    places: Map<String, String>,
}

impl Layer {
    fn new(kind: &'static str) -> Self {
        Self { kind, sections: Map::new(), places: Map::new() }
    }
}

impl Provider for Layer {
    /// The source is the kind; a key interpolates to where it is written.
    fn metadata(&self) -> Metadata {
        let places = self.places.clone();
        let place =
            move |_: &Profile, keys: &[&str]| places.get(&keys.join(".")).cloned().unwrap_or_default();
        Metadata::from("settings", self.kind).interpolater(place)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let sections = self.sections.iter().map(|(name, keys)| (name.clone(), Value::from(keys.clone())));
        Ok(Profile::Default.collect(sections.collect()))
    }
}

/// A value as its source has it.
enum Given<'a> {
    /// Of a file, which has types.
    Typed(Value),
    /// Of a variable or a flag.
    Text(&'a str),
}

/// Reads the sources, and notes what is wrong with them.
pub(super) struct Sources<'a> {
    request: &'a LoadRequest,
    environment: &'a Environment,
    /// The flag or variable that names the site file.
    site_by: Option<&'static str>,
    /// The site file.
    pub(super) site: Option<PathBuf>,
    /// Where profiles are looked for.
    pub(super) profile_dir: PathBuf,
    /// The profile asked for, and the flag or variable that names it.
    pub(super) profile: Option<(String, &'static str)>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Sources<'a> {
    pub(super) fn new(request: &'a LoadRequest, environment: &'a Environment) -> Self {
        let by_variable = |name: &'static str| Some((environment.get(name)?.to_owned(), name));
        let named = request.config.clone().map(|path| (path, "--config"));
        let named = named.or_else(|| by_variable(CONFIG_VARIABLE).map(|(path, by)| (path.into(), by)));
        let profile = request.profile.clone().map(|name| (name, "--profile"));
        let path = named.as_ref().map_or(Path::new(DEFAULT_SITE_FILE), |(path, _)| path);
        Self {
            request,
            environment,
            site_by: named.as_ref().map(|(_, by)| *by),
            profile_dir: path.parent().unwrap_or(Path::new("")).join("profiles"),
            site: (named.is_some() || path.exists()).then(|| path.to_owned()),
            profile: profile.or_else(|| by_variable(PROFILE_VARIABLE)),
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The site file.
    pub(super) fn site(&mut self) -> Layer {
        let Some(path) = &self.site else { return Layer::new("site") };
        let place = path.display().to_string();
        match read_file(path) {
            Ok(text) => self.file("site", &TomlText { place, text }, &[]),
            Err(problem) => {
                let origin = self.site_by.map(str::to_owned);
                self.errors.push(ConfigError {
                    key: "site file".into(),
                    value: Some(place),
                    origin,
                    problem,
                });
                Layer::new("site")
            }
        }
    }

    /// The profile asked for, over those it extends.
    pub(super) fn profiles(&mut self) -> Figment {
        let Some((name, asked_by)) = &self.profile else { return Figment::new() };
        match profiles::chain(&self.profile_dir, name, asked_by) {
            Ok(chain) => chain.iter().fold(Figment::new(), |figment, profile| {
                figment.merge(self.file("profile", profile, PROFILE_KEYS))
            }),
            Err(error) => {
                self.errors.push(error);
                Figment::new()
            }
        }
    }

    /// The variables, and the secret files that they name.
    pub(super) fn environment(&mut self) -> Figment {
        let environment = self.environment;
        let (mut variables, mut files) = (Layer::new("environment"), Layer::new("file"));
        // Conventions of other programs come first: our own variables are more specific.
        let color = environment.get("NO_COLOR").map(|_| "never");
        for (variable, key, value) in
            [("RUST_LOG", "log_level", environment.get("RUST_LOG")), ("NO_COLOR", "log_color", color)]
        {
            if let Some(value) = value {
                self.assign(&mut variables, "telemetry", key, Given::Text(value), variable.into());
            }
        }
        if let (Some(short), Some(long)) =
            (environment.get(MODEL_VARIABLE), environment.get(MODEL_PATH_VARIABLE))
            && short != long
        {
            let problem = format!("{MODEL_PATH_VARIABLE} names another folder, {long}: keep one of them");
            self.error("model.path", format!("{MODEL_VARIABLE} ({short})"), problem);
        }
        for (variable, value) in &environment.0 {
            let Some(name) = variable.strip_prefix(PREFIX).map(str::to_ascii_lowercase) else { continue };
            if [CONFIG_VARIABLE, PROFILE_VARIABLE].contains(&variable.as_str()) {
                continue;
            }
            let named =
                if variable == MODEL_VARIABLE { Some(("model", "path")) } else { name.split_once("__") };
            let Some((section, key)) = named else {
                self.warn_of_stranger(variable, &name, value.as_deref().unwrap_or_default());
                continue;
            };
            let (full, place) = (format!("{section}.{key}"), variable.clone());
            let secret = key.strip_suffix("_file").filter(|secret| settings::is_secret(section, secret));
            match (value.as_deref(), secret) {
                (None, _) => self.error(&full, place, "is not UTF-8".into()),
                (Some(""), _) if secret.is_some() || settings::is_secret(section, key) => {
                    let full = format!("{section}.{}", secret.unwrap_or(key));
                    self.error(&full, place, "is empty; unset the variable, or give it a value".into());
                }
                (Some(path), Some(secret)) => {
                    let place = format!("{variable} ({path})");
                    match environment.secret_lines(variable, path) {
                        Ok(lines) => {
                            let value = match &lines[..] {
                                [line] if settings::is_one_text(section, secret) => line.clone().into(),
                                _ => lines.into(),
                            };
                            self.assign(&mut files, section, secret, Given::Typed(value), place);
                        }
                        Err(problem) => self.error(&format!("{section}.{secret}"), place, problem),
                    }
                }
                (Some(""), None) if settings::keys().has(section, key) => {}
                (Some(text), None) => self.assign(&mut variables, section, key, Given::Text(text), place),
            }
        }
        Figment::from(variables).merge(files)
    }

    /// The flags, of which later ones are stronger.
    pub(super) fn flags(&mut self) -> Figment {
        self.request.flags.iter().fold(Figment::new(), |figment, flag| {
            let mut layer = Layer::new("flag");
            match flag.key.split_once('.') {
                Some((section, key)) => {
                    self.assign(&mut layer, section, key, Given::Text(&flag.value), flag.flag.clone());
                }
                None => self.error(&flag.key, flag.flag.clone(), nearest::unknown_section(&flag.key)),
            }
            figment.merge(layer)
        })
    }

    /// A file's sections. `extras` are the texts it may have beside them.
    fn file(&mut self, kind: &'static str, file: &TomlText, extras: &[&str]) -> Layer {
        let mut layer = Layer::new(kind);
        let table = file.parse().unwrap_or_else(|error| {
            self.errors.push(error);
            Dict::new()
        });
        for (section, entries) in table {
            if extras.contains(&section.as_str()) {
                if entries.as_str().is_none() {
                    self.error(&section, file.place_of("", &section), "must be a string".into());
                }
                continue;
            }
            let known = settings::keys().get(&section).is_some();
            let Value::Dict(_, entries) = entries else {
                let problem = match known {
                    true => format!("is a section: write [{section}] and its keys below"),
                    false => nearest::unknown_section(&section),
                };
                self.error(&section, file.place_of("", &section), problem);
                continue;
            };
            if !known {
                let problem = match entries.keys().next() {
                    Some(key) if entries.len() == 1 => nearest::unknown_key(&section, key),
                    _ => nearest::unknown_section(&section),
                };
                self.error(&section, file.place_of(&section, ""), problem);
                continue;
            }
            for (key, value) in entries {
                let place = file.place_of(&section, &key);
                self.assign(&mut layer, &section, &key, Given::Typed(value), place);
            }
        }
        layer
    }

    /// Adds a value to `layer` as its key's type, or notes why it cannot be.
    fn assign(&mut self, layer: &mut Layer, section: &str, key: &str, given: Given<'_>, place: String) {
        let name = format!("{section}.{key}");
        let (read, shown) = match given {
            // The value stays unsaid: the key may be a secret one, mistyped.
            _ if !settings::keys().has(section, key) => (Err(nearest::unknown_key(section, key)), None),
            Given::Typed(value) => (coerce::typed(section, key, value), None),
            Given::Text(text) => {
                let shown = (!settings::is_secret(section, key)).then(|| text.to_owned());
                (coerce::text(section, key, text), shown)
            }
        };
        match read {
            Ok(value) => {
                layer.sections.entry(section.into()).or_default().insert(key.into(), value);
                layer.places.insert(name, place);
            }
            Err(problem) => {
                self.errors.push(ConfigError { key: name, value: shown, origin: Some(place), problem });
            }
        }
    }

    /// A variable with our prefix that is no setting: a mistake, unless a cluster put it there for a service of our name.
    fn warn_of_stranger(&mut self, variable: &str, name: &str, value: &str) {
        // PERIGEE_PORT=tcp://10.0.0.1:8000; a bare number there is somebody's port.
        let link_port = name == "port" && value.contains("://");
        if link_port || name.starts_with("port_") || name.starts_with("service_") {
            return;
        }
        let hint = match nearest::key_like(name) {
            Some((section, key)) => {
                format!("did you mean {PREFIX}{}__{}?", section.to_uppercase(), key.to_uppercase())
            }
            None => format!("settings are {PREFIX}SECTION__KEY"),
        };
        self.warnings.push(format!("{variable} is not a setting and is ignored; {hint}"));
    }

    fn error(&mut self, key: &str, place: String, problem: String) {
        self.errors.push(ConfigError { key: key.into(), value: None, origin: Some(place), problem });
    }
}
