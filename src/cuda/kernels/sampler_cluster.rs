//! Twin of `kernels/sampler_cluster.cu`: draws of long rows, each by the blocks of a cluster.

use super::sampler::DrawParams;
use crate::{Arch, Driver, Kernel, LaunchShape, Limits, Stream};
use perigee_ops::OpError;

const THREADS: u32 = 512;
/// Blocks of a cluster, which have some ids of a row each.
const BLOCKS: u32 = 8;
/// Shorter rows are drawn by one block: the rounds of a cluster would take longer than it does.
const MIN_IDS: u32 = 4096;
/// `sizeof(ClusterShared)` in the source, behind which each id of a block has an f32.
const FIXED_BYTES: u32 = 14_768;

/// The declaration.
pub const KERNEL: Kernel = Kernel {
    name: "sampler_cluster",
    text: include_str!("../../../kernels/sampler_cluster.cu"),
    functions: &["sampler_draw_cluster"],
    archs: &[Arch::Sm90a, Arch::Sm100a, Arch::Sm103a, Arch::Sm120a],
    options: |_| &[],
    limits: Limits { registers: 128, local_memory: false },
    shared_bytes: |arch| arch.max_shared_bytes().min(shared_bytes(super::sampler::MAX_VOCAB as u32)),
};

/// Shared memory of a block of rows of so many ids, bytes.
fn shared_bytes(ids: u32) -> u32 {
    FIXED_BYTES + ids.div_ceil(BLOCKS).next_multiple_of(4) * size_of::<f32>() as u32
}

/// Whether rows of so many ids are drawn so on this architecture.
pub fn takes(ids: usize, arch: Arch) -> bool {
    let ids = ids as u32;
    KERNEL.archs.contains(&arch) && ids >= MIN_IDS && shared_bytes(ids) <= (KERNEL.shared_bytes)(arch)
}

/// Launches `sampler_draw_cluster` for `num_rows` rows that [`takes`] allows. Its `work` is not touched.
pub fn draw<D: Driver>(stream: &mut Stream<D>, num_rows: usize, params: &DrawParams) -> Result<(), OpError> {
    let shared_bytes = shared_bytes(params.ids);
    let shape = LaunchShape { grid: [BLOCKS, num_rows as u32, 1], threads: THREADS, shared_bytes };
    stream.launch("sampler_draw_cluster", shape, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_are_cut_where_there_are_clusters_and_room() {
        for (ids, arch, expected) in [
            (163_840, Arch::Sm90a, true),
            (163_840, Arch::Sm120a, true),
            (262_144, Arch::Sm100a, true),
            // 131 KB of a block of at most 99.
            (262_144, Arch::Sm120a, false),
            (163_840, Arch::Sm89, false),
            (4096, Arch::Sm90a, true),
            (4095, Arch::Sm90a, false),
        ] {
            assert_eq!(takes(ids, arch), expected, "{ids} {arch}");
        }
    }
}
