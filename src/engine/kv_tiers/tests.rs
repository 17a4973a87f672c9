use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use perigee_telemetry::{Exposition, Metrics};

const BLOCK_BYTES: usize = 1000;

fn name(i: u8) -> Name {
    [i; 32]
}

fn content(i: u8) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| (at as u8).wrapping_mul(i)).collect()
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new("m", false))
}

fn options(folder: &Path, host_blocks: u64, disk_blocks: u64) -> TierOptions {
    let file_bytes = (block_file::HEADER_BYTES + BLOCK_BYTES) as u64;
    TierOptions {
        host_bytes: host_blocks * BLOCK_BYTES as u64,
        disk: Some(DiskOptions {
            folder: folder.to_owned(),
            max_bytes: disk_blocks * file_bytes,
            flush: Duration::ZERO,
        }),
    }
}

fn open(options: &TierOptions, identity: &str, metrics: &Arc<Metrics>) -> Tiers {
    Tiers::open(options, Identity::of([identity.as_bytes()]), BLOCK_BYTES, metrics.clone()).unwrap()
}

/// Waits until `condition` holds, at most a minute.
fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Blocks that a fetch of `names` brings to host memory.
fn fetch(tiers: &mut Tiers, names: &[Name]) -> Vec<Name> {
    let mut found = Vec::new();
    if !tiers.fetch(SeqId(1), names) {
        return found;
    }
    let mut ended = false;
    until(|| {
        for arrival in tiers.arrivals() {
            match arrival {
                Arrival::Block { name, .. } => found.push(name),
                Arrival::End(SeqId(1)) => ended = true,
                Arrival::End(other) => panic!("{other:?} was not asked for"),
            }
        }
        ended
    });
    found
}

fn close(tiers: Tiers) {
    tiers.close(Instant::now() + Duration::from_secs(60));
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn host_memory_drops_the_least_recently_used_block() {
    let options = TierOptions { host_bytes: 3 * BLOCK_BYTES as u64 + 10, disk: None };
    let mut tiers = open(&options, "a", &metrics());
    for i in 1..=3 {
        assert!(tiers.keep(name(i), content(i)).is_empty());
    }
    assert!(tiers.touch(&name(1)));
    assert_eq!(tiers.keep(name(4), content(4)), [name(2)]);
    assert!(tiers.keep(name(4), content(4)).is_empty(), "it is there already");
    assert_eq!(tiers.content(&name(2)), None);
    for i in [1, 3, 4] {
        assert_eq!(*tiers.content(&name(i)).unwrap(), content(i));
    }
    assert_eq!(tiers.host.bytes(), 3 * BLOCK_BYTES as u64);
    assert!(!tiers.fetch(SeqId(1), &[name(1)]), "there is no disk");
}

#[test]
fn host_memory_for_no_block_is_refused_with_the_remedy() {
    let options = TierOptions { host_bytes: BLOCK_BYTES as u64 - 1, disk: None };
    let refused = Tiers::open(&options, Identity::of([]), BLOCK_BYTES, metrics()).err().unwrap().to_string();
    assert!(refused.contains("kv_cache.host_bytes = 999") && refused.contains("1000 bytes"), "{refused}");
}

#[test]
fn blocks_on_disk_survive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), 8, 100);
    let mut tiers = open(&options, "a", &metrics());
    (1..=5).for_each(|i| drop(tiers.keep(name(i), content(i))));
    close(tiers);
    assert_eq!(files(folder.path()).len(), 5);

    let mut later = open(&options, "a", &metrics());
    until(|| !later.lacks_on_disk(&name(5)));
    // The run ends at the first block that is not there, and half of the host's room is filled at most.
    assert_eq!(fetch(&mut later, &[name(2), name(1), name(9), name(3)]), [name(2), name(1)]);
    assert_eq!(fetch(&mut later, &[1, 2, 3, 4, 5].map(name)), [1, 2, 3, 4].map(name));
    assert_eq!(*later.content(&name(2)).unwrap(), content(2));
    close(later);

    let mut other = open(&options, "another model", &metrics());
    until(|| other.disk.as_ref().is_some_and(|disk| disk.num_files() == 5));
    assert!(other.lacks_on_disk(&name(1)) && !other.fetch(SeqId(1), &[name(1)]));
    close(other);
    assert_eq!(files(folder.path()).len(), 5, "another model's files are left while there is room");
}

#[test]
fn a_bad_file_is_a_miss_and_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), 8, 100);
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 7] = [
        ("a bit of the content", |bytes| bytes[500] ^= 4),
        ("a bit of the name", |bytes| bytes[45] ^= 1),
        ("a bit of the identity", |bytes| bytes[20] ^= 1),
        ("the magic", |bytes| bytes[0] ^= 1),
        ("cut short", |bytes| bytes.truncate(600)),
        ("no header", |bytes| bytes.truncate(20)),
        ("too long", |bytes| bytes.extend([0; 5000])),
    ];
    for (what, damage) in damages {
        let metrics = metrics();
        let mut tiers = open(&options, "a", &metrics);
        (1..=2).for_each(|i| drop(tiers.keep(name(i), content(i))));
        close(tiers);
        let mut tiers = open(&options, "a", &metrics);
        until(|| !tiers.lacks_on_disk(&name(1)) && !tiers.lacks_on_disk(&name(2)));
        let path = files(folder.path())
            .into_iter()
            .find(|path| path.to_str().unwrap().contains("01010101"))
            .unwrap();
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
        assert!(fetch(&mut tiers, &[name(1), name(2)]).is_empty(), "{what}");
        assert!(!path.exists() && tiers.lacks_on_disk(&name(1)), "{what}");
        assert_eq!(fetch(&mut tiers, &[name(2)]), [name(2)], "{what}");
        assert!(
            metrics
                .render(Exposition::Text)
                .contains(r#"perigee_kv_tier_lost_blocks_total{reason="file"} 1"#),
            "{what}"
        );
        close(tiers);
    }
}

