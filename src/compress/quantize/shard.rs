//! One shard of the result: its modules encoded, copied or widened, one after the other.
//!
//! One module lies in memory at a time, and pages of the source are given back as soon as they were read. The bytes depend on source, options and
//! calibration alone, not on the number of threads.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::dialect::{self, Part};
use super::error::QuantizeError;
use super::journal::ShardRecord;
use super::parallel;
use super::recipe::Options;
use super::report::{self, ClassReport};
use super::source::{Modules, SourceError, SourceMatrix};
use crate::calibrate::calibration::Calibration;
use perigee_model::ModuleClass;
use perigee_model::checkpoint::{Checkpoint, ShardWriter, Target, TensorSpec};
use perigee_numbers::quant::distortion::Distortion;
use perigee_numbers::quant::{MatrixEncoder, PackedMatrix};
use perigee_numbers::tensor::{Dtype, TensorView};

/// Values of a band of rows, unless the format needs more: fits the second-level cache.
const BAND_VALUES: usize = 1 << 16;
/// Bytes copied at a time.
const COPY_BYTES: usize = 8 << 20;

/// What becomes of a part of the source.
pub(super) enum Item<'a> {
    /// A tensor as it is.
    Copy(&'a str),
    /// A matrix, packed.
    Pack(&'a SourceMatrix<'a>),
    /// A matrix that the source has packed and the result has not: BF16.
    Widen(&'a SourceMatrix<'a>),
    /// The measured KV scales of a layer.
    KvScales {
        /// What its attention's names begin with, `...self_attn`.
        attention: &'a str,
        /// Layer.
        layer: usize,
    },
}

/// What goes into a shard.
pub(super) struct ShardPlan<'a> {
    pub(super) name: &'a str,
    pub(super) items: Vec<Item<'a>>,
    /// Bytes of the source that go into it.
    pub(super) source_bytes: u64,
}

/// What stays the same over a run.
pub(super) struct Run<'a> {
    pub(super) source: &'a Checkpoint,
    pub(super) modules: &'a Modules<'a>,
    pub(super) options: &'a Options,
    pub(super) threads: usize,
    pub(super) target: &'a Target,
    /// What was measured, if anything was.
    pub(super) calibration: Option<&'a Calibration>,
}

/// Shared largest magnitudes by the module that will ask for them next.
pub(super) type Amaxes = HashMap<String, f32>;

