//! How serving engines expect a quantized checkpoint to be spelled: tensor names, and configuration.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::recipe::{Dialect, KvCache, Options, TargetFormat};
use perigee_model::checkpoint::TensorSpec;
use perigee_numbers::quant::{MatrixEncoder, TensorScale, UNMEASURED_INPUT_SCALE};
use perigee_numbers::tensor::Dtype;

/// Largest E4M3 value, and with the largest E2M1 value what an NVFP4 activation scale of 1 reaches.
const E4M3_MAX: f32 = 448.0;
const NVFP4_MAX: f32 = 6.0 * E4M3_MAX;

/// What of a packed module becomes a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Codes.
    Codes,
    /// Block scales.
    Scales,
    /// The scale of the tensor, f32.
    TensorScale,
    /// The scale of activations, f32.
    InputScale,
    /// `[out, in]`, I32.
    Shape,
}

/// The tensors of a packed module `[out, in]`.
pub(super) fn parts(options: &Options, module: &str, shape: [usize; 2]) -> Vec<(Part, TensorSpec)> {
    let [out, width] = shape;
    let packing = options.packing();
    let spec = |last: &str, dtype, dims: Vec<usize>| TensorSpec::new(format!("{module}.{last}"), dtype, dims);
    let scales =
        |last: &str| (Part::Scales, spec(last, packing.scale_dtype(), packing.format().scale_shape(shape)));
    let nibbles = |last: &str| (Part::Codes, spec(last, Dtype::U8, vec![out, width / 2]));
    let scalar = |part, last: &str, dims| (part, spec(last, Dtype::F32, dims));
    match (options.format(), options.dialect()) {
        (TargetFormat::Nvfp4, Dialect::CompressedTensors) => vec![
            nibbles("weight_packed"),
            scales("weight_scale"),
            scalar(Part::TensorScale, "weight_global_scale", vec![1]),
            scalar(Part::InputScale, "input_global_scale", vec![1]),
        ],
        (TargetFormat::Nvfp4, _) => vec![
            nibbles("weight"),
            scales("weight_scale"),
            scalar(Part::TensorScale, "weight_scale_2", vec![]),
            scalar(Part::InputScale, "input_scale", vec![]),
        ],
        (TargetFormat::Mxfp4, Dialect::CompressedTensors) => {
            vec![nibbles("weight_packed"), scales("weight_scale")]
        }
        (TargetFormat::Mxfp4, _) => vec![nibbles("weight"), scales("weight_scale")],
        (TargetFormat::Int4Group32, _) => vec![
            (Part::Codes, spec("weight_packed", Dtype::I32, vec![out, width / 8])),
            scales("weight_scale"),
            (Part::Shape, spec("weight_shape", Dtype::I32, vec![2])),
        ],
        (TargetFormat::Fp8, Dialect::Modelopt) => vec![
            (Part::Codes, spec("weight", Dtype::F8_E4M3, vec![out, width])),
            scalar(Part::TensorScale, "weight_scale", vec![]),
            scalar(Part::InputScale, "input_scale", vec![]),
        ],
        (TargetFormat::Fp8, _) => {
            vec![(Part::Codes, spec("weight", Dtype::F8_E4M3, vec![out, width])), scales("weight_scale_inv")]
        }
    }
}

/// Bytes of a part that is not codes or block scales. `None` for those, and for a shape beyond I32. `input_amax` is the largest magnitude that goes
/// into the module, where it was measured.
pub(super) fn small_part(
    options: &Options,
    part: Part,
    encoder: &MatrixEncoder,
    shape: [usize; 2],
    input_amax: Option<f32>,
) -> Option<Vec<u8>> {
    let scalar = |value: f32| Some(value.to_le_bytes().to_vec());
    match part {
        Part::Codes | Part::Scales => None,
        Part::TensorScale => match encoder.tensor_scale() {
            TensorScale::Multiply(scale) | TensorScale::Divide(scale) => scalar(scale),
            TensorScale::None => scalar(encoder.only_scale()?),
        },
        Part::InputScale => scalar(match (input_amax, options.format(), options.dialect()) {
            // 1 is its own reciprocal, so both conventions store the same.
            (None, ..) => UNMEASURED_INPUT_SCALE,
            (Some(amax), TargetFormat::Nvfp4, Dialect::CompressedTensors) => NVFP4_MAX / amax,
            (Some(amax), TargetFormat::Nvfp4, _) => amax / NVFP4_MAX,
            (Some(amax), ..) => amax / E4M3_MAX,
        }),
        Part::Shape => {
            let dims = shape.map(i32::try_from);
            let [Ok(out), Ok(width)] = dims else { return None };
            Some([out.to_le_bytes(), width.to_le_bytes()].concat())
        }
    }
}

/// The tensors of measured KV scales of a layer, whose attention's names begin with `attention` (`...self_attn`).
pub(super) fn kv_scale_specs(options: &Options, attention: &str) -> [TensorSpec; 2] {
    let modelopt = options.dialect() == Dialect::Modelopt;
    let names = if modelopt { ["k_proj.k_scale", "v_proj.v_scale"] } else { ["k_scale", "v_scale"] };
    let dims = if modelopt { vec![] } else { vec![1] };
    names.map(|name| TensorSpec::new(format!("{attention}.{name}"), Dtype::F32, dims.clone()))
}

