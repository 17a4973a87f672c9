//! Safetensors in and out: a Hugging Face folder (or a model compiled into the binary) as names,
//! shapes and mapped bytes.
//!
//! Headers are checked once, when the checkpoint is opened: afterwards every
//! [`TensorView`](perigee_numbers::tensor::TensorView) lies inside its shard and has the size of its shape
//! and dtype. All problems of a checkpoint are reported together. Has no model knowledge but in
//! `foreign_names.rs`: the tensor names of a network are defined in `weight_names.rs`, above this
//! folder.

mod error;
mod folder;
mod foreign_names;
mod header;
mod hub_cache;
mod index;
mod loose_shards;
mod reader;
mod write_behind;
mod writer;

pub use error::{CheckpointError, HeaderProblem, Problem};
pub use reader::{Checkpoint, Span};
pub use writer::{
    ShardWriter, Target, TensorSpec, WriteError, copy_side_files, is_complete, write_file, write_index,
};
