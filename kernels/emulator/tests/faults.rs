//! Kernels that are wrong: each ends with an error that names the kernel, the line and the thread where there is
//! one, and says what happened.

mod kernel;

use kernel::{cluster, launch, limited, module, run_with, shape, words};
use perigee_emulator::case::LaunchShape;
use perigee_emulator::machine::{Asynchrony, Machine, Options};

/// Line of the first line of a body in the text of [`run_with`]: the body starts on it.
fn line_of(head: &str, body: &str, marked: &str) -> usize {
    let text = module(head, 1, &format!("\n\n\n{body}"));
    let lines: Vec<&str> = text.lines().collect();
    1 + lines.iter().rposition(|line| line.contains(marked)).unwrap_or_else(|| panic!("no `{marked}`"))
}

/// Runs a body that must fail on the line with `@@`, in `thread` where one is named; the error has all parts.
fn faults(
    options: Options,
    head: &str,
    shape: LaunchShape,
    body: &str,
    thread: Option<[u32; 3]>,
    parts: &[&str],
) {
    let clean = body.replace("@@", "");
    let error = run_with(options, head, shape, 256, &clean).expect_err(&clean);
    assert!(error.starts_with("k, "), "the kernel is not named: {error}");
    if body.contains("@@") {
        let marked = clean.lines().nth(body.lines().position(|line| line.contains("@@")).unwrap()).unwrap();
        let line = line_of(head, &clean, marked);
        assert!(error.contains(&format!("line {line} `")), "not line {line}: {error}\n{clean}");
    }
    match thread {
        Some(thread) => assert!(error.contains(&format!("thread {thread:?}")), "{error}"),
        None => assert!(!error.contains(", thread ["), "{error}"),
    }
    for part in parts {
        assert!(error.contains(part), "no `{part}`: {error}");
    }
}

const HEAD: &str =
    ".shared .align 128 .b8 s[512]; .extern .shared .align 16 .b8 dynamic[]; .shared .align 8 .b64 bar;";
const SOME: Option<[u32; 3]> = Some([0, 0, 0]);

fn one(body: &str, thread: Option<[u32; 3]>, parts: &[&str]) {
    faults(limited(), HEAD, shape(1, 32), body, thread, parts);
}

#[test]
fn out_of_bounds() {
    one("\n@@ld.global.u32 %r5, [%rd0+1024];", SOME, &["4 bytes", "behind the end", "1024 bytes"]);
    one("\n@@st.global.v4.u32 [%rd0+1024], {%r0, %r0, %r0, %r0};", SOME, &["16 bytes"]);
    one(
        "setp.eq.u32 %p1, %r0, 9;\n@@@%p1 ld.global.u32 %r5, [%rd0+-4];",
        Some([9, 0, 0]),
        &["before any allocation"],
    );
    one("mov.u64 %rd5, 0;\n@@ld.global.u32 %r5, [%rd5];", SOME, &["0x0"]);
    one("\n@@cp.async.bulk.prefetch.L2.global [%rd0+1008], 32;", SOME, &["32 bytes", "behind the end"]);
    one("mov.u64 %rd5, 64;\n@@ld.u32 %r5, [%rd5];", SOME, &["generic address 0x40 is in no space"]);
    one("mov.u64 %rd5, -8;\n@@atom.global.add.u64 %rd6, [%rd5], 1;", SOME, &["0xfffffffffffffff8"]);
    one("\n@@st.shared.u32 [s+65536], %r0;", SOME, &["shared memory"]);
    one("mov.u32 %r5, 16;\n@@st.shared.u32 [%r5], %r0;", SOME, &["shared memory"]);
    one("mov.u32 %r5, 0;\n@@ld.shared.u32 %r6, [%r5];", SOME, &["shared memory"]);
    one("\n@@st.shared.u32 [dynamic], %r0;", SOME, &["shared memory"]);
    one(".local .b8 frame[64];\n@@st.local.u32 [frame+64], %r0;", SOME, &["64 bytes of local memory"]);
    one(
        ".local .b8 frame[64]; mov.u64 %rd5, -4;\n@@st.local.u32 [%rd5], %r0;",
        SOME,
        &["64 bytes of local memory"],
    );
    one("\n@@ld.param.u64 %rd5, [p0+8];", SOME, &["8 bytes of parameters"]);
    one("mov.u64 %rd5, -4;\n@@ld.param.u32 %r5, [%rd5];", SOME, &["8 bytes of parameters"]);
    one("\n@@cp.async.ca.shared.global [s], [%rd1+4000], 4;", SOME, &["4 bytes"]);
    one(
        "mapa.shared::cluster.u32 %r5, %r0, 0; mov.u32 %r6, 0x04000400;\n@@ld.shared::cluster.u32 %r7, [%r6];",
        SOME,
        &["block 4"],
    );
    one("\n@@mapa.shared::cluster.u32 %r5, %r0, 7;", SOME, &["rank 7 of a cluster of 1"]);
    one(
        "mov.u32 %r5, 3; T: .branchtargets A, A; setp.eq.u32 %p1, %r0, 4;\n@@@%p1 brx.idx %r5, T;\nA: ret;",
        Some([4, 0, 0]),
        &["index 3 of 2"],
    );
    one("mov.u32 %r5, 16;\n@@bar.sync %r5;", None, &["barrier 16"]);
}

