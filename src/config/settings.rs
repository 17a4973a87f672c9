//! All sections together: typed, complete, checked. What the sources say is raw until it is one of these.

use std::sync::OnceLock;

use figment::value::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use perigee_decoding::{guard, sampling, speculation};
use perigee_engine::{kv_events, scheduler};
use perigee_http::{generate, server};
use perigee_model::vision;
use perigee_text::grammar;

use super::{DeviceConfig, ParallelConfig};

/// Resolved settings: every key has a value of the right type within its limits.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// HTTP: where requests are taken and every limit in size and time.
    pub server: server::config::Config,
    /// Which model is served, and how it is read.
    pub model: perigee_model::config::Config,
    /// What computes.
    pub device: DeviceConfig,
    /// What ranks hold, where there are several.
    pub parallel: ParallelConfig,
    /// Kernels for GPUs, compiled by `perigee kernels build`; read where a GPU computes.
    pub kernels: perigee_cuda::Config,
    /// The paged cache of latent keys and values.
    pub kv_cache: perigee_model::config::KvCacheConfig,
    /// How requests are batched.
    pub scheduler: scheduler::Config,
    /// Telling routers which prefixes are cached here.
    pub kv_events: kv_events::Config,
    /// Drafts of reply tokens, checked several at a time.
    pub speculation: speculation::Config,
    /// Images in requests to a model that sees: what is taken, and what reading it may cost.
    pub vision: vision::Config,
    /// Sampling values for requests that leave them open.
    pub sampling: sampling::config::Config,
    /// Reasoning of models that think before they answer.
    pub reasoning: generate::config::Config,
    /// Bounds on replies that must be what a schema, a grammar or a tool says.
    pub structured_output: grammar::Config,
    /// Watching replies for endless repetition.
    pub guard: guard::Config,
    /// Logs and metrics.
    pub telemetry: perigee_telemetry::Config,
    /// What customers are promised.
    pub slo: perigee_telemetry::SloConfig,
    /// The usage ledger.
    pub usage: server::LedgerConfig,
}

/// Keys whose values are never printed and may come from a file.
pub(super) const SECRET_KEYS: &[&str] = &["server.api_keys", "server.admin_key"];

/// Section names in their order, each with its keys in theirs.
pub(super) struct Keys(Vec<(String, Vec<String>)>);

impl Keys {
    pub(super) fn get(&self, section: &str) -> Option<&Vec<String>> {
        self.0.iter().find(|(name, _)| name == section).map(|(_, keys)| keys)
    }

    pub(super) fn has(&self, section: &str, key: &str) -> bool {
        self.get(section).is_some_and(|keys| keys.iter().any(|k| k == key))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(name, _)| name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(String, Vec<String>)> {
        self.0.iter()
    }
}

/// Every key there is, taken from the defaults.
pub(super) fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let defaults = serde_json::to_value(Settings::default()).expect("settings serialize");
        let sections = defaults.as_object().expect("settings are an object");
        Keys(
            sections
                .iter()
                .map(|(name, section)| {
                    let keys = section.as_object().expect("sections are objects").keys().cloned().collect();
                    (name.clone(), keys)
                })
                .collect(),
        )
    })
}

/// Whether a value is never printed.
pub(super) fn is_secret(section: &str, key: &str) -> bool {
    SECRET_KEYS.iter().any(|secret| secret.split_once('.') == Some((section, key)))
}

/// Whether the value is one text, not a list.
pub(super) fn is_one_text(section: &str, key: &str) -> bool {
    check_type(section, key, &Value::from("text")).is_ok()
}

/// Whether `value` has the type of this key, which exists.
pub(super) fn check_type(section: &str, key: &str, value: &Value) -> Result<(), figment::error::Kind> {
    let only = figment::util::nest(&format!("{section}.{key}"), value.clone());
    only.deserialize::<Settings>().map(drop).map_err(|e| e.kind)
}

/// A value outside its limits, or one that does not go with another: (section, key, limit).
pub type Violation = (&'static str, &'static str, String);

