//! Worker threads and the data they share.
//!
//! `pool.rs` runs one job on every worker; `shards.rs` gives each worker its part of the result.
//! Does not know what the jobs compute.

mod pool;
mod shards;

pub(crate) use pool::ThreadPool;
pub(crate) use shards::{PerWorker, Shards};
