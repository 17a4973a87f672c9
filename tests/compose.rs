//! `compose.yaml` and `.env.example`, read as text: what is published, and that each variable is described where it is looked for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::config::{perigee, stderr};

const COMPOSE: &str = include_str!("../compose.yaml");
const EXAMPLE: &str = include_str!("../.env.example");

/// Names in `${NAME...}`.
fn interpolated() -> BTreeSet<&'static str> {
    let name = |rest: &'static str| rest.split([':', '}']).next().unwrap();
    COMPOSE.split("${").skip(1).map(name).collect()
}

/// Names and values of `.env.example`, whether a # is before them or not.
fn examples() -> Vec<(&'static str, &'static str)> {
    let assigned = |line: &'static str| {
        let (name, value) = line.trim_start_matches('#').split_once('=')?;
        let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        name.chars().all(plain).then_some((name, value))
    };
    EXAMPLE.lines().filter_map(assigned).collect()
}

/// Lines of the file that are no comments.
fn lines() -> impl Iterator<Item = &'static str> {
    COMPOSE.lines().map(str::trim).filter(|line| !line.starts_with('#'))
}

/// Regression: `docker compose up` published a model without keys to every network.
#[test]
fn ports_are_published_on_loopback_unless_told() {
    let ports: Vec<_> = lines().filter(|line| line.starts_with("- \"") && line.contains("PORT:-")).collect();
    assert_eq!(ports.len(), 3, "{ports:?}");
    for port in ports {
        let loopback = ["- \"${HOST_BIND:-127.0.0.1}:", "- \"127.0.0.1:"];
        assert!(loopback.iter().any(|begin| port.starts_with(begin)), "{port}");
    }
}

/// Regression: Docker made a folder of root's where the model's was mistyped, and an empty MODEL hid PERIGEE_MODEL__PATH.
#[test]
fn the_model_is_mounted_and_named_without_a_trace_where_there_is_none() {
    // Only long forms of mounts leave a missing source alone; a secret's is read-only in every version of compose.
    assert!(!lines().any(|line| line.starts_with("- ${MODEL")));
    assert_eq!(lines().filter(|line| *line == "file: ${MODEL:-./config}").count(), 1);
    assert_eq!(lines().filter(|line| *line == "PERIGEE_MODEL: ${MODEL:-}").count(), 2);
    assert!(!lines().any(|line| line.starts_with("PERIGEE_MODEL__PATH")));
}

#[test]
fn every_variable_is_described_in_both_files() {
    let (_, head) = COMPOSE.split_once("# Variables read here").unwrap();
    let (head, _) = head.split_once("x-perigee").unwrap();
    let described: BTreeSet<_> = head.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).collect();
    let examples: BTreeSet<_> = examples().into_iter().map(|(name, _)| name).collect();
    for name in interpolated() {
        assert!(described.contains(name), "{name} is not in the head of compose.yaml");
        assert!(examples.contains(name), "{name} is not in .env.example");
    }
    for name in examples.iter().filter(|name| !name.starts_with("PERIGEE_") && **name != "COMPOSE_PROFILES") {
        assert!(interpolated().contains(name), "compose.yaml does not read {name}");
    }
}

/// Every line of the example taken, as its first lines say.
#[test]
fn the_settings_of_the_example_are_valid_together() {
    let dir = tempfile::tempdir().unwrap();
    let of_secret = |name: &str, value: &str| {
        let path = dir.path().join(Path::new(value).file_name().unwrap());
        fs::write(&path, format!("secret-of-{name}\n")).unwrap();
        (name.to_owned(), path.display().to_string())
    };
    let settings: Vec<(String, String)> = examples()
        .into_iter()
        .filter(|(name, _)| name.starts_with("PERIGEE_"))
        .map(|(name, value)| match name.ends_with("_FILE") {
            true => of_secret(name, value),
            false => (name.to_owned(), value.to_owned()),
        })
        .chain([("PERIGEE_MODEL".to_owned(), "/models/kimi".to_owned())])
        .collect();
    assert!(settings.len() > 15, "{settings:?}");
    let variables: Vec<_> = settings.iter().map(|(name, value)| (&**name, &**value)).collect();
    let output = perigee(dir.path(), &variables, &["config", "check", "--settings-only"]);
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
}
