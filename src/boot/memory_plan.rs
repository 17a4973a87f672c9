//! Bytes per use, computed before loading, printed as one table, and refused with the remedy if
//! they do not fit.

use std::fmt::Write as _;

use perigee_model::ModuleClass;
use perigee_ops::MemoryNeeds;

/// Bytes of a device that are set aside for recorded graphs, for weights on their way and for what allocations lose.
pub(crate) const DEVICE_RESERVE_BYTES: u64 = 1 << 30;

/// The memory that weights, workspace and cache share, and the rules for a cache whose size is automatic
/// (`kv_cache.memory_bytes` = 0).
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes that are free.
    available_bytes: u64,
    /// Bytes that the process itself needs of it.
    process_bytes: u64,
    /// Share of the memory after weights and workspace that an automatic cache takes.
    auto_share: f64,
    /// Most bytes of an automatic cache.
    auto_limit: u64,
    /// Blocks that leave the cache share it too.
    is_host: bool,
    /// Devices that have an equal part of it each; 1: a device, or the host.
    devices: usize,
}

impl Memory {
    /// Memory of a host, which other processes use too: code, queues, tokenizer and connections live in it.
    pub fn host(available_bytes: u64) -> Self {
        Self {
            available_bytes,
            process_bytes: 200 << 20,
            auto_share: 0.5,
            auto_limit: 8 << 30,
            is_host: true,
            devices: 1,
        }
    }

    /// Free memory of `count` devices together, as many times that of the one with least: on each, recorded graphs and what allocations lose to their granularity are set
    /// aside. Of the devices' whole memory a share of `utilization` may be in use, by whomever.
    pub fn devices(count: usize, free_bytes: u64, whole_bytes: u64, utilization: f64) -> Self {
        let kept_free = (whole_bytes as f64 * (1.0 - utilization)).round() as u64;
        Self {
            available_bytes: free_bytes.saturating_sub(kept_free),
            process_bytes: count as u64 * DEVICE_RESERVE_BYTES,
            auto_share: 1.0,
            auto_limit: u64::MAX,
            is_host: false,
            devices: count,
        }
    }
}

/// Inputs of the plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Stored bytes of the loaded weights, by class.
    pub weights: &'a [(ModuleClass, u64)],
    /// Additional bytes of what is stored in fewer bytes and widened when loaded.
    pub widened_bytes: u64,
    /// Bytes of a draft model's weights.
    pub draft_bytes: u64,
    /// Bytes of the vision tower's weights.
    pub vision_bytes: u64,
    /// Memory that the backend needs besides the weights, with a cache of one block.
    pub needs: MemoryNeeds,
    /// Most sequences that run at once.
    pub max_num_seqs: usize,
    /// Tokens of the longest sequence.
    pub max_model_len: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Bytes of the cache that the operator sets, 0 = automatic.
    pub cache_bytes: u64,
    /// Blocks of the cache that the operator sets, 0 = follows from the bytes.
    pub num_blocks: usize,
    /// Ranks that all hold the whole cache, and could divide it; 0: there are none.
    pub undivided_ranks: usize,
    /// Bytes of host memory for blocks that leave the cache.
    pub host_tier_bytes: u64,
    /// Bytes of host memory that are free.
    pub host_available_bytes: u64,
    /// The memory that is shared.
    pub memory: Memory,
}

/// The memory plan, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as stored, never expanded, except the widened ones.
    pub weights_bytes: u64,
    /// Bytes of the weights by class.
    pub weight_classes: Vec<(&'static str, u64)>,
    /// Activations of the largest step.
    pub workspace_bytes: u64,
    /// The KV cache.
    pub cache_bytes: u64,
    /// Host memory for blocks that leave the cache.
    pub host_tier_bytes: u64,
    /// Whether they share the memory with all else.
    host_tier_shares: bool,
    /// The process itself: code, queues, tokenizer, connections.
    pub process_bytes: u64,
    /// Bytes available to the process when the plan was made.
    pub available_bytes: u64,
    /// Blocks of the cache.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Devices that have an equal part of all of it each.
    pub devices: usize,
}

