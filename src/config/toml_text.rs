//! A small file of TOML: its tables, and the line on which each key is written.

use std::path::Path;

use figment::value::Dict;

use super::error::ConfigError;

/// Longest configuration or secret file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A text of TOML.
pub(super) struct TomlText {
    /// What messages call it: a path, or a profile with its path.
    pub(super) place: String,
    pub(super) text: String,
}

impl TomlText {
    /// The tables. Figment's `Toml` provider reads the same, but has no line for a mistake.
    pub(super) fn parse(&self) -> Result<Dict, ConfigError> {
        toml::from_str(&self.text).map_err(|e| {
            let lines_before = |end: usize| self.text[..end.min(self.text.len())].matches('\n').count();
            let line = e.span().map(|span| 1 + lines_before(span.start));
            ConfigError {
                key: "TOML".into(),
                value: None,
                origin: Some(self.at(line)),
                problem: e.message().into(),
            }
        })
    }

    /// Where a key of a section is written, or a section itself for an empty key.
    pub(super) fn place_of(&self, section: &str, key: &str) -> String {
        self.at(line_of(&self.text, section, key))
    }

    fn at(&self, line: Option<usize>) -> String {
        line.map_or_else(|| self.place.clone(), |line| format!("{} line {line}", self.place))
    }
}

/// A small text file.
pub(super) fn read_file(path: &Path) -> Result<String, String> {
    let cannot = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let metadata = std::fs::metadata(path).map_err(cannot)?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(format!("{} has {} bytes, limit {MAX_FILE_BYTES}", path.display(), metadata.len()));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

/// The line, from 1, on which a key of a section (or a section itself, for an empty key) is written. Looks at the text alone, which
/// is right for the usual ways to write TOML and finds nothing for the others: figment's tags name a source, not a place in it.
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
