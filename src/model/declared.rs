//! The `quantization_config` of a `config.json`. Used as a cross-check only: formats are recognised
//! per tensor, because files describe their weights wrongly, incompletely or not at all.

use serde_json::{Map, Value};

use perigee_numbers::quant::PackedFormat;

/// Quantization methods whose files can be read.
const KNOWN_METHODS: [&str; 4] = ["compressed-tensors", "modelopt", "quark", "fp8"];

/// Upper bound on the schemes that are read; released files have one or two.
const MAX_SCHEMES: usize = 64;

/// One `quantization_config`, reduced to the fields that can contradict the tensors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeclaredQuantization {
    /// `quant_method`.
    pub method: String,
    /// `quant_algo` (modelopt) or `format` (compressed-tensors).
    pub algorithm: Option<String>,
    /// Whether an FP8 KV cache is declared.
    pub kv_cache: bool,
    /// Declared formats of the weights.
    pub schemes: Vec<DeclaredScheme>,
}

/// Declared format of one group of weights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeclaredScheme {
    /// Columns per scale.
    pub group_size: Option<i64>,
    /// Bits per code.
    pub num_bits: Option<i64>,
    /// Whether codes have a zero point.
    pub asymmetric: bool,
    /// Column order, where it needs an index beside the codes.
    pub reordered: Option<String>,
    /// Rows and columns of a block.
    pub block: Option<Vec<i64>>,
}

impl DeclaredQuantization {
    /// Reads `quantization_config` at top level, else inside `text_config`. Errors: the text of its
    /// first problem.
    pub fn parse(config_json: &[u8]) -> Result<Option<Self>, String> {
        let Ok(Value::Object(root)) = serde_json::from_slice::<Value>(config_json) else { return Ok(None) };
        let nested = || root.get("text_config").and_then(|text| text.get("quantization_config"));
        let found = root.get("quantization_config").or_else(nested);
        let config = match found {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(config)) => config,
            Some(_) => return Err("quantization_config is not an object".into()),
        };
        let text = |name: &str| config.get(name).and_then(Value::as_str).map(clip);
        let mut schemes = Vec::new();
        let groups = config.get("config_groups").and_then(Value::as_object);
        let of_groups = groups.into_iter().flat_map(Map::values).filter_map(|group| group.get("weights"));
        let global = config.get("global_quant_config").and_then(|global| global.get("weight"));
        for weights in of_groups.chain(global).filter_map(Value::as_object).take(MAX_SCHEMES) {
            schemes.push(scheme(weights));
        }
        if schemes.is_empty() {
            schemes.push(scheme(config));
        }
        let kv = ["kv_cache_scheme", "kv_cache_quant_algo"]
            .iter()
            .any(|name| config.get(*name).is_some_and(|value| !value.is_null()));
        Ok(Some(Self {
            method: text("quant_method").unwrap_or_else(|| "(not named)".into()),
            algorithm: text("quant_algo").or_else(|| text("format")),
            kv_cache: kv,
            schemes,
        }))
    }

    /// Warnings, and reasons for a refusal, given the stored packed formats (sorted).
    pub(super) fn contradictions(
        declared: Option<&Self>,
        stored: &[PackedFormat],
    ) -> (Vec<String>, Vec<String>) {
        let (mut warnings, mut errors) = (Vec::new(), Vec::new());
        let names = stored.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ");
        let Some(declared) = declared else {
            if !stored.is_empty() {
                warnings.push(format!("config.json has no quantization_config, the tensors are {names}; the tensors are believed"));
            }
            return (warnings, errors);
        };
        let place = "config.json: quantization_config";
        if stored.is_empty() {
            warnings.push(format!(
                "{place} announces {}, but no weight of the network is quantized; the tensors are believed",
                declared.method
            ));
            return (warnings, errors);
        }
        if !KNOWN_METHODS.contains(&declared.method.as_str()) {
            warnings.push(format!(
                "{place}.quant_method is {:?}, known are {}; the tensors, {names}, are believed",
                declared.method,
                KNOWN_METHODS.join(", ")
            ));
        }
        for scheme in &declared.schemes {
            scheme.check(place, stored, &names, &mut warnings, &mut errors);
        }
        (warnings, errors)
    }
}

