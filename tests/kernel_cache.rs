//! The kernel cache between processes, and on volumes that a process must not write to.

use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use perigee_cuda::{
    Arch, CacheSettings, CompileError, Compiled, Compiler, FunctionUsage, KernelCache, Origin, Program,
    kernels,
};

/// Directory of a process of a test.
const DIR: &str = "KERNEL_CACHE_TEST_DIR";
/// Entries that a process of a test asks for.
const PROGRAMS: usize = 6;

/// A compiler whose result tells which program it was made of.
struct Fake;

impl Compiler for Fake {
    fn identity(&self) -> Result<String, CompileError> {
        Ok("fake".into())
    }

    fn compile(&self, program: &Program) -> Result<Compiled, CompileError> {
        Ok(Compiled {
            cubin: cubin_of(program),
            ptx: String::new(),
            functions: vec![FunctionUsage { name: "f".into(), ..FunctionUsage::default() }],
            log: String::new(),
            duration: Duration::ZERO,
        })
    }
}

fn cubin_of(program: &Program) -> Vec<u8> {
    program.text.repeat(50).into_bytes()
}

fn program(number: usize) -> Program {
    let mut program = Program::new(&kernels::rms_norm::KERNEL, Arch::Sm90a).unwrap();
    program.text = format!("source {number}");
    program
}

fn cache(dir: &Path, max_bytes: u64) -> KernelCache {
    let settings = CacheSettings { dir: Some(dir.to_owned()), max_bytes, create: false };
    KernelCache::open(&settings, Ok(Arc::new(Fake)))
}

/// Gets every program through caches of its own, while another process does the same and both damage entries.
#[test]
#[ignore = "a process of processes_that_share_a_directory"]
fn a_process_that_shares_a_directory() {
    let dir = env::var_os(DIR).expect("the parent names a directory");
    let dir = Path::new(&dir);
    let mut rng = fastrand::Rng::with_seed(u64::from(std::process::id()));
    for _ in 0..100 {
        // The bound holds four of the six entries: both processes evict as well.
        let cache = cache(dir, 4 * 1200);
        for number in 0..PROGRAMS {
            let program = program(number);
            assert_eq!(cache.get(&program).unwrap().cubin, cubin_of(&program));
        }
        let entries: Vec<_> = fs::read_dir(dir.join("sm_90a")).into_iter().flatten().flatten().collect();
        if let Some(entry) = rng.choice(entries) {
            let length = entry.metadata().map_or(0, |meta| meta.len());
            let file = fs::File::options().write(true).open(entry.path());
            let _ = file.and_then(|file| file.set_len(rng.u64(0..=length)));
        }
    }
}

/// The test binary again, for one ignored test.
fn process(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("kernel_cache::{test}"), "--ignored", "--nocapture"]).env(DIR, dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn processes_that_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> =
        (0..2).map(|_| process("a_process_that_shares_a_directory", dir.path()).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    let names: Vec<_> =
        fs::read_dir(dir.path().join("sm_90a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().ends_with(".partial")), "{names:?}");
    let cache = cache(dir.path(), 1 << 20);
    for number in 0..PROGRAMS {
        let program = program(number);
        assert_eq!(cache.get(&program).unwrap().cubin, cubin_of(&program));
    }
}

/// User id that owns nothing.
const NOBODY: u32 = 65_534;

/// As an ordinary user: a directory of root's with a good and a damaged entry, and a directory of a stranger's.
#[test]
#[ignore = "a process of directories_of_other_users_are_left_alone"]
fn a_process_of_another_user() {
    let dir = env::var_os(DIR).expect("the parent names a directory");
    let dir = Path::new(&dir);
    let cache = |name: &str| cache(&dir.join(name), 1 << 20);
    let readable = cache("of_root");
    for (number, origin) in [(0, Origin::Disk), (1, Origin::Compiled), (2, Origin::Compiled)] {
        let binary = readable.get(&program(number)).unwrap();
        assert_eq!((binary.origin, &binary.cubin), (origin, &cubin_of(&program(number))));
    }
    assert!(readable.degraded().unwrap().contains("cannot be written"), "{:?}", readable.degraded());
    let foreign = cache("of_a_stranger");
    assert_eq!(foreign.get(&program(0)).unwrap().origin, Origin::Compiled);
    assert!(foreign.degraded().unwrap().contains("belongs to user 1234"), "{:?}", foreign.degraded());
}

#[test]
fn directories_of_other_users_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    if fs::metadata(dir.path()).unwrap().uid() != 0 {
        println!("skipped: needs root, to give folders away and to start a process of another user");
        return;
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["of_root", "of_a_stranger"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        let cache = cache(&dir.path().join(name), 1 << 20);
        cache.get(&program(0)).unwrap();
        cache.get(&program(1)).unwrap();
        assert_eq!(cache.degraded(), None);
    }
    let entries = |name: &str| fs::read_dir(dir.path().join(name).join("sm_90a")).unwrap();
    for entry in entries("of_root").map(|entry| entry.unwrap().path()) {
        let bytes = fs::read(&entry).unwrap();
        if bytes.windows(8).any(|w| w == b"source 1") {
            fs::write(&entry, &bytes[..bytes.len() - 1]).unwrap();
        }
    }
    chown(dir.path().join("of_a_stranger"), Some(1234), Some(1234)).unwrap();
    // The test binary may lie where only root can read it.
    let copy = dir.path().join("test");
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "kernel_cache::a_process_of_another_user", "--ignored", "--nocapture"])
        .env(DIR, dir.path())
        .current_dir(dir.path())
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(entries("of_root").count(), 2);
}
