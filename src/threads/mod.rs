//! Worker threads, and what they share.
//!
//! `pool.rs` runs one job on every worker; `shards.rs` hands each worker its part of the result. Knows nothing of what the jobs
//! compute.

mod pool;
mod shards;

pub(crate) use pool::ThreadPool;
pub(crate) use shards::{PerWorker, Shards};
