//! Activations in 4-bit floats against what the producers of checkpoints compute (`tests/golden/quant/README.md`, "W4A4").

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use perigee_cpu::{CpuBackend, CpuOptions, Isa};
use perigee_cuda::Arch;
use perigee_model::checkpoint::Checkpoint;
use perigee_model::{Fp4Activations, Model};
use perigee_numbers::quant::{ActivationForm, StoredMatrix, recognize};
use perigee_ops::host::HostOps;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{Activations, AttentionForm, CacheDtype, Calibrate, ExpertMatrices};

use crate::emulated;
use crate::golden::{argmax, cpu_ranks, golden_path, largest_difference, load_with, step, step_until};
use crate::quantized::servable_copy;

const NVFP4: Fp4Activations = Fp4Activations::nvfp4(1);
const EXPORT: &str = "tiny_modelopt_nvfp4_w4a4";

/// Checkpoints of three producers: folder, form, suffix of its logits.
const FOLDERS: [(&str, Fp4Activations, &str); 4] = [
    (EXPORT, NVFP4, ""),
    ("tiny_modelopt_nvfp4_w4a4_wafer", NVFP4, ""),
    ("tiny_ct_nvfp4_w4a4", NVFP4, ".layer_max"),
    ("tiny_quark_mxfp4_w4a4", Fp4Activations::Mxfp4, ".even"),
];

fn folder(name: &str) -> PathBuf {
    golden_path("quant").join(name)
}

/// A file of golden tensors.
struct Expected(Vec<u8>);

impl Expected {
    fn open(path: PathBuf) -> Self {
        Self(std::fs::read(path).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let tensors = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data().to_vec()
    }

    fn words<T>(&self, name: &str, of: fn([u8; 4]) -> T) -> Vec<T> {
        self.bytes(name).chunks_exact(4).map(|word| of(word.try_into().unwrap())).collect()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name, f32::from_le_bytes)
    }

    fn has(&self, name: &str) -> bool {
        safetensors::SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }
}

/// Largest difference of the logits `[2, 8, 128]` of both prompts, in both forms of attention.
fn difference<B: Calibrate>(
    backend: B,
    folder: &Path,
    activations: Option<Fp4Activations>,
    ids: &[u32],
    expected: &[f32],
) -> f32 {
    let mut model = load_with(backend, folder, CacheDtype::F32, 8, activations).unwrap();
    let mut worst = 0f32;
    for (ids, expected) in ids.chunks(8).zip(expected.chunks(8 * 128)) {
        for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
            worst = worst.max(largest_difference(&step(&mut model, ids, 0, form), expected));
        }
    }
    worst
}

/// The README's tolerance of an f32 implementation; another form is a hundred times farther away.
const TOLERANCE: f32 = 1e-3;

fn on_every_backend(what: &str, folder: &Path, activations: Fp4Activations, ids: &[u32], expected: &[f32]) {
    let check = |backend: &str, worst: f32| {
        println!("{what} on {backend}: {worst:e}");
        assert!(worst <= TOLERANCE, "{what} on {backend}: {worst:e}");
    };
    let asked = Some(activations);
    check("reference", difference(ReferenceBackend, folder, asked, ids, expected));
    for isa in Isa::supported() {
        let options = CpuOptions { threads: 2, activations: Activations::F32, isa };
        check(&isa.to_string(), difference(CpuBackend::new(options), folder, asked, ids, expected));
    }
    check("two ranks", difference(cpu_ranks(2, Activations::F32), folder, asked, ids, expected));
    for arch in [Arch::Sm120a, Arch::Sm100a] {
        if let Some(gpu) = emulated::backend(arch, None, Activations::F32) {
            check(&format!("an emulated {arch}"), difference(gpu, folder, asked, ids, expected));
        }
        if let Some(gpus) = emulated::ranks::whole(2, arch, Some(3)) {
            check(&format!("two emulated {arch}"), difference(gpus, folder, asked, ids, expected));
        }
    }
    let other = difference(ReferenceBackend, folder, None, ids, expected);
    assert!(other > 30.0 * TOLERANCE, "{what}: {other} without the form");
}

#[test]
fn logits_are_those_of_the_producers() {
    for (name, activations, suffix) in FOLDERS {
        let file = Expected::open(folder(name).join("expected.safetensors"));
        let ids = file.words("input_ids", u32::from_le_bytes);
        let expected = file.f32(&format!("logits_w4a4{suffix}"));
        on_every_backend(name, &folder(name), activations, &ids, &expected);
        let plain = difference(ReferenceBackend, &folder(name), None, &ids, &file.f32("logits_w4a16"));
        assert!(plain < 1e-4, "{name}: {plain}");
    }
}

