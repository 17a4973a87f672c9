//! Every spelling is recognised, and every known fault has its own error.

use super::*;

/// The tensors of a linear, owned.
struct Parts(Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>);

impl Parts {
    fn new(list: &[Part]) -> Self {
        let bytes = |dtype: Dtype, shape: &[usize]| {
            vec![0u8; shape.iter().product::<usize>() * dtype.element_bytes().unwrap_or(1)]
        };
        let part = |(name, dtype, shape): &Part| (*name, *dtype, shape.to_vec(), bytes(*dtype, shape));
        Self(list.iter().map(part).collect())
    }

    fn with(mut self, name: &str, bytes: &[u8]) -> Self {
        let part = self.0.iter_mut().find(|p| p.0 == name).expect("the part is there");
        part.3 = bytes.to_vec();
        self
    }

    fn find(&self, name: &str) -> Option<TensorView<'_>> {
        let (_, dtype, shape, bytes) = self.0.iter().find(|p| p.0 == name)?;
        Some(TensorView { dtype: *dtype, shape, bytes })
    }

    fn recognize(&self) -> Result<(Layout, StoredMatrix<'_>), RecognizeError> {
        recognize(|name| self.find(name))
    }
}

/// Name, dtype and shape of a part.
type Part = (&'static str, Dtype, &'static [usize]);

use Dtype::{BF16, F8_E4M3, F8_E8M0, F16, F32, I8, I32, I64, U8};

const SCALE_2: Part = ("weight_scale_2", F32, &[]);

fn check(list: &[Part], dialect: Dialect, shape: [usize; 2]) {
    let mut parts = Parts::new(list);
    for (name, value) in [("weight_scale_2", 1e-4f32), ("weight_global_scale", 1e4)] {
        if parts.find(name).is_some() {
            parts = parts.with(name, &value.to_le_bytes());
        }
    }
    if let Some(declared) = parts.find("weight_shape") {
        let bytes: Vec<u8> = match declared.dtype {
            I32 => shape.iter().flat_map(|d| (*d as i32).to_le_bytes()).collect(),
            _ => shape.iter().flat_map(|d| (*d as i64).to_le_bytes()).collect(),
        };
        parts = parts.with("weight_shape", &bytes);
    }
    let (layout, matrix) = parts.recognize().unwrap_or_else(|error| panic!("{list:?}: {error}"));
    assert_eq!((layout.dialect, layout.shape), (dialect, shape));
    assert_eq!(matrix.packed().map(|p| (p.format, p.shape)), dialect.format().map(|f| (f, shape)));
    assert_eq!(matrix.format_name(), dialect.format_name());
    let stored: usize = parts.0.iter().filter(|p| !p.0.starts_with("input")).map(|p| p.3.len()).sum();
    assert_eq!(layout.bytes, stored, "{list:?}");
    assert!(parts.0.iter().all(|p| dialect.parts().contains(&p.0)));
}

