//! Several devices in one machine: the golden cases in many orders. Right kernels give their answers and no
//! report; what is wrong is found.

use perigee_emulator::case::node::{Expect, NodeBuild, NodeCase, Order, Verdict};
use perigee_emulator::machine::{Machine, Options};
use std::path::PathBuf;
use std::time::Instant;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/multi");
/// Orders in which every build runs; `None` is ascending.
const ORDERS: [Option<u64>; 8] =
    [None, Some(1), Some(2), Some(3), Some(4), Some(0x5eed), Some(0xfeed_0bad_cafe), Some(7)];
/// Orders that are tried for what shows only in some.
const MANY: u64 = 64;

fn golden_cases() -> Vec<NodeCase> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert_eq!(paths.len(), 45);
    paths.iter().map(|path| NodeCase::load(path).unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn options(order: Option<u64>) -> Options {
    Options {
        shuffle: order,
        noise: order,
        races: true,
        late_stores: order.is_some_and(|seed| seed % 2 == 1),
        max_instructions: 20_000_000,
        ..Options::default()
    }
}

/// What one order says of a build, and the report or the reason.
fn run(case: &NodeCase, build: &NodeBuild, ptx: &[String], options: Options) -> (Verdict, String) {
    let outcome = case.run(build, ptx, &mut Machine::new(case.devices, options));
    let text = match &outcome {
        Ok((report, _)) => {
            report.differences.iter().map(|difference| format!("{difference}; ")).collect::<String>()
        }
        Err(failure) => failure.text().to_owned(),
    };
    (case.verdict(&outcome), text)
}

/// Runs all builds of the cases that `wanted` chooses; their number.
fn check(wanted: impl Fn(&NodeCase) -> bool) -> usize {
    let (mut builds, mut wrong) = (0, Vec::new());
    for case in golden_cases().iter().filter(|case| wanted(case)) {
        for build in &case.builds {
            let at = format!("{} {}", case.name, build.arch);
            let (ptx, start) = (case.ptx(build).unwrap(), Instant::now());
            builds += 1;
            let mut shown = false;
            let orders = ORDERS
                .into_iter()
                .chain((case.order == Order::Some).then(|| (8..MANY).map(Some)).into_iter().flatten());
            for order in orders {
                if shown && case.order == Order::Some {
                    break;
                }
                match run(case, build, &ptx, options(order)) {
                    (Verdict::Right, _) => shown = true,
                    (Verdict::NotShown, _) if case.order == Order::Some => {}
                    (verdict, text) => wrong.push(format!("{at}, order {order:?}: {verdict:?}: {text}")),
                }
            }
            if !shown {
                wrong.push(format!("{at}: not shown in any order"));
            }
            println!("{at}: {:.0?}", start.elapsed());
        }
    }
    assert!(wrong.is_empty(), "{builds} builds:\n{}", wrong.join("\n"));
    builds
}

#[test]
fn right_cases_give_their_answers_and_no_report() {
    assert_eq!(check(|case| case.expect.is_none()), 50);
}

#[test]
fn races_are_found() {
    assert_eq!(check(|case| case.expect == Some(Expect::Race)), 54);
}

#[test]
fn deadlocks_are_found() {
    assert_eq!(check(|case| case.expect == Some(Expect::Deadlock)), 8);
}

/// Right kernels whose releases are taken away: in a strong memory they stay right, and with stores to peers that
/// arrive late they do not.
#[test]
fn late_stores_show_what_a_release_is_for() {
    for name in ["flag_right", "all_gather_rows", "barrier_thrice"] {
        let case = golden_cases().into_iter().find(|case| case.name == name).unwrap();
        let build = &case.builds[0];
        let relaxed = |text: String| {
            let text = text.replace("fence.release.sys;", "").replace("fence.acq_rel.sys;", "");
            text.replace(".release", ".relaxed").replace(".acquire", ".relaxed")
        };
        let right = case.ptx(build).unwrap();
        let ptx: Vec<_> = right.iter().cloned().map(relaxed).collect();
        assert_ne!(ptx, right, "{name}");
        let wrong = |seed: &u64, late_stores: bool| {
            let options = Options { races: false, late_stores, ..options(Some(*seed)) };
            run(&case, build, &ptx, options).0 != Verdict::Right
        };
        assert_eq!((1..5).find(|seed| wrong(seed, false)), None, "{name}");
        assert!((1..MANY).any(|seed| wrong(&seed, true)), "{name}: right in every order");
    }
}
