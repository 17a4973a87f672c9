//! The code that drives a GPU, over a made-up libcuda (`libcuda.c`) that does its work as late as it may and ends the
//! process where it is used wrongly.
//!
//! libcuda is opened once per process, so each test runs its body in a process of its own. Without a C compiler these
//! tests print that they were skipped.

mod boot;
mod cublaslt;
mod doctor;
mod gpus;

use std::env;
use std::ffi::{CStr, c_int, c_long};
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use perigee_cuda::{
    Arch, CacheSettings, CompileError, Compiled, Compiler, Device, Driver, DriverError, FunctionUsage,
    Hardware, Installation, KernelCache, LaunchShape, LaunchTime, LaunchTimes, PeerAccess, Program, kernels,
};

/// Set in the process of a test's body.
const INSIDE: &str = "PERIGEE_TEST_MADE_UP_CUDA";

/// Builds the made-up library of `source` in a folder for LD_LIBRARY_PATH; `None` without a C compiler.
fn made_up(folder: &Path, source: &str, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hardware").join(source);
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]).arg(folder.join(name)).arg(source);
    match compiler.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}");
            Some(folder.to_owned())
        }
        Err(_) => {
            println!("skipped: no C compiler");
            None
        }
    }
}

/// Runs `body` in a process whose libcuda is the made-up one. `name` is the test's.
fn with_driver(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&Fake)) {
    if env::var_os(INSIDE).is_some() {
        return body(&Fake::open());
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(folder) = made_up(dir.path(), "libcuda.c", "libcuda.so.1") else { return };
    run_inside(name, &folder, variables);
}

/// Runs a test again, in a process that finds its libraries in `folder`.
fn run_inside(name: &str, folder: &Path, variables: &[(&str, &str)]) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("hardware::{name}"), "--nocapture", "--include-ignored"])
        .env("LD_LIBRARY_PATH", folder)
        .env(INSIDE, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    print!("{text}");
}

/// The made-up library's own functions.
struct Fake {
    fail: unsafe extern "C" fn(c_long, c_int, c_int),
    calls: unsafe extern "C" fn() -> c_long,
    live: unsafe extern "C" fn() -> c_long,
    launches: unsafe extern "C" fn() -> c_long,
    launch: unsafe extern "C" fn(c_long) -> *const Launch,
}

/// A kernel that was launched.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    bytes: u32,
    dependent: u32,
    name: [u8; 64],
    parameters: [u8; 4096],
}

impl Fake {
    fn open() -> Self {
        let address = |name: &CStr| {
            // SAFETY: the library has no constructors, and stays open.
            let address = unsafe {
                let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
                assert!(!library.is_null());
                libc::dlsym(library, name.as_ptr())
            };
            assert!(!address.is_null(), "{name:?}");
            address
        };
        // SAFETY: the types are those of libcuda.c.
        unsafe {
            Self {
                fail: mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(c_long, c_int, c_int)>(
                    address(c"fake_fail"),
                ),
                calls: mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_long>(address(
                    c"fake_calls",
                )),
                live: mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_long>(address(
                    c"fake_live",
                )),
                launches: mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_long>(address(
                    c"fake_launches",
                )),
                launch: mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(c_long) -> *const Launch>(
                    address(c"fake_launch"),
                ),
            }
        }
    }

    /// The n-th call from now fails; with `on`, all later ones too. 0: none.
    fn fail(&self, n: i64, code: i32, on: bool) {
        // SAFETY: sets numbers; no other thread uses the library now.
        unsafe { (self.fail)(n as c_long, code, on.into()) }
    }

    /// Calls since [`Fake::fail`].
    fn calls(&self) -> i64 {
        // SAFETY: as above.
        unsafe { (self.calls)() }
    }

    /// Objects that were made and not destroyed.
    fn live(&self) -> i64 {
        // SAFETY: as above.
        unsafe { (self.live)() }
    }

