//! Reads every source into assignments, weakest first, and notes everything that is wrong on the way.
//!
//! Each source is checked on its own, so that a mistake is found even where a stronger source hides it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::value::Value;

use super::error::ConfigError;
use super::origin::Origin;
use super::profiles::{self, ProfileText};
use super::{coerce, nearest, settings};

/// Site file that is read when none is named, if it exists.
const DEFAULT_SITE_FILE: &str = "config/perigee.toml";
/// Variables with a meaning of their own.
const CONFIG_VARIABLE: &str = "PERIGEE_CONFIG";
const PROFILE_VARIABLE: &str = "PERIGEE_PROFILE";
const PREFIX: &str = "PERIGEE_";
/// Longest configuration or secret file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

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
}

/// One value of one source, of its key's type.
pub(super) struct Assignment {
    pub(super) section: String,
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// What all sources say.
#[derive(Default)]
pub(super) struct Sources {
    /// Weakest first.
    pub(super) assignments: Vec<Assignment>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
    /// The site file that was read.
    pub(super) site: Option<PathBuf>,
    /// The profile asked for.
    pub(super) profile: Option<String>,
    /// Where profiles are looked for.
    pub(super) profile_dir: PathBuf,
}

impl Sources {
    pub(super) fn read(request: &LoadRequest, environment: &Environment) -> Self {
        let mut sources = Self::default();
        sources.read_site(request, environment);
        sources.read_profiles(request, environment);
        sources.read_environment(environment);
        for flag in &request.flags {
            let origin = Origin::Flag { flag: flag.flag.clone() };
            match flag.key.split_once('.') {
                Some((section, key)) => sources.assign_text(section, key, &flag.value, origin),
                None => sources.error(&flag.key, None, origin, nearest::unknown_section(&flag.key)),
            }
        }
        sources
    }

    fn read_site(&mut self, request: &LoadRequest, environment: &Environment) {
        let named = request.config.clone().or_else(|| environment.get(CONFIG_VARIABLE).map(PathBuf::from));
        let path = named.clone().unwrap_or_else(|| DEFAULT_SITE_FILE.into());
        self.profile_dir = path.parent().unwrap_or(Path::new("")).join("profiles");
        if named.is_none() && !path.exists() {
            return;
        }
        match read_file(&path) {
            Ok(text) => {
                self.read_toml(&text, false, |line| Origin::SiteFile { path: path.clone(), line });
            }
            Err(problem) => {
                let by = if request.config.is_some() {
                    Some(Origin::Flag { flag: "--config".into() })
                } else {
                    named.is_some().then(|| Origin::Environment { variable: CONFIG_VARIABLE.into() })
                };
                self.errors.push(ConfigError {
                    key: "site file".into(),
                    value: Some(path.display().to_string()),
                    origin: by,
                    problem,
                });
            }
        }
        self.site = Some(path);
    }

    fn read_profiles(&mut self, request: &LoadRequest, environment: &Environment) {
        let Some(name) = request.profile.as_deref().or(environment.get(PROFILE_VARIABLE)) else { return };
        self.profile = Some(name.to_owned());
        let mut asked_by = match request.profile {
            Some(_) => Origin::Flag { flag: "--profile".into() },
            None => Origin::Environment { variable: PROFILE_VARIABLE.into() },
        };
        // From the profile asked for down to the one that extends nothing; applied the other way round.
        let mut chain: Vec<ProfileText> = Vec::new();
        let mut next = Some(name.to_owned());
        while let Some(name) = next.take() {
            if chain.iter().any(|p| p.name == name) {
                let mut names: Vec<_> = chain.iter().map(|p| p.name.as_str()).collect();
                names.push(&name);
                let problem = format!("profiles extend each other in a circle: {}", names.join(" > "));
                self.error("extends", Some(name), asked_by, problem);
                return;
            }
            let profile = match profiles::find(&self.profile_dir, &name) {
                Ok(profile) => profile,
                Err(problem) => {
                    self.error("profile", Some(name), asked_by, problem);
                    return;
                }
            };
            if let Some(base) = profile
                .text
                .parse::<toml::Table>()
                .ok()
                .and_then(|t| t.get("extends")?.as_str().map(str::to_owned))
            {
                asked_by = profile.origin(line_of(&profile.text, "", "extends"));
                next = Some(base);
            }
            chain.push(profile);
        }
        for profile in chain.into_iter().rev() {
            self.read_toml(&profile.text, true, |line| profile.origin(line));
        }
    }

    /// Assigns what a file says. A profile may have `description` and `extends` beside the sections.
    fn read_toml(&mut self, text: &str, profile: bool, origin: impl Fn(Option<usize>) -> Origin) {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(e) => {
                let line = e.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
                self.errors.push(ConfigError {
                    key: "TOML".into(),
                    value: None,
                    origin: Some(origin(line)),
                    problem: e.message().into(),
                });
                return;
            }
        };
        for (section, entries) in table {
            let at = |key: &str| origin(line_of(text, &section, key));
            if profile && ["description", "extends"].contains(&section.as_str()) {
                if !entries.is_str() {
                    self.error(
                        &section,
                        None,
                        origin(line_of(text, "", &section)),
                        "must be a string".into(),
                    );
                }
                continue;
            }
            let toml::Value::Table(entries) = entries else {
                let here = origin(line_of(text, "", &section));
                let problem = match settings::keys().get(&section) {
                    Some(_) => format!("is a section: write [{section}] and its keys below"),
                    None => nearest::unknown_section(&section),
                };
                self.error(&section, None, here, problem);
                continue;
            };
            if settings::keys().get(&section).is_none() {
                let problem = match entries.keys().next() {
                    Some(key) if entries.len() == 1 => nearest::unknown_key(&section, key),
                    _ => nearest::unknown_section(&section),
                };
                self.error(&section, None, at(""), problem);
                continue;
            }
            for (key, value) in entries {
                let here = at(&key);
                match Value::serialize(value) {
                    Ok(value) => self.assign(&section, &key, value, here),
                    Err(e) => self.error(&format!("{section}.{key}"), None, here, e.to_string()),
                }
            }
        }
    }

