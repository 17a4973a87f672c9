//! `perigee doctor` over a made-up driver.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use perigee_cuda::{Arch, CacheSettings, Installation, KernelCache, Program, kernels};

use super::{Lines, made_up};
use crate::golden::golden_folder;

/// Kernels of a cache directory in the folder `jit-cache`.
fn fill_cache(dir: &Path, arch: Arch, leave_out: usize) -> usize {
    let dir = dir.join("jit-cache");
    fs::create_dir_all(&dir).unwrap();
    let settings = CacheSettings { dir: Some(dir), max_bytes: 1 << 30, create: false };
    let cache = KernelCache::open(&settings, Ok(Arc::new(Lines)));
    let programs: Vec<Program> = kernels::ALL
        .iter()
        .filter(|kernel| kernel.archs.contains(&arch))
        .map(|kernel| Program::new(kernel, arch).unwrap())
        .collect();
    programs[leave_out..].iter().for_each(|program| drop(cache.get(program).unwrap()));
    programs.len()
}

/// Runs the command in `dir` with the libraries of `libraries`, and without NVRTC.
fn doctor(dir: &Path, libraries: Option<&Path>, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
    command.args(["doctor", "--set", "kernels.nvrtc_library=/no/such/libnvrtc.so.13"]).args(args);
    command.current_dir(dir).envs(variables.iter().copied());
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.output().unwrap()
}

/// What was printed, with one space in place of several.
fn text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(squeeze).collect()
}