/// Reasons why the model does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Weights and workspace alone exceed the memory.
    #[error(
        "weights ({weights}) and workspace ({workspace}) need more than the {available} available: free memory, use a smaller \
         checkpoint, or lower scheduler.max_num_batched_tokens"
    )]
    NoRoom {
        /// Formatted size.
        weights: String,
        /// Formatted size.
        workspace: String,
        /// Formatted size.
        available: String,
    },
    /// The requested cache does not fit beside weights and workspace.
    #[error(
        "the KV cache ({cache}) does not fit in the {left} left after weights and workspace: lower kv_cache.memory_bytes or \
         kv_cache.num_blocks, or set both to 0 to let the plan choose"
    )]
    CacheTooLarge {
        /// Formatted size.
        cache: String,
        /// Formatted size.
        left: String,
    },
    /// The host memory for blocks that leave the cache is not there.
    #[error(
        "kv_cache.host_bytes ({tier}) is more than the {available} of host memory available{beside}: lower it, or set 0"
    )]
    TierTooLarge {
        /// Formatted size.
        tier: String,
        /// Formatted size.
        available: String,
        /// What else needs it.
        beside: &'static str,
    },
    /// The cache is too small for one sequence of full length.
    #[error(
        "a KV cache of {cache} holds {tokens} tokens, less than one sequence of scheduler.max_model_len = {max_model_len}: raise \
         kv_cache.memory_bytes to {needed} or lower scheduler.max_model_len{or}"
    )]
    CacheTooSmall {
        /// Formatted size.
        cache: String,
        /// Tokens it holds.
        tokens: usize,
        /// Tokens asked for.
        max_model_len: usize,
        /// Formatted size that would be enough.
        needed: String,
        /// Another remedy, or nothing.
        or: String,
    },
}

impl MemoryPlan {
    /// Computes the plan. Errors name the remedy.
    pub fn new(input: &PlanInput<'_>) -> Result<Self, PlanError> {
        let mut weight_classes: Vec<_> =
            input.weights.iter().map(|(class, bytes)| (class.name(), *bytes)).collect();
        if input.widened_bytes > 0 {
            weight_classes.push(("kv_b, routers and F16, widened", input.widened_bytes));
        }
        if input.draft_bytes > 0 {
            weight_classes.push(("draft model", input.draft_bytes));
        }
        if input.vision_bytes > 0 {
            weight_classes.push(("vision tower", input.vision_bytes));
        }
        let MemoryNeeds { copies_bytes, workspace_bytes, cache_bytes: block_bytes } = input.needs;
        if copies_bytes > 0 {
            weight_classes.push(("copies, whole on every rank", copies_bytes));
        }
        let weights_bytes = weight_classes.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let memory = &input.memory;
        let blocks_per_sequence = input.max_model_len.div_ceil(input.block_size);
        let mut fixed = weights_bytes + workspace_bytes + memory.process_bytes;
        let tier_bytes = input.host_tier_bytes;
        let too_large = |available: u64, beside| PlanError::TierTooLarge {
            tier: format_bytes(tier_bytes),
            available: format_bytes(available),
            beside,
        };
        if !memory.is_host && tier_bytes > input.host_available_bytes {
            return Err(too_large(input.host_available_bytes, ""));
        }
        if memory.is_host && tier_bytes > 0 {
            let available = memory.available_bytes.saturating_sub(fixed);
            if tier_bytes.saturating_add(block_bytes) > available {
                return Err(too_large(available, " beside weights and workspace"));
            }
            fixed += tier_bytes;
        }
        let Some(left) = memory.available_bytes.checked_sub(fixed).filter(|left| *left >= block_bytes) else {
            return Err(PlanError::NoRoom {
                weights: format_bytes(weights_bytes),
                workspace: format_bytes(workspace_bytes),
                available: format_bytes(memory.available_bytes),
            });
        };
        let useful = (blocks_per_sequence * input.max_num_seqs) as u64;
        let num_blocks = match (input.num_blocks, input.cache_bytes) {
            (0, 0) => {
                let bytes = ((left as f64 * memory.auto_share) as u64).min(memory.auto_limit);
                (bytes / block_bytes).min(useful).max(1)
            }
            (0, bytes) => bytes / block_bytes,
            (blocks, _) => blocks as u64,
        };
        let cache_bytes = num_blocks * block_bytes;
        if cache_bytes > left {
            return Err(PlanError::CacheTooLarge {
                cache: format_bytes(cache_bytes),
                left: format_bytes(left),
            });
        }
        if num_blocks < blocks_per_sequence as u64 {
            return Err(PlanError::CacheTooSmall {
                cache: format_bytes(cache_bytes),
                tokens: num_blocks as usize * input.block_size,
                max_model_len: input.max_model_len,
                needed: format_bytes(blocks_per_sequence as u64 * block_bytes),
                or: match input.undivided_ranks {
                    0 => String::new(),
                    ranks => {
                        format!(", or set parallel.context = {ranks}, which divides the cache among them")
                    }
                },
            });
        }
        Ok(Self {
            weights_bytes,
            weight_classes,
            workspace_bytes,
            cache_bytes,
            host_tier_bytes: tier_bytes,
            host_tier_shares: memory.is_host,
            process_bytes: memory.process_bytes,
            available_bytes: memory.available_bytes,
            num_blocks: num_blocks as usize,
            block_size: input.block_size,
            devices: memory.devices,
        })
    }