    fn read_environment(&mut self, environment: &Environment) {
        // Conventions of other programs come first: our own variables are more specific.
        if let Some(level) = environment.get("RUST_LOG") {
            self.assign_text(
                "telemetry",
                "log_level",
                level,
                Origin::Environment { variable: "RUST_LOG".into() },
            );
        }
        if environment.get("NO_COLOR").is_some() {
            self.assign_text(
                "telemetry",
                "log_color",
                "never",
                Origin::Environment { variable: "NO_COLOR".into() },
            );
        }
        for (variable, value) in &environment.0 {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            if [CONFIG_VARIABLE, PROFILE_VARIABLE].contains(&variable.as_str()) {
                continue;
            }
            let origin = Origin::Environment { variable: variable.clone() };
            let name = name.to_ascii_lowercase();
            let Some((section, key)) = name.split_once("__") else {
                self.warn_of_stranger(variable, &name, value.as_deref().unwrap_or_default());
                continue;
            };
            let Some(value) = value else {
                self.error(&format!("{section}.{key}"), None, origin, "is not UTF-8".into());
                continue;
            };
            match secret_of_file(section, key) {
                Some(secret) => self.read_secret_file(environment, section, secret, variable, value),
                None if value.is_empty() && settings::is_secret(section, key) => {
                    let problem = "is empty; unset the variable, or give it a value".into();
                    self.error(&format!("{section}.{key}"), None, origin, problem);
                }
                None if value.is_empty() && settings::keys().has(section, key) => {}
                None => self.assign_text(section, key, value, origin),
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

    fn read_secret_file(
        &mut self,
        environment: &Environment,
        section: &str,
        key: &str,
        variable: &str,
        path: &str,
    ) {
        let name = format!("{section}.{key}");
        let origin = Origin::SecretFile { variable: variable.into(), path: path.into() };
        let plain = variable.strip_suffix("_FILE").unwrap_or(variable);
        if environment.0.contains_key(plain) {
            self.error(&name, None, origin, format!("{plain} is set too: keep one of them"));
            return;
        }
        let text = match read_file(Path::new(path)) {
            Ok(text) => text,
            Err(problem) => {
                self.error(&name, None, origin, problem);
                return;
            }
        };
        let lines: Vec<String> = text.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            self.error(&name, None, origin, "the file is empty".into());
            return;
        }
        self.assign(section, key, Value::from(lines), origin);
    }

    fn assign_text(&mut self, section: &str, key: &str, text: &str, origin: Origin) {
        if !settings::keys().has(section, key) {
            self.error(&format!("{section}.{key}"), None, origin, nearest::unknown_key(section, key));
            return;
        }
        match coerce::text(section, key, text) {
            Ok(value) => self.push(section, key, value, origin),
            Err(problem) => {
                let value = (!settings::is_secret(section, key)).then(|| text.to_owned());
                self.error(&format!("{section}.{key}"), value, origin, problem);
            }
        }
    }

    fn assign(&mut self, section: &str, key: &str, value: Value, origin: Origin) {
        if !settings::keys().has(section, key) {
            self.error(&format!("{section}.{key}"), None, origin, nearest::unknown_key(section, key));
            return;
        }
        match coerce::typed(section, key, value) {
            Ok(value) => self.push(section, key, value, origin),
            Err(problem) => self.error(&format!("{section}.{key}"), None, origin, problem),
        }
    }

    fn push(&mut self, section: &str, key: &str, value: Value, origin: Origin) {
        self.assignments.push(Assignment { section: section.into(), key: key.into(), value, origin });
    }

    fn error(&mut self, key: &str, value: Option<String>, origin: Origin, problem: String) {
        self.errors.push(ConfigError { key: key.into(), value, origin: Some(origin), problem });
    }
}

impl ProfileText {
    fn origin(&self, line: Option<usize>) -> Origin {
        Origin::Profile { name: self.name.clone(), path: self.path.clone(), line }
    }
}

/// The secret key that `key` is the file variant of.
fn secret_of_file<'a>(section: &str, key: &'a str) -> Option<&'a str> {
    key.strip_suffix("_file").filter(|secret| settings::is_secret(section, secret))
}

/// A small text file.
fn read_file(path: &Path) -> Result<String, String> {
    let cannot = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let metadata = std::fs::metadata(path).map_err(cannot)?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(format!("{} has {} bytes, limit {MAX_FILE_BYTES}", path.display(), metadata.len()));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

/// The line, from 1, on which a key of a section (or a section itself, for an empty key) is written. Looks at the text alone, which
/// is right for the usual ways to write TOML and finds nothing for the others.
fn line_of(text: &str, section: &str, key: &str) -> Option<usize> {
    let mut current = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.split(']').next()) {
            current = header.trim().to_owned();
            if key.is_empty() && current == section {
                return Some(number + 1);
            }
        } else if let Some((name, _)) = line.split_once('=') {
            let name = name.trim().trim_matches('"');
            let dotted = if current.is_empty() { name.to_owned() } else { format!("{current}.{name}") };
            let wanted = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            if dotted == wanted || (key.is_empty() && dotted.split('.').next() == Some(section)) {
                return Some(number + 1);
            }
        }
    }
    None
}