    fn launches(&self) -> Vec<&Launch> {
        // SAFETY: the library keeps the last 256 launches, which no test exceeds.
        unsafe { (0..(self.launches)()).map(|n| &*(self.launch)(n)).collect() }
    }
}

/// A compiler whose CUBINs the made-up driver reads.
struct Lines;

impl Compiler for Lines {
    fn identity(&self) -> Result<String, CompileError> {
        Ok("lines".into())
    }

    fn compile(&self, program: &Program) -> Result<Compiled, CompileError> {
        Ok(Compiled {
            cubin: format!("{}\0", program.text).into_bytes(),
            ptx: String::new(),
            functions: vec![FunctionUsage { name: "add".into(), ..FunctionUsage::default() }],
            log: String::new(),
            duration: Duration::ZERO,
        })
    }
}

fn program(text: &str) -> Program {
    let mut program = Program::new(&kernels::rms_norm::KERNEL, Arch::Sm90a).unwrap();
    program.text = text.into();
    program
}

/// Name, parameter bytes, static shared bytes, local bytes.
const KERNELS: &str = "\x7fELF\nadd 16 0 0\nbig 16 1024 0\nlocal 16 0 8\nnone 0 0 0\n";

/// As the probe gives it, without the calls.
fn device() -> Device {
    Device {
        ordinal: 0,
        name: "Made-up GPU 0".into(),
        uuid: Some("GPU-10101010-1010-1010-1010-101010101010".into()),
        capability: (9, 0),
        memory_bytes: 1 << 30,
    }
}

fn cache() -> Arc<KernelCache> {
    let settings = CacheSettings { dir: None, max_bytes: 0, create: false };
    Arc::new(KernelCache::open(&settings, Ok(Arc::new(Lines))))
}

fn open() -> Result<Hardware, DriverError> {
    Hardware::open(&device(), cache())
}

/// Bytes that differ from their neighbours at any distance of a power of two.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut content = vec![0; bytes];
    rng.fill(&mut content);
    content
}

fn read(hardware: &mut Hardware, from: u64, bytes: usize) -> Result<Vec<u8>, DriverError> {
    let mut content = Vec::new();
    let transfer = hardware.download(from, bytes)?;
    hardware.finish(transfer, &mut content)?;
    Ok(content)
}

/// Parameters of the kernel that adds to bytes.
fn add(address: u64, count: u32, value: u32) -> Vec<u8> {
    [&address.to_ne_bytes()[..], &count.to_ne_bytes(), &value.to_ne_bytes()].concat()
}

const SHAPE: LaunchShape = LaunchShape { grid: [1, 1, 1], threads: 32, shared_bytes: 0 };

#[test]
fn bytes_of_any_size_come_back() {
    with_driver("bytes_of_any_size_come_back", &[], |fake| {
        let mut hardware = open().unwrap();
        let (mib, ring) = (1 << 20, 64 << 20);
        for bytes in [1, 255, 256, 257, mib - 1, mib, mib + 1, 16 * mib + 1, ring, ring + 3, 200_000_001] {
            let content = pattern(bytes, bytes as u64);
            let to = hardware.allocate(bytes).unwrap();
            hardware.upload(to, &content).unwrap();
            assert!(read(&mut hardware, to, bytes).unwrap() == content, "{bytes} bytes");
        }
        // Three laps of the ring before anything is waited for, by uploads of all sizes.
        let content = pattern(192 << 20, 1);
        let to = hardware.allocate(content.len()).unwrap();
        let mut rng = fastrand::Rng::with_seed(2);
        let mut at = 0;
        while at < content.len() {
            let most = 1 << rng.u32(1..=22);
            let bytes = rng.usize(1..=most).min(content.len() - at);
            let mut piece = content[at..at + bytes].to_vec();
            hardware.upload(to + at as u64, &piece).unwrap();
            // The caller's bytes may change at once.
            piece.fill(0);
            at += bytes;
        }
        assert!(read(&mut hardware, to, content.len()).unwrap() == content);
        drop(hardware);
        assert_eq!(fake.live(), 0);
    });
}

