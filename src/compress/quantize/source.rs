//! Modules of the source: which tensors make one, and their values as f32.
//!
//! A weight is recognised as for serving, by its tensors alone; configurations are not believed.

use std::collections::BTreeMap;

use perigee_model::ModuleClass;
use perigee_model::checkpoint::Checkpoint;
use perigee_numbers::quant::{
    Dialect, Layout, PART_NAMES, PackedFormat, RecognizeError, StoredMatrix, recognize,
};
use perigee_numbers::tensor::{ElementType, TensorView};

/// What is wrong with a source module.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Its tensors are no weight that can be read.
    #[error("{module}: {error}")]
    Unreadable {
        /// Module name.
        module: String,
        /// What keeps its tensors from being read as a weight.
        error: RecognizeError,
    },
    /// A format that is read but is no source: its rounding would be rounded once more.
    #[error("{module}: is {format} already; the source must be BF16, F16, F32, FP8 or INT4 group 32")]
    Foreign {
        /// Module name.
        module: String,
        /// Name of the format.
        format: &'static str,
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
    dialect: Dialect,
    weight: StoredMatrix<'a>,
    /// Names of its tensors.
    pub(super) tensors: Vec<String>,
    /// Bytes of them.
    pub(super) bytes: u64,
}

/// The modules of a checkpoint, and the tensors that belong to none of them, by name.
pub(super) struct Modules<'a> {
    pub(super) matrices: BTreeMap<String, SourceMatrix<'a>>,
    pub(super) others: Vec<String>,
}

/// Sorts the tensors of a checkpoint.
pub(super) fn modules(source: &Checkpoint) -> Result<Modules<'_>, SourceError> {
    let mut modules: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
    let mut others = Vec::new();
    for name in source.names() {
        let part = name.rsplit_once('.').and_then(|(module, last)| {
            PART_NAMES.into_iter().find(|part| *part == last).map(|part| (module, part))
        });
        match part {
            Some((module, part)) => modules.entry(module).or_default().push(part),
            None => others.push(name.to_owned()),
        }
    }
    let mut matrices = BTreeMap::new();
    for (module, parts) in modules {
        match matrix(source, module, &parts)? {
            Some(matrix) => {
                matrices.insert(module.to_owned(), matrix);
            }
            None => others.extend(parts.iter().map(|part| format!("{module}.{part}"))),
        }
    }
    others.sort();
    Ok(Modules { matrices, others })
}

/// The matrix of a module, `None` where its weight is no matrix (norms, convolutions) or nothing of a weight is stored.
fn matrix<'a>(
    source: &'a Checkpoint,
    module: &str,
    parts: &[&'static str],
) -> Result<Option<SourceMatrix<'a>>, SourceError> {
    let part = |name: &str| match parts.contains(&name) {
        true => source.tensor(&format!("{module}.{name}")),
        false => None,
    };
    let is_no_matrix = |weight: TensorView<'_>| weight.dtype.is_float() && weight.shape.len() != 2;
    if !parts.iter().any(|name| name.starts_with("weight")) || part("weight").is_some_and(is_no_matrix) {
        return Ok(None);
    }
    let (Layout { dialect, shape, .. }, weight) =
        recognize(part).map_err(|error| SourceError::Unreadable { module: module.into(), error })?;
    if let Some(format @ (PackedFormat::Nvfp4 | PackedFormat::Mxfp4)) = dialect.format() {
        return Err(SourceError::Foreign { module: module.into(), format: format.name() });
    }
    let mut tensors: Vec<String> = parts.iter().map(|name| format!("{module}.{name}")).collect();
    tensors.sort();
    let bytes = tensors.iter().filter_map(|name| source.tensor(name)).map(|t| t.bytes.len() as u64).sum();
    Ok(Some(SourceMatrix { module: module.into(), shape, dialect, weight, tensors, bytes }))
}

impl SourceMatrix<'_> {
    /// Its class.
    pub(super) fn class(&self) -> ModuleClass {
        ModuleClass::of(&self.module)
    }

    /// Whether its values are codes and scales.
    pub(super) fn is_packed(&self) -> bool {
        self.weight.packed().is_some()
    }

    /// The tensor that holds its values; the module goes to the shard of this one.
    pub(super) fn main_tensor(&self) -> String {
        format!("{}.{}", self.module, self.dialect.codes_part())
    }

    /// Rows `first..` as f32, as many as `values` `[rows, in]` has room for. Returns the largest magnitude.
    ///
    /// Errors: a value is not finite.
    pub(super) fn read(&self, first: usize, values: &mut [f32]) -> Result<f32, SourceError> {
        let width = self.shape[1];
        for (r, row) in values.chunks_exact_mut(width.max(1)).enumerate() {
            self.weight.row_to_f32(first + r, row);
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