/// A row's codes are its own: alone and beside others it has the same bits.
#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let file = Expected::open(folder(EXPORT).join("expected.safetensors"));
    let ids = file.words("input_ids", u32::from_le_bytes);
    for isa in Isa::supported() {
        for activations in [Activations::F32, Activations::Bf16] {
            let load = || {
                let backend = CpuBackend::new(CpuOptions { threads: 2, activations, isa });
                load_with(backend, &folder(EXPORT), CacheDtype::F32, 8, Some(NVFP4)).unwrap()
            };
            check_company(&format!("{isa} {activations:?}"), load(), load(), &ids);
        }
    }
    for activations in [Activations::F32, Activations::Bf16] {
        for (form, arch, seed) in
            [(NVFP4, Arch::Sm120a, Some(4)), (Fp4Activations::nvfp4(3), Arch::Sm103a, None)]
        {
            let load = || {
                let backend = emulated::backend(arch, seed, activations)?;
                Some(load_with(backend, &folder(EXPORT), CacheDtype::F32, 8, Some(form)).unwrap())
            };
            let (Some(together), Some(alone)) = (load(), load()) else { return };
            check_company(&format!("emulated GPU {activations:?} {form:?}"), together, alone, &ids);
        }
    }
}

fn check_company<B: Calibrate>(what: &str, mut together: Model<B>, mut alone: Model<B>, ids: &[u32]) {
    let whole = step(&mut together, &ids[..8], 0, AttentionForm::Absorbed);
    for (at, expected) in whole.chunks(128).enumerate() {
        let own = step(&mut alone, &ids[at..at + 1], at, AttentionForm::Absorbed);
        let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&own), bits(expected), "{what}, token {at}");
    }
}

/// Rows of a prompt are in a form of their own wherever they are computed: beside rows of a reply or not.
#[test]
fn rows_of_prompts_have_a_form_of_their_own() {
    let file = Expected::open(folder(EXPORT).join("expected.safetensors"));
    let ids = file.words("input_ids", u32::from_le_bytes);
    let ids = &ids[..8];
    fn check<B: Calibrate>(what: &str, ids: &[u32], backend: impl Fn() -> B) {
        let load = |terms, prompt_terms| {
            let activations = Fp4Activations::Nvfp4 { terms, prompt_terms };
            load_with(backend(), &folder(EXPORT), CacheDtype::F32, 8, Some(activations)).unwrap()
        };
        for (terms, prompt_terms) in [(3, 1), (1, 2)] {
            // Five rows of a prompt, three of a reply: at once, and one after the other.
            let at_once = step_until(&mut load(terms, prompt_terms), ids, 0, 5);
            let mut apart = load(terms, prompt_terms);
            let mut logits = step_until(&mut apart, &ids[..5], 0, 5);
            let prompt = logits.len();
            logits.extend(step_until(&mut apart, &ids[5..], 5, 5));
            assert!(at_once == logits, "{what}: company changes bits");
            // Alone a prompt has the bits of its form; what follows reads another cache.
            let of_prompt = step_until(&mut load(prompt_terms, prompt_terms), ids, 0, 5);
            assert!(of_prompt[..prompt] == logits[..prompt], "{what}: the form of prompts");
            assert!(of_prompt[prompt..] != logits[prompt..], "{what}: the form of replies");
            let of_reply = step_until(&mut load(terms, terms), ids, 0, 0);
            assert!(step_until(&mut load(terms, prompt_terms), ids, 0, 0) == of_reply, "{what}: replies");
        }
    }
    check("reference", ids, || ReferenceBackend);
    for isa in Isa::supported() {
        let options = CpuOptions { threads: 2, activations: Activations::F32, isa };
        check(&isa.to_string(), ids, || CpuBackend::new(options));
    }
    check("two ranks", ids, || cpu_ranks(2, Activations::F32));
    for arch in [Arch::Sm120a, Arch::Sm100a] {
        let gpu = || emulated::backend(arch, Some(8), Activations::F32);
        if gpu().is_none() {
            return;
        }
        check(&format!("an emulated {arch}"), ids, || gpu().unwrap());
    }
    check("two emulated GPUs", ids, || emulated::ranks::whole(2, Arch::Sm120a, None).unwrap());
}

