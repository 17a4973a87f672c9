//! Layers, origins, and every kind of mistake.

use std::fs;
use std::path::Path;

use super::*;
use crate::config::{FlagValue, show_json, show_table};
use perigee_decoding::sampling::rules::Rule;

/// A folder with `perigee.toml` and `profiles/`.
struct Site(tempfile::TempDir);

impl Site {
    fn new(site: &str, profiles: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("perigee.toml"), site).unwrap();
        fs::create_dir(dir.path().join("profiles")).unwrap();
        for (name, text) in profiles {
            fs::write(dir.path().join("profiles").join(format!("{name}.toml")), text).unwrap();
        }
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(
        &self,
        profile: Option<&str>,
        environment: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> Result<Loaded, ConfigErrors> {
        let flags = flags
            .iter()
            .map(|(k, v)| FlagValue { key: (*k).into(), value: (*v).into(), flag: format!("--set {k}") })
            .collect();
        let request = LoadRequest {
            config: Some(self.file("perigee.toml")),
            profile: profile.map(str::to_owned),
            flags,
        };
        load(&request, &Environment::of(environment))
    }

    /// The errors of a load, with the folder's path replaced by DIR.
    fn errors(
        &self,
        profile: Option<&str>,
        environment: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> Vec<String> {
        let dir = self.0.path().display().to_string();
        let errors = self.load(profile, environment, flags).expect_err("errors");
        errors.0.iter().map(|e| e.to_string().replace(&dir, "DIR")).collect()
    }
}

#[test]
fn each_layer_is_stronger_than_the_one_before() {
    let site = Site::new(
        "[server]\nport = 1\nmax_connections = 1\nkeep_alive_s = 1\nbody_read_timeout_s = 1\n[scheduler]\nmax_num_seqs = 7\n",
        &[
            ("base", "[server]\nport = 2\nmax_connections = 2\nkeep_alive_s = 2\ncors_origins = [\"*\"]\n"),
            ("mine", "extends = \"base\"\ndescription = \"d\"\n[server]\nport = 3\nmax_connections = 3\n"),
        ],
    );
    let loaded = site
        .load(
            Some("mine"),
            &[("PERIGEE_SERVER__PORT", "4"), ("PERIGEE_SERVER__MAX_CONNECTIONS", "4")],
            &[("server.port", "5")],
        )
        .unwrap();
    let dir = site.0.path().display();
    for (key, value, origin) in [
        ("server.port", "5", "--set server.port".to_owned()),
        ("server.max_connections", "4", "PERIGEE_SERVER__MAX_CONNECTIONS".into()),
        ("server.keep_alive_s", "2.0", format!("profile base, {dir}/profiles/base.toml line 4")),
        ("server.cors_origins", "[\"*\"]", format!("profile base, {dir}/profiles/base.toml line 5")),
        ("server.body_read_timeout_s", "1.0", format!("{dir}/perigee.toml line 5")),
        ("server.sse_keep_alive_s", "15.0", "default".into()),
        ("scheduler.max_num_seqs", "7", format!("{dir}/perigee.toml line 7")),
    ] {
        let (section, name) = key.split_once('.').unwrap();
        let settings = serde_json::to_value(&loaded.settings).unwrap();
        assert_eq!(settings[section][name].to_string(), value, "{key}");
        assert_eq!(loaded.origins[key].to_string(), origin, "{key}");
    }
    assert_eq!(loaded.profile.as_deref(), Some("mine"));
}

/// Regression: where compose.yaml had no MODEL, its empty variable hid the folder that `.env` named, and the embedded model was served.
#[test]
fn the_short_variable_of_the_model_hides_no_other() {
    let site = Site::new("", &[]);
    let path = |variables: &[(&str, &str)]| {
        let loaded = site.load(None, variables, &[]).unwrap();
        let path = loaded.settings.model.path.map(|path| path.display().to_string());
        (path, loaded.origins["model.path"].to_string())
    };
    let expect = |path: &str, origin: &str| (Some(path.to_owned()), origin.to_owned());
    let long = ("PERIGEE_MODEL__PATH", "/models/kimi");
    assert_eq!(path(&[("PERIGEE_MODEL", ""), long]), expect("/models/kimi", "PERIGEE_MODEL__PATH"));
    assert_eq!(path(&[("PERIGEE_MODEL", "/m")]), expect("/m", "PERIGEE_MODEL"));
    assert_eq!(path(&[("PERIGEE_MODEL", "/models/kimi"), long]).0.as_deref(), Some("/models/kimi"));
    assert_eq!(path(&[("PERIGEE_MODEL", "")]), (None, "default".to_owned()));
    let errors = site.errors(None, &[("PERIGEE_MODEL", "/m"), long], &[]);
    assert_eq!(
        errors,
        [
            "model.path: PERIGEE_MODEL__PATH names another folder, /models/kimi: keep one of them (set in PERIGEE_MODEL (/m))"
        ]
    );
}

#[test]
fn nothing_given_is_the_defaults() {
    let loaded = Site::new("", &[]).load(None, &[], &[]).unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.origins.values().all(|o| o.kind == "default") && loaded.warnings.is_empty());
}

#[test]
fn built_in_profiles_load_and_differ_from_the_defaults() {
    let site = Site::new("", &[]);
    let names: Vec<_> =
        crate::config::list_profiles(Path::new("/nonexistent")).into_iter().map(|p| p.name).collect();
    let expected = [
        "embedded",
        "exact",
        "kimi-k26-mxfp4",
        "kimi-k26-nvfp4-8x-b200",
        "kimi-k26-nvfp4-8x-b300",
        "kimi-k26-reap192-4x-rtx-pro-6000",
        "kimi-k27-code-nvfp4",
        "kimi-official",
        "latency",
        "moonlight",
        "reference",
        "throughput",
    ];
    assert_eq!(names, expected);
    for name in names {
        // The folder of a draft model is the operator's to name.
        let here: &[_] = match name.starts_with("kimi-k2") {
            true => &[("speculation.method", "suffix")],
            false => &[],
        };
        let loaded = site.load(Some(&name), &[], here).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_ne!(loaded.settings, Settings::default(), "{name}");
    }
    let reference = site.load(Some("reference"), &[], &[]).unwrap();
    assert_eq!(reference.origins["kv_cache.dtype"].to_string(), "profile exact, built in line 7");
    assert_eq!(reference.origins["device.backend"].to_string(), "profile reference, built in line 5");
}

#[test]
fn a_profile_of_the_site_hides_a_built_in_one() {
    let site = Site::new("", &[("latency", "[server]\nport = 9\n")]);
    assert_eq!(site.load(Some("latency"), &[], &[]).unwrap().settings.server.port, 9);
    let listed = crate::config::list_profiles(&site.file("profiles"));
    assert_eq!(
        listed.iter().find(|p| p.name == "latency").unwrap().path,
        Some(site.file("profiles/latency.toml"))
    );
}

#[test]
fn all_mistakes_of_all_sources_are_listed_at_once() {
    let site = Site::new(
        "[server]\nprot = 1\nport = \"x\"\n\n[sever]\nport = 2\n[scheduler]\nmax_num_seqs = 0\n",
        &[("p", "[telemetry]\nvllm_names = 3\nlog_level = \"inof\"\n")],
    );
    let errors = site.errors(
        Some("p"),
        &[("PERIGEE_SERVER__KEEPALIVE_S", "5"), ("PERIGEE_KV_CACHE__MEMORY_BYTES", "lots")],
        &[("device.threads", "-2"), ("kv_cache.block_size", "48"), ("port", "1")],
    );
    let expected = [
        "server.port: must be a whole number from 0 to 65535, not \"x\" (set in DIR/perigee.toml line 3)",
        "server.prot: unknown key, did you mean server.port? (set in DIR/perigee.toml line 2)",
        "sever: unknown section, did you mean server.port? (set in DIR/perigee.toml line 5)",
        "telemetry.vllm_names: must be true or false, not 3 (set in profile p, DIR/profiles/p.toml line 2)",
        "kv_cache.memory_bytes = lots: must be a whole number, not negative, or a size such as \"8GiB\", not \"lots\" (set in PERIGEE_KV_CACHE__MEMORY_BYTES)",
        "server.keepalive_s: unknown key, did you mean server.keep_alive_s? (set in PERIGEE_SERVER__KEEPALIVE_S)",
        "device.threads = -2: must be a whole number, not negative, not -2 (set in --set device.threads)",
        "port: unknown section, did you mean server.port? (set in --set port)",
        "kv_cache.block_size = 48: must be a power of two from 8 to 256 (set in --set kv_cache.block_size)",
        "scheduler.max_num_seqs = 0: must be from 1 to 65536 (set in DIR/perigee.toml line 8)",
    ];
    for line in expected {
        assert!(errors.iter().any(|e| e == line), "missing: {line}\nin {errors:#?}");
    }
    let filter = errors.iter().find(|e| e.starts_with("telemetry.log_level = inof:")).unwrap();
    assert!(
        filter.contains("\"inof\" is no level") && filter.ends_with("profiles/p.toml line 3)"),
        "{filter}"
    );
    assert_eq!(errors.len(), expected.len() + 1, "{errors:#?}");
}

#[test]
fn a_mistake_is_found_even_where_a_stronger_source_hides_it() {
    let site = Site::new("[server]\nport = true\n", &[]);
    let errors = site.errors(None, &[("PERIGEE_SERVER__PORT", "80")], &[]);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("perigee.toml line 2"), "{errors:?}");
    let twice = [("server.port", "x"), ("server.port", "1"), ("server.host", "h")];
    let errors = Site::new("", &[]).errors(None, &[], &twice);
    assert!(errors.len() == 1 && errors[0].starts_with("server.port = x: must be a whole"), "{errors:?}");
}

