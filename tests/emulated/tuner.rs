//! The tuner over the emulator: the shipped variants agree, planted wrong ones are refused, and a choice is the same whenever
//! it is made. Times are counted instructions.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use perigee_cuda::kernels::tiled::{Schedule, Variant};
use perigee_cuda::kernels::{fp4_linear, tiled_linear, wgmma_linear};
use perigee_cuda::tuner::{
    BenchSizes, Bucket, Candidate, Choices, Effort, Identity, KernelTime, Measurement, Product, Table, Tried,
    TuneError, Tuned, TunedOp, kernel_times, tune,
};
use perigee_cuda::{Arch, CudaBackend, Format, Installation, Program, Stream};
use perigee_model::Blueprint;
use perigee_ops::{Activations, AttentionForm, CacheDtype, MlaShape, OpError};

use super::{TestDriver, on_gpu};
use crate::golden::{golden_folder, golden_prompts, load, step};

/// Small enough for the emulator.
pub(crate) const EFFORT: Effort = Effort {
    max_weight_bytes: 1 << 20,
    rotation_bytes: 64 << 10,
    copy_bytes: 64 << 10,
    max_copies: 2,
    blocks: 2,
    block_time: Duration::ZERO,
    vendor: false,
};

pub(super) fn op(product: Product, format: Format, shape: [usize; 2], count: usize, rows: Bucket) -> TunedOp {
    let [out_features, in_features] = shape;
    TunedOp { rows, product, format, out_features, in_features, count, terms: 0 }
}

fn tune_ops(
    ops: &[TunedOp],
    open: &mut dyn FnMut() -> Result<Stream<TestDriver>, OpError>,
    candidates: &dyn Fn(&TunedOp) -> Vec<Candidate>,
) -> Tuned {
    tune(open, ops, candidates, &EFFORT, None, 1_795_412_000, &mut |_, _| ()).unwrap()
}

fn shipped_device() -> Option<impl FnMut() -> Result<Stream<TestDriver>, OpError>> {
    shipped_device_of(Arch::Sm90a)
}

fn shipped_device_of(arch: Arch) -> Option<impl FnMut() -> Result<Stream<TestDriver>, OpError>> {
    TestDriver::new(arch, None)?;
    Some(move || Stream::new(TestDriver::new(arch, None).unwrap()))
}

#[test]
fn shipped_variants_are_accepted_and_the_choice_is_always_the_same() {
    let Some(mut open) = shipped_device() else { return };
    let ops = [
        op(Product::Linear, Format::Nvfp4, [40, 288], 1, Bucket::UpTo8),
        op(Product::Linear, Format::Fp8, [136, 272], 1, Bucket::UpTo96),
        op(Product::Linear, Format::Nvfp4, [24, 144], 1, Bucket::Above),
        op(Product::Linear, Format::Bf16, [24, 2080], 5, Bucket::UpTo8),
        op(Product::Swiglu, Format::Int4, [24, 64], 5, Bucket::UpTo16),
        op(Product::Swiglu, Format::Mxfp4, [16, 160], 1, Bucket::UpTo32),
    ];
    let arch = open().unwrap().arch();
    let tuned = tune_ops(&ops, &mut open, &Candidate::shipped);
    assert_eq!((tuned.measurements.len(), tuned.left), (ops.len(), 0));
    for measurement in &tuned.measurements {
        let op = measurement.op;
        assert_eq!(measurement.refusals().collect::<Vec<_>>(), [], "{op}");
        let fitting = Candidate::shipped(&op).into_iter().filter(|candidate| candidate.fits(arch));
        assert_eq!(measurement.ranking().len(), fitting.count(), "{op}");
        assert!(measurement.error.unwrap() > 0.0, "{op}: inputs without any rounding test nothing");
        assert!(measurement.choice().is_some() && measurement.least_bytes > 0, "{op}");
        println!("{op}: {:?}, error {:?}", measurement.ranking(), measurement.error);
    }
    if !on_gpu() {
        assert_eq!(tuned, tune_ops(&ops, &mut open, &Candidate::shipped));
    }
}