#[test]
fn downloads_have_the_bytes_of_their_place_in_the_stream() {
    with_driver("downloads_have_the_bytes_of_their_place_in_the_stream", &[], |fake| {
        let mut hardware = open().unwrap();
        let to = hardware.allocate(100_000).unwrap();
        let contents: Vec<Vec<u8>> = (0..6)
            .map(|seed| pattern(1 << (3 * seed), seed))
            .map(|c| c[..c.len().min(100_000)].into())
            .collect();
        // In flight at once, in buffers of several sizes, and again in the same buffers.
        for _ in 0..3 {
            let mut transfers = Vec::new();
            for content in &contents {
                hardware.upload(to, content).unwrap();
                transfers.push(hardware.download(to, content.len()).unwrap());
                hardware.zero(to, content.len()).unwrap();
            }
            for (at, (transfer, content)) in transfers.iter().zip(&contents).enumerate() {
                if at == 2 {
                    // Dropped by the finish of a later one.
                    continue;
                }
                let mut found = b"before".to_vec();
                hardware.finish(*transfer, &mut found).unwrap();
                assert!(found[..6] == *b"before" && found[6..] == **content, "download {at}");
            }
            for transfer in transfers {
                let error = hardware.finish(transfer, &mut Vec::new()).unwrap_err();
                assert!(!error.fatal && error.text.contains("not in flight"), "{error}");
            }
        }
        assert!(read(&mut hardware, to, 0).unwrap().is_empty());
        assert!(read(&mut hardware, to, 100_000).unwrap()[..1 << 15].iter().all(|byte| *byte == 0));
        let left = hardware.download(to, 10).unwrap();
        let live = fake.live();
        drop(hardware);
        assert!(live > 0 && left.0 > 0 && fake.live() == 0);
    });
}

#[test]
fn many_large_downloads_take_64_mib_of_pinned_memory() {
    with_driver("many_large_downloads_take_64_mib_of_pinned_memory", &[], |fake| {
        let mut hardware = open().unwrap();
        let to = hardware.allocate(4_500_000).unwrap();
        // Twice: in new buffers and in the same ones.
        for round in 0..2 {
            let before = fake.live();
            let contents: Vec<Vec<u8>> = (0..32).map(|seed| pattern(4_500_000, 100 * round + seed)).collect();
            let mut transfers = vec![hardware.download(to, 10).unwrap()];
            for content in &contents {
                hardware.upload(to, content).unwrap();
                transfers.push(hardware.download(to, content.len()).unwrap());
            }
            // Fourteen buffers and one of 64 KiB, an event each.
            assert_eq!(fake.live() - before, if round == 0 { 2 * 15 } else { 0 });
            for (at, (transfer, content)) in transfers[1..].iter().zip(&contents).enumerate() {
                if at % 3 == 2 {
                    // Dropped by the finish of a later one.
                    continue;
                }
                let mut found = Vec::new();
                hardware.finish(*transfer, &mut found).unwrap();
                assert!(found == *content, "download {at}");
            }
            for transfer in transfers {
                assert!(hardware.finish(transfer, &mut Vec::new()).is_err_and(|error| !error.fatal));
            }
        }
        drop(hardware);
        assert_eq!(fake.live(), 0);
    });
}