#[test]
fn files_are_read_up_to_their_limit() {
    let long = "#".repeat((1 << 20) + 1);
    let (site, fine) = (Site::new(&long, &[]), Site::new("", &[("long", &long)]));
    fs::write(fine.file("keys"), &long).unwrap();
    let keys = fine.file("keys").display().to_string();
    for (errors, key) in [
        (site.errors(None, &[], &[]), "site file = "),
        (fine.errors(Some("long"), &[], &[]), "profile = long: "),
        (fine.errors(None, &[("PERIGEE_SERVER__API_KEYS_FILE", &keys)], &[]), "server.api_keys: "),
    ] {
        assert!(errors.len() == 1 && errors[0].starts_with(key), "{key}: {errors:?}");
        assert!(errors[0].contains("has 1048577 bytes, limit 1048576"), "{key}: {errors:?}");
    }
}

#[test]
fn impossible_combinations_name_both_keys() {
    let site = Site::new("", &[]);
    for (flags, expected) in [
        (
            &[("scheduler.max_num_seqs", "512"), ("scheduler.max_num_batched_tokens", "100")][..],
            "scheduler.max_num_batched_tokens = 100: must be at least scheduler.max_num_seqs (512)",
        ),
        (
            &[("scheduler.max_prefill_tokens", "9000")],
            "scheduler.max_prefill_tokens = 9000: must be at most scheduler.max_num_batched_tokens (8192)",
        ),
        (
            &[("kv_cache.memory_bytes", "1GiB"), ("kv_cache.num_blocks", "10")],
            "kv_cache.num_blocks = 10: must be 0 when kv_cache.memory_bytes (1073741824) is set",
        ),
        (&[("server.request_timeout_s", "0")], "server.request_timeout_s = 0: must be from 0.01"),
        (&[("server.request_timeout_s", "nan")], "server.request_timeout_s = NaN: must be from 0.01"),
        (&[("sampling.top_p", "0")], "sampling.top_p = 0: must be above 0, at most 1"),
        (&[("model.latent_norm_eps", "-1")], "model.latent_norm_eps = -1: must be \"config\" or a number"),
        (&[("server.host", " ")], "server.host =  : must be an address"),
        (
            &[("server.max_body_bytes", "4GiB")],
            "server.max_body_bytes = 4294967296: must be from 1024 to 1073741824",
        ),
    ] {
        let errors = site.errors(None, &[], flags);
        assert!(errors.len() == 1 && errors[0].starts_with(expected), "{flags:?}: {errors:?}");
    }
    assert_eq!(site.load(None, &[], &[("server.port", "0")]).unwrap().settings.server.port, 0);
}

