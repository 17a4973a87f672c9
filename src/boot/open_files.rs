//! Open files: the soft limit of the process becomes the hard one, and connections have to fit in it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of a server besides its connections: shards, pipes, sockets of the runtime.
const OWN_FILES: u64 = 64;

/// Open files that a server with so many connections needs.
pub(crate) fn files_needed(max_connections: usize) -> u64 {
    max_connections as u64 + OWN_FILES
}

/// Raises the soft limit to the hard one, and warns if that is too few. Containers begin with a soft limit of 1024, for programs
/// that use select(2).
pub(super) fn raise_limit(max_connections: usize) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused only where the hard limit is above the system's own; the old limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let needed = files_needed(max_connections);
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "too few open files for server.max_connections = {max_connections}: raise the hard limit (ulimit -Hn), or lower the setting"
        );
    }
}