#[test]
fn a_launch_depends_on_a_kernel_in_front_of_it() {
    with_driver("a_launch_depends_on_a_kernel_in_front_of_it", &[], |fake| {
        for on in [true, false] {
            let mut hardware = open().unwrap().dependent(on);
            let module = hardware.load(&program(KERNELS)).unwrap();
            let function = hardware.function(&module, "add", 0).unwrap();
            let to = hardware.allocate(1000).unwrap();
            let parameters = add(to, 50, 3);
            let before = fake.launches().len();
            let launch = |hardware: &mut Hardware| hardware.launch(&function, &SHAPE, &parameters).unwrap();
            hardware.zero(to, 1000).unwrap();
            (0..3).for_each(|_| launch(&mut hardware));
            // Behind a copy, an event and a replay there is no kernel to wait for; a recording has kernels of its own.
            hardware.upload(to + 100, &[7; 100]).unwrap();
            (0..2).for_each(|_| launch(&mut hardware));
            hardware.begin_capture().unwrap();
            (0..2).for_each(|_| launch(&mut hardware));
            let graph = hardware.end_capture().unwrap();
            launch(&mut hardware);
            hardware.replay(&graph).unwrap();
            (0..2).for_each(|_| launch(&mut hardware));
            hardware.order_next_launch();
            launch(&mut hardware);
            let seen: Vec<u32> = fake.launches()[before..].iter().map(|launch| launch.dependent).collect();
            let expected = [0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0].map(|dependent| if on { dependent } else { 0 });
            assert_eq!(seen, expected);
            assert_eq!(read(&mut hardware, to, 1).unwrap(), [33]);
        }
        let other = Device { capability: (8, 9), ..device() };
        let mut hardware = Hardware::open(&other, cache()).unwrap().dependent(true);
        let module = hardware.load(&program(KERNELS)).unwrap();
        let function = hardware.function(&module, "add", 0).unwrap();
        let to = hardware.allocate(1000).unwrap();
        for _ in 0..2 {
            hardware.launch(&function, &SHAPE, &add(to, 50, 3)).unwrap();
            assert_eq!(fake.launches().last().unwrap().dependent, 0, "no such launches before 9.0");
        }
    });
}

/// The driver is asked once for each function, and only where there is a preference.
#[test]
fn a_function_prefers_the_share_of_shared_memory_that_is_set() {
    with_driver("a_function_prefers_the_share_of_shared_memory_that_is_set", &[], |fake| {
        let calls = |percent| {
            let mut hardware = open().unwrap().sharing(percent);
            let module = hardware.load(&program(KERNELS)).unwrap();
            fake.fail(0, 0, false);
            hardware.function(&module, "add", 0).unwrap();
            fake.calls()
        };
        assert_eq!(calls(Some(100)), calls(None) + 1);
    });
}

