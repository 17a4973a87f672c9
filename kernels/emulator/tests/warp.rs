//! Collectives, divergence, barriers, clusters and devices: what lanes, warps, blocks and grids do together.

mod kernel;

use kernel::{Random, cluster, launch, limited, module, read_words, run, run_with, shape, words};
use perigee_emulator::case::LaunchShape;
use perigee_emulator::machine::{Asynchrony, Machine, Options};

/// Options that make the machine as uncooperative as it can be, with the plain ones first.
fn modes() -> Vec<Options> {
    let mut modes = vec![limited()];
    for (seed, asynchrony) in
        [(1, Asynchrony::Issue), (2, Asynchrony::Late), (3, Asynchrony::Random), (4, Asynchrony::Random)]
    {
        modes.push(Options {
            shuffle: Some(seed),
            noise: Some(seed),
            spurious: true,
            asynchrony,
            ..limited()
        });
    }
    modes.push(Options { asynchrony: Asynchrony::Late, ..limited() });
    modes
}

/// The output words of a body in every mode, which must agree.
fn in_all_modes(head: &str, shape: LaunchShape, count: usize, body: &str) -> Vec<u32> {
    let mut first = None;
    for options in modes() {
        let text = format!("{options:?}");
        let got = run_with(options, head, shape, count, body)
            .unwrap_or_else(|error| panic!("{error}\n{text}\n{body}"));
        let first = first.get_or_insert_with(|| got.clone());
        assert_eq!(*first, got, "{text}");
    }
    first.unwrap()
}

#[test]
fn shuffles() {
    for width in [1u32, 2, 4, 8, 16, 32] {
        for (mode, clamp) in [("up", 0), ("down", 31), ("bfly", 31), ("idx", 31)] {
            for b in [0u32, 1, 2, 4, 5, 8, 16, 31] {
                let c = (32 - width) << 8 | clamp;
                let body = format!(
                    "add.u32 %r5, %r0, 1000; shfl.sync.{mode}.b32 %r6|%p1, %r5, {b}, {c}, -1; st.global.u32 [%rd1], %r6;
                     selp.u32 %r7, 1, 0, %p1; st.global.u32 [%rd1+128], %r7;"
                );
                let got = run("", shape(1, 32), 64, &body);
                for lane in 0..32u32 {
                    // Segments of `width` lanes: the source, if it lies in the lane's own segment.
                    let first = lane / width * width;
                    let place = lane - first;
                    let source = match mode {
                        "up" => place.checked_sub(b),
                        "down" => Some(place + b).filter(|&to| to < width),
                        // Earlier segments may be read, later ones not.
                        "bfly" => {
                            Some((lane ^ b).wrapping_sub(first)).filter(|&to| (to as i32) < width as i32)
                        }
                        _ => Some(b % width),
                    };
                    let want =
                        ((1000 + first).wrapping_add(source.unwrap_or(place)), u32::from(source.is_some()));
                    assert_eq!(
                        (got[lane as usize], got[lane as usize + 32]),
                        want,
                        "{mode} {width} {b} lane {lane}"
                    );
                }
            }
        }
    }
    // A clamp below the segment's end, and a lane operand that differs by lane.
    let got = run(
        "",
        shape(1, 32),
        32,
        "xor.b32 %r5, %r0, 31; shfl.sync.idx.b32 %r6, %r0, %r5, 31, -1; st.global.u32 [%rd1], %r6;",
    );
    assert!((0..32).all(|lane| got[lane] == 31 - lane as u32));
    let got = run(
        "",
        shape(1, 32),
        32,
        "shfl.sync.down.b32 %r6|%p1, %r0, 1, 9, -1; @!%p1 add.u32 %r6, %r6, 100; st.global.u32 [%rd1], %r6;",
    );
    assert!((0..32u32).all(|lane| got[lane as usize] == if lane < 9 { lane + 1 } else { lane + 100 }));
}

