//! The layer order inside each crate holds, and things that live in one place only live there. The order of the crates is cargo's to
//! hold: a crate names those in its manifest, and circles are refused.
//!
//! A fault here is a question for review: answer it in the code, or in the lists below with the reason.

use std::fs;
use std::path::{Path, PathBuf};

/// What lives only in a part of the crates whose manifests have it: (words that betray it, places under `src/` that may have it).
const LIVES_ONLY_IN: &[(&[&str], &[&str])] = &[
    (&["hyper::", "hyper_util::"], &["http/server/", "cli/client.rs"]),
    (&["tokio_rustls::"], &["http/server/", "cli/trust.rs"]),
    (&["safetensors::"], &["numbers/tensor/dtype.rs", "model/checkpoint/", "model/vision/test_data.rs"]),
    (&["memmap2::"], &["model/checkpoint/", "cpu/storage.rs"]),
    (&["tokenizers::"], &["text/tokenizer/"]),
    (&["llguidance::", "toktrie::", "derivre::"], &["text/grammar/"]),
    (&["figment::"], &["config/"]),
    (
        &["rustix::"],
        &[
            "engine/delivery.rs",
            "cuda/cores.rs",
            "http/server/socket.rs",
            "cuda/kernel_cache/",
            "boot/open_files.rs",
        ],
    ),
    (&["libc::"], &["telemetry/heap.rs", "cuda/library.rs"]),
    // `vllm_flags.rs` is a table of flags, not a derived structure.
    (&["clap::"], &["config/args.rs", "config/vllm_flags.rs", "cli/"]),
    (&["ratatui::"], &["cli/top/"]),
    (&["env::var(", "env::vars(", "env::var_os(", "env::vars_os("], &["config/"]),
    (
        &["unsafe"],
        &[
            "numbers/threads/",
            "cpu/",
            "cuda/",
            "model/checkpoint/reader.rs",
            "telemetry/heap.rs",
            "decoding/sampling/widest.rs",
            "model/vision/bicubic/",
        ],
    ),
];

/// Parts of a crate with a layer of their own: (place under `src/`, the only paths of the house that it names).
/// Checkpoints cut packed experts by their names.
const NAMES_ONLY: &[(&str, &[&str])] =
    &[("model/checkpoint/", &["perigee_numbers::tensor::", "crate::checkpoint::", "crate::expert_names::"])];

/// One source file: path under `src/`, and its lines of code with their numbers (comments and strings blanked).
#[derive(Clone)]
struct Source {
    path: String,
    lines: Vec<String>,
}

impl Source {
    /// The folder of the crate that the file belongs to, empty for the crate at the root of `src/`, and the path in it.
    fn place<'a>(&'a self, crates: &[String]) -> (&'a str, &'a str) {
        match self.path.split_once('/') {
            Some((first, rest)) if crates.iter().any(|name| name == first) => (first, rest),
            _ => ("", &self.path),
        }
    }
}

fn sources() -> Vec<Source> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension() == Some("rs".as_ref()) {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .map(|path| Source {
            lines: code_of(&fs::read_to_string(&path).unwrap()).lines().map(str::to_owned).collect(),
            path: path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
        })
        .collect()
}

