//! Plans as they should be, and as they should not.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::calibrate::saliency::LayerSaliency;

fn source() -> SourceId {
    SourceId { name: "m".into(), fingerprint: Some("f".into()) }
}

fn scores(layers: &[&[f64]]) -> Saliency {
    let layers = layers.iter().enumerate().map(|(i, s)| (i + 1, LayerSaliency::Scores(s.to_vec())));
    Saliency::new(source(), Vec::new(), layers.collect::<BTreeMap<_, _>>())
}

fn example() -> ExpertPlan {
    let saliency = scores(&[&[0.1, 1.0 / 3.0, 0.0, 7e-300], &[4.0, 4.0, 4.0, 4.0]]);
    ExpertPlan::from_saliency(source(), &vec![(1, 4), (2, 4)], 2, Criterion::Reap, &saliency).unwrap()
}

#[test]
fn a_plan_has_explicit_ascending_ids_and_ties_keep_the_lower() {
    let plan = example();
    assert_eq!(plan.layers()[0].keep, [0, 1]);
    assert_eq!(plan.layers()[1].keep, [0, 1]);
    assert_eq!((plan.num_source(), plan.num_kept()), (4, 2));
    assert_eq!(plan.layer(2).unwrap().new_id(1), Some(1));
    assert_eq!(plan.layer(2).unwrap().new_id(3), None);
    assert!(plan.layer(3).is_none());
}

