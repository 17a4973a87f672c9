//! Tests of the writer: files are complete or absent.

use super::*;

fn specs() -> Vec<TensorSpec> {
    vec![
        TensorSpec::new("b", Dtype::U8, [3]),
        TensorSpec::new("a", Dtype::U8, [2, 2]),
        TensorSpec::new("s", Dtype::F32, []),
        TensorSpec::new("h", Dtype::BF16, [1, 3]),
        TensorSpec::new("empty", Dtype::I64, [0, 4]),
    ]
}

fn write_all(mut shard: ShardWriter) -> u64 {
    shard.append("a", &[1, 2, 3]).unwrap();
    shard.write("b", &[5, 6, 7]).unwrap();
    shard.append("a", &[4]).unwrap();
    shard.write("h", &[8; 6]).unwrap();
    shard.write("s", &1.5f32.to_le_bytes()).unwrap();
    shard.finish().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_shard_reads_back_by_our_reader_and_by_the_formats_own() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = write_all(ShardWriter::create(dir.path(), "model.safetensors", &specs()).unwrap());
    let file = fs::read(dir.path().join("model.safetensors")).unwrap();
    assert_eq!(file.len() as u64, bytes);
    let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
    let ours = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(ours.names().collect::<Vec<_>>(), ["a", "b", "empty", "h", "s"]);
    for (name, expected) in [("a", &[1, 2, 3, 4][..]), ("b", &[5, 6, 7]), ("h", &[8; 6]), ("empty", &[])] {
        assert_eq!(ours.tensor(name).unwrap().bytes, expected);
        assert_eq!(theirs.tensor(name).unwrap().data(), expected);
    }
    assert_eq!(ours.tensor("s").unwrap().to_f32(), [1.5]);
    assert_eq!(ours.tensor("s").unwrap().shape, [0usize; 0]);
    assert_eq!(names(dir.path()), ["model.safetensors"]);
}

#[test]
fn an_unfinished_shard_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = ShardWriter::create(dir.path(), "x.safetensors", &specs()).unwrap();
    shard.write("b", &[0; 3]).unwrap();
    assert_eq!(names(dir.path()), [".x.safetensors.partial"]);
    let text = shard.finish().unwrap_err().to_string();
    assert_eq!(text, "x.safetensors: tensor a takes 4 bytes, got 0");
    assert_eq!(names(dir.path()), [""; 0]);
    // A partial file of a killed process is overwritten, longer or not.
    fs::write(dir.path().join(".x.safetensors.partial"), [9; 5000]).unwrap();
    write_all(ShardWriter::create(dir.path(), "x.safetensors", &specs()).unwrap());
    let again = tempfile::tempdir().unwrap();
    write_all(ShardWriter::create(again.path(), "x.safetensors", &specs()).unwrap());
    let read = |dir: &Path| fs::read(dir.join("x.safetensors")).unwrap();
    assert_eq!(read(dir.path()), read(again.path()));
}

#[test]
fn wrong_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let create = |specs: &[TensorSpec]| ShardWriter::create(dir.path(), "x", specs).map(|_| ());
    let check = |result: Result<(), WriteError>, expected: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    };
    let a = || TensorSpec::new("a", Dtype::F32, [2]);
    check(create(&[a(), a()]), "announced twice");
    check(create(&[TensorSpec::new("__metadata__", Dtype::U8, [1])]), "reserved");
    check(create(&[TensorSpec::new("a", Dtype::F32, [usize::MAX, 2])]), "no whole number of bytes");
    check(create(&[TensorSpec::new("a", Dtype::F4, [3])]), "no whole number of bytes");
    let huge = |name| TensorSpec::new(name, Dtype::U8, [usize::MAX / 8]);
    let many: Vec<_> = (0..9).map(|i| huge(i.to_string())).collect();
    check(create(&many), "too large");
    check(ShardWriter::create(dir.path(), "../x", &[a()]).map(|_| ()), "not a plain file name");
    let mut shard = ShardWriter::create(dir.path(), "x", &[a()]).unwrap();
    check(shard.write("a", &[0; 7]), "takes 8 bytes, got 7");
    check(shard.append("a", &[0; 9]), "takes 8 bytes, got 9");
    check(shard.append("z", &[0; 1]), "not announced");
}

/// A source folder with weights and other files.
fn source(dir: &Path) -> Checkpoint {
    write_all(ShardWriter::create(dir, "one.safetensors", &specs()).unwrap());
    let weight_map = specs().into_iter().map(|spec| (spec.name, "one.safetensors".to_owned())).collect();
    write_index(dir, &weight_map, 17).unwrap();
    for (name, bytes) in [("config.json", &b"{}"[..]), ("tokenizer.model", &[0, 255]), (".hidden", b"x")] {
        write_file(dir, name, bytes).unwrap();
    }
    fs::create_dir_all(dir.join("code/deep")).unwrap();
    write_file(dir, "code/deep/model.py", b"pass\n").unwrap();
    Checkpoint::open(dir).unwrap()
}

#[test]
fn side_files_are_copied_byte_for_byte_and_weights_are_not() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copied = copy_side_files(&source(from.path()), to.path(), &["config.json"]).unwrap();
    assert_eq!(copied, ["code/deep/model.py", "tokenizer.model"]);
    assert_eq!(names(to.path()), ["code", "tokenizer.model"]);
    assert_eq!(fs::read(to.path().join("tokenizer.model")).unwrap(), [0, 255]);
    assert_eq!(fs::read(to.path().join("code/deep/model.py")).unwrap(), b"pass\n");
}

#[test]
fn a_target_is_apart_from_its_source_and_held_once() {
    let root = tempfile::tempdir().unwrap();
    let from = root.path().join("source");
    fs::create_dir(&from).unwrap();
    let source = source(&from);
    for target in [from.clone(), from.join("inside"), root.path().to_owned()] {
        let text = Target::open(&target, &source).unwrap_err().to_string();
        assert!(text.contains("overlaps the source"), "{text}");
    }
    assert!(!from.join("inside").exists());
    let dir = root.path().join("new/target");
    let target = Target::open(&dir, &source).unwrap();
    assert!(matches!(Target::open(&dir, &source), Err(WriteError::Busy(_))));
    write_file(target.dir(), "a.json", b"12").unwrap();
    fs::write(dir.join(".b.partial"), "").unwrap();
    assert_eq!(target.entries().unwrap(), ["a.json"]);
    assert_eq!(target.read("a.json", 2).unwrap().unwrap(), b"12");
    assert_eq!(target.read("a.json", 1).unwrap(), None);
    assert_eq!((target.file_bytes("a.json"), target.file_bytes("absent")), (Some(2), None));
    drop(target);
    Target::open(&dir, &source).unwrap();
    assert_eq!(names(&dir), [".b.partial", "a.json"]);
}

#[test]
fn reading_again_after_release_gives_the_same_bytes_and_a_change_another_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = source(dir.path());
    let before = checkpoint.tensor("a").unwrap().bytes.to_vec();
    checkpoint.release("a", 0..usize::MAX);
    checkpoint.release("absent", 0..1);
    assert_eq!(checkpoint.tensor("a").unwrap().bytes, before);
    let fingerprint = checkpoint.fingerprint();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().fingerprint(), fingerprint);
    let path = dir.path().join("one.safetensors");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(modified + std::time::Duration::from_secs(1)).unwrap();
    assert_ne!(Checkpoint::open(dir.path()).unwrap().fingerprint(), fingerprint);
}