#[test]
fn launches_arrive_as_given() {
    with_driver("launches_arrive_as_given", &[], |fake| {
        let mut hardware = open().unwrap();
        assert_eq!(
            (hardware.arch(), hardware.multiprocessors(), hardware.name()),
            (Arch::Sm90a, 132, "cuda")
        );
        let module = hardware.load(&program(KERNELS)).unwrap();
        let function = hardware.function(&module, "add", 0).unwrap();
        let to = hardware.allocate(1000).unwrap();
        hardware.zero(to, 1000).unwrap();
        hardware.upload(to + 10, &[7; 100]).unwrap();
        let shape = LaunchShape { grid: [3, 2, 5], threads: 96, shared_bytes: 48 << 10 };
        let parameters = add(to, 50, 3);
        hardware.launch(&function, &shape, &parameters).unwrap();
        let seen = fake.launches();
        assert_eq!((seen.len(), seen[0].grid, seen[0].threads, seen[0].shared), (1, [3, 2, 5], 96, 48 << 10));
        assert_eq!(seen[0].parameters[..seen[0].bytes as usize], parameters);
        assert!(seen[0].name.starts_with(b"add\0"));
        // In the order of the stream: after the upload, before the next one.
        hardware.upload(to, &[1]).unwrap();
        let content = read(&mut hardware, to, 1000).unwrap();
        let expected: Vec<u8> = (0..1000)
            .map(|at| if (10..110).contains(&at) { 7 } else { 0 } + if (1..50).contains(&at) { 3 } else { 0 })
            .collect();
        assert_eq!((content[0], &content[1..]), (1, &expected[1..]));

        // More shared memory than a kernel has without asking, of which a part is static.
        let big = hardware.function(&module, "big", 48 << 10).unwrap();
        hardware.launch(&big, &shape, &parameters).unwrap();
        let none = hardware.function(&module, "none", 0).unwrap();
        hardware.launch(&none, &SHAPE, &[]).unwrap();
        // Refused, and the device stays usable.
        let refused = |result: Result<(), DriverError>, code: i32, text: &str| {
            let error = result.unwrap_err();
            assert!(error.code == code && error.text.contains(text) && !error.fatal, "{error}");
        };
        refused(hardware.launch(&function, &SHAPE, &parameters[..15]), 1, "15 bytes of parameters");
        refused(hardware.launch(&none, &SHAPE, &parameters), 1, "kernel has 0");
        let shape = LaunchShape { shared_bytes: (48 << 10) + 1, ..SHAPE };
        refused(hardware.launch(&function, &shape, &parameters), 1, "");
        refused(hardware.function(&module, "big", 232_448).map(drop), 1, "big");
        refused(hardware.function(&module, "absent", 0).map(drop), 500, "absent");
        refused(hardware.function(&module, "a\0b", 0).map(drop), 1, "");
        refused(hardware.function(&module, "local", 0).map(drop), 200, "8 bytes of local memory");
        refused(hardware.load(&program("add 16 0 0")).map(drop), 200, "no CUBIN");
        let mut with_local = program(KERNELS);
        with_local.limits.local_memory = true;
        let module = hardware.load(&with_local).unwrap();
        hardware.function(&module, "local", 0).unwrap();
        // Addresses outside of an allocation never reach the driver.
        let before = fake.calls();
        refused(hardware.upload(to + 999, &[1, 2]), 1, "not in one allocation");
        refused(hardware.upload(to - 1, &[1]), 1, "not in one allocation");
        refused(hardware.zero(0, 1), 1, "not in one allocation");
        refused(hardware.copy(to + 998, to, 3), 1, "not in one allocation");
        refused(hardware.copy(to, to + 998, 3), 1, "not in one allocation");
        refused(hardware.end_timing().map(drop), 1, "nothing is being timed");
        refused(hardware.download(u64::MAX, usize::MAX).map(drop), 1, "not in one allocation");
        assert_eq!(fake.calls(), before);
        drop(hardware);
        assert_eq!(fake.live(), 0);
    });
}

/// What waits would wait for ever, and what is dropped too.
#[test]
fn a_kernel_that_never_ends_is_an_error() {
    with_driver("a_kernel_that_never_ends_is_an_error", &[("FAKE_HANG", "1")], |fake| {
        let mut hardware = open().unwrap().patient_for(Duration::from_millis(2));
        let to = hardware.allocate(16).unwrap();
        let module = hardware.load(&program(KERNELS)).unwrap();
        let function = hardware.function(&module, "add", 0).unwrap();
        hardware.launch(&function, &SHAPE, &add(to, 16, 1)).unwrap();
        let error = read(&mut hardware, to, 16).unwrap_err();
        assert!(
            error.fatal && error.code == 702 && error.text.contains("not ended its work in 0.002 s"),
            "{error}"
        );
        let before = fake.calls();
        drop(hardware);
        assert_eq!(fake.calls(), before, "nothing is freed that runs");
    });
}

#[test]
fn a_block_has_the_shared_memory_of_its_chip() {
    for capability in ["80", "89", "100", "120"] {
        with_driver("a_block_has_the_shared_memory_of_its_chip", &[("FAKE_CAPABILITY", capability)], |_| {
            let device = Installation::probe().unwrap().devices.remove(0);
            let most = device.arch().unwrap().max_shared_bytes() - 1024;
            let mut hardware = Hardware::open(&device, cache()).unwrap();
            let module = hardware.load(&program(KERNELS)).unwrap();
            hardware.function(&module, "big", most).unwrap();
            let error = hardware.function(&module, "big", most + 1).map(drop).unwrap_err();
            assert!(error.code == 1 && error.text.starts_with("big: "), "{error}");
        });
    }
}