impl Settings {
    /// Every value outside its limits and every impossible combination.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (section, problems) in [
            ("server", self.server.validate()),
            ("model", self.model.validate()),
            ("device", self.device.validate()),
            ("parallel", self.parallel.validate(self.device.ranks.max(1), self.is_on_gpus())),
            ("kernels", self.kernels.validate()),
            ("kv_cache", self.kv_cache.validate()),
            ("scheduler", scheduler_problems(&self.scheduler)),
            ("kv_events", self.kv_events.validate()),
            ("speculation", self.speculation.validate()),
            ("speculation", self.draft_problems()),
            ("kv_cache", self.shard_problems()),
            ("vision", self.vision.validate()),
            ("sampling", self.sampling.validate()),
            ("reasoning", self.reasoning.validate()),
            ("structured_output", self.structured_output.validate()),
            ("guard", self.guard.validate()),
            ("telemetry", self.telemetry.validate()),
            ("telemetry", self.collector_problem()),
            ("slo", self.slo.validate()),
            ("usage", self.usage.validate()),
            ("server", self.budget_problem()),
        ] {
            violations.extend(problems.into_iter().map(|(key, limit)| (section, key, limit)));
        }
        violations
    }

    /// A budget of a key, and no ledger that remembers what was used of it.
    fn budget_problem(&self) -> Vec<(&'static str, String)> {
        let mut keys = self.server.api_keys.iter().zip(1..);
        let budgeted = keys.find(|(entry, _)| entry.limits.has_budget());
        match budgeted.filter(|_| self.usage.directory.is_none()) {
            Some((_, number)) => vec![(
                "api_keys",
                format!(
                    "key {number}: tokens_per_day and tokens_per_month need usage.directory, whose ledger remembers over restarts what was used"
                ),
            )],
            None => Vec::new(),
        }
    }

    /// A draft model that is asked for and is nowhere.
    fn draft_problems(&self) -> Vec<(&'static str, String)> {
        let has_draft = self.speculation.draft.is_some() || self.model.path.is_none();
        match self.speculation.method {
            speculation::Method::Eagle3 if !has_draft => {
                vec![("method", "needs a draft model: set speculation.draft to its folder".into())]
            }
            speculation::Method::Mtp if self.speculation.draft.is_some() => {
                vec![("draft", "method mtp drafts with the checkpoint's own layer: leave it unset".into())]
            }
            _ => Vec::new(),
        }
    }

    /// A collector of traces that is none.
    fn collector_problem(&self) -> Vec<(&'static str, String)> {
        let endpoint = &self.telemetry.otlp_endpoint;
        let problem = endpoint.parse::<server::Endpoint>().err().filter(|_| !endpoint.is_empty());
        problem.into_iter().map(|error| ("otlp_endpoint", error.to_string())).collect()
    }

    /// Whether ranks are GPUs, whatever this machine has.
    fn is_on_gpus(&self) -> bool {
        self.device.backend == super::device::BackendChoice::Cuda
    }

    /// Blocks that ranks cannot divide among them.
    fn shard_problems(&self) -> Vec<(&'static str, String)> {
        let (block_size, ranks) = (self.kv_cache.block_size, self.device.ranks.max(1));
        match block_size.is_multiple_of(ranks) || !self.parallel.splits_context(ranks, self.is_on_gpus()) {
            true => Vec::new(),
            false => vec![(
                "block_size",
                format!("must be a multiple of device.ranks ({ranks}), or parallel.context = 1"),
            )],
        }
    }
}

/// Penalties up to which tool calls and code, which repeat names on purpose, are assumed to survive.
const MILD_PENALTY: std::ops::RangeInclusive<f32> = 0.9..=1.1;

