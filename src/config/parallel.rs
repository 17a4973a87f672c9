//! How ranks share a model.

use std::time::Duration;

use perigee_ops::{AttentionExchange, ContextSplit, Parallelism};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the ranks of device.ranks hold. All of them cut heads, the vocabulary, and the inner units of dense and shared FFNs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// Ranks that the cached tokens of a sequence are divided among: as many as device.ranks = each rank has a part of every block,
    /// which leaves room for as many times more tokens and costs an exchange a layer; 1 = every rank has all of them and
    /// attends with its own heads alone. 0 = as many as device.ranks on the CPU; on GPUs 1, or as many as device.ranks where the
    /// room of one GPU does not hold one sequence of scheduler.max_model_len. Parts pay with long contexts, from about 40,000 tokens of
    /// all running requests on (PCIe).
    pub context: usize,
    /// Groups of ranks that the routed experts are divided among, each expert as a whole in one group and cut over its ranks: as many as
    /// device.ranks = whole experts on single ranks, 1 = every expert cut over all ranks, so that each works as much as the
    /// others whatever the router chooses. Divides device.ranks. 0 = as many as device.ranks on the CPU, 1 on GPUs, where every one of them
    /// reads as much of each expert as the others.
    pub expert: usize,
    /// What ranks with parts of the cached tokens exchange while decoding: latents = queries and partial results in the latent
    /// space; heads = those of the heads, a third of the bytes, where every rank also holds W_UK and W_UV of all heads (0.8 GB of
    /// Kimi K2) and takes all heads into the latent space and out of it. auto = latents on the CPU, heads on GPUs: latents are less
    /// work and more bytes, which pays up to about 4 running sequences (PCIe) or 12 (NVLink). Results differ by rounding.
    pub attention_exchange: AttentionExchangeChoice,
    /// Where GPUs exchange values: peer = in the memory of one another, host = in memory of the host, several times slower, and only
    /// with context = 1. auto = peer, or host where a GPU does not reach another one's memory or what it writes there arrives changed;
    /// the log says why. Results are the same, to the bit.
    pub collectives: Collectives,
    /// Type of what GPUs send each other for the two sums of a layer: bf16 = half of the bytes of f32, which bound prompts on GPUs without
    /// NVLink; results differ by that rounding, whatever the batch.
    pub exchange: ExchangeType,
    /// Seconds that a GPU waits for another one in an exchange before the engine ends with the reason: which rank, which exchange. Longer:
    /// a GPU that hangs is noticed later. Shorter: one that is only late, as after a long prompt on one GPU alone, ends the engine.
    pub wait_seconds: f64,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            context: 0,
            expert: 0,
            attention_exchange: AttentionExchangeChoice::default(),
            collectives: Collectives::default(),
            exchange: ExchangeType::default(),
            wait_seconds: 10.0,
        }
    }
}

/// What ranks exchange while decoding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AttentionExchangeChoice {
    /// Latents on the CPU, heads on GPUs.
    #[default]
    Auto,
    /// In the latent space.
    Latents,
    /// Of the heads.
    Heads,
}

/// Type of what GPUs send each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeType {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits.
    Bf16,
}

/// Where GPUs exchange values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Collectives {
    /// In their memory if they reach it.
    #[default]
    Auto,
    /// In the memory of the GPUs.
    Peer,
    /// In the host's memory.
    Host,
}

impl ParallelConfig {
    /// Problems with so many ranks, of GPUs alone or not, as (key, limit).
    pub fn validate(&self, ranks: usize, on_gpus: bool) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if !(1.0..=600.0).contains(&self.wait_seconds) {
            problems.push(("wait_seconds", "must be from 1 to 600".into()));
        }
        if ![0, 1, ranks].contains(&self.context) {
            problems.push(("context", format!("must be 0, 1 or device.ranks ({ranks})")));
        }
        if self.expert != 0 && !ranks.is_multiple_of(self.expert) {
            problems.push(("expert", format!("must divide device.ranks ({ranks}), or be 0")));
        }
        if self.collectives == Collectives::Host && self.splits_context(ranks, on_gpus) && on_gpus {
            let why = "every GPU reads the cached tokens of the others where they are";
            problems
                .push(("collectives", format!("must be auto or peer with parallel.context above 1: {why}")));
        }
        problems
    }

    /// How long a GPU waits for another one.
    pub fn wait(&self) -> Duration {
        Duration::from_secs_f64(self.wait_seconds)
    }

    /// Whether the cached tokens of a sequence are divided.
    pub fn splits_context(&self, ranks: usize, on_gpus: bool) -> bool {
        ranks > 1 && if self.context == 0 { !on_gpus } else { self.context > 1 }
    }

    fn exchanged(&self, on_gpus: bool) -> AttentionExchange {
        match self.attention_exchange {
            AttentionExchangeChoice::Auto if on_gpus => AttentionExchange::Heads,
            AttentionExchangeChoice::Auto | AttentionExchangeChoice::Latents => AttentionExchange::Latents,
            AttentionExchangeChoice::Heads => AttentionExchange::Heads,
        }
    }

    /// Exchange of GPUs that divide the cached tokens only where one GPU has no room for all of them; `None`: the setting or the block
    /// size rules it out.
    pub fn divides_if_small(&self, ranks: usize, block_size: usize) -> Option<AttentionExchange> {
        let may = ranks > 1 && self.context == 0 && block_size.is_multiple_of(ranks);
        may.then(|| self.exchanged(true))
    }

    /// How so many ranks share a model, of GPUs or of the CPU.
    pub fn resolve(&self, ranks: usize, on_gpus: bool) -> Parallelism {
        Parallelism {
            expert_groups: match self.expert {
                0 if on_gpus => 1,
                0 => ranks,
                groups => groups,
            },
            context: match self.splits_context(ranks, on_gpus) {
                true => ContextSplit::Split(self.exchanged(on_gpus)),
                false => ContextSplit::Whole,
            },
        }
    }
}
