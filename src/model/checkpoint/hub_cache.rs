//! The download cache of Hugging Face: `models--ORG--NAME/{blobs, refs, snapshots/REVISION}`.
//!
//! A folder of the cache that holds exactly one snapshot stands for it. One that holds several is refused with their
//! paths: which of them is meant cannot be known.

use std::path::{Path, PathBuf};

use super::error::Problem;

/// Snapshots that a refusal lists, and entries of a folder that are looked through.
const MAX_LISTED: usize = 10;
const MAX_ENTRIES: usize = 10_000;

/// The snapshot that `folder` stands for; the folder itself unless it is the cache, the folder of one model in it,
/// or that folder's `snapshots`.
///
/// Errors: no snapshot, or several.
pub(super) fn snapshot(folder: PathBuf) -> Result<PathBuf, Problem> {
    if folder.join("config.json").exists() {
        return Ok(folder);
    }
    let is_snapshots = folder.file_name().is_some_and(|name| name == "snapshots");
    let models: Vec<PathBuf> = match is_snapshots || folder.join("snapshots").is_dir() {
        true => vec![folder.clone()],
        // HF_HOME holds the cache as `hub`.
        false => [folder.clone(), folder.join("hub")].iter().flat_map(|cache| models_of(cache)).collect(),
    };
    if models.is_empty() {
        return Ok(folder);
    }
    let snapshots: Vec<PathBuf> = models.iter().flat_map(|model| snapshots_of(model)).collect();
    match &snapshots[..] {
        [one] => Ok(one.clone()),
        [] => Err(Problem::HubCacheEmpty),
        _ => Err(Problem::HubCache {
            count: snapshots.len(),
            listed: snapshots.iter().take(MAX_LISTED).map(|path| path.display().to_string()).collect(),
        }),
    }
}

/// Folders of models in a cache.
fn models_of(cache: &Path) -> Vec<PathBuf> {
    folders_in(cache, |name| name.starts_with("models--"))
}

/// Snapshots of a model; the one that `refs/main` names comes first.
fn snapshots_of(model: &Path) -> Vec<PathBuf> {
    let is_snapshots = model.file_name().is_some_and(|name| name == "snapshots");
    let (root, snapshots) = match (is_snapshots, model.parent()) {
        (true, Some(root)) => (root, model.to_owned()),
        _ => (model, model.join("snapshots")),
    };
    let mut found = folders_in(&snapshots, |name| !name.starts_with('.'));
    let current = std::fs::read_to_string(root.join("refs/main")).unwrap_or_default();
    let is_current = |path: &PathBuf| path.file_name().is_some_and(|name| name == current.trim());
    found.sort_by_key(|path| !is_current(path));
    found
}

/// Sub-folders of a folder, sorted by name; none if it cannot be read.
fn folders_in(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let is_wanted = |path: &PathBuf| {
        path.is_dir() && path.file_name().is_some_and(|name| wanted(&name.to_string_lossy()))
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_wanted).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn cache(snapshots: &[&str], current: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("models--org--kimi");
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::create_dir_all(model.join("snapshots")).unwrap();
        fs::write(model.join("refs/main"), current).unwrap();
        for snapshot in snapshots {
            fs::create_dir(model.join("snapshots").join(snapshot)).unwrap();
            fs::write(model.join("snapshots").join(snapshot).join("config.json"), "{}").unwrap();
        }
        dir
    }

    /// Regression: a downloaded model given by its folder in the cache was refused as one without weights.
    #[test]
    fn a_cache_with_one_snapshot_stands_for_it() {
        let dir = cache(&["abc"], "abc");
        let model = dir.path().join("models--org--kimi");
        let snapshot_path = model.join("snapshots/abc");
        for given in [dir.path(), &model, &model.join("snapshots"), &snapshot_path] {
            assert_eq!(snapshot(given.to_owned()).unwrap(), snapshot_path, "{}", given.display());
        }
        let home = tempfile::tempdir().unwrap();
        fs::rename(dir.path(), home.path().join("hub")).unwrap();
        let expected = home.path().join("hub/models--org--kimi/snapshots/abc");
        assert_eq!(snapshot(home.path().to_owned()).unwrap(), expected);
    }

    #[test]
    fn several_snapshots_and_none_say_what_to_give() {
        let dir = cache(&["abc", "def"], "def\n");
        let text = snapshot(dir.path().join("models--org--kimi")).unwrap_err().to_string();
        let (first, second) = (text.find("snapshots/def"), text.find("snapshots/abc"));
        assert!(text.contains("cache") && first.is_some() && first < second, "{text}");
        let empty = cache(&[], "");
        let text = snapshot(empty.path().to_owned()).unwrap_err().to_string();
        assert!(text.contains("no snapshot"), "{text}");
    }

    #[test]
    fn other_folders_stand_for_themselves() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(snapshot(dir.path().to_owned()).unwrap(), dir.path());
        fs::create_dir(dir.path().join("snapshots")).unwrap();
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(snapshot(dir.path().to_owned()).unwrap(), dir.path());
    }
}
