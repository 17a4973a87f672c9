//! Tests of valid and of damaged checkpoint folders.

use std::fs;
use std::path::Path;

use super::*;
use crate::checkpoint::header::tests::file;

const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"I32","shape":[1],"data_offsets":[16,20]}}"#;
const TWO: &str = r#"{"c":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}}"#;

fn write(dir: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

fn sharded(index: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[
            (INDEX_FILE, index.as_bytes()),
            ("1.safetensors", &file(ONE, 20)),
            ("2.safetensors", &file(TWO, 6)),
        ],
    );
    dir
}

#[test]
fn shards_of_an_index_are_one_set_of_tensors() {
    let dir = sharded(r#"{"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#);
    write(dir.path(), &[("config.json", b"{}")]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    let c = checkpoint.tensor("c").unwrap();
    assert_eq!((c.dtype, c.shape, c.bytes), (Dtype::BF16, &[3][..], &[0, 1, 2, 3, 4, 5][..]));
    assert_eq!(checkpoint.tensor("b").unwrap().dtype, Dtype::I32);
    assert!(checkpoint.tensor("d").is_none());
    assert_eq!((checkpoint.num_shards(), checkpoint.num_tensors(), checkpoint.bytes()), (2, 3, 26));
    assert_eq!(checkpoint.shard_of("c"), Some("2.safetensors"));
    assert_eq!(checkpoint.file("config.json").as_deref(), Some(&b"{}"[..]));
    assert!(checkpoint.file("absent.json").is_none());
}

#[test]
fn a_single_file_needs_no_index() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[(SINGLE_FILE, &file(TWO, 6))]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.source(), dir.path().display().to_string());
    assert_eq!(checkpoint.names().count(), 1);
}

/// Regression: numbered shards without an index, and the folder of a download cache, had "no weights".
#[test]
fn numbered_shards_and_a_cache_need_no_index() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("models--org--kimi/snapshots/abc");
    fs::create_dir_all(&snapshot).unwrap();
    write(
        &snapshot,
        &[
            ("config.json", b"{}"),
            ("model-00002-of-00002.safetensors", &file(ONE, 20)),
            ("model-00001-of-00002.safetensors", &file(TWO, 6)),
        ],
    );
    let checkpoint = Checkpoint::open(cache.path()).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(checkpoint.folder(), Some(snapshot.canonicalize().unwrap().as_path()));
    fs::remove_file(snapshot.join("model-00001-of-00002.safetensors")).unwrap();
    let text = Checkpoint::open(&snapshot).unwrap_err().to_string();
    assert!(text.contains("1 of 2 parts are there, part 1 is missing"), "{text}");
}

#[test]
fn an_embedded_model_reads_like_a_folder() {
    let weights: &'static [u8] = file(TWO, 6).leak();
    let files: &'static [(&str, &[u8])] = vec![(SINGLE_FILE, weights), ("config.json", &b"{}"[..])].leak();
    let checkpoint = Checkpoint::from_embedded(files).unwrap();
    assert_eq!(checkpoint.tensor("c").unwrap().bytes.len(), 6);
    assert_eq!(checkpoint.file("config.json").as_deref(), Some(&b"{}"[..]));
    assert!(checkpoint.file("/etc/passwd").is_none());
    assert_eq!(checkpoint.source(), "(embedded)");
}

#[test]
fn every_problem_is_in_one_error() {
    let dir = sharded(
        r#"{"weight_map":{"a":"1.safetensors","c":"1.safetensors","x":"2.safetensors","m":"3.safetensors",
            "n":"3.safetensors","e":"../out.safetensors","f":"/abs.safetensors","g":"4.safetensors"}}"#,
    );
    write(dir.path(), &[("4.safetensors", b"short")]);
    let error = Checkpoint::open(dir.path()).unwrap_err();
    let text = error.to_string();
    for expected in [
        "1.safetensors: has no tensor c,",
        "2.safetensors: has no tensor x,",
        "shard 3.safetensors is missing (2 tensors, first m)",
        "\"../out.safetensors\" leads out of the checkpoint's folder (it has ..)",
        "\"/abs.safetensors\" leads out of the checkpoint's folder (it is absolute)",
        "4.safetensors: has only 5 bytes",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert_eq!(error.problems.len(), 6);
}

#[test]
fn one_name_in_two_shards_is_an_error() {
    let dir = sharded(r#"{"weight_map":{"a":"1.safetensors","c":"2.safetensors"}}"#);
    write(dir.path(), &[("2.safetensors", &file(ONE, 20))]);
    let text = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(text.contains("tensor a is stored twice, in 1.safetensors and in 2.safetensors"), "{text}");
}

#[test]
fn folders_without_weights_say_what_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let check = |path: &Path, expected: &str| {
        let text = Checkpoint::open(path).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    };
    check(dir.path(), "holds neither model.safetensors.index.json nor model.safetensors");
    check(&dir.path().join("absent"), "not a folder");
    write(dir.path(), &[(SINGLE_FILE, b"")]);
    check(&dir.path().join(SINGLE_FILE), "not a folder");
    check(dir.path(), "has only 0 bytes");
    fs::remove_file(dir.path().join(SINGLE_FILE)).unwrap();
    fs::create_dir(dir.path().join(SINGLE_FILE)).unwrap();
    check(dir.path(), "is not a regular file");
    write(dir.path(), &[(INDEX_FILE, b"{")]);
    check(dir.path(), "model.safetensors.index.json: EOF");
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused_except_the_hub_cache() {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (root.path().join("blobs"), root.path().join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    write(&blobs, &[("123", &file(TWO, 6))]);
    symlink("../../blobs/123", snapshot.join(SINGLE_FILE)).unwrap();
    assert_eq!(Checkpoint::open(&snapshot).unwrap().names().count(), 1);

    let plain = tempfile::tempdir().unwrap();
    symlink(blobs.join("123"), plain.path().join(SINGLE_FILE)).unwrap();
    let text = Checkpoint::open(plain.path()).unwrap_err().to_string();
    assert!(
        text.contains("\"model.safetensors\" leads out of the checkpoint's folder (a symbolic link"),
        "{text}"
    );
    write(plain.path(), &[("real", &file(TWO, 6))]);
    fs::remove_file(plain.path().join(SINGLE_FILE)).unwrap();
    symlink("real", plain.path().join(SINGLE_FILE)).unwrap();
    let checkpoint = Checkpoint::open(plain.path()).unwrap();
    symlink("/etc/hostname", plain.path().join("config.json")).unwrap();
    assert!(checkpoint.read_file("config.json").unwrap_err().to_string().contains("leads out"));
    assert!(checkpoint.file("../real").is_none());
}