#[test]
fn a_machine_without_a_gpu_has_one_warning_for_it_and_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let check = |output: Output, remedy: &str| {
        let text = text(&output);
        assert!(output.status.success() && text.ends_with('\n') && !text.contains("FAIL"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let gpu = lines.iter().position(|line| line.starts_with("warn gpu ")).expect(&text);
        assert!(
            lines[gpu].contains(remedy) && lines[gpu + 1] == "-> without one the CPU backend serves",
            "{text}"
        );
        assert!(text.contains("ok kernel cache jit-cache is not there"), "{text}");
        for part in ["configuration", "cpu", "model", "text", "memory plan"] {
            assert!(text.contains(&format!("ok {part} ")), "{part}: {text}");
        }
    };
    if Installation::probe().is_err() {
        check(doctor(dir.path(), None, &[], &[]), "--gpus");
    }
    let Some(libraries) = made_up(dir.path(), "libcuda.c", "libcuda.so.1") else { return };
    check(doctor(dir.path(), Some(&libraries), &[("FAKE_DEVICES", "0")], &[]), "CUDA_VISIBLE_DEVICES");
}

#[test]
fn findings_have_their_level_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let Some(cuda) = made_up(dir.path(), "libcuda.c", "libcuda.so.1") else { return };
    let kernels = fill_cache(dir.path(), Arch::Sm90a, 0);
    let compiled = format!("ok kernels {kernels} of {kernels} compiled for sm_90a\n");
    let with_cuda = |variables: &[(&str, &str)], problem: bool, expected: &[&str]| {
        let output = doctor(dir.path(), Some(&cuda), variables, &[]);
        let text = text(&output);
        for line in expected {
            assert!(text.contains(line), "{variables:?}: {line} is not in\n{text}");
        }
        assert_eq!(output.status.code(), Some(i32::from(problem)), "{variables:?}:\n{text}");
        assert_eq!(text.lines().any(|line| line.starts_with("FAIL")), problem, "{text}");
    };
    with_cuda(
        &[],
        false,
        &[
            "ok driver version unknown, CUDA 13.0",
            "warn nvml clocks, power and memory errors are not examined",
            "ok device 0 Made-up GPU 0, compute capability 9.0, kernels sm_90a, 1.0 GiB of 1.0 GiB free, at 0000:01:00.0",
            &compiled,
            "ok nvrtc not found, and not needed",
            "ok kernel cache jit-cache, ",
            "ok host memory ",
            "open files ",
        ],
    );
    with_cuda(&[("FAKE_CAPABILITY", "75")], true, &["FAIL device 0 ", "there are no kernels for it"]);
    // device.backend = auto, and a checkpoint.
    let folder = golden_folder("kimi");
    let on_gpu = text(&doctor(dir.path(), Some(&cuda), &[], &["--model", folder.to_str().unwrap()]));
    assert!(
        on_gpu.contains("ok memory plan the weights fit in the memory of Made-up GPU 0; workspace"),
        "{on_gpu}"
    );
    // Kernels of another architecture are not in the cache, and nothing compiles them.
    with_cuda(&[("FAKE_CAPABILITY", "120")], true, &["warn kernels 0 of", "FAIL nvrtc "]);
    with_cuda(
        &[("FAKE_DEVICES", "3")],
        false,
        &["ok device 2 Made-up GPU 2", "ok peers 0 -> 1 direct copies arrive whole", "ok peers 2 -> 1 "],
    );
    with_cuda(&[("FAKE_DEVICES", "2"), ("FAKE_PEER", "0")], false, &["warn peers 1 -> 0 no direct access"]);
    with_cuda(
        &[("FAKE_DEVICES", "2"), ("FAKE_PEER", "broken")],
        true,
        &["FAIL peers 0 -> 1 1 of 4194304 copied bytes arrive wrong\n-> turn the IOMMU off"],
    );

    made_up(dir.path(), "libnvidia_ml.c", "libnvidia-ml.so.1").unwrap();
    with_cuda(
        &[],
        false,
        &[
            "ok driver 580.65.06, CUDA 13.0",
            "ok device 0 ECC is on, no uncorrected errors",
            "ok device 0 SM clock 345 MHz now, 1980 MHz at most",
            "ok device 0 power limit 700 W of 700 W as delivered",
            "ok device 0 PCIe x16 of x16, generation 1 now, 5 at most",
        ],
    );
    with_cuda(
        &[("FAKE_ECC", "0"), ("FAKE_POWER_W", "450")],
        false,
        &["warn device 0 ECC is off", "warn device 0 power limit 450 W of 700 W as delivered\n-> raise it"],
    );
    with_cuda(
        // The power cap and hw_thermal.
        &[("FAKE_LANES", "8"), ("FAKE_THROTTLE", "68")],
        false,
        &[
            "warn device 0 PCIe x8 of x16, generation 1 now, 5 at most\n-> seat the GPU",
            "warn device 0 the clock is lowered: power_cap, hw_thermal\n-> see nvidia-smi",
        ],
    );
    with_cuda(&[("FAKE_ERRORS", "3")], true, &["FAIL device 0 3 uncorrected memory errors"]);
    with_cuda(&[("FAKE_OLD", "1")], false, &["ok device 0 the GPU has no ECC"]);

    let json = doctor(dir.path(), Some(&cuda), &[("FAKE_ERRORS", "3")], &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["problems"], 1);
    let findings = json["findings"].as_array().unwrap();
    let problem = findings.iter().find(|finding| finding["level"] == "problem").unwrap();
    assert!(
        problem["part"] == "device 0" && problem["remedy"].as_str().unwrap().contains("reset"),
        "{problem}"
    );
    assert!(findings.iter().any(|finding| finding["level"] == "ok" && finding["remedy"].is_null()));

    fs::remove_dir_all(dir.path().join("jit-cache")).unwrap();
    with_cuda(&[], true, &["warn kernel cache jit-cache does not exist", "FAIL nvrtc "]);
}

#[test]
fn a_driver_that_is_too_old_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("old.c");
    fs::write(&source, "int cuDriverGetVersion(int* v) { *v = 12080; return 0; }").unwrap();
    let Some(libraries) = made_up(dir.path(), source.to_str().unwrap(), "libcuda.so.1") else { return };
    let output = doctor(dir.path(), Some(&libraries), &[], &[]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let driver = text.lines().find(|line| line.starts_with("FAIL driver ")).expect(&text);
    assert!(driver.contains("580"), "{text}");
}
