//! `perigee quantize --calibrate`: measured activation scales and KV scales, against what a single forward pass of the same text shows.

use std::collections::BTreeMap;
use std::path::Path;

use perigee::nano;
use perigee_compress::{
    Calibration, CalibrationRequest, Documents, MeasureError, Options, PassOptions, QuantizeError, Report,
    TextPass, calibrate, quantize,
};
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_model::checkpoint::{Checkpoint, write_file};
use perigee_model::{Blueprint, Inventory, KvScales, LayerInputs, LayerObserver, Model, Weights};
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{Activations, BlockId, CacheDtype, Capacity, StepPlan, TokenSource};
use perigee_text::{Specials, Tokenizer};
use tempfile::TempDir;

/// One document, one window, and few enough tokens that some experts see none.
const TEXT: &str = "Perigee is the point of an orbit that is nearest to the earth; 17 plus 25 is 42.\n";

fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in nano::FILES {
        write_file(dir.path(), name, bytes).unwrap();
    }
    dir
}

fn tokenizer(source: &Checkpoint) -> Tokenizer {
    Tokenizer::load(&|name: &str| source.file(name).map(|bytes| bytes.into_owned())).unwrap()
}

fn measure(source: &Checkpoint, text: &str, id: &str) -> Result<Calibration, MeasureError> {
    // Steps smaller than the text: the maxima run over several.
    let options = PassOptions { context: 512, step: 7, ..Default::default() };
    let cpu = CpuOptions { threads: 2, activations: Activations::F32, ..Default::default() };
    let mut pass = TextPass::open(CpuBackend::new(cpu), source, &options)?;
    let documents = [Documents::parse("text", text.as_bytes())?];
    Ok(calibrate(&mut pass, &tokenizer(source), &documents, &options, id, &mut |_| ())?)
}

fn run(source: &Checkpoint, to: &Path, options: &Options, text: &str) -> Result<Report, QuantizeError> {
    let mut measure = |id: &str| measure(source, text, id);
    let request = CalibrationRequest { id: "one text".into(), measure: &mut measure };
    quantize(source, to, options, Some(request), 2, &mut |_| ())
}

fn options(format: &str, dialect: &str) -> Options {
    let options = Options::parse(format, None, Some("all-but-attention"), Some(dialect)).unwrap();
    let kv = matches!(dialect, "modelopt" | "compressed-tensors").then_some("calibrated");
    options.with_calibration(kv, true).unwrap()
}

/// What the reference backend shows in one step over the whole text.
fn seen(source: &Checkpoint, text: &str) -> BTreeMap<usize, LayerInputs> {
    struct Seen(BTreeMap<usize, LayerInputs>);
    impl LayerObserver for Seen {
        fn wants_inputs(&self, _: usize) -> bool {
            true
        }
        fn inputs(&mut self, layer: usize, inputs: &LayerInputs) {
            self.0.insert(layer, inputs.clone());
        }
    }
    let blueprint = Blueprint::parse(&source.file("config.json").unwrap()).unwrap();
    let weights = Weights::load(source, &blueprint, &mut ReferenceBackend, &mut |_, _| ()).unwrap();
    let ids = tokenizer(source).encode(text, Specials::AsText).unwrap();
    let (tokens, block) = (ids.len(), 256);
    assert!(tokens < block);
    let cache = blueprint.cache_shape(1, block, CacheDtype::F32);
    let eps = blueprint.rms_norm_eps;
    let capacity = Capacity {
        max_tokens: tokens,
        max_logits_rows: 1,
        max_num_seqs: 1,
        block_size: 16,
        cache_dtype: cache.dtype,
    };
    let mut model = Model::new(ReferenceBackend, blueprint, weights, eps, capacity, &cache).unwrap();
    let mut plan = StepPlan::default();
    plan.add(ids.into_iter().map(TokenSource::from), 0, tokens, &[BlockId(0)], block);
    let mut seen = Seen(BTreeMap::new());
    model.forward_observed(&plan, &mut seen).unwrap();
    seen.0
}

fn scalar(folder: &Checkpoint, name: &str) -> f32 {
    let view = folder.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    assert_eq!(view.len(), 1, "{name}");
    view.to_f32()[0]
}