/// Products of prompts on the tensor cores of B200 are candidates there, and their bits those of the first one.
#[test]
fn products_by_tcgen05_are_accepted() {
    let Some(mut open) = shipped_device_of(Arch::Sm100a) else { return };
    if on_gpu() {
        return;
    }
    let candidates = |op: &TunedOp| -> Vec<Candidate> {
        let all = Candidate::shipped(op).into_iter();
        all.filter(|candidate| ["split32x64", "tcgen32x256"].contains(&candidate.name)).collect()
    };
    let ops = [
        op(Product::Linear, Format::Bf16, [24, 272], 1, Bucket::Above),
        op(Product::Swiglu, Format::Nvfp4, [16, 144], 1, Bucket::Above),
    ];
    let tuned = tune_ops(&ops, &mut open, &candidates);
    for measurement in &tuned.measurements {
        assert_eq!(measurement.refusals().collect::<Vec<_>>(), [], "{}", measurement.op);
        assert!(measurement.micros("tcgen32x256").is_some(), "{}", measurement.op);
    }
    assert_eq!(tuned.measurements.len(), ops.len());
}

/// Products of rows in 4-bit floats: few and many slots of a block have the same bits on both families of Blackwell, and what computes something else
/// is refused.
#[test]
fn slots_of_panels_are_tuned_and_wrong_ones_refused() {
    for (arch, format, terms, many) in
        [(Arch::Sm120a, Format::Nvfp4, 3, "slots32"), (Arch::Sm100a, Format::Mxfp4, 1, "slots256")]
    {
        let Some(mut open) = shipped_device_of(arch) else { return };
        if on_gpu() {
            return;
        }
        let in_terms =
            |product, shape, count| TunedOp { terms, ..op(product, format, shape, count, Bucket::UpTo16) };
        let ops = [in_terms(Product::Swiglu, [40, 288], 3), in_terms(Product::Linear, [136, 64], 1)];
        let tuned = tune_ops(&ops, &mut open, &Candidate::shipped);
        assert_eq!(tuned.measurements.len(), ops.len());
        for measurement in &tuned.measurements {
            let op = measurement.op;
            assert_eq!(measurement.refusals().collect::<Vec<_>>(), [], "{op}");
            let mut names: Vec<&str> = measurement.ranking().iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            assert_eq!((names, measurement.default.as_str()), (vec![many, "slots8"], many), "{op}");
            assert!(measurement.error.unwrap() > 0.0 && measurement.least_bytes > 0, "{op}");
            println!("{op}: {:?}, error {:?}", measurement.ranking(), measurement.error);
        }
    }
    let mut open = || {
        let mut stream = Stream::new(TestDriver::new(Arch::Sm120a, None).unwrap())?;
        let mut program = Program::new(&fp4_linear::KERNEL, Arch::Sm120a).unwrap();
        let (right, wrong) = ("lane / 4 + lane % 2 * 8", "lane / 4");
        assert!(program.text.contains(right));
        program.text = program.text.replace(right, wrong);
        stream.load_program(&program)?;
        Ok(stream)
    };
    let ops = [TunedOp { terms: 3, ..op(Product::Linear, Format::Nvfp4, [136, 64], 1, Bucket::UpTo16) }];
    let tuned = tune_ops(&ops, &mut open, &Candidate::shipped);
    let refused: Vec<(&str, &str)> = tuned.measurements[0].refusals().collect();
    assert!(refused.len() == 2 && refused[0].1.contains("f32 kernel"), "{refused:?}");
    assert_eq!(tuned.measurements[0].choice(), None);
}

