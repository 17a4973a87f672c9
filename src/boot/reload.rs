//! Reloading settings while requests run: read anew as a whole, checked as at the start, then put in
//! force at once or not at all. Requests that run keep what they began with.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::run::served_names;
use super::sampling_defaults::{ModelDefaults, sampling_defaults};
use crate::config::{ConfigErrors, Loaded, Settings, show_json, tidy};
use perigee_http::server::{self, Control, Operator, Tls};
use perigee_telemetry::LogControl;

/// Keys and whole sections (a name with a dot at its end) that change while the server serves.
/// Everything else decides on memory, on sockets or on the model, and needs a restart.
const LIVE: &[&str] = &[
    "server.api_keys",
    "server.admin_key",
    "server.request_timeout_s",
    "server.unknown_fields",
    "server.hosted_tools",
    "server.tls_certificate",
    "server.tls_key",
    "server.tls_client_ca",
    "sampling.",
    "reasoning.",
    "guard.",
    "telemetry.log_level",
    "model.served_name",
    "model.accept_any_name",
];

/// Reads the settings from all their sources.
pub(crate) type Load = Box<dyn Fn() -> Result<Loaded, ConfigErrors> + Send + Sync>;

/// Reloads the settings of one server.
pub(super) struct Reloader {
    load: Load,
    /// In force.
    loaded: Mutex<Loaded>,
    server: Control,
    logs: LogControl,
    model: Mutex<Option<ModelDefaults>>,
}

impl Reloader {
    pub(super) fn new(load: Load, loaded: Loaded, server: Control, logs: LogControl) -> Self {
        Self { load, loaded: Mutex::new(loaded), server, logs, model: Mutex::new(None) }
    }

    /// The model is ready.
    pub(super) fn set_model(&self, model: ModelDefaults) {
        *self.model.lock().unwrap_or_else(PoisonError::into_inner) = Some(model);
    }

    fn apply(&self) -> Result<Value, String> {
        let mut current = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(api), Some(model)) = (self.server.api(), &*model) else {
            return Err("the server is starting; try again when it is ready".into());
        };
        let new = (self.load)().map_err(|errors| errors.to_string())?;
        new.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let budgeted = new.settings.server.api_keys.iter().find(|entry| entry.limits.has_budget());
        if budgeted.is_some() && !self.server.has_ledger() {
            return Err("server.api_keys: tokens_per_day and tokens_per_month need the ledger, and usage.directory is in force \
                        from the next start on"
                .into());
        }
        // Also where no path differs: renewals write new content to the old place.
        let tls = Tls::read(&new.settings.server).map_err(|error| error.to_string())?;
        let mut differences = differences(&current, &new);
        differences.extend(self.renewal(&differences, &new, tls.as_ref()));
        let (live, later): (Vec<_>, Vec<_>) = differences.into_iter().partition(|change| change.live);
        // First: all that follows cannot fail.
        let level = &new.settings.telemetry.log_level;
        self.logs.set_level(level).map_err(|error| error.to_string())?;
        let settings = &new.settings;
        let mut api = api.as_ref().clone();
        let generator = api.generator.as_ref().clone();
        let generator = generator
            .with_defaults(sampling_defaults(settings, model))
            .with_reasoning(settings.reasoning.clone())
            .with_guard(settings.guard.clone())
            .with_request_timeout(settings.server.request_timeout().as_secs_f64());
        api.generator = Arc::new(generator);
        api.request_timeout = settings.server.request_timeout();
        api.unknown_fields = settings.server.unknown_fields;
        api.hosted_tools = settings.server.hosted_tools;
        api.rename(served_names(settings), settings.model.accept_any_name);
        self.server.replace(api, &settings.server, tls);
        for Change { key, old, new, .. } in &live {
            tracing::info!(key, old, new, "setting changed");
        }
        for Change { key, old, new, .. } in &later {
            tracing::warn!(key, old, new, "setting changed, and takes effect at the next start");
        }
        tracing::info!(changed = live.len(), at_next_start = later.len(), "settings reloaded");
        let report = json!({
            "changed": live.iter().map(Change::report).collect::<Vec<_>>(),
            "at_next_start": later.iter().map(Change::report).collect::<Vec<_>>(),
        });
        *current = in_force(&current, new);
        Ok(report)
    }

    /// A new certificate in the file of the old one.
    fn renewal(&self, found: &[Change], new: &Loaded, tls: Option<&Tls>) -> Option<Change> {
        let is_renewed = !self.server.tls()?.is_same(tls?);
        let file =
            new.settings.server.tls_certificate.as_ref().map_or_else(String::new, |file| format!("{file:?}"));
        let key = "server.tls_certificate";
        let is_news = is_renewed && found.iter().all(|change| change.key != key);
        is_news.then(|| Change {
            key: key.into(),
            new: format!("{file}, with a new certificate"),
            old: file,
            live: true,
        })
    }
}

