use super::*;
use crate::case::LaunchShape;
use crate::machine::{Machine, Options};

/// Runs a kernel of one block. `%r0` is the thread, `%r1` the shared memory, `%rd0` global memory,
/// aligned to 128 bytes.
fn run(body: &str, threads: u32) -> Report {
    let ptx = format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n\
         .visible .entry kernel(.param .u64 buffer)\n{{\n\
         .reg .pred %p<4>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<4>;\n\
         .shared .align 128 .b8 tile[8192];\nld.param.u64 %rd0, [buffer];\nmov.u32 %r0, %tid.x;\n\
         mov.u32 %r1, tile;\n{body}\nret;\n}}\n"
    );
    let options = Options { profile: true, uninitialized: false, ..Options::default() };
    let mut machine = Machine::new(1, options);
    let buffer = machine.allocate(0, 8192, 256);
    let module = machine.load(0, &ptx).unwrap();
    let kernel = module.kernel("kernel").unwrap();
    let shape =
        LaunchShape { grid: [1; 3], block: [threads, 1, 1], cluster: [1; 3], dynamic_shared_bytes: 0 };
    machine.launch(&kernel, shape, &buffer.to_le_bytes()).unwrap()
}

/// The traffic of `instruction`, whose lanes find their byte offset in `%r2`, its sum with the shared
/// memory in `%r3` and with the global memory in `%rd1`.
fn traffic(offset: &str, instruction: &str) -> Traffic {
    let report = run(
        &format!(
            "{offset}\nadd.u32 %r3, %r1, %r2;\ncvt.u64.u32 %rd1, %r2;\nadd.u64 %rd1, %rd1, %rd0;\n{instruction}"
        ),
        32,
    );
    let opcode = instruction.split_whitespace().find(|word| !word.starts_with('@')).unwrap();
    let count = report.instructions().find(|count| count.opcode == opcode).unwrap();
    count.traffic.unwrap()
}

fn stride(bytes: u32) -> String {
    format!("mul.lo.u32 %r2, %r0, {bytes};")
}

#[test]
fn wavefronts_of_shared_memory() {
    // Row l of a tile with rows of 128 bytes; its 16-byte pieces change places with the row.
    let swizzled = "and.b32 %r2, %r0, 7;\nshl.b32 %r2, %r2, 4;\nshl.b32 %r4, %r0, 7;\nxor.b32 %r2, %r2, %r4;";
    let x4 = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3];";
    let x1 = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];";
    let store_x2 = "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%r0, %r0};";
    let half = "setp.lt.u32 %p1, %r0, 16;\n";
    for (offset, instruction, wavefronts, ideal) in [
        (&stride(4)[..], "ld.shared.u32 %r4, [%r3];", 1, 1),
        (&stride(8), "ld.shared.u32 %r4, [%r3];", 2, 1),
        (&stride(128), "ld.shared.u32 %r4, [%r3];", 32, 1),
        (&stride(132), "ld.shared.u32 %r4, [%r3];", 1, 1),
        (&stride(0), "ld.shared.u32 %r4, [%r3];", 1, 1),
        (&stride(1), "ld.shared.u8 %r4, [%r3];", 1, 1),
        (&stride(2), "st.shared.u16 [%r3], %r0;", 1, 1),
        (&stride(8), "ld.shared.b64 %rd2, [%r3];", 2, 2),
        (&stride(16), "ld.shared.b64 %rd2, [%r3];", 4, 2),
        (&stride(16), "st.shared.v4.b32 [%r3], {%r0, %r0, %r0, %r0};", 4, 4),
        (&stride(128), "st.shared.v4.b32 [%r3], {%r0, %r0, %r0, %r0};", 32, 4),
        (swizzled, "st.shared.v4.b32 [%r3], {%r0, %r0, %r0, %r0};", 4, 4),
        (&stride(16), x4, 4, 4),
        (&stride(128), x4, 32, 4),
        (swizzled, x4, 4, 4),
        (&stride(64), x4, 16, 4),
        (&stride(128), x1, 8, 1),
        (&stride(128), store_x2, 16, 2),
        (&stride(4), "red.shared.add.u32 [%r3], 1;", 1, 1),
        (&stride(0), "red.shared.add.u32 [%r3], 1;", 32, 1),
        (&format!("{half}{}", stride(8)), "@%p1 ld.shared.b64 %rd2, [%r3];", 1, 1),
    ] {
        let found = traffic(offset, instruction);
        assert_eq!(
            (found.wavefronts, found.ideal_wavefronts, found.excess_wavefronts()),
            (wavefronts, ideal, wavefronts - ideal),
            "{instruction} at {offset}"
        );
        assert_eq!((found.sectors, found.lines), (0, 0), "{instruction} at {offset}");
    }
}