#[test]
fn kernels_are_timed_at_a_models_sizes() {
    let Some(mut open) = shipped_device() else { return };
    let sizes = BenchSizes {
        name: "small".into(),
        mla: Some(MlaShape {
            num_heads: 4,
            qk_nope_head_dim: 64,
            qk_rope_head_dim: 32,
            v_head_dim: 64,
            kv_lora_rank: 128,
            scale: 0.1,
        }),
        top_k: 2,
        products: vec![
            op(Product::Linear, Format::Bf16, [48, 256], 1, Bucket::UpTo8),
            op(Product::Swiglu, Format::Nvfp4, [32, 256], 6, Bucket::UpTo8),
        ],
    };
    let mut seen = 0;
    if let (false, Some(mut open)) = (on_gpu(), shipped_device_of(Arch::Sm100a)) {
        let products = BenchSizes { mla: None, ..sizes.clone() };
        let mut times = kernel_times(&mut open, &products, &[1, 5], 1, (&EFFORT, &[]), &mut |_| ()).unwrap();
        times.retain_fastest();
        let named: Vec<(&str, usize)> =
            times.times.iter().map(|time| (time.op.as_str(), time.rows)).collect();
        // Rows in each form are an op of their own: they are not as exact as one another.
        for terms in ["", "x2", "x3"] {
            let op = format!("swiglu nvfp4 32x256, 6 experts, rows in nvfp4{terms}");
            assert!(named.contains(&(op.as_str(), 1)) && named.contains(&(op.as_str(), 5)), "{named:?}");
        }
        assert!(times.times.iter().all(|time| time.micros > 0.0), "{times:?}");
    }
    let mut times = kernel_times(&mut open, &sizes, &[1, 5], 70, (&EFFORT, &[]), &mut |_| seen += 1).unwrap();
    assert_eq!(seen, times.times.len());
    let swiglu = |time: &&KernelTime| time.op.starts_with("swiglu") && time.rows == 5;
    let variants: Vec<_> =
        times.times.iter().filter(swiglu).filter_map(|time| time.variant.clone()).collect();
    assert!(variants.len() > 5 && variants.contains(&"wide16x8".to_owned()), "{variants:?}");
    times.retain_fastest();
    // On a GPU the vendor's products may be there too.
    let mut ours = times.times.clone();
    ours.retain(|time| time.variant.as_deref() != Some("cuBLASLt"));
    let named: Vec<(&str, usize)> = ours.iter().map(|time| (time.op.as_str(), time.rows)).collect();
    assert_eq!(
        named,
        [
            ("linear bf16 48x256", 1),
            ("linear bf16 48x256", 5),
            ("swiglu nvfp4 32x256, 6 experts", 1),
            ("swiglu nvfp4 32x256, 6 experts", 5),
            ("attend, bf16 cache, 70 tokens", 1),
            ("attend, bf16 cache, 70 tokens", 5),
            ("attend a prompt, bf16 cache, up to 70 tokens", 70),
            ("attend, fp8 cache, 70 tokens", 1),
            ("attend, fp8 cache, 70 tokens", 5),
            ("attend a prompt, fp8 cache, up to 70 tokens", 70),
        ]
    );
    assert_eq!(times.left, [] as [String; 0]);
    assert!(times.copy_bandwidth > 0.0 && times.times.iter().all(|time| time.micros > 0.0), "{times:?}");
    // Weights, inputs and outputs of a row; two experts of a token.
    assert_eq!((ours[0].bytes, ours[0].flop), (2 * 48 * 256 + 2 * 256 + 4 * 48, 2 * 48 * 256));
    assert_eq!(ours[2].flop, 2 * 2 * 2 * 32 * 256);
    // A cached row is 320 bytes in bf16.
    assert_eq!(ours[4].bytes, 70 * 320 + 2 * 4 * 128 * 128);
}