    /// The plan as one table; of several devices, of each of them.
    pub fn table(&self) -> String {
        let tokens = self.num_blocks * self.block_size;
        let cache = format!("KV cache ({} blocks, {tokens} tokens)", self.num_blocks);
        let mut total = self.weights_bytes + self.workspace_bytes + self.cache_bytes + self.process_bytes;
        let mut rows = vec![("weights".to_string(), self.weights_bytes)];
        rows.extend(self.weight_classes.iter().map(|(name, bytes)| (format!("  {name}"), *bytes)));
        rows.extend([("workspace".into(), self.workspace_bytes), (cache, self.cache_bytes)]);
        if self.host_tier_bytes > 0 {
            let place = if self.host_tier_shares { "" } else { ", in host memory" };
            // Of all devices together.
            let bytes = self.devices as u64 * self.host_tier_bytes;
            rows.push((format!("blocks beyond the cache{place}"), bytes));
            total += if self.host_tier_shares { self.host_tier_bytes } else { 0 };
        }
        rows.extend([
            ("process".into(), self.process_bytes),
            ("total".into(), total),
            ("available".into(), self.available_bytes),
        ]);
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut table = String::new();
        if self.devices > 1 {
            let _ = writeln!(table, "  on each of {} GPUs:", self.devices);
        }
        for (name, bytes) in rows {
            let _ = writeln!(table, "  {name:width$}  {:>10}", format_bytes(bytes / self.devices as u64));
        }
        table
    }
}