impl Operator for Reloader {
    fn settings_digest(&self) -> String {
        settings_digest(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner).settings)
    }

    fn settings(&self) -> Value {
        show_json(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reload(&self) -> Result<Value, String> {
        self.apply().inspect_err(|problems| tracing::error!("settings not reloaded: {problems}"))
    }
}

/// The first 16 digits of the BLAKE3 of all settings in force, whose secrets are masked: equal where the settings are. Without the name
/// that KV events have for this server: replicas of one Deployment have no other difference.
fn settings_digest(settings: &Settings) -> String {
    let mut settings = settings.clone();
    settings.kv_events.pod_id.clear();
    let text = serde_json::to_string(&settings).unwrap_or_default();
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// A setting that differs.
struct Change {
    key: String,
    old: String,
    new: String,
    /// Whether the new value is in force after the reload.
    live: bool,
}

impl Change {
    fn report(&self) -> Value {
        json!({ "key": self.key, "old": self.old, "new": self.new })
    }
}

/// Whether a reload puts a key in force. A port that has spoken HTTP goes on to, and so does one that has spoken HTTPS.
fn is_live(key: &str, old: &server::Config, new: &server::Config) -> bool {
    let is_listed = LIVE.iter().any(|live| key == *live || (live.ends_with('.') && key.starts_with(live)));
    is_listed && (!key.starts_with("server.tls_") || old.has_tls() == new.has_tls())
}

/// Settings that differ, by key.
fn differences(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let table = |settings: &Settings| serde_json::to_value(settings).unwrap_or_default();
    let (old_table, new_table) = (table(&old.settings), table(&new.settings));
    let keys = new.origins.keys();
    let changes = keys.filter_map(|name| {
        let (section, key) = name.split_once('.')?;
        let (old_value, new_value) = (&old_table[section][key], &new_table[section][key]);
        // Secrets are masked, and differ all the same.
        let differs = match name.as_str() {
            "server.api_keys" => old.settings.server.api_keys != new.settings.server.api_keys,
            "server.admin_key" => old.settings.server.admin_key != new.settings.server.admin_key,
            _ => old_value != new_value,
        };
        let live = is_live(name, &old.settings.server, &new.settings.server);
        let (old_value, new_value) = (tidy(old_value).to_string(), tidy(new_value).to_string());
        differs.then(|| Change { key: name.clone(), old: old_value, new: new_value, live })
    });
    changes.collect()
}

/// What is in force after a reload: the new settings, but for those that wait for the next start.
fn in_force(old: &Loaded, new: Loaded) -> Loaded {
    let mut settings = old.settings.clone();
    settings.server.api_keys = new.settings.server.api_keys.clone();
    settings.server.admin_key = new.settings.server.admin_key.clone();
    settings.server.request_timeout_s = new.settings.server.request_timeout_s;
    settings.server.unknown_fields = new.settings.server.unknown_fields;
    settings.server.hosted_tools = new.settings.server.hosted_tools;
    if settings.server.has_tls() == new.settings.server.has_tls() {
        settings.server.tls_certificate = new.settings.server.tls_certificate.clone();
        settings.server.tls_key = new.settings.server.tls_key.clone();
        settings.server.tls_client_ca = new.settings.server.tls_client_ca.clone();
    }
    settings.sampling = new.settings.sampling.clone();
    settings.reasoning = new.settings.reasoning.clone();
    settings.guard = new.settings.guard.clone();
    settings.telemetry.log_level = new.settings.telemetry.log_level.clone();
    settings.model.served_name = new.settings.model.served_name.clone();
    settings.model.accept_any_name = new.settings.model.accept_any_name;
    let mut origins = old.origins.clone();
    let live = new.origins.iter().filter(|(key, _)| is_live(key, &old.settings.server, &new.settings.server));
    origins.extend(live.map(|(key, origin)| (key.clone(), origin.clone())));
    Loaded { settings, origins, ..new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, FlagValue, LoadRequest, load};
    use perigee_http::server::{ApiKey, Secret};

    fn loaded(flags: &[(&str, &str)]) -> Loaded {
        let flag = |(key, value): &(&str, &str)| FlagValue {
            key: (*key).into(),
            value: (*value).into(),
            flag: "--set".into(),
        };
        let request = LoadRequest { config: None, profile: None, flags: flags.iter().map(flag).collect() };
        load(&request, &Environment::of(&[])).unwrap()
    }

    #[test]
    fn differences_are_found_also_in_secrets() {
        let old = loaded(&[("server.api_keys", "a"), ("guard.mode", "warn")]);
        let mut new = loaded(&[("guard.mode", "stop"), ("scheduler.max_num_seqs", "7")]);
        new.settings.server.api_keys = vec![ApiKey::plain("b")];
        new.settings.server.admin_key = Some(Secret::new("root"));
        let changes = differences(&old, &new);
        let found: Vec<_> = changes.iter().map(|change| (&*change.key, change.live)).collect();
        assert_eq!(
            found,
            [
                ("guard.mode", true),
                ("scheduler.max_num_seqs", false),
                ("server.admin_key", true),
                ("server.api_keys", true)
            ]
        );
        assert!(changes.iter().all(|change| !change.new.contains("root")));
        assert_eq!(differences(&old, &old.clone()).len(), 0);
    }

    /// Regression: replicas of a Deployment with KV events had a digest each.
    #[test]
    fn the_digest_is_of_all_settings_but_the_name_of_the_server() {
        let digest = |flags| settings_digest(&loaded(flags).settings);
        assert_eq!(digest(&[("kv_events.pod_id", "a")]), digest(&[("kv_events.pod_id", "b")]));
        assert_ne!(digest(&[]), digest(&[("kv_events.shape", "array")]));
    }

    /// Regression: a report had 0.699999988079071 where the file had 0.7.
    #[test]
    fn numbers_are_reported_as_they_are_written() {
        let changes = differences(&loaded(&[]), &loaded(&[("sampling.temperature", "0.7")]));
        assert_eq!((&*changes[0].old, &*changes[0].new), ("null", "0.7"));
    }

    /// What `in_force` takes over is what `LIVE` says: every key is changed, and every live one alone
    /// differs from before.
    #[test]
    fn what_is_live_is_in_force_and_nothing_else() {
        let old = loaded(&[]);
        let changed = [
            ("server.request_timeout_s", "7"),
            ("server.unknown_fields", "refuse"),
            ("server.hosted_tools", "refuse"),
            ("server.max_connections", "9"),
            ("sampling.temperature", "0.5"),
            ("reasoning.field", "reasoning"),
            ("guard.mode", "off"),
            ("model.served_name", "other"),
            ("model.accept_any_name", "true"),
            ("telemetry.log_level", "debug"),
            ("telemetry.log_format", "json"),
            ("scheduler.max_queue_len", "3"),
        ];
        let new = loaded(&changed);
        let asked = differences(&old, &new);
        assert_eq!(asked.len(), changed.len());
        let now = in_force(&old, new);
        let got: Vec<_> = differences(&old, &now).into_iter().map(|change| change.key).collect();
        let live: Vec<_> = asked.into_iter().filter(|change| change.live).map(|change| change.key).collect();
        assert_eq!(got, live);
        assert_eq!(now.origins["guard.mode"].place, "--set");
        assert_ne!(now.origins["scheduler.max_queue_len"].place, "--set");
    }

    #[test]
    fn tls_changes_its_files_and_is_not_turned_on_or_off() {
        let with = |file: &str| {
            loaded(&[("server.tls_certificate", file), ("server.tls_key", "k"), ("guard.mode", "off")])
        };
        let check = |old: &Loaded, new: &Loaded, live: bool, file: Option<&str>| {
            let changes = differences(old, new);
            let tls: Vec<_> =
                changes.iter().filter(|change| change.key == "server.tls_certificate").collect();
            assert_eq!(tls.iter().map(|change| change.live).collect::<Vec<_>>(), [live]);
            let now = in_force(old, new.clone()).settings.server;
            assert_eq!(now.tls_certificate.as_deref(), file.map(std::path::Path::new));
        };
        check(&with("a"), &with("b"), true, Some("b"));
        check(&with("a"), &loaded(&[]), false, Some("a"));
        check(&loaded(&[]), &with("b"), false, None);
    }
}
