//! Real files as token streams: what a guard must leave alone.

use std::path::{Path, PathBuf};

use crate::text::{Specials, Tokenizer};

/// Least and most bytes of a file that is taken; of a longer one the beginning.
const MIN_BYTES: u64 = 1024;
const MAX_BYTES: usize = 256 * 1024;
/// Deepest folder below a root.
const MAX_DEPTH: usize = 24;
/// Most entries that are looked at.
const MAX_ENTRIES: usize = 2_000_000;

/// Kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// .py
    Python,
    /// .md, .rst, .txt
    Prose,
    /// .rs, .c, .cu, .js and the like
    Code,
    /// .json, .yaml, .toml, .csv
    Data,
}

impl Category {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Python, Self::Prose, Self::Code, Self::Data];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Prose => "prose",
            Self::Code => "code",
            Self::Data => "data",
        }
    }

    fn of(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()? {
            "py" => Self::Python,
            "md" | "rst" | "txt" => Self::Prose,
            "rs" | "c" | "h" | "cc" | "cpp" | "hpp" | "cu" | "cuh" | "js" | "ts" | "go" | "java" => {
                Self::Code
            }
            "json" | "yaml" | "yml" | "toml" | "csv" => Self::Data,
            _ => return None,
        })
    }
}

/// One file.
#[derive(Debug)]
pub(super) struct Document {
    /// Its kind.
    pub category: Category,
    /// Where it was.
    pub path: PathBuf,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// Reads at most `per_category` files of each kind below `roots`, chosen by `seed`.
pub(super) fn read(
    roots: &[PathBuf],
    per_category: usize,
    seed: u64,
    tokenizer: &Tokenizer,
) -> Vec<Document> {
    let mut paths: Vec<(Category, PathBuf)> = Vec::new();
    let mut open: Vec<(PathBuf, usize)> = roots.iter().map(|root| (root.clone(), 0)).collect();
    let mut looked_at = 0;
    while let Some((folder, depth)) = open.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(&folder).into_iter().flatten().flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::path);
        for entry in entries {
            looked_at += 1;
            let Ok(kind) = entry.file_type() else { continue };
            if looked_at > MAX_ENTRIES {
                break;
            } else if kind.is_dir() && depth < MAX_DEPTH {
                open.push((entry.path(), depth + 1));
            } else if kind.is_file()
                && entry.metadata().is_ok_and(|m| m.len() >= MIN_BYTES)
                && let Some(category) = Category::of(&entry.path())
            {
                paths.push((category, entry.path()));
            }
        }
    }
    paths.sort();
    let mut rng = fastrand::Rng::with_seed(seed);
    rng.shuffle(&mut paths);
    let mut documents = Vec::new();
    for category in Category::ALL {
        let chosen = paths.iter().filter(|(c, _)| *c == category).filter_map(|(_, path)| {
            let text = std::fs::read(path).ok()?;
            let text = String::from_utf8(text[..text.len().min(MAX_BYTES)].to_vec())
                .or_else(|e| String::from_utf8(e.as_bytes()[..e.utf8_error().valid_up_to()].to_vec()))
                .ok()?;
            let tokens = tokenizer.encode(&text, Specials::AsText).ok()?;
            Some(Document { category, path: path.clone(), tokens })
        });
        documents.extend(chosen.filter(|d| d.tokens.len() >= 256).take(per_category));
    }
    documents
}
