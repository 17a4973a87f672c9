//! Vision against an independent implementation (`tests/golden/vision`, see its README).

use std::path::PathBuf;
use std::sync::Arc;

use perigee::boot::engine::{BackendChoice, EngineOptions, StartedEngine, start_engine, start_on};
use perigee::boot::equipped::Equipped;
use perigee::boot::sight::TowerSource;
use perigee_cpu::{CpuBackend, CpuOptions, Isa};
use perigee_cuda::{Arch, CudaBackend};
use perigee_decoding::sampling::SamplingParams;
use perigee_engine::{EngineRequest, Media};
use perigee_model::checkpoint::Checkpoint;
use perigee_model::vision;
use perigee_model::{Blueprint, Model, Tower, TowerBlueprint};
use perigee_ops::host::Group;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::{
    Activations, Backend, BlockId, CacheDtype, Calibrate, PATCH_SIDE, Parallelism, Picture, Row, StepPlan,
    TokenId, TokenSource, TowerCapacity,
};
use perigee_telemetry::Metrics;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::delayed::Delayed;
use crate::emulated;
use crate::engine::{Device, Reply, finish, greedy, options, prompt, request, run, run_all, runtime};
use crate::golden::{BLOCK_SIZE, NUM_BLOCKS, argmax, golden_path, largest_difference, load_folder};

/// `tests/golden/vision`.
pub(crate) fn oracle() -> PathBuf {
    golden_path("vision")
}

pub(crate) fn cases() -> Value {
    serde_json::from_slice(&std::fs::read(oracle().join("cases.json")).unwrap()).unwrap()
}

/// Numbers of the oracle by name.
pub(crate) struct Expected(Vec<u8>);

impl Expected {
    pub(crate) fn read() -> Self {
        Self(std::fs::read(oracle().join("expected.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> Option<(Vec<usize>, Vec<u8>)> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let view = tensors.tensor(name).ok()?;
        Some((view.shape().to_vec(), view.data().to_vec()))
    }

    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let (_, bytes) = self.bytes(name)?;
        Some(bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect())
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let (_, bytes) = self.bytes(name).unwrap_or_else(|| panic!("{name} is missing"));
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// The picture of a file.
    fn picture(&self, name: &str) -> Picture {
        let (shape, pixels) = self.bytes(&format!("{name}.pixels")).unwrap();
        Picture::new(shape[1] / PATCH_SIDE, shape[2] / PATCH_SIDE, pixels).unwrap()
    }

    fn levels(&self) -> [[f32; 256]; 3] {
        [self.floats("normalize_lut").unwrap().try_into().unwrap(); 3]
    }
}

/// Name of a file's tensors.
fn stem(file: &str) -> String {
    file.replace('.', "_")
}

/// The oracle's model with its tower.
fn open<B: Backend>(mut new: impl FnMut() -> B, dtype: CacheDtype) -> Model<B> {
    let checkpoint = Checkpoint::open(&oracle()).unwrap();
    let config = checkpoint.file("config.json").unwrap();
    let text = Blueprint::parse(&config).unwrap();
    let blueprint = TowerBlueprint::parse(&config, &text).unwrap().unwrap();
    let mut backend = new();
    let capacity = TowerCapacity { max_patches: 1024, num_rows: 256 };
    let levels = Expected::read().levels();
    let tower = Tower::load(&checkpoint, &blueprint, levels, &mut backend, &capacity).unwrap();
    load_folder(backend, &oracle(), dtype).with_tower(Some(tower))
}

/// Sends pictures through the tower; rows are kept from `first` on.
fn encode<B: Calibrate>(model: &mut Model<B>, pictures: &[&Picture], first: u32) -> [Vec<f32>; 2] {
    let tokens: usize = pictures.iter().map(|picture| picture.num_tokens()).sum();
    let rows: Vec<u32> = (first..first + tokens as u32).collect();
    model.begin_pictures(pictures).unwrap();
    (0..model.tower_blocks().unwrap()).for_each(|block| model.tower_block(block).unwrap());
    model.project_pictures(&rows).unwrap();
    model.read_pictures(&rows).unwrap()
}

/// The first and last rows of `all`, as the oracle keeps them of large pictures.
fn ends(all: &[f32], width: usize) -> [Vec<f32>; 2] {
    [all[..16 * width].to_vec(), all[all.len() - 16 * width..].to_vec()]
}

fn check_pictures<B: Calibrate>(new: impl FnMut() -> B, max_patches: usize, encoder: f32, projected: f32) {
    let (expected, cases) = (Expected::read(), cases());
    let mut model = open(new, CacheDtype::F32);
    let mut worst = [0f32; 2];
    let mut small = Vec::new();
    let names = cases["images"].as_object().unwrap().keys();
    for name in names.filter(|name| !name.starts_with("video")) {
        let picture = expected.picture(name);
        if picture.num_patches() > max_patches {
            continue;
        }
        let [rows, encoded] = encode(&mut model, &[&picture], 3);
        if picture.num_patches() <= 256 {
            small.push((picture, rows.clone()));
        }
        for (i, (part, got)) in [("encoder", encoded), ("projected", rows)].into_iter().enumerate() {
            let difference = match expected.floats(&format!("{name}.{part}")) {
                Some(whole) => largest_difference(&got, &whole),
                None => {
                    let width = [96, 256][i];
                    let [head, tail] = ends(&got, width);
                    let part = |end: &str| expected.floats(&format!("{name}.{part}_{end}")).unwrap();
                    largest_difference(&head, &part("head")).max(largest_difference(&tail, &part("tail")))
                }
            };
            worst[i] = worst[i].max(difference);
            assert!(difference <= [encoder, projected][i], "{name} {part}: {difference}");
        }
    }
    // In another order, grids are found that are kept, and others replace them.
    for (picture, rows) in small.iter().rev() {
        assert!(encode(&mut model, &[picture], 3)[0] == *rows, "kept positions change bits");
    }
    println!("largest differences: encoder {:e}, projected {:e}", worst[0], worst[1]);
}

#[test]
fn reference_encodes_pictures_as_the_reference_implementation() {
    check_pictures(|| ReferenceBackend, usize::MAX, 1e-4, 3e-5);
}

#[test]
fn cpu_encodes_pictures_as_the_reference_implementation() {
    check_pictures(|| cpu(Activations::F32), usize::MAX, 1e-4, 3e-5);
    check_pictures(|| cpu(Activations::Bf16), usize::MAX, 0.1, 0.02);
}

/// The emulated GPU, if its kernels can be compiled.
fn gpu(arithmetic: Activations) -> Option<impl FnMut() -> CudaBackend<emulated::TestDriver>> {
    let new = move || emulated::backend(Arch::Sm90a, Some(5), arithmetic);
    new()?;
    Some(move || new().unwrap())
}

#[test]
fn emulated_gpu_encodes_pictures_as_the_reference_implementation() {
    if let Some(new) = gpu(Activations::F32) {
        check_pictures(new, 64, 1e-4, 3e-5);
    }
    if let Some(new) = gpu(Activations::Bf16) {
        check_pictures(new, 16, 0.1, 0.02);
    }
}

#[test]
fn emulated_gpu_has_the_logits_of_the_reference_implementation() {
    if let Some(new) = gpu(Activations::F32) {
        check_prompts(new, 1e-3);
    }
}

pub(crate) fn cpu(activations: Activations) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: 2, activations, ..Default::default() })
}

