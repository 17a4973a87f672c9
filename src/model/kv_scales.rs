//! Stored scales of an FP8 KV cache.
//!
//! Exporters calibrate keys and values per head, while this cache holds the latent that both are
//! computed from; other engines of this family apply `k_scale` to the latent nevertheless. A stored
//! scale is therefore used only on request, and as the power of two that covers it: the cache's
//! scales are powers of two, which costs an 8-bit float no precision.

use super::checkpoint::Checkpoint;
use super::expert_names::layer_of;
use perigee_numbers::quant::covering_exponent;
use perigee_numbers::tensor::ElementType;

/// A stored scale that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name}: {problem}; set kv_cache.fp8_scale to token, which uses no stored scale")]
pub struct KvScaleError {
    /// Tensor name.
    pub name: String,
    /// Problem of the scale.
    pub problem: String,
}

/// Scales by layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvScales {
    /// `[num_layers]`: base-2 logarithm of the cache's scale; 0 for a layer without a stored scale.
    pub exponents: Vec<i32>,
    /// Number of layers with a stored scale.
    pub num_stored: usize,
}

impl KvScales {
    /// Reads the scales `names` of a checkpoint. The larger of a layer's `k_scale` and `kv_scale`
    /// counts; the others are not used: no values are cached, and attention is not in FP8.
    pub fn read(checkpoint: &Checkpoint, names: &[String], num_layers: usize) -> Result<Self, KvScaleError> {
        let mut found: Vec<Option<i32>> = vec![None; num_layers];
        for name in names.iter().filter(|name| name.ends_with(".k_scale") || name.ends_with(".kv_scale")) {
            let slot = layer_of(name).and_then(|(_, layer)| found.get_mut(layer));
            let (Some(slot), Some(view)) = (slot, checkpoint.tensor(name)) else { continue };
            let error = |problem: String| KvScaleError { name: name.clone(), problem };
            if !view.dtype.is_float() || view.len() != 1 {
                return Err(error(format!(
                    "is {} {:?}, expected one number in F32, BF16 or F16",
                    view.dtype, view.shape
                )));
            }
            let scale = view.to_f32()[0];
            let exponent = covering_exponent(scale);
            let exponent =
                exponent.ok_or_else(|| error(format!("is {scale}, expected a finite number above 0")))?;
            *slot = Some(slot.map_or(exponent, |other| other.max(exponent)));
        }
        let num_stored = found.iter().flatten().count();
        Ok(Self { exponents: found.into_iter().map(Option::unwrap_or_default).collect(), num_stored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{ShardWriter, TensorSpec};
    use perigee_numbers::tensor::Dtype;

    fn read(scales: &[(&str, Dtype, &[usize], &[u8])]) -> Result<KvScales, String> {
        let dir = tempfile::tempdir().unwrap();
        let specs: Vec<_> =
            scales.iter().map(|(name, dtype, shape, _)| TensorSpec::new(*name, *dtype, *shape)).collect();
        let mut writer = ShardWriter::create(dir.path(), "model.safetensors", &specs).unwrap();
        scales.iter().for_each(|(name, _, _, bytes)| writer.write(name, bytes).unwrap());
        writer.finish().unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let names: Vec<String> = checkpoint.names().map(str::to_owned).collect();
        KvScales::read(&checkpoint, &names, 3).map_err(|error| error.to_string())
    }

    #[test]
    fn scales_of_every_spelling_are_found_by_layer() {
        let (small, one, large) = (0.001_691_5f32.to_le_bytes(), 1f32.to_le_bytes(), 900f32.to_le_bytes());
        let half = half::bf16::from_f32(0.5).to_le_bytes();
        let found = read(&[
            ("model.layers.0.self_attn.k_proj.k_scale", Dtype::F32, &[], &small),
            ("model.layers.0.self_attn.v_proj.v_scale", Dtype::F32, &[], &large),
            ("language_model.model.layers.2.self_attn.attn.k_scale", Dtype::F32, &[1], &one),
            ("language_model.model.layers.2.self_attn.kv_scale", Dtype::BF16, &[1], &half),
            ("model.layers.7.self_attn.k_scale", Dtype::F32, &[], &large),
        ])
        .unwrap();
        assert_eq!(found, KvScales { exponents: vec![-9, 0, 0], num_stored: 2 });
    }

    #[test]
    fn what_is_no_scale_is_refused_by_name() {
        let name = "model.layers.1.self_attn.k_proj.k_scale";
        for (dtype, shape, bytes, expected) in [
            (Dtype::F32, &[][..], &f32::NAN.to_le_bytes()[..], "is NaN, expected a finite number above 0"),
            (Dtype::F32, &[], &0f32.to_le_bytes(), "is 0, expected"),
            (Dtype::F32, &[], &(-1f32).to_le_bytes(), "is -1, expected"),
            (Dtype::F32, &[2], &[0; 8], "is F32 [2], expected one number"),
            (Dtype::F32, &[0], &[], "is F32 [0], expected one number"),
            (Dtype::I32, &[], &[1, 0, 0, 0], "is I32 [], expected one number"),
        ] {
            let error = read(&[(name, dtype, shape, bytes)]).unwrap_err();
            assert!(error.starts_with(name) && error.contains(expected), "{error}");
        }
    }
}
