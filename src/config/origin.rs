//! Where a value came from.

use std::fmt;

use figment::{Figment, Profile};

/// Where a value came from, as the metadata of its source says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The kind of source: default, site, profile, environment, file or flag.
    pub kind: String,
    /// The file with its line, the variable or the flag.
    pub place: String,
}

impl Origin {
    /// Where the merged value of a key came from. Only sources other than the defaults have a kind.
    pub(super) fn of(figment: &Figment, section: &str, key: &str) -> Self {
        let metadata = figment.find_metadata(&format!("{section}.{key}"));
        let origin = metadata.and_then(|metadata| {
            let kind = metadata.source.as_ref()?.custom()?.to_owned();
            Some(Self { kind, place: metadata.interpolate(&Profile::Default, &[section, key]) })
        });
        origin.unwrap_or_else(|| Self { kind: "default".into(), place: "default".into() })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}
