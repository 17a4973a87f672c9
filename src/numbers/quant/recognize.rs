//! Recognises the stored format of a linear weight from the names, dtypes and shapes of its
//! tensors.
//!
//! Released checkpoints mix formats and describe them wrongly or not at all in `config.json`, so
//! every linear is recognised by itself. The function is pure: a closure returns a linear's tensors
//! ("parts", by the last word of their names). [`Layout::of`] reads names, dtypes and shapes only;
//! [`Layout::bind`] also reads the few bytes of tensor scales and `weight_shape`. Block scales are
//! checked by [`super::check_scales`], a separate pass, because it reads a ninth of a checkpoint.

use super::format::{FP8_BLOCK, PackedFormat};
use super::nvfp4::SMALLEST_TENSOR_SCALE;
use super::packed::{FormatError, PackedMatrix, TensorScale};
use super::stored::StoredMatrix;
use crate::tensor::{Dtype, ElementType, TensorView};

/// Bounds of a plausible NVFP4 tensor scale (amax / 2688). One of the reciprocal convention is above; a matrix that
/// is nearly zero has a very small one.
const TENSOR_SCALE_BOUNDS: (f32, f32) = (SMALLEST_TENSOR_SCALE, 1.0);

/// Spelling of a linear in a checkpoint: the format together with the names and conventions of the
/// package that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dialect {
    /// `weight` of this float type.
    Plain(FloatType),
    /// `weight` U8, `weight_scale` F8_E4M3, `weight_scale_2` multiplies.
    ModeloptNvfp4,
    /// `weight_packed` U8, `weight_scale` F8_E4M3, `weight_global_scale` divides.
    CompressedTensorsNvfp4,
    /// `weight` U8, `weight_scale` U8 or F8_E8M0.
    QuarkMxfp4,
    /// `weight_packed` U8, `weight_scale` U8 or F8_E8M0.
    CompressedTensorsMxfp4,
    /// `weight_packed` I32, `weight_scale` BF16 (also F16, F32, F8_E8M0), `weight_shape`.
    CompressedTensorsInt4,
    /// `weight` F8_E4M3, `weight_scale_inv` per 128 x 128; multiplies despite its name.
    Fp8BlockInv,
    /// `weight` F8_E4M3, `weight_scale` per 128 x 128.
    Fp8Block,
    /// `weight` F8_E4M3, `weight_scale` per row.
    Fp8Row,
    /// `weight` F8_E4M3, `weight_scale` of one value.
    Fp8Tensor,
}

/// Float types of a plain weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum FloatType {
    Bf16,
    F16,
    F32,
}

/// Last words of tensor names that a reader of quantized weights interprets.
pub const PART_NAMES: [&str; 15] = [
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_shape",
    "input_scale",
    "input_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "pre_quant_scale",
    "svdquant_lora_a",
    "svdquant_lora_b",
    "scale",
];

impl Dialect {
    /// The packed format; `None` for plain floats.
    pub fn format(self) -> Option<PackedFormat> {
        Some(match self {
            Dialect::Plain(_) => return None,
            Dialect::ModeloptNvfp4 | Dialect::CompressedTensorsNvfp4 => PackedFormat::Nvfp4,
            Dialect::QuarkMxfp4 | Dialect::CompressedTensorsMxfp4 => PackedFormat::Mxfp4,
            Dialect::CompressedTensorsInt4 => PackedFormat::Int4Group32,
            Dialect::Fp8BlockInv | Dialect::Fp8Block => PackedFormat::Fp8Block,
            Dialect::Fp8Row => PackedFormat::Fp8Row,
            Dialect::Fp8Tensor => PackedFormat::Fp8Tensor,
        })
    }

