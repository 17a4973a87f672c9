use super::*;
use crate::matrix::golden::{Random, decode, element_bits, encode, modifiers};

const D_COLUMN: u32 = 0;
const A_COLUMN: u32 = 256;
const SCALE_A_COLUMN: u32 = 320;
const SCALE_B_COLUMN: u32 = 352;
const A_BASE: u32 = 0;
const B_BASE: u32 = 64 * 1024;

/// One instruction form; `majors`: whether A and B are MN-major.
#[derive(Clone, Copy)]
struct Form {
    modifiers: &'static str,
    rows: usize,
    columns: usize,
    types: (&'static str, &'static str, &'static str),
    majors: (bool, bool),
    a_in_tensor_memory: bool,
    /// Element and k block of the scale factors.
    scale: Option<(&'static str, usize)>,
}

const PLAIN: Form = Form {
    modifiers: "tcgen05.mma.cta_group::1.kind::f16",
    rows: 128,
    columns: 32,
    types: ("f32", "bf16", "bf16"),
    majors: (false, false),
    a_in_tensor_memory: false,
    scale: None,
};

/// Element code of the instruction descriptor.
fn format_code(element: &str, k: usize) -> u32 {
    match element {
        "f16" | "e4m3" | "u8" => 0,
        "bf16" | "e5m2" | "s8" => 1,
        "tf32" => 2,
        "e2m3" => 3,
        "e3m2" => 4,
        "e2m1" if k == 64 => 1,
        _ => 5,
    }
}

fn k_size(a_type: &str, scaled_four_bits: bool) -> usize {
    match element_bits(a_type) {
        32 => 8,
        16 => 16,
        _ if scaled_four_bits => 64,
        _ => 32,
    }
}

/// Rows of 32 bytes of a K-major operand, packed as shared memory has them.
fn line(element: &str, codes: &[u64]) -> Vec<u8> {
    let bits = element_bits(element);
    let chunk = |codes: &[u64], bits: usize| -> [u8; 16] {
        codes.iter().rev().fold(0u128, |packed, &code| packed << bits | code as u128).to_le_bytes()
    };
    if codes.len() == 32 {
        // 8-bit containers: 16 elements per chunk whatever their size.
        codes.chunks(16).flat_map(|sixteen| chunk(sixteen, bits)).collect()
    } else {
        codes.chunks(128 / bits).flat_map(|part| chunk(part, bits)).collect()
    }
}

/// Stores an operand at `base` with a 128-byte swizzle, and returns its descriptor. `codes[mn][k]`.
fn store(memory: &mut [u8], base: u32, element: &str, mn_major: bool, codes: &[Vec<u64>]) -> u64 {
    let bytes = element_bits(element) / 8;
    // K-major: groups of eight rows 1024 bytes apart. MN-major: 1024 bytes per 128 bytes of mn and
    // eight k.
    let stride: u32 = if mn_major { codes.len() as u32 * bytes as u32 / 128 * 1024 } else { 1024 };
    let atoms = mn_major && element == "tf32";
    let swizzle: u64 = if atoms { 1 } else { 2 };
    let (stride, leading) = if atoms { (stride / 2, 512) } else { (stride, 1024) };
    let code =
        swizzle << 61 | 1 << 46 | (stride as u64 >> 4) << 32 | (leading as u64 >> 4) << 16 | base as u64 >> 4;
    let descriptor = SharedDescriptor::decode_tcgen05(code).expect("a descriptor");
    for (mn, row) in codes.iter().enumerate() {
        if mn_major {
            for (k, &value) in row.iter().enumerate() {
                let at =
                    descriptor.element_address(Major::Mn, mn as u32, k as u32, 8 * bytes as u32) as usize;
                memory[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            }
        } else {
            for (i, chunk) in line(element, row).chunks(16).enumerate() {
                let at = descriptor.chunk_address(Major::K, mn as u32, i as u32) as usize;
                memory[at..at + 16].copy_from_slice(chunk);
            }
        }
    }
    code
}

/// Block, lane and column offset of D[m][n]; A's row m has the lanes of its accumulators.
fn cell(form: &Form, m: usize, n: usize) -> (usize, usize, usize) {
    let blocks = num_blocks(form);
    let (rows, half) = (form.rows / blocks, form.columns / 2);
    let (lane, column) = match (blocks, rows) {
        // Two halves of the columns (PTX ISA, "Layout B").
        (2, 64) => (m % 64 + n / half * 64, n % half),
        _ => cell_of_block(form, rows, m % rows, n),
    };
    (m / rows, lane, column)
}

fn num_blocks(form: &Form) -> usize {
    if form.modifiers.contains("cta_group::2") { 2 } else { 1 }
}

fn cell_of_block(form: &Form, rows: usize, m: usize, n: usize) -> (usize, usize) {
    let stationary = form.modifiers.contains(".ws");
    match rows {
        128 => (m, n),
        _ if stationary => {
            let width = form.columns * form.rows / 128;
            (m + n / width * form.rows, n % width)
        }
        _ => (32 * (m / 16) + m % 16, n),
    }
}

fn check(form: Form) {
    let spec = Tcgen05MmaSpec::parse(&modifiers(form.modifiers)).expect(form.modifiers);
    let (d_type, a_type, b_type) = form.types;
    let k = k_size(a_type, form.modifiers.contains("kind::mxf4"));
    let (step, limit) = match d_type {
        "s32" => (1.0, 255.0),
        "f16" => (1.0, 4.0),
        _ => (0.125, 8.0),
    };
    let mut random = Random(form.rows as u64);
    let mut matrix = |element: &str, rows: usize| -> Vec<Vec<u64>> {
        (0..rows).map(|_| random.codes(element, k, step, limit)).collect()
    };
    let (a_codes, b_codes) = (matrix(a_type, form.rows), matrix(b_type, form.columns));
    let c: Vec<i64> = (0..form.rows * form.columns).map(|_| (random.next() % 129) as i64 - 64).collect();

    // Each block of a pair has half of A's rows and half of B's columns, at the same addresses.
    let blocks = spec.num_blocks();
    assert_eq!(blocks, num_blocks(&form));
    let mut shared = vec![vec![0xff; 128 * 1024]; blocks];
    let (mut a, mut b) = (0, 0);
    for (at, shared) in shared.iter_mut().enumerate() {
        let [rows, columns] =
            [form.rows, form.columns].map(|size| size / blocks * at..size / blocks * (at + 1));
        a = store(shared, A_BASE, a_type, form.majors.0, &a_codes[rows]);
        b = store(shared, B_BASE, b_type, form.majors.1, &b_codes[columns]);
    }
    let mut read = |at: usize, address: u32, out: &mut [u8]| {
        out.copy_from_slice(&shared[at][address as usize..][..out.len()]);
    };

    for (accumulate, id) in [(true, 0), (false, 1), (true, 2)] {
        let mut memories = vec![TensorMemory::new(); blocks];
        memories.iter_mut().for_each(|memory| assert_eq!(memory.allocate(512), Ok(Some(0))));
        if form.a_in_tensor_memory {
            let rows = form.rows / blocks;
            for (m, row) in a_codes.iter().enumerate() {
                let split = form.modifiers.contains(".ws") || (blocks == 2 && rows == 64);
                let banks = if split { 128 / rows } else { 1 };
                for bank in 0..banks {
                    let (at, first, _) = cell(&form, m, 0);
                    let lane = first + bank * rows;
                    for (column, word) in line(a_type, row).as_chunks::<4>().0.iter().enumerate() {
                        let column = A_COLUMN as usize + column;
                        memories[at].write(lane, column, u32::from_le_bytes(*word)).expect("allocated");
                    }
                }
            }
        }
        if accumulate {
            for (i, &value) in c.iter().enumerate() {
                let (at, lane, column) = cell(&form, i / form.columns, i % form.columns);
                let junk = if d_type == "f16" { 0xabcd_0000 } else { 0 };
                let word = encode(d_type, value as f64) as u32 | junk;
                memories[at].write(lane, column, word).expect("allocated");
            }
        }
        let pair = blocks;
        let blocks = form.scale.map_or(1, |(_, block)| k / block);
        let id = if form.scale.is_some() && id + blocks <= 4 { id } else { 0 };
        // Of A each block has the scales of its own rows, of B those of all columns.
        let mut factors = |element: &str, rows: usize, first_column: u32, is_cut: bool| -> Vec<Vec<f64>> {
            let codes: Vec<_> = (0..rows).map(|_| random.codes(element, blocks, 0.5, 4.0)).collect();
            for (row, codes) in codes.iter().enumerate() {
                let word = codes.iter().rev().fold(0u64, |word, &code| word << 8 | code) << (8 * id);
                for (at, memory) in memories.iter_mut().enumerate() {
                    let row = match is_cut {
                        true if row / (rows / pair) != at => continue,
                        true => row % (rows / pair),
                        false => row,
                    };
                    for quarter in 0..4 {
                        let (lane, column) = (32 * quarter + row % 32, first_column as usize + row / 32);
                        memory.write(lane, column, word as u32).expect("allocated");
                    }
                }
            }
            codes.iter().map(|codes| codes.iter().map(|&code| decode(element, code)).collect()).collect()
        };
        let scale = form.scale.map(|(element, _)| {
            let of_a = factors(element, form.rows, SCALE_A_COLUMN, true);
            (of_a, factors(element, form.columns, SCALE_B_COLUMN, false))
        });

        let negate = form.scale.is_none() && d_type != "s32" && !accumulate;
        let shape = (form.rows as u32 / 16) << 24 | (form.columns as u32 / 8) << 17;
        let variant = match form.scale {
            None => {
                ["f16", "f32", "s32"].iter().position(|t| *t == d_type).expect("a type") as u32 * (1 << 4)
            }
            Some((element, _)) => ((element == "ue8m0") as u32) << 23 | (id as u32) << 29 | (id as u32) << 4,
        };
        let instruction = shape
            | variant
            | format_code(a_type, k) << 7
            | format_code(b_type, k) << 10
            | (negate as u32) << 13
            | (form.majors.0 as u32) << 15
            | (form.majors.1 as u32) << 16;
        let operands = Tcgen05Operands {
            d: D_COLUMN,
            a: if form.a_in_tensor_memory {
                Tcgen05A::TensorMemory(A_COLUMN)
            } else {
                Tcgen05A::Descriptor(a)
            },
            b,
            instruction,
            // Some compilers repeat the scale id in the top bits.
            scales: form.scale.map(|_| (SCALE_A_COLUMN | (id as u32) << 30, SCALE_B_COLUMN)),
            accumulate,
            scale_input_d: 0,
            disabled_lanes: 0,
        };
        spec.execute(&mut memories, &operands, &mut read).expect(form.modifiers);

        for m in 0..form.rows {
            for n in 0..form.columns {
                let mut sum = 0.0;
                for i in 0..k {
                    let factor =
                        scale.as_ref().map_or(1.0, |(a, b)| a[m][i * blocks / k] * b[n][i * blocks / k]);
                    sum += decode(a_type, a_codes[m][i]) * decode(b_type, b_codes[n][i]) * factor;
                }
                let start = if accumulate { c[m * form.columns + n] as f64 } else { 0.0 };
                let expected = start + if negate { -sum } else { sum };
                let (at, lane, column) = cell(&form, m, n);
                let word = memories[at].read(lane, column).expect("allocated").expect("written") as u64;
                let mask = if d_type == "f16" { 0xffff } else { 0xffff_ffff };
                assert_eq!(
                    decode(d_type, word & mask),
                    expected,
                    "{} {:?} M {} row {m} column {n} majors {:?}",
                    form.modifiers,
                    form.types,
                    form.rows,
                    form.majors
                );
            }
        }
    }
}

#[test]
fn plain_kinds_equal_a_triple_loop() {
    for rows in [64, 128] {
        for majors in [(false, false), (true, false), (false, true), (true, true)] {
            for types in [("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f16", "f16", "f16")] {
                check(Form { rows, columns: 64, types, majors, ..PLAIN });
            }
            let modifiers = "tcgen05.mma.cta_group::1.kind::tf32";
            check(Form { modifiers, rows, types: ("f32", "tf32", "tf32"), majors, ..PLAIN });
            let modifiers = "tcgen05.mma.cta_group::1.kind::i8.collector::a::lastuse";
            check(Form { modifiers, rows: 128, columns: 128, types: ("s32", "s8", "u8"), majors, ..PLAIN });
            let modifiers = "tcgen05.mma.cta_group::1.kind::f8f6f4";
            check(Form {
                modifiers,
                rows: 128,
                columns: 256,
                types: ("f32", "e5m2", "e4m3"),
                majors,
                ..PLAIN
            });
        }
    }
}

#[test]
fn narrow_operands_equal_a_triple_loop() {
    let all = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"];
    for a in all {
        for b in all {
            let modifiers = "tcgen05.mma.cta_group::1.kind::f8f6f4";
            check(Form { modifiers, types: ("f16", a, b), rows: 64, columns: 8, ..PLAIN });
            let modifiers = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X";
            check(Form { modifiers, types: ("f32", a, b), columns: 40, scale: Some(("ue8m0", 32)), ..PLAIN });
        }
    }
}

#[test]
fn four_bit_kinds_equal_a_triple_loop() {
    let four_bits = Form { types: ("f32", "e2m1", "e2m1"), columns: 72, ..PLAIN };
    let modifiers = "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32";
    check(Form { modifiers, scale: Some(("ue8m0", 32)), ..four_bits });
    check(Form { modifiers, scale: Some(("ue8m0", 32)), a_in_tensor_memory: true, ..four_bits });
    let modifiers = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16";
    check(Form { modifiers, scale: Some(("ue4m3", 16)), ..four_bits });
    let modifiers = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::2X";
    check(Form { modifiers, scale: Some(("ue8m0", 32)), ..four_bits });
}

#[test]
fn tensor_memory_operands_equal_a_triple_loop() {
    for rows in [64, 128] {
        check(Form { rows, a_in_tensor_memory: true, ..PLAIN });
        let modifiers = "tcgen05.mma.cta_group::1.kind::tf32";
        check(Form { modifiers, rows, types: ("f32", "tf32", "tf32"), a_in_tensor_memory: true, ..PLAIN });
        let modifiers = "tcgen05.mma.cta_group::1.kind::i8";
        check(Form { modifiers, rows, types: ("s32", "u8", "s8"), a_in_tensor_memory: true, ..PLAIN });
    }
}

#[test]
fn weight_stationary_forms_equal_a_triple_loop() {
    for rows in [32, 64, 128] {
        for columns in [64, 128, 256] {
            for a_in_tensor_memory in [false, true] {
                let modifiers = "tcgen05.mma.ws.cta_group::1.kind::f16.collector::b0::fill";
                check(Form { modifiers, rows, columns, a_in_tensor_memory, ..PLAIN });
            }
        }
    }
}

#[test]
fn pairs_of_blocks_equal_a_triple_loop() {
    for rows in [128, 256] {
        for majors in [(false, false), (true, false), (false, true), (true, true)] {
            let modifiers = "tcgen05.mma.cta_group::2.kind::f16";
            // Halves of 64 bytes at least, which the swizzle of MN-major operands takes.
            check(Form { modifiers, rows, columns: 256, majors, ..PLAIN });
        }
        let modifiers = "tcgen05.mma.cta_group::2.kind::i8";
        check(Form { modifiers, rows, columns: 96, types: ("s32", "u8", "s8"), ..PLAIN });
        let modifiers = "tcgen05.mma.cta_group::2.kind::f16";
        check(Form { modifiers, rows, a_in_tensor_memory: true, ..PLAIN });
        check(Form { modifiers, rows, columns: 16, ..PLAIN });
    }
    let four_bits = Form { rows: 256, types: ("f32", "e2m1", "e2m1"), ..PLAIN };
    for columns in [48, 256] {
        let modifiers = "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16";
        check(Form { modifiers, columns, scale: Some(("ue4m3", 16)), ..four_bits });
        let modifiers = "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block32";
        check(Form { modifiers, columns, scale: Some(("ue8m0", 32)), ..four_bits });
        let modifiers = "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.scale_vec::1X";
        let types = ("f32", "e4m3", "e2m1");
        check(Form { modifiers, columns, types, scale: Some(("ue8m0", 32)), ..four_bits });
    }
}

/// A product of ones: every cell of D is 16 plus what D held.
fn ones(change: impl Fn(&mut Tcgen05Operands, &mut TensorMemory)) -> Result<TensorMemory, String> {
    let spec = Tcgen05MmaSpec::parse(&modifiers(PLAIN.modifiers)).expect("parses");
    let mut memory = TensorMemory::new();
    memory.allocate(64).expect("room");
    let descriptor = 2 << 61 | 1 << 46 | 64 << 32;
    let mut operands = Tcgen05Operands {
        d: 0,
        a: Tcgen05A::Descriptor(descriptor),
        b: descriptor,
        instruction: 8 << 24 | 4 << 17 | 1 << 10 | 1 << 7 | 1 << 4,
        scales: None,
        accumulate: false,
        scale_input_d: 0,
        disabled_lanes: 0,
    };
    change(&mut operands, &mut memory);
    let mut read = |_: usize, _: u32, out: &mut [u8]| {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = [0x80, 0x3f][i % 2];
        }
    };
    spec.execute(&mut [&mut memory], &operands, &mut read)?;
    Ok(memory)
}

#[test]
fn optional_operands_take_effect() {
    let memory = ones(|operands, _| operands.disabled_lanes = 1 << 5).expect("executes");
    assert_eq!(memory.read(4, 31), Ok(Some(16f32.to_bits())));
    assert_eq!(memory.read(5, 31), Ok(None));
    let memory = ones(|operands, memory| {
        (operands.accumulate, operands.scale_input_d) = (true, 3);
        for cell in 0..128 * 32 {
            memory.write(cell / 32, cell % 32, 64f32.to_bits()).expect("allocated");
        }
    });
    assert_eq!(memory.expect("executes").read(127, 31), Ok(Some(24f32.to_bits())));
}

#[test]
fn mistakes_are_errors() {
    let error = |change: fn(&mut Tcgen05Operands, &mut TensorMemory)| ones(change).expect_err("an error");
    assert!(error(|operands, _| operands.accumulate = true).contains("before it is written"));
    assert!(error(|operands, _| operands.d = 40).contains("is not allocated"));
    assert!(error(|operands, _| operands.d = 16 << 16).contains("is not allocated"));
    assert!(error(|operands, _| operands.a = Tcgen05A::TensorMemory(32)).contains("before it is written"));
    assert!(error(|operands, _| operands.b = 0).contains("version"));
    assert!(error(|operands, _| operands.instruction ^= 1 << 24).contains("shape"));
    assert!(error(|operands, _| operands.instruction ^= 1 << 10).contains("pair of formats"));
    assert!(error(|operands, _| operands.instruction |= 1 << 8).contains("format of A"));
    assert!(error(|operands, _| operands.instruction ^= 1 << 4).contains("format of D"));
}

#[test]
fn unknown_forms_are_errors() {
    for text in [
        "tcgen05.mma.ws.cta_group::2.kind::f16",
        "tcgen05.mma.sp.cta_group::1.kind::f16",
        "tcgen05.mma.cta_group::1",
        "tcgen05.mma.cta_group::1.kind::mxf4",
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale",
        "tcgen05.mma.ws.cta_group::1.kind::mxf4.block_scale",
        "tcgen05.mma.cta_group::1.kind::f16.block_scale",
    ] {
        assert!(Tcgen05MmaSpec::parse(&modifiers(text)).is_err(), "{text}");
    }
}