#[test]
fn recorded_launches_run_at_each_replay() {
    with_driver("recorded_launches_run_at_each_replay", &[], |fake| {
        let mut hardware = open().unwrap();
        let module = hardware.load(&program(KERNELS)).unwrap();
        let function = hardware.function(&module, "add", 0).unwrap();
        let to = hardware.allocate(4).unwrap();
        hardware.upload(to, &[0; 4]).unwrap();
        hardware.begin_capture().unwrap();
        hardware.launch(&function, &SHAPE, &add(to, 4, 1)).unwrap();
        // Not recorded, and without harm to the recording.
        let error = |result: Result<(), DriverError>| assert_eq!(result.unwrap_err().code, 900);
        error(hardware.allocate(1).map(drop));
        error(hardware.upload(to, &[9]));
        error(hardware.zero(to, 1));
        error(hardware.download(to, 1).map(drop));
        error(hardware.load(&program(KERNELS)).map(drop));
        error(hardware.function(&module, "add", 0).map(drop));
        error(hardware.begin_capture());
        error(hardware.copy(to, to + 2, 1));
        error(hardware.begin_timing());
        error(hardware.end_timing().map(drop));
        hardware.launch(&function, &SHAPE, &add(to + 1, 2, 10)).unwrap();
        let graph = hardware.end_capture().unwrap();
        assert_eq!(read(&mut hardware, to, 4).unwrap(), [0; 4], "recorded launches have not run");
        hardware.replay(&graph).unwrap();
        hardware.upload(to + 3, &[100]).unwrap();
        hardware.replay(&graph).unwrap();
        assert_eq!(read(&mut hardware, to, 4).unwrap(), [2, 22, 22, 101]);
        assert_eq!(fake.launches().len(), 4);
        assert!(hardware.end_capture().is_err_and(|error| !error.fatal));
        // The driver gives a recording up with a failed launch; the next one is whole.
        hardware.begin_capture().unwrap();
        fake.fail(1, 1, false);
        assert!(hardware.launch(&function, &SHAPE, &add(to, 4, 1)).is_err_and(|error| error.code == 1));
        assert!(hardware.end_capture().is_err_and(|error| error.code == 901 && !error.fatal));
        hardware.begin_capture().unwrap();
        let empty = hardware.end_capture().unwrap();
        hardware.replay(&empty).unwrap();
        drop(empty);
        let live = fake.live();
        drop(graph);
        assert_eq!(fake.live(), live - 1);
        // Dropped in the midst of a recording, before the graph and the module.
        hardware.begin_capture().unwrap();
        hardware.launch(&function, &SHAPE, &add(to, 4, 1)).unwrap();
        let graph = hardware.end_capture().unwrap();
        hardware.begin_capture().unwrap();
        drop(hardware);
        assert!(fake.live() > 0, "the graph keeps its context and module");
        drop(graph);
        assert_eq!(fake.live(), 0);
    });
}

/// The made-up driver's kernels and copies take a millisecond each.
#[test]
fn launches_are_measured_where_they_run() {
    with_driver("launches_are_measured_where_they_run", &[], |fake| {
        let times = Arc::<LaunchTimes>::default();
        let mut hardware = open().unwrap().measuring(times.clone());
        let module = hardware.load(&program(KERNELS)).unwrap();
        let function = hardware.function(&module, "add", 0).unwrap();
        let other = hardware.function(&module, "big", 0).unwrap();
        let to = hardware.allocate(100).unwrap();
        let launch = |hardware: &mut Hardware, function| {
            hardware.launch(function, &SHAPE, &add(to, 4, 1)).unwrap();
        };
        let take = || -> Vec<(bool, String, u64, f64)> {
            let line =
                |time: LaunchTime| (time.recorded, time.kernel, time.launches, (time.seconds * 1e3).round());
            times.take().into_iter().map(line).collect()
        };
        hardware.zero(to, 100).unwrap();
        launch(&mut hardware, &function);
        launch(&mut hardware, &other);
        // The copy is no part of the launch behind it.
        hardware.upload(to + 50, &[1; 8]).unwrap();
        launch(&mut hardware, &function);
        assert_eq!(take(), [], "the work has not been waited for");
        assert_eq!(read(&mut hardware, to, 1).unwrap(), [2]);
        assert_eq!(take(), [(false, "add".into(), 2, 2.0), (false, "big".into(), 1, 1.0)]);
        hardware.begin_capture().unwrap();
        (0..3).for_each(|_| launch(&mut hardware, &function));
        let graph = hardware.end_capture().unwrap();
        launch(&mut hardware, &other);
        (0..2).for_each(|_| hardware.replay(&graph).unwrap());
        assert_eq!(take(), [(false, "big".into(), 1, 1.0), (true, "add".into(), 6, 6.0)]);
        assert_eq!(read(&mut hardware, to, 1).unwrap(), [8]);
        // More than are kept at once.
        (0..5000).for_each(|_| launch(&mut hardware, &function));
        assert!(fake.live() < 4200, "{}", fake.live());
        assert_eq!(read(&mut hardware, to + 99, 1).unwrap(), [0]);
        assert_eq!(take(), [(false, "add".into(), 5000, 5000.0)]);
        drop((hardware, graph));
        assert_eq!(fake.live(), 0);
    });
}

