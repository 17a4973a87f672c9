//! The cache with a compiler whose result tells which program it was made of.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::time::SystemTime;

use super::*;
use crate::Limits;

/// A compiler without a library: the CUBIN is a text that names program and compiler.
struct Fake {
    identity: &'static str,
    compiled: AtomicUsize,
    /// What [`Fake::compile`] returns in place of a CUBIN.
    error: Option<CompileError>,
    delay: Duration,
}

impl Fake {
    fn new(identity: &'static str) -> Arc<Self> {
        Arc::new(Self { identity, compiled: AtomicUsize::new(0), error: None, delay: Duration::ZERO })
    }

    fn count(&self) -> usize {
        self.compiled.load(Ordering::SeqCst)
    }
}

impl Compiler for Fake {
    fn identity(&self) -> Result<String, CompileError> {
        Ok(self.identity.into())
    }

    fn compile(&self, program: &Program) -> Result<Compiled, CompileError> {
        self.compiled.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.delay);
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(Compiled {
                cubin: cubin_of(program, self.identity),
                ptx: String::new(),
                functions: vec![FunctionUsage {
                    name: "f".into(),
                    registers: 32,
                    ..FunctionUsage::default()
                }],
                log: String::new(),
                duration: Duration::ZERO,
            }),
        }
    }
}

fn cubin_of(program: &Program, identity: &str) -> Vec<u8> {
    format!("{} {} {} {:?}", identity, program.arch, program.text, program.options).repeat(3).into_bytes()
}

pub(crate) fn program(kernel: &str, text: &str) -> Program {
    Program {
        kernel: kernel.into(),
        arch: Arch::Sm90a,
        text: text.into(),
        cuda_headers: false,
        options: vec!["--gpu-architecture=sm_90a".into()],
        functions: vec!["f".into()],
        limits: Limits { registers: 64, local_memory: false },
        shared_bytes: 0,
    }
}

const PLENTY: u64 = 1 << 30;

fn settings(dir: &Path, max_bytes: u64) -> CacheSettings {
    CacheSettings { dir: Some(dir.to_owned()), max_bytes, create: false }
}

fn open(dir: &Path, compiler: &Arc<Fake>) -> KernelCache {
    KernelCache::open(&settings(dir, PLENTY), Ok(compiler.clone()))
}

/// Entries, with their folder, in order.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let mut files: Vec<PathBuf> =
        folders.flat_map(|dir| fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn no_compiler() -> Result<Arc<dyn Compiler>, CompileError> {
    Err(CompileError::NoLibrary { reason: "absent in this test".into() })
}

#[test]
fn a_kernel_is_compiled_once_and_then_read() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Fake::new("c1");
    let k = program("k", "source");
    let cache = open(dir.path(), &compiler);
    let compiled = cache.get(&k).unwrap();
    assert_eq!((compiled.origin, &compiled.cubin), (Origin::Compiled, &cubin_of(&k, "c1")));
    assert!(Arc::ptr_eq(&compiled, &cache.get(&k).unwrap()));
    let counters = cache.counters();
    assert_eq!((counters.misses, counters.memory_hits, counters.disk_hits), (1, 1, 0));

    let cache = open(dir.path(), &compiler);
    let read = cache.get(&k).unwrap();
    assert_eq!(
        (read.origin, &read.cubin, &read.functions),
        (Origin::Disk, &compiled.cubin, &compiled.functions)
    );
    assert_eq!((cache.counters().disk_hits, cache.counters().misses, compiler.count()), (1, 0, 1));
    let names: Vec<_> = entries(dir.path()).iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn another_source_or_compiler_is_another_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Fake::new("c1"), Fake::new("c2"));
    for (compiler, text) in [(&first, "a"), (&first, "b"), (&second, "a"), (&second, "b")] {
        let k = program("k", text);
        assert_eq!(open(dir.path(), compiler).get(&k).unwrap().cubin, cubin_of(&k, compiler.identity));
    }
    assert_eq!((first.count(), second.count(), entries(dir.path()).len()), (2, 2, 4));
}