#[test]
fn past_the_deadline_nothing_is_tuned() {
    let Some(mut open) = shipped_device() else { return };
    let ops = [op(Product::Linear, Format::Bf16, [16, 128], 1, Bucket::UpTo8); 2];
    let deadline = Some(Instant::now());
    let tuned =
        tune(&mut open, &ops, &Candidate::shipped, &EFFORT, deadline, 0, &mut |_, _| panic!()).unwrap();
    assert_eq!((tuned.measurements.len(), tuned.left), (0, 2));
}

/// A kernel made of the shipped text: name, function, what is replaced, and what the refusal says.
struct Plant {
    name: &'static str,
    function: &'static str,
    changes: &'static [(&'static str, &'static str)],
    reason: &'static str,
}

const SCALE: &str = "scale(a, bf16_of(unit.scales, step / 4 * 2), bf16_of(unit.scales, step / 4 * 2 + 1));";
const STORE: &str = "*y = params.add ? *y + value : value;";
const LOOP: &str =
    "for (int i = static_cast<int>(threadIdx.x); i < slots.count * TILES * 8; i += WARPS * WARP) {";

const PLANTS: [Plant; 10] = [
    Plant { name: "unchanged", function: "planted_0", changes: &[], reason: "" },
    Plant {
        name: "off by one block",
        function: "planted_1",
        changes: &[(
            "const i64 first = static_cast<i64>(tile) * weight.units;",
            "const i64 first = static_cast<i64>(min(tile + 1, weight.tiles - 1)) * weight.units;",
        )],
        reason: "it has other bits than split16x8",
    },
    Plant {
        name: "dropped scale",
        function: "planted_2",
        changes: &[(SCALE, "")],
        reason: "it has other bits than split16x8",
    },
    Plant {
        name: "missing barrier",
        function: "planted_3",
        changes: &[("__syncthreads();\n    const float lower_factor", "const float lower_factor")],
        reason: "it ",
    },
    Plant {
        // Warps 4 to 7 write what warps 0 to 3 write, and something else.
        name: "race",
        function: "planted_4",
        changes: &[
            (
                LOOP,
                "for (int i = static_cast<int>(threadIdx.x) % 128; i < slots.count * TILES * 8; i += 128) {",
            ),
            (
                "float lower = 0.0f, upper = 0.0f;",
                "float lower = threadIdx.x < 128 ? 0.0f : 1.0f, upper = 0.0f;",
            ),
        ],
        reason: "it has other bits than split16x8",
    },
    Plant {
        name: "unwritten tile",
        function: "planted_5",
        changes: &[(
            "if (first_tile + m < weight.tiles) {\n            float lower",
            "if (first_tile + m + 1 < weight.tiles) {\n            float lower",
        )],
        reason: "values unwritten, the first at row 0, output 32",
    },
    Plant {
        name: "not a number",
        function: "planted_6",
        changes: &[(STORE, "*y = n == 5 ? __int_as_float(0x7fc00000) : value;")],
        reason: "it gives NaN at row 0, output 5",
    },
    Plant {
        // Adds the number of values written before, in all launches.
        name: "other in each run",
        function: "planted_7",
        changes: &[
            ("struct Linear {", "__device__ unsigned runs;\nstruct Linear {"),
            (STORE, "*y = value + (n == 3 ? static_cast<float>(atomicAdd(&runs, 1u)) : 0.0f);"),
        ],
        reason: "two runs differ",
    },
    Plant {
        name: "outside",
        function: "planted_8",
        changes: &[("if (n < params.weight.rows) {", "if (n < params.weight.rows + 4) {")],
        reason: "outside of its output",
    },
    Plant {
        name: "wild address",
        function: "planted_9",
        changes: &[("row.codes = weight.codes + ", "row.codes = weight.codes + (1ll << 40) + ")],
        reason: "",
    },
];