/// The scale of a cache entry of this largest magnitude; 1 where none was measured. Engines of this family apply `k_scale` to the whole entry, latent and
/// rope key, so both scales say what that reaches.
pub(super) fn kv_scale(amax: Option<f32>) -> f32 {
    amax.map_or(1.0, |amax| amax / E4M3_MAX)
}

/// The modules of the result that its configuration speaks of.
#[derive(Debug, Default)]
pub(super) struct ModuleNames {
    /// Packed ones.
    pub(super) packed: BTreeSet<String>,
    /// Linear modules that are not.
    pub(super) plain: BTreeSet<String>,
    /// Embeddings and other modules with weights of two or more dimensions that are no linears.
    pub(super) embeddings: BTreeSet<String>,
}

/// `quantization_config` of config.json.
pub(super) fn quantization_config(options: &Options, names: &ModuleNames) -> Value {
    match (options.format(), options.dialect()) {
        (_, Dialect::Modelopt) => modelopt_config(options, names),
        (TargetFormat::Nvfp4, _) => {
            let weights = json!({
                "actorder": null, "block_structure": null, "dynamic": false, "group_size": 16, "num_bits": 4,
                "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.float8_e4m3fn",
                "strategy": "tensor_group", "symmetric": true, "type": "float", "zp_dtype": null
            });
            let mut inputs = weights.clone();
            inputs["dynamic"] = json!("local");
            inputs["observer"] = json!("static_minmax");
            compressed_tensors(options, "nvfp4-pack-quantized", weights, inputs, names)
        }
        (TargetFormat::Mxfp4, Dialect::Quark) => quark_config(names),
        (TargetFormat::Mxfp4, _) => {
            let weights = json!({
                "actorder": null, "block_structure": null, "dynamic": false, "group_size": 32, "num_bits": 4,
                "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8", "strategy": "group",
                "symmetric": true, "type": "float", "zp_dtype": null
            });
            compressed_tensors(options, "mxfp4-pack-quantized", weights, Value::Null, names)
        }
        (TargetFormat::Int4Group32, _) => {
            let weights = json!({
                "actorder": null, "block_structure": null, "dynamic": false, "group_size": 32, "num_bits": 4,
                "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": true, "type": "int"
            });
            compressed_tensors(options, "pack-quantized", weights, Value::Null, names)
        }
        (TargetFormat::Fp8, _) => json!({
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "modules_to_not_convert": names.plain
        }),
    }
}

fn compressed_tensors(
    options: &Options,
    format: &str,
    weights: Value,
    inputs: Value,
    names: &ModuleNames,
) -> Value {
    let kv = match options.kv() {
        KvCache::None => Value::Null,
        _ => json!({
            "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true,
            "observer": "minmax", "observer_kwargs": {}
        }),
    };
    json!({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "kv_cache_scheme": kv, "ignore": names.plain,
        "config_groups": { "group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": null
        }}
    })
}

/// The name is what engines look for to know the layout; the second key says who wrote it.
fn producer() -> Value {
    json!({ "name": "modelopt", "version": "0.47.0", "written_by": concat!("perigee ", env!("CARGO_PKG_VERSION")) })
}

/// modelopt's name of a format.
fn modelopt_algo(options: &Options) -> &'static str {
    if options.format() == TargetFormat::Fp8 { "FP8" } else { "NVFP4" }
}

fn modelopt_config(options: &Options, names: &ModuleNames) -> Value {
    let scheme = match options.format() {
        TargetFormat::Fp8 => json!({ "dynamic": false, "num_bits": 8, "type": "float" }),
        _ => json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 }),
    };
    let mut config = json!({
        "config_groups": { "group_0": { "input_activations": scheme, "weights": scheme, "targets": ["Linear"] } },
        "ignore": exclude_globs(names), "quant_algo": modelopt_algo(options), "producer": producer(),
        "quant_method": "modelopt"
    });
    if options.kv() != KvCache::None {
        config["kv_cache_scheme"] = json!({ "dynamic": false, "num_bits": 8, "type": "float" });
    }
    config
}

/// `hf_quant_config.json`, which modelopt's readers look for beside config.json.
pub(super) fn hf_quant_config(options: &Options, names: &ModuleNames) -> Option<Value> {
    (options.dialect() == Dialect::Modelopt).then(|| {
        let kv = if options.kv() == KvCache::None { Value::Null } else { json!("FP8") };
        let mut quantization = json!({
            "quant_algo": modelopt_algo(options), "kv_cache_quant_algo": kv, "group_size": 16,
            "exclude_modules": exclude_globs(names)
        });
        if options.format() == TargetFormat::Fp8 {
            quantization["group_size"] = Value::Null;
        }
        json!({ "producer": producer(), "quantization": quantization })
    })
}

