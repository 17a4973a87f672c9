//! Race detection: golden builds run without a race in every order, and what a kernel lacks is found
//! in every order.

use perigee_emulator::case::{Case, LaunchShape};
use perigee_emulator::machine::{Asynchrony, CaseDevice, Fault, Machine, Options, Report};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/triton");

fn golden_cases() -> Vec<Case> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path()).collect();
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

/// A kernel of four warps unless it says otherwise, with a pointer `%rd0` to 4096 bytes of global
/// memory and `tile` in shared memory. `%r0` is the thread, `%r1` its warp, `%r2` the tile, `%r3` the
/// word of the thread in it, `%r4` that of the thread one warp on, `%rd1` the thread's word of global
/// memory; `%p0` holds in thread 0.
fn module(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n\
         .visible .entry kernel(.param .u64 buffer)\n{{\n\
         .reg .pred %p<8>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<16>;\n\
         .shared .align 128 .b8 tile[4096];\n.shared .align 8 .b8 barriers[64];\n\
         ld.param.u64 %rd0, [buffer];\nmov.u32 %r0, %tid.x;\nshr.u32 %r1, %r0, 5;\nmov.u32 %r2, tile;\n\
         shl.b32 %r3, %r0, 2;\ncvt.u64.u32 %rd1, %r3;\nadd.u64 %rd1, %rd1, %rd0;\n\
         xor.b32 %r4, %r3, 128;\nadd.u32 %r4, %r4, %r2;\nadd.u32 %r3, %r3, %r2;\n\
         mov.u32 %r20, barriers;\nsetp.eq.u32 %p0, %r0, 0;\n\
         {body}\nret;\n}}\n"
    )
}

/// A launch of `body`: blocks, threads of a block, blocks of a cluster.
fn launch(
    body: &str,
    (blocks, threads, cluster): (u32, u32, u32),
    options: &Options,
) -> Result<Report, Fault> {
    let mut machine = Machine::new(1, options.clone());
    let buffer = machine.allocate(0, 4096, 256);
    machine.write(buffer, &[0; 4096]).unwrap();
    let module = machine.load(0, &module(body)).unwrap();
    let kernel = module.kernel("kernel").unwrap();
    let shape = LaunchShape {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        cluster: [cluster, 1, 1],
        dynamic_shared_bytes: 0,
    };
    machine.launch(&kernel, shape, &buffer.to_le_bytes())
}

/// What is found must be found in every order: a fault whose text has all of these parts.
fn check(name: &str, shape: (u32, u32, u32), body: &str, want: Option<&[&str]>) {
    for asynchrony in [Asynchrony::Issue, Asynchrony::Late, Asynchrony::Random] {
        for shuffle in [None, Some(1), Some(2), Some(3)] {
            let options = Options {
                asynchrony,
                shuffle,
                races: true,
                uninitialized: false,
                max_instructions: 1_000_000,
                ..Options::default()
            };
            let at = format!("{name}, {asynchrony:?}, {shuffle:?}");
            match (launch(body, shape, &options), want) {
                (Ok(_), None) => {}
                (Ok(_), Some(want)) => panic!("{at}: not found: {want:?}"),
                (Err(fault), None) => panic!("{at}: {fault}"),
                (Err(fault), Some(want)) => {
                    let text = fault.to_string();
                    for part in want {
                        assert!(text.contains(part), "{at}: `{part}` is not in: {text}");
                    }
                    assert!(fault.line > 0 && !fault.opcode.is_empty(), "{at}: {fault:?}");
                }
            }
        }
    }
}

const BLOCK: (u32, u32, u32) = (1, 128, 1);
const RACE: &str = "race on shared memory";