impl DeclaredScheme {
    fn check(
        &self,
        place: &str,
        stored: &[PackedFormat],
        names: &str,
        warnings: &mut Vec<String>,
        errors: &mut Vec<String>,
    ) {
        let groups: Vec<i64> = stored.iter().filter_map(|f| f.group()).map(|g| g as i64).collect();
        // -1 and 0 mean "no groups".
        if let Some(size) = self.group_size.filter(|size| *size > 0)
            && !groups.contains(&size)
        {
            warnings.push(format!(
                "{place} says group_size {size}, the tensors are {names}; the tensors are believed"
            ));
        }
        if let Some(bits) = self.num_bits
            && !stored.iter().any(|format| format.code_bits() as i64 == bits)
        {
            warnings.push(format!(
                "{place} says num_bits {bits}, the tensors are {names}; the tensors are believed"
            ));
        }
        if let Some(block) = &self.block
            && stored.contains(&PackedFormat::Fp8Block)
            && block != &[128, 128]
        {
            warnings.push(format!("{place} says weight_block_size {block:?}, the tensors have blocks of 128 x 128; the tensors are believed"));
        }
        let int4 = stored.contains(&PackedFormat::Int4Group32);
        if self.asymmetric && int4 {
            errors.push(format!(
                "{place} says symmetric false, but no weight_zero_point is stored; asymmetric codes are not served, export the model again"
            ));
        }
        if let Some(order) = &self.reordered
            && int4
        {
            errors.push(format!(
                "{place} says actorder {order:?}, but no weight_g_idx is stored; reordered columns are not served, export the model again"
            ));
        }
    }
}

fn scheme(weights: &Map<String, Value>) -> DeclaredScheme {
    let number = |name: &str| weights.get(name).and_then(Value::as_i64);
    let order = weights.get("actorder").and_then(Value::as_str).map(clip);
    let block = weights.get("weight_block_size").or_else(|| weights.get("block_structure"));
    DeclaredScheme {
        group_size: number("group_size"),
        num_bits: number("num_bits"),
        asymmetric: weights.get("symmetric") == Some(&Value::Bool(false)),
        // "weight" and "static" order columns during quantization and store the columns in their
        // original places.
        reordered: order.filter(|order| matches!(order.as_str(), "group" | "dynamic")),
        block: block
            .and_then(Value::as_array)
            .map(|list| list.iter().take(4).filter_map(Value::as_i64).collect()),
    }
}

/// Shortens a hostile string for a message.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the only warning or error of a config's `quantization_config` against stored formats.
    fn check(config: Value, stored: &[PackedFormat], warning: &str, error: &str) {
        let text = serde_json::json!({ "quantization_config": config }).to_string();
        let declared = DeclaredQuantization::parse(text.as_bytes()).unwrap();
        let (warnings, errors) = DeclaredQuantization::contradictions(declared.as_ref(), stored);
        for (list, expected) in [(warnings, warning), (errors, error)] {
            let fits = if expected.is_empty() {
                list.is_empty()
            } else {
                list.len() == 1 && list[0].contains(expected)
            };
            assert!(fits, "{config}: {list:?}, expected {expected:?}");
        }
    }

    fn pack_quantized(edit: impl Fn(&mut Value)) -> Value {
        let mut weights = serde_json::json!({
            "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32, "actorder": null, "block_structure": null
        });
        edit(&mut weights);
        serde_json::json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}
        })
    }

    #[test]
    fn what_is_said_is_held_against_what_is_stored() {
        use PackedFormat::*;
        let int4 = [Int4Group32];
        check(pack_quantized(|_| ()), &int4, "", "");
        check(
            pack_quantized(|w| w["group_size"] = 64.into()),
            &int4,
            "group_size 64, the tensors are int4-g32",
            "",
        );
        check(pack_quantized(|w| w["num_bits"] = 8.into()), &int4, "num_bits 8", "");
        check(pack_quantized(|w| w["symmetric"] = false.into()), &int4, "", "symmetric false");
        check(pack_quantized(|w| w["actorder"] = "group".into()), &int4, "", "actorder \"group\"");
        check(pack_quantized(|w| w["actorder"] = "weight".into()), &int4, "", "");
        check(pack_quantized(|_| ()), &[], "no weight of the network is quantized", "");
        check(Value::Null, &int4, "has no quantization_config", "");
        check(Value::Null, &[], "", "");
        let fp8 = |block: [i64; 2]| serde_json::json!({"quant_method": "fp8", "weight_block_size": block});
        check(fp8([128, 128]), &[Fp8Block], "", "");
        check(fp8([64, 128]), &[Fp8Block], "weight_block_size [64, 128]", "");
        check(serde_json::json!({"quant_method": "awq"}), &int4, "quant_method is \"awq\"", "");
        assert!(DeclaredQuantization::parse(br#"{"quantization_config": 3}"#).is_err());
        let nested =
            br#"{"text_config": {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {}}}}"#;
        let nested = DeclaredQuantization::parse(nested).unwrap().unwrap();
        assert_eq!((nested.method.as_str(), nested.kv_cache), ("fp8", true));
    }
}