/// GPUs, one or several, write what the CPU writes in the same form.
#[test]
fn gpus_write_what_the_cpu_writes_in_every_form() {
    fn greedy<B: Calibrate>(backend: B, name: &str, activations: Fp4Activations) -> Vec<u32> {
        let mut model = load_with(backend, &folder(name), CacheDtype::F32, 8, Some(activations)).unwrap();
        let (mut tokens, mut start) = (vec![5, 17, 90, 33, 64], 0);
        while tokens.len() < 24 {
            let logits = step(&mut model, &tokens[start..], start, AttentionForm::Absorbed);
            start = tokens.len();
            tokens.push(argmax(&logits[logits.len() - 128..]));
        }
        tokens
    }
    let mut written = HashSet::new();
    for (name, activations) in [
        (EXPORT, NVFP4),
        (EXPORT, Fp4Activations::nvfp4(2)),
        (EXPORT, Fp4Activations::nvfp4(3)),
        ("tiny_quark_mxfp4_w4a4", Fp4Activations::Mxfp4),
    ] {
        let options = CpuOptions { threads: 2, activations: Activations::F32, ..CpuOptions::default() };
        let expected = greedy(CpuBackend::new(options), name, activations);
        for arch in [Arch::Sm120a, Arch::Sm100a] {
            let (Some(gpu), Some(gpus)) =
                (emulated::backend(arch, Some(6), Activations::F32), emulated::ranks::whole(2, arch, None))
            else {
                return;
            };
            assert_eq!(greedy(gpu, name, activations), expected, "{name} {activations:?} {arch}");
            assert_eq!(greedy(gpus, name, activations), expected, "{name} {activations:?} on two {arch}");
        }
        written.insert(expected);
    }
    assert!(written.len() > 2, "the forms change nothing");
}

/// Other GPUs do not multiply such rows, and say so before anything is uploaded.
#[test]
fn a_gpu_without_such_products_refuses_them_by_name() {
    let Some(gpu) = emulated::backend(Arch::Sm90a, None, Activations::F32) else { return };
    let Err(error) = load_with(gpu, &folder(EXPORT), CacheDtype::F32, 8, Some(NVFP4)) else {
        panic!("Hopper multiplies 4-bit floats")
    };
    assert!(error.to_string().contains("activations nvfp4 are not computed by the cuda backend"), "{error}");
}