#[test]
fn every_spelling_is_recognised() {
    let plain = Dialect::Plain(FloatType::Bf16);
    check(&[("weight", BF16, &[3, 5])], plain, [3, 5]);
    check(&[("weight", F32, &[3, 5])], Dialect::Plain(FloatType::F32), [3, 5]);
    let nv: [Part; 2] = [("weight", U8, &[4, 32]), ("weight_scale", F8_E4M3, &[4, 4])];
    check(&[nv[0], nv[1], SCALE_2], Dialect::ModeloptNvfp4, [4, 64]);
    check(
        &[nv[0], nv[1], ("weight_scale_2", F32, &[1]), ("input_scale", F32, &[])],
        Dialect::ModeloptNvfp4,
        [4, 64],
    );
    let packed: Part = ("weight_packed", U8, &[4, 32]);
    check(
        &[packed, nv[1], ("weight_global_scale", F32, &[1]), ("input_global_scale", F32, &[1])],
        Dialect::CompressedTensorsNvfp4,
        [4, 64],
    );
    check(&[nv[0], ("weight_scale", U8, &[4, 2])], Dialect::QuarkMxfp4, [4, 64]);
    check(&[nv[0], ("weight_scale", F8_E8M0, &[4, 2])], Dialect::QuarkMxfp4, [4, 64]);
    check(&[packed, ("weight_scale", U8, &[4, 2])], Dialect::CompressedTensorsMxfp4, [4, 64]);
    let int4: Part = ("weight_packed", I32, &[4, 8]);
    let scale: Part = ("weight_scale", BF16, &[4, 2]);
    check(&[int4, scale], Dialect::CompressedTensorsInt4, [4, 64]);
    check(&[int4, scale, ("weight_shape", I32, &[2])], Dialect::CompressedTensorsInt4, [4, 64]);
    check(&[int4, scale, ("weight_shape", I64, &[2])], Dialect::CompressedTensorsInt4, [4, 64]);
    let fp8: Part = ("weight", F8_E4M3, &[200, 320]);
    check(&[fp8, ("weight_scale_inv", F32, &[2, 3])], Dialect::Fp8BlockInv, [200, 320]);
    check(&[fp8, ("weight_scale", F32, &[2, 3])], Dialect::Fp8Block, [200, 320]);
    check(&[fp8, ("weight_scale", BF16, &[2, 1, 3, 1])], Dialect::Fp8Block, [200, 320]);
    check(&[fp8, ("weight_scale_inv", F8_E8M0, &[2, 3])], Dialect::Fp8BlockInv, [200, 320]);
    check(&[fp8, ("weight_scale_inv", F16, &[2, 3])], Dialect::Fp8BlockInv, [200, 320]);
    check(&[fp8, ("weight_scale", F16, &[200])], Dialect::Fp8Row, [200, 320]);
    check(&[fp8, ("weight_scale", F8_E8M0, &[])], Dialect::Fp8Tensor, [200, 320]);
    check(&[int4, ("weight_scale", F16, &[4, 2])], Dialect::CompressedTensorsInt4, [4, 64]);
    check(&[int4, ("weight_scale", F32, &[4, 2])], Dialect::CompressedTensorsInt4, [4, 64]);
    check(&[int4, ("weight_scale", F8_E8M0, &[4, 2])], Dialect::CompressedTensorsInt4, [4, 64]);
    check(&[fp8, ("weight_scale", F32, &[200])], Dialect::Fp8Row, [200, 320]);
    check(&[fp8, ("weight_scale", F32, &[200, 1])], Dialect::Fp8Row, [200, 320]);
    check(&[fp8, ("weight_scale", F32, &[])], Dialect::Fp8Tensor, [200, 320]);
    check(&[fp8, ("weight_scale", F32, &[1]), ("input_scale", F32, &[])], Dialect::Fp8Tensor, [200, 320]);
    // One row of blocks is not the same as one scale per row.
    check(&[("weight", F8_E4M3, &[3, 384]), ("weight_scale", F32, &[1, 3])], Dialect::Fp8Block, [3, 384]);
    check(&[("weight", F8_E4M3, &[3, 384]), ("weight_scale", F32, &[3])], Dialect::Fp8Row, [3, 384]);
    check(&[("weight", F8_E4M3, &[3, 8]), ("weight_scale", F32, &[1, 1])], Dialect::Fp8Block, [3, 8]);
}