#[test]
fn votes_matches_and_reductions() {
    let mut random = Random(11);
    for _ in 0..20 {
        let (votes, members) = (random.next() as u32, random.next() as u32 | 1 << 5);
        let value = |lane: u32| votes.rotate_left(lane) % 7;
        // Lanes outside the members leave first.
        let body = format!(
            "shr.u32 %r5, {members}, %r0; and.b32 %r5, %r5, 1; setp.eq.u32 %p1, %r5, 0; @%p1 bra DONE;
             shr.u32 %r5, {votes}, %r0; and.b32 %r5, %r5, 1; setp.eq.u32 %p2, %r5, 1;
             vote.sync.ballot.b32 %r6, %p2, {members}; st.global.u32 [%rd1], %r6;
             vote.sync.ballot.b32 %r6, !%p2, {members}; st.global.u32 [%rd1+128], %r6;
             vote.sync.all.pred %p3, %p2, {members}; vote.sync.any.pred %p4, %p2, {members}; vote.sync.uni.pred %p5, %p2, {members};
             selp.u32 %r6, 1, 0, %p3; selp.u32 %r7, 2, 0, %p4; selp.u32 %r8, 4, 0, %p5; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8;
             st.global.u32 [%rd1+256], %r6;
             shf.l.wrap.b32 %r9, {votes}, {votes}, %r0; rem.u32 %r9, %r9, 7; mov.b64 %rd5, {{%r9, 5}};
             match.any.sync.b32 %r6, %r9, {members}; st.global.u32 [%rd1+384], %r6;
             match.any.sync.b64 %r6, %rd5, {members}; st.global.u32 [%rd1+512], %r6;
             match.all.sync.b32 %r6|%p6, %r9, {members}; selp.u32 %r6, %r6, 77, %p6; st.global.u32 [%rd1+640], %r6;
             match.all.sync.b32 %r6|%p6, 3, {members}; selp.u32 %r6, %r6, 77, %p6; st.global.u32 [%rd1+768], %r6;
             elect.sync %r6|%p7, {members}; selp.u32 %r6, %r6, 99, %p7; st.global.u32 [%rd1+896], %r6;
             activemask.b32 %r6; st.global.u32 [%rd1+1024], %r6;
             DONE: bar.warp.sync -1;"
        );
        let got = in_all_modes("", shape(1, 32), 288, &body);
        let named: Vec<u32> = (0..32).filter(|lane| members >> lane & 1 == 1).collect();
        let yes = votes & members;
        for &lane in &named {
            let at = |row: usize| got[row * 32 + lane as usize];
            let equal = named
                .iter()
                .filter(|&&other| value(other) == value(lane))
                .fold(0, |mask, lane| mask | 1 << lane);
            assert_eq!((at(0), at(1)), (yes, !votes & members));
            let all = u32::from(yes == members)
                | u32::from(yes != 0) << 1
                | u32::from(yes == 0 || yes == members) << 2;
            assert_eq!(at(2), all);
            assert_eq!((at(3), at(4)), (equal, equal));
            assert_eq!((at(5), at(6)), (if equal == members { members } else { 77 }, members));
            assert_eq!(at(7), if lane == named[0] { lane } else { 99 });
            assert_eq!(at(8), members);
        }
    }
    let values: Vec<u32> = (0..32).map(|lane: u32| lane.wrapping_mul(0x9e37_79b9) ^ 0x1234).collect();
    let load = "mul.lo.u32 %r5, %r0, 0x9e3779b9; xor.b32 %r5, %r5, 0x1234;";
    type Fold = fn(u32, u32) -> u32;
    let table: [(&str, Fold); 9] = [
        ("add.u32", u32::wrapping_add),
        ("add.s32", u32::wrapping_add),
        ("min.u32", u32::min),
        ("max.u32", u32::max),
        ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
        ("max.s32", |a, b| (a as i32).max(b as i32) as u32),
        ("and.b32", |a, b| a & b),
        ("or.b32", |a, b| a | b),
        ("xor.b32", |a, b| a ^ b),
    ];
    for (op, fold) in table {
        let got = run(
            "",
            shape(1, 32),
            32,
            &format!("{load} redux.sync.{op} %r6, %r5, -1; st.global.u32 [%rd1], %r6;"),
        );
        let want = values.iter().copied().reduce(fold).unwrap();
        assert!(got.iter().all(|&got| got == want), "{op}");
    }
    // f32: lane 3 holds NaN, the others their number less 16.
    let floats = "cvt.rn.f32.s32 %f1, %r0; sub.f32 %f1, %f1, 0f41800000; setp.eq.u32 %p1, %r0, 3; @%p1 mov.b32 %f1, 0x7fffffff;";
    for (op, want) in [
        ("min", -16f32),
        ("max", 15.0),
        ("min.abs", 0.0),
        ("max.abs", 16.0),
        ("max.NaN", f32::NAN),
        ("min.abs.NaN", f32::NAN),
    ] {
        let got = run(
            "",
            shape(1, 32),
            32,
            &format!("{floats} redux.sync.{op}.f32 %f2, %f1, -1; st.global.b32 [%rd1], %f2;"),
        );
        let want = if want.is_nan() { 0x7fff_ffff } else { want.to_bits() };
        assert!(got.iter().all(|&got| got == want), "{op} {:#x}", got[0]);
    }
}