    /// Name of the format: as in [`PackedFormat::name`], or the dtype.
    pub fn format_name(self) -> &'static str {
        match self {
            Dialect::Plain(FloatType::Bf16) => "BF16",
            Dialect::Plain(FloatType::F16) => "F16",
            Dialect::Plain(FloatType::F32) => "F32",
            packed => packed.format().map_or("", PackedFormat::name),
        }
    }

    /// Package with this spelling, for reports.
    pub fn writer(self) -> &'static str {
        match self {
            Dialect::Plain(_) => "plain",
            Dialect::ModeloptNvfp4 => "modelopt",
            Dialect::QuarkMxfp4 => "quark",
            Dialect::CompressedTensorsNvfp4
            | Dialect::CompressedTensorsMxfp4
            | Dialect::CompressedTensorsInt4 => "compressed-tensors",
            Dialect::Fp8BlockInv => "deepseek",
            Dialect::Fp8Block | Dialect::Fp8Row | Dialect::Fp8Tensor => "fp8",
        }
    }

    /// The part that holds the codes or the values.
    pub fn codes_part(self) -> &'static str {
        self.parts()[0]
    }

    /// All parts of the dialect, codes first. The last ones, `input_scale` and
    /// `input_global_scale`, may be absent: they are calibrated scales of activations, which
    /// weight-only products do not use.
    pub fn parts(self) -> &'static [&'static str] {
        match self {
            Dialect::Plain(_) => &["weight"],
            Dialect::ModeloptNvfp4 => &["weight", "weight_scale", "weight_scale_2", "input_scale"],
            Dialect::CompressedTensorsNvfp4 => {
                &["weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"]
            }
            Dialect::QuarkMxfp4 => &["weight", "weight_scale"],
            Dialect::CompressedTensorsMxfp4 => &["weight_packed", "weight_scale"],
            Dialect::CompressedTensorsInt4 => &["weight_packed", "weight_scale", "weight_shape"],
            Dialect::Fp8BlockInv => &["weight", "weight_scale_inv", "input_scale"],
            Dialect::Fp8Block | Dialect::Fp8Row | Dialect::Fp8Tensor => {
                &["weight", "weight_scale", "input_scale"]
            }
        }
    }

    /// The part that holds the block scales; `None` for plain floats.
    pub fn scale_part(self) -> Option<&'static str> {
        self.parts().get(1).copied()
    }
}

/// Format of a linear, as its tensors' names, dtypes and shapes determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Format and spelling.
    pub dialect: Dialect,
    /// `[out, in]`, in elements.
    pub shape: [usize; 2],
    /// Stored bytes of all parts.
    pub bytes: usize,
}

/// Reason why the tensors of a linear are not a readable weight. The caller adds the linear's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecognizeError {
    /// No tensor holds values.
    #[error("neither weight nor weight_packed is stored{}", found.map_or(String::new(), |f| format!(", only {f}")))]
    NoWeight {
        /// A scale that is stored nevertheless.
        found: Option<&'static str>,
    },
    /// Two forms of one weight are stored.
    #[error("both {first} and {second} are stored; only one of them can be meant")]
    Both {
        /// Name of the first part.
        first: &'static str,
        /// Name of the second part.
        second: &'static str,
    },
    /// A part is missing that the codes need.
    #[error("{part} is {dtype}, so {partner} is needed beside it and is missing{hint}")]
    MissingPartner {
        /// Name of the stored part.
        part: &'static str,
        /// Dtype of the stored part.
        dtype: Dtype,
        /// Name of the missing part.
        partner: &'static str,
        /// Possible cause.
        hint: &'static str,
    },
    /// A stored part contradicts the codes.
    #[error("{part} is {dtype}, which does not go with the {partner} stored beside it")]
    StrayPartner {
        /// Name of the part with the codes.
        part: &'static str,
        /// Dtype of the codes.
        dtype: Dtype,
        /// Name of the contradicting part.
        partner: &'static str,
    },
    /// A part has a dtype of no known format.
    #[error("{part} has dtype {dtype}, expected {expected}")]
    PartDtype {
        /// Name of the part.
        part: &'static str,
        /// Dtype stored.
        dtype: Dtype,
        /// Dtypes that can be read.
        expected: &'static str,
    },
    /// A part has a shape of no known format.
    #[error("{part} has shape {shape:?}, expected {expected}")]
    PartShape {
        /// Name of the part.
        part: &'static str,
        /// Shape stored.
        shape: Vec<usize>,
        /// Shapes that can be read.
        expected: String,
    },
    /// The group size is not served.
    #[error(
        "{part} has shape {shape:?}: {format} with groups of {group}, but only groups of {expected} are served; quantize the model again"
    )]
    GroupSize {
        /// Name of the part.
        part: &'static str,
        /// Shape stored.
        shape: Vec<usize>,
        /// Name of the format.
        format: &'static str,
        /// Columns per scale as stored.
        group: usize,
        /// Columns per scale as served.
        expected: usize,
    },
    /// A stored transform changes the meaning of the codes.
    #[error("{part} is stored: {what}, which is not served; export the model without it")]
    NotServed {
        /// Name of the part that indicates the transform.
        part: &'static str,
        /// Meaning of the transform.
        what: &'static str,
    },
    /// A tensor scale of the other convention.
    #[error(
        "{part} is {value:e}, outside {low:e} to {high:e}; its reciprocal is inside, so it looks written in {looks_like}'s convention under \
         the other's name"
    )]
    Reciprocal {
        /// Name of the part.
        part: &'static str,
        /// Value stored.
        value: f32,
        /// Lower bound of plausible scales.
        low: f32,
        /// Upper bound of plausible scales.
        high: f32,
        /// Name of the other convention.
        looks_like: &'static str,
    },
    /// A tensor scale outside the bounds of every convention.
    #[error("{part} is {value:e}, outside {low:e} to {high:e}")]
    TensorScale {
        /// Name of the part.
        part: &'static str,
        /// Value stored.
        value: f32,
        /// Lower bound of plausible scales.
        low: f32,
        /// Upper bound of plausible scales.
        high: f32,
    },
    /// `weight_shape` contradicts the codes.
    #[error("weight_shape says {declared:?}, the codes are of a {shape:?} matrix")]
    DeclaredShape {
        /// Content of `weight_shape`.
        declared: Vec<i64>,
        /// Shape computed from the codes.
        shape: [usize; 2],
    },
    /// Sizes of codes and scales do not match.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Recognises and borrows a linear; see [`Layout`]. `part` returns the tensor whose name is the
