//! How weights are split over ranks.
//!
//! Attention and the first products of an FFN are split by output rows, the products behind them by input columns, so that each rank
//! computes a partial sum of the residual stream (Megatron-LM, arXiv 1909.08053, section 3).

/// The axis along which a linear layer's weight `[out, in]` is split over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// By output: heads, ids of the vocabulary. `num_units` equal runs of rows stay whole.
    Rows {
        /// Number of runs: heads, or the rows themselves.
        num_units: usize,
    },
    /// By input: each rank's product is a partial sum. `num_units` equal runs of columns stay
    /// whole.
    Cols {
        /// Number of runs: heads, or the columns themselves.
        num_units: usize,
    },
}

/// How a layer's FFN matrices are split over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertSplit {
    /// Whole experts.
    Experts,
    /// Inner units of every expert: rows of gate and up, columns of down.
    Units,
}

/// How several ranks share a network beyond what every one of them cuts: heads, vocabulary, inner units of dense and
/// shared FFNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallelism {
    /// Groups of ranks that each hold whole routed experts, cut over the ranks of the group by inner units: 1 cuts every
    /// expert over all ranks, as many as ranks gives each rank whole experts. A divisor of the number of ranks.
    pub expert_groups: usize,
    /// Where the keys of a sequence lie.
    pub context: ContextSplit,
}

/// Where the keys of a sequence lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextSplit {
    /// Every rank holds all positions, and attends with its own heads: no exchange, and every rank has the whole cache.
    Whole,
    /// Each rank holds a part of the positions of every block, and attends to it with all heads.
    Split(AttentionExchange),
}

/// What ranks with parts of the positions exchange (decode in absorbed form).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionExchange {
    /// Queries and partial results in the latent space: 205 KB a row of Kimi K2.
    Latents,
    /// Queries and partial results of heads, at a third of the bytes; every rank holds W_UK and W_UV of all heads.
    Heads,
}

impl Parallelism {
    /// Whole experts and positions in parts.
    pub fn default_of(world: usize) -> Self {
        Self { expert_groups: world, context: ContextSplit::Split(AttentionExchange::Latents) }
    }
}
