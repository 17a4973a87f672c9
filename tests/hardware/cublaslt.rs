//! cuBLASLt's plans, over a made-up library (`libcublaslt.c`).

use std::ffi::{CStr, c_int};
use std::{fs, mem};

use perigee::boot::engine::{EngineOptions, start_engine};
use perigee::config::Settings;
use perigee::config::device::{ActivationsChoice, BackendChoice};
use perigee::nano;
use perigee_cuda::{Driver, Hardware};
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_telemetry::Metrics;

use super::{INSIDE, made_up, open, with_driver};

/// A number that the made-up library counts.
fn number(name: &CStr) -> i32 {
    // SAFETY: the library has no constructors and stays open, and these functions have this type.
    unsafe {
        let library = libc::dlopen(c"libcublasLt.so.13".as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(library, name.as_ptr());
        assert!(!address.is_null(), "{name:?}");
        mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_int>(address)()
    }
}

/// The n-th call from now fails.
fn fail(n: i32) {
    // SAFETY: as above.
    unsafe {
        let library = libc::dlopen(c"libcublasLt.so.13".as_ptr(), libc::RTLD_NOW);
        let address = libc::dlsym(library, c"fake_lt_fail".as_ptr());
        assert!(!address.is_null());
        mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(c_int)>(address)(n);
    }
}

/// Runs `body` in a process with both made-up libraries.
fn with_cublaslt(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return with_driver(name, &[], |_| body());
    }
    let dir = tempfile::tempdir().unwrap();
    for (source, library) in [("libcuda.c", "libcuda.so.1"), ("libcublaslt.c", "libcublasLt.so.13")] {
        if made_up(dir.path(), source, library).is_none() {
            return;
        }
    }
    super::run_inside(name, dir.path(), &[]);
}

/// Addresses for a product of a shape.
fn addresses(hardware: &mut Hardware, [m, n, k]: [usize; 3]) -> [u64; 3] {
    [2 * n * k, 2 * m * k, 4 * m * n].map(|bytes| hardware.allocate(bytes).unwrap())
}

#[test]
fn plans_are_kept_and_bounded() {
    with_cublaslt("cublaslt::plans_are_kept_and_bounded", || {
        let mut hardware = open().unwrap();
        let at = addresses(&mut hardware, [600, 64, 32]);
        // Not before it is open, and from then on once.
        let error = hardware.vendor_product([1, 64, 32], at, false).unwrap_err();
        assert!(!error.fatal && error.text.contains("not open"), "{error}");
        assert!(hardware.open_vendor().unwrap() && hardware.open_vendor().unwrap());
        assert_eq!(number(c"fake_lt_live"), 1);
        for _ in 0..3 {
            for rows in 1..=512 {
                hardware.vendor_product([rows, 64, 32], at, rows % 2 == 0).unwrap();
            }
        }
        assert_eq!((number(c"fake_lt_plans"), number(c"fake_lt_products")), (512, 3 * 512));
        assert_eq!(number(c"fake_lt_added"), 3 * 256);
        // A description and three layouts each. One more shape, and all are made again.
        assert_eq!(number(c"fake_lt_live"), 1 + 4 * 512);
        hardware.vendor_product([600, 64, 32], at, false).unwrap();
        assert_eq!(number(c"fake_lt_live"), 1 + 4);
        // Memory of another size is refused before the library sees it.
        let error = hardware.vendor_product([601, 64, 32], at, false).unwrap_err();
        assert!(!error.fatal && error.text.contains("not in one allocation"), "{error}");
        drop(hardware);
        assert_eq!(number(c"fake_lt_live"), 0);
    });
}

#[test]
fn a_call_of_cublaslt_that_fails_is_an_error_and_leaves_nothing_behind() {
    with_cublaslt("cublaslt::a_call_of_cublaslt_that_fails_is_an_error_and_leaves_nothing_behind", || {
        let mut hardware = open().unwrap();
        let at = addresses(&mut hardware, [8, 64, 32]);
        fail(1);
        let error = hardware.open_vendor().unwrap_err();
        assert!(error.call == "cublasLtCreate" && error.text.contains("cublasStatus_t 3"), "{error}");
        assert!(hardware.open_vendor().unwrap());
        // Three layouts, the description, the preference, the choice of an algorithm, the product.
        for call in 1..=7 {
            fail(call);
            let error = hardware.vendor_product([8, 64, 32], at, false).unwrap_err();
            assert!(error.text.contains("cublasStatus_t"), "{call}: {error}");
            assert_eq!(number(c"fake_lt_live"), if call == 7 { 1 + 4 } else { 1 }, "call {call}");
        }
        fail(0);
        hardware.vendor_product([8, 64, 32], at, false).unwrap();
        drop(hardware);
        assert_eq!(number(c"fake_lt_live"), 0);
    });
}

/// Where the library is not installed, the setting is refused with what to do.
#[test]
fn the_setting_without_the_library_ends_the_boot() {
    with_driver("cublaslt::the_setting_without_the_library_ends_the_boot", &[("FAKE_GIB", "2")], |_| {
        if perigee_cuda::has_cublaslt() {
            println!("skipped: this machine has one");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        super::boot::build(dir.path(), perigee_cuda::Arch::Sm90a);
        let checkpoint = Checkpoint::from_embedded(nano::FILES).unwrap();
        let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        let mut settings = Settings::default();
        settings.kernels.cache_dir = dir.path().to_owned();
        settings.kernels.nvrtc_library = Some("/no/such/libnvrtc.so.13".into());
        settings.kernels.cublaslt = true;
        settings.kernels.tune_seconds = 0;
        settings.device.backend = BackendChoice::Cuda;
        settings.device.activations = ActivationsChoice::Bf16;
        let options = EngineOptions::from_settings(&settings, &blueprint).unwrap();
        let metrics = std::sync::Arc::new(Metrics::new(nano::NAME, false));
        let started = start_engine(&checkpoint, blueprint, &options, metrics, &mut |_| ());
        let error = started.map(drop).unwrap_err().to_string();
        assert!(error.contains("kernels.cublaslt = true") && error.contains("nvidia-cublas"), "{error}");
        assert!(fs::read_dir(dir.path()).unwrap().count() > 0);
    });
}