#[test]
fn every_trap_is_named() {
    let nv: [Part; 2] = [("weight", U8, &[4, 32]), ("weight_scale", F8_E4M3, &[4, 4])];
    let int4: [Part; 2] = [("weight_packed", I32, &[4, 8]), ("weight_scale", BF16, &[4, 2])];
    let fp8: Part = ("weight", F8_E4M3, &[200, 320]);
    let cases: &[(&[Part], &str)] = &[
        (&[], "neither weight nor weight_packed is stored"),
        (&[("weight_scale", U8, &[4, 2])], "only weight_scale"),
        (&[("weight", BF16, &[4, 32]), int4[0], int4[1]], "both weight and weight_packed"),
        (&[("weight", BF16, &[4])], "two dimensions"),
        (&[("weight", BF16, &[4, 4, 4])], "two dimensions"),
        (
            &[("weight", BF16, &[4, 32]), ("weight_scale", F32, &[])],
            "BF16, which does not go with the weight_scale",
        ),
        (&[("weight", I8, &[4, 32])], "weight has dtype I8"),
        (&[("weight", I64, &[4, 32])], "weight has dtype I64"),
        (&[nv[0]], "weight is U8, so weight_scale is needed beside it and is missing"),
        (&[nv[0], nv[1]], "weight_scale_2 is needed"),
        (&[nv[0], nv[1], ("weight_global_scale", F32, &[1])], "weight_global_scale belongs to weight_packed"),
        (&[nv[0], nv[1], ("weight_scale_2", BF16, &[])], "weight_scale_2 has dtype BF16, expected F32"),
        (&[nv[0], nv[1], ("weight_scale_2", F32, &[2])], "weight_scale_2 has shape [2], expected [] or [1]"),
        (&[nv[0], ("weight_scale", F32, &[4, 4]), SCALE_2], "weight_scale has dtype F32"),
        (
            &[nv[0], ("weight_scale", F8_E4M3, &[4, 2]), SCALE_2],
            "nvfp4 with groups of 32, but only groups of 16",
        ),
        (
            &[nv[0], ("weight_scale", F8_E4M3, &[5, 4]), SCALE_2],
            "expected [4, 4] for a [4, 64] matrix of nvfp4",
        ),
        (&[nv[0], ("weight_scale", F8_E4M3, &[4, 5]), SCALE_2], "expected [4, 4]"),
        (&[("weight", U8, &[4, 12]), ("weight_scale", F8_E4M3, &[4, 1]), SCALE_2], "groups of 24"),
        (
            &[("weight", U8, &[4, 12]), ("weight_scale", F8_E4M3, &[4, 5]), SCALE_2],
            "multiple of 16 columns, got 24",
        ),
        (&[nv[0], ("weight_scale", U8, &[4, 4])], "mxfp4 with groups of 16, but only groups of 32"),
        (&[nv[0], ("weight_scale", U8, &[4, 2]), SCALE_2], "does not go with the weight_scale_2"),
        (&[int4[0]], "weight_packed is I32, so weight_scale is needed"),
        (&[int4[0], ("weight_scale", F8_E4M3, &[4, 2])], "BF16, F16, F32 or F8_E8M0 beside I32 codes"),
        (&[int4[0], ("weight_scale", BF16, &[4, 1])], "int4-g32 with groups of 64, but only groups of 32"),
        (&[int4[0], ("weight_scale", BF16, &[4, 0])], "expected [4, 2]"),
        (&[int4[0], int4[1], ("weight_zero_point", I32, &[1, 2])], "asymmetric quantization"),
        (&[int4[0], int4[1], ("weight_g_idx", I32, &[64])], "actorder"),
        (&[int4[0], int4[1], ("weight_shape", I32, &[3])], "weight_shape has shape [3]"),
        (&[int4[0], int4[1], ("weight_shape", F32, &[2])], "[2] of I32 or I64, got F32"),
        (
            &[int4[0], int4[1], ("weight_shape", I64, &[2])],
            "weight_shape says [0, 0], the codes are of a [4, 64] matrix",
        ),
        (&[("weight_packed", I64, &[4, 8]), int4[1]], "weight_packed has dtype I64"),
        (&[("weight_packed", U8, &[4, 32]), nv[1]], "weight_global_scale is needed"),
        (&[("weight_packed", U8, &[4, 32]), nv[1], SCALE_2], "weight_scale_2 belongs to weight"),
        (&[fp8], "weight_scale_inv or weight_scale is needed"),
        (
            &[fp8, ("weight_scale", F32, &[]), ("weight_scale_inv", F32, &[2, 3])],
            "both weight_scale_inv and weight_scale",
        ),
        (&[fp8, ("weight_scale_inv", F32, &[4, 5])], "expected [2, 3] (blocks of 128 x 128)"),
        (&[fp8, ("weight_scale_inv", F32, &[])], "expected [2, 3]"),
        (&[fp8, ("weight_scale", F32, &[320])], "expected [], [200] or [2, 3]"),
        (&[fp8, ("weight_scale", U8, &[2, 3])], "F32, BF16, F16 or F8_E8M0 beside F8_E4M3"),
        (&[fp8, ("weight_scale", F32, &[]), SCALE_2], "does not go with the weight_scale_2"),
        (&[nv[0], nv[1], SCALE_2, ("pre_quant_scale", BF16, &[64])], "AWQ"),
        (&[nv[0], nv[1], SCALE_2, ("svdquant_lora_a", BF16, &[32, 64])], "SVDQuant"),
        (&[("weight", U8, &[0, usize::MAX / 2 + 1]), ("weight_scale", U8, &[0, 4])], "fewer elements"),
    ];
    for (list, expected) in cases {
        let parts = Parts::new(list);
        let error = parts.recognize().expect_err(expected).to_string();
        assert!(error.contains(expected), "{list:?}\n  gave {error}\n  expected {expected}");
    }
}

#[test]
fn swapped_conventions_are_told_apart_from_nonsense() {
    let check = |name: &'static str, value: f32, expected: &str| {
        let codes = if name == "weight_scale_2" { "weight" } else { "weight_packed" };
        let list: [Part; 3] = [(codes, U8, &[4, 32]), ("weight_scale", F8_E4M3, &[4, 4]), (name, F32, &[])];
        let parts = Parts::new(&list).with(name, &value.to_le_bytes());
        let result = parts.recognize().map(|_| ()).map_err(|error| error.to_string());
        match result {
            Ok(()) => assert_eq!(expected, "", "{name} = {value}"),
            Err(error) => {
                assert!(!expected.is_empty() && error.contains(expected), "{name} = {value}: {error}")
            }
        }
    };
    check("weight_scale_2", 3.7e-5, "");
    check("weight_scale_2", 26880.0, "looks written in compressed-tensors's convention");
    check("weight_scale_2", 0.0, "weight_scale_2 is 0e0, outside 1e-30 to 1e0");
    check("weight_scale_2", -1e-4, "outside");
    check("weight_scale_2", f32::NAN, "outside");
    check("weight_scale_2", f32::INFINITY, "outside");
    check("weight_scale_2", 1e-9, "");
    check("weight_scale_2", 1e-31, "outside");
    check("weight_global_scale", 26880.0, "");
    check("weight_global_scale", 3.7e-5, "looks written in modelopt's convention");
    check("weight_global_scale", 0.0, "outside");
}
