use super::*;
use crate::matrix::golden::{self, Fragment, Random, decode, element_bits, modifiers};
use crate::matrix::mma::MmaSpec;
use serde_json::Value;

/// A tile layout of `fragments.json` for 64 rows or columns.
struct Layout {
    name: String,
    mn_major: bool,
    k_step: usize,
    addresses: Vec<Vec<usize>>,
    descriptors: Vec<u64>,
}

impl Layout {
    fn new(name: &str, entry: &Value) -> Self {
        let parse = |text: &Value| {
            let digits = text.as_str().expect("text").trim_start_matches("0x");
            u64::from_str_radix(digits, 16).expect(digits)
        };
        Self {
            name: name.to_string(),
            mn_major: entry["major"] == "MN",
            k_step: entry["k_step"].as_u64().expect("a number") as usize,
            addresses: serde_json::from_value(entry["address"].clone()).expect("addresses"),
            descriptors: entry["descriptors"].as_array().expect("descriptors").iter().map(parse).collect(),
        }
    }

    /// Every layout whose tiles hold `element`.
    fn all(fragments: &Value, element: &str) -> Vec<Self> {
        let prefix = match element_bits(element) {
            8 => "b8.",
            16 => "b16.",
            _ => "tf32.",
        };
        let tiles = fragments["wgmma_smem"].as_object().expect("an object");
        let chosen = tiles.iter().filter(|(name, _)| name.starts_with(prefix));
        chosen.map(|(name, entry)| Self::new(name, entry)).collect()
    }

    /// Stores element (mn, k) of K step `step` at its address; `code(mn, k)`.
    fn store(
        &self,
        memory: &mut [u8],
        base: usize,
        bits: usize,
        step: usize,
        code: impl Fn(usize, usize) -> u64,
    ) {
        for (mn, row) in self.addresses.iter().enumerate() {
            for k in 0..self.k_step {
                let at = base + row[step * self.k_step + k];
                memory[at..at + bits / 8].copy_from_slice(&code(mn, k).to_le_bytes()[..bits / 8]);
            }
        }
    }
}

/// Operand types with their sum, exact data for the sum, and the table of an A in registers.
const FORMS: [(&str, &str, &str, f64, f64, &str); 9] = [
    ("f32.bf16.bf16", "bf16", "bf16", 0.125, 8.0, "wgmma.k16.A.b16"),
    ("f32.f16.f16", "f16", "f16", 0.125, 8.0, "wgmma.k16.A.b16"),
    ("f16.f16.f16", "f16", "f16", 1.0, 4.0, "wgmma.k16.A.b16"),
    ("f32.tf32.tf32", "tf32", "tf32", 0.125, 8.0, "wgmma.k8.A.tf32"),
    // Sums of 8-bit floats have 14 bits.
    ("f32.e4m3.e5m2", "e4m3", "e5m2", 1.0, 4.0, "wgmma.k32.A.b8"),
    ("f16.e5m2.e4m3", "e5m2", "e4m3", 1.0, 4.0, "wgmma.k32.A.b8"),
    ("s32.s8.s8", "s8", "s8", 1.0, 255.0, "wgmma.k32.A.b8"),
    ("s32.u8.s8", "u8", "s8", 1.0, 255.0, "wgmma.k32.A.b8"),
    ("s32.s8.u8.satfinite", "s8", "u8", 1.0, 255.0, "wgmma.k32.A.b8"),
];

