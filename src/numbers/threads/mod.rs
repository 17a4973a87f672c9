//! Worker threads and the data they share.
//!
//! `pool.rs` runs one job on every worker, and lets other threads run in between (`turn.rs`); `shards.rs`
//! gives each worker its part of the result; `upload_meter.rs` tells threads that read ahead how far the
//! upload is. Does not know what the jobs compute.

mod pool;
mod shards;
mod turn;
mod upload_meter;

pub use pool::ThreadPool;
pub use shards::{PerWorker, Shards};
pub use upload_meter::UploadMeter;
