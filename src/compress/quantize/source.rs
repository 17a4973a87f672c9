//! Modules of the source: which tensors make one, and their values as f32.
//!
//! A weight is recognised by its names and dtypes alone; configurations are not believed.

use std::collections::BTreeMap;

use super::modules::ModuleClass;
use crate::model::checkpoint::Checkpoint;
use crate::quant::{FormatError, PackedFormat, PackedMatrix, TensorScale};
use crate::tensor::{DType, TensorView};

/// Suffixes of the tensors of one module, those that hold its values first.
const SUFFIXES: [&str; 9] = [
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
];

/// What is wrong with a source module.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Codes and scales do not fit each other.
    #[error("{module}: {error}")]
    Format {
        /// Module name.
        module: String,
        /// What does not fit.
        error: FormatError,
    },
    /// A tensor that belongs to it is not there.
    #[error("{module}: has {tensor} but no {missing}; the checkpoint is incomplete")]
    Missing {
        /// Module name.
        module: String,
        /// Tensor that is there.
        tensor: &'static str,
        /// Tensor that is not.
        missing: &'static str,
    },
    /// `weight_shape` and `weight_packed` disagree, or it is not two positive numbers.
    #[error("{module}: weight_shape does not describe weight_packed of shape {packed:?}")]
    Shape {
        /// Module name.
        module: String,
        /// Shape of the packed words.
        packed: Vec<usize>,
    },
    /// A format that is no source.
    #[error(
        "{module}: {tensor} of {dtype} is packed already; the source must be BF16, F16, F32, FP8 or INT4 group 32"
    )]
    Foreign {
        /// Module name.
        module: String,
        /// Tensor.
        tensor: &'static str,
        /// Its dtype.
        dtype: DType,
    },
    /// A weight that is not a finite number.
    #[error("{module}: row {row} has a value that is not finite; repair the source")]
    NotFinite {
        /// Module name.
        module: String,
        /// Row.
        row: usize,
    },
}

/// One module with a weight of two dimensions, borrowed.
pub(super) struct SourceMatrix<'a> {
    /// Module name, without `.weight`.
    pub(super) module: String,
    /// `[out, in]`.
    pub(super) shape: [usize; 2],
    weight: Weight<'a>,
    /// Names of its tensors.
    pub(super) tensors: Vec<String>,
    /// Bytes of them.
    pub(super) bytes: u64,
}

enum Weight<'a> {
    Plain(TensorView<'a>),
    Packed(PackedMatrix<'a>),
}

/// The modules of a checkpoint, and the tensors that belong to none of them, by name.
pub(super) struct Modules<'a> {
    pub(super) matrices: BTreeMap<String, SourceMatrix<'a>>,
    pub(super) others: Vec<String>,
}

/// Sorts the tensors of a checkpoint.
pub(super) fn modules(source: &Checkpoint) -> Result<Modules<'_>, SourceError> {
    let mut parts: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
    let mut others = Vec::new();
    for name in source.names() {
        let suffix = name.rsplit_once('.').and_then(|(module, last)| {
            SUFFIXES.iter().find(|suffix| **suffix == last).map(|suffix| (module, *suffix))
        });
        match suffix {
            Some((module, suffix)) => parts.entry(module).or_default().push(suffix),
            None => others.push(name.to_owned()),
        }
    }
    let mut matrices = BTreeMap::new();
    for (module, suffixes) in parts {
        match matrix(source, module, &suffixes)? {
            Some(matrix) => {
                matrices.insert(module.to_owned(), matrix);
            }
            None => others.extend(suffixes.iter().map(|suffix| format!("{module}.{suffix}"))),
        }
    }
    others.sort();
    Ok(Modules { matrices, others })
}

/// The matrix of a module, `None` where its weight is no matrix (norms, convolutions).
fn matrix<'a>(
    source: &'a Checkpoint,
    module: &str,
    suffixes: &[&'static str],
) -> Result<Option<SourceMatrix<'a>>, SourceError> {
    let get = |suffix: &str| source.tensor(&format!("{module}.{suffix}"));
    let need = |tensor, missing: &'static str| {
        get(missing).ok_or_else(|| SourceError::Missing { module: module.into(), tensor, missing })
    };
    let packed = |format, shape, codes, scales| {
        PackedMatrix::new(format, shape, codes, scales, TensorScale::None)
            .map_err(|error| SourceError::Format { module: module.into(), error })
    };
    let foreign = |tensor, dtype| SourceError::Foreign { module: module.into(), tensor, dtype };
    let (shape, weight) = match (get("weight"), get("weight_packed")) {
        (Some(view), None) if view.dtype.is_float() => match *view.shape {
            [out, in_features] => ([out, in_features], Weight::Plain(view)),
            _ => return Ok(None),
        },
        (Some(view), None) if view.dtype == DType::F8E4M3 => {
            let &[out, in_features] = view.shape else { return Err(foreign("weight", view.dtype)) };
            let shape = [out, in_features];
            let (scales, format) = match get("weight_scale_inv") {
                Some(scales) => (scales, PackedFormat::Fp8Block),
                None => {
                    let scales = need("weight", "weight_scale")?;
                    (scales, fp8_format(shape, &scales))
                }
            };
            (shape, Weight::Packed(packed(format, shape, view.bytes, scales)?))
        }
        (None, Some(view)) if view.dtype == DType::I32 => {
            let scales = need("weight_packed", "weight_scale")?;
            let stated = need("weight_packed", "weight_shape")?;
            let shape = stated_shape(&stated, view.shape)
                .ok_or_else(|| SourceError::Shape { module: module.into(), packed: view.shape.to_vec() })?;
            (shape, Weight::Packed(packed(PackedFormat::Int4Group32, shape, view.bytes, scales)?))
        }
        (Some(view), None) => return Err(foreign("weight", view.dtype)),
        (_, Some(view)) => return Err(foreign("weight_packed", view.dtype)),
        (None, None) => return Ok(None),
    };
    let mut tensors: Vec<String> = suffixes.iter().map(|suffix| format!("{module}.{suffix}")).collect();
    tensors.sort();
    let bytes = tensors.iter().filter_map(|name| source.tensor(name)).map(|t| t.bytes.len() as u64).sum();
    Ok(Some(SourceMatrix { module: module.into(), shape, weight, tensors, bytes }))
}