#[test]
fn without_a_compiler_a_kernel_of_the_same_source_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let k = program("k", "a");
    open(dir.path(), &Fake::new("c1")).get(&k).unwrap();
    let cache = KernelCache::open(&settings(dir.path(), PLENTY), no_compiler());
    assert_eq!(cache.get(&k).unwrap().cubin, cubin_of(&k, "c1"));
    let error = cache.get(&program("k", "b")).unwrap_err();
    assert!(matches!(error, KernelError::Compile(CompileError::NoLibrary { .. })), "{error}");
    // A damaged entry beside a good one of another compiler.
    open(dir.path(), &Fake::new("c2")).get(&k).unwrap();
    let newest = entries(dir.path()).into_iter().max_by_key(|p| fs::metadata(p).unwrap().modified().unwrap());
    fs::write(newest.unwrap(), "damaged").unwrap();
    let cache = KernelCache::open(&settings(dir.path(), PLENTY), no_compiler());
    assert_eq!(cache.get(&k).unwrap().cubin, cubin_of(&k, "c1"));
    assert_eq!(entries(dir.path()).len(), 1);
}

#[test]
fn a_compiler_that_refuses_leaves_the_kernel_of_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let k = program("k", "a");
    open(dir.path(), &Fake::new("c1")).get(&k).unwrap();
    let unknown = CompileError::UnknownArch { arch: Arch::Sm90a, version: (11, 0) };
    let older = Arc::new(Fake {
        identity: "c0",
        compiled: AtomicUsize::new(0),
        error: Some(unknown.clone()),
        delay: Duration::ZERO,
    });
    let cache = open(dir.path(), &older);
    let binary = cache.get(&k).unwrap();
    assert_eq!((binary.origin, &binary.cubin), (Origin::Disk, &cubin_of(&k, "c1")));
    assert_eq!((older.count(), cache.counters().disk_hits, cache.counters().misses), (1, 1, 0));
    assert_eq!(cache.get(&program("k", "b")), Err(KernelError::Compile(unknown)));
    // Damaged, it is no kernel.
    fs::write(entries(dir.path()).remove(0), "damaged").unwrap();
    assert!(open(dir.path(), &older).get(&k).is_err());
}

/// One of the ways in which a file of the cache can be wrong.
fn damage(rng: &mut fastrand::Rng, path: &Path, others: &[Vec<u8>]) {
    let mut bytes = fs::read(path).unwrap();
    let original = bytes.clone();
    match rng.u8(0..9) {
        0 => bytes.truncate(rng.usize(0..bytes.len())),
        1 => {
            let bit = rng.usize(0..8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        2 => {
            let (at, value) = (rng.usize(0..bytes.len()), rng.u8(..));
            bytes[at] = value;
        }
        3 => {
            let start = rng.usize(0..bytes.len());
            let end = rng.usize(start..bytes.len()) + 1;
            bytes[start..end].fill(0);
        }
        4 => bytes.extend((0..rng.usize(1..600)).map(|_| rng.u8(..))),
        5 => bytes.clone_from(&others[rng.usize(0..others.len())]),
        6 => {
            // The beginning of this entry with the rest of another.
            let other = &others[rng.usize(0..others.len())];
            let at = rng.usize(0..bytes.len().min(other.len()));
            bytes.truncate(at);
            bytes.extend_from_slice(&other[at..]);
        }
        7 => {
            let length: Vec<u8> = (0..12).map(|_| rng.u8(..)).collect();
            bytes[12..24].copy_from_slice(&length);
        }
        _ => bytes = (0..rng.usize(0..500)).map(|_| rng.u8(..)).collect(),
    }
    if bytes == original {
        bytes.pop();
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_thousand_damaged_entries_never_give_a_wrong_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Fake::new("c1");
    let programs: Vec<Program> = (0..4).map(|i| program("k", &format!("source {i}"))).collect();
    let path_of = |k: &Program| {
        let key = entry::program_key(k);
        dir.path().join("sm_90a").join(entry::file_name("k", &key, &entry::entry_key(&key, "c1")))
    };
    let cache = open(dir.path(), &compiler);
    programs.iter().for_each(|k| drop(cache.get(k).unwrap()));
    let others: Vec<Vec<u8>> = programs[1..].iter().map(|k| fs::read(path_of(k)).unwrap()).collect();
    let mut rng = fastrand::Rng::with_seed(7);
    let k = &programs[0];
    let good = fs::read(path_of(k)).unwrap();
    for round in 0..1000 {
        damage(&mut rng, &path_of(k), &others);
        let cache = open(dir.path(), &compiler);
        assert_eq!(cache.get(k).unwrap().cubin, cubin_of(k, "c1"), "round {round}");
        let counters = cache.counters();
        assert_eq!((counters.rebuilt, counters.disk_hits, counters.misses), (1, 0, 0), "round {round}");
        // Repaired: the notes hold the time of the compilation, the rest is the same.
        assert_eq!(open(dir.path(), &compiler).get(k).unwrap().origin, Origin::Disk, "round {round}");
    }
    assert_eq!(compiler.count(), 4 + 1000);
    assert!(entry::decode(&good, &entry::program_key(k), Some("c1")).is_ok());
}

#[test]
fn threads_that_want_one_kernel_compile_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Arc::new(Fake {
        identity: "c1",
        compiled: AtomicUsize::new(0),
        error: None,
        delay: Duration::from_millis(30),
    });
    let cache = open(dir.path(), &compiler);
    let programs: Vec<Program> = (0..3).map(|i| program("k", &format!("{i}"))).collect();
    std::thread::scope(|scope| {
        for i in 0..16 {
            let (cache, k) = (&cache, &programs[i % 3]);
            scope.spawn(move || assert_eq!(cache.get(k).unwrap().cubin, cubin_of(k, "c1")));
        }
    });
    assert_eq!(compiler.count(), 3);
    assert_eq!((cache.counters().misses, cache.counters().memory_hits), (3, 13));
}

#[test]
fn caches_that_write_and_damage_one_directory_at_once_stay_right() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let dir = dir.path();
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                for _ in 0..30 {
                    let k = program("k", &format!("{}", rng.u8(0..3)));
                    // Each cache is a process of its own: they share the directory alone.
                    let cache = KernelCache::open(&settings(dir, 2500), Ok(Fake::new("c1")));
                    assert_eq!(cache.get(&k).unwrap().cubin, cubin_of(&k, "c1"));
                    if let Some(path) = entries_if_any(dir).into_iter().next().filter(|_| rng.bool()) {
                        let _ = fs::write(path, "damaged");
                    }
                }
            });
        }
    });
    assert!(entries(dir.path()).iter().all(|path| path.extension() == Some("cubin".as_ref())));
}

