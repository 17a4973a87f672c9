//! The boot of an engine on a GPU, as far as a made-up driver goes: to the first kernel that would have to compute.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use perigee::boot::engine::{EngineOptions, EngineProgress, StartedEngine, start_engine};
use perigee::config::Settings;
use perigee::config::device::BackendChoice;
use perigee::config::parallel::Collectives;
use perigee::nano;
use perigee_cuda::{
    Arch, CacheSettings, CompileError, Compiled, Compiler, Config, FunctionUsage, KernelCache, Program,
    kernels,
};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_telemetry::{Exposition, Metrics};

use super::with_driver;
use crate::golden::golden_folder;

/// A compiler whose CUBINs have the functions that the made-up driver is asked for, with as much static shared memory as is left
/// beside their launches'.
struct Functions;

impl Compiler for Functions {
    fn identity(&self) -> Result<String, CompileError> {
        Ok("functions".into())
    }

    fn compile(&self, program: &Program) -> Result<Compiled, CompileError> {
        let shared = (program.arch.max_shared_bytes() - program.shared_bytes).min(48 << 10);
        let lines: Vec<String> =
            program.functions.iter().map(|name| format!("{name} 4 {shared} 0\n")).collect();
        Ok(Compiled {
            cubin: format!("\x7fELF\n{}\0", lines.concat()).into_bytes(),
            ptx: String::new(),
            functions: vec![FunctionUsage::default()],
            log: String::new(),
            duration: Duration::ZERO,
        })
    }
}

/// Compiles every kernel of an architecture into a cache directory, as `perigee kernels build` does.
pub(super) fn build(dir: &Path, arch: Arch) -> u64 {
    let settings = CacheSettings { dir: Some(dir.to_owned()), max_bytes: 1 << 30, create: false };
    let cache = KernelCache::open(&settings, Ok(Arc::new(Functions)));
    let built = cache.obtain_all(&[arch], 1, &|_, _, _| ());
    assert!(built.iter().all(|obtained| obtained.result.is_ok()) && cache.degraded().is_none());
    built.len() as u64
}

/// Settings with the kernels of `dir` and without NVRTC.
fn settings(dir: &Path, backend: BackendChoice) -> Settings {
    let kernels = Config {
        cache_dir: dir.to_owned(),
        nvrtc_library: Some("/no/such/libnvrtc.so.13".into()),
        ..Config::default()
    };
    let mut settings = Settings { kernels, ..Settings::default() };
    settings.device.backend = backend;
    settings.kv_cache.memory_bytes = 32 << 20;
    settings
}

/// Boots the embedded model with the kernels of `dir` and without NVRTC. Returns the error and the metrics page.
fn boot(dir: &Path) -> (String, String) {
    let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let settings = settings(dir, BackendChoice::Cuda);
    let options = EngineOptions::from_settings(&settings, &blueprint).unwrap();
    let metrics = Arc::new(Metrics::new(nano::NAME, false));
    let started = start_engine(&checkpoint, blueprint, &options, metrics.clone(), &mut |_| ());
    (started.map(drop).unwrap_err().to_string(), metrics.render(Exposition::Text))
}

fn value(page: &str, metric: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{metric} is not in\n{page}")).parse().unwrap()
}

fn outcome(page: &str, outcome: &str) -> f64 {
    value(page, &format!("perigee_kernel_cache_kernels_total{{outcome=\"{outcome}\"}}"))
}

#[test]
fn with_prebuilt_kernels_a_boot_compiles_nothing() {
    // A gibibyte of the device is set aside.
    let memory = [("FAKE_GIB", "2")];
    with_driver("boot::with_prebuilt_kernels_a_boot_compiles_nothing", &memory, |_| {
        let dir = tempfile::tempdir().unwrap();
        let built = build(dir.path(), Arch::Sm90a) as f64;
        assert_eq!(built as usize, kernels::ALL.iter().filter(|k| k.archs.contains(&Arch::Sm90a)).count());
        let (error, page) = boot(dir.path());
        // All kernels are loaded and all weights uploaded when the first launch finds that the kernels are not real.
        assert!(error.contains("bytes of parameters"), "{error}");
        assert!(value(&page, "perigee_boot_weights_bytes") > 1e5);
        // Once when all are obtained, and once when each is loaded.
        assert_eq!((outcome(&page, "disk"), outcome(&page, "memory")), (built, built));
        assert_eq!((outcome(&page, "compiled"), outcome(&page, "rebuilt")), (0.0, 0.0));
        assert_eq!(value(&page, "perigee_kernel_cache_seconds_total{work=\"compile\"}"), 0.0);
        assert!(value(&page, "perigee_kernel_cache_seconds_total{work=\"read\"}") > 0.0);
    });
}

#[test]
fn every_kernel_is_loaded_on_a_chip_with_little_shared_memory() {
    let variables = [("FAKE_GIB", "2"), ("FAKE_CAPABILITY", "120")];
    with_driver("boot::every_kernel_is_loaded_on_a_chip_with_little_shared_memory", &variables, |_| {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Arch::Sm120a);
        let (error, _) = boot(dir.path());
        assert!(error.contains("bytes of parameters"), "{error}");
    });
}

