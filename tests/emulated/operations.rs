//! Each kernel against the reference backend: random and hostile shapes, every stored format, several architectures, and
//! the same bits in every order of warps and blocks.

use perigee_cuda::kernels::ahead::Ahead;
use perigee_cuda::kernels::experts::{self, Experts, Slots, TILE_ROWS};
use perigee_cuda::kernels::linear::{self, Output, Rows};
use perigee_cuda::kernels::route::{self, Choice, FusedRoute, Held, NO_EXPERT, Worklist};
use perigee_cuda::kernels::{combine, embed, latent, rms_norm};
use perigee_cuda::{Arch, Matrix, Stream};
use perigee_numbers::quant::CachedRowFormat;
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::host::HostOps;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::tolerance::{ELEMENTWISE, PROJECT, ROUTE, SWIGLU, Tolerance, difference};
use perigee_ops::{
    CacheDtype, CacheShape, ExpertMatrices, KvSlot, MlaShape, RopeTable, RouterShape, SeqSlot, TokenId,
    TokenSource,
};

use super::weights::{ALL, Stored, Weight};
use super::{TestDriver, on_gpu};

pub(super) type Device = Stream<TestDriver>;

/// A device for each architecture and order, or the GPU; none without NVRTC.
pub(super) fn devices() -> impl Iterator<Item = (String, Device)> {
    let runs = [(Arch::Sm80, None), (Arch::Sm90a, None), (Arch::Sm90a, Some(3)), (Arch::Sm120a, Some(5))];
    let count = if on_gpu() { 1 } else { runs.len() };
    runs.into_iter().take(count).filter_map(|(arch, seed)| {
        let mut driver = TestDriver::new(arch, seed)?;
        driver.set_options(|options| options.races = seed == Some(3));
        let mut stream = Stream::new(driver).unwrap();
        let panels = stream.allocate("panels", 4 << 20).unwrap();
        stream.set_panels(panels);
        Some((format!("{arch} {seed:?}"), stream))
    })
}

/// Checks that all outputs of one shape are within the tolerance, and that they are the same bits on all devices; of tensor cores on those
/// that round alike: Ampere's add eight products at once where later ones add sixteen.
pub(super) struct Outputs<'a> {
    name: String,
    expected: &'a [f32],
    allowed: f32,
    tensor_cores: bool,
    /// By whether the device's tensor cores are those of Ampere.
    first: [Option<Vec<u32>>; 2],
}

impl<'a> Outputs<'a> {
    pub(super) fn new(name: String, expected: &'a [f32], tolerance: Tolerance) -> Self {
        let allowed = tolerance.f32_activations;
        Self { name, expected, allowed, tensor_cores: false, first: [None, None] }
    }

    pub(super) fn of_tensor_cores(name: String, expected: &'a [f32], allowed: f32) -> Self {
        Self { name, expected, allowed, tensor_cores: true, first: [None, None] }
    }

    pub(super) fn check(&mut self, device: &str, got: &[f32]) {
        let off = difference(got, self.expected);
        assert!(off <= self.allowed, "{} on {device}: {off} > {}", self.name, self.allowed);
        let bits: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
        let cores = self.tensor_cores && device.starts_with("sm_80");
        let first = self.first[usize::from(cores)].get_or_insert_with(|| bits.clone());
        assert!(*first == bits, "{} on {device}: other bits", self.name);
    }
}

pub(super) fn floats(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

pub(super) fn bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect()
}

/// A buffer of the reference with these rows.
pub(super) fn buffer(
    ops: &mut ReferenceBackend,
    rows: &[f32],
    cols: usize,
) -> <ReferenceBackend as HostOps>::Buffer {
    let mut buffer = ops.allocate(rows.len() / cols, cols).unwrap();
    ops.write(rows, &mut buffer).unwrap();
    buffer
}

pub(super) fn view<'a>(values: &'a [f32], shape: &'a [usize]) -> TensorView<'a> {
    TensorView { dtype: Dtype::F32, shape, bytes: bytemuck::cast_slice(values) }
}

