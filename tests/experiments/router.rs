//! The router beside the shared expert's gate and up, in one launch and in two.

use perigee_cuda::kernels::ahead::Ahead;
use perigee_cuda::kernels::route::{self, Choice, FusedRoute, Held, Worklist};
use perigee_cuda::kernels::tiled::{Part, Rows, Slots, Variant};
use perigee_cuda::kernels::{linear, route_swiglu, tiled_swiglu};
use perigee_cuda::{Matrix, Packer};
use perigee_ops::RouterShape;

use super::{device, micros, on_gpu};
use crate::emulated::weights::{Stored, Weight};

/// Layers, so that no weights are left in the second cache.
const LAYERS: usize = 4;

pub(super) fn run() -> Option<String> {
    let (columns, num_experts, inner) = if on_gpu() { (7168, 384, 2048) } else { (64, 16, 32) };
    let (top_k, mut rng) = (8, fastrand::Rng::with_seed(52));
    let shape = RouterShape {
        num_experts,
        top_k,
        n_group: 1,
        topk_group: 1,
        norm_topk_prob: true,
        routed_scaling_factor: 2.5,
    };
    let mut stream = device(&[])?;
    let router = Weight::random(&mut rng, Stored::Bf16, [num_experts, columns]);
    let up = Weight::random(&mut rng, Stored::Bf16, [inner, columns]);
    let layers: Vec<_> = (0..LAYERS)
        .map(|_| {
            let router = Matrix::load(&mut stream, "router", &[&router.view()]).unwrap();
            let mut packer = Packer::default();
            let shared = packer.pack(&mut stream, "shared", &[&up.view()], Some(&[&up.view()])).unwrap();
            packer.check(&mut stream).unwrap();
            (router, shared)
        })
        .collect();
    let mut found = Vec::new();
    for rows in [1, 8] {
        let mut zeros = |values: usize| stream.zeros("router", 4 * values).unwrap().address;
        let slots = rows * top_k;
        let list = Worklist {
            num_tiles: zeros(1),
            tiles: zeros(3 * slots),
            slots: zeros(slots),
            tile_rows: 8,
            max_tiles: slots,
            held: Held::all(num_experts),
        };
        let choice = Choice { chosen: zeros(slots), weights: zeros(slots), blocks_done: zeros(1) };
        let (logits, bias) = (zeros(rows * num_experts), zeros(num_experts));
        let (x, exact, y) = (zeros(rows * columns), zeros(rows * columns), zeros(rows * inner));
        let num_rows = stream.store("rows", &[rows as u32]).unwrap().address;
        let route = |layer: usize| FusedRoute {
            shape: &shape,
            padded_rows: rows,
            weight: &layers[layer].0,
            x: linear::Rows { address: exact, stride: columns },
            addresses: [logits, bias, num_rows],
            choice,
            list: &list,
        };
        let part = |layer: usize| Part {
            matrix: &layers[layer].1,
            slots: Slots::Rows(rows, 0),
            x: Rows { address: x, stride: columns },
            y: Rows { address: y, stride: inner },
        };
        let together = micros(&mut stream, LAYERS, |stream, layer| {
            let function = route_swiglu::function(&route(layer), &layers[layer].1).unwrap();
            route_swiglu::launch(stream, function, &route(layer), &part(layer)).unwrap();
        });
        let apart = micros(&mut stream, LAYERS, |stream, layer| {
            let function = route::fused_function(&layers[layer].0, &shape).unwrap();
            route::launch_fused(stream, function, &route(layer), Ahead::NONE).unwrap();
            tiled_swiglu::launch(stream, &Variant::ALL[0], &[part(layer)]).unwrap();
        });
        found.push(format!("{rows} rows: one launch {together:.1} us, two {apart:.1} us"));
    }
    Some(found.join("; "))
}