/// The same of `wgmma_linear`: that units are handed over at the right time, and rows are in their places.
const WGMMA_PLANTS: [Plant; 4] = [
    Plant { name: "wgmma unchanged", function: "planted_wgmma_0", changes: &[], reason: "" },
    Plant {
        name: "wgmma rows exchanged",
        function: "planted_wgmma_1",
        changes: &[(
            "a = 16ull * first[8 * eight], b = 16ull * first[8 * eight + 4]",
            "b = 16ull * first[8 * eight], a = 16ull * first[8 * eight + 4]",
        )],
        reason: "it has other bits than split16x8",
    },
    Plant {
        name: "wgmma stage left early",
        function: "planted_wgmma_2",
        changes: &[
            ("if (pair == 0 && turn > 0) {", "if (pair == 0) {"),
            ("empty<SHARED_ROWS>(&shared.emptied[(turn - 1) %", "empty<SHARED_ROWS>(&shared.emptied[turn %"),
        ],
        reason: "race",
    },
    Plant {
        name: "wgmma rows not awaited",
        function: "planted_wgmma_3",
        changes: &[("wait(&shared.filled[stage], turn / Shared::STAGES & 1);", "")],
        reason: "",
    },
];

impl Plant {
    fn is_wgmma(&self) -> bool {
        self.name.starts_with("wgmma ")
    }

    fn program(&self) -> Program {
        let function = self.function;
        let (kernel, all, one) = match self.is_wgmma() {
            false => {
                let one = format!("TILED({function}, TileNvfp4, Linear, 1, 1, 2)");
                (&tiled_linear::KERNEL, "FORMATS(tiled_linear, Linear)", one)
            }
            true => {
                let one = format!("WGMMA_BLOCK({function}, TileNvfp4, Linear, 64)");
                (&wgmma_linear::KERNEL, "WGMMA_FORMATS(wgmma_linear, Linear)", one)
            }
        };
        let mut program = Program::new(kernel, Arch::Sm90a).unwrap();
        for (from, to) in [(all, one.as_str())].iter().chain(self.changes) {
            assert!(program.text.contains(from), "{}: {from}", self.name);
            program.text = program.text.replacen(from, to, 1);
        }
        program.functions = vec![self.function.into()];
        program
    }

    fn candidate(&self) -> Candidate {
        let variant = match self.is_wgmma() {
            false => Variant { name: self.name, warp_tiles: 1, rows: 8, schedule: Schedule::Split },
            true => Variant { name: self.name, ..*Variant::named("wgmma32x64").unwrap() },
        };
        Candidate::of_tiles(variant, self.function)
    }
}

/// A device with the planted kernels beside the shipped ones; `faults`: the emulator ends a launch that races or reads what
/// was never written, which a GPU does not.
fn planted_device(faults: bool) -> Option<impl FnMut() -> Result<Stream<TestDriver>, OpError>> {
    // A wild address on a GPU would end the context of all tests.
    if on_gpu() {
        return None;
    }
    TestDriver::new(Arch::Sm90a, None)?;
    Some(move || {
        let mut driver = TestDriver::new(Arch::Sm90a, None).unwrap();
        driver.set_options(|options| (options.uninitialized, options.races) = (faults, faults));
        let mut stream = Stream::new(driver)?;
        PLANTS.iter().chain(&WGMMA_PLANTS).try_for_each(|plant| stream.load_program(&plant.program()))?;
        Ok(stream)
    })
}

/// Three rows of tiles, and chunks of several units.
const PLANTED_OP: [usize; 2] = [40, 2080];