fn quark_config(names: &ModuleNames) -> Value {
    let tensors = |is_dynamic: bool| {
        json!({
            "dtype": "fp4", "is_dynamic": is_dynamic, "qscheme": "per_group", "ch_axis": -1, "group_size": 32,
            "block_size": null, "symmetric": null, "round_method": "half_even", "scale_type": "float",
            "zero_point_type": "int32", "scale_format": "e8m0", "scale_calculation_mode": "even",
            "mx_element_dtype": null, "observer_cls": "PerBlockMXObserver", "is_scale_quant": false,
            "enable_buffer_reuse": false, "max_input_numel": 4194304
        })
    };
    json!({
        "global_quant_config": {
            "input_tensors": tensors(true), "output_tensors": null, "weight": tensors(false), "bias": null,
            "target_device": null
        },
        "exclude": names.plain, "algo_config": null, "softmax_quant_spec": null, "quant_method": "quark",
        "layer_type_quant_config": {}, "layer_quant_config": {}, "kv_cache_quant_config": {},
        "kv_cache_post_rope": false, "quant_mode": "eager_mode", "version": "0.13",
        "export": {
            "kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
            "weight_format": "real_quantized", "weight_merge_groups": null
        }
    })
}

/// Modules that are not packed, as modelopt summarises them: the shortest dotted prefix that covers no packed module, followed by `*`; by
/// `.*` where the plain star would also hit a packed sibling (`layers.1*` hits `layers.10`); the module itself where no prefix will do.
fn exclude_globs(names: &ModuleNames) -> BTreeSet<String> {
    let begins = |prefix: &str| {
        names.packed.range(prefix.to_owned()..).next().is_some_and(|next| next.starts_with(prefix))
    };
    let covers = |prefix: &str| names.packed.contains(prefix) || begins(&format!("{prefix}."));
    let glob = |module: &String| {
        let dots = module.match_indices('.').map(|(at, _)| &module[..at]);
        match dots.into_iter().find(|prefix| !covers(prefix)) {
            Some(prefix) if begins(prefix) => format!("{prefix}.*"),
            Some(prefix) => format!("{prefix}*"),
            None => module.clone(),
        }
    };
    names.plain.iter().chain(&names.embeddings).map(glob).collect()
}

/// `config.json` of the result: the source's, with every old quantization block removed and the new one at the top.
pub(super) fn rewrite_config(config: &[u8], quantization: Value) -> Result<Vec<u8>, String> {
    let mut config: Value = serde_json::from_slice(config).map_err(|e| e.to_string())?;
    let Value::Object(top) = &mut config else { return Err("it is not an object".into()) };
    for key in ["quantization_config", "compression_config"] {
        // The order of the other keys stays.
        top.shift_remove(key);
        if let Some(Value::Object(text)) = top.get_mut("text_config") {
            text.shift_remove(key);
        }
    }
    top.insert("quantization_config".into(), quantization);
    Ok(format!("{config:#}\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(packed: &[&str], plain: &[&str], embeddings: &[&str]) -> ModuleNames {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        ModuleNames { packed: set(packed), plain: set(plain), embeddings: set(embeddings) }
    }

    #[test]
    fn exclude_lists_are_summarised_as_modelopt_does() {
        let check = |names: ModuleNames, expected: &[&str]| {
            assert_eq!(exclude_globs(&names).into_iter().collect::<Vec<_>>(), expected);
        };
        // The golden two-layer export's own list.
        check(
            names(
                &["model.layers.1.mlp.experts.0.up_proj"],
                &[
                    "lm_head",
                    "model.layers.0.self_attn.o_proj",
                    "model.layers.0.mlp.up_proj",
                    "model.layers.1.mlp.gate",
                    "model.layers.1.mlp.shared_experts.up_proj",
                    "model.layers.1.self_attn.o_proj",
                ],
                &["model.embed_tokens"],
            ),
            &[
                "lm_head",
                "model.embed_tokens",
                "model.layers.0*",
                "model.layers.1.mlp.gate",
                "model.layers.1.mlp.shared_experts*",
                "model.layers.1.self_attn*",
            ],
        );
        check(
            names(
                &["m.layers.10.mlp.up_proj"],
                &["m.layers.1.mlp.up_proj", "m.layers.2.mlp.up_proj", "vision_tower.a.b"],
                &[],
            ),
            &["m.layers.1.*", "m.layers.2*", "vision_tower*"],
        );
    }

    #[test]
    fn old_quantization_blocks_go_and_the_rest_keeps_its_order() {
        let config = br#"{"z":1,"quantization_config":{"old":1},"text_config":{"b":1,"quantization_config":2,"a":3},"k":0.1}"#;
        let text = String::from_utf8(rewrite_config(config, json!({"new": 1})).unwrap()).unwrap();
        let flat: String = text.split_whitespace().collect();
        assert_eq!(flat, r#"{"z":1,"text_config":{"b":1,"a":3},"k":0.1,"quantization_config":{"new":1}}"#);
        assert!(rewrite_config(b"[]", Value::Null).is_err());
        assert!(rewrite_config(b"{", Value::Null).is_err());
    }
}