#[test]
fn broken_files_and_profiles_say_where() {
    let site = Site::new(
        "[server\nport = 1\n",
        &[
            ("a", "extends = \"b\"\n"),
            ("b", "extends = \"a\"\n"),
            ("c", "x = 1\nserver = 3\ndescription = 4\n"),
        ],
    );
    let errors = site.errors(None, &[], &[]);
    assert!(
        errors[0].starts_with("TOML: ") && errors[0].ends_with("(set in DIR/perigee.toml line 1)"),
        "{errors:?}"
    );

    fs::write(site.file("perigee.toml"), "").unwrap();
    for (profile, expected) in [
        (
            "a",
            "extends = a: profiles extend each other in a circle: a > b > a (set in profile b, DIR/profiles/b.toml line 1)",
        ),
        ("none", "profile = none: no such profile in DIR/profiles; there are a, b, c, embedded, exact, "),
        ("../x", "profile = ../x: a profile's name has letters, digits, - and _ only (set in --profile)"),
    ] {
        let errors = site.errors(Some(profile), &[], &[]);
        assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
    }
    let errors = site.errors(Some("c"), &[], &[]);
    for expected in
        ["x: unknown section", "server: is a section: write [server]", "description: must be a string"]
    {
        assert!(errors.iter().any(|e| e.starts_with(expected)), "{expected}: {errors:?}");
    }

    let request = LoadRequest { config: Some(site.file("absent.toml")), ..LoadRequest::default() };
    let text = load(&request, &Environment::default()).unwrap_err().to_string();
    assert!(
        text.contains("site file = ") && text.contains("cannot read") && text.contains("--config"),
        "{text}"
    );
}