#[test]
fn misaligned() {
    for (ty, bytes) in [("b16", 2), ("b32", 4), ("b64", 8), ("v2.b32", 8), ("v4.b32", 16), ("v2.b64", 16)] {
        let value = match ty {
            "b16" => "%h1",
            "b64" => "%rd7",
            "v2.b32" => "{%r5, %r6}",
            "v4.b32" => "{%r5, %r6, %r7, %r8}",
            "v2.b64" => "{%rd7, %rd8}",
            _ => "%r5",
        };
        let off = bytes / 2;
        for (access, base) in [("global", "%rd0"), ("shared", "s")] {
            one(
                &format!("\n@@ld.{access}.{ty} {value}, [{base}+{off}];"),
                SOME,
                &[&format!("{bytes} bytes"), "misaligned"],
            );
            one(
                &format!("\n@@st.{access}.{ty} [{base}+{off}], {value};"),
                SOME,
                &[&format!("{bytes} bytes"), "misaligned"],
            );
        }
    }
    one("\n@@atom.global.add.u32 %r5, [%rd0+2], 1;", SOME, &["misaligned"]);
    one("\n@@red.shared.add.u64 [s+4], 1;", SOME, &["misaligned"]);
    one("\n@@cp.async.cg.shared.global [s+8], [%rd0], 16;", SOME, &["misaligned"]);
    one("\n@@cp.async.cg.shared.global [s], [%rd0+4], 16;", SOME, &["misaligned"]);
    one(
        "\n@@cp.async.bulk.prefetch.L2.global [%rd0+8], 16;",
        SOME,
        &["a prefetch of 16 bytes", "misaligned"],
    );
    one("\n@@mbarrier.init.shared::cta.b64 [bar+4], 1;", SOME, &["not aligned to 8"]);
    one(
        "mov.u32 %r5, 24;\n@@cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], %r5;",
        SOME,
        &["misaligned"],
    );
    one(
        "\n@@cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+8], [%rd0], 16, [bar];",
        SOME,
        &["misaligned"],
    );
    one(
        "mov.u32 %r5, s; add.u32 %r5, %r5, 4;\n@@ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5];",
        SOME,
        &[],
    );
}

#[test]
fn memory_without_content() {
    one("\n@@ld.shared.u32 %r5, [s];", SOME, &["never written"]);
    one("st.shared.u16 [s], 1;\n@@ld.shared.u32 %r5, [s];", SOME, &["byte 2 was never written"]);
    one(".local .b8 frame[64];\n@@ld.local.u32 %r5, [frame];", SOME, &["never written"]);
    one("\n@@atom.shared.add.u32 %r5, [s], 1;", SOME, &["never written"]);
    one("\n@@cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 16;", SOME, &["never written"]);
    let mut machine = Machine::new(1, limited());
    let fresh = machine.allocate(0, 64, 256);
    let text = module("", 1, "ld.param.u64 %rd0, [p0]; ld.global.u32 %r5, [%rd0+8];");
    let error = launch(&mut machine, &text, shape(1, 1), &[fresh]).unwrap_err();
    assert!(error.contains("never written"), "{error}");
    // The search can be left out.
    machine.options.uninitialized = false;
    launch(&mut machine, &text, shape(1, 1), &[fresh]).unwrap();
    machine.options.uninitialized = true;
    machine.write(fresh, &[0; 64]).unwrap();
    launch(&mut machine, &text, shape(1, 1), &[fresh]).unwrap();
    assert!(machine.free(fresh) && !machine.free(fresh));
    let error = launch(&mut machine, &text, shape(1, 1), &[fresh]).unwrap_err();
    assert!(error.contains("line") && error.contains("4 bytes"), "{error}");
    assert!(machine.read(fresh, &mut [0]).is_err() && machine.write(fresh, &[0]).is_err());
    let small = words(&mut machine, &[0; 2]);
    assert!(machine.read(small + 4, &mut [0; 8]).unwrap_err().contains("behind the end"));
}

