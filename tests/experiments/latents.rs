//! The latents behind the projections in front of attention: by their last block, and by a launch of their own.

use bytemuck::Zeroable;
use perigee_cuda::Packer;
use perigee_cuda::kernels::ahead::Ahead;
use perigee_cuda::kernels::tiled::{Part, Rows, Slots, Variant};
use perigee_cuda::kernels::{latent, tiled_latent, tiled_linear};
use perigee_numbers::quant::CachedRowFormat;
use perigee_ops::CacheDtype;

use super::{device, micros, on_gpu};
use crate::emulated::weights::{Stored, Weight};

/// Layers, so that no weights are left in the second cache.
const LAYERS: usize = 8;
const LATENT: usize = 512;
const ROPE: usize = 64;
const DTYPE: CacheDtype = CacheDtype::Fp8(CachedRowFormat { row_scales: true, rope_codes: false });

pub(super) fn run() -> Option<String> {
    let (columns, queries) = if on_gpu() { (7168, 1536) } else { (64, 48) };
    let mut rng = fastrand::Rng::with_seed(53);
    let mut stream = device(&[])?;
    let weights = [queries, LATENT + ROPE].map(|out| Weight::random(&mut rng, Stored::Bf16, [out, columns]));
    let layers: Vec<_> = (0..LAYERS)
        .map(|_| {
            weights.each_ref().map(|weight| {
                Packer::default().pack(&mut stream, "latents", &[&weight.view()], None).unwrap()
            })
        })
        .collect();
    let mut found = Vec::new();
    for rows in [1, 2, tiled_latent::ROWS] {
        let mut zeros = |bytes: usize| stream.zeros("latents", bytes).unwrap().address;
        let (x, blocks_done) = (zeros(2 * rows * columns), zeros(4));
        let query = Rows { address: zeros(4 * rows * queries), stride: queries };
        let kv_a = Rows { address: zeros(4 * rows * (LATENT + ROPE)), stride: LATENT + ROPE };
        let params = latent::Params {
            q_latent: query.address,
            q_rounded: zeros(2 * rows * queries),
            q_gain: zeros(4 * queries),
            kv_a: kv_a.address,
            kv_gain: zeros(4 * LATENT),
            rotations: zeros(4 * rows * ROPE),
            // All go to the first place.
            slots: zeros(4 * rows),
            cache: zeros(1024),
            q_columns: queries as i32,
            columns: LATENT as i32,
            rope: ROPE as i32,
            row_bytes: (LATENT + 2 * ROPE + 16) as i32,
            eps: 1e-6,
            ..latent::Params::zeroed()
        };
        let (variant, dtype) = (&Variant::ALL[0], DTYPE);
        let latents = tiled_latent::Latents { params, dtype, rows, blocks_done };
        let parts = |layer: usize| {
            let [first, second] = &layers[layer];
            let x = Rows { address: x, stride: columns };
            let part = |matrix, y| Part { matrix, slots: Slots::Rows(rows, 0), x, y };
            [part(first, query), part(second, kv_a)]
        };
        let behind = micros(&mut stream, LAYERS, |stream, layer| {
            let parts = parts(layer);
            let function =
                tiled_latent::function(variant, parts.each_ref().map(|part| part.matrix), rows).unwrap();
            tiled_latent::launch(stream, function, variant, &parts, &latents).unwrap();
        });
        let apart = micros(&mut stream, LAYERS, |stream, layer| {
            tiled_linear::launch(stream, variant, &parts(layer), false).unwrap();
            latent::launch(stream, rows, dtype, params, Ahead::NONE).unwrap();
        });
        found.push(format!("{rows} rows: one launch {behind:.1} us, two {apart:.1} us"));
    }
    Some(found.join("; "))
}
