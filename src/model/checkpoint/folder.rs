//! Access to a checkpoint's files: a folder on disk, or bytes compiled into the binary.
//!
//! Invariant: no name reaches a file outside the folder. One layout is an intended exception: the
//! Hugging Face cache, whose `snapshots/REVISION/` holds symbolic links into its own `blobs/`.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::error::Problem;
use super::hub_cache;

/// Largest file that [`Files::read`] reads, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Entries of a folder that are looked through for weights without an index.
const MAX_ENTRIES: usize = 10_000;

/// Deepest sub-folder that [`Files::names`] enters.
const MAX_DEPTH: usize = 8;

/// The files of one checkpoint by name.
pub(super) enum Files {
    /// A folder and the canonical paths that its links may lead into.
    Folder { dir: PathBuf, roots: Vec<PathBuf> },
    /// Pairs of name and content.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl Files {
    /// Opens a folder.
    pub(super) fn folder(dir: &Path) -> Result<Self, Problem> {
        let io_problem = |error| Problem::Io { file: dir.display().to_string(), error };
        let canonical = match dir.canonicalize() {
            Ok(canonical) => canonical,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Problem::NotAFolder),
            Err(e) => return Err(io_problem(e)),
        };
        if !canonical.is_dir() {
            return Err(Problem::NotAFolder);
        }
        let canonical = hub_cache::snapshot(canonical)?;
        let mut roots = vec![canonical.clone()];
        if let Some(snapshots) = canonical.parent().filter(|p| p.file_name() == Some("snapshots".as_ref()))
            && let Ok(blobs) = snapshots.with_file_name("blobs").canonicalize()
        {
            roots.push(blobs);
        }
        Ok(Files::Folder { dir: canonical, roots })
    }

    /// Path of an existing file, inside the folder or an allowed root; `None` for a missing file.
    pub(super) fn resolve(&self, name: &str) -> Result<Option<PathBuf>, Problem> {
        let Files::Folder { dir, roots } = self else { return Ok(None) };
        check_name(name)?;
        match dir.join(name).canonicalize() {
            Ok(path) if roots.iter().any(|root| path.starts_with(root)) => Ok(Some(path)),
            Ok(_) => Err(escapes(name, "a symbolic link points elsewhere")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Problem::Io { file: name.into(), error }),
        }
    }

    pub(super) fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        match self {
            Files::Embedded(files) => files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| *bytes),
            Files::Folder { .. } => None,
        }
    }

    /// Names of at most `limit` regular files, sorted; a file of a sub-folder as `folder/name`.
    /// Hidden files (a name that begins with a dot) and files deeper than eight folders are left
    /// out.
    pub(super) fn names(&self, limit: usize) -> Result<Vec<String>, Problem> {
        let dir = match self {
            Files::Embedded(files) => return Ok(files.iter().map(|(name, _)| (*name).to_owned()).collect()),
            Files::Folder { dir, .. } => dir,
        };
        let mut names = Vec::new();
        let mut folders = vec![(String::new(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let problem = |error| Problem::Io { file: folder.clone(), error };
            for entry in std::fs::read_dir(dir.join(&folder)).map_err(problem)? {
                let entry = entry.map_err(problem)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with('.') {
                    continue;
                }
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                // Links are not followed: a folder behind a link is not part of the checkpoint.
                if entry.file_type().map_err(problem)?.is_dir() {
                    if depth < MAX_DEPTH {
                        folders.push((path, depth + 1));
                    }
                } else if self.resolve(&path)?.is_some_and(|p| p.is_file()) {
                    names.push(path);
                    if names.len() >= limit {
                        return Ok(names);
                    }
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// Names of the files in the folder itself, sorted, at most [`MAX_ENTRIES`] of them. Links are not followed: the
    /// result says what is offered, not what may be read.
    pub(super) fn top_names(&self) -> Result<Vec<String>, Problem> {
        let mut names: Vec<String> = match self {
            Files::Embedded(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Files::Folder { dir, .. } => {
                let problem = |error| Problem::Io { file: dir.display().to_string(), error };
                let entries = std::fs::read_dir(dir).map_err(problem)?.take(MAX_ENTRIES);
                let name = |entry: io::Result<std::fs::DirEntry>| {
                    Ok(entry.map_err(problem)?.file_name().to_string_lossy().into_owned())
                };
                entries.map(name).collect::<Result<_, Problem>>()?
            }
        };
        names.sort();
        Ok(names)
    }

    /// The content of a file as a stream.
    pub(super) fn open(&self, name: &str) -> Result<Box<dyn Read>, Problem> {
        if let Some(bytes) = self.embedded(name) {
            return Ok(Box::new(bytes));
        }
        let io_problem = |error| Problem::Io { file: name.into(), error };
        let path = self.resolve(name)?.ok_or_else(|| io_problem(io::ErrorKind::NotFound.into()))?;
        Ok(Box::new(File::open(path).map_err(io_problem)?))
    }

    /// Time of a file's last change, nanoseconds since 1970; 0 if unknown.
    pub(super) fn modified(&self, name: &str) -> u128 {
        let path = self.resolve(name).ok().flatten();
        let modified = path.and_then(|path| path.metadata().ok()?.modified().ok());
        modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos())
    }

    /// Whole content of a small file; `None` for a missing file.
    pub(super) fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, Problem> {
        if let Some(bytes) = self.embedded(name) {
            return Ok(Some(Cow::Borrowed(bytes)));
        }
        let Some(path) = self.resolve(name)? else { return Ok(None) };
        let io_problem = |error| Problem::Io { file: name.into(), error };
        let file = open_regular(&path).map_err(io_problem)?;
        let metadata = file.metadata().map_err(io_problem)?;
        if metadata.len() > MAX_FILE_BYTES {
            return Err(Problem::TooLarge {
                file: name.into(),
                bytes: metadata.len(),
                limit: MAX_FILE_BYTES,
            });
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        // The limit holds even if the file grows between the two calls.
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(io_problem)?;
        Ok(Some(Cow::Owned(bytes)))
    }
}

/// Opens a regular file. Its type is checked first: opening a pipe would block until a writer opens
/// it.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    };
    regular(std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    regular(file.metadata()?)?;
    Ok(file)
}

/// Checks that a name is a relative path of plain components.
pub(super) fn check_name(name: &str) -> Result<(), Problem> {
    if name.is_empty() || name.contains('\0') {
        return Err(escapes(name, "not a file name"));
    }
    for component in Path::new(name).components() {
        match component {
            Component::Normal(_) => {}
            Component::ParentDir => return Err(escapes(name, "it has ..")),
            Component::CurDir => return Err(escapes(name, "it has .")),
            Component::RootDir | Component::Prefix(_) => return Err(escapes(name, "it is absolute")),
        }
    }
    Ok(())
}

fn escapes(name: &str, how: &'static str) -> Problem {
    Problem::Escapes { file: name.into(), how }
}