#[test]
fn memory_of_blocks_that_are_gone() {
    // Block 1 leaves; block 0 reads its memory later.
    let body = "mov.u32 %r5, %cluster_ctarank; st.shared.u32 [s], %r5; barrier.cluster.arrive; barrier.cluster.wait; setp.eq.u32 %p1, %r5, 1;
@%p1 ret;
mov.u32 %r6, 0; SPIN: add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 20000; @%p2 bra SPIN; mov.u32 %r7, s; mapa.shared::cluster.u32 %r8, %r7, 1;
@@ld.shared::cluster.u32 %r9, [%r8];";
    faults(limited(), HEAD, cluster(2, 32), body, SOME, &["block 1 of the cluster", "exited"]);
}

#[test]
fn collectives_without_all_lanes() {
    let half = "setp.lt.u32 %p1, %r0, 16;";
    for code in [
        "shfl.sync.idx.b32 %r5, %r0, 0, 31, -1;",
        "vote.sync.ballot.b32 %r5, 1, -1;",
        "redux.sync.add.u32 %r5, %r0, -1;",
        "match.any.sync.b32 %r5, %r0, -1;",
        "elect.sync %r5|%p2, -1;",
        "bar.warp.sync -1;",
    ] {
        one(&format!("{half}\n@@@%p1 {code}"), Some([16, 0, 0]), &["member mask 0xffffffff names lane 16"]);
        // The others wait elsewhere for ever.
        let body = format!("{half} @%p1 bra A;\nbar.warp.sync 0xffff0001;\nA: @%p1 {code}");
        let error = run_with(limited(), HEAD, shape(1, 32), 256, &body).unwrap_err();
        assert!(error.starts_with("k, "), "{error}");
    }
    one("\n@@vote.sync.ballot.b32 %r5, 1, 0xfffffffe;", SOME, &["does not name the lane itself"]);
    one(
        &format!("{half} @!%p1 ret;\n@@shfl.sync.idx.b32 %r5, %r0, 20, 31, -1;"),
        SOME,
        &["lane 20, which does not take part"],
    );
    for code in [
        "bar.sync 0;",
        "barrier.sync.aligned 0;",
        "bar.red.popc.u32 %r5, 0, 1;",
        "barrier.cluster.arrive.aligned;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [s];",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r5, %r6;",
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r5,%r6,%r7,%r8}, {%r9,%r10}, {%r11}, {%r5,%r6,%r7,%r8};",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r5,%r6,%r7,%r8}, %rd5, %rd6, 1, 1, 1, 0, 0;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], 32;",
    ] {
        one(
            &format!("{half}\n@@@%p1 {code}"),
            Some([16, 0, 0]),
            &["aligned instruction without lanes 0xffff0000"],
        );
        one(
            &format!("{half} @%p1 bra A; bra END;\nA:\n@@{code}\nEND: bar.warp.sync -1;"),
            Some([16, 0, 0]),
            &["aligned"],
        );
    }
}

#[test]
fn scale_selectors() {
    let four =
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    let two =
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0";
    let registers = "{%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4}";
    for (opcode, a, b) in
        [(four, "2, 0", "0, 0"), (four, "0, 2", "0, 0"), (two, "0, 0", "1, 0"), (two, "0, 0", "3, 3")]
    {
        one(&format!("\n@@{opcode} {registers}, %r7, {{{a}}}, %r8, {{{b}}};"), None, &["scale selectors"]);
    }
    for (opcode, a, b) in [(four, "0, 1", "0, 3"), (two, "2, 1", "0, 2")] {
        run_with(
            limited(),
            HEAD,
            shape(1, 32),
            256,
            &format!("{opcode} {registers}, %r7, {{{a}}}, %r8, {{{b}}};"),
        )
        .unwrap();
    }
}