#[test]
fn a_damaged_kernel_that_nothing_can_compile_ends_the_boot() {
    with_driver("boot::a_damaged_kernel_that_nothing_can_compile_ends_the_boot", &[], |_| {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Arch::Sm90a);
        let entry = fs::read_dir(dir.path().join("sm_90a")).unwrap().next().unwrap().unwrap().path();
        let bytes = fs::read(&entry).unwrap();
        fs::write(&entry, &bytes[..bytes.len() / 2]).unwrap();
        let (error, _) = boot(dir.path());
        assert!(error.contains("/no/such/libnvrtc.so.13"), "{error}");
        assert!(!entry.exists());
    });
}

/// Boots a checkpoint with `device.backend = auto`: the backend that computes, or the error.
fn boot_auto(dir: &Path, edit: impl FnOnce(&mut Settings)) -> Result<&'static str, String> {
    let mut settings = settings(dir, BackendChoice::Auto);
    settings.model.path = Some(golden_folder("kimi"));
    edit(&mut settings);
    let checkpoint = match &settings.model.path {
        Some(path) => Checkpoint::open(path).unwrap(),
        None => Checkpoint::from_embedded(nano::FILES).unwrap(),
    };
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let options = EngineOptions::from_settings(&settings, &blueprint).unwrap();
    let metrics = Arc::new(Metrics::new("auto", false));
    let StartedEngine { handle, thread } =
        start_engine(&checkpoint, blueprint, &options, metrics, &mut |_| ())
            .map_err(|error| error.to_string())?;
    let backend = handle.facts().backend;
    handle.shutdown();
    thread.join().unwrap()?;
    Ok(backend)
}

/// Regression: a checkpoint was served on the CPU beside a GPU that had room for it.
#[test]
fn auto_takes_the_gpu_that_a_checkpoint_fits_on() {
    let memory = [("FAKE_GIB", "2")];
    with_driver("boot::auto_takes_the_gpu_that_a_checkpoint_fits_on", &memory, |_| {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Arch::Sm90a);
        // The first launch finds that the kernels are not real: the GPU was taken, and no other device hides its fault.
        let error = boot_auto(dir.path(), |_| ()).unwrap_err();
        assert!(error.contains("bytes of parameters"), "{error}");
        assert_eq!(boot_auto(dir.path(), |s| s.model.path = None), Ok("cpu"));
        assert_eq!(boot_auto(dir.path(), |s| s.device.ranks = 2), Ok("cpu"));
        // Without kernels, and nothing that compiles them.
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(boot_auto(empty.path(), |_| ()), Ok("cpu"));
    });
}