#[test]
fn norms() {
    let mut rng = fastrand::Rng::with_seed(1);
    for (rows, columns, eps, size) in [
        (1, 8, 1e-6, 1.0),
        (3, 40, 1e-6, 1.0),
        (5, 256, 1e-5, 1e-3),
        (2, 2056, 1e-6, 30.0),
        (2, 8192, 1e-6, 1.0),
    ] {
        let hidden: Vec<f32> = floats(&mut rng, rows * columns).iter().map(|x| x * size).collect();
        let gain = floats(&mut rng, columns);
        let mut ops = ReferenceBackend;
        let x = buffer(&mut ops, &hidden, columns);
        let mut out = ops.allocate(rows, columns).unwrap();
        HostOps::norm(&mut ops, &x, &gain, eps, &mut out).unwrap();
        let mut outputs =
            Outputs::new(format!("[{rows}, {columns}]"), ReferenceBackend::values(&out), ELEMENTWISE);
        for (name, mut device) in devices() {
            let params = rms_norm::Params {
                hidden: device.store("x", &hidden).unwrap().address,
                gain: device.store("gain", &gain).unwrap().address,
                normed: device.allocate("y", 4 * rows * columns).unwrap().address,
                rounded: device.allocate("y", 2 * rows * columns).unwrap().address,
                columns: columns as i32,
                eps,
            };
            rms_norm::launch(&mut device, rows, &params).unwrap();
            let normed: Vec<f32> = device.read(params.normed, rows * columns).unwrap();
            outputs.check(&name, &normed);
            let rounded: Vec<u16> = device.read(params.rounded, rows * columns).unwrap();
            assert!(rounded == bf16(&normed));
        }
    }
}

#[test]
fn embeddings() {
    let mut rng = fastrand::Rng::with_seed(2);
    for (stored, vocab, columns) in [(Stored::Bf16, 50, 24), (Stored::F32, 7, 8), (Stored::F16, 20, 2056)] {
        let table = Weight::random(&mut rng, stored, [vocab, columns]);
        let mut last: Vec<u32> = (0..4).map(|_| rng.u32(..vocab as u32)).collect();
        // Beyond the table, as a mask without an id of the vocabulary leaves it: the last row, and no byte behind it.
        last[3] = vocab as u32 + 10;
        let tokens = [
            TokenSource::Known(TokenId(0)),
            TokenSource::LastSampled(SeqSlot(2)),
            TokenSource::Known(TokenId(vocab as u32 - 1)),
            TokenSource::LastSampled(SeqSlot(0)),
            TokenSource::LastSampled(SeqSlot(3)),
            TokenSource::Known(TokenId(i32::MAX as u32)),
        ];
        let values = table.view().to_f32();
        let row = |id: u32| &values[id as usize * columns..(id as usize + 1) * columns];
        let expected: Vec<f32> = [0, last[2], vocab as u32 - 1, last[0], vocab as u32 - 1, vocab as u32 - 1]
            .iter()
            .flat_map(|id| row(*id))
            .copied()
            .collect();
        let words: Vec<u32> = tokens.iter().map(|token| embed::word(*token)).collect();
        let mut outputs = Outputs::new(format!("{stored:?}"), &expected, perigee_ops::tolerance::EXACT);
        for (name, mut device) in devices() {
            let matrix = Matrix::load(&mut device, "embed", &[&table.view()]).unwrap();
            let words = device.store("tokens", &words).unwrap().address;
            let last = device.store("last", &last).unwrap().address;
            let hidden = device.allocate("y", 4 * expected.len()).unwrap().address;
            embed::launch(
                &mut device,
                tokens.len(),
                &matrix,
                embed::Ids::all_of(&matrix),
                [words, last, hidden],
            )
            .unwrap();
            outputs.check(&name, &device.read(hidden, expected.len()).unwrap());
        }
    }
}

#[test]
fn projections_in_every_format() {
    let mut rng = fastrand::Rng::with_seed(3);
    for stored in ALL {
        for (rows, out, columns) in [(1, 1, 32), (8, 16, 64), (9, 33, 544), (3, 130, 288), (37, 50, 288)] {
            let weight = Weight::random(&mut rng, stored, [out, columns]);
            let x = floats(&mut rng, rows * columns);
            let before = floats(&mut rng, rows * out);
            let mut ops = ReferenceBackend;
            let matrix = HostOps::load_matrix(&mut ops, &weight.view()).unwrap();
            let input = buffer(&mut ops, &x, columns);
            let (mut set, mut added) = (ops.allocate(rows, out).unwrap(), buffer(&mut ops, &before, out));
            ops.project(&input, &matrix, &mut set).unwrap();
            ops.project_add(&input, &matrix, &mut added).unwrap();
            let label = format!("{stored:?} [{rows}, {out}, {columns}]");
            let mut set = Outputs::new(label.clone(), ReferenceBackend::values(&set), PROJECT);
            let mut added = Outputs::new(label, ReferenceBackend::values(&added), PROJECT);
            for (name, mut device) in devices() {
                let matrix = Matrix::load(&mut device, "project", &[&weight.view()]).unwrap();
                let x = Rows { address: device.store("x", &x).unwrap().address, stride: columns };
                for (output, outputs) in [(Output::Set, &mut set), (Output::Add, &mut added)] {
                    let y = match output {
                        Output::Set => device.allocate("y", 4 * rows * out).unwrap(),
                        Output::Add => device.store("y", &before).unwrap(),
                    };
                    let y = Rows { address: y.address, stride: out };
                    linear::launch(&mut device, rows, &matrix, x, 0, y, output).unwrap();
                    let got: Vec<f32> = device.read(y.address, rows * out).unwrap();
                    outputs.check(&name, &got);
                    // The last row alone, selected by a list.
                    let list = device.store("rows", &[rows as u32 - 1]).unwrap().address;
                    let alone = match output {
                        Output::Set => device.allocate("y", 4 * out).unwrap(),
                        Output::Add => device.store("y", &before[(rows - 1) * out..]).unwrap(),
                    };
                    let alone = Rows { address: alone.address, stride: out };
                    linear::launch(&mut device, 1, &matrix, x, list, alone, output).unwrap();
                    let alone: Vec<f32> = device.read(alone.address, out).unwrap();
                    assert!(alone == got[(rows - 1) * out..], "{name}: a row alone has other bits");
                }
            }
        }
    }
}