/// Bytes in the style of `1.5 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 tokens of 160 values in 3 layers, as bf16.
    const BLOCK_BYTES: u64 = 32 * 160 * 2 * 3;

    fn plan(edit: impl Fn(&mut PlanInput<'_>)) -> Result<MemoryPlan, PlanError> {
        let mut input = PlanInput {
            weights: &[(ModuleClass::RoutedExperts, 4 << 20), (ModuleClass::Attention, 2 << 20)],
            widened_bytes: 0,
            draft_bytes: 0,
            vision_bytes: 0,
            needs: MemoryNeeds { copies_bytes: 0, workspace_bytes: 50 << 20, cache_bytes: BLOCK_BYTES },
            max_num_seqs: 256,
            max_model_len: 8192,
            block_size: 32,
            cache_bytes: 0,
            num_blocks: 0,
            undivided_ranks: 0,
            host_tier_bytes: 0,
            host_available_bytes: 4 << 30,
            memory: Memory::host(4 << 30),
        };
        edit(&mut input);
        MemoryPlan::new(&input)
    }

    #[test]
    fn chooses_no_more_than_is_useful() {
        let chosen = plan(|p| p.max_num_seqs = 2).unwrap();
        assert_eq!(chosen.num_blocks, 2 * 8192 / 32);
        assert_eq!(chosen.cache_bytes, 2 * 8192 / 32 * BLOCK_BYTES);
    }

    #[test]
    fn a_cache_that_is_too_small_can_be_divided_among_ranks() {
        let small = |undivided_ranks| {
            let error =
                plan(|p| (p.num_blocks, p.undivided_ranks) = (8, undivided_ranks)).unwrap_err().to_string();
            error.contains("parallel.context = 4, which divides the cache")
        };
        assert!(small(4) && !small(0));
    }

    #[test]
    fn weights_are_listed_by_class() {
        let chosen = plan(|_| ()).unwrap();
        assert_eq!(chosen.weights_bytes, 6 << 20);
        assert!(!chosen.table().contains("widened"));
        let widened = plan(|p| p.widened_bytes = 1 << 20).unwrap();
        assert_eq!(widened.weights_bytes, 7 << 20);
        let table = widened.table();
        for row in ["  routed experts", "  attention", "  kv_b, routers and F16, widened"] {
            assert!(table.contains(row), "{table}");
        }
    }

    #[test]
    fn blocks_beyond_the_cache_take_their_memory_first() {
        let (alone, beside) = (plan(|_| ()).unwrap(), plan(|p| p.host_tier_bytes = 3 << 30).unwrap());
        assert!(beside.cache_bytes < alone.cache_bytes);
        assert!(beside.table().contains("blocks beyond the cache") && !alone.table().contains("beyond"));
    }

    #[test]
    fn refusals_name_the_remedy() {
        let message = |edit: &dyn Fn(&mut PlanInput<'_>)| plan(edit).unwrap_err().to_string();
        assert!(message(&|p| p.memory = Memory::host(10 << 20)).contains("max_num_batched_tokens"));
        assert!(message(&|p| p.cache_bytes = 64 << 30).contains("kv_cache.memory_bytes"));
        for bytes in [4 << 30, u64::MAX] {
            assert!(message(&|p| p.host_tier_bytes = bytes).contains("kv_cache.host_bytes"));
        }
        let on_device = |p: &mut PlanInput<'_>| {
            (p.memory, p.host_tier_bytes) = (Memory::devices(1, 4 << 30, 4 << 30, 1.0), 5 << 30)
        };
        assert!(message(&on_device).contains("4.0 GiB of host memory available"));
        assert!(message(&|p| p.num_blocks = 10).contains("scheduler.max_model_len"));
    }

    #[test]
    fn a_share_of_a_device_stays_free() {
        let available = |free: u64, utilization| {
            Memory::devices(1, free << 30, 100 << 30, utilization).available_bytes >> 30
        };
        assert_eq!([available(96, 1.0), available(96, 0.85), available(50, 0.85)], [96, 81, 35]);
        // Others have taken all of the share.
        assert_eq!(available(10, 0.85), 0);
        // On each of four a gibibyte is set aside.
        let set_aside = |devices| Memory::devices(devices, 96 << 30, 400 << 30, 1.0).process_bytes >> 30;
        assert_eq!([set_aside(1), set_aside(4)], [1, 4]);
        let plan = plan(|p| p.memory = Memory::devices(1, 4 << 30, 4 << 30, 0.1));
        assert!(matches!(plan, Err(PlanError::NoRoom { .. })), "{plan:?}");
    }
}
