//! Attention of a prompt: whether two blocks of the expansion of keys and values on a multiprocessor are faster than one.

use perigee_cuda::Program;
use perigee_cuda::kernels::tiled_mla_prefill;
use perigee_cuda::tuner::{BenchSizes, Effort, kernel_times};
use perigee_ops::MlaShape;

use super::{device, edited, on_gpu};
use crate::emulated::tuner::EFFORT;

pub(super) fn program() -> Program {
    // Half of the registers: the rest is left to the second block.
    edited(
        &tiled_mla_prefill::KERNEL,
        &[(
            "KERNEL(tiled_mla_expand, expand)",
            "extern \"C\" __global__ void __launch_bounds__(THREADS, 2) tiled_mla_expand(const __grid_constant__ Params params) {
    begin_kernel();
    expand(params);
}",
        )],
    )
}

pub(super) fn run() -> Option<String> {
    let mut sizes = BenchSizes::kimi_k2();
    sizes.products.clear();
    let (effort, context) = match on_gpu() {
        true => (Effort::GPU, 32_768),
        false => {
            sizes.mla = sizes.mla.map(|mla| MlaShape { num_heads: 2, ..mla });
            (EFFORT, 256)
        }
    };
    let mut found = Vec::new();
    for (blocks, programs) in [(1, Vec::new()), (2, vec![program()])] {
        device(&programs)?;
        let mut open = || Ok(device(&programs).expect("as before"));
        let times = kernel_times(&mut open, &sizes, &[1], context, (&effort, &[]), &mut |_| ()).unwrap();
        let prompts = times.times.iter().filter(|time| time.op.starts_with("attend a prompt"));
        let prompts: Vec<String> = prompts
            .map(|time| format!("{:.2} ms, {:.0} TFLOP/s", time.micros / 1e3, time.flops() / 1e12))
            .collect();
        found.push(format!("{blocks} blocks: {}", prompts.join(" (bf16) and ")));
    }
    Some(format!("the last 2,048 rows of {context} tokens, {} (FP8)", found.join(" (FP8); ")))
}