/// Every kind of call.
fn everything() -> Result<(), DriverError> {
    let mut hardware = open()?;
    hardware.free_bytes()?;
    let to = hardware.allocate(17 << 20)?;
    hardware.zero(to, 100)?;
    let content = vec![3; 17 << 20];
    hardware.upload(to, &content)?;
    let early = hardware.download(to, 10)?;
    let large = hardware.download(to, 100_000)?;
    hardware.finish(early, &mut Vec::new())?;
    hardware.finish(large, &mut Vec::new())?;
    let module = hardware.load(&program(KERNELS))?;
    let function = hardware.function(&module, "add", 0)?;
    hardware.function(&module, "big", 100_000)?;
    hardware.launch(&function, &SHAPE, &add(to, 4, 1))?;
    hardware.begin_capture()?;
    hardware.launch(&function, &SHAPE, &add(to, 4, 1))?;
    let graph = hardware.end_capture()?;
    hardware.begin_timing()?;
    hardware.replay(&graph)?;
    hardware.copy(to + 8, to, 4)?;
    assert_eq!(hardware.end_timing()?, Duration::from_millis(2));
    assert_eq!(read(&mut hardware, to, 12)?, [5, 5, 5, 5, 3, 3, 3, 3, 5, 5, 5, 5]);
    hardware.download(to, 1 << 20)?;
    Ok(())
}

#[test]
fn a_call_that_fails_is_an_error_and_leaves_nothing_behind() {
    with_driver("a_call_that_fails_is_an_error_and_leaves_nothing_behind", &[], |fake| {
        fake.fail(0, 0, false);
        everything().unwrap();
        let calls = fake.calls();
        assert!(calls > 55 && fake.live() == 0, "{calls}");
        let mut errors = 0;
        for (code, fatal, on) in [(2, false, false), (719, true, false), (719, true, true)] {
            for n in 1..=calls {
                fake.fail(n, code, on);
                // Errors of the drop are not reported.
                if let Err(error) = everything() {
                    assert_eq!((error.code, error.fatal), (code, fatal), "call {n}: {error}");
                    assert!(error.text.contains("CUDA_ERROR_"), "call {n}: {error}");
                    errors += 1;
                }
                fake.fail(0, 0, false);
                assert_eq!(fake.live(), 0, "call {n}");
            }
        }
        assert!(errors > 3 * 45, "{errors} of {calls} calls");
        fake.fail(1, 98_765, false);
        let error = open().map(drop).unwrap_err();
        assert!(error.to_string().contains("98765: the driver has no text"), "{error}");
    });
}

