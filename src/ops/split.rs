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
