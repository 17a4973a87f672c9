//! Configurations before and after.

use serde_json::json;

use super::*;
use crate::fingerprint::SourceId;
use crate::prune::plan_file::LayerPlan;
use crate::prune::select::Criterion;

fn plan(keep: &[u32]) -> ExpertPlan {
    let layer = |layer| LayerPlan { layer, num_source: 8, keep: keep.to_vec(), saliency: None, counts: None };
    let criterion = Criterion::Given { note: String::new() };
    ExpertPlan::new(SourceId::default(), criterion, vec![], vec![layer(1), layer(2)], vec![]).unwrap()
}

fn repaired(config: Value, keep: &[u32]) -> Result<Value, String> {
    repair_config(config.to_string().as_bytes(), &plan(keep)).map(|r| r.value).map_err(|e| e.to_string())
}

#[test]
fn the_count_changes_wherever_it_stands_and_nothing_else() {
    let before = json!({"a": 1e-5, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "routed_scaling_factor": 2.827,
        "text_config": {"n_routed_experts": 8, "topk_group": 1, "x": [1, null]}});
    let mut expected = before.clone();
    expected["n_routed_experts"] = 3.into();
    expected["text_config"]["n_routed_experts"] = 3.into();
    assert_eq!(repaired(before, &[0, 3, 7]).unwrap(), expected);
}

#[test]
fn groups_stay_only_where_they_mean_the_same() {
    let config = json!({"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1});
    let groups = |keep: &[u32], config: &Value| {
        let value = repaired(config.clone(), keep).unwrap();
        (value["n_group"].as_u64().unwrap(), value["topk_group"].as_u64().unwrap())
    };
    assert_eq!(groups(&[0, 3, 4, 7], &config), (2, 1));
    assert_eq!(groups(&[0, 1, 3, 7], &config), (1, 1));
    assert_eq!(groups(&[0, 1, 4], &config), (1, 1));
    let mut one_each = config.clone();
    one_each["topk_group"] = 2.into();
    assert_eq!(groups(&[0, 4], &one_each), (1, 1));
}

#[test]
fn quantization_lists_name_survivors_by_their_new_ids() {
    let config = json!({"n_routed_experts": 8, "quantization_config": {
        "ignore": ["lm_head", "re:.*shared_experts.*", "model.layers.1.mlp.experts.3.up_proj", "model.layers.1.mlp.experts.2.up_proj",
            "re:.*layers\\.2\\.mlp\\.experts\\.7\\..*", "re:.*mlp\\.experts\\.\\d+\\.down_proj", "model.layers.1.mlp.experts*",
            "model.layers.2.mlp.experts.0", "model.layers.1.mlp.gate", "re:.*experts\\.[0-9]+.*"],
        "layers": {"model.layers.1.mlp.experts.7.up_proj": {"bits": 4}, "model.layers.1.mlp.experts.1.up_proj": {"bits": 8}}}});
    let value = repaired(config, &[0, 3, 7]).unwrap();
    let expected = json!({
        "ignore": ["lm_head", "re:.*shared_experts.*", "model.layers.1.mlp.experts.1.up_proj",
            "re:.*layers\\.2\\.mlp\\.experts\\.2\\..*", "re:.*mlp\\.experts\\.\\d+\\.down_proj", "model.layers.1.mlp.experts*",
            "model.layers.2.mlp.experts.0", "model.layers.1.mlp.gate", "re:.*experts\\.[0-9]+.*"],
        "layers": {"model.layers.1.mlp.experts.2.up_proj": {"bits": 4}}});
    assert_eq!(value["quantization_config"], expected);
}

#[test]
fn what_cannot_be_repaired_is_refused() {
    let check = |config: Value, keep: &[u32], expected: &str| {
        let error = repaired(config, keep).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check(json!([]), &[0], "not a JSON object");
    check(json!({"a": 1}), &[0], "n_routed_experts is missing");
    check(json!({"n_routed_experts": 9}), &[0], "the plan is for 8 experts");
    check(json!({"n_routed_experts": 8, "num_experts_per_tok": 3}), &[0, 1], "fewer than a token needs");
    check(json!({"n_routed_experts": 8, "n_group": "x"}), &[0], "whole number");
    for pattern in ["re:.*experts\\.(1|2).*", "re:.*experts\\.[12]\\.x", "re:.*experts\\.3\\.x"] {
        let config = json!({"n_routed_experts": 8, "quantization_config": {"ignore": [pattern]}});
        check(config, &[0, 1], "quantization_config");
    }
}