impl Run<'_> {
    /// Tensors of the result that an item becomes.
    pub(super) fn specs(&self, item: &Item) -> Vec<TensorSpec> {
        match item {
            Item::Copy(name) => {
                let tensor = self.source.tensor(name);
                tensor.map(|t| TensorSpec::new(*name, t.dtype, t.shape)).into_iter().collect()
            }
            Item::Widen(matrix) => {
                vec![TensorSpec::new(format!("{}.weight", matrix.module), Dtype::BF16, matrix.shape)]
            }
            Item::Pack(matrix) => dialect::parts(self.options, &matrix.module, matrix.shape)
                .into_iter()
                .map(|(_, spec)| spec)
                .collect(),
            Item::KvScales { attention, .. } => dialect::kv_scale_specs(self.options, attention).into(),
        }
    }

    /// Writes one shard. `done` is told the source bytes of each item.
    pub(super) fn shard(
        &self,
        plan: &ShardPlan,
        amaxes: &mut Amaxes,
        done: &mut dyn FnMut(u64),
    ) -> Result<ShardRecord, QuantizeError> {
        let specs: Vec<TensorSpec> = plan.items.iter().flat_map(|item| self.specs(item)).collect();
        let mut writer = ShardWriter::create(self.target.dir(), plan.name, &specs)?;
        let mut classes = Vec::new();
        for item in &plan.items {
            let one = match item {
                Item::Copy(name) => self.copy(name, &mut writer)?,
                Item::Widen(matrix) => self.widen(matrix, &mut writer)?,
                Item::Pack(matrix) => self.pack(matrix, amaxes, &mut writer)?,
                Item::KvScales { attention, layer } => {
                    self.kv_scales(attention, *layer, &mut writer)?;
                    continue;
                }
            };
            report::add(&mut classes, &one);
            done(one.bytes_before);
        }
        Ok(ShardRecord { name: plan.name.into(), bytes: writer.finish()?, classes })
    }

    fn copy(&self, name: &str, writer: &mut ShardWriter) -> Result<ClassReport, QuantizeError> {
        let bytes = self.source.tensor(name).map_or(&[][..], |tensor| tensor.bytes);
        for (i, part) in bytes.chunks(COPY_BYTES).enumerate() {
            writer.append(name, part)?;
            self.source.release(name, i * COPY_BYTES..i * COPY_BYTES + part.len());
        }
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let size = bytes.len() as u64;
        Ok(ClassReport::one(ModuleClass::of(module), "unchanged", size, size, &Distortion::default()))
    }

    fn kv_scales(
        &self,
        attention: &str,
        layer: usize,
        writer: &mut ShardWriter,
    ) -> Result<(), QuantizeError> {
        let amax = self.calibration.and_then(|calibration| calibration.cached_amax(layer));
        let scale = dialect::kv_scale(amax).to_le_bytes();
        for spec in dialect::kv_scale_specs(self.options, attention) {
            writer.write(&spec.name, &scale)?;
        }
        Ok(())
    }

    fn widen(&self, matrix: &SourceMatrix, writer: &mut ShardWriter) -> Result<ClassReport, QuantizeError> {
        let name = format!("{}.weight", matrix.module);
        let [out, width] = matrix.shape;
        let band = band_rows(width, 1);
        let mut values = vec![0.0; band * width];
        let mut lost = Distortion::default();
        let mut after = 0;
        for first in (0..out).step_by(band) {
            let values = &mut values[..band.min(out - first) * width];
            matrix.read(first, values)?;
            let rounded: Vec<half::bf16> = values.iter().map(|v| half::bf16::from_f32(*v)).collect();
            let widened: Vec<f32> = rounded.iter().map(|v| v.to_f32()).collect();
            lost.add(values, &widened);
            let bytes: Vec<u8> = rounded.iter().flat_map(|v| v.to_le_bytes()).collect();
            after += bytes.len() as u64;
            writer.append(&name, &bytes)?;
        }
        self.release(matrix);
        Ok(ClassReport::one(matrix.class(), "bf16", matrix.bytes, after, &lost))
    }

    fn pack(
        &self,
        matrix: &SourceMatrix,
        amaxes: &mut Amaxes,
        writer: &mut ShardWriter,
    ) -> Result<ClassReport, QuantizeError> {
        let packing = self.options.packing();
        let amax = if packing.needs_amax() { self.shared_amax(matrix, amaxes)? } else { 0.0 };
        let encoder = packing
            .encoder(matrix.shape[1], amax)
            .map_err(|error| QuantizeError::Format { module: matrix.module.clone(), error })?;
        let packed = self.encode(matrix, &encoder)?;
        self.release(matrix);
        let mut after = 0;
        let input_amax = self.calibration.and_then(|calibration| calibration.input_amax(&matrix.module));
        for (part, spec) in dialect::parts(self.options, &matrix.module, matrix.shape) {
            let small = dialect::small_part(self.options, part, &encoder, matrix.shape, input_amax);
            let bytes = match part {
                Part::Codes => &packed.codes,
                Part::Scales => &packed.scales,
                _ => small.as_deref().unwrap_or_default(),
            };
            writer.write(&spec.name, bytes)?;
            after += bytes.len() as u64;
        }
        let format = packing.format().name();
        Ok(ClassReport::one(matrix.class(), format, matrix.bytes, after, &packed.lost))
    }

    /// Largest magnitude of a matrix and of the one that shares its tensor scale, wherever that lies.
    fn shared_amax(&self, matrix: &SourceMatrix, amaxes: &mut Amaxes) -> Result<f32, SourceError> {
        let partner = partner(&matrix.module).and_then(|name| self.modules.matrices.get(&name));
        let Some(partner) = partner else { return self.amax(matrix) };
        // Found once for both, kept until the partner's turn.
        if let Some(amax) = amaxes.remove(&matrix.module) {
            return Ok(amax);
        }
        let amax = self.amax(partner)?;
        self.release(partner);
        let amax = amax.max(self.amax(matrix)?);
        amaxes.insert(partner.module.clone(), amax);
        Ok(amax)
    }

    fn amax(&self, matrix: &SourceMatrix) -> Result<f32, SourceError> {
        let [out, width] = matrix.shape;
        let band = band_rows(width, 1);
        let outcome = Outcome::default();
        parallel::run(self.threads, (0..out).step_by(band).collect(), |first| {
            let mut values = vec![0.0; band.min(out - first) * width];
            match matrix.read(first, &mut values) {
                Ok(amax) => outcome.amax(amax),
                Err(error) => outcome.fail(first, error),
            }
        });
        outcome.result()
    }

    /// Encodes a matrix, in bands of rows.
    fn encode(&self, matrix: &SourceMatrix, encoder: &MatrixEncoder) -> Result<Encoded, SourceError> {
        let [out, width] = matrix.shape;
        let band = band_rows(width, encoder.band_rows());
        let mut codes = vec![0; encoder.code_bytes(out)];
        let mut scales = vec![0; encoder.scale_bytes(out)];
        let mut lost = vec![Distortion::default(); out.div_ceil(band)];
        let mut jobs = Vec::with_capacity(lost.len());
        let (mut codes_left, mut scales_left) = (&mut codes[..], &mut scales[..]);
        for (first, lost) in (0..out).step_by(band).zip(&mut lost) {
            let last = (first + band).min(out);
            let (codes, rest) = codes_left.split_at_mut(encoder.code_bytes(last) - encoder.code_bytes(first));
            codes_left = rest;
            let (scales, rest) =
                scales_left.split_at_mut(encoder.scale_bytes(last) - encoder.scale_bytes(first));
            scales_left = rest;
            jobs.push((first, last - first, codes, scales, lost));
        }
        let outcome = Outcome::default();
        parallel::run(self.threads, jobs, |(first, rows, codes, scales, lost)| {
            let mut values = vec![0.0; rows * width];
            match matrix.read(first, &mut values) {
                Ok(_) => {
                    encoder.encode_rows(&values, codes, scales);
                    *lost = self.distortion(&values, [rows, width], encoder, codes, scales);
                }
                Err(error) => outcome.fail(first, error),
            }
        });
        outcome.result()?;
        // In the order of rows, so that the sum does not depend on the threads.
        let mut sum = Distortion::default();
        lost.iter().for_each(|band| sum.merge(band));
        Ok(Encoded { codes, scales, lost: sum })
    }

    /// What encoding a band lost: decoded as a reader would, compared with what was encoded.
    fn distortion(
        &self,
        values: &[f32],
        shape: [usize; 2],
        encoder: &MatrixEncoder,
        codes: &[u8],
        scales: &[u8],
    ) -> Distortion {
        let packing = self.options.packing();
        let dims = packing.format().scale_shape(shape);
        let only_scale = encoder.only_scale().map(f32::to_le_bytes);
        let scales = only_scale.as_ref().map_or(scales, |bytes| &bytes[..]);
        let scales = TensorView { dtype: packing.scale_dtype(), shape: &dims, bytes: scales };
        let mut lost = Distortion::default();
        if let Ok(packed) = PackedMatrix::new(packing.format(), shape, codes, scales, encoder.tensor_scale())
        {
            let mut row = vec![0.0; shape[1]];
            for (r, values) in values.chunks_exact(shape[1].max(1)).enumerate() {
                packed.row_to_f32(r, &mut row);
                lost.add(values, &row);
            }
        }
        lost
    }

    /// Gives the memory of a matrix back that has been read.
    fn release(&self, matrix: &SourceMatrix) {
        for tensor in &matrix.tensors {
            self.source.release(tensor, 0..usize::MAX);
        }
    }
}