/// A prompt of the oracle as a plan of one sequence: tokens `start..start + len`, pads as rows of pictures from 0 on.
fn plan_of(tokens: &[u32], media: u32, start: usize, len: usize) -> StepPlan {
    let blocks: Vec<BlockId> = (0..NUM_BLOCKS as u32).rev().map(BlockId).collect();
    let before = tokens[..start].iter().filter(|id| **id == media).count() as u32;
    let sources = tokens[start..start + len].iter().scan(before, |row, id| {
        let source = TokenSource::Media { token: TokenId(*id), row: *row };
        Some(if *id == media {
            *row += 1;
            source
        } else {
            TokenSource::from(*id)
        })
    });
    let mut plan = StepPlan::default();
    plan.add(sources, start, usize::MAX, &blocks, BLOCK_SIZE);
    plan.logits_rows = (0..len as u32).map(Row).collect();
    plan
}

fn check_prompts<B: Calibrate>(new: impl FnMut() -> B, tolerance: f32) {
    let (expected, cases) = (Expected::read(), cases());
    let mut model = open(new, CacheDtype::F32);
    let mut worst = 0f32;
    for (i, case) in cases["prompts"].as_array().unwrap().iter().enumerate() {
        let tokens = expected.ids(&format!("prompt_{i}.token_ids"));
        let files = case["images"].as_array().unwrap().iter().map(|file| stem(file.as_str().unwrap()));
        let pictures: Vec<Picture> = files.map(|file| expected.picture(&file)).collect();
        let alone: Vec<f32> =
            pictures.iter().flat_map(|picture| encode(&mut model, &[picture], 0)[0].clone()).collect();
        if !pictures.is_empty() {
            let together = encode(&mut model, &pictures.iter().collect::<Vec<_>>(), 0)[0].clone();
            assert!(alone == together, "prompt {i}: pictures see each other");
        }
        model.forward(&plan_of(&tokens, 277, 0, tokens.len())).unwrap();
        let logits = model.read_logits(0..tokens.len()).unwrap().to_vec();
        let difference =
            largest_difference(&logits, &expected.floats(&format!("prompt_{i}.logits")).unwrap());
        worst = worst.max(difference);
        assert!(difference <= tolerance, "prompt {i}: {difference}");
        let mut chunked = Vec::new();
        for start in (0..tokens.len()).step_by(7) {
            let len = 7.min(tokens.len() - start);
            model.forward(&plan_of(&tokens, 277, start, len)).unwrap();
            chunked.extend_from_slice(model.read_logits(0..len).unwrap());
        }
        assert!(logits == chunked, "prompt {i}: chunks change bits");
        let greedy = expected.ids(&format!("prompt_{i}.greedy"));
        assert_eq!(argmax(&logits[logits.len() - 512..]), greedy[0], "prompt {i}");
    }
    println!("largest logit difference: {worst:e}");
}