#[test]
fn variables_name_the_site_file_and_the_profile() {
    let site = Site::new("[server]\nport = 1\n", &[("p", "[server]\nhost = \"h\"\n")]);
    let file = site.file("perigee.toml").display().to_string();
    let environment = Environment::of(&[("PERIGEE_CONFIG", &file), ("PERIGEE_PROFILE", "p")]);
    let loaded = load(&LoadRequest::default(), &environment).unwrap();
    assert_eq!((loaded.settings.server.port, loaded.settings.server.host.as_str()), (1, "h"));
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let site = Site::new("", &[]);
    fs::write(site.file("keys"), "# of team a\nhunter2\r\nhunter3\n\n").unwrap();
    fs::write(site.file("empty"), "\n").unwrap();
    let keys = site.file("keys").display().to_string();
    let empty = site.file("empty").display().to_string();
    let loaded = site.load(None, &[("PERIGEE_SERVER__API_KEYS_FILE", &keys)], &[]).unwrap();
    let [first, second] = &loaded.settings.server.api_keys[..] else { panic!("two keys") };
    assert!(first.key.is("hunter2") && second.key.is("hunter3"));
    let shown = format!("{}{}{:?}", show_table(&loaded), show_json(&loaded), loaded);
    assert!(!shown.contains("hunter") && shown.contains("********"), "{shown}");
    assert!(show_table(&loaded).contains(&format!("PERIGEE_SERVER__API_KEYS_FILE ({keys})")));

    for (environment, expected) in [
        (
            &[("PERIGEE_SERVER__API_KEYS_FILE", keys.as_str()), ("PERIGEE_SERVER__API_KEYS", "hunter4")][..],
            "PERIGEE_SERVER__API_KEYS is set too: keep one of them",
        ),
        (&[("PERIGEE_SERVER__API_KEYS_FILE", &empty)], "server.api_keys: the file is empty"),
        (&[("PERIGEE_SERVER__API_KEYS_FILE", "/nonexistent")], "cannot read /nonexistent"),
        (&[("PERIGEE_SERVER__API_KEYS_FILE", "")], "server.api_keys: is empty; unset the variable"),
        (&[("PERIGEE_SERVER__API_KEYS", "")], "is empty; unset the variable"),
        (&[("PERIGEE_SERVER__API_KEYS", "hunter2 hunter3")], "printable ASCII without spaces"),
        (&[("PERIGEE_SERVER__PORT_FILE", &keys)], "unknown key"),
    ] {
        let errors = site.errors(None, environment, &[]);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {errors:?}");
        assert!(!errors[0].contains("hunter"), "{errors:?}");
    }
}