struct Encoded {
    codes: Vec<u8>,
    scales: Vec<u8>,
    lost: Distortion,
}

/// The module whose first matrix shares a tensor scale with this one: `up_proj` for `gate_proj` and the other way round. Serving engines
/// multiply by both at once, under one scale.
fn partner(module: &str) -> Option<String> {
    let (stem, last) = module.rsplit_once('.')?;
    match last {
        "gate_proj" => Some(format!("{stem}.up_proj")),
        "up_proj" => Some(format!("{stem}.gate_proj")),
        _ => None,
    }
}

/// Rows of a band: a multiple of `unit`, about [`BAND_VALUES`] values, at least one unit.
fn band_rows(width: usize, unit: usize) -> usize {
    (BAND_VALUES / width.max(1) / unit).max(1) * unit
}

/// What parallel jobs found: the largest magnitude, or the error of the first row that has one.
#[derive(Default)]
struct Outcome(Mutex<(f32, Option<(usize, SourceError)>)>);

impl Outcome {
    fn amax(&self, amax: f32) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.0 = found.0.max(amax);
    }

    fn fail(&self, first: usize, error: SourceError) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.1.as_ref().is_none_or(|(row, _)| first < *row) {
            found.1 = Some((first, error));
        }
    }

    fn result(self) -> Result<f32, SourceError> {
        match self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            (_, Some((_, error))) => Err(error),
            (amax, None) => Ok(amax),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_and_up_are_partners() {
        assert_eq!(partner("a.gate_proj").as_deref(), Some("a.up_proj"));
        assert_eq!(partner("a.up_proj").as_deref(), Some("a.gate_proj"));
        assert_eq!(partner("a.down_proj"), None);
    }
}