#[test]
fn halves_of_a_warp_with_masks_of_their_own() {
    // The same instruction, two member masks.
    let body = "setp.lt.u32 %p1, %r0, 16; selp.b32 %r5, 0x0000ffff, 0xffff0000, %p1;
        setp.gt.u32 %p2, %r0, 3; vote.sync.ballot.b32 %r6, %p2, %r5; st.global.u32 [%rd1], %r6;
        shfl.sync.bfly.b32 %r6, %r0, 1, 0x101f, %r5; st.global.u32 [%rd1+128], %r6;
        redux.sync.add.u32 %r6, %r0, %r5; st.global.u32 [%rd1+256], %r6;
        elect.sync %r6|%p3, %r5; selp.u32 %r7, 1, 0, %p3; st.global.u32 [%rd1+384], %r7;
        match.any.sync.b32 %r6, 1, %r5; st.global.u32 [%rd1+512], %r6; bar.warp.sync %r5;";
    let got = in_all_modes("", shape(1, 32), 160, body);
    for lane in 0..32usize {
        let low = lane < 16;
        assert_eq!(got[lane], if low { 0xfff0 } else { 0xffff_0000 });
        assert_eq!(got[32 + lane], lane as u32 ^ 1);
        assert_eq!(got[64 + lane], if low { 120 } else { 376 });
        assert_eq!(got[96 + lane], u32::from(lane % 16 == 0));
        assert_eq!(got[128 + lane], if low { 0xffff } else { 0xffff_0000 });
    }
}

#[test]
fn divergence() {
    // Loops of different lengths, nested branches, and a meeting behind them.
    let body = "mov.u32 %r5, 0; mov.u32 %r6, 0;
        LOOP: setp.ge.u32 %p1, %r5, %r0; @%p1 bra OUT; and.b32 %r7, %r5, 1; setp.eq.u32 %p2, %r7, 0; @%p2 bra EVEN;
        add.u32 %r6, %r6, 10; setp.gt.u32 %p3, %r5, 20; @!%p3 bra JOIN; add.u32 %r6, %r6, 1000; bra JOIN;
        EVEN: add.u32 %r6, %r6, 1; JOIN: add.u32 %r5, %r5, 1; bra LOOP;
        OUT: activemask.b32 %r8; shfl.sync.up.b32 %r9, %r6, 1, 0, -1; st.global.u32 [%rd1], %r6; st.global.u32 [%rd1+128], %r9;
        bar.warp.sync -1; activemask.b32 %r8; st.global.u32 [%rd1+256], %r8;";
    let got = in_all_modes("", shape(1, 32), 96, body);
    let sum = |lane: u32| {
        (0..lane)
            .map(|i| {
                if i % 2 == 0 {
                    1
                } else if i > 20 {
                    1010
                } else {
                    10
                }
            })
            .sum::<u32>()
    };
    for lane in 0..32u32 {
        let at = lane as usize;
        assert_eq!((got[at], got[32 + at], got[64 + at]), (sum(lane), sum(lane.saturating_sub(1)), u32::MAX));
    }
    // Each lane to one of three targets; the guard keeps some from branching.
    let body = "rem.u32 %r5, %r0, 3; setp.ne.u32 %p1, %r0, 31; mov.u32 %r6, 5; T: .branchtargets A, B, C; @%p1 brx.idx %r5, T; bra D;
        A: add.u32 %r6, %r6, 100; bra D; B: add.u32 %r6, %r6, 200; C: add.u32 %r6, %r6, 1; D: st.global.u32 [%rd1], %r6;";
    let got = in_all_modes("", shape(1, 32), 32, body);
    for lane in 0..32 {
        assert_eq!(got[lane], if lane == 31 { 5 } else { [105, 206, 6][lane % 3] }, "lane {lane}");
    }
}

/// A branch that lies behind the code that it leads back to, as compilers lay out what they take for rare: the warp is whole again at the
/// barrier.
#[test]
fn a_barrier_waits_for_lanes_that_come_from_behind() {
    let body = "mov.u32 %r5, 1; setp.lt.u32 %p1, %r0, 8; @%p1 bra RARE; BACK: bar.sync 0; st.global.u32 [%rd1], %r5; bra END;
        RARE: mov.u32 %r5, 2; bra BACK; END: bar.warp.sync -1;";
    let got = in_all_modes("", shape(1, 64), 64, body);
    for (lane, value) in got.iter().enumerate() {
        assert_eq!(*value, if lane < 8 { 2 } else { 1 }, "lane {lane}");
    }
}

#[test]
fn lanes_of_a_warp_that_wait_for_each_other() {
    // Each lane has its turn; a lane that sleeps does not stop the one whose turn it is.
    let body = "setp.ne.u32 %p1, %r0, 0; @!%p1 st.shared.u32 [turn], 0; bar.warp.sync -1;
        WAIT: ld.volatile.shared.u32 %r5, [turn]; setp.eq.u32 %p2, %r5, %r0; @%p2 bra MINE; nanosleep.u32 20; bra WAIT;
        MINE: st.global.u32 [%rd1], %r5; add.u32 %r5, %r5, 1; st.volatile.shared.u32 [turn], %r5;";
    let got = in_all_modes(".shared .align 4 .b32 turn;", shape(1, 32), 32, body);
    assert!((0..32u32).all(|lane| got[lane as usize] == lane));
}