#[test]
fn planted_wrong_variants_are_refused() {
    let Some(mut open) = planted_device(false) else { return };
    // The last one loses the device.
    let plants = &PLANTS[..PLANTS.len() - 1];
    let candidates = |op: &TunedOp| -> Vec<Candidate> {
        Candidate::shipped(op).into_iter().chain(plants.iter().map(Plant::candidate)).collect()
    };
    for count in [1, 5] {
        let ops = [op(Product::Linear, Format::Nvfp4, PLANTED_OP, count, Bucket::UpTo8)];
        let tuned = tune_ops(&ops, &mut open, &candidates);
        let measurement = &tuned.measurements[0];
        for shipped in Candidate::shipped(&measurement.op) {
            assert!(measurement.micros(shipped.name).is_some(), "{}", shipped.name);
        }
        for plant in plants {
            let refusal = measurement.refusals().find(|(name, _)| *name == plant.name);
            println!("{count} {}: {refusal:?}", plant.name);
            match refusal {
                None => assert_eq!(plant.name, "unchanged"),
                Some((_, reason)) => {
                    assert!(
                        !plant.reason.is_empty() && reason.contains(plant.reason),
                        "{}: {reason}",
                        plant.name
                    );
                    assert_eq!(measurement.micros(plant.name), None, "a refused variant is not timed");
                }
            }
        }
    }
}

#[test]
fn planted_wrong_forms_of_wgmma_are_refused() {
    let ops = [op(Product::Linear, Format::Nvfp4, PLANTED_OP, 1, Bucket::UpTo96)];
    let Some(mut open) = planted_device(false) else { return };
    let plants: Vec<&Plant> = WGMMA_PLANTS[..2].iter().collect();
    let candidates = left(&plants, &Table::new(identity()));
    let tuned = tune_ops(&ops, &mut open, &candidates);
    let measurement = &tuned.measurements[0];
    let refusals: Vec<(&str, &str)> = measurement.refusals().collect();
    assert!(refusals.len() == 1 && refusals[0].0 == plants[1].name, "{refusals:?}");
    assert!(refusals[0].1.contains(plants[1].reason), "{refusals:?}");
    assert!(measurement.micros("wgmma32x64").is_some() && measurement.micros(plants[0].name).is_some());
    let Some(mut open) = planted_device(true) else { return };
    for plant in &WGMMA_PLANTS[2..] {
        let candidates = left(&[plant], &Table::new(identity()));
        let error = tune(&mut open, &ops, &candidates, &EFFORT, None, 0, &mut |_, _| panic!("measured"));
        let TuneError::Lost { function, source } = error.unwrap_err() else { panic!("no variant is lost") };
        println!("{function}: {source}");
        assert!(function == plant.function && source.to_string().contains(plant.reason), "{source}");
    }
}

#[test]
fn a_variant_that_loses_the_device_ends_the_tuning_and_is_left_out_of_the_next_one() {
    let Some(mut open) = planted_device(true) else { return };
    let faulty = ["missing barrier", "race", "wild address"];
    let planted: Vec<&Plant> = PLANTS.iter().filter(|plant| faulty.contains(&plant.name)).collect();
    let ops = [op(Product::Linear, Format::Nvfp4, PLANTED_OP, 1, Bucket::UpTo8)];
    let mut table = Table::new(identity());
    for _ in &planted {
        let candidates = left(&planted, &table);
        let error = tune(&mut open, &ops, &candidates, &EFFORT, None, 0, &mut |_, _| panic!("measured"));
        let TuneError::Lost { function, source } = error.unwrap_err() else { panic!("no variant is lost") };
        println!("{function}: {source}");
        assert!(source.is_fatal());
        table.lose(function, source.to_string());
    }
    let mut lost: Vec<&str> = table.lost.iter().map(|lost| lost.function.as_str()).collect();
    lost.sort();
    assert_eq!(lost, planted.iter().map(|plant| plant.function).collect::<Vec<_>>());
    let tuned = tune_ops(&ops, &mut open, &left(&planted, &table));
    assert_eq!(tuned.measurements[0].refusals().collect::<Vec<_>>(), []);
    assert_eq!(tuned.measurements[0].ranking().len(), Candidate::shipped(&ops[0]).len());
    // Without any candidate an op is left to the defaults.
    assert_eq!(tune_ops(&ops, &mut open, &|_| Vec::new()).without_variant, 1);
}