#[test]
fn experts_in_every_format() {
    let mut rng = fastrand::Rng::with_seed(4);
    for stored in ALL {
        let (hidden, inner, num_experts, top_k, rows) = (64, 32, 12, 3, 21);
        check_experts(&mut rng, stored, hidden, inner, num_experts, top_k, rows);
    }
    check_experts(&mut rng, Stored::Bf16, 40, 8, 1, 1, 1);
    check_experts(&mut rng, Stored::Bf16, 16, 24, 40, 2, 3);
}

/// Views of experts.
pub(super) fn matrices(list: &[[Weight; 3]]) -> Vec<ExpertMatrices<'_>> {
    let views = list.iter().map(|[gate, up, down]| (gate.view(), up.view(), down.view()));
    let view = |(gate_proj, up_proj, down_proj)| ExpertMatrices {
        gate_proj,
        up_proj,
        down_proj,
        input: None,
        inner: None,
    };
    views.map(view).collect()
}

fn check_experts(
    rng: &mut fastrand::Rng,
    stored: Stored,
    hidden: usize,
    inner: usize,
    num_experts: usize,
    top_k: usize,
    rows: usize,
) {
    let mut expert = || {
        [[inner, hidden], [inner, hidden], [hidden, inner]].map(|shape| Weight::random(rng, stored, shape))
    };
    let routed: Vec<_> = (0..num_experts).map(|_| expert()).collect();
    let shared = [expert()];
    let x = floats(rng, rows * hidden);
    // Some experts are not chosen at all, and one by every row.
    let logits: Vec<f32> = (0..rows * num_experts)
        .map(|i| {
            if i % num_experts == 0 {
                3.0
            } else if i % num_experts == 1 {
                -9.0
            } else {
                rng.f32() * 4.0
            }
        })
        .collect();
    let bias = vec![0.0; num_experts];
    let shape = RouterShape {
        num_experts,
        top_k,
        n_group: 1,
        topk_group: 1,
        norm_topk_prob: true,
        routed_scaling_factor: 2.5,
    };
    let mut ops = ReferenceBackend;
    let reference_routed = HostOps::load_experts(&mut ops, &matrices(&routed), 0).unwrap();
    let reference_shared = HostOps::load_experts(&mut ops, &matrices(&shared), 0).unwrap();
    // The identity as the router's weight: its logits are the rows given.
    let identity: Vec<f32> =
        (0..num_experts * num_experts).map(|i| f32::from(u8::from(i % (num_experts + 1) == 0))).collect();
    let router = ops
        .load_router(
            &view(&identity, &[num_experts, num_experts]).into(),
            &view(&bias, &[num_experts]),
            &shape,
        )
        .unwrap();
    let logits_buffer = buffer(&mut ops, &logits, num_experts);
    let mut routing = ops.allocate_routing(rows, &shape).unwrap();
    HostOps::route(&mut ops, &logits_buffer, &router, &shape, &mut routing).unwrap();
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    ops.read_routing(&routing, &mut chosen, &mut weights).unwrap();
    let input = buffer(&mut ops, &x, hidden);
    let before = floats(rng, rows * hidden);
    let mut out = buffer(&mut ops, &before, hidden);
    HostOps::experts(&mut ops, &input, &[], &routing, &reference_routed, Some(&reference_shared), &mut out)
        .unwrap();
    let gain = floats(rng, hidden);
    let mut normed = ops.allocate(rows, hidden).unwrap();
    HostOps::norm(&mut ops, &out, &gain, 1e-6, &mut normed).unwrap();
    let label = format!("{stored:?} D {hidden} I {inner} E {num_experts} K {top_k} T {rows}");
    let mut sums = Outputs::new(label.clone(), ReferenceBackend::values(&out), SWIGLU);
    let mut norms = Outputs::new(label.clone(), ReferenceBackend::values(&normed), SWIGLU);
    let mut choices = Outputs::new(label, &weights, ROUTE);
    for (name, mut device) in devices() {
        let mut load = |list: &[[Weight; 3]]| {
            let mut one = |i: usize| {
                let views: Vec<_> = list.iter().map(|e| e[i].view()).collect();
                Matrix::load(&mut device, "experts", &views.iter().collect::<Vec<_>>()).unwrap()
            };
            Experts { gate: one(0), up: one(1), down: one(2) }
        };
        let (routed, shared) = (load(&routed), load(&shared));
        // Two padded rows at the end choose nothing.
        let padded = rows + 2;
        let slots = padded * top_k;
        let mut logits = logits.clone();
        logits.resize(padded * num_experts, f32::NAN);
        let logits = device.store("logits", &logits).unwrap().address;
        let bias = device.store("bias", &bias).unwrap().address;
        let num_rows = device.store("rows", &[rows as u32]).unwrap().address;
        let choice = Choice {
            chosen: device.allocate("chosen", 4 * slots).unwrap().address,
            weights: device.allocate("weights", 4 * slots).unwrap().address,
            blocks_done: device.zeros("counter", 4).unwrap().address,
        };
        let max_tiles = route::max_tiles(slots, num_experts, TILE_ROWS);
        let list = Worklist {
            num_tiles: device.allocate("tiles", 4).unwrap().address,
            tiles: device.allocate("tiles", 12 * max_tiles).unwrap().address,
            slots: device.allocate("tiles", 4 * slots).unwrap().address,
            tile_rows: TILE_ROWS,
            max_tiles,
            held: Held::all(num_experts),
        };
        let inputs = [logits, bias, num_rows];
        route::launch_route(&mut device, &shape, padded, inputs, choice, Some(&list)).unwrap();
        assert_eq!(device.read::<u32>(choice.blocks_done, 1).unwrap(), [0]);
        let got: Vec<u32> = device.read(choice.chosen, slots).unwrap();
        assert_eq!(got[..rows * top_k], chosen, "{name}");
        assert!(got[rows * top_k..].iter().all(|expert| *expert == NO_EXPERT));
        choices.check(&name, &device.read(choice.weights, rows * top_k).unwrap());
        let input = device.store("x", &x).unwrap().address;
        let mut activations = |count: usize| device.allocate("activations", 4 * count).unwrap().address;
        let (up, down) = (activations(slots * inner), activations(slots * hidden));
        let (shared_up, shared_down) = (activations(rows * inner), activations(rows * hidden));
        let normed = activations(rows * hidden);
        let residual = device.store("hidden", &before).unwrap().address;
        experts::launch_up(&mut device, &routed, Slots::Routed(&list), top_k, input, up).unwrap();
        experts::launch_down(&mut device, &routed, Slots::Routed(&list), up, down).unwrap();
        experts::launch_up(&mut device, &shared, Slots::Rows(rows), 1, input, shared_up).unwrap();
        experts::launch_down(&mut device, &shared, Slots::Rows(rows), shared_up, shared_down).unwrap();
        let params = combine::Params {
            hidden: residual,
            routed: down,
            chosen: choice.chosen,
            weights: choice.weights,
            shared: shared_down,
            gain: device.store("gain", &gain).unwrap().address,
            normed,
            rounded: 0,
            columns: hidden as i32,
            top_k: top_k as i32,
            eps: 1e-6,
            adds: 1,
            held: Held::all(num_experts),
        };
        combine::launch(&mut device, rows, &params, [Ahead::NONE; 2]).unwrap();
        sums.check(&name, &device.read(residual, rows * hidden).unwrap());
        norms.check(&name, &device.read(normed, rows * hidden).unwrap());
    }
}

