//! The golden cases of Triton in every mode of the machine: right answers, and the same bits in all of them.

use perigee_emulator::case::{Case, Device, LaunchShape, command};
use perigee_emulator::machine::{Asynchrony, CaseDevice, Options};
use std::path::PathBuf;

/// Paths of the cases.
fn cases() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/triton");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert!(!paths.is_empty(), "no cases in {folder}");
    paths
}

/// A device that keeps what is read from it.
struct Recorder {
    device: CaseDevice,
    reads: Vec<Vec<u8>>,
}

impl Device for Recorder {
    fn allocate(&mut self, bytes: u64, align: u64) -> u64 {
        self.device.allocate(bytes, align)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.device.write(address, bytes);
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        self.device.read(address, bytes);
        self.reads.push(bytes.to_vec());
    }

    fn launch(&mut self, ptx: &str, entry: &str, shape: &LaunchShape, params: &[u8]) -> Result<(), String> {
        self.device.launch(ptx, entry, shape, params)
    }
}

/// The plain run, then every asynchrony with three seeds of warps, blocks, registers and failing waits.
fn modes() -> Vec<(String, Options)> {
    let mut modes = vec![("plain".to_string(), Options::default())];
    for asynchrony in [Asynchrony::Issue, Asynchrony::Late, Asynchrony::Random] {
        for seed in [1, 0x5eed, 0xfeed_0bad_cafe] {
            let options = Options {
                shuffle: Some(seed),
                asynchrony,
                spurious: true,
                noise: Some(!seed),
                max_instructions: 200_000_000,
                ..Options::default()
            };
            modes.push((format!("{asynchrony:?}, seed {seed}"), options));
        }
    }
    modes
}

/// Runs the builds of an architecture in all modes.
fn check(arch: &str) {
    let mut builds = 0;
    for path in cases() {
        let case = Case::load(&path).unwrap_or_else(|error| panic!("{error}"));
        for build in case.builds.iter().filter(|build| build.arch == arch) {
            let ptx = case.ptx(build).unwrap();
            let mut first: Option<Vec<Vec<u8>>> = None;
            builds += 1;
            for (mode, options) in modes() {
                let place = format!("{} {arch}, {mode}", case.name);
                let mut device = Recorder { device: CaseDevice::with(options), reads: Vec::new() };
                let (report, _) =
                    case.run(build, &ptx, &mut device).unwrap_or_else(|error| panic!("{place}: {error}"));
                for difference in &report.differences {
                    assert!(difference.wrong == 0, "{place}: {difference}");
                }
                assert!(report.changes.is_empty(), "{place}: {}", report.changes[0]);
                match &first {
                    None => first = Some(device.reads),
                    Some(first) => {
                        for (tensor, (got, want)) in case.tensors.iter().zip(device.reads.iter().zip(first)) {
                            let at = got.iter().zip(want).position(|(a, b)| a != b);
                            assert!(
                                at.is_none(),
                                "{place}: {} differs from the plain run at byte {at:?}",
                                tensor.name
                            );
                        }
                    }
                }
            }
        }
    }
    println!("{builds} builds for {arch}");
}

#[test]
fn sm_80() {
    check("sm_80");
}

#[test]
fn sm_90() {
    check("sm_90");
}

#[test]
fn sm_100() {
    check("sm_100");
}

#[test]
fn sm_120() {
    check("sm_120");
}

/// The cases in 4-bit floats, chains of three launches among them.
#[test]
fn four_bit_floats() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/fp4");
    let mut arguments: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path().display().to_string()).collect();
    arguments.retain(|path| path.ends_with(".json"));
    arguments.extend(["--seed", "3", "--async", "random"].map(String::from));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = command::run(arguments, CaseDevice::new, &mut out, &mut err).unwrap();
    let text = String::from_utf8([out, err].concat()).unwrap();
    assert_eq!(code, command::ALL_RIGHT, "{text}");
    assert!(text.contains("29 builds: 29 ok, 0 wrong, 0 not run"), "{text}");
}

#[test]
fn every_architecture_is_covered() {
    for path in cases() {
        let case = Case::load(&path).unwrap_or_else(|error| panic!("{error}"));
        for build in &case.builds {
            assert!(["sm_80", "sm_90", "sm_100", "sm_120"].contains(&build.arch.as_str()), "{}", build.arch);
        }
    }
}