fn entries_if_any(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("sm_90a")).into_iter().flatten().flatten();
    files.map(|entry| entry.path()).filter(|path| path.extension() == Some("cubin".as_ref())).collect()
}

#[test]
fn the_bound_evicts_the_oldest_entry_that_is_not_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Fake::new("c1");
    let programs: Vec<Program> = (0..4).map(|i| program("k", &format!("{i}"))).collect();
    open(dir.path(), &compiler).get(&programs[0]).unwrap();
    let entry_bytes = fs::metadata(&entries(dir.path())[0]).unwrap().len();
    open(dir.path(), &compiler).get(&programs[1]).unwrap();
    // The first entry is the younger one, as a read of it would leave it.
    for path in entries(dir.path()) {
        let second = fs::read(&path).unwrap().windows(9).any(|w| w == b" 1 [\"--gp");
        let age = Duration::from_secs(if second { 9000 } else { 5000 });
        fs::File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }
    // Notes vary by the digits of a time.
    let room = 2 * entry_bytes + 100;
    let cache = KernelCache::open(&settings(dir.path(), room), Ok(compiler.clone()));
    cache.get(&programs[2]).unwrap();
    assert_eq!((cache.counters().evicted, entries(dir.path()).len()), (1, 2));
    let again = open(dir.path(), &compiler);
    assert_eq!(again.get(&programs[0]).unwrap().origin, Origin::Disk);
    assert_eq!(again.get(&programs[2]).unwrap().origin, Origin::Disk);
    // Both entries are in use now, so a third finds no room and stays in memory, with one warning.
    let cache = KernelCache::open(&settings(dir.path(), room), Ok(compiler.clone()));
    for k in [0, 2, 1, 3].map(|i| &programs[i]) {
        assert_eq!(cache.get(k).unwrap().cubin, cubin_of(k, "c1"));
    }
    assert!(cache.degraded().unwrap().contains("in use"), "{:?}", cache.degraded());
    assert_eq!(cache.counters().disk_hits, 2);
}