#[test]
fn routes_with_groups_ties_and_numbers_that_are_none() {
    let mut rng = fastrand::Rng::with_seed(5);
    for (num_experts, top_k, n_group, topk_group, normalise) in [
        (16, 4, 4, 2, true),
        (384, 8, 1, 1, true),
        (64, 6, 8, 3, false),
        (33, 5, 1, 1, true),
        (8, 8, 8, 8, true),
        (6, 2, 6, 3, true),
    ] {
        let rows = 7;
        // A grid of values: equal choices are frequent, and no two choices are nearly equal.
        let mut logits: Vec<f32> = (0..rows * num_experts).map(|_| rng.i32(-8..8) as f32 * 0.5).collect();
        logits[num_experts] = f32::NAN;
        logits[2 * num_experts + 1] = f32::NEG_INFINITY;
        logits[3 * num_experts..4 * num_experts].fill(0.25);
        let bias: Vec<f32> = (0..num_experts).map(|_| rng.i32(0..3) as f32 * 0.125).collect();
        let shape = RouterShape {
            num_experts,
            top_k,
            n_group,
            topk_group,
            norm_topk_prob: normalise,
            routed_scaling_factor: 1.5,
        };
        for (name, mut device) in devices() {
            let addresses = [
                device.store("logits", &logits).unwrap().address,
                device.store("bias", &bias).unwrap().address,
                device.store("rows", &[rows as u32]).unwrap().address,
            ];
            let choice = Choice {
                chosen: device.allocate("chosen", 4 * rows * top_k).unwrap().address,
                weights: device.allocate("weights", 4 * rows * top_k).unwrap().address,
                blocks_done: 0,
            };
            route::launch_route(&mut device, &shape, rows, addresses, choice, None).unwrap();
            let chosen: Vec<u32> = device.read(choice.chosen, rows * top_k).unwrap();
            let weights: Vec<f32> = device.read(choice.weights, rows * top_k).unwrap();
            for row in 0..rows {
                let logits = &logits[row * num_experts..(row + 1) * num_experts];
                let (expected, mut allowed) = expected_choice(logits, &bias, &shape);
                let got = &chosen[row * top_k..(row + 1) * top_k];
                assert_eq!(got, expected, "{name} E {num_experts} row {row}");
                allowed.iter_mut().zip(&weights[row * top_k..]).for_each(|(a, w)| *a = (*a - w).abs());
                let off = allowed.iter().copied().filter(|a| !a.is_nan()).fold(0.0, f32::max);
                assert!(off < 1e-5, "{name} row {row}: {off}");
            }
        }
    }
}