#[test]
fn barriers_order_shared_memory() {
    let exchange = |barrier: &str| format!("st.shared.u32 [%r3], %r0;\n{barrier}\nld.shared.u32 %r5, [%r4];");
    let both: Option<&[&str]> = Some(&[RACE, "st.shared.u32", "ld.shared.u32", "nothing orders them"]);
    check("no barrier", BLOCK, &exchange(""), both);
    check("a fence alone", BLOCK, &exchange("fence.acq_rel.cta;"), both);
    check("a barrier of the warp", BLOCK, &exchange("bar.warp.sync 0xffffffff;"), both);
    check("bar.sync", BLOCK, &exchange("bar.sync 0;"), None);
    check("barrier.sync", BLOCK, &exchange("barrier.sync 3;"), None);
    let red = "setp.ne.u32 %p1, %r0, 5;\nbar.red.popc.u32 %r6, 0, %p1;";
    check("bar.red", BLOCK, &exchange(red), None);
    // Warps 0, 1 and 2, 3 exchange.
    let pair = "shr.u32 %r6, %r1, 1;\nadd.u32 %r6, %r6, 1;\nbar.sync %r6, 64;";
    check("a barrier of each pair", BLOCK, &exchange(pair), None);
    check("a barrier of each warp", BLOCK, &exchange("bar.sync %r1, 32;"), both);
    let count = "add.u32 %r6, %r1, 1;\nbar.sync %r6, 32;";
    check("a count of one warp", BLOCK, &exchange(count), both);
    let other = "and.b32 %r6, %r1, 1;\nbar.sync %r6, 64;";
    check("a barrier number that joins the wrong warps", BLOCK, &exchange(other), both);
}

#[test]
fn arrivals_release_and_do_not_acquire() {
    let hand_over = |after: &str| {
        format!(
            "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra CONSUMER;\n\
             st.shared.u32 [%r3], %r0;\nbar.arrive 1, 64;\n{after}\nret;\n\
             CONSUMER:\nbar.sync 1, 64;\nld.shared.u32 %r5, [%r4];\nbar.arrive 2, 64;"
        )
    };
    let pair = (1, 64, 1);
    check("handed over", pair, &hand_over(""), None);
    let reuse = "st.shared.u32 [%r3], %r1;";
    check("reused at once", pair, &hand_over(reuse), Some(&[RACE, "ld.shared.u32", "st.shared.u32"]));
    check("reused after the consumer", pair, &hand_over(&format!("bar.sync 2, 64;\n{reuse}")), None);
}

#[test]
fn buffers_are_reused_after_a_barrier() {
    let rounds = |barrier: &str| {
        format!(
            "mov.u32 %r7, 0;\nAGAIN:\nst.shared.u32 [%r3], %r7;\nbar.sync 0;\nld.shared.u32 %r5, [%r4];\n\
             {barrier}\nadd.u32 %r7, %r7, 1;\nsetp.lt.u32 %p1, %r7, 3;\n@%p1 bra AGAIN;"
        )
    };
    check("no second barrier", BLOCK, &rounds(""), Some(&[RACE, "st.shared.u32", "ld.shared.u32"]));
    check("second barrier", BLOCK, &rounds("bar.sync 0;"), None);
    // The other half of the tile is written while one half is read.
    let halves = |barrier: &str| {
        format!(
            "mov.u32 %r7, 0;\nAGAIN:\nand.b32 %r8, %r7, 1;\nshl.b32 %r8, %r8, 11;\nadd.u32 %r9, %r3, %r8;\n\
             add.u32 %r10, %r4, %r8;\nst.shared.u32 [%r9], %r7;\n{barrier}\nld.shared.u32 %r5, [%r10];\n\
             add.u32 %r7, %r7, 1;\nsetp.lt.u32 %p1, %r7, 5;\n@%p1 bra AGAIN;"
        )
    };
    check("two buffers", BLOCK, &halves("bar.sync 0;"), None);
    let pairs = "shr.u32 %r11, %r1, 1;\nbar.sync %r11, 64;";
    check("two buffers, barriers of pairs", BLOCK, &halves(pairs), None);
}

