//! Safetensors in and out: a Hugging Face folder (or a model compiled into the binary) as names, shapes and mapped bytes.
//!
//! Everything a file claims is checked once, when it is opened: after that every [`TensorView`](crate::tensor::TensorView)
//! handed out lies inside its shard and has as many bytes as its shape and dtype say. All problems of a checkpoint are
//! reported together. Has no model knowledge: which names a network needs is the business of `model/`.

mod error;
mod folder;
mod header;
mod index;
mod reader;
mod write_behind;
mod writer;

pub use error::{CheckpointError, HeaderProblem, Problem};
pub use reader::Checkpoint;
pub use writer::{
    ShardWriter, Target, TensorSpec, WriteError, copy_side_files, is_complete, write_file, write_index,
};