#[test]
fn scales_are_the_largest_magnitudes_of_the_text() {
    let from = folder();
    let source = Checkpoint::open(from.path()).unwrap();
    let seen = seen(&source, TEXT);
    for (format, dialect, scale_of, input, kv) in [
        (
            "nvfp4",
            "modelopt",
            (|amax| amax / 2688.0) as fn(f32) -> f32,
            "input_scale",
            Some(("k_proj.k_scale", "v_proj.v_scale")),
        ),
        (
            "nvfp4",
            "compressed-tensors",
            |amax| 2688.0 / amax,
            "input_global_scale",
            Some(("k_scale", "v_scale")),
        ),
        ("fp8", "modelopt", |amax| amax / 448.0, "input_scale", Some(("k_proj.k_scale", "v_proj.v_scale"))),
    ] {
        let to = tempfile::tempdir().unwrap();
        let report = run(&source, to.path(), &options(format, dialect), TEXT).unwrap();
        let result = Checkpoint::open(to.path()).unwrap();
        let check = |name: String, amax: f32| {
            let (got, expected) = (scalar(&result, &name), scale_of(amax));
            assert!(
                (got / expected - 1.0).abs() < 1e-4,
                "{format} {dialect} {name}: {got}, expected {expected}"
            );
        };
        let (mut unused, mut experts) = (0, 0);
        for (layer, inputs) in &seen {
            let stem = format!("model.layers.{layer}");
            let one = |path: &str, gate_up: f32, down: f32| {
                check(format!("{stem}.{path}.gate_proj.{input}"), gate_up);
                check(format!("{stem}.{path}.up_proj.{input}"), gate_up);
                check(format!("{stem}.{path}.down_proj.{input}"), down);
            };
            if let Some(dense) = &inputs.dense {
                one("mlp", dense.gate_up, dense.down);
            }
            if let Some(shared) = &inputs.shared {
                one("mlp.shared_experts", shared.gate_up, shared.down);
            }
            // One scale for all routed experts of a layer, those without a token included.
            let most =
                |of: fn(&perigee_model::FfnInputs) -> f32| inputs.routed.iter().map(of).fold(0.0, f32::max);
            for e in 0..inputs.routed.len() {
                one(&format!("mlp.experts.{e}"), most(|i| i.gate_up), most(|i| i.down));
            }
            unused += inputs.routed.iter().filter(|i| i.rows == 0).count();
            experts += inputs.routed.len();
            if let Some((k, v)) = kv {
                for name in [k, v] {
                    let got = scalar(&result, &format!("{stem}.self_attn.{name}"));
                    assert!((got / (inputs.cached / 448.0) - 1.0).abs() < 1e-4, "{name}");
                }
            }
        }
        let calibration = report.calibration.unwrap();
        assert_eq!((calibration.experts, calibration.backstop), (experts, unused));
        assert!(unused > 0 && unused < experts, "{unused} of {experts}");
        assert!(calibration.text().contains(&format!("{unused} of {experts} routed experts saw none")));

        let blueprint = Blueprint::parse(&result.file("config.json").unwrap()).unwrap();
        let inventory = Inventory::take(&result, &blueprint);
        assert!(inventory.problems.is_empty(), "{}", inventory.problems);
        let scales = KvScales::read(&result, &inventory.kv_scales, blueprint.num_layers).unwrap();
        assert_eq!(scales.num_stored, blueprint.num_layers);
        for (layer, exponent) in scales.exponents.iter().enumerate() {
            let scale = seen[&layer].cached / 448.0;
            assert!(scale <= 2f32.powi(*exponent) * 1.0001 && scale > 2f32.powi(exponent - 1) * 0.9999);
        }
        assert!(inventory.declared.is_some_and(|declared| declared.kv_cache), "an FP8 cache is announced");
    }
}

#[test]
fn what_was_measured_is_not_measured_again() {
    let from = folder();
    let source = Checkpoint::open(from.path()).unwrap();
    let options = options("nvfp4", "modelopt");
    let (whole, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(&source, whole.path(), &options, TEXT).unwrap();
    // The run that is interrupted ends at the first item behind the measurement.
    let interrupted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut measure = |id: &str| measure(&source, TEXT, id);
        let request = CalibrationRequest { id: "one text".into(), measure: &mut measure };
        quantize(&source, to.path(), &options, Some(request), 2, &mut |_| panic!("stopped by the test"))
    }));
    assert!(interrupted.is_err());
    let mut never = |_: &str| -> Result<Calibration, MeasureError> { panic!("measured twice") };
    let request = CalibrationRequest { id: "one text".into(), measure: &mut never };
    quantize(&source, to.path(), &options, Some(request), 1, &mut |_| ()).unwrap();
    for name in ["model.safetensors", "perigee-calibration.json", "config.json", "hf_quant_config.json"] {
        let read = |dir: &TempDir| std::fs::read(dir.path().join(name)).unwrap();
        assert!(read(&to) == read(&whole), "{name} differs");
    }
    // Another text is another run.
    let mut other = |id: &str| measure(&source, "other", id);
    let request = CalibrationRequest { id: "another text".into(), measure: &mut other };
    let error = quantize(&source, to.path(), &options, Some(request), 1, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("calibrated on one text"), "{error}");
}