/// A copy of the export whose tensors are those of `overlay` where it has them, or without those that `drop` names.
fn changed(overlay: Option<&Expected>, drop: impl Fn(&str) -> bool) -> tempfile::TempDir {
    let dir = servable_copy(&folder(EXPORT));
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut kept = Vec::new();
    for (name, view) in tensors.tensors() {
        let data = match overlay.filter(|overlay| overlay.has(&name)) {
            Some(overlay) => overlay.bytes(&name),
            None => view.data().to_vec(),
        };
        if !drop(&name) {
            kept.push((name, view.dtype(), view.shape().to_vec(), data));
        }
    }
    let views = kept.iter().map(|(name, dtype, shape, data)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let changed = safetensors::serialize(views, None).unwrap();
    std::fs::write(&path, changed).unwrap();
    dir
}

/// Scales of a layer's experts that differ by up to 93 times: the largest is everybody's.
#[test]
fn experts_share_the_largest_scale_of_their_layer() {
    let file = Expected::open(folder(EXPORT).join("expected_spread.safetensors"));
    let overlay = Expected::open(folder(EXPORT).join("input_scales_spread.safetensors"));
    let dir = changed(Some(&overlay), |_| false);
    let ids = file.words("input_ids", u32::from_le_bytes);
    on_every_backend("spread", dir.path(), NVFP4, &ids, &file.f32("logits_w4a4.layer_max"));
}

/// Some experts that calibration never reached take the scale of the others; a layer without any is refused by name, but for forms whose
/// terms correct each other.
#[test]
fn missing_scales_are_taken_from_the_layer_or_named() {
    let file = Expected::open(folder(EXPORT).join("expected.safetensors"));
    let (ids, expected) = (file.words("input_ids", u32::from_le_bytes), file.f32("logits_w4a4"));
    let some = changed(None, |name| name.contains("experts.3.") && name.ends_with("input_scale"));
    assert!(difference(ReferenceBackend, some.path(), Some(NVFP4), &ids, &expected) <= TOLERANCE);
    let none = changed(None, |name| name.contains("layers.2.") && name.ends_with("down_proj.input_scale"));
    let Err(error) = load_with(ReferenceBackend, none.path(), CacheDtype::F32, 8, Some(NVFP4)) else {
        panic!("a form that needs a scale")
    };
    assert_eq!(
        error.to_string(),
        "model.layers.2.mlp.experts.0.down_proj: no input_scale is stored, and device.activations nvfp4 needs one: \
         nvfp4x2, nvfp4x3 and bf16 do not"
    );
    let exact = file.f32("logits_w4a16");
    let three = Some(Fp4Activations::nvfp4(3));
    assert!(difference(ReferenceBackend, none.path(), three, &ids, &exact) < 0.02);
}

#[test]
fn forms_that_meet_no_weights_are_refused_by_name() {
    for (name, asked, expected) in [
        (EXPORT, Fp4Activations::Mxfp4, "device.activations mxfp4: no FFN of "),
        ("tiny_quark_mxfp4_w4a4", NVFP4, "device.activations nvfp4: no FFN of "),
    ] {
        let Err(error) = load_with(ReferenceBackend, &folder(name), CacheDtype::F32, 8, Some(asked)) else {
            panic!("{name}: {asked:?}")
        };
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(error.to_string().contains(" weights, only "), "{error}");
    }
}

/// One FFN of a golden module.
struct Module {
    /// Name in front of its tensors in the golden file.
    stem: String,
    /// Names of each of its experts' linears.
    linears: Vec<[String; 3]>,
    inner: usize,
}

/// The dumped modules of a folder.
fn modules(name: &str, file: &Expected) -> Vec<Module> {
    let prefix = match name {
        "tiny_ct_nvfp4_w4a4" => "layer_max.",
        "tiny_quark_mxfp4_w4a4" => "even.",
        _ => "",
    };
    let mut found = Vec::new();
    for layer in 0..3 {
        for (kind, stems, inner) in [
            ("experts", (0..8).map(|e| format!("mlp.experts.{e}")).collect::<Vec<_>>(), 64),
            ("shared", vec!["mlp.shared_experts".into()], 64),
            ("dense", vec!["mlp".into()], 128),
        ] {
            let stem = format!("{prefix}L{layer}.{kind}");
            if file.has(&format!("{stem}.in")) {
                let linear = |stem: &String, proj| format!("model.layers.{layer}.{stem}.{proj}");
                let of = |stem| ["gate_proj", "up_proj", "down_proj"].map(|proj| linear(stem, proj));
                found.push(Module { stem, linears: stems.iter().map(of).collect(), inner });
            }
        }
    }
    assert!(!found.is_empty(), "{name}");
    found
}

fn linear<'a>(checkpoint: &'a Checkpoint, name: &str) -> StoredMatrix<'a> {
    recognize(|part| checkpoint.tensor(&format!("{name}.{part}"))).unwrap().1
}

/// The largest scale of some linears' inputs.
fn largest_scale(checkpoint: &Checkpoint, names: &[&String]) -> f32 {
    let read =
        |name: &String, part| checkpoint.tensor(&format!("{name}.{part}")).map(|view| view.to_f32()[0]);
    let scale =
        |name| read(name, "input_scale").unwrap_or_else(|| 1.0 / read(name, "input_global_scale").unwrap());
    names.iter().map(|name| scale(name)).fold(0.0, f32::max)
}