#[test]
fn barriers() {
    one("\n@@bar.sync 0, 48;", None, &["48 threads are not a multiple of 32"]);
    one("\n@@bar.arrive 0, 0;", None, &["0 threads"]);
    let two = |body: &str, parts: &[&str]| faults(limited(), HEAD, shape(1, 64), body, None, parts);
    two(
        "shr.u32 %r5, %r0, 5; add.u32 %r5, %r5, 2; mul.lo.u32 %r5, %r5, 32;\n@@bar.sync 1, %r5;",
        &["barrier 1 is used with"],
    );
    two(
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1, 96; A: ret;",
        &["nothing can go on", "bar.sync", "warp 1"],
    );
    two(
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1; bra B; A: bar.sync 2; B: ret;",
        &["nothing can go on", "warp 0", "warp 1"],
    );
    // Twice at the cluster's barrier without a wait; a wait without an arrival.
    faults(
        limited(),
        HEAD,
        cluster(2, 32),
        "barrier.cluster.arrive;\n@@barrier.cluster.arrive;",
        SOME,
        &["arrives twice"],
    );
    faults(
        limited(),
        HEAD,
        cluster(2, 32),
        "barrier.cluster.wait;",
        None,
        &["nothing can go on", "barrier.cluster.wait"],
    );
    let odd = "mov.u32 %r5, %cluster_ctarank; setp.eq.u32 %p1, %r5, 1; @%p1 bra A; barrier.cluster.arrive; barrier.cluster.wait; bra B;
        A: mbarrier.init.shared::cta.b64 [bar], 1; W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra W; B: ret;";
    faults(
        limited(),
        HEAD,
        cluster(2, 1),
        odd,
        None,
        &["nothing can go on", "barrier.cluster.wait", "try_wait"],
    );
}

#[test]
fn mbarriers() {
    let first = "setp.ne.u32 %p1, %r0, 0; @%p1 ret;";
    let one = |body: &str, parts: &[&str]| one(&format!("{first}\n{body}"), SOME, parts);
    one("@@mbarrier.arrive.shared::cta.b64 _, [bar];", &["mbarrier"]);
    one("st.shared.u64 [bar], 5;\n@@mbarrier.arrive.shared::cta.b64 _, [bar];", &["no mbarrier here"]);
    one("@@mbarrier.init.shared::cta.b64 [bar], 0;", &["count 0"]);
    one("@@mbarrier.init.shared::cta.b64 [bar], 1048576;", &["1048576"]);
    let init = "mbarrier.init.shared::cta.b64 [bar], 2;";
    one(&format!("{init}\n@@mbarrier.arrive.shared::cta.b64 _, [bar], 3;"), &["3 arrivals", "expects 2"]);
    one(
        &format!("{init} mbarrier.inval.shared::cta.b64 [bar];\n@@mbarrier.arrive.shared::cta.b64 _, [bar];"),
        &["inval"],
    );
    one(&format!("{init}\n@@mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [bar], 2;"), &["noComplete"]);
    one(
        &format!("{init}\n@@mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048576;"),
        &["transaction count"],
    );
    one(
        &format!("{init}\n@@mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1048576;"),
        &["transaction count"],
    );
    one(
        &format!("{init} mov.u64 %rd5, 77;\n@@mbarrier.test_wait.shared::cta.b64 %p2, [bar], %rd5;"),
        &["not a state"],
    );
    one(
        &format!(
            "{init} mbarrier.arrive.shared::cta.b64 %rd5, [bar], 1; mbarrier.arrive.shared::cta.b64 _, [bar];
mbarrier.arrive.shared::cta.b64 _, [bar], 2;\n@@mbarrier.test_wait.shared::cta.b64 %p2, [bar], %rd5;"
        ),
        &["2 phases old"],
    );
    one(&format!("{init}\n@@mbarrier.arrive_drop.shared::cta.b64 _, [bar], 3;"), &["drop"]);
    // A copy that reports where no barrier is.
    one(
        "@@cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd0], 16, [bar];",
        &["mbarrier"],
    );
    one("mov.u64 %rd5, 99;\n@@mbarrier.pending_count.b64 %r5, %rd5;", &["not a state"]);
}