#[test]
fn sectors_of_global_memory() {
    let shifted = "shl.b32 %r2, %r0, 2;\nadd.u32 %r2, %r2, 4;";
    let reversed = "sub.u32 %r2, 31, %r0;\nshl.b32 %r2, %r2, 2;";
    for (offset, instruction, bytes, sectors, ideal_sectors, lines, ideal_lines) in [
        (&stride(4)[..], "ld.global.u32 %r4, [%rd1];", 128, 4, 4, 1, 1),
        (reversed, "ld.global.u32 %r4, [%rd1];", 128, 4, 4, 1, 1),
        (&stride(8), "ld.global.u32 %r4, [%rd1];", 128, 8, 4, 2, 1),
        (&stride(128), "ld.global.u32 %r4, [%rd1];", 128, 32, 4, 32, 1),
        (&stride(0), "ld.global.u32 %r4, [%rd1];", 128, 1, 1, 1, 1),
        (shifted, "ld.global.u32 %r4, [%rd1];", 128, 5, 4, 2, 1),
        (&stride(1), "ld.global.u8 %r4, [%rd1];", 32, 1, 1, 1, 1),
        (&stride(16), "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1];", 512, 16, 16, 4, 4),
        (&stride(64), "st.global.b64 [%rd1], %rd0;", 256, 32, 8, 16, 2),
        (&stride(4), "red.global.add.u32 [%rd1], 1;", 128, 4, 4, 1, 1),
    ] {
        let found = traffic(offset, instruction);
        assert_eq!(
            found,
            Traffic { bytes, sectors, ideal_sectors, lines, ideal_lines, wavefronts: 0, ideal_wavefronts: 0 },
            "{instruction} at {offset}"
        );
        assert_eq!(found.excess_sectors(), sectors - ideal_sectors);
    }
}

#[test]
fn copies_count_on_both_sides() {
    let copy = "cp.async.cg.shared.global [%r3], [%rd1], 16;";
    let found = traffic(&stride(32), copy);
    let want = Traffic {
        bytes: 512,
        wavefronts: 8,
        ideal_wavefronts: 4,
        sectors: 32,
        ideal_sectors: 16,
        lines: 8,
        ideal_lines: 4,
    };
    assert_eq!(found, want);
}

#[test]
fn totals_by_class() {
    // 48 threads run a loop three times, half of each warp stores.
    let report = run(
        "mov.u32 %r4, 0;\nand.b32 %r5, %r0, 1;\nsetp.eq.u32 %p1, %r5, 0;\nshl.b32 %r6, %r0, 2;\n\
         add.u32 %r6, %r6, %r1;\nAGAIN:\n@%p1 st.shared.u32 [%r6], %r4;\nadd.f32 %r7, %r4, %r4;\n\
         add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 3;\n@%p2 bra AGAIN;",
        48,
    );
    let total = |class| {
        let total = report.total(class);
        (total.warps, total.lanes)
    };
    assert_eq!(total(Class::StoreShared(4)), (6, 72));
    assert_eq!(report.total(Class::StoreShared(4)).traffic.wavefronts, 6);
    assert_eq!(total(Class::Float), (6, 144));
    // Before the loop four, in it two.
    assert_eq!(total(Class::Integer), (8 + 12, 4 * 48 + 2 * 144));
    // The branch back is not taken the third time; then `ret`.
    assert_eq!(total(Class::Control), (6 + 2, 2 * 48 + 48));
    assert_eq!(total(Class::LoadOther(8)), (2, 48));
    assert_eq!(total(Class::Move), (6, 3 * 48));
    assert_eq!(total(Class::Mma), (0, 0));
    assert_eq!(report.warp_instructions(), 6 + 6 + 20 + 8 + 2 + 6);
    assert_eq!(report.totals().values().map(|total| total.warps).sum::<u64>(), report.warp_instructions());
    assert_eq!(report.totals().values().map(|total| total.lanes).sum::<u64>(), report.lane_instructions());
}

#[test]
fn classes_of_opcodes() {
    for (opcode, class) in [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", Class::Mma),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", Class::Mma),
        ("wgmma.wait_group.sync.aligned", Class::CopyControl),
        ("tcgen05.mma.cta_group::1.kind::f16", Class::Mma),
        ("tcgen05.ld.sync.aligned.32x32b.x32.b32", Class::TensorMemory),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", Class::LdMatrix),
        ("ld.global.nc.L1::no_allocate.v4.u32", Class::LoadGlobal(16)),
        ("ld.global.v8.f32", Class::LoadGlobal(32)),
        ("ld.shared::cluster.b16", Class::LoadShared(2)),
        ("ld.param.u64", Class::LoadOther(8)),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32", Class::StoreShared(16)),
        ("st.global.L1::evict_first.v2.b64", Class::StoreGlobal(16)),
        ("atom.global.gpu.acq_rel.add.f32", Class::Atomic),
        ("cp.async.cg.shared.global.L2::128B", Class::CopyAsync),
        ("cp.async.wait_group", Class::CopyControl),
        ("cp.async.mbarrier.arrive.noinc.shared.b64", Class::CopyControl),
        ("cp.async.bulk.commit_group", Class::CopyControl),
        ("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes", Class::BulkCopy),
        ("cp.async.bulk.global.shared::cta.bulk_group", Class::BulkCopy),
        ("bar.sync", Class::Synchronize),
        ("bar.warp.sync", Class::Warp),
        ("shfl.sync.bfly.b32", Class::Warp),
        ("fma.rn.f32", Class::Float),
        ("mul.bf16x2", Class::Float),
        ("setp.neu.f32", Class::Float),
        ("mad.wide.s32", Class::Integer),
        ("lop3.b32", Class::Integer),
        ("cvt.rn.satfinite.e4m3x2.f32", Class::Convert),
        ("mov.b32", Class::Move),
        ("bra.uni", Class::Control),
        ("prefetch.tensormap", Class::Hint),
    ] {
        assert_eq!(Class::of(opcode), class, "{opcode}");
    }
}