#[test]
fn warp_barriers_in_both_branches() {
    // Lanes meet at two different instructions; what was stored before is seen behind them.
    let body = "shl.b32 %r5, %r0, 2; mov.u32 %r6, cells; add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r0; setp.lt.u32 %p1, %r0, 9;
        @%p1 bra LEFT; bar.warp.sync -1; mov.u32 %r7, 1; bra JOIN; LEFT: bar.warp.sync -1; mov.u32 %r7, 2;
        JOIN: xor.b32 %r8, %r0, 31; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r6; ld.shared.u32 %r9, [%r8]; mad.lo.u32 %r9, %r9, 10, %r7;
        st.global.u32 [%rd1], %r9;";
    let got = in_all_modes(".shared .align 4 .b32 cells[32];", shape(1, 32), 32, body);
    assert!((0..32u32).all(|lane| got[lane as usize] == (31 - lane) * 10 + if lane < 9 { 2 } else { 1 }));
}

#[test]
fn lanes_that_meet_late_go_on_together() {
    // A lane comes back from behind the place where the others wait for it; the barrier of the block there wants all of them.
    let body = "mov.u32 %r5, 7; setp.eq.u32 %p1, %r0, 12; @%p1 bra SLOW;
        MEET: bar.warp.sync -1; bar.sync 0; st.global.u32 [%rd1], %r5; bra END;
        SLOW: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 100; @%p2 bra SLOW; bra MEET; END:";
    let got = in_all_modes("", shape(1, 64), 64, body);
    assert!((0..64).all(|lane| got[lane] == if lane == 12 { 100 } else { 7 }));
}

#[test]
fn lanes_that_exit_early() {
    // Odd lanes leave; a whole warp leaves; the others still pass barriers and collectives.
    let body = "and.b32 %r5, %r0, 1; setp.eq.u32 %p1, %r5, 1; @%p1 exit; setp.ge.u32 %p2, %r0, 96; @%p2 ret;
        bar.sync 0; vote.sync.ballot.b32 %r6, 1, -1; bar.sync 0; bar.red.popc.u32 %r7, 0, 1; add.u32 %r6, %r6, %r7; st.global.u32 [%rd1], %r6;";
    let got = in_all_modes("", shape(1, 128), 128, body);
    for lane in 0..128 {
        assert_eq!(
            got[lane],
            if lane % 2 == 0 && lane < 96 { 0x5555_5555 + 48 } else { 0xcccc_cccc },
            "{lane}"
        );
    }
    // A block that is no multiple of a warp.
    let got = in_all_modes(
        "",
        shape(1, 45),
        45,
        "bar.sync 0; vote.sync.ballot.b32 %r6, 1, -1; st.global.u32 [%rd1], %r6; bar.sync 0;",
    );
    assert!((0..45).all(|thread| got[thread] == if thread < 32 { u32::MAX } else { (1 << 13) - 1 }));
}

#[test]
fn named_barriers() {
    // Warps 0 and 1 produce into two buffers, warp 2 consumes: full and empty barriers of 64 threads each.
    let body = "shr.u32 %r5, %r0, 5; and.b32 %r6, %r0, 31; mov.u32 %r7, 0; mov.u32 %r12, 0; setp.eq.u32 %p1, %r5, 2; @%p1 bra CONSUMER;
        PRODUCE: setp.eq.u32 %p3, %r7, 0; add.u32 %r8, %r5, 3; @%p3 bra FIRST; bar.sync %r8, 64;
        FIRST: mad.lo.u32 %r9, %r5, 32, %r6; shl.b32 %r9, %r9, 2; mov.u32 %r10, buffer; add.u32 %r9, %r9, %r10;
        mad.lo.u32 %r11, %r7, 100, %r0; st.shared.u32 [%r9], %r11; add.u32 %r8, %r5, 1; bar.arrive %r8, 64;
        add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 5; @%p2 bra PRODUCE; ret;
        CONSUMER: mov.u32 %r13, 0;
        EACH: add.u32 %r8, %r13, 1; bar.sync %r8, 64; mad.lo.u32 %r9, %r13, 32, %r6; shl.b32 %r9, %r9, 2; mov.u32 %r10, buffer;
        add.u32 %r9, %r9, %r10; ld.shared.u32 %r11, [%r9]; mad.lo.u32 %r12, %r12, 3, %r11; setp.lt.u32 %p4, %r7, 4; add.u32 %r8, %r13, 3;
        @%p4 bar.arrive %r8, 64; add.u32 %r13, %r13, 1; setp.lt.u32 %p2, %r13, 2; @%p2 bra EACH;
        add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 5; @%p2 bra CONSUMER; mul.wide.u32 %rd5, %r6, 4; add.u64 %rd5, %rd5, %rd0; st.global.u32 [%rd5], %r12;";
    let got = in_all_modes(".shared .align 4 .b32 buffer[64];", shape(1, 96), 32, body);
    for lane in 0..32u32 {
        let want = (0..5)
            .flat_map(|round| [round * 100 + lane, round * 100 + lane + 32])
            .fold(0u32, |sum, x| sum.wrapping_mul(3).wrapping_add(x));
        assert_eq!(got[lane as usize], want);
    }
    // Without a promise of alignment lanes arrive on their own.
    let body = "setp.lt.u32 %p1, %r0, 7; @%p1 bra A; barrier.sync 5; bra B; A: barrier.sync 5; B: st.global.u32 [%rd1], %r0;";
    assert!(in_all_modes("", shape(1, 64), 64, body).iter().enumerate().all(|(at, &word)| at as u32 == word));
    // Reductions over three warps.
    let body = "setp.lt.u32 %p1, %r0, 50; setp.lt.u32 %p2, %r0, 500; bar.red.popc.u32 %r5, 1, %p1; bar.red.popc.u32 %r6, 1, 96, !%p1;
        bar.red.and.pred %p3, 2, %p1; bar.red.or.pred %p4, 2, %p1; bar.red.and.pred %p5, 2, %p2; bar.red.or.pred %p6, 2, !%p2;
        selp.u32 %r7, 1, 0, %p3; selp.u32 %r8, 2, 0, %p4; selp.u32 %r9, 4, 0, %p5; selp.u32 %r10, 8, 0, %p6;
        add.u32 %r7, %r7, %r8; add.u32 %r9, %r9, %r10; add.u32 %r7, %r7, %r9; mad.lo.u32 %r5, %r5, 1000, %r6; mad.lo.u32 %r5, %r5, 10, %r7; st.global.u32 [%rd1], %r5;";
    assert!(in_all_modes("", shape(1, 96), 96, body).iter().all(|&word| word == 500_466));
}