#[test]
fn asynchronous_copies_are_waited_for_and_then_released() {
    let copy = |wait: &str, read: &str| {
        format!(
            "cp.async.ca.shared.global [%r3], [%rd1], 4;\ncp.async.commit_group;\n\
             cp.async.ca.shared.global [%r3 + 2048], [%rd1], 4;\ncp.async.commit_group;\n{wait}\n\
             ld.shared.u32 %r5, [{read}];"
        )
    };
    let flying: Option<&[&str]> = Some(&[RACE, "cp.async.ca", "ld.shared.u32", "has ended it"]);
    let unordered: Option<&[&str]> = Some(&[RACE, "cp.async.ca", "ld.shared.u32"]);
    check("own bytes, no wait", BLOCK, &copy("", "%r3"), flying);
    check("own bytes", BLOCK, &copy("cp.async.wait_group 1;", "%r3"), None);
    check("own bytes of the younger group", BLOCK, &copy("cp.async.wait_group 1;", "%r3 + 2048"), flying);
    check("own bytes of both", BLOCK, &copy("cp.async.wait_all;", "%r3 + 2048"), None);
    check("no wait", BLOCK, &copy("bar.sync 0;", "%r4"), flying);
    check("no barrier", BLOCK, &copy("cp.async.wait_group 0;", "%r4"), unordered);
    check("wait after the barrier", BLOCK, &copy("bar.sync 0;\ncp.async.wait_all;", "%r4"), unordered);
    check("wait and barrier", BLOCK, &copy("cp.async.wait_group 0;\nbar.sync 0;", "%r4"), None);
    let twice = copy("cp.async.wait_group 1;\nbar.sync 0;", "%r4 + 2048");
    check("one group too few", BLOCK, &twice, flying);
    let late = "ld.shared.u32 %r5, [%r4];\ncp.async.ca.shared.global [%r3], [%rd1], 4;";
    check("copied over while it is read", BLOCK, late, unordered);
}

/// Thread 0 makes two mbarriers for `count` arrivals that all may use.
fn with_mbarrier(count: u32, body: &str) -> String {
    format!(
        "@%p0 mbarrier.init.shared.b64 [%r20], {count};\n\
         @%p0 mbarrier.init.shared.b64 [%r20 + 8], {count};\nbar.sync 0;\n{body}"
    )
}

const WAIT: &str = "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p3, [%r20], 0;\n@!%p3 bra WAIT;";

