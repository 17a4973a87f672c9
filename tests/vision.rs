//! Vision against an independent implementation (`../shared/golden/vision`, see its README).

use std::path::PathBuf;

use perigee::cpu::{Activations, CpuBackend, CpuOptions};
use perigee::model::checkpoint::Checkpoint;
use perigee::model::{Blueprint, Model, Tower, TowerBlueprint};
use perigee::ops::reference::ReferenceBackend;
use perigee::ops::{
    BlockId, CacheDType, Calibrate, Group, PATCH_SIDE, Picture, Row, StepPlan, TokenId, TokenSource,
    TowerCapacity, TowerOps,
};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::golden::{BLOCK_SIZE, NUM_BLOCKS, argmax, largest_difference, load_folder};

/// `../shared/golden/vision`.
pub(crate) fn oracle() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/golden/vision");
    assert!(path.is_dir(), "golden data is missing: {}", path.display());
    path
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
fn open<B: TowerOps>(mut new: impl FnMut() -> B, dtype: CacheDType) -> Model<B> {
    let checkpoint = Checkpoint::open(&oracle()).unwrap();
    let config = checkpoint.file("config.json").unwrap();
    let text = Blueprint::parse(&config).unwrap();
    let blueprint = TowerBlueprint::parse(&config, &text).unwrap().unwrap();
    let mut backend = new();
    let capacity = TowerCapacity { max_patches: 1024, num_rows: 256 };
    let levels = Expected::read().levels();
    let tower = Tower::load(&checkpoint, &blueprint, levels, &mut backend, &capacity).unwrap();
    load_folder(backend, &oracle(), dtype).with_tower(Some(Box::new(tower)))
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

fn check_pictures<B: Calibrate + TowerOps>(new: impl FnMut() -> B, encoder: f32, projected: f32) {
    let (expected, cases) = (Expected::read(), cases());
    let mut model = open(new, CacheDType::F32);
    let mut worst = [0f32; 2];
    for name in cases["images"].as_object().unwrap().keys() {
        let [rows, encoded] = encode(&mut model, &[&expected.picture(name)], 3);
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
    println!("largest differences: encoder {:e}, projected {:e}", worst[0], worst[1]);
}

#[test]
fn reference_encodes_pictures_as_the_reference_implementation() {
    check_pictures(|| ReferenceBackend, 1e-4, 3e-5);
}

#[test]
fn cpu_encodes_pictures_as_the_reference_implementation() {
    check_pictures(|| cpu(Activations::F32), 1e-4, 3e-5);
    check_pictures(|| cpu(Activations::Bf16), 0.1, 0.02);
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

fn check_prompts<B: Calibrate + TowerOps>(new: impl FnMut() -> B, tolerance: f32) {
    let (expected, cases) = (Expected::read(), cases());
    let mut model = open(new, CacheDType::F32);
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