/// Up to eight rows: logits, choices and worklist are one launch.
#[test]
fn routes_a_few_rows_in_one_launch() {
    let (mut rng, columns, tile_rows) = (fastrand::Rng::with_seed(15), 1600, 2);
    for (stored, num_experts, top_k, n_group, topk_group) in [
        (Stored::Bf16, 384, 8, 1, 1),
        (Stored::Bf16, 16, 4, 4, 2),
        (Stored::F32, 1000, 32, 1, 1),
        (Stored::F32, 6, 6, 1, 1),
    ] {
        let shape = RouterShape {
            num_experts,
            top_k,
            n_group,
            topk_group,
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
        };
        let weight = Weight::random(&mut rng, stored, [num_experts, columns]);
        let x = floats(&mut rng, 8 * columns);
        let bias: Vec<f32> = (0..num_experts).map(|_| rng.f32() * 0.1).collect();
        let mut first: Option<Vec<u32>> = None;
        for (name, mut device) in devices() {
            let matrix = Matrix::load(&mut device, "router", &[&weight.view()]).unwrap();
            let input = Rows { address: device.store("x", &x).unwrap().address, stride: columns };
            let bias_address = device.store("bias", &bias).unwrap().address;
            let mut row_bits: Option<Vec<u32>> = None;
            for (rows, padded) in [(1, 1), (2, 2), (7, 8), (8, 8)] {
                let slots = padded * top_k;
                let mut allocate = |values: usize| device.allocate("route", 4 * values).unwrap().address;
                let logits = allocate(padded * num_experts);
                let list = Worklist {
                    num_tiles: allocate(1),
                    tiles: allocate(3 * slots),
                    slots: allocate(slots),
                    tile_rows,
                    max_tiles: slots,
                    held: Held::all(num_experts),
                };
                let (chosen, weights) = (allocate(slots), allocate(slots));
                let blocks_done = device.zeros("counter", 4).unwrap().address;
                let num_rows = device.store("rows", &[rows as u32]).unwrap().address;
                let function = route::fused_function(&matrix, &shape).unwrap();
                let choice = Choice { chosen, weights, blocks_done };
                let addresses = [logits, bias_address, num_rows];
                let (shape, weight, list) = (&shape, &matrix, &list);
                let fused =
                    FusedRoute { shape, padded_rows: padded, weight, x: input, addresses, choice, list };
                route::launch_fused(&mut device, function, &fused, Ahead::NONE).unwrap();
                assert_eq!(device.read::<u32>(blocks_done, 1).unwrap(), [0]);
                let logits: Vec<f32> = device.read(logits, padded * num_experts).unwrap();
                let bits: Vec<u32> = logits[..num_experts].iter().map(|logit| logit.to_bits()).collect();
                assert_eq!(*row_bits.get_or_insert_with(|| bits.clone()), bits, "{name}: in other company");
                let got: Vec<u32> = device.read(chosen, slots).unwrap();
                for row in 0..rows {
                    let logits = &logits[row * num_experts..(row + 1) * num_experts];
                    let (expected, _) = expected_choice(logits, &bias, shape);
                    assert_eq!(
                        got[row * top_k..(row + 1) * top_k],
                        expected,
                        "{name} E {num_experts} row {row}"
                    );
                }
                assert!(got[rows * top_k..].iter().all(|expert| *expert == NO_EXPERT));
                let weights: Vec<f32> = device.read(weights, rows * top_k).unwrap();
                let sum: f32 = weights[..top_k].iter().sum();
                assert!((sum - 2.5).abs() < 1e-4, "{sum}");
                let num_tiles = device.read::<u32>(list.num_tiles, 1).unwrap()[0] as usize;
                let tiles: Vec<u32> = device.read(list.tiles, 3 * num_tiles).unwrap();
                let order: Vec<u32> = device.read(list.slots, rows * top_k).unwrap();
                let mut expected: Vec<u32> = (0..(rows * top_k) as u32).collect();
                expected.sort_by_key(|slot| (got[*slot as usize], *slot));
                assert_eq!(order, expected, "{name}: slots by expert");
                let mut at = 0;
                for tile in tiles.chunks_exact(3) {
                    let [expert, begin, count] = [tile[0], tile[1], tile[2]];
                    let same = order[at..].iter().take_while(|slot| got[**slot as usize] == expert).count();
                    assert_eq!([begin as usize, count as usize], [at, same.min(tile_rows)], "{name}");
                    at += count as usize;
                }
                assert_eq!(at, rows * top_k, "{name}: every slot is in a tile");
                if rows == 8 {
                    assert_eq!(*first.get_or_insert_with(|| tiles.clone()), tiles, "{name}");
                }
            }
        }
    }
}