#[test]
fn without_memory_the_device_stays_usable() {
    with_driver("without_memory_the_device_stays_usable", &[], |fake| {
        let mut hardware = open().unwrap();
        let free = hardware.free_bytes().unwrap();
        assert_eq!(free, 1 << 30);
        let error = hardware.allocate((1 << 30) + 1).unwrap_err();
        assert_eq!((error.call, error.code, error.fatal), ("cuMemAlloc_v2", 2, false));
        assert_eq!(error.text, "CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
        assert_eq!(hardware.allocate(0).unwrap_err().code, 1);
        let to = hardware.allocate(hardware.arena_bytes()).unwrap();
        assert_eq!(hardware.free_bytes().unwrap(), free - hardware.arena_bytes() as u64);
        hardware.upload(to, b"abc").unwrap();
        assert_eq!(read(&mut hardware, to, 3).unwrap(), b"abc");
        drop(hardware);
        assert_eq!(fake.live(), 0);
    });
}

#[test]
fn devices_are_driven_from_any_thread() {
    let name = "devices_are_driven_from_any_thread";
    with_driver(name, &[("FAKE_DEVICES", "2")], |fake| {
        let devices = Installation::probe().unwrap().devices;
        assert_eq!(devices[0], device());
        // Both on one thread, in turns.
        let mut opened: Vec<(Hardware, u64)> = devices
            .iter()
            .map(|device| {
                let mut hardware = Hardware::open(device, cache()).unwrap();
                let to = hardware.allocate(100).unwrap();
                (hardware, to)
            })
            .collect();
        for round in 0..3u8 {
            for (hardware, to) in &mut opened {
                hardware.upload(*to, &[round; 100]).unwrap();
                assert_eq!(read(hardware, *to, 100).unwrap(), [round; 100]);
            }
        }
        // Each on a thread of its own, one after the other, and back; dropped on either.
        let mut back = Vec::new();
        for (mut hardware, to) in opened {
            let thread = std::thread::spawn(move || {
                assert_eq!(read(&mut hardware, to, 100).unwrap(), [2; 100]);
                hardware.upload(to, &[5; 100]).unwrap();
                (hardware, to)
            });
            back.push(thread.join().unwrap());
        }
        for (hardware, to) in &mut back {
            assert_eq!(read(hardware, *to, 100).unwrap(), [5; 100]);
        }
        let [(first, _), (second, _)] = &mut back[..] else { unreachable!() };
        assert_eq!(first.pci_bus_id().unwrap(), "0000:01:00.0");
        for _ in 0..2 {
            assert_eq!(first.check_peer(second).unwrap(), PeerAccess::Direct);
            assert_eq!(second.check_peer(first).unwrap(), PeerAccess::Direct);
        }
        let (hardware, _) = back.pop().unwrap();
        std::thread::spawn(move || drop(hardware)).join().unwrap();
        drop(back);
        assert_eq!(fake.live(), 0);
        // Opened again where an older context was current.
        let mut hardware = Hardware::open(&devices[1], cache()).unwrap();
        let to = hardware.allocate(1).unwrap();
        hardware.upload(to, &[1]).unwrap();
        assert_eq!(read(&mut hardware, to, 1).unwrap(), [1]);
        let other = Device { ordinal: 7, ..devices[0].clone() };
        assert_eq!(Hardware::open(&other, cache()).map(drop).unwrap_err().code, 101);
        let unknown = Device { capability: (7, 5), ..devices[0].clone() };
        assert!(Hardware::open(&unknown, cache()).is_err_and(|e| e.text.contains("compute capability 7.5")));
    });
}

#[test]
fn without_the_library_or_a_function_of_it_opening_fails() {
    let name = "without_the_library_or_a_function_of_it_opening_fails";
    if env::var_os(INSIDE).is_some() {
        let error = open().map(drop).unwrap_err();
        assert!(error.fatal && error.text.contains("driver 580"), "{error}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("empty.c");
    fs::write(&source, "int nothing;").unwrap();
    if made_up(dir.path(), source.to_str().unwrap(), "libcuda.so.1").is_some() {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("hardware::{name}"), "--nocapture", "--include-ignored"])
            .env("LD_LIBRARY_PATH", dir.path())
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        print!("{text}");
    }
    if Installation::probe().is_err() {
        assert!(open().is_err());
    }
}