/// All four warps of m64n64 against a triple loop, for every pair of layouts of A and B.
#[test]
fn products_equal_a_triple_loop_for_every_layout() {
    let fragments = golden::fragments();
    let mut random = Random(3);
    for (types, a_type, b_type, step, limit, a_table) in FORMS {
        let sum_type = types.split('.').next().expect("a type");
        let a_layouts = Layout::all(&fragments, a_type);
        let b_layouts = Layout::all(&fragments, b_type);
        let k_size = b_layouts[0].k_step;
        let text = format!("wgmma.mma_async.sync.aligned.m64n64k{k_size}.{types}");
        let spec = WgmmaSpec::parse(&modifiers(&text)).expect(&text);
        let c_table = Fragment::new(&fragments["wgmma"]["wgmma.m64n64.C.f32"]["C"]);
        // The table of f16 sums has 32 columns: it is checked by
        // `accumulators_lie_where_the_tables_say`.
        let c_table = if sum_type == "f16" { halves(&c_table) } else { c_table };
        assert_eq!(spec.registers().d, c_table.registers(), "{text}");
        let a_table = Fragment::new(&fragments["wgmma"][a_table]["A"]);
        assert_eq!(spec.registers().a, a_table.registers(), "{text}");

        for round in 0..a_layouts.len() * b_layouts.len() {
            let a_layout = &a_layouts[round / b_layouts.len()];
            let b_layout = &b_layouts[round % b_layouts.len()];
            let a_codes = random.codes(a_type, 64 * k_size, step, limit);
            let b_codes = random.codes(b_type, k_size * 64, step, limit);
            let c_codes = random.codes(sum_type, 64 * 64, 1.0, 64.0);
            let a_step = round % a_layout.descriptors.len();
            let b_step = (round / 2) % b_layout.descriptors.len();
            // Unused bytes are ones: NaN in most formats.
            let mut memory = vec![0xff; 64 * 1024];
            let (a_base, b_base) = (1024, 32 * 1024);
            a_layout.store(&mut memory, a_base, element_bits(a_type), a_step, |m, k| a_codes[m * k_size + k]);
            b_layout.store(&mut memory, b_base, element_bits(b_type), b_step, |n, k| b_codes[k * 64 + n]);
            let a_descriptor = a_layout.descriptors[a_step] + (a_base as u64 >> 4);
            let b_descriptor = b_layout.descriptors[b_step] + (b_base as u64 >> 4);
            let float = sum_type != "s32";
            let control = WgmmaControl {
                scale_d: round % 3 != 0,
                scale_a: if float && round % 4 == 1 { -1 } else { 1 },
                scale_b: if float && round % 5 == 2 { -1 } else { 1 },
                trans_a: a_layout.mn_major,
                trans_b: b_layout.mn_major,
            };
            for in_registers in [false, true] {
                let mut got = vec![0; 64 * 64];
                for warp in 0..4 {
                    let a_registers = a_table.place(&a_codes, warp);
                    let a = if in_registers {
                        WgmmaA::Registers(&a_registers)
                    } else {
                        WgmmaA::Descriptor(a_descriptor)
                    };
                    let mut d = c_table.place(&c_codes, warp);
                    if !control.scale_d {
                        d.fill([0xffff_ffff; 32]);
                    }
                    let mut read = |address: u32, out: &mut [u8]| {
                        out.copy_from_slice(&memory[address as usize..][..out.len()]);
                    };
                    spec.execute(warp, a, b_descriptor, &mut read, &mut d, control);
                    c_table.take(&d, warp, &mut got);
                }
                for m in 0..64 {
                    for n in 0..64 {
                        let start = if control.scale_d { decode(sum_type, c_codes[m * 64 + n]) } else { 0.0 };
                        let product: f64 = (0..k_size)
                            .map(|k| {
                                decode(a_type, a_codes[m * k_size + k]) * decode(b_type, b_codes[k * 64 + n])
                            })
                            .sum();
                        let expected = start + product * (control.scale_a * control.scale_b) as f64;
                        assert_eq!(
                            decode(sum_type, got[m * 64 + n]),
                            expected,
                            "{text} row {m} column {n} A {} B {} {control:?}",
                            a_layout.name,
                            b_layout.name
                        );
                    }
                }
            }
        }
    }
}

/// The same table for accumulators of 16 bits.
fn halves(table: &Fragment) -> Fragment {
    Fragment { bits: 16, regs: table.regs / 2, per_reg: 2, ..table.clone() }
}