/// Relative distance of products from those of exact rows.
fn distance(weights: &[f32], columns: usize, row: &[f32], rounded: &[f32]) -> (f64, f64) {
    let dot = |weights: &[f32], row: &[f32]| -> f64 {
        weights.iter().zip(row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    weights.chunks(columns).fold((0.0, 0.0), |(apart, all), weights| {
        let (exact, other) = (dot(weights, row), dot(weights, rounded));
        (apart + (exact - other) * (exact - other), all + exact * exact)
    })
}

/// Codes and scales to the byte, outputs of each module within rounding, and three terms closer than bf16 in every one of them.
#[test]
fn modules_are_those_of_the_producers() {
    for (name, activations, _) in FOLDERS {
        let file = Expected::open(folder(name).join("expected.safetensors"));
        let checkpoint = Checkpoint::open(&folder(name)).unwrap();
        for Module { stem, linears, inner } in modules(name, &file) {
            let get = |what: &str| file.f32(&format!("{stem}.{what}"));
            let (rows, inner_rows, out) = (get("in"), get("down_in"), get("down_out"));
            let form = |places: &[usize], terms| match activations {
                Fp4Activations::Mxfp4 => ActivationForm::Mxfp4,
                Fp4Activations::Nvfp4 { .. } => {
                    let names: Vec<&String> =
                        linears.iter().flat_map(|all| places.iter().map(|at| &all[*at])).collect();
                    ActivationForm::Nvfp4 { scale: largest_scale(&checkpoint, &names), terms }
                }
            };
            let (input, down) = (form(&[0, 1], 1), form(&[2], 1));
            // A row per token and chosen expert, or per token.
            let entries = inner_rows.len() / inner;
            let per_token = entries / (rows.len() / 128);
            let chosen = match linears.len() {
                1 => vec![0; entries],
                _ => file.words(&format!("{stem}.topk_ids"), i32::from_le_bytes),
            };
            for (what, form, columns) in [("in", input, 128), ("down_in", down, inner)] {
                let all = get(what);
                let (codes, scales) = (
                    file.bytes(&format!("{stem}.{what}_codes")),
                    file.bytes(&format!("{stem}.{what}_scale")),
                );
                for entry in 0..entries {
                    let row = if what == "in" { entry / per_token } else { entry };
                    let (width, blocks) = (columns / 2, columns / form.block());
                    let (mut own, mut own_scales) = (vec![0; width], vec![0; blocks]);
                    form.encode(&all[row * columns..][..columns], &mut own, &mut own_scales);
                    let plain = |codes: &[u8]| -> Vec<u8> {
                        let zero = |code: u8| if code == 8 { 0 } else { code };
                        codes.iter().flat_map(|byte| [zero(byte & 15), zero(byte >> 4)]).collect()
                    };
                    assert_eq!(
                        own_scales,
                        scales[entry * blocks..][..blocks],
                        "{name} {stem} {what} {entry}"
                    );
                    assert_eq!(plain(&own), plain(&codes[entry * width..][..width]), "{name} {stem} {what}");
                }
            }
            let mut worst = 0f32;
            let peak = out.iter().fold(0f32, |peak, x| peak.max(x.abs()));
            let mut apart = [[(0.0, 0.0); 2]; 2];
            for (entry, expert) in chosen.iter().enumerate() {
                let [gate, up, down_proj] = &linears[*expert as usize];
                let matrices = ExpertMatrices {
                    gate_proj: linear(&checkpoint, gate),
                    up_proj: linear(&checkpoint, up),
                    down_proj: linear(&checkpoint, down_proj),
                    input: Some(input.into()),
                    inner: Some(down.into()),
                };
                let row = &rows[entry / per_token * 128..][..128];
                let mut backend = ReferenceBackend;
                let experts = backend.load_experts(std::slice::from_ref(&matrices), 0).unwrap();
                let (mut x, mut y) = (backend.allocate(1, 128).unwrap(), backend.allocate(1, 128).unwrap());
                backend.write(row, &mut x).unwrap();
                backend.write(&[0.0; 128], &mut y).unwrap();
                backend.swiglu_add(&x, &[], &experts, &mut y).unwrap();
                worst =
                    worst.max(largest_difference(ReferenceBackend::values(&y), &out[entry * 128..][..128]));
                if matches!(activations, Fp4Activations::Nvfp4 { .. }) {
                    let inner_row = &inner_rows[entry * inner..][..inner];
                    for (at, (matrix, row, places)) in
                        [(&matrices.gate_proj, row, &[0, 1][..]), (&matrices.down_proj, inner_row, &[2][..])]
                            .into_iter()
                            .enumerate()
                    {
                        let weights = matrix.to_f32();
                        let mut three = row.to_vec();
                        form(places, 3).round(&mut three);
                        let bf16: Vec<f32> = row.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
                        for (kind, rounded) in [three, bf16].iter().enumerate() {
                            let (own, all) = distance(&weights, row.len(), row, rounded);
                            let sum = &mut apart[at][kind];
                            *sum = (sum.0 + own, sum.1 + all);
                        }
                    }
                }
            }
            assert!(worst <= 2e-6 * peak.max(1.0), "{name} {stem}: {worst:e} of {peak}");
            if matches!(activations, Fp4Activations::Nvfp4 { .. }) {
                for (what, [three, bf16]) in ["gate", "down"].iter().zip(apart) {
                    let [three, bf16] = [three, bf16].map(|(apart, all)| (apart / all).sqrt());
                    println!("{name} {stem} {what}: three terms {three:.1e}, bf16 {bf16:.1e}");
                    assert!(three < bf16, "{name} {stem} {what}: {three} of three terms, {bf16} of bf16");
                }
            }
        }
    }
}
