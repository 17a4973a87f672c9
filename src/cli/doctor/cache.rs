//! The volume of compiled kernels.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::report::Report;
use crate::boot::memory_plan::format_bytes;
use perigee_cuda::Volume;

/// Free bytes of the cache's volume below which compiled kernels may not fit.
const MIN_BYTES: u64 = 64 << 20;

/// `needed`: whether a GPU is there or asked for.
pub(super) fn examine(report: &mut Report, dir: &Path, needed: bool) {
    let owner = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.uid());
    // The process's own entry belongs to the user it runs as.
    let users = owner(dir).zip(owner(Path::new("/proc/self")));
    volume(report, dir, Volume::examine(dir), users, needed);
}

/// `users`: the folder's owner, and the process's.
fn volume(
    report: &mut Report,
    dir: &Path,
    volume: io::Result<Volume>,
    users: Option<(u32, u32)>,
    needed: bool,
) {
    let shown = dir.display();
    match volume {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !needed => {
            report.ok("kernel cache", format!("{shown} is not there, and no GPU needs it"));
        }
        Err(error) => report.warning("kernel cache", format!("{shown}: {error}"), "set kernels.cache_dir"),
        Ok(Volume { writable: false, .. }) => {
            let (whose, remedy) = match users {
                Some((owner, process)) if owner != process => (
                    format!(": it belongs to user {owner}, this process is user {process}"),
                    format!("chown -R {process} {shown}"),
                ),
                _ => (": its file system or its permissions forbid it".into(), "mount it writable".into()),
            };
            report.warning(
                "kernel cache",
                format!("{shown} cannot be written{whose}; what is missing is compiled at each start"),
                &format!("{remedy}, or set kernels.cache_dir"),
            );
        }
        Ok(Volume { free_bytes, .. }) => {
            let text = format!("{shown}, {} free", format_bytes(free_bytes));
            match free_bytes < MIN_BYTES {
                true => report.warning("kernel cache", text, "make room on its volume"),
                false => report.ok("kernel cache", text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: io::Result<Volume>, users: Option<(u32, u32)>, needed: bool, expected: &[&str]) {
        let mut report = Report::default();
        volume(&mut report, Path::new("jit-cache"), found, users, needed);
        let text = report.lines();
        assert!(expected.iter().all(|words| text.contains(words)), "{expected:?}: {text}");
    }

    #[test]
    fn each_state_of_the_volume() {
        let state = |writable, free_bytes| Ok(Volume { writable, free_bytes });
        let absent = || Err(io::Error::from(io::ErrorKind::NotFound));
        check(absent(), None, false, &["ok    kernel cache  jit-cache is not there"]);
        check(absent(), None, true, &["warn  kernel cache", "-> set kernels.cache_dir"]);
        check(state(true, 1 << 30), None, true, &["ok    kernel cache  jit-cache, 1.0 GiB free"]);
        check(state(true, 1 << 20), None, true, &["warn  kernel cache", "make room"]);
        let foreign = ["belongs to user 0, this process is user 10001", "-> chown -R 10001 jit-cache"];
        check(state(false, 1 << 30), Some((0, 10001)), true, &foreign);
        check(state(false, 1 << 30), Some((7, 7)), true, &["forbid it", "-> mount it writable"]);
    }
}
