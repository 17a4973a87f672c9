//! How many instructions of lanes a second: `cargo test --release --test speed -- --ignored --nocapture`.

mod kernel;

use kernel::{module, shape, words};
use perigee_emulator::machine::{Machine, Options};
use std::time::Instant;

/// Runs a body in 16 blocks of 128 threads and prints its rate.
fn measure(name: &str, body: &str) {
    let mut machine = Machine::new(1, Options::default());
    let data = words(&mut machine, &vec![1; 1 << 16]);
    let text = module(
        ".shared .align 16 .b32 cells[2048];",
        1,
        &format!(
            "ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 16; add.u64 %rd1, %rd1, %rd0;
             mov.u32 %r9, cells; mad.lo.u32 %r9, %r0, 16, %r9; st.shared.v4.u32 [%r9], {{%r0, %r0, %r0, %r0}}; mov.u32 %r1, 0;
             LOOP: {body} add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4000; @%p1 bra LOOP; st.global.u32 [%rd1], %r2;"
        ),
    );
    let module = machine.load(0, &text).unwrap();
    let kernel = module.kernel("k").unwrap();
    let start = Instant::now();
    let report = machine
        .launch(&kernel, shape(16, 128), &data.to_le_bytes())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let seconds = start.elapsed().as_secs_f64();
    let lanes = report.lane_instructions() as f64;
    println!(
        "{name:8} {:6.1} M lane instructions in {:6.1} ms: {:7.1} M/s, {:5.1} ns a warp",
        lanes / 1e6,
        seconds * 1e3,
        lanes / seconds / 1e6,
        seconds * 1e9 / report.warp_instructions() as f64
    );
}

#[test]
#[ignore = "a measurement"]
fn rates() {
    measure(
        "integer",
        "mad.lo.u32 %r2, %r2, 3, %r0; xor.b32 %r3, %r2, %r1; shl.b32 %r4, %r3, 3; lop3.b32 %r2, %r2, %r3, %r4, 0x96; add.u32 %r2, %r2, %r3;",
    );
    measure(
        "float",
        "fma.rn.f32 %f1, %f2, %f3, %f1; mul.f32 %f2, %f1, %f3; add.f32 %f3, %f2, %f1; max.f32 %f4, %f3, %f1; fma.rn.f32 %f5, %f4, %f4, %f5;",
    );
    measure(
        "mixed",
        "fma.rn.f32 %f1, %f2, %f3, %f1; mad.lo.u32 %r2, %r2, 3, %r0; cvt.rn.bf16x2.f32 %r3, %f1, %f2; shr.u32 %r4, %r3, 5; ex2.approx.ftz.f32 %f2, %f1;",
    );
    measure("global", "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1]; ld.global.u32 %r6, [%rd1+4];");
    measure(
        "shared",
        "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r9]; ld.shared.u32 %r6, [%r9+4]; st.shared.u32 [%r9], %r2;",
    );
    measure(
        "shuffle",
        "shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1; shfl.sync.idx.b32 %r3, %r2, 0, 31, -1; vote.sync.ballot.b32 %r4, %p1, -1;",
    );
}