#[test]
fn mbarriers_order_copies_and_stores() {
    let phase = "no wait that this warp knows of has ended it";
    let load = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 512;\n@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 512, [%r20];";
    let bulk = |wait: &str| with_mbarrier(1, &format!("{load}\n{wait}\nld.shared.u32 %r5, [%r4];"));
    let missing: Option<&[&str]> = Some(&[RACE, "cp.async.bulk", "ld.shared.u32", phase]);
    check("bulk load", BLOCK, &bulk(WAIT), None);
    // Warps that read before the copy is issued race with it as well.
    let unordered: Option<&[&str]> = Some(&[RACE, "cp.async.bulk", "ld.shared.u32"]);
    check("bulk load, no wait", BLOCK, &bulk(""), unordered);
    check("bulk load, a barrier instead", BLOCK, &bulk("bar.sync 0;"), missing);
    let again = load.replace("[%r20]", "[%r20 + 8]");
    let twice = |barrier: &str| {
        with_mbarrier(1, &format!("{load}\n{WAIT}\nld.shared.u32 %r5, [%r4];\n{barrier}\n{again}"))
    };
    check("loaded again while it is read", BLOCK, &twice(""), unordered);
    check("loaded again after a barrier", BLOCK, &twice("bar.sync 0;"), None);
    check("loaded twice at once", BLOCK, &with_mbarrier(1, &format!("{load}\n{again}")), Some(&[RACE]));

    let stores = |wait: &str| {
        let body = format!(
            "st.shared.u32 [%r3], %r0;\nmbarrier.arrive.shared.b64 %rd5, [%r20];\n{wait}\nld.shared.u32 %r5, [%r4];"
        );
        with_mbarrier(128, &body)
    };
    check("stores", BLOCK, &stores(WAIT), None);
    check("stores, no wait", BLOCK, &stores(""), Some(&[RACE, "st.shared.u32", "ld.shared.u32"]));

    let copies = |wait: &str| {
        let body = format!(
            "cp.async.ca.shared.global [%r3], [%rd1], 4;\ncp.async.mbarrier.arrive.noinc.shared.b64 [%r20];\n{wait}\nld.shared.u32 %r5, [%r4];"
        );
        with_mbarrier(128, &body)
    };
    check("copies", BLOCK, &copies(WAIT), None);
    check(
        "copies, no wait",
        BLOCK,
        &copies("bar.sync 0;"),
        Some(&[RACE, "cp.async.ca", "ld.shared.u32", phase]),
    );
    let own = copies("cp.async.wait_all;\nbar.sync 0;");
    check("copies, waited for by their threads", BLOCK, &own, None);

    let init = "@%p0 mbarrier.init.shared.b64 [%r20], 128;\nbar.arrive 1, 256;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.arrive.shared.b64 %rd5, [%r20];";
    check("used by its own warp", BLOCK, init, None);
    let early = "@%p0 mbarrier.init.shared.b64 [%r20], 1;\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 mbarrier.test_wait.parity.shared.b64 %p2, [%r20], 1;";
    // In some orders the word is no mbarrier yet.
    check("used before its init is known", BLOCK, early, Some(&["mbarrier"]));
}

#[test]
fn bulk_stores_hold_their_sources() {
    let store = |wait: &str| {
        format!(
            "st.shared.u32 [%r3], %r0;\nfence.proxy.async;\nbar.sync 0;\n\
             @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 512;\n\
             @%p0 cp.async.bulk.commit_group;\n{wait}"
        )
    };
    let end: Option<&[&str]> = Some(&["ends while a bulk copy may still read shared memory"]);
    check("no wait before the end", BLOCK, &store(""), end);
    let reuse = "bar.sync 0;\nst.shared.u32 [%r3], %r1;";
    let source: Option<&[&str]> = Some(&[RACE, "cp.async.bulk.global", "has ended it"]);
    check("source reused", BLOCK, &store(reuse), source);
    let read = "@%p0 cp.async.bulk.wait_group.read 0;\n";
    check("source reused after a wait", BLOCK, &store(&format!("{read}{reuse}")), None);
    let result = "bar.sync 0;\nld.global.u32 %r5, [%rd1];";
    let global: Option<&[&str]> = Some(&["race on global memory", "ld.global.u32", "has ended it"]);
    check("result read", BLOCK, &store(&format!("{read}{result}")), global);
    check("result waited for", BLOCK, &store(&format!("@%p0 cp.async.bulk.wait_group 0;\n{result}")), None);
}

#[test]
fn clusters_exchange_between_their_barriers() {
    let exchange = |before: &str, after: &str| {
        format!(
            "st.shared.u32 [%r3], %r0;\n{before}\nmov.u32 %r6, %cluster_ctarank;\nxor.b32 %r6, %r6, 1;\n\
             mapa.shared::cluster.u32 %r7, %r3, %r6;\nld.shared::cluster.u32 %r5, [%r7];\n{after}"
        )
    };
    let barrier = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;";
    let cluster = (4, 64, 2);
    check("both barriers", cluster, &exchange(barrier, barrier), None);
    let remote: Option<&[&str]> = Some(&["race on shared memory", "st.shared.u32", "ld.shared::cluster.u32"]);
    check("a barrier of the block", cluster, &exchange("bar.sync 0;", barrier), remote);
    let overwrite = format!("st.shared.u32 [%r3], %r6;\n{barrier}");
    check("overwritten while the other block reads", cluster, &exchange(barrier, &overwrite), remote);
    let relaxed = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;";
    check("a relaxed arrival", cluster, &exchange(relaxed, barrier), remote);
    let fenced = format!("fence.acq_rel.cluster;\n{relaxed}");
    check("a relaxed arrival after a fence", cluster, &exchange(&fenced, barrier), None);
}

