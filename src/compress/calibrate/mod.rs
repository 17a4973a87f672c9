//! Statistics of a text run through a checkpoint: the saliency of every expert, the inputs of every linear.

pub(super) mod calibration;
pub mod collect;
pub mod saliency;
pub mod text_pass;