/// A body in which the blocks of a cluster store their rank, meet, and read each other's.
#[test]
fn clusters_and_distributed_memory() {
    let head = ".shared .align 16 .b32 cells[32];";
    let body = "mov.u32 %r5, %cluster_ctarank; mov.u32 %r6, cells; shl.b32 %r7, %r0, 2; add.u32 %r8, %r6, %r7; mad.lo.u32 %r9, %r5, 100, %r0;
        st.shared.u32 [%r8], %r9; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        add.u32 %r10, %r5, 1; rem.u32 %r10, %r10, 4; mapa.shared::cluster.u32 %r11, %r8, %r10; ld.shared::cluster.u32 %r12, [%r11]; st.global.u32 [%rd1], %r12;
        cvt.u64.u32 %rd5, %r8; cvta.shared.u64 %rd6, %rd5; mapa.u64 %rd7, %rd6, %r10; ld.u32 %r13, [%rd7]; getctarank.u64 %r14, %rd7; getctarank.shared::cluster.u32 %r15, %r11;
        mad.lo.u32 %r13, %r14, 1000, %r13; mad.lo.u32 %r13, %r15, 10000, %r13; st.global.u32 [%rd1+512], %r13;
        atom.shared::cluster.add.u32 %r16, [%r11], 7; barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %r16, [%r8]; st.global.u32 [%rd1+1024], %r16;";
    let got = in_all_modes(head, cluster(4, 32), 384, body);
    for rank in 0..4u32 {
        for lane in 0..32u32 {
            let (at, next) = ((rank * 32 + lane) as usize, (rank + 1) % 4);
            assert_eq!(got[at], next * 100 + lane);
            assert_eq!(got[128 + at], next * 11_000 + next * 100 + lane);
            assert_eq!(got[256 + at], rank * 100 + lane + 7);
        }
    }
}

#[test]
fn exited_blocks_have_arrived_at_the_cluster_barrier() {
    // Block 0 arrives and leaves; block 1 arrives late: blocks 2 and 3 must not pass before.
    let body = "mov.u32 %r5, %cluster_ctarank; setp.ne.u32 %p1, %r5, 0; @%p1 bra REST; barrier.cluster.arrive; ret;
        REST: setp.ne.u32 %p2, %r5, 1; @%p2 bra MEET; mov.u32 %r6, 0;
        SPIN: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 20000; @%p3 bra SPIN; st.global.u32 [%rd0], 55;
        MEET: barrier.cluster.arrive; barrier.cluster.wait; ld.global.u32 %r7, [%rd0]; st.global.u32 [%rd1], %r7;";
    let got = in_all_modes("", cluster(4, 32), 128, body);
    assert!(got[32..].iter().all(|&word| word == 55), "{got:x?}");
}

/// A wait for a phase of an mbarrier at `%r20`; the labels are local.
fn wait(parity: u32) -> String {
    format!(
        "{{ .reg .pred done; W: mbarrier.try_wait.parity.shared::cta.b64 done, [%r20], {parity}; @!done bra W; }}\n"
    )
}

const BARRIER: &str =
    ".shared .align 8 .b64 bar; .shared .align 128 .b32 data[256]; .shared .align 128 .b32 more[256];";
