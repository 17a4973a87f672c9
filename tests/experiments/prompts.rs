//! Keys and values of a prompt's slab, expanded by `mma.sync` and by `wgmma`.

use perigee_cuda::kernels::{tiled_mla_prefill, wgmma_mla_expand};
use perigee_ops::MlaShape;

use super::{device, micros, on_gpu};
use crate::emulated::attention::{KIMI, slab};

pub(super) fn run() -> Option<String> {
    let (num_heads, num_keys) = if on_gpu() { (64, 2048) } else { (2, 130) };
    let shape = MlaShape { num_heads, ..KIMI };
    let mut stream = device(&[])?;
    let params = slab(&mut stream, &shape, num_keys);
    let flops = 2.0 * (num_keys * num_heads * 256 * 512) as f64;
    let mma = micros(&mut stream, 8, |stream, _| {
        let launch = tiled_mla_prefill::expand_launch(&shape, num_keys);
        stream.launch("tiled_mla_expand", launch, &params).unwrap();
    });
    let wgmma = micros(&mut stream, 8, |stream, _| wgmma_mla_expand::launch(stream, &params).unwrap());
    let of = |micros: f64| format!("{micros:.0} us, {:.0} TFLOP/s", flops / micros / 1e6);
    Some(format!("{num_keys} keys, {num_heads} heads: mma.sync {}; wgmma {}", of(mma), of(wgmma)))
}