/// More rows: their norms too. The same bits as by three launches, and counters that are 0 again for the next one.
#[test]
fn normalises_and_routes_many_rows_in_one_launch() {
    let (mut rng, tile_rows) = (fastrand::Rng::with_seed(21), 2);
    for (stored, num_experts, top_k, columns) in [
        (Stored::Bf16, 384, 8, 1600),
        (Stored::Bf16, 6, 6, 16),
        (Stored::F32, 40, 4, 2056),
        (Stored::F32, 1000, 32, 64),
    ] {
        let shape = RouterShape {
            num_experts,
            top_k,
            n_group: 1,
            topk_group: 1,
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
        };
        let weight = Weight::random(&mut rng, stored, [num_experts, columns]);
        let hidden = floats(&mut rng, 72 * columns);
        let gain = floats(&mut rng, columns);
        let bias: Vec<f32> = (0..num_experts).map(|_| rng.f32() * 0.1).collect();
        for (name, mut device) in devices() {
            let matrix = Matrix::load(&mut device, "router", &[&weight.view()]).unwrap();
            let [hidden, gain, bias] =
                [&hidden, &gain, &bias].map(|values| device.store("floats", values).unwrap().address);
            let progress = device.zeros("progress", 4 * route::PROGRESS_WORDS).unwrap().address;
            let blocks_done = device.zeros("counter", 4).unwrap().address;
            for (rows, padded) in [(9, 12), (1, 1), (33, 33), (70, 72)] {
                let slots = padded * top_k;
                let num_rows = device.store("rows", &[rows as u32]).unwrap().address;
                let mut results = [(); 2].map(|()| {
                    let mut allocate = |words: usize| device.allocate("route", 4 * words).unwrap().address;
                    let norm = rms_norm::Params {
                        hidden,
                        gain,
                        normed: allocate(padded * columns),
                        rounded: allocate(padded * columns / 2),
                        columns: columns as i32,
                        eps: 1e-5,
                    };
                    let list = Worklist {
                        num_tiles: allocate(1),
                        tiles: allocate(3 * slots),
                        slots: allocate(slots),
                        tile_rows,
                        max_tiles: slots,
                        held: Held::all(num_experts),
                    };
                    let choice = Choice { chosen: allocate(slots), weights: allocate(slots), blocks_done };
                    (norm, list, choice, allocate(padded * num_experts))
                });
                let [(norm, list, choice, logits), (other_norm, other_list, other_choice, other_logits)] =
                    &mut results;
                let function = route::norm_function(&matrix).unwrap();
                let addresses = [*logits, bias, num_rows];
                route::launch_with_norms(
                    &mut device,
                    function,
                    &shape,
                    padded,
                    &matrix,
                    *norm,
                    addresses,
                    *choice,
                    list,
                    progress,
                )
                .unwrap();
                let counts: Vec<u32> = device.read(progress, route::PROGRESS_WORDS).unwrap();
                assert!(counts.iter().all(|count| *count == 0), "{name}: {counts:?}");
                rms_norm::launch(&mut device, padded, other_norm).unwrap();
                let x = Rows { address: other_norm.normed, stride: columns };
                let y = Rows { address: *other_logits, stride: num_experts };
                linear::launch(&mut device, padded, &matrix, x, 0, y, Output::Set).unwrap();
                let addresses = [*other_logits, bias, num_rows];
                route::launch_route(&mut device, &shape, padded, addresses, *other_choice, Some(other_list))
                    .unwrap();
                for (what, [got, expected], words) in [
                    ("normed", [norm.normed, other_norm.normed], padded * columns),
                    ("rounded", [norm.rounded, other_norm.rounded], padded * columns / 2),
                    ("logits", [*logits, *other_logits], padded * num_experts),
                    ("chosen", [choice.chosen, other_choice.chosen], slots),
                    ("weights", [choice.weights, other_choice.weights], slots),
                    ("num_tiles", [list.num_tiles, other_list.num_tiles], 1),
                ] {
                    let [got, expected] = [got, expected].map(|at| device.read::<u32>(at, words).unwrap());
                    assert_eq!(got, expected, "{name}: {what} of {rows} rows, {num_experts} experts");
                }
                let num_tiles = device.read::<u32>(list.num_tiles, 1).unwrap()[0] as usize;
                let tiles: [Vec<u32>; 2] =
                    [&*list, &*other_list].map(|list| device.read(list.tiles, 3 * num_tiles).unwrap());
                assert_eq!(tiles[0], tiles[1], "{name}");
                // In any order inside an expert.
                let chosen: Vec<u32> = device.read(choice.chosen, slots).unwrap();
                let mut order: Vec<u32> = device.read(list.slots, rows * top_k).unwrap();
                assert!(order.is_sorted_by_key(|slot| chosen[*slot as usize]), "{name}");
                order.sort_unstable();
                assert!(order.into_iter().eq(0..(rows * top_k) as u32), "{name}: every slot once");
            }
        }
    }
}