#[test]
fn conventions_of_the_environment_are_honoured() {
    let site = Site::new("[telemetry]\nlog_level = \"warn\"\n", &[]);
    let level = |environment: &[(&str, &str)]| {
        let loaded = site.load(None, environment, &[]).unwrap();
        (loaded.settings.telemetry.log_level.clone(), loaded.origins["telemetry.log_level"].to_string())
    };
    assert_eq!(level(&[("RUST_LOG", "debug")]), ("debug".into(), "RUST_LOG".into()));
    let both = [("RUST_LOG", "debug"), ("PERIGEE_TELEMETRY__LOG_LEVEL", "error")];
    assert_eq!(level(&both), ("error".into(), "PERIGEE_TELEMETRY__LOG_LEVEL".into()));
    assert_eq!(level(&[("RUST_LOG", ""), ("PERIGEE_TELEMETRY__LOG_LEVEL", "")]).0, "warn");
    let loaded = site.load(None, &[("NO_COLOR", "1")], &[]).unwrap();
    assert_eq!(loaded.settings.telemetry.log_color, perigee_telemetry::config::LogColor::Never);
}

#[test]
fn variables_of_others_are_no_errors() {
    let site = Site::new("", &[]);
    let service_links = [
        ("PERIGEE_PORT", "tcp://10.0.0.1:8000"),
        ("PERIGEE_PORT_8000_TCP_ADDR", "x"),
        ("PERIGEE_SERVICE_HOST", "x"),
    ];
    assert!(site.load(None, &service_links, &[]).unwrap().warnings.is_empty());
    for (variable, meant) in [
        ("PERIGEE_PORT", "PERIGEE_SERVER__PORT"),
        ("PERIGEE_PROT", "PERIGEE_SERVER__PORT"),
        ("PERIGEE_SERVER_PORT", "PERIGEE_SERVER__PORT"),
        ("PERIGEE_MAX_NUM_SEQ", "PERIGEE_SCHEDULER__MAX_NUM_SEQS"),
    ] {
        let warnings = site.load(None, &[(variable, "9000")], &[]).unwrap().warnings;
        let expected = format!("{variable} is not a setting and is ignored; did you mean {meant}?");
        assert_eq!(warnings, [expected]);
    }
    let loaded = site.load(None, &[("PERIGEE_MAX_NUM_SEQS", "3"), ("PERIGEE_FOO", "x")], &[]).unwrap();
    assert_eq!(
        loaded.warnings,
        [
            "PERIGEE_FOO is not a setting and is ignored; settings are PERIGEE_SECTION__KEY",
            "PERIGEE_MAX_NUM_SEQS is not a setting and is ignored; did you mean PERIGEE_SCHEDULER__MAX_NUM_SEQS?"
        ]
    );
}

#[test]
fn tables_are_aligned_and_complete() {
    let loaded = Site::new("", &[]).load(None, &[], &[("sampling.temperature", "0.6")]).unwrap();
    let table = show_table(&loaded);
    let lines: Vec<_> = table.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(lines.len(), loaded.origins.len());
    let column = lines[0].find("default").unwrap();
    assert!(
        lines.iter().filter(|l| l.ends_with("default")).all(|l| l.find("default") == Some(column)),
        "{table}"
    );
    let temperature = lines.iter().find(|l| l.starts_with("sampling.temperature ")).unwrap();
    assert!(
        temperature.contains(" 0.6 ") && temperature.ends_with("--set sampling.temperature"),
        "{temperature}"
    );
    let json = show_json(&loaded);
    assert_eq!(json["settings"]["sampling.temperature"]["value"].to_string(), "0.6");
    assert_eq!(json["settings"]["sampling.temperature"]["source"], "flag");
    assert_eq!(json["settings"]["server.port"]["origin"], "default");
}