/// Several devices: as far as their first exchange, or the reason why they cannot share a model.
#[test]
fn devices_that_share_a_model_reach_each_other_first() {
    let name = "boot::devices_that_share_a_model_reach_each_other_first";
    for (variables, expected) in [
        (&[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2")][..], "bytes of parameters"),
        (&[("FAKE_GIB", "2"), ("FAKE_DEVICES", "3")], "bytes of parameters"),
        // Through the host's memory as far.
        (&[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2"), ("FAKE_PEER", "0")], "bytes of parameters"),
        (&[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2"), ("COLLECTIVES", "host")], "bytes of parameters"),
        (
            &[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2"), ("FAKE_PEER", "0"), ("COLLECTIVES", "peer")],
            "GPU 1 (0000:02:00.0) does not reach the memory of GPU 0 (0000:01:00.0), as 2 ranks",
        ),
        (
            &[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2"), ("FAKE_PEER", "0"), ("CONTEXT", "2")],
            "GPU 1 (0000:02:00.0) does not reach the memory of GPU 0 (0000:01:00.0), as 2 ranks",
        ),
        (
            &[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2"), ("FAKE_PEER", "broken"), ("COLLECTIVES", "peer")],
            "does not write what it should to the memory of GPU 0 (0000:01:00.0), as 2 ranks (device.ranks) do to exchange values: an IOMMU",
        ),
        // In the order that is asked for.
        (
            &[
                ("FAKE_GIB", "2"),
                ("FAKE_DEVICES", "3"),
                ("FAKE_PEER", "0"),
                ("CONTEXT", "2"),
                ("DEVICES", "2 GPU-1010"),
            ],
            "GPU 1 (0000:01:00.0) does not reach the memory of GPU 0 (0000:03:00.0), as 2 ranks",
        ),
        (
            &[("FAKE_GIB", "2"), ("FAKE_DEVICES", "2"), ("DEVICES", "1 2")],
            "device.devices = 2, and no GPU has this number or UUID: there are 0: Made-up GPU 0 GPU-10101010-1010-1010-1010-101010101010, 1: Made-up GPU 1 GPU-11",
        ),
        (&[("FAKE_GIB", "2")], "device.ranks = 2, and there are 1 GPUs of one architecture with kernels"),
    ] {
        let variables = [variables, &[("EXPECTED", expected)]].concat();
        with_driver(name, &variables, |_| {
            let error = boot_ranks();
            let expected = std::env::var("EXPECTED").unwrap();
            assert!(error.contains(&expected), "{expected}: {error}");
        });
    }
}

/// Boots a checkpoint on two devices: the error.
fn boot_ranks() -> String {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path(), Arch::Sm90a);
    let mut settings = settings(dir.path(), BackendChoice::Cuda);
    settings.model.path = Some(golden_folder("kimi"));
    settings.device.ranks = 2;
    let devices = std::env::var("DEVICES").unwrap_or_default();
    settings.device.devices = devices.split_whitespace().map(str::to_owned).collect();
    settings.parallel.collectives = match std::env::var("COLLECTIVES").as_deref() {
        Ok("peer") => Collectives::Peer,
        Ok("host") => Collectives::Host,
        _ => Collectives::Auto,
    };
    settings.parallel.context = std::env::var("CONTEXT").map_or(0, |context| context.parse().unwrap());
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let options = match EngineOptions::from_settings(&settings, &blueprint) {
        Ok(options) => options,
        Err(error) => return error.to_string(),
    };
    let metrics = Arc::new(Metrics::new("ranks", false));
    let started = start_engine(&checkpoint, blueprint, &options, metrics, &mut |_| ());
    started.map(drop).unwrap_err().to_string()
}

#[test]
fn auto_takes_the_cpu_where_the_gpu_has_no_room() {
    // The gibibyte that is set aside leaves nothing.
    let memory = [("FAKE_GIB", "1")];
    with_driver("boot::auto_takes_the_cpu_where_the_gpu_has_no_room", &memory, |_| {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Arch::Sm90a);
        assert_eq!(boot_auto(dir.path(), |_| ()), Ok("cpu"));
    });
}

/// How fast a checkpoint comes to RANKS devices (8) that keep nothing of it: its folder is in CHECKPOINT. With a cold page cache it is the
/// disk's speed, or that of cutting it.
#[test]
#[ignore = "a measurement"]
fn a_checkpoint_comes_to_eight_devices() {
    let Some(folder) = std::env::var_os("CHECKPOINT") else { return };
    let ranks = std::env::var("RANKS").unwrap_or_else(|_| "8".into());
    let folder = folder.into_string().unwrap();
    let variables = [
        ("FAKE_GIB", "12"),
        ("FAKE_FORGETS", "1"),
        ("FAKE_DEVICES", &*ranks),
        ("CHECKPOINT", &folder),
        ("RANKS", &ranks),
    ];
    with_driver("boot::a_checkpoint_comes_to_eight_devices", &variables, |_| {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), Arch::Sm90a);
        let mut settings = settings(dir.path(), BackendChoice::Cuda);
        settings.device.activations = perigee::config::device::ActivationsChoice::F32;
        settings.device.ranks = std::env::var("RANKS").unwrap().parse().unwrap();
        settings.scheduler.max_num_batched_tokens = 64;
        (settings.scheduler.max_num_seqs, settings.scheduler.max_model_len) = (1, 1024);
        settings.speculation = perigee_decoding::speculation::Config::off();
        if let Ok(groups) = std::env::var("GROUPS") {
            settings.parallel.expert = groups.parse().unwrap();
        }
        let checkpoint = Checkpoint::open(Path::new(&std::env::var("CHECKPOINT").unwrap())).unwrap();
        let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        let options = EngineOptions::from_settings(&settings, &blueprint).unwrap();
        fn status(file: &str, key: &str) -> u64 {
            let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
            let value = text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
            value.split(' ').next().unwrap().parse().unwrap()
        }
        let memory = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&memory);
        let watch = std::thread::spawn(move || {
            while let Some(memory) = watched.upgrade() {
                memory.fetch_max(status("status", "RssAnon:") >> 10, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let ranks = settings.device.ranks;
        let (mut begun, mut read_before) = (None, 0);
        let mut progress = |at: EngineProgress| {
            if let EngineProgress::Planned(_) = at {
                (begun, read_before) = (Some(Instant::now()), status("io", "read_bytes:"));
            }
            if let EngineProgress::Weights { done, total } = at
                && done == total
            {
                let (seconds, read) =
                    (begun.unwrap().elapsed().as_secs_f64(), status("io", "read_bytes:") - read_before);
                println!(
                    "{ranks} devices: {total} bytes in {seconds:.2} s, {:.2} GB/s; {read} bytes from the disk; at most {} MiB of memory",
                    total as f64 / seconds / 1e9,
                    memory.load(Ordering::Relaxed)
                );
            }
        };
        let metrics = Arc::new(Metrics::new("load", false));
        let started = start_engine(&checkpoint, blueprint, &options, metrics, &mut progress);
        drop(memory);
        watch.join().unwrap();
        let error = started.map(drop).unwrap_err().to_string();
        assert!(error.contains("bytes of parameters"), "{error}");
    });
}