#[test]
fn prompts_with_pictures_have_the_logits_of_the_reference_implementation() {
    check_prompts(|| ReferenceBackend, 1e-3);
    check_prompts(|| cpu(Activations::F32), 1e-3);
    let group = || Group::new(vec![cpu(Activations::F32), cpu(Activations::F32)]).unwrap();
    check_prompts(group, 1e-3);
}

/// The oracle's engine with its tower.
pub(crate) fn start(device: Device, change: impl FnOnce(&mut EngineOptions)) -> StartedEngine {
    let checkpoint = Checkpoint::open(&oracle()).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let tower = TowerSource::open(&vision::Config::default(), &checkpoint, &blueprint).unwrap().unwrap();
    let mut options = EngineOptions { tower: Some(tower), ..options() };
    change(&mut options);
    let metrics = Arc::new(Metrics::new("vision", true));
    match device {
        Device::Late(cpu, seed) => {
            let backend = Delayed::new(CpuBackend::new(cpu), seed);
            let equipped = Equipped::new(backend, CacheDtype::F32);
            start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ())
        }
        Device::EmulatedRanks(ranks, seed) => {
            let equipped = Equipped::new(emulated::ranks::in_parts(ranks, seed).unwrap(), CacheDtype::F32);
            start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ())
        }
        Device::Emulated(seed, arithmetic) => {
            let backend = emulated::backend(Arch::Sm90a, seed, arithmetic).unwrap();
            let equipped = Equipped::new(backend, CacheDtype::F32);
            start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ())
        }
        device => {
            options.backend = match device {
                Device::Reference => BackendChoice::Reference,
                Device::Cpu(cpu) => BackendChoice::Cpu(cpu),
                Device::Ranks(each, ranks) => {
                    BackendChoice::CpuRanks { ranks, each, parallelism: Parallelism::default_of(ranks) }
                }
                Device::Late(..) | Device::Emulated(..) | Device::EmulatedRanks(..) => {
                    unreachable!("they have arms of their own")
                }
            };
            start_engine(&checkpoint, blueprint, &options, metrics, &mut |_| ())
        }
    }
    .unwrap()
}

/// A prompt of the oracle with its pictures, and the known reply.
struct Prompt {
    tokens: Vec<u32>,
    media: Vec<Media>,
    greedy: Vec<u32>,
}

fn prompts() -> Vec<Prompt> {
    let (expected, cases) = (Expected::read(), cases());
    let cases = cases["prompts"].as_array().unwrap().clone();
    let of = |(i, case): (usize, &Value)| {
        let tokens = expected.ids(&format!("prompt_{i}.token_ids"));
        let files = case["images"].as_array().unwrap().iter().map(|file| stem(file.as_str().unwrap()));
        let mut at = 0;
        let media = files.map(|file| {
            let picture = Arc::new(expected.picture(&file));
            let start = at + tokens[at..].iter().position(|id| *id == MEDIA).unwrap();
            at = start + picture.num_tokens();
            Media { start, hash: *blake3::hash(picture.pixels()).as_bytes(), picture }
        });
        let media: Vec<_> = media.collect();
        Prompt { greedy: expected.ids(&format!("prompt_{i}.greedy")), tokens, media }
    };
    cases.iter().enumerate().map(of).collect()
}

impl Prompt {
    fn request(&self, params: SamplingParams) -> EngineRequest {
        EngineRequest { media: self.media.clone(), ..request(&self.tokens, params) }
    }
}

/// Id of the token of an image.
const MEDIA: u32 = 277;

fn greedy_replies(device: Device) {
    let engine = start(device, |_| ());
    let prompts = prompts();
    let requests = prompts.iter().map(|prompt| prompt.request(greedy(24))).collect();
    let replies = runtime().block_on(run_all(&engine.handle, requests));
    for (i, (reply, prompt)) in replies.iter().zip(&prompts).enumerate() {
        assert_eq!(reply.tokens, prompt.greedy, "prompt {i}");
    }
    finish(engine);
}