/// The text with comments, strings and character literals replaced by spaces; lines stay where they are.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |code: &mut String, part: &[char]| {
        code.extend(part.iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    };
    while at < chars.len() {
        let end = skipped(&chars, at);
        if end > at {
            blank(&mut code, &chars[at..end]);
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// The end of the comment or literal that begins at `at`, or `at` if none does.
fn skipped(chars: &[char], at: usize) -> usize {
    let starts = |text: &str| text.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let find = |from: usize, text: &str| {
        let text: Vec<char> = text.chars().collect();
        (from..chars.len()).find(|i| chars[*i..].starts_with(&text)).map_or(chars.len(), |i| i + text.len())
    };
    let ident_before = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    if starts("//") {
        return find(at, "\n").saturating_sub(1).max(at + 2).min(chars.len());
    }
    if starts("/*") {
        let (mut depth, mut i) = (0, at);
        while i < chars.len() {
            if chars[i..].starts_with(&['/', '*']) {
                (depth, i) = (depth + 1, i + 2);
            } else if chars[i..].starts_with(&['*', '/']) {
                (depth, i) = (depth - 1, i + 2);
                if depth == 0 {
                    break;
                }
            } else {
                i += 1;
            }
        }
        return i;
    }
    if (starts("r\"") || starts("r#") || starts("br")) && !ident_before {
        let r = at + usize::from(chars[at] == 'b');
        let hashes = chars[r + 1..].iter().take_while(|c| **c == '#').count();
        if chars.get(r + 1 + hashes) == Some(&'"') {
            return find(r + 2 + hashes, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    if chars[at] == '"' {
        let mut i = at + 1;
        while i < chars.len() && chars[i] != '"' {
            i += if chars[i] == '\\' { 2 } else { 1 };
        }
        return (i + 1).min(chars.len());
    }
    if chars[at] == '\'' {
        // A lifetime has no closing quote right behind its first character.
        if chars.get(at + 1) == Some(&'\\') {
            return find(at + 3, "'");
        }
        if chars.get(at + 2) == Some(&'\'') {
            return at + 3;
        }
    }
    at
}

/// First-level modules named after `crate::`, one by one or as a group in braces, with the line of each.
fn edges(source: &Source) -> Vec<(usize, String)> {
    let text = source.lines.join("\n");
    let mut edges = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "_$".contains(c)) {
            continue;
        }
        let line = text[..at].matches('\n').count() + 1;
        let rest = &text[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let (mut depth, mut item) = (1, String::new());
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 || (depth == 1 && c == ',') {
                        edges.push((line, first_ident(item.trim())));
                        item.clear();
                    } else {
                        item.push(c);
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            None => edges.push((line, first_ident(rest))),
        }
    }
    edges.retain(|(_, module)| !module.is_empty());
    edges
}

fn first_ident(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Folders of the crates: the members of the workspace that are in `src/`.
fn crates(sources: &[Source]) -> Vec<String> {
    let folder = |s: &Source| Some(s.path.strip_suffix("/lib.rs")?.to_owned());
    sources.iter().filter_map(folder).collect()
}

/// The folders of a crate, in the order of its `lib.rs`.
fn layers(sources: &[Source], crates: &[String], house: &str) -> Vec<String> {
    let lib = sources.iter().find(|s| s.place(crates) == (house, "lib.rs")).unwrap();
    let declared = lib.lines.iter().filter_map(|line| {
        let line = line.trim();
        let name = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))?;
        name.strip_suffix(';').map(str::to_owned)
    });
    let is_folder = |name: &String| {
        let inside = |s: &Source| {
            let (own, path) = s.place(crates);
            own == house && path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        sources.iter().any(inside)
    };
    declared.filter(is_folder).collect()
}

/// Faults of the layer order: file, line, edge from a folder to one below it in its crate's `lib.rs`. A file of tests may drive its part by
/// what is built on it.
fn climbing_edges(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    let crates = crates(sources);
    for house in crates.iter().map(String::as_str).chain([""]) {
        let layers = layers(sources, &crates, house);
        for source in sources {
            let (own, path) = source.place(&crates);
            let Some((folder, rest)) = path.split_once('/').filter(|_| own == house) else { continue };
            if rest.ends_with("tests.rs") {
                continue;
            }
            let Some(layer) = layers.iter().position(|l| l == folder) else {
                faults.push(format!("src/{}: {folder} is not in the crate's lib.rs", source.path));
                continue;
            };
            for (line, target) in edges(source) {
                if layers.iter().position(|l| *l == target).is_some_and(|to| to > layer) {
                    faults.push(format!("src/{} line {line}: {folder} names {target}", source.path));
                }
            }
        }
    }
    faults
}

/// Things outside the place where they live.
fn strays(sources: &[Source], rules: &[(&[&str], &[&str])]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources {
        for (words, places) in rules {
            if places.iter().any(|place| source.path.starts_with(place)) {
                continue;
            }
            for (number, line) in source.lines.iter().enumerate() {
                if let Some(word) = words.iter().find(|word| has_word(line, word)) {
                    faults.push(format!(
                        "src/{} line {}: {word} lives only in {places:?}",
                        source.path,
                        number + 1
                    ));
                }
            }
        }
    }
    faults
}

/// Paths of the crate that a part with a layer of its own must not name.
fn outward(sources: &[Source], rules: &[(&str, &[&str])]) -> Vec<String> {
    let mut faults = Vec::new();
    for (place, allowed) in rules {
        for source in sources.iter().filter(|source| source.path.starts_with(place)) {
            for (number, line) in source.lines.iter().enumerate() {
                let starts = line.match_indices("crate::").chain(line.match_indices("perigee_"));
                let mut named = starts.map(|(at, _)| &line[at..]);
                let outside = |path: &&str| !allowed.iter().any(|prefix| path.starts_with(prefix));
                // Two levels up is out of the place, or another way to write a path that can be written from `crate`.
                if named.any(|path| outside(&path)) || line.contains("super::super::") {
                    faults.push(format!(
                        "src/{} line {}: {place} names only {allowed:?}",
                        source.path,
                        number + 1
                    ));
                }
            }
        }
    }
    faults
}

/// Whether `word` stands in `line` and is not part of a longer name.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let whole = !word.ends_with(part) || !after.is_some_and(part);
        whole && !before.is_some_and(part)
    })
}

#[test]
fn folders_name_only_folders_above_them_in_their_crate() {
    let sources = sources();
    let crates = crates(&sources);
    assert!(
        crates.len() > 8 && layers(&sources, &crates, "").len() > 3,
        "src/ was not understood: {crates:?}"
    );
    let faults = climbing_edges(&sources);
    assert!(faults.is_empty(), "edges that climb against the order in lib.rs:\n{}", faults.join("\n"));
}

/// Where a crate has no place for unsafe code, the compiler refuses it.
#[test]
fn a_crate_without_unsafe_code_forbids_it() {
    let sources = sources();
    let crates = crates(&sources);
    let (_, unsafe_places) = LIVES_ONLY_IN.iter().find(|(words, _)| *words == ["unsafe"]).unwrap();
    for house in crates.iter().map(String::as_str).chain([""]) {
        let lib = sources.iter().find(|s| s.place(&crates) == (house, "lib.rs")).unwrap();
        let forbids = lib.lines.iter().any(|line| line == "#![forbid(unsafe_code)]");
        let has = unsafe_places.iter().any(|place| place.split('/').next() == Some(house));
        assert_ne!(forbids, has, "src/{}", lib.path);
    }
}

#[test]
fn things_live_where_they_live() {
    let faults = strays(&sources(), LIVES_ONLY_IN);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn parts_with_a_layer_of_their_own_keep_it() {
    let faults = outward(&sources(), NAMES_ONLY);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A log filter takes the folders of the root crate, and refuses what has become a crate under its old path.
#[test]
fn log_filters_know_the_parts() {
    let sources = sources();
    let crates = crates(&sources);
    let is_refused = |part: &str| {
        let log_level = format!("info,perigee::{part}=debug");
        !perigee_telemetry::config::Config { log_level, ..Default::default() }.validate().is_empty()
    };
    assert_eq!(layers(&sources, &crates, "").iter().find(|part| is_refused(part)), None);
    assert_eq!(crates.iter().find(|part| !is_refused(part)), None);
}

#[test]
fn every_rule_and_exception_has_a_use() {
    let sources = sources();
    for (place, _) in NAMES_ONLY {
        assert!(sources.iter().any(|s| s.path.starts_with(place)), "there is no src/{place}");
    }
    for (_, places) in LIVES_ONLY_IN {
        for place in *places {
            assert!(sources.iter().any(|s| s.path.starts_with(place)), "there is no src/{place}");
        }
    }
}

#[test]
fn the_scanner_sees_edges_and_nothing_in_comments_or_strings() {
    let source = |path: &str, text: &str| Source {
        path: path.into(),
        lines: code_of(text).lines().map(str::to_owned).collect(),
    };
    let check = |text: &str, expected: usize| {
        let lib = source("lib.rs", "pub mod tensor;\npub mod cpu;\nmod server;\nmod a;");
        let others =
            [source("tensor/mod.rs", ""), source("server/mod.rs", ""), source("a.rs", "use crate::server;")];
        let faults = climbing_edges(&[&[lib, source("cpu/a.rs", text)][..], &others].concat());
        assert_eq!(faults.len(), expected, "{text}: {faults:?}");
    };
    check("use crate::tensor::Dtype;", 0);
    check("use crate::server::X;", 1);
    check("use crate::{tensor::{A, server}, server::{B, C}, cpu};", 1);
    check("fn f(x: crate::server::X) -> crate::server::Y {}", 2);
    check("// crate::server::X\n/* crate::server */ /// crate::server\n", 0);
    check("let a = \"crate::server\\\"\"; let b = r#\"crate::server\"#; let c = '\"'; use crate::server;", 1);
    check("fn f<'a>(x: &'a str) {} // '\nuse crate::server;", 1);
    check("$crate::server::x!()", 0);
    check("use crate::a::NotRanked;", 0);
    let rules: &[(&[&str], &[&str])] = &[(&["unsafe", "hyper::"], &["server/"])];
    for (path, text, expected) in [
        ("cpu/a.rs", "unsafe { x() }", 1),
        ("cpu/a.rs", "#![deny(unsafe_code)] // unsafe", 0),
        ("cpu/a.rs", "use hyper::body;", 1),
        ("cpu/a.rs", "use crate::hyper_like::x; my_hyper::y", 0),
        ("server/a.rs", "use hyper::body; unsafe {}", 0),
    ] {
        assert_eq!(strays(&[source(path, text)], rules).len(), expected, "{text}");
    }
    let rules: &[(&str, &[&str])] = &[("cpu/a/", &["perigee_numbers::tensor::", "crate::a::"])];
    for (path, text, expected) in [
        ("cpu/a/b.rs", "use perigee_numbers::tensor::Dtype; use crate::a::c;", 0),
        ("cpu/a/b.rs", "use crate::b;", 1),
        ("cpu/a/b.rs", "use perigee_numbers::quant::X;", 1),
        ("cpu/a/b.rs", "use crate::{a::c, b};", 1),
        ("cpu/a/b.rs", "use super::super::b;", 1),
        ("cpu/b.rs", "use crate::b;", 0),
    ] {
        assert_eq!(outward(&[source(path, text)], rules).len(), expected, "{text}");
    }
}