const FIRST: &str = "mov.u32 %r20, bar; mov.u32 %r21, data; mov.u32 %r22, more; setp.eq.u32 %p1, %r0, 0; mov.u32 %r23, %cluster_ctarank;\n";

#[test]
fn remote_arrivals_and_stores() {
    // Every block arrives on the barrier of rank 0, which waits for 4 arrivals and 4 * 32 stores of 8 bytes.
    let body = format!(
        "{FIRST} @%p1 mbarrier.init.shared::cta.b64 [%r20], 5; barrier.cluster.arrive; barrier.cluster.wait;
         mapa.shared::cluster.u32 %r5, %r20, 0; mapa.shared::cluster.u32 %r6, %r21, 0; setp.eq.u32 %p2, %r23, 0; and.pred %p3, %p1, %p2;
         @%p3 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r20], 1024;
         mad.lo.u32 %r7, %r23, 256, %r6; mad.lo.u32 %r7, %r0, 8, %r7; mad.lo.u32 %r8, %r23, 100, %r0;
         st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r7], {{%r8, %r23}}, [%r5];
         @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5]; @!%p2 bra END;
         {} shl.b32 %r9, %r0, 5; add.u32 %r9, %r9, %r21; ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r9]; st.global.v2.u32 [%rd1], {{%r10, %r11}};
         END: barrier.cluster.arrive; barrier.cluster.wait;",
        wait(0)
    );
    let body = body
        .replace("[%rd1]", "[%rd4]")
        .replace("ld.shared.v4", "mul.wide.u32 %rd4, %r0, 8; add.u64 %rd4, %rd4, %rd0; ld.shared.v4");
    let got = in_all_modes(BARRIER, cluster(4, 32), 64, &body);
    for lane in 0..32u32 {
        // Entry 4 * lane of 128 pairs: rank lane / 8, thread 4 * lane % 32.
        let want = (lane / 8 * 100 + 4 * lane % 32, lane / 8);
        assert_eq!((got[2 * lane as usize], got[2 * lane as usize + 1]), want);
    }
}

#[test]
fn bulk_copies() {
    // Global to shared, shared to shared of the next block, shared to global, and a reduction.
    let body = format!(
        "{FIRST} @%p1 mbarrier.init.shared::cta.b64 [%r20], 1; fence.mbarrier_init.release.cluster;
         barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r24, %ctaid.x; mul.wide.u32 %rd5, %r24, 1024; add.u64 %rd5, %rd5, %rd0;
         @!%p1 bra LOADED; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 1024;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd5], 1024, [%r20];
         LOADED: {} barrier.cluster.arrive; barrier.cluster.wait;
         @!%p1 bra SENT; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 1024;
         xor.b32 %r25, %r23, 1; mapa.shared::cluster.u32 %r26, %r22, %r25; mapa.shared::cluster.u32 %r27, %r20, %r25;
         cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r26], [%r21], 1024, [%r27];
         SENT: {} @!%p1 bra STORED;
         add.u64 %rd6, %rd5, 2048; cp.async.bulk.global.shared::cta.bulk_group [%rd6], [%r22], 1024; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd6], [%r21], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;
         STORED: barrier.cluster.arrive; barrier.cluster.wait;",
        wait(0),
        wait(1)
    );
    for options in modes() {
        let mut machine = Machine::new(1, options.clone());
        let values: Vec<u32> = (0..1024u32).map(|at| at * 3 + 1).collect();
        let out = words(&mut machine, &values);
        launch(
            &mut machine,
            &module(BARRIER, 1, &format!("ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; {body}")),
            cluster(2, 64),
            &[out],
        )
        .unwrap_or_else(|error| panic!("{error} {options:?}"));
        let got = read_words(&mut machine, out, 1024);
        for rank in 0..2 {
            for at in 0..256 {
                let (own, other) = (values[rank * 256 + at], values[(1 - rank) * 256 + at]);
                assert_eq!(
                    got[512 + rank * 256 + at],
                    other + if at < 128 { own } else { 0 },
                    "{options:?} {rank} {at}"
                );
            }
        }
    }
}

