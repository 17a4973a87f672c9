//! The valid name that a mistyped one most likely means.

use super::settings;

/// What to say about a key that does not exist.
pub(super) fn unknown_key(section: &str, key: &str) -> String {
    let known = settings::keys();
    if let Some(keys) = known.get(section) {
        if let Some(near) = nearest(key, keys.iter().map(String::as_str)) {
            return format!("unknown key, did you mean {section}.{near}?");
        }
        if let Some(other) = section_with(key) {
            return format!("unknown key, did you mean {other}.{key}?");
        }
        return format!("unknown key; section {section} has {}", keys.join(", "));
    }
    match section_with(key) {
        Some(other) => format!("unknown section, did you mean {other}.{key}?"),
        None => unknown_section(section),
    }
}

/// What to say about a section that does not exist; `name` may also be a key that lost its section.
pub(super) fn unknown_section(name: &str) -> String {
    let known = settings::keys();
    if let Some(section) = section_with(name) {
        return format!("unknown section, did you mean {section}.{name}?");
    }
    match nearest(name, known.keys().map(String::as_str)) {
        Some(near) => format!("unknown section, did you mean {near}?"),
        None => {
            format!(
                "unknown section; there are {}",
                known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// The first section that has this key.
pub(super) fn section_with(key: &str) -> Option<&'static str> {
    settings::keys()
        .iter()
        .find(|(_, keys)| keys.iter().any(|k| k == key))
        .map(|(section, _)| section.as_str())
}

/// The key of any section that `name` is, or most likely means; also one whose section is divided
/// from it by a single underscore.
pub(super) fn key_like(name: &str) -> Option<(&'static str, &'static str)> {
    let keys = || {
        let all = settings::keys().iter();
        all.flat_map(|(section, keys)| keys.iter().map(move |key| (section.as_str(), key.as_str())))
    };
    let joined = |(section, key): &(&str, &str)| format!("{section}_{key}") == name;
    if let Some(found) = keys().find(|(_, key)| *key == name).or_else(|| keys().find(joined)) {
        return Some(found);
    }
    let near = nearest(name, keys().map(|(_, key)| key))?;
    keys().find(|(_, key)| *key == near)
}

/// The closest of `names`, if any is close enough to be meant.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    names.map(|n| (distance(name, n), n)).filter(|(d, _)| *d <= limit).min_by_key(|(d, _)| *d).map(|(_, n)| n)
}

/// Levenshtein distance; two neighbours swapped count as one edit. Names are short and few.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for j in 0..=b.len() {
        rows[0][j] = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in
            [("", "abc", 3), ("port", "prot", 1), ("kitten", "sitting", 3), ("same", "same", 0)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn suggestions() {
        for (section, key, expected) in [
            ("server", "prot", "did you mean server.port?"),
            ("scheduler", "max_num_seq", "did you mean scheduler.max_num_seqs?"),
            ("server", "block_size", "did you mean kv_cache.block_size?"),
            ("sever", "port", "did you mean server.port?"),
            ("sever", "qqqqqqqqq", "did you mean server?"),
            ("device", "qqqqqqqqq", "section device has backend, threads, ranks, devices, activations"),
            ("qqqqqqqqq", "zzzzzzzzz", "there are server, model, device"),
        ] {
            let text = unknown_key(section, key);
            assert!(text.contains(expected), "{section}.{key}: {text}");
        }
        assert!(unknown_section("port").contains("did you mean server.port?"));
    }
}
