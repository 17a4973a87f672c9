//! Speed of this machine with this model: what `perigee bench` prints.
//!
//! Figures are ratios to a limit measured in the same run, because absolute ones move with the machine's other load. Knows the engine's door
//! and the blueprint, not HTTP.

mod serving;

pub use serving::{BenchError, BenchPlan, BenchReport, run};