#[test]
fn a_file_that_another_process_has_deleted_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let (options, metrics) = (options(folder.path(), 8, 100), metrics());
    let mut tiers = open(&options, "a", &metrics);
    tiers.keep(name(1), content(1));
    until(|| !tiers.lacks_on_disk(&name(1)));
    files(folder.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    assert!(fetch(&mut tiers, &[name(1)]).is_empty() && tiers.lacks_on_disk(&name(1)));
    let page = metrics.render(Exposition::Text);
    for line in
        [r#"perigee_kv_tier_lost_blocks_total{reason="file"} 0"#, r#"perigee_kv_tier_blocks{tier="disk"} 0"#]
    {
        assert!(page.contains(line), "{page}");
    }
    close(tiers);
}

#[test]
fn folders_and_files_are_for_their_user_alone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("kv/blocks");
    try_folder(&folder).unwrap();
    assert!(!parent.path().join("kv").exists(), "what was tried is removed");
    let mut tiers = open(&options(&folder, 8, 100), "a", &metrics());
    tiers.keep(name(1), content(1));
    until(|| !tiers.lacks_on_disk(&name(1)));
    close(tiers);
    let file = files(parent.path()).pop().unwrap();
    let made: Vec<&Path> = file.ancestors().skip(1).take_while(|made| *made != parent.path()).collect();
    assert_eq!(made.len(), 4, "{made:?}");
    for folder in made {
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder:?}");
    }
    // Regression: files were open to everybody where the folder was.
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    try_folder(&folder).unwrap();
    assert!(file.exists());
    assert!(try_folder(&file).unwrap_err().to_string().ends_with("a folder that this process may write"));
}

#[test]
fn the_folder_stays_within_its_bytes_and_keeps_what_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join(Identity::of([b"old".as_slice()]).folder());
    let mut old = open(&options(folder.path(), 8, 4), "old", &metrics());
    (1..=3).for_each(|i| drop(old.keep(name(i), content(i))));
    close(old);
    let foreign = [folder.path().join("notes.txt"), ours.join("readme"), ours.join("01").join("x.kv")];
    foreign.iter().for_each(|path| fs::write(path, vec![7; 100_000]).unwrap());
    // Times of files are coarse on some systems.
    let past = std::time::SystemTime::now() - Duration::from_secs(60);
    for path in files(&ours) {
        fs::File::options().append(true).open(path).unwrap().set_modified(past).unwrap();
    }

    let mut tiers = open(&options(folder.path(), 8, 4), "new", &metrics());
    until(|| tiers.disk.as_ref().is_some_and(|disk| disk.num_files() == 3));
    for i in 1..=6 {
        tiers.keep(name(i), content(i));
        until(|| !tiers.lacks_on_disk(&name(i)));
        if i == 5 {
            assert_eq!(fetch(&mut tiers, &[name(2)]), [name(2)], "it counts as used");
        }
    }
    let kept: Vec<u8> = (1..=6).filter(|i| !tiers.lacks_on_disk(&name(*i))).collect();
    assert_eq!(kept, [2, 4, 5, 6], "the old model's went first, then the least recently used");
    close(tiers);
    let blocks: Vec<_> = files(folder.path()).into_iter().filter(|path| !foreign.contains(path)).collect();
    assert_eq!(blocks.len(), 4);
    assert!(foreign.iter().all(|path| path.exists()));
}

#[test]
fn a_disk_that_refuses_costs_blocks_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = metrics();
    let mut tiers = open(&options(folder.path(), 8, 100), "a", &metrics);
    let part = folder.path().join(Identity::of([b"a".as_slice()]).folder()).join("01");
    // No folder of that name can be made.
    fs::write(&part, "in the way").unwrap();
    tiers.keep(name(1), content(1));
    tiers.keep(name(2), content(2));
    until(|| !tiers.lacks_on_disk(&name(2)));
    assert!(tiers.lacks_on_disk(&name(1)));
    assert_eq!(*tiers.content(&name(1)).unwrap(), content(1));
    assert!(
        metrics.render(Exposition::Text).contains(r#"perigee_kv_tier_lost_blocks_total{reason="write"} 1"#)
    );
    close(tiers);

    let blocked = folder.path().join("a file");
    fs::write(&blocked, "").unwrap();
    let refused =
        Tiers::open(&options(&blocked, 8, 100), Identity::of([]), BLOCK_BYTES, metrics).err().unwrap();
    assert!(refused.to_string().contains("kv_cache.disk_path"), "{refused}");
}
