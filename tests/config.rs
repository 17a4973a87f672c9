//! The `config` and `version` subcommands, run as a person runs them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program in `dir` with these variables and no others of ours.
pub(crate) fn perigee(dir: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
    command.current_dir(dir).args(args);
    for (name, _) in std::env::vars_os() {
        let foreign =
            name.to_str().is_some_and(|n| n.starts_with("PERIGEE_") || n == "RUST_LOG" || n == "NO_COLOR");
        if foreign {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_shipped_settings_are_valid_with_every_profile() {
    let output = perigee(root(), &[], &["config", "check"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for entry in fs::read_dir(root().join("config/profiles")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let output = perigee(root(), &[("PERIGEE_PROFILE", name)], &["config", "show", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
        assert_eq!(shown["profile"], name);
        let settings = shown["settings"].as_object().unwrap();
        assert!(settings.values().any(|v| v["source"] == "profile"), "{name} sets nothing");
        if !output.status.success() {
            // A draft model that the operator names is all that is missing.
            let faults = stderr(&output).lines().filter(|line| !line.starts_with("perigee: "));
            let known = "  speculation.method = eagle3: needs a draft model";
            faults.for_each(|f| assert!(f.starts_with(known), "{name}: {f}"));
        }
    }
}

#[test]
fn show_prints_values_with_origins_and_masks_secrets() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("config")).unwrap();
    fs::write(dir.path().join("config/perigee.toml"), "[server]\nport = 9001\napi_keys = [\"hunter2\"]\n")
        .unwrap();
    let output = perigee(
        dir.path(),
        &[("PERIGEE_KV_CACHE__MEMORY_BYTES", "1GiB"), ("PERIGEE_ODD", "1")],
        &["config", "show", "--set", "device.threads=3"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let line = |key: &str| {
        let found = stdout(&output).lines().find(|l| l.split_whitespace().next() == Some(key));
        found.unwrap_or_else(|| panic!("no {key}")).split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("server.port"), "9001 config/perigee.toml line 2");
    assert_eq!(line("server.api_keys"), "[\"********\"] config/perigee.toml line 3");
    assert_eq!(line("kv_cache.memory_bytes"), "1073741824 PERIGEE_KV_CACHE__MEMORY_BYTES");
    assert_eq!(line("device.threads"), "3 --set device.threads");
    assert_eq!(line("server.host"), "\"127.0.0.1\" default");
    assert!(!stdout(&output).contains("hunter2"));
    assert!(stderr(&output).contains("PERIGEE_ODD is not a setting"), "{}", stderr(&output));
}

#[test]
fn wrong_settings_and_wrong_use_exit_with_2() {
    let dir = tempfile::tempdir().unwrap();
    for (variables, args, expected) in [
        (&[("PERIGEE_SERVER__PROT", "1")][..], &["config", "check"][..], "did you mean server.port?"),
        (&[], &["config", "check", "--set", "scheduler.max_num_seqs=0"], "must be from 1 to 65536"),
        (&[], &["serve", "--port", "x"], "server.port = x: must be a whole number from 0 to 65535"),
        (&[], &["serve", "--config", "absent.toml"], "cannot read absent.toml"),
        (&[], &["serve", "--profile", "absent"], "there are embedded, exact, kimi-k26-mxfp4, "),
        (&[], &["serve", "--set", "port"], "expected section.key=value"),
        (&[], &["sevre"], "serve"),
        (&[], &[], "Usage"),
    ] {
        let output = perigee(dir.path(), variables, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

/// Regression: nothing was printed but the problems, so that a profile which is refused could not be looked at.
#[test]
fn show_prints_the_values_of_settings_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["--set", "device.ranks=99"][..], &["--set", "scheduler.max_num_seqs=0"]] {
        let output = perigee(dir.path(), &[], &[&["config", "show"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stdout(&output).lines().any(|line| line.starts_with("server.port ")), "{args:?}");
        assert!(stderr(&output).contains("the configuration has "), "{args:?}: {}", stderr(&output));
        let output = perigee(dir.path(), &[], &[&["config", "show", "--json"], args].concat());
        let shown: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
        assert_eq!(
            (output.status.code(), &shown["settings"]["server.port"]["value"]),
            (Some(2), &8000.into())
        );
    }
}

/// Regression: a profile of a system without its model served the embedded toy model, healthy and silent.
#[test]
fn a_system_without_its_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("PERIGEE_PROFILE", "moonlight"), ("PERIGEE_MODEL__SERVED_NAME", "kimi-k2.6")];
    let on_cpu = ["--set", "device.backend=cpu"];
    for command in [&["config", "check"][..], &["serve", "--port", "0"], &["doctor"], &["bench"]] {
        let output = perigee(dir.path(), &variables, &[command, &on_cpu].concat());
        let said = format!("{}{}", stdout(&output), stderr(&output));
        let code = if ["doctor", "bench"].contains(&command[0]) { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
        assert!(said.contains("model.required = true: needs model.path"), "{command:?}: {said}");
        assert!(said.contains("--model"), "{command:?}: {said}");
    }
    let model = ["--model", root().to_str().unwrap()];
    let output = perigee(dir.path(), &variables, &[&["config", "check"][..], &on_cpu, &model].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    // Each profile of a system says so, and no other.
    for entry in fs::read_dir(root().join("config/profiles")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let output = perigee(root(), &[("PERIGEE_PROFILE", name)], &["config", "show", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
        let is_system = name == "moonlight" || name.starts_with("kimi-k2");
        assert_eq!(shown["settings"]["model.required"]["value"], is_system, "{name}");
    }
}

#[test]
fn a_name_for_the_embedded_model_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("PERIGEE_MODEL__SERVED_NAME", "kimi-k2.6")];
    for command in ["check", "show"] {
        let output = perigee(dir.path(), &variables, &["config", command]);
        let warning = "warning: model.served_name = kimi-k2.6: there is no model.path, so the embedded toy model is served";
        assert!(output.status.success() && stderr(&output).contains(warning), "{}", stderr(&output));
    }
}

/// Regression: profiles that this build refuses were listed like any other.
#[test]
fn profiles_are_listed_with_what_this_machine_can_run() {
    let dir = tempfile::tempdir().unwrap();
    // A profile in the environment, and what is wrong with it, hides no list.
    let variables = [("PERIGEE_PROFILE", "latency"), ("PERIGEE_SCHEDULER__MAX_NUM_SEQS", "0")];
    let output = perigee(dir.path(), &variables, &["config", "profiles"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains("throughput "), "{}", stdout(&output));
    let output = perigee(dir.path(), &[], &["config", "profiles"]);
    let lines: Vec<&str> = stdout(&output).lines().collect();
    let line =
        |name: &str| lines.iter().position(|line| line.split_whitespace().next() == Some(name)).unwrap();
    let words = |name: &str| lines[line(name)].split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
    assert!(output.status.success() && words("latency").starts_with("runs Short gaps"), "{lines:#?}");
    assert!(words("kimi-k26-nvfp4-8x-b200").starts_with("refused Kimi-K2.6 NVFP4 on 8 B200"), "{lines:#?}");
    let reason = lines[line("kimi-k26-nvfp4-8x-b200") + 1].trim();
    // No driver, or fewer devices.
    assert!(reason.starts_with("-> device.backend = cuda: "), "{reason}");
    assert!(line("throughput") < line("kimi-k26-mxfp4"), "{lines:#?}");
    // On a processor, all that is missing is the model.
    let on_cpu = [("PERIGEE_DEVICE__BACKEND", "cpu")];
    let output = perigee(dir.path(), &on_cpu, &["config", "profiles"]);
    assert!(stdout(&output).contains("needs a model  Moonlight-16B-A3B"), "{}", stdout(&output));
    let with_model = [on_cpu[0], ("PERIGEE_MODEL", root().to_str().unwrap())];
    let output = perigee(dir.path(), &with_model, &["config", "profiles"]);
    assert!(stdout(&output).contains("runs     Moonlight-16B-A3B"), "{}", stdout(&output));
}

/// What a profile needs and is not here is said at once, by the check and by the server, in the same words.
#[test]
fn a_profile_that_this_build_or_machine_cannot_serve_is_refused_with_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let profile = "kimi-k26-reap192-4x-rtx-pro-6000";
    let refusal = |args: &[&str]| {
        let output =
            perigee(dir.path(), &[], &[args, &["--profile", profile, "--model", "no/model"]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        stderr(&output).to_owned()
    };
    let checked = refusal(&["config", "check"]);
    for expected in [
        "device.backend = cuda: ",
        "speculation.method = eagle3: ",
        "model.path = no/model: there is no such folder below ",
        &format!("(set in profile {profile}, built in line "),
        "warning: sampling.repetition_penalty = 1.12: ",
    ] {
        assert!(checked.contains(expected), "{expected}: {checked}");
    }
    let errors = |text: &str| text.lines().filter(|l| !l.contains("warning")).collect::<Vec<_>>().join("\n");
    assert_eq!(errors(&refusal(&["serve", "--port", "0"])), errors(&checked));
    let elsewhere = refusal(&["config", "check", "--settings-only"]);
    assert!(elsewhere.contains("speculation.method") && !elsewhere.contains("no/model"), "{elsewhere}");
}

#[test]
fn schema_and_template_come_without_settings() {
    let dir = tempfile::tempdir().unwrap();
    let schema: serde_json::Value =
        serde_json::from_str(stdout(&perigee(dir.path(), &[], &["config", "schema"]))).unwrap();
    assert_eq!(schema["properties"]["server"]["properties"]["port"]["default"], 8000);
    assert_eq!(schema["properties"]["server"]["additionalProperties"], false);
    let template = perigee(dir.path(), &[], &["config", "template"]);
    fs::write(dir.path().join("all.toml"), &template.stdout).unwrap();
    let check = perigee(dir.path(), &[], &["config", "check", "--config", "all.toml"]);
    assert!(check.status.success(), "{}", stderr(&check));
}

#[test]
fn help_and_version_exit_with_0() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["--help"][..], &["version"], &["--version"], &["config", "profiles"], &["serve", "--help"]]
    {
        let output = perigee(dir.path(), &[], args);
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn health_exits_with_1_where_nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let output = perigee(dir.path(), &[], &["health", "--port", &port]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&format!("http://127.0.0.1:{port}/health/ready")),
        "{}",
        stderr(&output)
    );
}

/// Keys in the pages that are read beside a site file; a section's name and a dot begin one.
#[test]
fn keys_of_the_pages_on_clients_and_migration_exist() {
    let dir = tempfile::tempdir().unwrap();
    let output = perigee(dir.path(), &[], &["config", "show", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    let keys = shown["settings"].as_object().unwrap();
    let is_section = |name: &str| keys.keys().any(|key| key.split('.').next() == Some(name));
    for page in ["docs/clients.md", "docs/from-vllm.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)));
        let named: Vec<_> = words
            .map(|word| word.trim_end_matches('.'))
            // guard.md is a page.
            .filter(|word| !word.ends_with(".md"))
            .filter(|word| word.split_once('.').is_some_and(|(section, _)| is_section(section)))
            .collect();
        assert!(named.len() > 9, "{page}: {named:?}");
        named.iter().for_each(|key| assert!(keys.contains_key(*key), "{page}: there is no {key}"));
    }
}
