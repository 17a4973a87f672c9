//! Several devices in one machine: the golden cases in many orders. Right kernels give their answers and no
//! report; what is wrong is found.

use perigee_emulator::case::node::{Expect, NodeBuild, NodeCase, Order, Verdict};
use perigee_emulator::case::{LaunchShape, command};
use perigee_emulator::machine::{CaseDevice, Fault, Launch, Machine, Options};
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

#[test]
fn a_deadlock_names_flags_and_devices() {
    let case = golden_cases().into_iter().find(|case| case.name == "one_shot_fewer_blocks").unwrap();
    let ptx = case.ptx(&case.builds[0]).unwrap();
    for order in ORDERS {
        let (verdict, text) = run(&case, &case.builds[0], &ptx, options(order));
        assert_eq!(verdict, Verdict::Right);
        // Device 2 has no block 3, for whose flag the others wait.
        for part in
            ["deadlock", "device 0, launch 0 `all_reduce_one_shot`: block [3, 0, 0]", "ld.acquire.sys"]
        {
            assert!(text.contains(part), "{order:?}: no `{part}` in {text}");
        }
        for device in [0, 1, 3] {
            let flag = format!("`flags` + 0x38 of device {device}");
            assert!(text.contains(&flag), "{order:?}: no {flag} in {text}");
        }
    }
}

/// Two threads, one of which leaves a word for the other behind a flag; `homes` are their devices.
fn message(homes: [usize; 2], send: &str, receive: &str, order: Option<u64>) -> Result<(), Fault> {
    let mut machine = Machine::new(2, options(order));
    let buffer = machine.allocate(0, 256, 256);
    machine.write(buffer, &[0; 256]).unwrap();
    machine.name(buffer, "buffer");
    let text = format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n\
         .visible .entry k(.param .u64 buffer, .param .u32 first)\n{{\n\
         .reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n\
         ld.param.u64 %rd0, [buffer];\nld.param.u32 %r0, [first];\nmov.u32 %r1, %ctaid.x;\n\
         add.u32 %r0, %r0, %r1;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra RECEIVE;\n\
         st.global.u32 [%rd0+64], 7;\nmov.u32 %r2, 1;\n{send}\nret;\n\
         RECEIVE:\n{receive}\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra RECEIVE;\n\
         AFTER:\nld.global.u32 %r3, [%rd0+64];\nret;\n}}\n"
    );
    let modules = [0, 1].map(|device| machine.load(device, &text).unwrap());
    let kernels = modules.each_ref().map(|module| module.kernel("k").unwrap());
    let shape = |blocks| LaunchShape {
        grid: [blocks, 1, 1],
        block: [1, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: 0,
    };
    let parameters = |first: u32| [&buffer.to_le_bytes()[..], &first.to_le_bytes()[..]].concat();
    let (sender, receiver) = (parameters(0), parameters(1));
    let launch = |device: usize, blocks, parameters| {
        [Launch { kernel: &kernels[device], shape: shape(blocks), parameters }]
    };
    let (one, other) = (launch(homes[0], 1, &sender[..]), launch(homes[1], 1, &receiver[..]));
    let both = launch(homes[0], 2, &sender[..]);
    match homes[0] == homes[1] {
        true => machine.run(&[&both]).map(|_| ()),
        false => machine.run(&[&one, &other]).map(|_| ()),
    }
}

#[test]
fn scopes_of_both_sides_must_reach() {
    let (near, far) = ([0, 0], [0, 1]);
    let store = |scope: &str| format!("st.release.{scope}.global.u32 [%rd0], %r2;");
    let load = |scope: &str| format!("ld.acquire.{scope}.global.u32 %r2, [%rd0];");
    let fenced = |fence: &str, scope: &str| {
        (
            format!("fence.{fence};\nst.relaxed.{scope}.global.u32 [%rd0], %r2;"),
            format!("ld.relaxed.{scope}.global.u32 %r2, [%rd0];\nfence.{fence};"),
        )
    };
    let add = |scope: &str| format!("red.release.{scope}.global.add.u32 [%rd0], %r2;");
    for (homes, (send, receive), ordered) in [
        (near, (store("gpu"), load("gpu")), true),
        (near, (store("sys"), load("sys")), true),
        (near, (store("cta"), load("gpu")), false),
        (near, (store("gpu"), load("cta")), false),
        (far, (store("sys"), load("sys")), true),
        (far, (store("gpu"), load("sys")), false),
        (far, (store("sys"), load("gpu")), false),
        (far, (add("sys"), load("sys")), true),
        (far, (add("gpu"), load("sys")), false),
        (near, fenced("acq_rel.gpu", "gpu"), true),
        (near, fenced("acq_rel.cta", "gpu"), false),
        (far, fenced("acq_rel.sys", "sys"), true),
        (far, fenced("sc.sys", "sys"), true),
        (far, fenced("acq_rel.gpu", "sys"), false),
    ] {
        for order in ORDERS {
            let result = message(homes, &send, &receive, order);
            let at = format!("{homes:?}, {send}, {receive}, {order:?}: {result:?}");
            match ordered {
                true => assert!(result.is_ok(), "{at}"),
                false => assert!(result.is_err_and(|fault| fault.is_race()), "{at}"),
            }
        }
    }
}

#[test]
fn ptx_run_takes_cases_of_several_devices() {
    let paths = ["flag_right", "flag_membar_gl", "gather_rows_one_set_of_flags"]
        .map(|name| format!("{GOLDEN}/{name}.json"));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = paths.into_iter().chain(["--arch".to_owned(), "sm_80".to_owned()]);
    let code = command::run(arguments, CaseDevice::new, &mut out, &mut err).unwrap();
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert_eq!((code, err.as_str()), (command::ALL_RIGHT, ""), "{out}");
    assert!(out.contains("3 builds: 3 ok, 0 wrong, 0 not run"), "{out}");
    assert!(
        out.contains("found: ") && out.contains("race on global memory") && out.contains("deadlock"),
        "{out}"
    );
}
