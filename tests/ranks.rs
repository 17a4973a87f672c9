//! Every way in which ranks can share a network gives the golden logits, on 1, 2, 4 and 8 ranks.

use std::collections::HashMap;
use std::path::Path;

use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_model::Model;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::host::{Group, Rank};
use perigee_ops::{
    Activations, AttentionExchange, AttentionForm, BlockId, CacheDtype, Calibrate, ContextSplit, Parallelism,
};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::golden::{
    BLOCK_SIZE, NUM_BLOCKS, argmax, golden_folder, golden_prompts, largest_difference, load_folder, step,
};

const TOLERANCE: f32 = 1e-3;
const CONTEXTS: [ContextSplit; 3] = [
    ContextSplit::Whole,
    ContextSplit::Split(AttentionExchange::Latents),
    ContextSplit::Split(AttentionExchange::Heads),
];

fn cpu_ranks(world: usize, parallelism: Parallelism) -> Group<CpuBackend> {
    let options = CpuOptions { activations: Activations::F32, threads: 1, ..Default::default() };
    Group::with((0..world).map(|_| CpuBackend::new(options)).collect(), parallelism).unwrap()
}

/// Writes a golden network with every head twice, each with half of its output: the logits stay what they are, and eight
/// ranks have a head each.
pub(crate) fn write_with_doubled_heads(name: &str, to: &Path) {
    let config = std::fs::read_to_string(golden_folder(name).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    (config["num_attention_heads"], config["num_key_value_heads"]) = (8.into(), 8.into());
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(golden_folder(name).join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut doubled: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in stored.tensors() {
        let mut shape = view.shape().to_vec();
        let data = if ["q_b_proj.weight", "q_proj.weight", "kv_b_proj.weight"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            shape[0] *= 2;
            [view.data(), view.data()].concat()
        } else if name.ends_with("o_proj.weight") {
            let row_bytes = view.data().len() / shape[0];
            shape[1] *= 2;
            let halved: Vec<u8> = view.data().as_chunks().0.iter().flat_map(|bf16| halved(*bf16)).collect();
            halved.chunks(row_bytes).flat_map(|row| [row, row].concat()).collect()
        } else {
            view.data().to_vec()
        };
        doubled.push((name, shape, data));
    }
    let dtypes: HashMap<String, safetensors::Dtype> =
        stored.tensors().into_iter().map(|(name, view)| (name, view.dtype())).collect();
    let views = doubled
        .iter()
        .map(|(name, shape, data)| (name, TensorView::new(dtypes[name], shape.clone(), data).unwrap()));
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Half of a bf16.
fn halved(bytes: [u8; 2]) -> [u8; 2] {
    half::bf16::from_f32(half::bf16::from_le_bytes(bytes).to_f32() / 2.0).to_le_bytes()
}

/// Logits of a prompt in both forms, whole and in random chunks, which change no bits; and what greedy decoding writes.
pub(crate) fn check<B: Rank + Calibrate>(
    about: &str,
    model: &mut Model<Group<B>>,
    (name, prompt): (&str, usize),
    rng: &mut fastrand::Rng,
) {
    let prompt = &golden_prompts(name)[prompt];
    let vocab = model.blueprint().vocab_size;
    for form in [AttentionForm::Expanded, AttentionForm::Absorbed] {
        let whole = step(model, &prompt.token_ids, 0, form);
        let difference = largest_difference(&whole, &prompt.logits);
        assert!(difference <= TOLERANCE, "{about}, {form:?}: {difference}");
        let (mut chunked, mut rest) = (Vec::new(), &prompt.token_ids[..]);
        while !rest.is_empty() {
            let (chunk, more) = rest.split_at(rng.usize(1..=rest.len()));
            chunked.extend(step(model, chunk, prompt.token_ids.len() - rest.len(), form));
            rest = more;
        }
        assert!(whole == chunked, "{about}, {form:?}: chunks change bits");
    }
    let mut reply = vec![argmax(&prompt.logits[prompt.logits.len() - vocab..])];
    while reply.len() < 8 {
        let position = prompt.token_ids.len() + reply.len() - 1;
        let row = step(model, &reply[reply.len() - 1..], position, AttentionForm::Absorbed);
        reply.push(argmax(&row));
    }
    assert_eq!(reply, prompt.greedy[..8], "{about}: greedy continuation");
}

/// Experts whole, in groups and cut, keys on every rank and in parts with both exchanges, on up to eight ranks: each
/// combination on a network and a prompt of its own.
#[test]
fn every_split_matches_golden_logits() {
    let mut rng = fastrand::Rng::with_seed(51);
    for name in ["kimi", "moonlight", "grouped", "thinking"] {
        let folder = tempfile::tempdir().unwrap();
        write_with_doubled_heads(name, folder.path());
        for world in [1, 2, 4, 8] {
            for expert_groups in [1, 2, 4, 8].into_iter().filter(|groups| world % groups == 0) {
                // A third of the combinations, another of each network.
                let parallelism = Parallelism { expert_groups, context: CONTEXTS[rng.usize(0..3)] };
                let about = format!("{name} on {world} ranks, {parallelism:?}");
                let mut model = load_folder(cpu_ranks(world, parallelism), folder.path(), CacheDtype::F32);
                check(&about, &mut model, (name, rng.usize(0..4)), &mut rng);
            }
        }
    }
}

#[test]
fn the_reference_has_every_split() {
    let mut rng = fastrand::Rng::with_seed(52);
    for (expert_groups, context) in [(1, CONTEXTS[2]), (2, CONTEXTS[0])] {
        let parallelism = Parallelism { expert_groups, context };
        let ranks = Group::with(vec![ReferenceBackend, ReferenceBackend], parallelism).unwrap();
        let mut model = load_folder(ranks, &golden_folder("kimi"), CacheDtype::F32);
        check("reference", &mut model, ("kimi", 1), &mut rng);
    }
}

/// What is exchanged in absorbed form: queries of own heads and partial results of all, in the latent space or of heads;
/// of whole keys nothing but sums.
#[test]
fn ranks_exchange_what_their_split_needs() {
    let exchanged = |context| {
        let parallelism = Parallelism { expert_groups: 1, context };
        let mut model = load_folder(cpu_ranks(2, parallelism), &golden_folder("kimi"), CacheDtype::F32);
        step(&mut model, &golden_prompts("kimi")[1].token_ids, 0, AttentionForm::Absorbed);
        model.backend().exchanged()
    };
    let [whole, latents, heads] = CONTEXTS.map(exchanged);
    assert_eq!(whole.get("attend_absorbed"), None);
    let (latents, heads) = (latents["attend_absorbed"], heads["attend_absorbed"]);
    // Each of two ranks gives queries of two heads and results of four: 96 and 66 values a head for 160 and 130.
    let (values, values_by_heads) = (2 * 160 + 4 * 130, 2 * 96 + 4 * 66);
    assert_eq!(heads * values, latents * values_by_heads);
    // Sums of the residual stream: one of the table, one a layer behind attention, one behind its FFN.
    let of = |op: &str| whole.get(op).copied().unwrap_or_default();
    let (sums, layers) = (of("project_add_norm") + of("moe") + of("dense"), 3);
    assert_eq!(sums, 2 * layers * of("embed"), "{whole:?}");
    assert_eq!(of("project_add_norm") + of("moe") + of("dense") + of("embed"), whole.values().sum::<u64>());
}

/// A block's content is the parts of all ranks, or what one has where all have the same; written to other ranks it is the
/// same context.
#[test]
fn blocks_go_from_ranks_to_ranks() {
    let prompt = &golden_prompts("kimi")[3].token_ids;
    let (last, context) = prompt.split_last().unwrap();
    let blocks = (0..context.len().div_ceil(BLOCK_SIZE)).map(|at| BlockId((NUM_BLOCKS - 1 - at) as u32));
    let model = |parallelism| load_folder(cpu_ranks(4, parallelism), &golden_folder("kimi"), CacheDtype::F32);
    let mut sizes = Vec::new();
    for context_split in CONTEXTS {
        let parallelism = Parallelism { expert_groups: 2, context: context_split };
        let (mut from, mut to) = (model(parallelism), model(parallelism));
        step(&mut from, context, 0, AttentionForm::Absorbed);
        for block in blocks.clone() {
            let mut content = Vec::new();
            let read = from.start_block_read(block).unwrap();
            from.finish_block_read(read, &mut content).unwrap();
            assert_eq!(content.len(), from.block_bytes().0);
            to.write_block(block, &content).unwrap();
        }
        let next = |model: &mut Model<_>| step(model, &[*last], context.len(), AttentionForm::Absorbed);
        assert!(next(&mut from) == next(&mut to), "{parallelism:?}");
        sizes.push(from.block_bytes().0);
    }
    assert!(sizes.iter().all(|size| *size == sizes[0]), "stored once, however it lies: {sizes:?}");
}

#[test]
fn groups_of_experts_divide_the_ranks() {
    let options = CpuOptions { threads: 1, ..Default::default() };
    let parallelism = Parallelism { expert_groups: 2, context: ContextSplit::Whole };
    let three = Group::with((0..3).map(|_| CpuBackend::new(options)).collect(), parallelism);
    let error = three.err().unwrap().to_string();
    assert!(error.contains("parallel.expert") && error.contains("3 ranks"), "{error}");
}
