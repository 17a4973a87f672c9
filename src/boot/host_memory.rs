//! Host memory that this process can still take: what the kernel has available, within the limit of every control group above
//! the process.

use std::fs;
use std::path::Path;

/// Where a version of control groups has what is said of memory.
struct Hierarchy {
    /// Its root, which in a container is often the container's own group.
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Name in `memory.stat` of the cached pages that were not used lately, those of groups below included.
    inactive: &'static str,
}

const V1: Hierarchy = Hierarchy {
    root: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
};
const V2: Hierarchy = Hierarchy {
    root: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    inactive: "inactive_file",
};

/// Bytes available to the process; `None` if nothing tells.
pub(crate) fn available_memory() -> Option<u64> {
    available_below(Path::new("/"))
}

/// The same for the files of a system below `root`.
fn available_below(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    // In KiB.
    let kernel = field(&meminfo, "MemAvailable:").map(|kib| kib << 10);
    kernel.into_iter().chain(limits(root)).min()
}

/// What the limits of the process's group and of all groups above it leave.
fn limits(root: &Path) -> Vec<u64> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let (hierarchy, group) = own_group(&own);
    // A group that this mount does not show has no files: a container's group is the mount's root then.
    let groups = Path::new(group.trim_start_matches('/')).ancestors();
    groups.filter_map(|group| left(&hierarchy, &root.join(hierarchy.root).join(group))).collect()
}

/// The group that counts this process's memory, by `/proc/self/cgroup` (cgroups(7)).
fn own_group(text: &str) -> (Hierarchy, &str) {
    let lines = text.lines().filter_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        Some((id, controllers, group))
    });
    let v1 = lines.clone().find(|(_, controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let v2 = || lines.clone().find(|(id, _, _)| *id == "0");
    match v1 {
        Some((_, _, group)) => (V1, group),
        None => (V2, v2().map_or("/", |(_, _, group)| group)),
    }
}

/// Bytes below the limit of one group. Inactive pages of files count as free: the kernel drops them before it refuses memory.
fn left(hierarchy: &Hierarchy, group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    // Without a limit this is the word max, or a number beyond all memory.
    let limit = number(hierarchy.limit)?;
    let inactive = read("memory.stat").and_then(|stat| field(&stat, hierarchy.inactive)).unwrap_or(0);
    let used = number(hierarchy.usage).unwrap_or(0).saturating_sub(inactive);
    Some(limit.saturating_sub(used))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == name)?;
        words.next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  99999999 kB\nMemAvailable:   16777216 kB\n");

    /// What a system of these files has available, in GiB.
    fn check(files: &[(&str, String)], expected: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(available_below(root.path()), expected.map(|gib| gib * GIB), "{files:?}");
    }

    /// The files of a group of version 2: limit, usage and inactive pages in GiB.
    fn v2(group: &str, limit: Option<u64>, usage: u64, inactive: u64) -> Vec<(String, String)> {
        let limit = limit.map_or("max\n".into(), |gib| format!("{}\n", gib * GIB));
        let stat = format!("anon 1\ninactive_anon 2\ninactive_file {}\nactive_file 3\n", inactive * GIB);
        let usage = (usage * GIB).to_string();
        [("memory.max", limit), ("memory.current", usage), ("memory.stat", stat)]
            .map(|(name, text)| (format!("sys/fs/cgroup{group}/{name}"), text))
            .into()
    }

    /// The same of version 1.
    fn v1(group: &str, limit: u64, usage: u64, inactive: u64) -> Vec<(String, String)> {
        let stat = format!("inactive_file 0\ntotal_inactive_file {}\n", inactive * GIB);
        [
            ("memory.limit_in_bytes", (limit * GIB).to_string()),
            ("memory.usage_in_bytes", (usage * GIB).to_string()),
            ("memory.stat", stat),
        ]
        .map(|(name, text)| (format!("sys/fs/cgroup/memory{group}/{name}"), text))
        .into()
    }

    /// A system with these control groups, beside 16 GiB that the kernel has available.
    fn check_groups(own: &str, groups: &[Vec<(String, String)>], expected: u64) {
        let mut files = vec![(MEMINFO.0, MEMINFO.1.to_owned()), ("proc/self/cgroup", own.to_owned())];
        files.extend(groups.iter().flatten().map(|(path, text)| (path.as_str(), text.clone())));
        check(&files, Some(expected));
    }

    #[test]
    fn the_least_of_all_limits_counts() {
        check(&[], None);
        check(&[(MEMINFO.0, MEMINFO.1.to_owned())], Some(16));
        let service = "0::/system.slice/perigee.service\n";
        let groups = |service, slice| {
            let (own, above) = ("/system.slice/perigee.service", "/system.slice");
            [v2(own, service, 3, 0), v2(above, slice, 5, 1)]
        };
        check_groups(service, &groups(None, None), 16);
        check_groups(service, &groups(Some(8), None), 5);
        check_groups(service, &groups(Some(8), Some(6)), 2);
        check_groups(service, &groups(Some(64), None), 16);
        check_groups(service, &groups(Some(2), None), 0);
        // A neighbour's group says nothing.
        check_groups("0::/other\n", &groups(Some(8), Some(6)), 16);
    }

    #[test]
    fn inactive_pages_of_files_are_free() {
        check_groups("0::/a\n", &[v2("/a", Some(8), 7, 6)], 7);
        check_groups("4:memory:/a\n0::/\n", &[v1("/a", 8, 7, 6)], 7);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let own = "9:name=systemd:/a\n4:cpu,memory:/a/b\n3:cpuset:/\n0::/a\n";
        check_groups(own, &[v1("/a/b", 8, 2, 0), v1("/a", 4, 3, 0), v2("/a", Some(1), 1, 0)], 1);
        check_groups(own, &[v1("/a/b", 8, 2, 0), v1("", u64::MAX >> 31, 3, 0)], 6);
    }

    #[test]
    fn in_a_container_the_mount_begins_with_its_group() {
        check_groups("0::/\n", &[v2("", Some(8), 3, 1)], 6);
        check_groups("0::/system.slice/docker-1.scope\n", &[v2("", Some(8), 3, 1)], 6);
        check_groups("0::/../../other\n", &[v2("", Some(8), 3, 1)], 6);
        check_groups("4:memory:/docker/1\n0::/docker/1\n", &[v1("", 8, 3, 1)], 6);
    }
}
