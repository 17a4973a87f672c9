//! Golden builds run without a race, in every order.

use perigee_emulator::case::Case;
use perigee_emulator::machine::{Asynchrony, CaseDevice, Options};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/golden/ptx/triton");

fn golden_cases() -> Vec<Case> {
    let Ok(folder) = std::fs::read_dir(GOLDEN) else {
        println!("skipped: no golden data");
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| Case::load(path).unwrap()).collect()
}

/// Runs all builds; time of the launches and what went wrong.
fn run(cases: &[Case], options: &Options) -> (usize, Duration, Vec<String>) {
    let (mut builds, start, mut wrong) = (0, Instant::now(), Vec::new());
    for case in cases {
        for build in &case.builds {
            builds += 1;
            let ptx = case.ptx(build).unwrap();
            match case.run(build, &ptx, &mut CaseDevice::with(options.clone())) {
                Ok((report, _)) if report.is_right() => {}
                Ok(_) => wrong.push(format!("{} {}: wrong values", case.name, build.arch)),
                Err(reason) => wrong.push(format!("{} {}: {reason}", case.name, build.arch)),
            }
        }
    }
    (builds, start.elapsed(), wrong)
}

#[test]
fn golden_builds_do_not_race() {
    let cases = golden_cases();
    for asynchrony in [Asynchrony::Issue, Asynchrony::Late, Asynchrony::Random] {
        for shuffle in [None, Some(1), Some(2)] {
            let options = Options { asynchrony, shuffle, noise: shuffle, ..Options::default() };
            let (_, off, wrong) = run(&cases, &options);
            assert_eq!(wrong, Vec::<String>::new(), "without race detection, {asynchrony:?} {shuffle:?}");
            let (builds, on, wrong) = run(&cases, &Options { races: true, ..options });
            println!("{asynchrony:?} {shuffle:?}: {builds} builds, {off:.0?}, with race detection {on:.0?}");
            assert!(wrong.is_empty(), "{asynchrony:?} {shuffle:?}:\n{}", wrong.join("\n"));
        }
    }
}