#[test]
fn small_asynchronous_copies() {
    // 4, 8 and 16 bytes; a source size that leaves zeros; a predicate that ignores the source, wild as it is.
    let body = "mov.u32 %r21, data; mad.lo.u32 %r5, %r0, 32, %r21; mul.wide.u32 %rd5, %r0, 32; add.u64 %rd5, %rd5, %rd0;
        setp.gt.u32 %p1, %r0, 3; mov.u64 %rd6, 12345; and.b32 %r7, %r0, 15;
        cp.async.ca.shared.global [%r5], [%rd5], 4; cp.async.ca.shared.global [%r5+8], [%rd5+8], 8;
        cp.async.cg.shared.global [%r5+16], [%rd5+16], 16, %r7; cp.async.commit_group;
        cp.async.ca.shared.global [%r5+4], [%rd5+4], 4, 0; cp.async.commit_group; cp.async.wait_group 1;
        ld.shared.v4.u32 {%r8, %r9, %r10, %r11}, [%r5+16]; cp.async.wait_group 0; ld.shared.v4.u32 {%r12, %r13, %r14, %r15}, [%r5];
        cp.async.cg.shared.global [%r5], [%rd6], 16, %p2; cp.async.wait_all; ld.shared.u32 %r16, [%r5+12];
        st.global.v4.u32 [%rd5], {%r12, %r13, %r14, %r15}; st.global.v4.u32 [%rd5+16], {%r8, %r9, %r10, %r11};
        add.u32 %r16, %r16, 1; st.global.u32 [%rd5+4], %r16;";
    let body = body
        .replace("%p2; cp.async.wait_all", "%p3; cp.async.wait_all")
        .replace("setp.gt.u32 %p1, %r0, 3;", "setp.le.u32 %p3, %r0, 99;");
    for options in modes() {
        let mut machine = Machine::new(1, options.clone());
        let values: Vec<u32> = (0..256u32).map(|at| 0x0101_0101 * (at % 200 + 1)).collect();
        let out = words(&mut machine, &values);
        let text = module(BARRIER, 1, &format!("ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; {body}"));
        launch(&mut machine, &text, shape(1, 32), &[out])
            .unwrap_or_else(|error| panic!("{error} {options:?}"));
        let got = read_words(&mut machine, out, 256);
        for lane in 0..32 {
            let (row, old) = (&got[8 * lane..8 * lane + 8], &values[8 * lane..8 * lane + 8]);
            assert_eq!((row[0], row[1], row[2], row[3]), (old[0], 1, old[2], old[3]));
            let source: Vec<u8> = old[4..].iter().flat_map(|word| word.to_le_bytes()).collect();
            let copied: Vec<u8> = row[4..].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert!((0..16).all(|at| copied[at] == if at < lane % 16 { source[at] } else { 0 }), "{lane}");
        }
    }
}

#[test]
fn copies_that_arrive_on_a_barrier() {
    for (noinc, count) in [("", 1), (".noinc", 33)] {
        // One arrival of thread 0, and with `.noinc` 32 of the copies.
        let body = format!(
            "{FIRST} @%p1 mbarrier.init.shared::cta.b64 [%r20], {count}; bar.sync 0; mad.lo.u32 %r5, %r0, 4, %r21;
             st.global.u32 [%rd1], %r0; cp.async.ca.shared.global [%r5], [%rd1], 4; cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%r20];
             bar.sync 0; @%p1 mbarrier.arrive.shared::cta.b64 _, [%r20]; {} xor.b32 %r6, %r0, 31; mad.lo.u32 %r6, %r6, 4, %r21; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd1], %r7;",
            wait(0)
        );
        let got = in_all_modes(BARRIER, shape(1, 32), 32, &body);
        assert!((0..32u32).all(|lane| got[lane as usize] == 31 - lane));
    }
}

#[test]
fn mbarrier_states() {
    // Tokens, pending counts, drops and counts; a spin on `test_wait`, which does not suspend.
    let body = format!(
        "{FIRST} @!%p1 bra SPIN; mbarrier.init.shared::cta.b64 [%r20], 3; mbarrier.arrive.shared::cta.b64 %rd5, [%r20];
         mbarrier.pending_count.b64 %r5, %rd5; mbarrier.test_wait.shared::cta.b64 %p2, [%r20], %rd5; selp.u32 %r6, 1, 0, %p2;
         mbarrier.arrive.shared::cta.b64 %rd6, [%r20], 2; mbarrier.test_wait.shared::cta.b64 %p2, [%r20], %rd5; selp.u32 %r7, 1, 0, %p2;
         mbarrier.arrive_drop.shared::cta.b64 %rd7, [%r20]; mbarrier.arrive.shared::cta.b64 %rd8, [%r20], 2; mbarrier.arrive.noComplete.shared::cta.b64 %rd9, [%r20], 1;
         mbarrier.pending_count.b64 %r8, %rd9; mbarrier.arrive.shared::cta.b64 _, [%r20]; mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r20], 0; selp.u32 %r9, 1, 0, %p2;
         st.global.v4.u32 [%rd0], {{%r5, %r6, %r7, %r8}}; st.global.u32 [%rd0+16], %r9; mbarrier.inval.shared::cta.b64 [%r20]; mbarrier.init.shared::cta.b64 [%r20], 1;
         mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 16; mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 8; mbarrier.arrive.shared::cta.b64 _, [%r20];
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r20], 0; selp.u32 %r5, 1, 0, %p2; mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 8;
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r20], 0; selp.u32 %r6, 1, 0, %p2; st.global.v2.u32 [%rd0+24], {{%r5, %r6}};
         mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 16; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd0], 16, [%r20]; mbarrier.arrive.shared::cta.b64 _, [%r20];
         BUSY: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r20], 1; @!%p2 bra BUSY; ld.shared.u32 %r5, [%r21+8]; st.global.u32 [%rd0+20], %r5;
         SPIN: bar.warp.sync -1;"
    );
    let got = in_all_modes(BARRIER, shape(1, 32), 8, &body);
    assert_eq!(got, [3, 0, 1, 2, 1, 1, 0, 1], "{got:?}");
}