#[test]
fn a_plan_round_trips_to_the_bit() {
    let mut rng = fastrand::Rng::with_seed(7);
    let bits: Vec<f64> = (0..4000)
        .map(|_| f64::from_bits(rng.u64(..)))
        .filter(|f| f.is_finite())
        .chain([0.0, f64::MIN_POSITIVE, 5e-324, f64::MAX, 0.1])
        .collect();
    let saliency = scores(&[&bits]);
    let plan =
        ExpertPlan::from_saliency(source(), &vec![(1, bits.len())], 17, Criterion::Reap, &saliency).unwrap();
    let read = ExpertPlan::parse(plan.to_json().as_bytes()).unwrap();
    let read_bits = read.layers()[0].saliency.as_ref().unwrap();
    assert!(read_bits.iter().zip(&bits).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert_eq!(read, plan);
    assert_eq!(read.fingerprint(), plan.fingerprint());
    assert_eq!(example().to_json().lines().filter(|l| l.contains("\"layer\":")).count(), 2);
}

#[test]
fn random_plans_depend_on_the_seed_alone() {
    let layers = vec![(1, 64), (5, 64)];
    let plan = |seed| ExpertPlan::random(source(), &layers, 32, seed).unwrap();
    assert_eq!(plan(3), plan(3));
    assert_ne!(plan(3).layers()[0].keep, plan(4).layers()[0].keep);
    assert_ne!(plan(3).layers()[0].keep, plan(3).layers()[1].keep);
}

#[test]
fn bad_plans_say_what_is_wrong() {
    let check = |edit: &dyn Fn(&mut Value), expected: &str| {
        let mut value: Value = serde_json::from_str(&example().to_json()).unwrap();
        edit(&mut value);
        let error = ExpertPlan::parse(value.to_string().as_bytes()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\n  expected {expected}");
    };
    check(&|v| v["format_version"] = 2.into(), "format_version is 2");
    check(&|v| v["extra"] = 2.into(), "unknown field `extra`");
    check(&|v| v["layers"] = json!([]), "1 to 4096 layers");
    check(&|v| v["layers"][1]["layer"] = 1.into(), "layers must ascend");
    check(&|v| v["layers"][1]["layer"] = 0.into(), "layers must ascend");
    check(&|v| v["layers"][1]["keep"] = json!([0]), "keep the same number, 2");
    check(&|v| v["layers"][0]["keep"] = json!([]), "at least 1");
    check(&|v| v["layers"][0]["keep"] = json!([1, 0]), "ids must ascend");
    check(&|v| v["layers"][0]["keep"] = json!([1, 1]), "ids must ascend");
    check(&|v| v["layers"][0]["keep"] = json!([0, 4]), "ids must be below 4");
    check(&|v| v["layers"][0]["keep"] = json!([0, -1]), "not valid");
    check(&|v| v["layers"][0]["keep"] = json!([0, 4294967296u64]), "not valid");
    check(&|v| v["layers"][1]["num_source"] = 5.into(), "the same in every layer");
    check(&|v| v["layers"][0]["num_source"] = 0.into(), "from 1 to 65536");
    check(&|v| v["layers"][0]["saliency"] = json!([1.0]), "one score per expert");
    check(&|v| v["layers"][0]["counts"] = json!([1]), "one count per expert");
    check(&|v| v["layers"][0]["keep"] = json!([0, 2]), "dropped expert 1 has saliency 0.333");
    check(&|v| v["overrides"] = json!([{"layer": 1, "expert": 0, "reason": " "}]), "say why");
    check(&|v| v["overrides"] = json!([{"layer": 9, "expert": 0, "reason": "x"}]), "no such expert");
    let text = example().to_json().replace("7e-300", "1e999");
    assert!(ExpertPlan::parse(text.as_bytes()).is_err());
    assert!(ExpertPlan::parse(b"").is_err());
}

#[test]
fn an_override_with_a_reason_allows_a_lower_score() {
    let mut value: Value = serde_json::from_str(&example().to_json()).unwrap();
    value["layers"][0]["keep"] = json!([0, 2]);
    value["overrides"] = json!([{"layer": 1, "expert": 2, "reason": "a super expert"},
                                {"layer": 1, "expert": 1, "reason": "loops"}]);
    let plan = ExpertPlan::parse(value.to_string().as_bytes()).unwrap();
    assert_eq!(plan.layers()[0].keep, [0, 2]);
}

#[test]
fn saliency_that_does_not_fit_is_refused() {
    let plan = |layers: &ExpertLayers, kept, criterion, saliency: &Saliency| {
        ExpertPlan::from_saliency(source(), layers, kept, criterion, saliency).unwrap_err().to_string()
    };
    let good = scores(&[&[1.0, 2.0]]);
    assert!(plan(&vec![(1, 3)], 1, Criterion::Reap, &good).contains("3 experts"));
    assert!(plan(&vec![(2, 2)], 1, Criterion::Reap, &good).contains("without layer 2"));
    assert!(plan(&vec![(1, 2)], 3, Criterion::Reap, &good).contains("from 1 to 2"));
    assert!(plan(&vec![(1, 2)], 0, Criterion::Reap, &good).contains("from 1 to 2"));
    assert!(plan(&vec![(1, 2)], 1, Criterion::Frequency, &good).contains("use another file"));
    assert!(plan(&vec![(1, 2)], 1, Criterion::Reap, &scores(&[&[1.0, f64::NAN]])).contains("not a finite"));
}

#[test]
fn a_plan_is_for_one_checkpoint() {
    let plan = example();
    let layers = vec![(1, 4), (2, 4)];
    plan.check_source(&source(), &layers).unwrap();
    let other = SourceId { name: "o".into(), fingerprint: Some("g".into()) };
    assert!(plan.check_source(&other, &layers).unwrap_err().to_string().contains("not for o"));
    plan.check_source(&SourceId { name: "o".into(), fingerprint: None }, &layers).unwrap();
    let error = |layers: &ExpertLayers| plan.check_source(&source(), layers).unwrap_err().to_string();
    assert!(error(&vec![(1, 4), (2, 5)]).contains("5 experts"));
    assert!(error(&vec![(1, 4), (2, 4), (3, 4)]).contains("without layer 3"));
    assert!(error(&vec![(1, 4)]).contains("layer 2"));
}
