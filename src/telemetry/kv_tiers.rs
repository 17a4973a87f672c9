//! Metrics of KV blocks beyond the device, `perigee_kv_tier_*`.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::native::register;

/// Where blocks are that left the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvTier {
    /// Host memory.
    Host,
    /// A folder.
    Disk,
}

/// Why a block was lost before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLoss {
    /// Too many waited to be written.
    Queue,
    /// The disk refused it.
    Write,
    /// Its file was not what it should be.
    File,
}

const TIERS: [&str; 2] = ["host", "disk"];
const LOSSES: [&str; 3] = ["queue", "write", "file"];

/// Registered handles, by tier or by loss.
pub(super) struct KvTierMetrics {
    blocks: [IntGauge; 2],
    bytes: [IntGauge; 2],
    stored: [IntCounter; 2],
    loaded: [IntCounter; 2],
    lost: [IntCounter; 3],
}

impl KvTierMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let gauges = |name: &str, help: &str| {
            let family = register(registry, IntGaugeVec::new(Opts::new(name, help), &["tier"]));
            TIERS.map(|tier| family.with_label_values(&[tier]))
        };
        let counters = |name: &str, help: &str| {
            let family = register(registry, IntCounterVec::new(Opts::new(name, help), &["tier"]));
            TIERS.map(|tier| family.with_label_values(&[tier]))
        };
        let lost = register(
            registry,
            IntCounterVec::new(
                Opts::new(
                    "perigee_kv_tier_lost_blocks_total",
                    "Blocks lost on their way to or from disk: queue = the disk was slower than evictions, write = it refused, file = \
                     the file was damaged.",
                ),
                &["reason"],
            ),
        );
        Self {
            blocks: gauges("perigee_kv_tier_blocks", "KV blocks beyond the device, by tier."),
            bytes: gauges("perigee_kv_tier_bytes", "Bytes of KV blocks beyond the device, by tier."),
            stored: counters("perigee_kv_tier_stored_blocks_total", "KV blocks that came to a tier."),
            loaded: counters(
                "perigee_kv_tier_loaded_blocks_total",
                "KV blocks that prompts took from a tier: host = into the cache, disk = into host memory.",
            ),
            lost: LOSSES.map(|reason| lost.with_label_values(&[reason])),
        }
    }

    pub(super) fn set(&self, tier: KvTier, blocks: usize, bytes: u64) {
        self.blocks[tier as usize].set(blocks as i64);
        self.bytes[tier as usize].set(bytes as i64);
    }

    pub(super) fn record_stored(&self, tier: KvTier) {
        self.stored[tier as usize].inc();
    }

    pub(super) fn record_loaded(&self, tier: KvTier) {
        self.loaded[tier as usize].inc();
    }

    pub(super) fn record_lost(&self, loss: KvLoss) {
        self.lost[loss as usize].inc();
    }
}