/// The choice by definition: experts and their weights.
fn expected_choice(logits: &[f32], bias: &[f32], shape: &RouterShape) -> (Vec<u32>, Vec<f32>) {
    let scores: Vec<f32> = logits.iter().map(|z| 1.0 / (1.0 + (-z).exp())).collect();
    let key = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
    let choice: Vec<f32> = scores.iter().zip(bias).map(|(s, b)| key(s + b)).collect();
    let size = shape.num_experts / shape.n_group;
    let group = |g: usize| {
        let mut best = choice[g * size..(g + 1) * size].to_vec();
        best.sort_by(|a, b| b.total_cmp(a));
        best.iter().take(2).sum::<f32>()
    };
    let mut groups: Vec<usize> = (0..shape.n_group).collect();
    groups.sort_by(|a, b| group(*b).total_cmp(&group(*a)).then(a.cmp(b)));
    groups.truncate(shape.topk_group);
    let allowed = |e: &usize| if groups.contains(&(e / size)) { choice[*e] } else { f32::NEG_INFINITY };
    let mut order: Vec<usize> = (0..shape.num_experts).collect();
    order.sort_by(|a, b| allowed(b).total_cmp(&allowed(a)).then(a.cmp(b)));
    order.truncate(shape.top_k);
    let sum: f32 = order.iter().map(|e| scores[*e]).sum();
    let divisor = if shape.norm_topk_prob { sum + 1e-20 } else { 1.0 };
    let weights = order.iter().map(|e| scores[*e] / divisor * shape.routed_scaling_factor).collect();
    (order.iter().map(|e| *e as u32).collect(), weights)
}

