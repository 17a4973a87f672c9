//! Pairs of blocks (`cta_group::2`): golden builds in every mode and order, faults of their protocol that
//! are found, and what the instruction set forbids.

mod kernel;

use kernel::{cluster, limited, run_with, shape};
use perigee_emulator::case::{Case, LaunchShape};
use perigee_emulator::machine::{Asynchrony, CaseDevice, Options};
use std::path::Path;

fn case(name: &str) -> Case {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/fp4");
    Case::load(&Path::new(folder).join(format!("{name}.json"))).unwrap()
}

/// The plain run, and orders with each asynchrony; all of them look for races.
fn modes() -> impl Iterator<Item = Options> {
    let seeds = [None, Some(1), Some(0x5eed)];
    let all = [Asynchrony::Issue, Asynchrony::Late, Asynchrony::Random];
    let options = move |asynchrony, shuffle| Options {
        asynchrony,
        shuffle,
        noise: shuffle,
        spurious: shuffle.is_some(),
        races: true,
        uninitialized: true,
        max_instructions: 20_000_000,
        ..Options::default()
    };
    all.into_iter().flat_map(move |asynchrony| seeds.map(|seed| options(asynchrony, seed)))
}

/// What is wrong with a build, if its text is this one.
fn wrong(case: &Case, ptx: &str, options: Options) -> Option<String> {
    match case.run(&case.builds[0], ptx, &mut CaseDevice::with(options)) {
        Err(error) => Some(error),
        Ok((report, _)) if report.is_right() => None,
        Ok(_) => Some("wrong values".to_string()),
    }
}

#[test]
fn golden_builds() {
    for name in ["gemm_nvfp4_pair", "experts_pair"] {
        let case = case(name);
        let ptx = case.ptx(&case.builds[0]).unwrap();
        for options in modes() {
            let (asynchrony, seed) = (options.asynchrony, options.shuffle);
            let wrong = wrong(&case, &ptx, options);
            assert_eq!(wrong, None, "{name}, {asynchrony:?}, seed {seed:?}");
        }
    }
}

/// Every fault is found whenever copies happen; the text of what is found has one of the parts.
#[test]
fn faults_of_the_protocol() {
    let case = case("gemm_nvfp4_pair");
    let ptx = case.ptx(&case.builds[0]).unwrap();
    let multicast = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r79], %rs1;";
    let one = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r79];";
    let meeting = "barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;";
    let plants: [(&str, &str, &str, &[&str]); 8] = [
        ("products are told to one block", multicast, one, &["nothing can go on"]),
        ("the mask has one block", "mov.b16 \t%rs1, 3;", "mov.b16 \t%rs1, 1;", &["nothing can go on"]),
        ("the mask has the other block", "mov.b16 \t%rs1, 3;", "mov.b16 \t%rs1, 2;", &["nothing can go on"]),
        (
            "the mask has a block too many",
            "mov.b16 \t%rs1, 3;",
            "mov.b16 \t%rs1, 7;",
            &["block 2 of the cluster"],
        ),
        (
            "no meeting before barriers of the other block are used",
            meeting,
            "",
            &["race", "mbarrier", "is not allocated"],
        ),
        (
            "each block's loads report to its own barrier",
            "and.b32 \t%r80, %r10, -16777232;",
            "and.b32 \t%r80, %r10, -16;",
            &["nothing can go on", "mbarrier"],
        ),
        (
            "the other half of the columns",
            "shl.b32 \t%r25, %r59, 6;",
            "mov.b32 \t%r25, 0;",
            &["wrong values"],
        ),
        (
            "products before all loads are there",
            "\twaitLoop:\n\tmbarrier.try_wait.parity.shared::cta.b64 complete, [%r10], %r11;\n\t@!complete bra.uni waitLoop;",
            "",
            &["race"],
        ),
    ];
    for (name, right, wrong_text, parts) in plants {
        assert!(ptx.contains(right), "{name}");
        let planted = ptx.replacen(right, wrong_text, 1);
        for options in modes().step_by(4) {
            let mode = format!("{name}, {:?}, seed {:?}", options.asynchrony, options.shuffle);
            let found = wrong(&case, &planted, options).unwrap_or_else(|| panic!("{mode}: not found"));
            assert!(parts.iter().any(|part| found.contains(part)), "{mode}: {found}");
        }
    }
}

fn fails(shape: LaunchShape, body: &str, part: &str) {
    let head = ".shared .align 128 .b8 s[512]; .shared .align 8 .b64 bar;";
    let error = run_with(limited(), head, shape, 256, body).expect_err(body);
    assert!(error.contains(part), "no `{part}`: {error}");
}

#[test]
fn what_pairs_may_not_do() {
    let allocate = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [s], 32;";
    for shape in [shape(1, 32), shape(2, 32), LaunchShape { grid: [3, 1, 1], ..cluster(3, 32) }] {
        let meet = "barrier.cluster.arrive; barrier.cluster.wait;";
        fails(shape, &format!("{allocate} {meet}"), "has no other block of a pair");
    }
    let one = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;";
    fails(cluster(2, 32), &format!("{allocate} {one}"), "a kernel with `.cta_group::1` and `.cta_group::2`");
    // Only the first block has tensor memory.
    let first = "mov.u32 %r5, %cluster_ctarank; setp.eq.u32 %p1, %r5, 0; elect.sync %r6|%p2, -1; and.pred %p2, %p1, %p2;";
    let copy = "mov.b64 %rd5, 0x0000400800000040; mov.u32 %r7, 0; @%p2 tcgen05.cp.cta_group::2.32x128b.warpx4 [%r7], %rd5; barrier.cluster.arrive; barrier.cluster.wait;";
    let fill = "mov.u32 %r12, s; mad.lo.u32 %r12, %r0, 16, %r12; st.shared.v4.b32 [%r12], {%r0, %r0, %r0, %r0}; barrier.cluster.arrive; barrier.cluster.wait;";
    fails(cluster(2, 32), &format!("{first} {fill} @%p1 {allocate} {copy}"), "column 0 is not allocated");
    // One of the blocks is gone.
    let late =
        "@!%p1 ret; mov.u32 %r8, 0; SPIN: add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 20000; @%p3 bra SPIN;";
    fails(cluster(2, 32), &format!("{first} {late} {allocate}"), "the other block of the pair has exited");
    // A copy reports to a barrier of another pair, or of the other block without being a copy of a pair.
    let barrier = "mov.u32 %r9, bar; @%p2 mbarrier.init.shared::cta.b64 [%r9], 1; barrier.cluster.arrive; barrier.cluster.wait;";
    let load = |rank: u32| {
        format!(
            "{first} {barrier} mapa.shared::cluster.u32 %r10, %r9, {rank}; mov.u32 %r11, s; @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%rd0], 16, [%r10]; barrier.cluster.arrive; barrier.cluster.wait;"
        )
    };
    fails(cluster(2, 32), &load(1), "reports to a barrier of block 1");
    fails(cluster(4, 32), &load(2), "reports to a barrier of block 2");
}
