//! What decides the content of a KV block beside its name: one file on disk must not serve another model, or other arithmetic.

use super::engine::{BackendChoice, EngineOptions};
use perigee_engine::kv_tiers::Identity;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::CacheDtype;

/// Bytes that are hashed at the beginning and in the middle of a tensor. Trainings differ in all of a tensor's bytes.
const SAMPLE_BYTES: usize = 4096;

/// The identity of the blocks of an engine. Reads a few pages of each tensor that is not a routed expert's, and of the first expert
/// of each layer.
///
/// Left out: which variants of a GPU's kernels were tuned. They round differently in the last bits.
pub(super) fn kv_identity(
    checkpoint: &Checkpoint,
    draft: Option<&Checkpoint>,
    options: &EngineOptions,
    dtype: CacheDtype,
) -> Identity {
    let (program, arithmetic) = (program(), arithmetic(options));
    let numbers = (options.block_size, options.latent_norm_eps, options.speculation.rope_theta);
    let numbers = format!("{dtype:?} {numbers:?} {:?}", options.fp4_activations);
    let weights = sampled(checkpoint);
    let draft = draft.map(sampled).unwrap_or_default();
    let parts = [program.as_bytes(), arithmetic.as_bytes(), numbers.as_bytes(), &weights, &draft];
    Identity::of(parts)
}

/// The executable, by what changes with every build of it: another may round in another order.
fn program() -> String {
    let about = std::env::current_exe().and_then(std::fs::metadata);
    let built = about.and_then(|about| Ok((about.len(), about.modified()?)));
    format!("{} {:?}", env!("CARGO_PKG_VERSION"), built.ok())
}

fn arithmetic(options: &EngineOptions) -> String {
    // Any number of threads gives the same bits.
    let parallelism = (options.parallelism, options.wire);
    match &options.backend {
        BackendChoice::Reference => "reference".into(),
        BackendChoice::Cpu(cpu) => format!("cpu {:?} {:?}", cpu.activations, cpu.isa),
        BackendChoice::CpuRanks { ranks, each, parallelism } => {
            format!("cpu {:?} {:?} on {ranks} ranks, {parallelism:?}", each.activations, each.isa)
        }
        BackendChoice::Given { devices, activations } => {
            format!("{} {activations:?}, {parallelism:?}", devices.0.name())
        }
        // The engine that starts has one of the two.
        BackendChoice::Cuda(gpu) | BackendChoice::Auto { gpu, .. } => {
            format!("{}, {parallelism:?}", gpu.arithmetic())
        }
    }
}

/// blake3 over the configuration, and over name, type, shape and parts of the bytes of tensors.
fn sampled(checkpoint: &Checkpoint) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(checkpoint.file("config.json").as_deref().unwrap_or_default());
    for (name, tensor) in checkpoint.tensors() {
        part(name.as_bytes());
        part(tensor.dtype.to_string().as_bytes());
        tensor.shape.iter().for_each(|dim| part(&(*dim as u64).to_le_bytes()));
        if !name.contains(".experts.") || name.contains(".experts.0.") {
            let bytes = tensor.bytes;
            part(&bytes[..bytes.len().min(SAMPLE_BYTES)]);
            let middle = bytes.len() / 2;
            part(&bytes[middle..bytes.len().min(middle + SAMPLE_BYTES)]);
        }
    }
    hasher.finalize().as_bytes().to_vec()
}