#[test]
fn sampling_rules_are_tables_or_json() {
    let site = Site::new("[sampling.policy.top_k]\nmax = 40\n", &[]);
    let json = r#"{"temperature": {"pin": 0.5}}"#;
    let over = r#"{"temperature": 0.6, "max_new_tokens": 512}"#;
    let flags = [("sampling.instant", json), ("sampling.override_generation_config", over)];
    let settings = site.load(Some("kimi-official"), &[], &flags).unwrap().settings.sampling;
    let only = |rule: &Rule| rule.only.as_ref().map(|only| only.values().to_vec());
    assert_eq!(only(&settings.thinking.unwrap().0["temperature"]), Some(vec![1.0, 0.6, 0.0]));
    assert_eq!(settings.instant.unwrap().0["temperature"].pin, Some(0.5), "a flag goes before a profile");
    let policy = settings.policy.unwrap().0;
    assert_eq!(
        (policy["top_k"].max, only(&policy["n"])),
        (Some(40.0), Some(vec![1.0])),
        "layers are joined by field"
    );
    assert_eq!(settings.override_generation_config.unwrap().get("max_tokens"), Some(512.0));
    for (key, value, problem) in [
        ("sampling.policy", r#"{"temperature": {"pin": 3}}"#, "temperature: 3 must be from 0 to 2"),
        ("sampling.policy", r#"{"temprature": {}}"#, "temprature is no sampling field"),
        ("sampling.policy", r#"{"temperature": {"pinn": 1}}"#, "unknown field `pinn`"),
        ("sampling.override_generation_config", r#"{"top": 1}"#, "top is unknown"),
        ("guard.mode", "stopp", "did you mean stop?"),
        ("structured_output.max_compiling", "0", "must be from 1 to 64"),
        ("structured_output.max_lexer_states", "many", ""),
        ("guard.hold_tokens", "5000", "must be from 0 to 4096"),
    ] {
        let errors = Site::new("", &[]).load(None, &[], &[(key, value)]).unwrap_err().to_string();
        assert!(errors.contains(problem), "{key} = {value}: {errors}");
    }
}

#[test]
fn keys_with_limits_come_from_everywhere() {
    let site =
        Site::new("[server]\napi_keys = [\"hunter1\", { key = \"hunter2\", name = \"a\", weight = 2 }]", &[]);
    fs::write(site.file("keys"), "hunter1\n{ key = \"hunter2\", name = \"a\", weight = 2 }\n").unwrap();
    fs::write(site.file("admin"), "hunter9\n").unwrap();
    let (keys, admin) = (site.file("keys").display().to_string(), site.file("admin").display().to_string());
    let list = "hunter1, { key = \"hunter2\", name = \"a\", weight = 2 }";
    let list = list.replace("hunter1", "\"hunter1\"");
    let admin_file = ("PERIGEE_SERVER__ADMIN_KEY_FILE", admin.as_str());
    for environment in [
        &[admin_file][..],
        &[admin_file, ("PERIGEE_SERVER__API_KEYS_FILE", &keys)],
        &[("PERIGEE_SERVER__ADMIN_KEY", "hunter9"), ("PERIGEE_SERVER__API_KEYS", &list)],
    ] {
        let loaded = site.load(None, environment, &[]).unwrap();
        let [plain, named] = &loaded.settings.server.api_keys[..] else { panic!("two keys") };
        assert!(plain.key.is("hunter1") && named.key.is("hunter2"), "{environment:?}");
        assert_eq!((named.name.as_deref(), named.limits.weight), (Some("a"), 2.0));
        assert!(loaded.settings.server.admin_key.as_ref().is_some_and(|key| key.is("hunter9")));
        let shown = format!("{}{}{:?}", show_table(&loaded), show_json(&loaded), loaded);
        assert!(!shown.contains("hunter") && shown.contains("a: ********"), "{shown}");
    }
    let only = "{ key = \"hunter2\", requests = 1 }";
    let errors = site.errors(None, &[("PERIGEE_SERVER__API_KEYS", only)], &[]).join("\n");
    assert!(
        errors.contains("key 1: unknown field")
            && errors.contains("`requests`")
            && !errors.contains("hunter"),
        "{errors}"
    );
}