/// The FP8 format that scales of this shape belong to.
fn fp8_format(shape: [usize; 2], scales: &TensorView) -> PackedFormat {
    if scales.len() == 1 {
        PackedFormat::Fp8Tensor
    } else if scales.len() == shape[0] && scales.shape.iter().filter(|dim| **dim != 1).count() == 1 {
        PackedFormat::Fp8Row
    } else {
        PackedFormat::Fp8Block
    }
}

/// `weight_shape` (I32 or I64), where it describes packed words of this shape.
fn stated_shape(stated: &TensorView, packed: &[usize]) -> Option<[usize; 2]> {
    let numbers: Vec<i64> = match stated.dtype {
        DType::I32 => stated.bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
        DType::I64 => stated.bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => return None,
    };
    let &[out, in_features] = &numbers[..] else { return None };
    let (out, in_features) = (usize::try_from(out).ok()?, usize::try_from(in_features).ok()?);
    let &[rows, words] = packed else { return None };
    (rows == out && words.checked_mul(8) == Some(in_features)).then_some([out, in_features])
}

impl SourceMatrix<'_> {
    /// Its class.
    pub(super) fn class(&self) -> ModuleClass {
        ModuleClass::of(&self.module)
    }

    /// Whether its values are codes and scales.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.weight, Weight::Packed(_))
    }

    /// The tensor that holds its values; the module goes to the shard of this one.
    pub(super) fn main_tensor(&self) -> String {
        let last = match &self.weight {
            Weight::Packed(packed) if packed.format == PackedFormat::Int4Group32 => "weight_packed",
            _ => "weight",
        };
        format!("{}.{last}", self.module)
    }

    /// Rows `first..` as f32, as many as `values` `[rows, in]` has room for. Returns the largest magnitude.
    ///
    /// Errors: a value is not finite.
    pub(super) fn read(&self, first: usize, values: &mut [f32]) -> Result<f32, SourceError> {
        let width = self.shape[1];
        match &self.weight {
            Weight::Packed(packed) => {
                for (r, row) in values.chunks_exact_mut(width.max(1)).enumerate() {
                    packed.row_to_f32(first + r, row);
                }
            }
            Weight::Plain(view) => {
                let element = view.dtype.size().unwrap_or(1);
                let bytes = &view.bytes[first * width * element..][..values.len() * element];
                match view.dtype {
                    DType::Bf16 => {
                        for (value, b) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                            *value = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                        }
                    }
                    DType::F16 => {
                        for (value, b) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                            *value = half::f16::from_le_bytes(*b).to_f32();
                        }
                    }
                    _ => {
                        for (value, b) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                            *value = f32::from_le_bytes(*b);
                        }
                    }
                }
            }
        }
        // As integers magnitudes are in the order of their values, and what is not finite is above all that is.
        let largest = largest_bits(values);
        if largest < f32::INFINITY.to_bits() {
            return Ok(f32::from_bits(largest));
        }
        let at = values.iter().position(|v| !v.is_finite()).unwrap_or(0);
        Err(SourceError::NotFinite { module: self.module.clone(), row: first + at / width.max(1) })
    }
}

/// Largest magnitude, as bits.
fn largest_bits(values: &[f32]) -> u32 {
    let mut lanes = [0i32; 16];
    let (wide, tail) = values.as_chunks::<16>();
    // Signed comparison: SSE2 has no other, and a magnitude's sign bit is clear.
    for block in wide {
        for lane in 0..16 {
            lanes[lane] = lanes[lane].max((block[lane].to_bits() & 0x7fff_ffff) as i32);
        }
    }
    let tail = tail.iter().map(|v| (v.to_bits() & 0x7fff_ffff) as i32);
    lanes.into_iter().chain(tail).max().unwrap_or(0) as u32
}
