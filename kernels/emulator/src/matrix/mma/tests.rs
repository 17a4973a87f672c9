use super::*;
use crate::matrix::golden::{self, Fragment, Random, decode, modifiers};
use serde_json::Value;

const NO_LANES: Lanes = [0; 32];
const SM: u32 = 120;

/// The tables of one shape, by the name they have in `fragments.json`.
struct Tables {
    a: Fragment,
    b: Fragment,
    c: Fragment,
    scale: Option<(Fragment, Fragment)>,
}

impl Tables {
    fn new(entry: &Value) -> Self {
        let scale =
            entry.get("scale_A").map(|scale_a| (Fragment::new(scale_a), Fragment::new(&entry["scale_B"])));
        let [a, b, c] = ["A", "B", "C"].map(|operand| Fragment::new(&entry[operand]));
        Self { a, b, c, scale }
    }
}

/// Types of a `…d.a.b.c[.scale]` instruction.
fn types(instruction: &str) -> Vec<&str> {
    let is_type = |m: &&str| {
        !m.contains("::")
            && !matches!(
                *m,
                "sync" | "aligned" | "row" | "col" | "satfinite" | "block_scale" | "xor" | "and" | "popc"
            )
            && !m.starts_with('m')
    };
    modifiers(instruction).into_iter().filter(is_type).collect()
}

/// Operand codes as they sit in a container of `bits`.
fn contain(codes: &[u64], element: &str, bits: usize) -> Vec<u64> {
    let shift = if element == "e2m1" && bits == 8 { 2 } else { 0 };
    codes.iter().map(|code| code << shift).collect()
}

/// Selects all eight bytes of lanes that the instruction does not read, so that reading one shows.
fn place_scales(table: &Fragment, codes: &[u64], byte_id: usize, lane_of: impl Fn(usize) -> usize) -> Lanes {
    let mut lanes = [0; 32];
    for row in 0..table.rows {
        for block in 0..table.cols {
            let code = codes[row * table.cols + block] as u32;
            lanes[lane_of(row)] |= code << (8 * (byte_id + block));
        }
    }
    lanes
}

/// Runs `instruction` on random exact data, operands placed by the tables, against a triple loop.
fn check(instruction: &str, tables: &Tables) {
    let spec = MmaSpec::parse(&modifiers(instruction), SM).expect(instruction);
    let Tables { a, b, c, scale } = tables;
    let sizes = Registers { a: a.registers(), b: b.registers(), c: c.registers(), d: c.registers() };
    assert_eq!(spec.registers(), sizes, "{instruction}");
    assert_eq!(spec.is_block_scaled(), scale.is_some(), "{instruction}");

    let types = types(instruction);
    let (d_type, a_type, b_type) = (types[0], types[1], types[2]);
    let (step, limit) = if d_type == "f16" { (1.0, 4.0) } else { (0.125, 8.0) };
    let integer_limit = |element: &str| if golden::element_bits(element) <= 8 { 255.0 } else { limit };
    let (step, limit) = match d_type {
        "s32" => (1.0, integer_limit(a_type)),
        _ => (step, limit),
    };
    let mut random = Random(0x5eed);
    for byte_id in 0..4 {
        for thread_id in 0..4 {
            if scale.as_ref().is_none_or(|(s, _)| byte_id + s.cols > 4 || byte_id % s.cols != 0)
                && (byte_id, thread_id) != (0, 0)
            {
                continue;
            }
            let a_codes = random.codes(a_type, a.len(), step, limit);
            let b_codes = random.codes(b_type, b.len(), step, limit);
            let c_codes = random.codes(d_type, c.len(), 1.0, 64.0);
            let (mut a_scales, mut b_scales) = (vec![], vec![]);
            let (mut a_lanes, mut b_lanes) = (NO_LANES, NO_LANES);
            if let Some((table_a, table_b)) = scale {
                a_scales = random.codes(types[4], table_a.len(), 0.5, 4.0);
                b_scales = random.codes(types[4], table_b.len(), 0.5, 4.0);
                let pair = thread_id % 2;
                a_lanes = place_scales(table_a, &a_scales, byte_id, |row| {
                    let (lane, _) = table_a
                        .index
                        .iter()
                        .enumerate()
                        .find(|(lane, held)| lane % 4 / 2 == pair && held[0] == row * table_a.cols)
                        .expect("a lane of the pair holds the row");
                    lane
                });
                b_lanes = place_scales(table_b, &b_scales, byte_id, |column| {
                    let holds = |held: &Vec<usize>| held[0] == column * table_b.cols;
                    table_b.index.iter().position(holds).expect("a quad holds the column") + thread_id
                });
            }
            let scales = scale.as_ref().map(|_| BlockScales {
                a: &a_lanes,
                byte_id_a: byte_id,
                thread_id_a: thread_id % 2,
                b: &b_lanes,
                byte_id_b: byte_id,
                thread_id_b: thread_id,
            });
            let mut d = vec![[0xdead_beef; 32]; sizes.d];
            spec.execute(
                &a.place(&contain(&a_codes, a_type, a.bits), 0),
                &b.place(&contain(&b_codes, b_type, b.bits), 0),
                &c.place(&c_codes, 0),
                scales,
                &mut d,
            );
            let mut got = vec![0; c.len()];
            c.take(&d, 0, &mut got);

            for m in 0..c.rows {
                for n in 0..c.cols {
                    let mut sum = decode(d_type, c_codes[m * c.cols + n]);
                    for k in 0..a.cols {
                        let x = decode(a_type, a_codes[m * a.cols + k]);
                        let y = decode(b_type, b_codes[k * b.cols + n]);
                        let factor = match scale {
                            None => 1.0,
                            Some((table_a, table_b)) => {
                                let (ka, kb) = (k * table_a.cols / a.cols, k * table_b.cols / a.cols);
                                decode(types[4], a_scales[m * table_a.cols + ka])
                                    * decode(types[4], b_scales[n * table_b.cols + kb])
                            }
                        };
                        sum += match a_type {
                            "b1" if instruction.contains(".xor") => (x != y) as u8 as f64,
                            _ => x * y * factor,
                        };
                    }
                    let value = decode(d_type, got[m * c.cols + n]);
                    assert_eq!(
                        value, sum,
                        "{instruction} row {m} column {n} byte {byte_id} thread {thread_id}"
                    );
                }
            }
        }
    }
}

