//! Speed of a model on this machine: the figures of `perigee bench`.
//!
//! Figures are ratios to a limit measured in the same run, because absolute figures move with the
//! machine's other load. Knows the engine's door and the blueprint, not HTTP.

mod serving;
mod speculation;
mod vision;

pub use serving::{BenchError, BenchPlan, BenchReport, run};
pub use speculation::{SpeculationPlan, SpeculationReport, compare};
pub use vision::{PictureTime, VisionReport, encode_times};