#[test]
fn blocks_pass_results_by_fences_and_atomics() {
    // Each block leaves a word; the block that counts last adds them up.
    let last_block = |count: &str| {
        format!(
            "mov.u32 %r6, %ctaid.x;\nmul.wide.u32 %rd2, %r6, 4;\nadd.u64 %rd2, %rd2, %rd0;\n\
             @%p0 st.global.u32 [%rd2 + 64], %r6;\nmov.u32 %r8, 0;\n{count}\n\
             setp.ne.u32 %p1, %r8, 3;\nsetp.ne.or.u32 %p1, %r0, 0, %p1;\n@%p1 ret;\n\
             ld.global.u32 %r9, [%rd0 + 64];\nld.global.u32 %r9, [%rd0 + 68];\n\
             ld.global.u32 %r9, [%rd0 + 72];\nld.global.u32 %r9, [%rd0 + 76];"
        )
    };
    let grid = (4, 64, 1);
    let add = "@%p0 atom.global.add.u32 %r8, [%rd0], 1;";
    let race: Option<&[&str]> = Some(&["race on global memory", "st.global.u32", "ld.global.u32"]);
    check("fences", grid, &last_block(&format!("membar.gl;\n{add}\nmembar.gl;")), None);
    check("no fence", grid, &last_block(add), race);
    check("no fence after the atomic", grid, &last_block(&format!("membar.gl;\n{add}")), race);
    check("no fence before the atomic", grid, &last_block(&format!("{add}\nmembar.gl;")), race);
    let acq_rel = "@%p0 atom.acq_rel.gpu.global.add.u32 %r8, [%rd0], 1;";
    check("an atomic that releases and acquires", grid, &last_block(acq_rel), None);
    let plain = "@%p0 ld.global.u32 %r8, [%rd0];\nadd.u32 %r7, %r8, 1;\nmembar.gl;\n@%p0 st.global.u32 [%rd0], %r7;\nmembar.gl;";
    check("a counter without atomics", grid, &last_block(plain), Some(&["race on global memory"]));
    // The fence of another warp, before a barrier of the block, covers its words.
    let other_warp = "setp.eq.u32 %p1, %r0, 32;\n@%p1 st.global.u32 [%rd2 + 128], %r6;\nmembar.gl;\nbar.sync 0;\n@%p0 atom.global.add.u32 %r8, [%rd0], 1;\nmembar.gl;";
    let read =
        last_block(other_warp) + "\nld.global.u32 %r9, [%rd0 + 128];\nld.global.u32 %r9, [%rd0 + 140];";
    check("fences of all warps", grid, &read, None);

    // Block 0 waits for the flag of block 1.
    let message = |publish: &str, wait: &str| {
        format!(
            "mov.u32 %r6, %ctaid.x;\nsetp.ne.u32 %p1, %r0, 0;\n@%p1 ret;\nsetp.eq.u32 %p1, %r6, 0;\n\
             @%p1 bra READER;\nst.global.u32 [%rd0 + 64], %r6;\n{publish}\nret;\n\
             READER:\n{wait}\nsetp.eq.u32 %p2, %r8, 0;\n@%p2 nanosleep.u32 20;\n@%p2 bra READER;\n\
             ld.global.u32 %r9, [%rd0 + 64];"
        )
    };
    let pair = (2, 32, 1);
    let release = "st.release.gpu.global.u32 [%rd0], %r6;";
    let acquire = "ld.acquire.gpu.global.u32 %r8, [%rd0];";
    let relaxed = "ld.relaxed.gpu.global.u32 %r8, [%rd0];";
    let volatile = "ld.volatile.global.u32 %r8, [%rd0];";
    let strong = "st.volatile.global.u32 [%rd0], %r6;";
    let weak = "ld.global.u32 %r8, [%rd0];";
    let fenced = format!("fence.acq_rel.gpu;\n{strong}");
    check("release and acquire", pair, &message(release, acquire), None);
    check("release and a relaxed read", pair, &message(release, relaxed), race);
    check("volatile without fences", pair, &message(strong, volatile), race);
    check("volatile with fences", pair, &message(&fenced, &format!("{volatile}\nfence.acq_rel.gpu;")), None);
    check("a weak read of the flag", pair, &message(release, weak), Some(&["race on global memory"]));
}