#[test]
fn replies_about_pictures_are_those_of_the_reference_implementation() {
    greedy_replies(Device::Reference);
    greedy_replies(Device::Cpu(F32));
    greedy_replies(Device::Ranks(CpuOptions { threads: 1, ..F32 }, 2));
    greedy_replies(Device::Late(F32, 3));
}

#[test]
fn replies_about_pictures_on_the_emulated_gpu() {
    if gpu(Activations::F32).is_some() {
        greedy_replies(Device::Emulated(Some(7), Activations::F32));
        greedy_replies(Device::EmulatedRanks(2, Some(8)));
    }
}

const F32: CpuOptions = CpuOptions { threads: 2, activations: Activations::F32, isa: Isa::Portable };

/// Alone and whole; then in chunks, after a prefix hit inside a picture, with others and with too few blocks or rows: the same bits.
fn bits_do_not_depend_on_company(device: Device) {
    let (runtime, prompts) = (runtime(), prompts());
    let params = |i: usize| SamplingParams { temperature: 1.0, seed: i as u64, ..greedy(16) };
    let alone: Vec<Reply> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let engine = start(device, |_| ());
            let reply = runtime.block_on(run(&engine.handle, prompt.request(params(i))));
            finish(engine);
            reply
        })
        .collect();
    let check = |what: &str, others: usize, change: &dyn Fn(&mut EngineOptions)| {
        let engine = start(device, change);
        let texts = (0..others).map(|o| request(&prompt(5 + 13 * o, o as u64), params(o)));
        let requests = prompts.iter().enumerate().map(|(i, prompt)| prompt.request(params(i))).chain(texts);
        let replies = runtime.block_on(run_all(&engine.handle, requests.collect()));
        for (i, (reply, alone)) in replies.iter().zip(&alone).enumerate() {
            assert_eq!(reply.bits(), alone.bits(), "{what}, prompt {i}");
        }
        // Again, now that the prompts are cached: those of several blocks begin behind some of them.
        let again: Vec<Reply> = prompts
            .iter()
            .enumerate()
            .map(|(i, prompt)| runtime.block_on(run(&engine.handle, prompt.request(params(i)))))
            .collect();
        for (i, (reply, alone)) in again.iter().zip(&alone).enumerate() {
            assert_eq!(reply.bits(), alone.bits(), "{what} again, prompt {i}");
        }
        finish(engine);
        again.iter().map(|reply| reply.cached_tokens).sum::<usize>()
    };
    let all: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    for chunk in [1, 3, 16, 512] {
        let hits =
            check(&format!("chunks of {chunk}"), 9, &|options| options.scheduler.max_prefill_tokens = chunk);
        assert!(hits * 2 > all, "{hits} of {all} tokens were cached");
    }
    let hits = check("blocks of 4", 9, &|options| options.block_size = 4);
    assert!(hits * 10 > 8 * all, "{hits} of {all} tokens were cached");
    check("no prefix cache", 3, &|options| options.prefix_caching = false);
    check("preemption", 20, &|options| (options.num_blocks, options.scheduler.max_model_len) = (24, 256));
    check("few rows", 3, &|options| {
        let config = vision::Config { cache_bytes: 0, ..Default::default() };
        let checkpoint = Checkpoint::open(&oracle()).unwrap();
        let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
        options.tower = TowerSource::open(&config, &checkpoint, &blueprint).unwrap().ok();
    });
}

#[test]
fn bits_of_replies_about_pictures_do_not_depend_on_company_on_the_reference() {
    bits_do_not_depend_on_company(Device::Reference);
}

#[test]
fn bits_of_replies_about_pictures_do_not_depend_on_company_on_the_cpu() {
    bits_do_not_depend_on_company(Device::Cpu(CpuOptions { threads: 2, ..Default::default() }));
}

#[test]
fn bits_of_replies_about_pictures_do_not_depend_on_company_on_a_late_backend() {
    bits_do_not_depend_on_company(Device::Late(CpuOptions { isa: CpuOptions::default().isa, ..F32 }, 11));
}

/// Sequences that end while their pictures are in the tower leave nothing behind.
#[test]
fn requests_with_pictures_can_be_dropped_at_any_time() {
    let engine = start(Device::Reference, |_| ());
    let prompts = prompts();
    runtime().block_on(async {
        for round in 0..6 {
            let mut streams: Vec<_> = (0..prompts.len())
                .map(|i| {
                    let mut request = prompts[i].request(greedy(8));
                    // Another picture in each round: nothing is kept of earlier ones.
                    request.media.iter_mut().for_each(|media| media.hash[0] ^= 1 + round as u8);
                    engine.handle.submit(request).unwrap()
                })
                .collect();
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            // The last one runs to its end, whatever became of the others.
            let mut last = streams.pop().unwrap();
            drop(streams);
            while last.next().await.is_some() {}
        }
    });
    finish(engine);
}
