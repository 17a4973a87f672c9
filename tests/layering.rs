//! The layer order of `src/lib.rs` holds, and things that live in one place only live there.
//!
//! A fault here is a question for review: answer it in the code, or in the lists below with the reason.

use std::fs;
use std::path::{Path, PathBuf};

/// Edges that climb and are meant to: (from, to, reason).
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// What lives only where: (words that betray it, places under `src/` that may have it).
const LIVES_ONLY_IN: &[(&[&str], &[&str])] = &[
    (&["hyper::", "hyper_util::"], &["server/", "cli/client.rs"]),
    (&["tokio_rustls::"], &["server/", "cli/trust.rs"]),
    (&["safetensors::"], &["model/checkpoint/", "vision/test_data.rs"]),
    (&["memmap2::"], &["model/checkpoint/", "cpu/storage.rs"]),
    (&["tokenizers::"], &["text/tokenizer/"]),
    (&["llguidance::", "toktrie::", "derivre::"], &["grammar/"]),
    (&["prometheus::", "tracing_subscriber::"], &["telemetry/"]),
    (&["figment::"], &["config/"]),
    (&["cudarc::"], &["cuda/"]),
    (&["rustix::"], &["engine/delivery.rs", "server/socket.rs", "cuda/kernel_cache/", "boot/open_files.rs"]),
    (&["libc::"], &["telemetry/heap.rs", "cuda/library.rs"]),
    (&["clap::"], &["config/args.rs", "cli/"]),
    (&["ratatui::"], &["cli/top/"]),
    (&["env::var(", "env::vars(", "env::var_os(", "env::vars_os("], &["config/"]),
    (
        &["unsafe"],
        &[
            "threads/",
            "cpu/",
            "cuda/",
            "model/checkpoint/reader.rs",
            "telemetry/heap.rs",
            "sampling/widest.rs",
            "vision/bicubic/",
        ],
    ),
];

/// Parts of a module with a layer of their own: (place under `src/`, the only paths of the crate that it names).
const NAMES_ONLY: &[(&str, &[&str])] = &[("model/checkpoint/", &["tensor::", "model::checkpoint::"])];

/// One source file: path under `src/`, and its lines of code with their numbers (comments and strings blanked).
struct Source {
    path: String,
    lines: Vec<String>,
}

impl Source {
    /// The module of the first level that the file belongs to; `None` for lib.rs and main.rs.
    fn module(&self) -> Option<&str> {
        self.path.split_once('/').map(|(module, _)| module)
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

/// Modules in the order of `src/lib.rs`.
fn layers(sources: &[Source]) -> Vec<String> {
    let lib = sources.iter().find(|s| s.path == "lib.rs").unwrap();
    lib.lines
        .iter()
        .filter_map(|l| l.trim().strip_prefix("pub mod ")?.strip_suffix(';').map(str::to_owned))
        .collect()
}

/// Faults of the layer order: file, line, edge.
fn climbing_edges(sources: &[Source], layers: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources {
        let Some(module) = source.module() else { continue };
        let Some(own) = layers.iter().position(|l| l == module) else {
            faults.push(format!("src/{}: module {module} is not in src/lib.rs", source.path));
            continue;
        };
        for (line, target) in edges(source) {
            let climbs = layers.iter().position(|l| *l == target).is_none_or(|layer| layer > own);
            let meant = EXCEPTIONS.iter().any(|(from, to, _)| *from == module && *to == target);
            if climbs && !meant {
                faults.push(format!("src/{} line {line}: {module} names {target}", source.path));
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
                let mut named = line.match_indices("crate::").map(|(at, word)| &line[at + word.len()..]);
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
fn modules_name_only_modules_below_them() {
    let sources = sources();
    let layers = layers(&sources);
    assert!(layers.len() > 10, "src/lib.rs was not understood: {layers:?}");
    let faults = climbing_edges(&sources, &layers);
    assert!(faults.is_empty(), "edges that climb against the order in src/lib.rs:\n{}", faults.join("\n"));
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
    let layers = layers(&sources);
    for (from, to, _) in EXCEPTIONS {
        let used = sources.iter().any(|s| s.module() == Some(from) && edges(s).iter().any(|(_, t)| t == to));
        assert!(used && layers.iter().any(|l| l == from), "exception {from} to {to} is not needed");
    }
}

#[test]
fn the_scanner_sees_edges_and_nothing_in_comments_or_strings() {
    let source = |path: &str, text: &str| Source {
        path: path.into(),
        lines: code_of(text).lines().map(str::to_owned).collect(),
    };
    let layers = ["tensor", "cpu", "server"].map(str::to_owned);
    let check = |text: &str, expected: usize| {
        let faults = climbing_edges(&[source("cpu/a.rs", text)], &layers);
        assert_eq!(faults.len(), expected, "{text}: {faults:?}");
    };
    check("use crate::tensor::DType;", 0);
    check("use crate::server::X;", 1);
    check("use crate::{tensor::{A, server}, server::{B, C}, cpu};", 1);
    check("fn f(x: crate::server::X) -> crate::server::Y {}", 2);
    check("// crate::server::X\n/* crate::server */ /// crate::server\n", 0);
    check("let a = \"crate::server\\\"\"; let b = r#\"crate::server\"#; let c = '\"'; use crate::server;", 1);
    check("fn f<'a>(x: &'a str) {} // '\nuse crate::server;", 1);
    check("$crate::server::x!()", 0);
    check("use crate::nowhere;", 1);
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
    let rules: &[(&str, &[&str])] = &[("cpu/a/", &["tensor::", "cpu::a::"])];
    for (path, text, expected) in [
        ("cpu/a/b.rs", "use crate::tensor::DType; use crate::cpu::a::c;", 0),
        ("cpu/a/b.rs", "use crate::cpu::b;", 1),
        ("cpu/a/b.rs", "use crate::{tensor::DType, server};", 1),
        ("cpu/a/b.rs", "use super::super::b;", 1),
        ("cpu/b.rs", "use crate::cpu::b;", 0),
    ] {
        assert_eq!(outward(&[source(path, text)], rules).len(), expected, "{text}");
    }
}