/// linear's name, a dot, and the given word.
pub fn recognize<'a>(
    part: impl Fn(&str) -> Option<TensorView<'a>>,
) -> Result<(Layout, StoredMatrix<'a>), RecognizeError> {
    let layout = Layout::of(&part)?;
    let matrix = layout.bind(&part)?;
    Ok((layout, matrix))
}

impl Layout {
    /// Reads names, dtypes and shapes; no data.
    pub fn of<'a>(part: impl Fn(&str) -> Option<TensorView<'a>>) -> Result<Self, RecognizeError> {
        for (part_name, what) in [
            ("weight_zero_point", "asymmetric quantization"),
            ("weight_g_idx", "columns reordered by activation (actorder)"),
            ("pre_quant_scale", "inputs scaled per channel (AWQ)"),
            ("svdquant_lora_a", "a low-rank part beside the codes (SVDQuant)"),
            ("svdquant_lora_b", "a low-rank part beside the codes (SVDQuant)"),
        ] {
            if part(part_name).is_some() {
                return Err(RecognizeError::NotServed { part: part_name, what });
            }
        }
        match (part("weight"), part("weight_packed")) {
            (Some(_), Some(_)) => Err(RecognizeError::Both { first: "weight", second: "weight_packed" }),
            (None, None) => {
                let found = PART_NAMES.into_iter().find(|name| part(name).is_some());
                Err(RecognizeError::NoWeight { found })
            }
            (Some(weight), None) => Self::of_weight(weight, part),
            (None, Some(packed)) => Self::of_packed(packed, part),
        }
    }

    fn of_weight<'a>(
        weight: TensorView<'a>,
        part: impl Fn(&str) -> Option<TensorView<'a>>,
    ) -> Result<Self, RecognizeError> {
        let name = "weight";
        let dtype = weight.dtype;
        let shape = matrix_shape(name, &weight)?;
        let plain = match dtype {
            Dtype::BF16 => Some(FloatType::Bf16),
            Dtype::F16 => Some(FloatType::F16),
            Dtype::F32 => Some(FloatType::F32),
            _ => None,
        };
        if let Some(float) = plain {
            refuse_strays(name, dtype, &SCALES, &part)?;
            return Ok(Self { dialect: Dialect::Plain(float), shape, bytes: weight.bytes.len() });
        }
        match dtype {
            Dtype::U8 => {
                refuse_strays(name, dtype, &["weight_scale_inv", "weight_shape"], &part)?;
                let missing =
                    |partner, hint| RecognizeError::MissingPartner { part: name, dtype, partner, hint };
                let scale = part("weight_scale").ok_or_else(|| missing("weight_scale", ""))?;
                let shape = four_bit_shape(name, shape, 2)?;
                match scale.dtype {
                    Dtype::F8_E4M3 => {
                        let hint = match part("weight_global_scale") {
                            Some(_) => ": weight_global_scale belongs to weight_packed",
                            None => "",
                        };
                        let tensor = part("weight_scale_2").ok_or_else(|| missing("weight_scale_2", hint))?;
                        refuse_strays(name, dtype, &["weight_global_scale"], &part)?;
                        check_scalar("weight_scale_2", &tensor)?;
                        Self::grouped(Dialect::ModeloptNvfp4, shape, &weight, &scale)
                    }
                    Dtype::U8 | Dtype::F8_E8M0 => {
                        refuse_strays(name, dtype, &["weight_scale_2", "weight_global_scale"], &part)?;
                        Self::grouped(Dialect::QuarkMxfp4, shape, &weight, &scale)
                    }
                    dtype => Err(scale_dtype(dtype)),
                }
            }
            Dtype::F8_E4M3 => {
                refuse_strays(
                    name,
                    dtype,
                    &["weight_scale_2", "weight_global_scale", "weight_shape"],
                    &part,
                )?;
                Self::fp8(shape, &weight, part("weight_scale_inv"), part("weight_scale"))
            }
            dtype => Err(RecognizeError::PartDtype {
                part: name,
                dtype,
                expected: "BF16, F16, F32, F8_E4M3 or U8",
            }),
        }
    }

    fn of_packed<'a>(
        packed: TensorView<'a>,
        part: impl Fn(&str) -> Option<TensorView<'a>>,
    ) -> Result<Self, RecognizeError> {
        let name = "weight_packed";
        let dtype = packed.dtype;
        let shape = matrix_shape(name, &packed)?;
        refuse_strays(name, dtype, &["weight_scale_inv"], &part)?;
        let missing = |partner, hint| RecognizeError::MissingPartner { part: name, dtype, partner, hint };
        if !matches!(dtype, Dtype::I32 | Dtype::U8) {
            return Err(RecognizeError::PartDtype { part: name, dtype, expected: "I32 or U8" });
        }
        let scale = part("weight_scale").ok_or_else(|| missing("weight_scale", ""))?;
        if dtype == Dtype::I32 {
            refuse_strays(name, dtype, &["weight_scale_2", "weight_global_scale"], &part)?;
            if !scale.dtype.is_float() && scale.dtype != Dtype::F8_E8M0 {
                let (part, dtype) = ("weight_scale", scale.dtype);
                let expected = "BF16, F16, F32 or F8_E8M0 beside I32 codes";
                return Err(RecognizeError::PartDtype { part, dtype, expected });
            }
            let shape = four_bit_shape(name, shape, 8)?;
            let declared = part("weight_shape");
            if let Some(declared) = declared
                && (!matches!(declared.dtype, Dtype::I32 | Dtype::I64) || declared.shape != [2])
            {
                return Err(RecognizeError::PartShape {
                    part: "weight_shape",
                    shape: declared.shape.to_vec(),
                    expected: format!("[2] of I32 or I64, got {}", declared.dtype),
                });
            }
            let layout = Self::grouped(Dialect::CompressedTensorsInt4, shape, &packed, &scale)?;
            return Ok(Self { bytes: layout.bytes + declared.map_or(0, |d| d.bytes.len()), ..layout });
        }
        let shape = four_bit_shape(name, shape, 2)?;
        match scale.dtype {
            Dtype::F8_E4M3 => {
                let hint = match part("weight_scale_2") {
                    Some(_) => ": weight_scale_2 belongs to weight",
                    None => "",
                };
                let global =
                    part("weight_global_scale").ok_or_else(|| missing("weight_global_scale", hint))?;
                refuse_strays(name, dtype, &["weight_scale_2"], &part)?;
                check_scalar("weight_global_scale", &global)?;
                Self::grouped(Dialect::CompressedTensorsNvfp4, shape, &packed, &scale)
            }
            Dtype::U8 | Dtype::F8_E8M0 => {
                refuse_strays(name, dtype, &["weight_scale_2", "weight_global_scale"], &part)?;
                Self::grouped(Dialect::CompressedTensorsMxfp4, shape, &packed, &scale)
            }
            dtype => Err(scale_dtype(dtype)),
        }
    }

    /// A 4-bit format: `[out, in]` codes, scales `[out, in / group]`.
    fn grouped(
        dialect: Dialect,
        shape: [usize; 2],
        codes: &TensorView<'_>,
        scale: &TensorView<'_>,
    ) -> Result<Self, RecognizeError> {
        let format = dialect.format().unwrap_or(PackedFormat::Nvfp4);
        let expected = format.group().unwrap_or(1);
        let [out, in_features] = shape;
        match scale.shape {
            [rows, groups] if *rows == out && groups.checked_mul(expected) == Some(in_features) => {}
            [rows, groups] if *rows == out && *groups > 0 && in_features.is_multiple_of(*groups) => {
                return Err(RecognizeError::GroupSize {
                    part: "weight_scale",
                    shape: scale.shape.to_vec(),
                    format: format.name(),
                    group: in_features / groups,
                    expected,
                });
            }
            _ if !in_features.is_multiple_of(expected) => {
                let (format, group) = (format.name(), expected);
                return Err(FormatError::PartialGroup { format, group, in_features }.into());
            }
            _ => {
                return Err(RecognizeError::PartShape {
                    part: "weight_scale",
                    shape: scale.shape.to_vec(),
                    expected: format!(
                        "{:?} for a {shape:?} matrix of {}",
                        format.scale_shape(shape),
                        format.name()
                    ),
                });
            }
        }
        let tensor_scale = if format.row().has_tensor_scale { 4 } else { 0 };
        Ok(Self { dialect, shape, bytes: codes.bytes.len() + scale.bytes.len() + tensor_scale })
    }

    fn fp8(
        shape: [usize; 2],
        weight: &TensorView<'_>,
        inverse: Option<TensorView<'_>>,
        scale: Option<TensorView<'_>>,
    ) -> Result<Self, RecognizeError> {
        let [out, in_features] = shape;
        let blocks = [out.div_ceil(FP8_BLOCK), in_features.div_ceil(FP8_BLOCK)];
        let is_blocks =
            |dims: &[usize]| dims == blocks || matches!(dims, [ob, 1, ib, 1] if [*ob, *ib] == blocks);
        let (part, scale, dialect, expected) = match (inverse, scale) {
            (Some(_), Some(_)) => {
                return Err(RecognizeError::Both { first: "weight_scale_inv", second: "weight_scale" });
            }
            (None, None) => {
                return Err(RecognizeError::MissingPartner {
                    part: "weight",
                    dtype: weight.dtype,
                    partner: "weight_scale_inv or weight_scale",
                    hint: "",
                });
            }
            (Some(scale), None) => {
                let dialect = is_blocks(scale.shape).then_some(Dialect::Fp8BlockInv);
                ("weight_scale_inv", scale, dialect, format!("{blocks:?} (blocks of 128 x 128)"))
            }
            (None, Some(scale)) => {
                let dialect = match scale.shape {
                    [] | [1] => Some(Dialect::Fp8Tensor),
                    [rows] | [rows, 1] if *rows == out => Some(Dialect::Fp8Row),
                    dims if is_blocks(dims) => Some(Dialect::Fp8Block),
                    [1, 1] => Some(Dialect::Fp8Tensor),
                    _ => None,
                };
                ("weight_scale", scale, dialect, format!("[], [{out}] or {blocks:?}"))
            }
        };
        let Some(dialect) = dialect else {
            return Err(RecognizeError::PartShape { part, shape: scale.shape.to_vec(), expected });
        };
        if !scale.dtype.is_float() && scale.dtype != Dtype::F8_E8M0 {
            let expected = "F32, BF16, F16 or F8_E8M0 beside F8_E4M3 codes";
            return Err(RecognizeError::PartDtype { part, dtype: scale.dtype, expected });
        }
        Ok(Self { dialect, shape, bytes: weight.bytes.len() + scale.bytes.len() })
    }

    /// Borrows the matrix. Reads tensor scales and `weight_shape`, no block scales. `part` must be
    /// the closure that made the layout.
    pub fn bind<'a>(
        &self,
        part: impl Fn(&str) -> Option<TensorView<'a>>,
    ) -> Result<StoredMatrix<'a>, RecognizeError> {
        let codes_part = self.dialect.codes_part();
        let codes = part(codes_part).ok_or(RecognizeError::NoWeight { found: None })?;
        let needed = |name: &'static str| {
            part(name).ok_or(RecognizeError::MissingPartner {
                part: codes_part,
                dtype: codes.dtype,
                partner: name,
                hint: "",
            })
        };
        let (Some(format), Some(scale_part)) = (self.dialect.format(), self.dialect.scale_part()) else {
            return Ok(codes.into());
        };
        let scales = needed(scale_part)?;
        let tensor_scale = match self.dialect {
            Dialect::ModeloptNvfp4 => {
                let value = scalar("weight_scale_2", &needed("weight_scale_2")?)?;
                check_convention("weight_scale_2", value, TENSOR_SCALE_BOUNDS, "compressed-tensors")?;
                TensorScale::Multiply(value)
            }
            Dialect::CompressedTensorsNvfp4 => {
                let value = scalar("weight_global_scale", &needed("weight_global_scale")?)?;
                let (low, high) = TENSOR_SCALE_BOUNDS;
                check_convention("weight_global_scale", value, (1.0 / high, 1.0 / low), "modelopt")?;
                TensorScale::Divide(value)
            }
            _ => TensorScale::None,
        };
        if self.dialect == Dialect::CompressedTensorsInt4
            && let Some(declared) = part("weight_shape")
        {
            let declared = declared.to_i64s();
            if declared.len() != 2 || (0..2).any(|i| usize::try_from(declared[i]) != Ok(self.shape[i])) {
                return Err(RecognizeError::DeclaredShape { declared, shape: self.shape });
            }
        }
        Ok(PackedMatrix::new(format, self.shape, codes.bytes, scales, tensor_scale)?.into())
    }
}