/// What ships and what is planted, without the functions with which the device was lost.
fn left(planted: &[&Plant], table: &Table) -> impl Fn(&TunedOp) -> Vec<Candidate> + use<> {
    let planted: Vec<Candidate> = planted.iter().map(|plant| plant.candidate()).collect();
    let lost = table.lost.clone();
    move |op| {
        let all = Candidate::shipped(op).into_iter().chain(planted.iter().copied());
        all.filter(|candidate| candidate.is_usable(&lost)).collect()
    }
}

/// The f32 kernel finds what all candidates have in common.
#[test]
fn without_a_right_first_variant_every_one_is_refused() {
    let Some(mut open) = planted_device(false) else { return };
    let candidates = |op: &TunedOp| -> Vec<Candidate> {
        std::iter::once(PLANTS[2].candidate()).chain(Candidate::shipped(op)).collect()
    };
    let ops = [op(Product::Linear, Format::Nvfp4, PLANTED_OP, 1, Bucket::UpTo8)];
    let tuned = tune_ops(&ops, &mut open, &candidates);
    let measurement = &tuned.measurements[0];
    let reasons: Vec<&str> = measurement.refusals().map(|(_, reason)| reason).collect();
    assert_eq!(reasons.len(), 1 + Candidate::shipped(&ops[0]).len());
    assert!(reasons[0].contains("differs from the f32 kernel"), "{reasons:?}");
    assert!(reasons[1..].iter().all(|reason| reason.contains("nothing to compare")), "{reasons:?}");
    assert_eq!(measurement.choice(), None);
}

pub(super) fn identity() -> Identity {
    Identity {
        gpu: "Made-up GPU".into(),
        multiprocessors: 4,
        memory_clock_mhz: None,
        power_limit_w: None,
        driver: "580.65".into(),
        programs: Identity::hash_of(&[b"programs"]),
    }
}

/// A measurement in which one variant is fastest.
pub(super) fn made_up(op: TunedOp, fastest: &str) -> Measurement {
    let tried = |name: &str| Tried {
        variant: name.into(),
        micros: Some(if name == fastest { 50.0 } else { 100.0 }),
        refused: None,
    };
    Measurement {
        op,
        measured: op,
        num_slots: 8,
        least_bytes: 41_000_000,
        default: Variant::preferred(8).name.into(),
        tried: Candidate::shipped(&op).iter().map(|candidate| tried(candidate.name)).collect(),
        vendor: None,
        error: Some(1e-6),
        copy_bandwidth: 4.1e12,
        date: 1_795_412_000,
    }
}

/// Logits of the first tokens of a golden prompt, and the blocks of their launches, on a backend that `prepare` has changed; `None`:
/// skipped.
fn logits_and_blocks(
    num_tokens: usize,
    prepare: impl FnOnce(&mut CudaBackend<TestDriver>),
) -> Option<(Vec<f32>, u64)> {
    let driver = TestDriver::new(Arch::Sm90a, None)?;
    let counts = driver.counts.clone();
    let mut backend = CudaBackend::new(driver, Activations::Bf16).unwrap();
    prepare(&mut backend);
    let mut model = load(backend, "kimi", CacheDtype::Bf16);
    let before = counts.lock().unwrap().blocks;
    let tokens = &golden_prompts("kimi")[1].token_ids;
    let logits = step(&mut model, &tokens[..num_tokens.min(tokens.len())], 0, AttentionForm::Absorbed);
    let blocks = counts.lock().unwrap().blocks - before;
    Some((logits, blocks))
}