#[test]
fn an_entry_in_use_counts_as_new() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Fake::new("c1");
    let k = program("k", "a");
    open(dir.path(), &compiler).get(&k).unwrap();
    let path = entries(dir.path()).remove(0);
    let old = SystemTime::now() - Duration::from_secs(90_000);
    fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    open(dir.path(), &compiler).get(&k).unwrap();
    let age = fs::metadata(&path).unwrap().modified().unwrap().elapsed().unwrap();
    assert!(age < Duration::from_secs(600), "{age:?}");
}

#[test]
fn a_directory_that_cannot_be_used_costs_one_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let open_to_all = dir.path().join("open");
    fs::create_dir(&open_to_all).unwrap();
    fs::set_permissions(&open_to_all, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // /proc/self/fd is a folder in which nothing can be made, not even by root.
    for (path, expected) in [
        (dir.path().join("absent"), "does not exist"),
        (file, "not a folder"),
        (open_to_all, "every user"),
        (PathBuf::from("/proc/self/task"), "cannot be written"),
    ] {
        let compiler = Fake::new("c1");
        let cache = open(&path, &compiler);
        for text in ["a", "b", "a"] {
            let k = program("k", text);
            assert_eq!(cache.get(&k).unwrap().cubin, cubin_of(&k, "c1"));
        }
        assert_eq!(compiler.count(), 2);
        assert!(
            cache.degraded().is_some_and(|reason| reason.contains(expected)),
            "{path:?}: {:?}",
            cache.degraded()
        );
    }
}

#[test]
fn an_absent_directory_is_made_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let settings = CacheSettings { create: true, ..settings(&path, PLENTY) };
    let cache = KernelCache::open(&settings, Ok(Fake::new("c1")));
    cache.get(&program("k", "a")).unwrap();
    assert_eq!((cache.degraded(), entries(&path).len()), (None, 1));
}

#[test]
fn a_full_disk_leaves_no_part_of_a_file() {
    use std::io::{Error, ErrorKind, Write};
    let dir = tempfile::tempdir().unwrap();
    let directory = Directory::open(dir.path(), PLENTY, false).unwrap().with_writer(|file, bytes| {
        file.write_all(&bytes[..bytes.len() / 2])?;
        Err(Error::from(ErrorKind::StorageFull))
    });
    let compiler = Fake::new("c1");
    let cache = KernelCache::with_directory(Some(directory), Ok(compiler.clone()));
    for text in ["a", "b"] {
        let k = program("k", text);
        assert_eq!(cache.get(&k).unwrap().cubin, cubin_of(&k, "c1"));
    }
    assert!(cache.degraded().unwrap().contains("no storage space"), "{:?}", cache.degraded());
    assert_eq!(entries(dir.path()), [] as [PathBuf; 0]);
}

#[test]
fn after_the_freeze_a_compilation_is_an_error_that_names_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Fake::new("c1");
    let (loaded, stored, new) = (program("k", "a"), program("k", "b"), program("mla_decode", "c"));
    open(dir.path(), &compiler).get(&stored).unwrap();
    let cache = open(dir.path(), &compiler);
    cache.get(&loaded).unwrap();
    cache.freeze();
    assert!(cache.get(&loaded).is_ok());
    assert_eq!(cache.get(&stored).unwrap().origin, Origin::Disk);
    let error = cache.get(&new).unwrap_err();
    assert_eq!(error, KernelError::Frozen { kernel: "mla_decode".into(), arch: Arch::Sm90a });
    let text = error.to_string();
    assert!(text.contains("mla_decode") && text.contains("sm_90a"), "{text}");
    assert_eq!(compiler.count(), 2);
}

#[test]
fn a_refused_program_is_compiled_once_and_stored_never() {
    let dir = tempfile::tempdir().unwrap();
    let k = program("k", "a");
    let refused =
        CompileError::Refused { kernel: "k".into(), arch: Arch::Sm90a, log: "k.cu(3): error".into() };
    let compiler = Arc::new(Fake {
        identity: "c1",
        compiled: AtomicUsize::new(0),
        error: Some(refused.clone()),
        delay: Duration::ZERO,
    });
    let cache = open(dir.path(), &compiler);
    for _ in 0..3 {
        assert_eq!(cache.get(&k), Err(KernelError::Compile(refused.clone())));
    }
    assert_eq!((compiler.count(), cache.counters().memory_hits), (1, 0));
    assert!(entries_if_any(dir.path()).is_empty());
}