#[test]
fn devices_reach_each_other() {
    // A kernel for each of two devices: both write to the other's memory, then signal and wait by flags.
    let body = "ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd1, %rd2; add.u64 %rd4, %rd0, %rd2;
        ld.param.u64 %rd5, [p2]; cvt.u32.u64 %r5, %rd5; mov.u32 %r6, 0;
        ROUND: mad.lo.u32 %r7, %r6, 1000, %r5; add.u32 %r7, %r7, %r0; st.global.u32 [%rd3+256], %r7; bar.sync 0; add.u32 %r6, %r6, 1;
        setp.eq.u32 %p1, %r0, 0; @%p1 fence.acq_rel.sys; @%p1 st.release.sys.global.u32 [%rd1], %r6;
        WAIT: ld.acquire.sys.global.u32 %r8, [%rd0]; setp.lt.u32 %p2, %r8, %r6; @%p2 bra WAIT; bar.sync 0; ld.global.u32 %r9, [%rd4+256]; st.global.u32 [%rd4+512], %r9;
        @%p1 red.release.sys.global.add.u32 [%rd1+4], 1; bar.sync 0; WAIT2: ld.acquire.sys.global.u32 %r8, [%rd0+4]; setp.lt.u32 %p2, %r8, %r6; @%p2 bra WAIT2;
        setp.lt.u32 %p2, %r6, 3; @%p2 bra ROUND;";
    for options in modes() {
        let mut machine = Machine::new(2, options);
        let mut memory = |device| {
            let address = machine.allocate(device, 1024, 256);
            machine.write(address, &[0; 1024]).unwrap();
            address
        };
        let (first, second) = (memory(0), memory(1));
        assert!(second - first >= 1 << 32, "devices have address ranges of their own");
        let text = module("", 3, body);
        let modules = [machine.load(0, &text).unwrap(), machine.load(1, &text).unwrap()];
        let kernels = modules.each_ref().map(|module| module.kernel("k").unwrap());
        let block =
            |values: [u64; 3]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let (a, b) = (block([first, second, 7]), block([second, first, 70_000]));
        let reports = machine
            .launch_together(&[(&kernels[0], shape(1, 64), &a), (&kernels[1], shape(1, 64), &b)])
            .unwrap_or_else(|fault| panic!("{fault}"));
        assert!(reports.len() == 2 && reports.iter().all(|report| report.warp_instructions() > 100));
        for (address, other) in [(first, 70_000), (second, 7)] {
            let got = read_words(&mut machine, address, 256);
            assert!((0..64).all(|thread| got[128 + thread] == 2000 + other + thread as u32));
        }
    }
}

#[test]
fn blocks_wait_for_blocks() {
    // Blocks in a chain by flags in global memory; the first waits for all others.
    let body = "setp.eq.u32 %p1, %r0, 0; mov.u32 %r5, %ctaid.x; setp.eq.u32 %p2, %r5, 4; mul.wide.u32 %rd5, %r5, 4; add.u64 %rd5, %rd5, %rd0;
        @%p2 bra GO; WAIT: ld.acquire.gpu.global.u32 %r6, [%rd5+4]; setp.eq.u32 %p3, %r6, 0xcccccccc; @%p3 bra WAIT; add.u32 %r6, %r6, 1; bra PUT; GO: mov.u32 %r6, 1;
        PUT: bar.sync 0; @%p1 st.release.gpu.global.u32 [%rd5], %r6;";
    let got = in_all_modes("", shape(5, 32), 6, body);
    assert!((0..5).all(|block| got[block] == 5 - block as u32));
}

#[test]
fn one_lane_waits_while_the_others_stand_at_a_barrier() {
    let body = format!(
        "{FIRST} @%p1 mbarrier.init.shared::cta.b64 [%r20], 1; bar.sync 0; setp.eq.u32 %p2, %r0, 32; @%p2 bra SLOW; @!%p1 bra MEET;
         {} bra MEET; SLOW: mov.u32 %r6, 0; SPIN: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 9000; @%p3 bra SPIN;
         st.shared.u32 [%r21], 3; mbarrier.arrive.shared::cta.b64 _, [%r20]; MEET: bar.sync 0; ld.shared.u32 %r5, [%r21]; st.global.u32 [%rd1], %r5;",
        wait(0)
    );
    assert!(in_all_modes(BARRIER, shape(1, 64), 64, &body).iter().all(|&word| word == 3));
}