/// Whatever the table says, logits have the same bits.
#[test]
fn choices_change_launches_and_no_bits() {
    let config = fs::read(golden_folder("kimi").join("config.json")).unwrap();
    let b = Blueprint::parse(&config).unwrap();
    let run = |fastest: Option<&str>| {
        logits_and_blocks(usize::MAX, |backend| {
            let Some(fastest) = fastest else { return };
            let mut table = Table::new(identity());
            let (d, i, values) = (b.hidden_size, b.moe_intermediate_size, b.mla.num_heads * b.mla.v_head_dim);
            let of = |product, shape, count| {
                Bucket::ALL.map(|rows| made_up(op(product, Format::Bf16, shape, count, rows), fastest))
            };
            table.add(of(Product::Linear, [d, values], 1).into());
            table.add(of(Product::Linear, [d, i], b.router.num_experts).into());
            table.add(of(Product::Swiglu, [i, d], b.router.num_experts).into());
            backend.set_choices(Choices::of(&table));
        })
    };
    let Some((expected, by_default)) = run(None) else { return };
    for fastest in ["split32x16", "block32x48", "block32x64"] {
        let (logits, blocks) = run(Some(fastest)).unwrap();
        assert!(logits == expected, "{fastest} changes logits");
        assert_ne!(blocks, by_default, "{fastest} is not launched");
    }
}

/// Weights are a hint of the memory's: the same bits, from launches with blocks that fetch.
#[test]
fn fetching_ahead_adds_blocks_and_changes_no_bits() {
    let run = |ahead: bool| logits_and_blocks(4, |backend| backend.fetch_ahead(ahead));
    let Some((expected, without)) = run(false) else { return };
    let (logits, with) = run(true).unwrap();
    assert!(logits == expected && with > without, "{with} blocks, {without} without");
}

fn perigee(dir: &Path, args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_perigee")).arg("tune").args(args).current_dir(dir).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.clone(), text.into_owned())
}

#[test]
fn the_command_explains_what_is_stored() {
    if on_gpu() {
        // The machine has no program at the place where this one was built.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let one = op(Product::Swiglu, Format::Nvfp4, [2048, 7168], 384, Bucket::UpTo8);
    let mut table = Table::new(identity());
    let mut measurement = made_up(one, "split32x8");
    measurement.tried.last_mut().unwrap().micros = None;
    measurement.tried.last_mut().unwrap().refused = Some("it has other bits".into());
    measurement.tried.remove(2);
    table.lose("tiled_swiglu_nvfp4_split32x16", "code 700".into());
    table.add(vec![measurement, made_up(TunedOp { rows: Bucket::Above, ..one }, "split16x8")]);
    table.save(&dir.path().join("jit-cache")).unwrap();
    let (output, text) = perigee(dir.path(), &["--explain", "rows1-8"]);
    assert!(output.status.success(), "{text}");
    for part in [
        "swiglu-nvfp4-2048x7168-x384-rows1-8\n  on Made-up GPU (driver 580.65), 2026-11-23",
        "41.00 MB; at the 4100 GB/s of a copy in the same run that takes 10.0 us",
        "split32x8        50.00 us   20 % of the floor  chosen",
        "split16x8       100.00 us   10 % of the floor  default",
        "cluster32x64 refused: it has other bits",
        "split32x16   left out: code 700",
        "split32x8 is faster than split16x8 by 50.0 % and replaces it: the margin is 3 %",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("rows97+"), "{text}");
    let (output, text) = perigee(dir.path(), &["--explain", "linear"]);
    assert!(output.status.code() == Some(1) && text.contains("rows97+"), "{text}");
    let (output, text) = perigee(dir.path(), &["--explain", "", "--set", "kernels.cache_dir=none"]);
    assert!(output.status.code() == Some(1) && text.contains("measured: none"), "{text}");
}

#[test]
fn without_a_gpu_the_command_says_so_in_one_line() {
    if Installation::probe().is_ok() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (output, text) = perigee(dir.path(), &[]);
    assert!(output.status.code() == Some(1) && text.lines().count() == 1, "{text}");
    assert!(text.contains("no NVIDIA driver"), "{text}");
}
