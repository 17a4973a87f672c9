//! The settings described: JSON Schema for editors, and the commented site file.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::settings::{self, Settings};
use super::show::display;

/// Widest line of the commented file.
const LINE_WIDTH: usize = 110;

/// JSON Schema (2020-12) of the site file. Keys in bytes also take sizes with units.
pub fn json_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Settings>();
    let mut schema = serde_json::to_value(schema).expect("a schema is JSON");
    schema["title"] = json!("Perigee settings");
    for (section, keys) in settings::keys().iter() {
        for key in keys.iter().filter(|key| key.ends_with("_bytes")) {
            let property = &mut schema["properties"][section]["properties"][key];
            if let Some(fields) = property.as_object_mut() {
                let (kind, minimum) = (fields.remove("type"), fields.remove("minimum"));
                let format = fields.remove("format");
                let mut number = json!({ "type": kind, "minimum": minimum });
                if let Some(format) = format {
                    number["format"] = format;
                }
                let size = json!({ "type": "string", "pattern": "^[0-9.]+ *([kKmMgGtT][iI]?)?[bB]?$" });
                fields.insert("anyOf".into(), json!([number, size]));
            }
        }
    }
    schema
}

/// The site file with every key commented out: its sentence, and its default.
pub fn reference_toml() -> String {
    let schema = json_schema();
    let defaults = serde_json::to_value(Settings::default()).expect("settings serialize");
    let mut text = String::from(HEAD);
    for (section, keys) in settings::keys().iter() {
        let properties = &schema["properties"][section];
        text.push('\n');
        push_comment(&mut text, properties["description"].as_str().unwrap_or_default());
        text.push_str(&format!("[{section}]\n"));
        for key in keys {
            text.push('\n');
            push_comment(
                &mut text,
                properties["properties"][key]["description"].as_str().unwrap_or_default(),
            );
            match &defaults[section][key] {
                Value::Null => text.push_str(&format!("# {key}: not set\n")),
                value => text.push_str(&format!("# {key} = {}\n", display(value))),
            }
        }
    }
    text
}

const HEAD: &str = "\
# Perigee's site file. Every key is here with its default; take the # away from a line to set it.
#
# Stronger than this file: a profile (--profile NAME, profiles/NAME.toml), then the environment
# (PERIGEE_SECTION__KEY), then flags (--set section.key=value). `perigee config show` prints every value with where it
# came from, `perigee config check` reports mistakes, `perigee config schema` is the JSON Schema for editors.
";

/// Adds text as comment lines.
fn push_comment(text: &mut String, comment: &str) {
    let mut line = String::from("#");
    for word in comment.split_whitespace() {
        if line.len() + 1 + word.len() > LINE_WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_sentence() {
        let schema = json_schema();
        for (section, keys) in settings::keys().iter() {
            for key in keys {
                let description = &schema["properties"][section]["properties"][key]["description"];
                assert!(description.as_str().is_some_and(|d| d.len() > 20), "{section}.{key}: {description}");
            }
        }
    }

    #[test]
    fn sizes_are_numbers_or_strings() {
        let schema = json_schema();
        let bytes = &schema["properties"]["kv_cache"]["properties"]["memory_bytes"];
        assert_eq!(bytes["anyOf"][0]["type"], "integer");
        assert_eq!(bytes["anyOf"][1]["type"], "string");
    }

    /// After a change of a key or a sentence: `cargo run --release -- config template > config/perigee.toml`.
    #[test]
    fn the_shipped_site_file_lists_every_key_with_its_default() {
        let shipped = include_str!("../../config/perigee.toml");
        assert!(
            shipped == reference_toml(),
            "config/perigee.toml is behind the code; `perigee config template` prints what it should be"
        );
        // The values in comments are TOML that sets exactly the defaults.
        let mut section = String::new();
        let defaults = serde_json::to_value(Settings::default()).unwrap();
        let mut seen = 0;
        for line in shipped.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# ")
                && let Some((key, value)) = rest.split_once(" = ")
                && settings::keys().has(&section, key)
            {
                let value: toml::Table = format!("v = {value}").parse().unwrap();
                assert_eq!(
                    serde_json::to_value(&value["v"]).unwrap(),
                    defaults[&section][key],
                    "{section}.{key}"
                );
                seen += 1;
            }
        }
        let unset = shipped.lines().filter(|l| l.ends_with(": not set")).count();
        assert_eq!(seen + unset, settings::keys().iter().map(|(_, keys)| keys.len()).sum::<usize>());
    }
}