/// Instructions that share the shape of a golden entry.
fn relatives(name: &str) -> Vec<String> {
    let mut names = vec![name.to_string()];
    let product = |pattern: &str, left: &[&str], right: &[&str], names: &mut Vec<String>| {
        for a in left {
            for b in right {
                names.push(name.replace(pattern, &format!(".{a}.{b}.")));
            }
        }
    };
    let all = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"];
    product(".s8.s8.", &["s8", "u8"], &["s8", "u8"], &mut names);
    product(".s4.s4.", &["s4", "u4"], &["s4", "u4"], &mut names);
    if !name.contains("mxf4") {
        product(".e4m3.e4m3.", &["e4m3", "e5m2"], &["e4m3", "e5m2"], &mut names);
        product(".e5m2.e4m3.", &["e4m3", "e5m2"], &["e4m3", "e5m2"], &mut names);
        product(".e2m1.e4m3.", &all, &all, &mut names);
        product(".e4m3.e2m1.", &all, &all, &mut names);
    }
    if name.contains("kind::f8f6f4") {
        // The shared layout of f16 sums is the one of m16n8k32 e5m2.e4m3, checked there.
        names.retain(|n| n.contains(".f32."));
    }
    names.push(name.replace("xor.popc", "and.popc"));
    names.push(name.replace("kind::mxf4.", "kind::mxf4nvf4."));
    names.push(name.replace("ue4m3", "ue8m0"));
    names.push(name.replace("s32.s8", "satfinite.s32.s8"));
    // Other orders of qualifiers.
    let mut parts = modifiers(name);
    if let Some(kind) = parts.iter().position(|m| m.starts_with("kind::")) {
        let shape = parts.iter().position(|m| m.starts_with("m16")).expect("a shape");
        let moved: Vec<_> = parts.drain(kind..shape).collect();
        parts.splice(kind + 3..kind + 3, moved);
        names.push(format!("mma.{}", parts.join(".")));
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn products_equal_a_triple_loop_for_every_golden_layout() {
    let fragments = golden::fragments();
    let entries = fragments["mma"].as_object().expect("an object");
    assert_eq!(entries.len(), 26);
    let mut checked = 0;
    for (name, entry) in entries {
        let tables = Tables::new(entry);
        for instruction in relatives(name) {
            check(&instruction, &tables);
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// Distinct operand codes travel through [`gather`] to the place the table names.
#[test]
fn operands_are_gathered_where_the_tables_say() {
    let fragments = golden::fragments();
    let entries = fragments["mma"].as_object().expect("an object");
    let table = |name: &str, operand: &str| Fragment::new(&entries[name][operand]);
    let name = "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc";
    for bit in 0..256 * 16 {
        let mut codes = vec![0; 256 * 16];
        codes[bit] = 1;
        let dense = gather::<_, 16, 8>(Bits, &table(name, "A").place(&codes, 0));
        assert_eq!(dense[bit / 256][bit % 256 / 32], 1 << (bit % 32), "bit {bit}");
    }
    let name = "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32";
    let a_codes: Vec<u64> = (0..512).map(|i| i % 251).collect();
    let dense = gather::<_, 16, 32>(Int8(0), &table(name, "A").place(&a_codes, 0));
    assert!(dense.as_flattened().iter().zip(&a_codes).all(|(&value, &code)| value as u64 == code));
    let b_codes: Vec<u64> = (0..256).collect();
    let dense = transpose(&gather::<_, 8, 32>(Int8(0), &table(name, "B").place(&b_codes, 0)));
    assert!(dense.as_flattened().iter().zip(&b_codes).all(|(&value, &code)| value as u64 == code));
}

/// One fragment value in every position of A, B or C: `splat(bits)` of a 16-bit or 32-bit element.
fn run(instruction: &str, a: u32, b: u32, c: u32) -> u32 {
    run_on(SM, instruction, a, b, c)
}

fn run_on(sm: u32, instruction: &str, a: u32, b: u32, c: u32) -> u32 {
    let spec = MmaSpec::parse(&modifiers(instruction), sm).expect(instruction);
    let size = spec.registers();
    let mut d = vec![[0; 32]; size.d];
    spec.execute(
        &vec![[a; 32]; size.a],
        &vec![[b; 32]; size.b],
        &vec![[c; 32]; size.c],
        Some(BlockScales {
            a: &NO_LANES,
            byte_id_a: 0,
            thread_id_a: 0,
            b: &NO_LANES,
            byte_id_b: 0,
            thread_id_b: 0,
        })
        .filter(|_| spec.is_block_scaled()),
        &mut d,
    );
    assert!(d.as_flattened().iter().all(|word| word == &d[0][0]), "{instruction}");
    d[0][0]
}

#[test]
fn non_finite_operands_propagate() {
    let bf16 = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
    let (one, inf, nan, zero) = (0x3f80_3f80, 0x7f80_7f80, 0x7fc0_7fc0, 0);
    let minus_inf = 0xff80_0000;
    for (a, b, c, expected) in [
        (inf, one, 0, 0x7f80_0000),
        (inf, zero, 0, 0x7fff_ffff),
        (nan, one, 0, 0x7fff_ffff),
        (one, nan, minus_inf, 0x7fff_ffff),
        (inf, one, minus_inf, 0x7fff_ffff),
        (one, one, minus_inf, minus_inf),
        (one, one, 0xffc0_1234, 0x7fff_ffff),
        (one, one, 0, 16f32.to_bits()),
    ] {
        assert_eq!(run(bf16, a, b, c), expected, "{a:#x} {b:#x} {c:#x}");
    }
    let f16 = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16";
    assert_eq!(run(f16, 0x7c00_7c00, 0x3c00_3c00, 0), 0x7c00_7c00);
    assert_eq!(run(f16, 0x7e00_7e00, 0x3c00_3c00, 0), 0x7fff_7fff);
    let e5m2 = "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32";
    assert_eq!(run(e5m2, 0x7c7c_7c7c, 0x3c3c_3c3c, 0), 0x7f80_0000);
    let spec =
        MmaSpec::parse(&modifiers("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"), SM).expect("f64");
    let (nan, one) = ([[5; 32], [0xfff0_0000; 32]], [[0; 32], [0x3ff0_0000; 32]]);
    let mut d = [[0; 32]; 4];
    spec.execute(&nan, &one, &[[0; 32]; 4], None, &mut d);
    assert_eq!(d, [[u32::MAX; 32], [0x7fff_ffff; 32], [u32::MAX; 32], [0x7fff_ffff; 32]]);
}

#[test]
fn f16_sums_round_once() {
    // 2048 + 16 * 1: every single step would round to even and stay.
    let f16 = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16";
    assert_eq!(run(f16, 0x3c00_3c00, 0x3c00_3c00, 0x6800_6800), 0x6808_6808);
    // 65504 + 16 * 1 reaches the midpoint to infinity.
    assert_eq!(run(f16, 0x3c00_3c00, 0x3c00_3c00, 0x7bff_7bff), 0x7c00_7c00);
}

#[test]
fn sums_are_rounded_as_the_architecture_does() {
    // Sixteen products of 2^-25 onto 1: Ampere drops each of them.
    let products = |sm| {
        let bf16 = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
        let (a, b) = (0x3980_3980, 0x3900_3900);
        run_on(sm, bf16, a, b, 1f32.to_bits())
    };
    assert_eq!(products(80), 1f32.to_bits());
    assert_eq!(products(90), (1.0 + 2f32.powi(-21)).to_bits());
    // The bits below tf32 are ignored.
    let tf32 = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32";
    let (x, c) = ((1.0f32 + 1.0 / 1024.0).to_bits(), (-1.0f32).to_bits());
    assert_eq!(run(tf32, x | 0x1fff, x, c), run(tf32, x, x, c));
}

#[test]
fn integers_wrap_or_saturate() {
    let (name, ones, minus) = ("mma.sync.aligned.m16n8k32.row.col.", 0x0101_0101, 0xffff_ffff);
    let wrap = format!("{name}s32.s8.s8.s32");
    let saturate = format!("{name}satfinite.s32.s8.s8.s32");
    assert_eq!(run(&wrap, ones, ones, i32::MAX as u32), i32::MIN as u32 + 31);
    assert_eq!(run(&saturate, ones, ones, i32::MAX as u32), i32::MAX as u32);
    assert_eq!(run(&saturate, minus, ones, i32::MIN as u32), i32::MIN as u32);
    assert_eq!(run(&saturate, minus, minus, 5), 37);
}

#[test]
fn scale_factors_span_their_whole_range() {
    let name =
        "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0";
    let spec = MmaSpec::parse(&modifiers(name), SM).expect(name);
    let scaled = |scale_a: u8, scale_b: u8| {
        let (a, b) = ([u32::from_le_bytes([scale_a; 4]); 32], [u32::from_le_bytes([scale_b; 4]); 32]);
        let scales = BlockScales { a: &a, byte_id_a: 0, thread_id_a: 0, b: &b, byte_id_b: 0, thread_id_b: 0 };
        let mut d = [[0; 32]; 4];
        // 64 products of 1.
        spec.execute(&[[0x2222_2222; 32]; 4], &[[0x2222_2222; 32]; 2], &[[0; 32]; 4], Some(scales), &mut d);
        f32::from_bits(d[0][0])
    };
    assert_eq!(scaled(127, 127), 64.0);
    assert_eq!(scaled(254, 0), 64.0);
    assert_eq!(scaled(0, 254), 64.0);
    assert_eq!(scaled(127 + 60, 127 + 61), 2f32.powi(127));
    assert_eq!(scaled(127 + 61, 127 + 61), f32::INFINITY);
    assert_eq!(scaled(254, 254), f32::INFINITY);
    // Each block of 32 products is the smallest subnormal.
    assert_eq!(scaled(127 - 100, 127 - 54), 2f32.powi(-148));
    assert_eq!(scaled(0, 0), 0.0);
    assert!(scaled(255, 127).is_nan() && scaled(127, 255).is_nan());
}

#[test]
fn unknown_forms_are_errors() {
    for (text, expected) in [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.fast", "mma: unknown modifier .fast"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32", "unsupported combination"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32", "unsupported combination"),
        ("mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32", "unsupported combination"),
        ("mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16", "unsupported combination"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", "unsupported combination"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e2m1.e2m1.f32", "unsupported combination"),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.f32.e2m1.e2m1.f32.ue4m3",
            "unsupported combination",
        ),
        ("mma.sync.aligned.m16n8k64.row.col.f32", "unsupported combination"),
    ] {
        let error = MmaSpec::parse(&modifiers(text), SM).expect_err(text);
        assert!(error.contains(expected), "{error}");
    }
}