#[test]
fn lanes_of_one_instruction_agree() {
    check("one lane", BLOCK, "@%p0 st.shared.u32 [%r2], %r0;", None);
    let conflict = |value: &str| format!("setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [%r2], {value};");
    check("one word, one value", BLOCK, &conflict("7"), None);
    let found: Option<&[&str]> = Some(&["different values to shared memory", "st.shared.u32"]);
    check("one word, many values", BLOCK, &conflict("%r0"), found);
    check("atomics", BLOCK, "red.shared.add.u32 [%r2], %r0;", None);
    let overlap = "shl.b32 %r6, %r0, 3;\nadd.u32 %r6, %r6, %r2;\nst.shared.v2.u32 [%r6], {%r0, %r0};";
    check("neighbours", BLOCK, overlap, None);
    check("all warps, one value", BLOCK, "st.shared.u32 [%r2], 7;", None);
    check("all warps, a value each", BLOCK, "st.shared.u32 [%r2], %r1;", Some(&[RACE]));
    let bytes = "add.u32 %r6, %r1, %r2;\nst.shared.u8 [%r6], %r1;";
    check("bytes of one word", BLOCK, bytes, None);
}

/// Without the waits of one kind, a build that needs them has a fault.
#[test]
fn golden_builds_need_their_waits() {
    let options = Options { races: true, max_instructions: 3_000_000, ..Options::default() };
    let (mut found, mut missed) = (0, Vec::new());
    for case in golden_cases() {
        for build in &case.builds {
            let ptx = case.ptx(build).unwrap();
            for kind in [
                &["bar.sync", "barrier.sync"][..],
                &["cp.async.wait_group"],
                &["cp.async.bulk.wait_group"],
                &["mbarrier.try_wait"],
                &["wgmma.wait_group"],
            ] {
                let strip = |line: &str| {
                    let opcode = line.trim_start();
                    match opcode.split_once(char::is_whitespace) {
                        Some((name, operands)) if kind.iter().any(|kind| name.starts_with(kind)) => {
                            match operands.split_once(',') {
                                // The predicate of a wait is true at once.
                                Some((p, _)) => format!("setp.eq.u32 {}, 0, 0;", p.trim()),
                                None => String::new(),
                            }
                        }
                        _ => line.to_string(),
                    }
                };
                let without: Vec<String> = ptx.lines().map(strip).collect();
                let without = without.join("\n");
                if without.lines().eq(ptx.lines()) {
                    continue;
                }
                match case.run(build, &without, &mut CaseDevice::with(options.clone())) {
                    Err(_) => found += 1,
                    Ok(_) => missed.push(format!("{} {} without {kind:?}", case.name, build.arch)),
                }
            }
        }
    }
    // The barriers of its cluster are enough for this one.
    missed.retain(|missed| !(missed.starts_with("tma_multicast") && missed.contains("bar.sync")));
    assert!(missed.is_empty(), "{found} found, but not:\n{}", missed.join("\n"));
    println!("{found} builds without their waits have a fault");
}