#[test]
fn deadlocks() {
    let head = HEAD;
    let first = "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], 2; bar.sync 0;";
    for asynchrony in [Asynchrony::Issue, Asynchrony::Late] {
        let options = Options { asynchrony, ..limited() };
        // A barrier that lacks an arrival, one that lacks bytes, and one whose phase is long over.
        let lacking = format!(
            "{first} @%p1 mbarrier.arrive.shared::cta.b64 _, [bar]; W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra W;"
        );
        faults(
            options.clone(),
            head,
            shape(1, 64),
            &lacking,
            None,
            &["nothing can go on", "warp 0", "warp 1", "try_wait"],
        );
        let bytes = format!(
            "{first} @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 64; @%p1 mbarrier.arrive.shared::cta.b64 _, [bar];
             @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd0], 32, [bar]; W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra W;"
        );
        faults(options, head, shape(1, 64), &bytes, None, &["nothing can go on", "try_wait"]);
    }
    // With waits that give up at random either the spin or the standstill is found.
    let options = Options { spurious: true, shuffle: Some(1), max_instructions: 100_000, ..limited() };
    let lacking = format!("{first} W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra W;");
    faults(options, head, shape(1, 32), &lacking, None, &[]);
}

#[test]
fn endless_loops() {
    let options = || Options { max_instructions: 100_000, ..limited() };
    for body in [
        "L: bra L;",
        "L: nanosleep.u32 1; bra L;",
        "L: bar.sync 0; bra L;",
        "L: ld.volatile.global.u32 %r5, [%rd0]; setp.ne.u32 %p1, %r5, 0; @%p1 bra L;",
        "mov.u32 %r5, 0; T: .branchtargets L; L: brx.idx %r5, T;",
        "setp.lt.u32 %p1, %r0, 5; L: @%p1 bra L; bar.warp.sync -1;",
        "setp.lt.u32 %p1, %r0, 5; L: @%p1 exit; bra L;",
        "L: vote.sync.any.pred %p2, 1, -1; bra L;",
    ] {
        faults(options(), HEAD, shape(1, 64), body, None, &["no end after"]);
    }
    // Two grids, one of which spins.
    let mut machine = Machine::new(2, options());
    let [idle, spin] = ["ret;", "L: bra L;"].map(|body| {
        let module = machine.load(0, &module("", 0, body)).unwrap();
        module.kernel("k").unwrap()
    });
    let fault = machine.launch_together(&[(&idle, shape(1, 1), &[]), (&spin, shape(1, 1), &[])]).unwrap_err();
    assert!(fault.text.contains("no end after"), "{fault}");
}

#[test]
fn text_that_is_not_known() {
    let refuses = |body: &str, parts: &[&str]| {
        let mut machine = Machine::new(1, limited());
        let text = module("", 0, body);
        let error = launch(&mut machine, &text, shape(1, 32), &[]).expect_err(body);
        let line = 1 + text.lines().position(|line| line.contains(body)).unwrap();
        for part in parts.iter().copied().chain([format!("line {line}").as_str()]) {
            assert!(error.contains(part), "no `{part}`: {error}");
        }
    };
    refuses("frobnicate.f32 %f1, %f2;", &["k, ", "`frobnicate.f32`", "does not know this instruction"]);
    refuses("add.rq.f32 %f1, %f2, %f3;", &["`add.rq.f32`", ".rq"]);
    refuses("add.s8 %r1, %r2, %r3;", &["`add.s8`", "S8"]);
    refuses("add.u64 %r1, %r2, %r3;", &["`add.u64`", "%r2", "width"]);
    refuses("setp.lt.s32 %r1, %r2, %r3;", &["predicate"]);
    refuses("setp.sometimes.s32 %p1, %r2, %r3;", &["comparison"]);
    refuses("setp.ltu.s32 %p1, %r2, %r3;", &["comparison"]);
    refuses("add.u32 5, %r2, %r3;", &["not a register"]);
    refuses("ld.global.u32 5, [%rd1];", &["not a register"]);
    refuses("ld.global.v2.u32 {%r1, 7}, [%rd1];", &["not a register"]);
    refuses("ld.global.v3.u32 {%r1, %r2, %r3}, [%rd1];", &["`ld.global.v3.u32`"]);
    refuses("mov.b64 {%r1, %r2, %r3}, %rd1;", &["3 parts"]);
    refuses("mov.u32 %r1, %nonsense;", &["%nonsense"]);
    refuses("bra %r1;", &["label"]);
    refuses("bra NOWHERE;", &["NOWHERE"]);
    refuses("mov.u32 %r1, nowhere;", &["nowhere"]);
    refuses("cvt.f32.e9m9x2 %f1, %r1;", &["cvt.f32.e9m9x2"]);
    refuses("call foo;", &["foo"]);
    refuses("cp.async.ca.shared.global [%r1], [%rd1], 5;", &["5 bytes"]);
    refuses("mma.sync.aligned.m1n1k1.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};", &["mma"]);
    let mut machine = Machine::new(1, limited());
    let error = machine.load(0, ".entry k() {\n @ }").unwrap_err();
    assert!(error.contains("line 2"), "{error}");
    let loaded = machine.load(0, &module("", 0, "ret;")).unwrap();
    let error = loaded.kernel("other").unwrap_err();
    assert!(error.contains("`other`") && error.contains("the module has k"), "{error}");
}