impl Settings {
    /// What is allowed and may still hurt: one sentence per risk, with the key that it comes from and the remedy.
    pub(super) fn risks(&self) -> Vec<String> {
        let mut risks = Vec::new();
        let (server, sampling) = (&self.server, &self.sampling);
        if server.is_exposed() && server.api_keys.is_empty() {
            risks.push(format!(
                "server.host = {}: other machines can send requests, and no key is needed: set server.api_keys, or server.host = \
                 127.0.0.1",
                server.host
            ));
        }
        if let (None, Some(name)) = (&self.model.path, self.model.served_name.first()) {
            risks.push(format!(
                "model.served_name = {name}: there is no model.path, so the embedded toy model is served under this name: set model.path \
                 to the model's folder, or leave the name out"
            ));
        }
        if self.guard.mode == guard::Mode::Off {
            let again = match sampling.temperature {
                Some(0.0) => ", and at sampling.temperature = 0 every retry repeats it",
                _ => "",
            };
            risks.push(format!(
                "guard.mode = off: a reply that repeats itself runs until its token limit{again}: set rescue, or warn to see how often"
            ));
        }
        if let Some(penalty) = sampling.repetition_penalty.filter(|penalty| !MILD_PENALTY.contains(penalty)) {
            risks.push(format!(
                "sampling.repetition_penalty = {penalty}: it also acts on names and numbers that tool calls, JSON and code must repeat: \
                 compare their results with 1"
            ));
        }
        risks
    }
}

