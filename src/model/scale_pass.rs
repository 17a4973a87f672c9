//! One pass over the block scales of every packed linear, before the upload.

use std::collections::{BTreeMap, HashMap};

use super::checkpoint::Checkpoint;
use super::inventory::{Linear, parts};
use super::weight_names::ModuleClass;
use perigee_numbers::quant::{PackedFormat, ScaleRange, check_scales, repaired_scales, scale_range};

/// Stored bytes of packed linears above which the pass is split over threads; below it a thread
/// costs more time than it saves.
const PARALLEL_BYTES: usize = 64 << 20;

/// Upper bound on threads; the pass is bound by memory or by the disk.
const MAX_THREADS: usize = 16;

/// Result of the pass.
#[derive(Debug, Default)]
pub struct ScalePass {
    /// Linears that cannot be used: `name: reason`, sorted.
    pub faults: Vec<String>,
    /// Scales by name of their linear, with repairable ones repaired.
    pub repaired: HashMap<String, Vec<u8>>,
    /// Number of repaired scales.
    pub num_repaired: u64,
    /// Distribution of scales, by class and format; present only on request.
    pub ranges: BTreeMap<(ModuleClass, PackedFormat), ScaleRange>,
}

impl ScalePass {
    /// Checks tensor scales, `weight_shape` and every block scale. `with_ranges` also measures the
    /// distribution of scales.
    pub fn run(checkpoint: &Checkpoint, linears: &[Linear], with_ranges: bool) -> Self {
        let packed: Vec<&Linear> =
            linears.iter().filter(|linear| linear.layout.dialect.format().is_some()).collect();
        let bytes: usize = packed.iter().map(|linear| linear.layout.bytes).sum();
        let threads = match bytes > PARALLEL_BYTES {
            true => std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS),
            false => 1,
        };
        // Small pieces in turn, so that the slow disk pages of one thread do not delay the end.
        let piece = packed.len().div_ceil(threads * 8).max(1);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut pass = Self::default();
            loop {
                let at = next.fetch_add(piece, std::sync::atomic::Ordering::Relaxed);
                let Some(linears) = packed.get(at..(at + piece).min(packed.len())) else { return pass };
                if linears.is_empty() {
                    return pass;
                }
                for linear in linears {
                    pass.check(checkpoint, linear, with_ranges);
                    checkpoint.release_under(&linear.name);
                }
            }
        };
        let mut whole = Self::default();
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            whole.merge(work());
            for other in others {
                match other.join() {
                    Ok(pass) => whole.merge(pass),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        whole.faults.sort_unstable();
        whole
    }

    fn check(&mut self, checkpoint: &Checkpoint, linear: &Linear, with_ranges: bool) {
        let matrix = match linear.layout.bind(parts(checkpoint, &linear.name)) {
            Ok(matrix) => matrix,
            Err(error) => return self.faults.push(format!("{}: {error}", linear.name)),
        };
        let Some(matrix) = matrix.packed() else { return };
        let found = check_scales(matrix);
        if let Some(first) = found.first_fault {
            let scales = linear.layout.dialect.scale_part().unwrap_or("weight_scale");
            self.faults.push(format!(
                "{}.{scales}: {} NaN, infinite or negative scales on blocks that are not empty, the first at {first}; the file is damaged or \
                 its exporter was, get it again",
                linear.name, found.faults
            ));
        } else if found.repairable > 0 {
            self.num_repaired += found.repairable;
            self.repaired.insert(linear.name.clone(), repaired_scales(matrix));
        }
        if with_ranges {
            self.ranges.entry((linear.class, matrix.format)).or_default().merge(&scale_range(matrix));
        }
    }

    fn merge(&mut self, other: Self) {
        self.faults.extend(other.faults);
        self.repaired.extend(other.repaired);
        self.num_repaired += other.num_repaired;
        for (key, range) in other.ranges {
            self.ranges.entry(key).or_default().merge(&range);
        }
    }
}