#[test]
fn latents_of_every_cache_type() {
    let mut rng = fastrand::Rng::with_seed(6);
    let fp8 = [true, false].map(|row_scales| {
        [true, false].map(|rope_codes| CacheDtype::Fp8(CachedRowFormat { row_scales, rope_codes }))
    });
    let dtypes = [CacheDtype::F32, CacheDtype::Bf16].into_iter().chain(fp8.into_iter().flatten());
    for dtype in dtypes {
        for (rows, latent_columns, rope, q_columns) in [(1, 8, 2, 0), (5, 128, 32, 96), (4, 512, 64, 1536)] {
            let eps = 1e-6;
            let mla = MlaShape {
                num_heads: 1,
                qk_nope_head_dim: 8,
                qk_rope_head_dim: rope,
                v_head_dim: 8,
                kv_lora_rank: latent_columns,
                scale: 1.0,
            };
            let shape = CacheShape {
                num_layers: 2,
                num_blocks: 3,
                block_size: 4,
                latent_dim: latent_columns + rope,
                rope_dim: rope,
                dtype,
            };
            let table = RopeTable {
                inv_freq: (0..rope / 2).map(|i| 0.5f32.powi(i as i32)).collect(),
                multiplier: 1.2,
            };
            let mut rotations = Vec::new();
            (0..rows).for_each(|t| table.rotation(100 * t as u32 + 3, &mut rotations));
            let mut kv_a = floats(&mut rng, rows * (latent_columns + rope));
            if rows > 3 {
                kv_a[3] = f32::INFINITY;
            }
            let (kv_gain, q_gain) = (floats(&mut rng, latent_columns), floats(&mut rng, q_columns));
            let q_latent = floats(&mut rng, rows * q_columns);
            let mut slots: Vec<u32> = (0..rows as u32).map(|t| 11 - 2 * t).collect();
            if rows > 2 {
                slots[2] = KvSlot::PAD.0;
            }
            let mut ops = ReferenceBackend;
            let mut cache = HostOps::allocate_cache(&mut ops, &shape).unwrap();
            HostOps::set_cache_scales(&mut ops, &mut cache, &[0, -3]).unwrap();
            let input = buffer(&mut ops, &kv_a, latent_columns + rope);
            ops.write_latent(&mla, &input, &kv_gain, eps, &rotations, &slots, 1, &mut cache).unwrap();
            let mut first: Option<Vec<u8>> = None;
            for (name, mut device) in devices() {
                let layer_bytes = shape.bytes() / 2;
                let stored = device.zeros("cache", layer_bytes).unwrap();
                let q_address = match q_columns {
                    0 => 0,
                    _ => device.store("q", &q_latent).unwrap().address,
                };
                let params = latent::Params {
                    q_latent: q_address,
                    q_rounded: device.allocate("q", 2 * rows * q_columns.max(1)).unwrap().address,
                    q_gain: device.store("gain", &q_gain).unwrap().address,
                    kv_a: device.store("kv", &kv_a).unwrap().address,
                    kv_gain: device.store("gain", &kv_gain).unwrap().address,
                    rotations: device.store("rotations", &rotations).unwrap().address,
                    slots: device.store("slots", &slots).unwrap().address,
                    cache: stored.address,
                    q_columns: q_columns as i32,
                    columns: latent_columns as i32,
                    rope: rope as i32,
                    row_bytes: shape.row_bytes() as i32,
                    row_scales: 0,
                    exponent: -3,
                    eps,
                    padding: 0,
                };
                latent::launch(&mut device, rows, dtype, params, Ahead::NONE).unwrap();
                let bytes: Vec<u8> = device.read(stored.address, layer_bytes).unwrap();
                for slot in slots.iter().filter(|slot| **slot != KvSlot::PAD.0) {
                    let row = &bytes[*slot as usize * shape.row_bytes()..][..shape.row_bytes()];
                    let got = decode(row, &shape);
                    let mut expected = Vec::new();
                    ops.read_cached(&cache, 1, &[*slot], &mut expected).unwrap();
                    let expected: Vec<f32> =
                        expected.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
                    assert_eq!(got.len(), expected.len());
                    for (got, expected) in got.iter().zip(&expected) {
                        assert!(near(*got, *expected, dtype), "{name} {dtype:?}: {got} {expected}");
                    }
                }
                let first = first.get_or_insert_with(|| bytes.clone());
                assert!(*first == bytes, "{name} {dtype:?}: other bits");
                if q_columns > 0 {
                    let x = buffer(&mut ops, &q_latent, q_columns);
                    let mut out = ops.allocate(rows, q_columns).unwrap();
                    HostOps::norm(&mut ops, &x, &q_gain, eps, &mut out).unwrap();
                    let mut outputs = Outputs::new(name.clone(), ReferenceBackend::values(&out), ELEMENTWISE);
                    let normed: Vec<f32> = device.read(q_address, rows * q_columns).unwrap();
                    outputs.check(&name, &normed);
                    assert!(device.read::<u16>(params.q_rounded, normed.len()).unwrap() == bf16(&normed));
                }
            }
        }
    }
}

/// Equal up to the rounding of sums before the rounding to the type: one code may be the neighbour's.
fn near(got: f32, expected: f32, dtype: CacheDtype) -> bool {
    let step = match dtype {
        CacheDtype::F32 => 4e-6,
        CacheDtype::Bf16 => 1.0 / 128.0,
        CacheDtype::Fp8(_) => 1.0 / 7.0,
    };
    let smallest = if matches!(dtype, CacheDtype::Fp8(_)) { 1e-3 } else { 1e-7 };
    (got.is_nan() && !expected.is_finite())
        || (got - expected).abs() <= step * expected.abs() + smallest
        || got == expected
}

/// Values of a cached row.
fn decode(row: &[u8], shape: &CacheShape) -> Vec<f32> {
    let widen = |bits: u16| half::bf16::from_bits(bits).to_f32();
    match shape.dtype {
        CacheDtype::F32 => row.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        CacheDtype::Bf16 => row.chunks_exact(2).map(|b| widen(u16::from_le_bytes([b[0], b[1]]))).collect(),
        CacheDtype::Fp8(format) => {
            let mut bits = vec![0; shape.latent_dim];
            format.decode(row, shape.latent_dim - shape.rope_dim, &mut bits);
            bits.into_iter().map(widen).collect()
        }
    }
}