/// Limits of the scheduler's settings.
fn scheduler_problems(config: &scheduler::Config) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    for (key, value, low, high) in [
        ("max_num_seqs", config.max_num_seqs, 1, 65_536),
        ("max_num_batched_tokens", config.max_num_batched_tokens, 1, 1 << 20),
        ("max_queue_len", config.max_queue_len, 1, 1_000_000),
    ] {
        if !(low..=high).contains(&value) {
            problems.push((key, format!("must be from {low} to {high}")));
        }
    }
    if !(0.0..=1e6).contains(&config.target_step_ms) {
        problems.push(("target_step_ms", "must be from 0 to 1000000 milliseconds".into()));
    }
    if !(0.0..=1e6).contains(&config.step_timeout_s) {
        problems.push(("step_timeout_s", "must be from 0 to 1000000 seconds".into()));
    }
    if problems.is_empty() && config.max_num_batched_tokens < config.max_num_seqs {
        problems.push((
            "max_num_batched_tokens",
            format!(
                "must be at least scheduler.max_num_seqs ({}), so that every running sequence gets its token",
                config.max_num_seqs
            ),
        ));
    }
    if config.max_prefill_tokens > config.max_num_batched_tokens {
        problems.push((
            "max_prefill_tokens",
            format!(
                "must be at most scheduler.max_num_batched_tokens ({}), of which it is a part",
                config.max_num_batched_tokens
            ),
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_their_own_limits() {
        assert_eq!(Settings::default().violations(), []);
    }

    fn check_violation(edit: impl Fn(&mut Settings), expected: (&str, &str, &str)) {
        let mut settings = Settings::default();
        edit(&mut settings);
        let (section, key, words) = expected;
        let violations = settings.violations();
        let found = violations.iter().any(|v| (v.0, v.1) == (section, key) && v.2.contains(words));
        assert!(found, "{expected:?}: {violations:?}");
    }

    #[test]
    fn what_this_build_cannot_do_is_refused_with_the_reason() {
        let on_gpus = |ranks: usize, edit: fn(&mut super::super::ParallelConfig)| {
            move |s: &mut Settings| {
                s.device.backend = super::super::device::BackendChoice::Cuda;
                s.device.ranks = ranks;
                edit(&mut s.parallel);
            }
        };
        check_violation(on_gpus(9, |_| ()), ("device", "ranks", "at most 8 with device.backend = cuda"));
        check_violation(on_gpus(4, |p| p.context = 2), ("parallel", "context", "0, 1 or device.ranks (4)"));
        check_violation(on_gpus(4, |p| p.expert = 3), ("parallel", "expert", "must divide device.ranks (4)"));
        let edit =
            on_gpus(2, |p| (p.context, p.collectives) = (2, crate::config::parallel::Collectives::Host));
        check_violation(edit, ("parallel", "collectives", "auto or peer with parallel.context above 1"));
        check_violation(
            on_gpus(3, |p| p.context = 3),
            ("kv_cache", "block_size", "multiple of device.ranks"),
        );
        let fine: [fn(&mut super::super::ParallelConfig); 2] =
            [|p| (p.context, p.expert) = (1, 1), |p| (p.context, p.expert) = (4, 2)];
        for (ranks, edit) in [3, 4].into_iter().zip(fine) {
            let mut settings = Settings::default();
            on_gpus(ranks, edit)(&mut settings);
            assert_eq!(settings.violations(), []);
        }
        check_violation(|s| s.device.ranks = 3, ("kv_cache", "block_size", "multiple of device.ranks (3)"));
        let four = |edit: fn(&mut super::super::ParallelConfig)| {
            move |s: &mut Settings| {
                s.device.ranks = 4;
                edit(&mut s.parallel);
            }
        };
        check_violation(four(|p| p.context = 2), ("parallel", "context", "0, 1 or device.ranks (4)"));
        check_violation(four(|p| p.expert = 3), ("parallel", "expert", "must divide device.ranks (4)"));
        let mut settings = Settings::default();
        (settings.device.ranks, settings.parallel.context) = (3, 1);
        assert_eq!(settings.violations(), []);
        let mut settings = Settings::default();
        settings.device.ranks = 2;
        settings.speculation.draft = Some("draft".into());
        assert_eq!(settings.violations(), []);
    }

    fn check_risk(edit: impl Fn(&mut Settings), expected: Option<&str>) {
        let mut settings = Settings::default();
        edit(&mut settings);
        let risks = settings.risks();
        match expected {
            Some(words) => assert!(risks.len() == 1 && risks[0].contains(words), "{words}: {risks:?}"),
            None => assert_eq!(risks, [""; 0]),
        }
    }

    #[test]
    fn what_is_merely_risky_warns() {
        check_risk(|_| (), None);
        check_risk(|s| s.server.host = "0.0.0.0".into(), Some("server.host = 0.0.0.0: other machines"));
        check_risk(|s| s.server.host = "::1".into(), None);
        check_risk(|s| s.server.host = "localhost".into(), None);
        check_risk(
            |s| {
                s.server.host = "0.0.0.0".into();
                s.server.api_keys = vec![server::ApiKey::plain("k")];
            },
            None,
        );
        check_risk(
            |s| {
                s.server.host = "0.0.0.0".into();
                s.server.unix_socket = Some("/run/perigee.sock".into());
            },
            None,
        );
        check_risk(
            |s| s.model.served_name = vec!["kimi-k2.6".into()],
            Some("the embedded toy model is served"),
        );
        check_risk(
            |s| {
                s.model.served_name = vec!["kimi-k2.6".into()];
                s.model.path = Some("/models/kimi".into());
            },
            None,
        );
        check_risk(|s| s.guard.mode = guard::Mode::Off, Some("until its token limit: set rescue"));
        check_risk(
            |s| {
                s.guard.mode = guard::Mode::Off;
                s.sampling.temperature = Some(0.0);
            },
            Some("every retry repeats it"),
        );
        check_risk(|s| s.sampling.repetition_penalty = Some(1.12), Some("repetition_penalty = 1.12"));
        check_risk(|s| s.sampling.repetition_penalty = Some(1.05), None);
        check_risk(|s| s.sampling.temperature = Some(0.0), None);
    }

    #[test]
    fn every_section_and_key_accepts_its_default() {
        let defaults = serde_json::to_value(Settings::default()).unwrap();
        for (section, keys) in keys().iter() {
            for key in keys {
                let value = Value::serialize(&defaults[section][key]).unwrap();
                assert!(check_type(section, key, &value).is_ok(), "{section}.{key}");
            }
        }
    }

    #[test]
    fn secrets_exist_and_are_masked() {
        for secret in SECRET_KEYS {
            let (section, key) = secret.split_once('.').unwrap();
            assert!(keys().has(section, key), "{secret}");
        }
        let mut settings = Settings::default();
        settings.server.api_keys = vec![server::ApiKey::plain("hunter2")];
        let printed = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(!printed.contains("hunter2") && printed.contains("********"));
    }
}