/// A is a column of ones and B one line of memory, so that D shows its own column numbers.
#[test]
fn accumulators_lie_where_the_tables_say() {
    let fragments = golden::fragments();
    let mut checked = 0;
    for (name, entry) in fragments["wgmma"].as_object().expect("an object") {
        if entry["operand"] != "C" {
            continue;
        }
        let table = Fragment::new(&entry["C"]);
        let sum = if table.bits == 16 { "f16" } else { "f32" };
        let text = format!("wgmma.mma_async.sync.aligned.m64n{}k16.{sum}.f16.f16", table.cols);
        let spec = WgmmaSpec::parse(&modifiers(&text)).expect(&text);
        assert_eq!(spec.registers().d, table.registers(), "{name}");
        // B[0][n] = n, B[1][n] = 1 and A[m] = (1, m): the product is m + n.
        let mut memory = vec![0u8; 32 * 1024];
        let mut put = |at: usize, value: usize| {
            let code = golden::encode("f16", value as f64) as u16;
            memory[at..at + 2].copy_from_slice(&code.to_le_bytes());
        };
        let b_base = 16 * 1024;
        for n in 0..table.cols {
            // K-major without swizzle, groups of eight rows 128 bytes apart.
            put(b_base + 16 * n, n);
            put(b_base + 16 * n + 2, 1);
        }
        for m in 0..64 {
            put(16 * m, 1);
            put(16 * m + 2, m);
        }
        let layout = |base: usize| 0x0000_0008_0200_0000 + (base as u64 >> 4);
        let mut got = vec![0; table.len()];
        for warp in 0..4 {
            let mut d = vec![[u32::MAX; 32]; table.registers()];
            let mut read =
                |address: u32, out: &mut [u8]| out.copy_from_slice(&memory[address as usize..][..out.len()]);
            let a = WgmmaA::Descriptor(layout(0));
            spec.execute(warp, a, layout(b_base), &mut read, &mut d, WgmmaControl::new(false));
            table.take(&d, warp, &mut got);
        }
        for (index, code) in got.into_iter().enumerate() {
            assert_eq!(decode(sum, code), (index / table.cols + index % table.cols) as f64, "{name} {index}");
        }
        checked += 1;
    }
    assert_eq!(checked, 6);
}

/// The widest form, and non-finite operands, against `mma.sync` on the same fragments.
#[test]
fn eight_columns_equal_mma_sync() {
    let mut random = Random(4);
    let spec =
        WgmmaSpec::parse(&modifiers("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16")).expect("wgmma");
    let mma =
        MmaSpec::parse(&modifiers("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"), 90).expect("mma");
    let mut draw = |len: usize| -> Vec<u8> { (0..len).map(|_| random.next() as u8).collect() };
    let memory = draw(8192);
    let words = draw(128 * (4 + 128));
    let mut lanes = words.chunks_exact(128).map(|chunk| -> Lanes {
        std::array::from_fn(|lane| u32::from_le_bytes(*chunk[4 * lane..].first_chunk().expect("four bytes")))
    });
    let a: Vec<Lanes> = lanes.by_ref().take(4).collect();
    let c: Vec<Lanes> = lanes.collect();
    let mut d = c.clone();
    // K-major without swizzle: rows of 16 bytes, the second half of k 4096 bytes behind.
    let b = 0x0000_0008_0100_0000;
    let mut read =
        |address: u32, out: &mut [u8]| out.copy_from_slice(&memory[address as usize..][..out.len()]);
    spec.execute(1, WgmmaA::Registers(&a), b, &mut read, &mut d, WgmmaControl::new(true));
    for block in 0..32 {
        let word = |lane: usize, half: usize| {
            let at = 4096 * half + 16 * (8 * block + lane / 4) + 4 * (lane % 4);
            u32::from_le_bytes(*memory[at..].first_chunk().expect("four bytes"))
        };
        let fragment: [Lanes; 2] = [0, 1].map(|half| std::array::from_fn(|lane| word(lane, half)));
        let mut expected = [[0; 32]; 4];
        mma.execute(&a, &fragment, &c[4 * block..4 * block + 4], None, &mut expected);
        assert_eq!(d[4 * block..4 * block + 4], expected, "block {block}");
    }
}

#[test]
fn unknown_forms_are_errors() {
    for text in [
        "wgmma.mma_async.sync.aligned.m64n264k16.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8",
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n64k16.f16.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.s8.s8",
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16.sp",
    ] {
        assert!(WgmmaSpec::parse(&modifiers(text)).is_err(), "{text}");
    }
}