#[test]
fn launches_that_do_not_fit() {
    let refuses = |directives: &str, shape: LaunchShape, parameters: &[u8], parts: &[&str]| {
        let text = format!(
            ".version 8.8\n.target sm_90a\n.shared .b8 s[1000];\n.visible .entry k(.param .u64 a, .param .u32 b) {directives} {{ ret; }}"
        );
        let mut machine = Machine::new(1, limited());
        let module = machine.load(0, &text).unwrap();
        let kernel = module.kernel("k").unwrap();
        assert_eq!(
            (kernel.parameter_bytes(), kernel.static_shared_bytes(), kernel.local_bytes()),
            (12, 1000, 0)
        );
        let fault = machine.launch(&kernel, shape, parameters).expect_err(directives);
        assert_eq!((fault.kernel.as_str(), fault.line, fault.thread), ("k", 0, None));
        for part in parts {
            assert!(fault.to_string().contains(part), "no `{part}`: {fault}");
        }
    };
    let fits = shape(1, 32);
    refuses("", fits, &[0; 11], &["11 bytes of parameters", "12"]);
    refuses("", LaunchShape { block: [0, 1, 1], ..fits }, &[0; 12], &["[0, 1, 1] threads"]);
    refuses("", LaunchShape { block: [1025, 1, 1], ..fits }, &[0; 12], &["1025"]);
    refuses("", LaunchShape { block: [65536, 65536, 1], ..fits }, &[0; 12], &["65536"]);
    refuses("", LaunchShape { grid: [1, 0, 1], ..fits }, &[0; 12], &["without blocks"]);
    refuses("", LaunchShape { grid: [u32::MAX; 3], ..fits }, &[0; 12], &["too many"]);
    refuses("", LaunchShape { cluster: [0, 1, 1], ..fits }, &[0; 12], &["clusters of [0, 1, 1]"]);
    refuses("", LaunchShape { cluster: [17, 1, 1], grid: [17, 1, 1], ..fits }, &[0; 12], &["17"]);
    refuses(
        "",
        LaunchShape { cluster: [2, 1, 1], grid: [3, 1, 1], ..fits },
        &[0; 12],
        &["in clusters of [2, 1, 1]"],
    );
    refuses(
        "",
        LaunchShape { dynamic_shared_bytes: 232_448, ..fits },
        &[0; 12],
        &["233448 bytes of shared memory"],
    );
    refuses(
        "",
        LaunchShape { dynamic_shared_bytes: u32::MAX, ..fits },
        &[0; 12],
        &["bytes of shared memory"],
    );
    refuses(".reqntid 64", fits, &[0; 12], &["requires", "[64, 1, 1]"]);
    refuses(".maxntid 16, 1, 1", fits, &[0; 12], &["16"]);
    refuses(".reqnctapercluster 2", fits, &[0; 12], &["requires", "[2, 1, 1]"]);
}

#[test]
fn traps_and_blocks_are_named() {
    let body = "mov.u32 %r5, %ctaid.x; setp.eq.u32 %p1, %r5, 3; setp.eq.u32 %p2, %r0, 7; and.pred %p1, %p1, %p2;\n@@@%p1 trap;";
    faults(limited(), HEAD, shape(5, 32), body, None, &["block [3, 0, 0]", "trap"]);
    let shape = LaunchShape { block: [4, 4, 4], ..shape(1, 1) };
    let body = "mov.u32 %r5, %tid.z; mov.u32 %r6, %tid.y; setp.eq.u32 %p1, %r5, 2; setp.eq.and.u32 %p1, %r6, 1, %p1; setp.eq.and.u32 %p1, %r0, 3, %p1;\n@@@%p1 st.global.u32 [%rd0+99999], %r0;";
    faults(limited(), HEAD, shape, body, Some([3, 1, 2]), &["misaligned"]);
}