/// Parts that contradict a plain weight.
const SCALES: [&str; 5] =
    ["weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_shape"];

fn refuse_strays<'a>(
    name: &'static str,
    dtype: Dtype,
    strays: &[&'static str],
    part: &impl Fn(&str) -> Option<TensorView<'a>>,
) -> Result<(), RecognizeError> {
    match strays.iter().find(|stray| part(stray).is_some()) {
        Some(partner) => Err(RecognizeError::StrayPartner { part: name, dtype, partner }),
        None => Ok(()),
    }
}

fn scale_dtype(dtype: Dtype) -> RecognizeError {
    RecognizeError::PartDtype {
        part: "weight_scale",
        dtype,
        expected: "F8_E4M3 (NVFP4), U8 or F8_E8M0 (MXFP4)",
    }
}

fn matrix_shape(part: &'static str, view: &TensorView<'_>) -> Result<[usize; 2], RecognizeError> {
    match view.shape {
        [out, in_features] => Ok([*out, *in_features]),
        shape => Err(RecognizeError::PartShape {
            part,
            shape: shape.to_vec(),
            expected: "two dimensions, [out, in]".into(),
        }),
    }
}

/// `[out, in]` of codes `[out, in / codes_per_element]`.
fn four_bit_shape(
    part: &'static str,
    [out, words]: [usize; 2],
    codes_per_element: usize,
) -> Result<[usize; 2], RecognizeError> {
    let in_features = words.checked_mul(codes_per_element).filter(|n| n.checked_mul(out.max(1)).is_some());
    in_features.map(|n| [out, n]).ok_or_else(|| RecognizeError::PartShape {
        part,
        shape: vec![out, words],
        expected: "fewer elements than an address has".into(),
    })
}

