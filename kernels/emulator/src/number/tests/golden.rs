//! Every table of `conversions.safetensors`; its README defines names and comparison.

use super::super::bf16::Bf16;
use super::super::comparison::{Comparison, compare};
use super::super::convert::{f32_to_integer, integer_to_sixteen};
use super::super::extremum::Selection;
use super::super::half::F16;
use super::super::integer::Integer;
use super::super::narrow;
use super::super::round::{Mode, Rounding};
use super::super::sixteen::Sixteen;
use safetensors::{Dtype, SafeTensors};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/conversions.safetensors");

/// How a table compares its NaNs.
#[derive(Clone, Copy, PartialEq)]
enum Nan {
    /// Two NaNs of the 16-bit format with this infinity are equal.
    Any(u64),
    AnyF32,
    Exact,
}

impl Nan {
    fn is(self, bits: u64) -> bool {
        match self {
            Nan::Any(infinity) => bits & 0x7fff > infinity,
            Nan::AnyF32 => bits & 0x7fff_ffff > 0x7f80_0000,
            Nan::Exact => false,
        }
    }
}

const F16_NAN: Nan = Nan::Any(0x7c00);
const BF16_NAN: Nan = Nan::Any(0x7f80);

type Operation = (&'static str, fn(u16, u16) -> u16);
type Narrowing = (&'static str, fn(f32, Mode) -> u8, Mode);

struct Tables<'a> {
    file: SafeTensors<'a>,
    checked: Vec<String>,
}

impl Tables<'_> {
    /// The elements of a tensor, sign- or zero-extended.
    fn read(&self, name: &str) -> Vec<u64> {
        let tensor = self.file.tensor(name).unwrap();
        let data = tensor.data();
        let words = |n: usize| data.chunks_exact(n);
        match tensor.dtype() {
            Dtype::U8 => data.iter().map(|&x| x.into()).collect(),
            Dtype::I8 => data.iter().map(|&x| x as i8 as u64).collect(),
            Dtype::U16 => words(2).map(|x| u16::from_le_bytes(x.try_into().unwrap()).into()).collect(),
            Dtype::I16 => words(2).map(|x| i16::from_le_bytes(x.try_into().unwrap()) as u64).collect(),
            Dtype::U32 => words(4).map(|x| u32::from_le_bytes(x.try_into().unwrap()).into()).collect(),
            Dtype::I32 => words(4).map(|x| i32::from_le_bytes(x.try_into().unwrap()) as u64).collect(),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn check(&mut self, table: &str, inputs: &[&str], nan: Nan, f: impl Fn(&[u64]) -> u64) {
        let inputs: Vec<Vec<u64>> = inputs.iter().map(|name| self.read(name)).collect();
        let expected = self.read(table);
        assert!(inputs.iter().all(|input| input.len() == expected.len()), "{table}: lengths");
        for (i, &want) in expected.iter().enumerate() {
            let operands: Vec<u64> = inputs.iter().map(|input| input[i]).collect();
            let got = f(&operands);
            let same = got == want || (nan.is(got) && nan.is(want));
            assert!(same, "{table}[{i}] of {operands:x?}: got {got:#x}, want {want:#x}");
        }
        self.checked.push(table.to_string());
    }

    fn unary(&mut self, table: &str, input: &str, nan: Nan, f: impl Fn(u64) -> u64) {
        self.check(table, &[input], nan, |x| f(x[0]));
    }

    /// A table over all codes of a small format.
    fn codes(&mut self, table: &str, nan: Nan, f: impl Fn(u8) -> u64) {
        for (code, want) in self.read(table).into_iter().enumerate() {
            let got = f(code as u8);
            assert!(
                got == want || (nan.is(got) && nan.is(want)),
                "{table}[{code:#x}]: {got:#x}, want {want:#x}"
            );
        }
        self.checked.push(table.to_string());
    }

    fn operations<F: Sixteen>(&mut self, name: &str, nan: Nan) {
        let pair = [format!("input2.{name}.a"), format!("input2.{name}.b")];
        let pair = [pair[0].as_str(), pair[1].as_str()];
        let arithmetic: &[Operation] = &[
            ("add", |a, b| F::add(a, b, Mode::RN)),
            ("add_sat", |a, b| F::add(a, b, Mode::RN.sat())),
            ("sub", |a, b| F::sub(a, b, Mode::RN)),
            ("mul", |a, b| F::mul(a, b, Mode::RN)),
        ];
        const NAN: Selection = Selection { nan: true, abs: false, xorsign: false, ftz: false };
        let selections: &[Operation] = &[
            ("min", |a, b| F::min(a, b, Selection::default())),
            ("max", |a, b| F::max(a, b, Selection::default())),
            ("min_NaN", |a, b| F::min(a, b, NAN)),
            ("max_NaN", |a, b| F::max(a, b, NAN)),
        ];
        for (list, nan) in [(arithmetic, nan), (selections, Nan::Exact)] {
            for (operation, f) in list {
                let table = format!("{operation}_{name}");
                if self.file.names().contains(&table.as_str()) {
                    self.check(&table, &pair, nan, |x| f(x[0] as u16, x[1] as u16).into());
                }
            }
        }
        self.fma::<F>(name, nan);
    }

    fn fma<F: Sixteen>(&mut self, name: &str, nan: Nan) {
        let inputs = ["a", "b", "c"].map(|operand| format!("input3.{name}.{operand}"));
        self.check(&format!("fma_rn_{name}"), &inputs.each_ref().map(String::as_str), nan, |x| {
            F::fma(x[0] as u16, x[1] as u16, x[2] as u16, Mode::RN).into()
        });
    }

    fn integers<F: Sixteen, T: Integer>(&mut self, name: &str, integer: &str) {
        let table = format!("{name}_{integer}_rzi");
        self.unary(&table, &format!("input.{name}"), Nan::Exact, |x| {
            f32_to_integer::<T>(F::to_f32(x as u16), Rounding::Zero).to_u64()
        });
    }
}

#[test]
fn golden_tables() {
    let bytes = std::fs::read(FILE).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tables = Tables { file, checked: Vec::new() };
    let f32_of = |x: u64| f32::from_bits(x as u32);
    let roundings =
        [("rn", Rounding::NearestEven), ("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)];
    for (name, rounding) in roundings {
        tables.unary(&format!("f32_f16_{name}"), "input.f32", F16_NAN, |x| {
            F16::from_f32(f32_of(x), rounding).into()
        });
        tables.unary(&format!("f32_bf16_{name}"), "input.f32", BF16_NAN, |x| {
            Bf16::from_f32(f32_of(x), rounding).into()
        });
    }
    let satfinite = Mode::RN.satfinite();
    let narrowings: &[Narrowing] = &[
        ("e4m3_rn_satfinite", narrow::e4m3, satfinite),
        ("e4m3_rn_nosat", narrow::e4m3, Mode::RN),
        ("e5m2_rn_satfinite", narrow::e5m2, satfinite),
        ("e5m2_rn_nosat", narrow::e5m2, Mode::RN),
        ("e2m1_rn_satfinite", narrow::e2m1, satfinite),
        ("e2m3_rn_satfinite", narrow::e2m3, satfinite),
        ("e3m2_rn_satfinite", narrow::e3m2, satfinite),
        ("ue8m0_rp_satfinite", narrow::ue8m0, Mode::RP.satfinite()),
        ("ue8m0_rp_nosat", narrow::ue8m0, Mode::RP),
        ("ue8m0_rz_satfinite", narrow::ue8m0, Mode::RZ.satfinite()),
    ];
    for (name, f, mode) in narrowings {
        tables.unary(&format!("f32_{name}"), "input.f32", Nan::Exact, |x| f(f32_of(x), *mode).into());
    }
    tables.unary("f16_e4m3_rn_satfinite", "input.f16", Nan::Exact, |x| {
        narrow::e4m3(F16::to_f32(x as u16), satfinite).into()
    });
    tables.unary("f16_e5m2_rn_satfinite", "input.f16", Nan::Exact, |x| {
        narrow::e5m2(F16::to_f32(x as u16), satfinite).into()
    });
    tables.unary("bf16_e4m3_rn_satfinite", "input.bf16", Nan::Exact, |x| {
        narrow::e4m3(Bf16::to_f32(x as u16), satfinite).into()
    });
    tables.unary("f16_f32", "input.f16", Nan::AnyF32, |x| F16::to_f32(x as u16).to_bits().into());
    tables.unary("bf16_f32", "input.bf16", Nan::AnyF32, |x| Bf16::to_f32(x as u16).to_bits().into());
    tables.codes("e4m3_f16", F16_NAN, |x| F16::convert(narrow::e4m3_to_f32(x), Mode::RN).into());
    tables.codes("e5m2_f16", F16_NAN, |x| F16::convert(narrow::e5m2_to_f32(x), Mode::RN).into());
    tables.codes("e2m1_f16", F16_NAN, |x| F16::convert(narrow::e2m1_to_f32(x), Mode::RN).into());
    tables.codes("e2m3_f16", F16_NAN, |x| F16::convert(narrow::e2m3_to_f32(x), Mode::RN).into());
    tables.codes("e3m2_f16", F16_NAN, |x| F16::convert(narrow::e3m2_to_f32(x), Mode::RN).into());
    tables.codes("ue8m0_bf16", BF16_NAN, |x| Bf16::convert(narrow::ue8m0_to_f32(x), Mode::RN).into());
    tables.integers::<F16, i8>("f16", "s8");
    tables.integers::<F16, i16>("f16", "s16");
    tables.integers::<F16, u16>("f16", "u16");
    tables.integers::<F16, i32>("f16", "s32");
    tables.integers::<F16, u32>("f16", "u32");
    tables.integers::<Bf16, i32>("bf16", "s32");
    tables.integers::<Bf16, u32>("bf16", "u32");
    tables.unary("s32_f16_rn", "input.s32", F16_NAN, |x| {
        integer_to_sixteen::<F16, i32>(x as i32, Rounding::NearestEven).into()
    });
    tables.unary("s32_bf16_rn", "input.s32", BF16_NAN, |x| {
        integer_to_sixteen::<Bf16, i32>(x as i32, Rounding::NearestEven).into()
    });
    tables.unary("u32_f16_rn", "input.s32", F16_NAN, |x| {
        integer_to_sixteen::<F16, u32>(x as u32, Rounding::NearestEven).into()
    });
    tables.operations::<F16>("f16", F16_NAN);
    tables.operations::<Bf16>("bf16", BF16_NAN);
    let pair = ["input2.f16.a", "input2.f16.b"];
    for name in ["eq", "ne", "lt", "ltu", "neu"] {
        let comparison = Comparison::parse(name).unwrap();
        tables.check(&format!("{name}_f16"), &pair, Nan::Exact, |x| {
            compare(comparison, F16::to_f32(x[0] as u16), F16::to_f32(x[1] as u16)).into()
        });
    }

    let mut all: Vec<&str> =
        tables.file.names().into_iter().filter(|name| !name.starts_with("input")).collect();
    all.sort_unstable();
    tables.checked.sort_unstable();
    assert_eq!(tables.checked, all);
}