fn check_scalar(part: &'static str, view: &TensorView<'_>) -> Result<(), RecognizeError> {
    if view.dtype != Dtype::F32 {
        return Err(RecognizeError::PartDtype { part, dtype: view.dtype, expected: "F32" });
    }
    if !matches!(view.shape, [] | [1]) {
        let shape = view.shape.to_vec();
        return Err(RecognizeError::PartShape { part, shape, expected: "[] or [1]".into() });
    }
    Ok(())
}

/// The value of an F32 tensor `[]` or `[1]`.
pub fn scalar(part: &'static str, view: &TensorView<'_>) -> Result<f32, RecognizeError> {
    check_scalar(part, view)?;
    Ok(view.to_f32().first().copied().unwrap_or(f32::NAN))
}

fn check_convention(
    part: &'static str,
    value: f32,
    (low, high): (f32, f32),
    other: &'static str,
) -> Result<(), RecognizeError> {
    let inside = |v: f32| v > low && v < high;
    if inside(value) {
        Ok(())
    } else if inside(1.0 / value) {
        Err(RecognizeError::Reciprocal { part, value, low, high, looks_like: other })
    } else {
        Err(RecognizeError::TensorScale { part, value, low, high })
    }
}

#[cfg(test)]
#[path = "recognize_tests.rs"]
mod tests;
