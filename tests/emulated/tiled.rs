//! Products on tensor cores: every variant against the reference, with the same bits in every variant, order and company
//! of rows, and on every architecture whose tensor cores round alike.

use perigee_cuda::kernels::ahead::Ahead;
use perigee_cuda::kernels::experts::TILE_ROWS;
use perigee_cuda::kernels::route::{self, Choice, FusedRoute, Held, Worklist};
use perigee_cuda::kernels::tiled::{Part, RowNorms, Rows, Schedule, Slots, Variant};
use perigee_cuda::kernels::{
    latent, linear, rms_norm, route_swiglu, tcgen05_bf16_linear, tiled_down, tiled_latent, tiled_linear,
    tiled_swiglu,
};
use perigee_cuda::{Arch, Buffer, Format, Matrix, Packer, Program, Stream};
use perigee_numbers::quant::{CachedRowFormat, PackedFormat, StoredMatrix, TensorScale};
use perigee_numbers::tensor::Dtype;
use perigee_ops::host::HostOps;
use perigee_ops::host::reference::ReferenceBackend;
use perigee_ops::tolerance::{PROJECT, SWIGLU};
use perigee_ops::{CacheDtype, CacheShape, RouterShape};

use perigee_emulator::machine::Traffic;

use super::operations::{Device, Outputs, bf16, buffer, devices, floats};
use super::weights::{ALL, Stored, Weight};
use super::{TestDriver, on_gpu};

/// Formats with tiles.
fn formats() -> impl Iterator<Item = Stored> {
    ALL.into_iter().filter(|stored| !matches!(stored, Stored::F32 | Stored::F16))
}

/// Values that bf16 has.
fn rounded(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    floats(rng, count).iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect()
}

/// Allowed difference for inputs that bf16 has: that of f32, since all other steps are exact but the product of an INT4 code
/// with its scale.
fn allowed(stored: Stored) -> f32 {
    match stored {
        Stored::Packed(PackedFormat::Int4Group32, ..) => PROJECT.bf16_activations,
        _ => PROJECT.f32_activations,
    }
}

fn stored_rows(device: &mut Device, values: &[f32], stride: usize) -> Rows {
    Rows { address: device.store("x", &bf16(values)).unwrap().address, stride }
}

#[test]
fn projections_of_every_variant() {
    let mut rng = fastrand::Rng::with_seed(31);
    for stored in formats() {
        for (rows, out, columns) in [(1, 7, 32), (9, 33, 544)] {
            check_projection(&mut rng, stored, rows, out, columns);
        }
    }
    // Several blocks of rows, and several units in a chunk.
    let fp8 = Stored::Packed(PackedFormat::Fp8Block, Dtype::F32, TensorScale::None);
    let mxfp4 = Stored::Packed(PackedFormat::Mxfp4, Dtype::U8, TensorScale::None);
    for stored in [Stored::Bf16, fp8, mxfp4] {
        for (rows, out, columns) in [(70, 40, 288), (2, 300, 2080)] {
            check_projection(&mut rng, stored, rows, out, columns);
        }
    }
    // Blocks of more than 32 and of more than 48 rows, with several units in a chunk.
    for stored in formats() {
        for (rows, out, columns) in [(33, 20, 160), (50, 20, 1184)] {
            check_projection(&mut rng, stored, rows, out, columns);
        }
    }
    // A K that is a multiple of 8 and of nothing more.
    check_projection(&mut rng, Stored::Bf16, 3, 24, 136);
}

/// The variants for weights of a format that fit on a device.
fn variants(device: &Device, format: Format) -> impl Iterator<Item = &'static Variant> + use<> {
    let arch = device.arch();
    let exists = move |variant: &Variant| tiled_linear::function(variant, format).is_some();
    Variant::ALL.iter().filter(move |variant| variant.fits(arch) && exists(variant))
}

fn check_projection(rng: &mut fastrand::Rng, stored: Stored, rows: usize, out: usize, columns: usize) {
    let weight = Weight::random(rng, stored, [out, columns]);
    let x = rounded(rng, rows * columns);
    let before = floats(rng, rows * out);
    let mut ops = ReferenceBackend;
    let matrix = HostOps::load_matrix(&mut ops, &weight.view()).unwrap();
    let input = buffer(&mut ops, &x, columns);
    let (mut set, mut added) = (ops.allocate(rows, out).unwrap(), buffer(&mut ops, &before, out));
    ops.project(&input, &matrix, &mut set).unwrap();
    ops.project_add(&input, &matrix, &mut added).unwrap();
    let label = format!("{stored:?} [{rows}, {out}, {columns}]");
    let mut set = Outputs::of_tensor_cores(label.clone(), ReferenceBackend::values(&set), allowed(stored));
    let mut added = Outputs::of_tensor_cores(label, ReferenceBackend::values(&added), allowed(stored));
    for (name, mut device) in devices() {
        let matrix = Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap();
        let x = stored_rows(&mut device, &x, columns);
        for variant in variants(&device, matrix.format) {
            let name = format!("{name} {}", variant.name);
            let y = device.allocate("y", 4 * rows * out).unwrap().address;
            let y = Rows { address: y, stride: out };
            let part = Part { matrix: &matrix, slots: Slots::Rows(rows, 0), x, y };
            tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
            let got: Vec<f32> = device.read(y.address, rows * out).unwrap();
            set.check(&name, &got);
            let y = Rows { address: device.store("y", &before).unwrap().address, stride: out };
            let part = Part { y, ..part };
            tiled_linear::launch(&mut device, variant, &[part], true).unwrap();
            added.check(&name, &device.read(y.address, rows * out).unwrap());
            // The last row alone, selected by a list.
            let list = device.store("rows", &[rows as u32 - 1]).unwrap().address;
            let y = Rows { address: device.allocate("y", 4 * out).unwrap().address, stride: out };
            let part = Part { slots: Slots::Rows(1, list), y, ..part };
            tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
            let alone: Vec<f32> = device.read(y.address, out).unwrap();
            assert!(alone == got[(rows - 1) * out..], "{name}: a row alone has other bits");
        }
    }
}

/// Rows of x may begin more than 4 GiB behind the first one: here all rows that are read do, and there is no memory in front of them.
#[test]
fn rows_beyond_four_gibibytes_are_found() {
    const SIZES: [usize; 2] = [24, 160];
    const ROWS: usize = 3;
    let mut rng = fastrand::Rng::with_seed(34);
    let weight = Weight::random(&mut rng, Stored::Bf16, SIZES);
    let x = rounded(&mut rng, ROWS * SIZES[1]);
    let mut ops = ReferenceBackend;
    let matrix = HostOps::load_matrix(&mut ops, &weight.view()).unwrap();
    let (input, mut output) = (buffer(&mut ops, &x, SIZES[1]), ops.allocate(ROWS, SIZES[0]).unwrap());
    ops.project(&input, &matrix, &mut output).unwrap();
    let (expected, allowed) = (ReferenceBackend::values(&output), PROJECT.f32_activations);
    let mut outputs = Outputs::of_tensor_cores("far rows".into(), expected, allowed);
    for (name, mut device) in devices() {
        let matrix = Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap();
        let near = stored_rows(&mut device, &x, SIZES[1]);
        // The first row that is at least 4 GiB away from row 0.
        let first = (1usize << 32).div_ceil(2 * SIZES[1]);
        let x = Rows { address: near.address - (2 * SIZES[1] * first) as u64, ..near };
        let list: Vec<u32> = (0..ROWS).map(|row| (first + row) as u32).collect();
        let list = device.store("rows", &list).unwrap().address;
        for variant in variants(&device, matrix.format) {
            let y = device.allocate("y", 4 * ROWS * SIZES[0]).unwrap().address;
            let y = Rows { address: y, stride: SIZES[0] };
            let part = Part { matrix: &matrix, slots: Slots::Rows(ROWS, list), x, y };
            tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
            let name = format!("{name} {}", variant.name);
            outputs.check(&name, &device.read(y.address, ROWS * SIZES[0]).unwrap());
        }
    }
}

/// Products of rows in their order: of two matrices with the same rows, of one that is added to, and of gate and up.
struct PanelCase {
    rows: usize,
    columns: usize,
    out: [usize; 3],
    weights: [Weight; 2],
    gates: [Weight; 2],
    x: Vec<f32>,
}

impl PanelCase {
    fn random(rng: &mut fastrand::Rng, stored: Stored, rows: usize, out: [usize; 3], columns: usize) -> Self {
        let [first, second, inner] = out;
        Self {
            rows,
            columns,
            out,
            weights: [first, second].map(|out| Weight::random(rng, stored, [out, columns])),
            gates: [0; 2].map(|_| Weight::random(rng, stored, [inner, columns])),
            x: rounded(rng, rows * columns),
        }
    }

    /// The bytes of all outputs on a device by each of some variants.
    fn outputs<const N: usize>(&self, device: &mut Device, variants: [&Variant; N]) -> [Vec<u8>; N] {
        let (Self { rows, out, .. }, mut packer) = (self, Packer::default());
        let matrices = self
            .weights
            .each_ref()
            .map(|weight| packer.pack(device, "rows", &[&weight.view()], None).unwrap());
        let [gate, up] = self.gates.each_ref().map(Weight::view);
        let gate_up = packer.pack(device, "rows", &[&gate], Some(&[&up])).unwrap();
        packer.check(device).unwrap();
        let x = stored_rows(device, &self.x, self.columns);
        variants.map(|variant| {
            let bytes: [usize; 3] = [4 * rows * out[0], 4 * rows * out[1], 2 * rows * out[2]];
            let [y, other, inner] = [0, 1, 2]
                .map(|at| Rows { address: device.zeros("y", bytes[at]).unwrap().address, stride: out[at] });
            let part = |matrix, y| Part { matrix, slots: Slots::Rows(*rows, 0), x, y };
            let [first, second] = &matrices;
            tiled_linear::launch(device, variant, &[part(first, y), part(second, other)], false).unwrap();
            tiled_linear::launch(device, variant, &[part(first, y)], true).unwrap();
            tiled_swiglu::launch(device, variant, &[part(&gate_up, inner)]).unwrap();
            let all = [y, other, inner].into_iter().zip(bytes);
            all.flat_map(|(y, bytes)| device.read::<u8>(y.address, bytes).unwrap()).collect()
        })
    }
}

/// Rows as panels: several tiles of them, the same ones for two matrices, blocks of a cluster with and without outputs. The bits are those of
/// rows that are read where they are, as they are where panels have no room.
#[test]
fn rows_as_panels() {
    let case = PanelCase::random(&mut fastrand::Rng::with_seed(37), Stored::Bf16, 140, [300, 40, 72], 416);
    let [panels, plain] = ["panel32x128", "wgmma32x128"].map(|name| Variant::named(name).unwrap());
    for (name, mut device) in devices().filter(|(_, device)| panels.fits(device.arch())) {
        let [expected, got] = case.outputs(&mut device, [plain, panels]);
        assert!(got == expected, "{name}");
        device.set_panels(Buffer::NONE);
        assert!(case.outputs(&mut device, [panels]) == [expected], "{name}: without room");
    }
}

/// The tensor cores of B200 have the bits of `mma.sync` on another device, in every order of warps: blocks with one half of rows and with two,
/// of which the last ones are few; units behind K; chunks of one unit and of two, which go round the stages of rows and of weights; blocks of a
/// cluster with and without outputs.
#[test]
fn rows_as_panels_by_tcgen05() {
    let [tcgen05, plain] = ["tcgen32x256", "block32x64"].map(|name| Variant::named(name).unwrap());
    let mut rng = fastrand::Rng::with_seed(38);
    let nvfp4 = Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(1.0));
    let mxfp4 = Stored::Packed(PackedFormat::Mxfp4, Dtype::U8, TensorScale::None);
    let int4 = Stored::Packed(PackedFormat::Int4Group32, Dtype::BF16, TensorScale::None);
    let cases = [
        (Stored::Bf16, 300, [300, 40, 72], 416),
        (Stored::Bf16, 140, [20, 136, 8], 1096),
        (nvfp4, 97, [24, 40, 72], 1184),
        (mxfp4, 257, [24, 130, 8], 160),
        (int4, 129, [140, 8, 8], 288),
    ];
    for (stored, rows, out, columns) in cases {
        let case = PanelCase::random(&mut rng, stored, rows, out, columns);
        let device = |arch, seed| -> Option<Device> {
            let mut driver = TestDriver::new(arch, seed)?;
            driver.set_options(|options| options.races = seed.is_some());
            let mut device = Stream::new(driver).unwrap();
            let panels = device.allocate("panels", 4 << 20).unwrap();
            device.set_panels(panels);
            Some(device)
        };
        let Some(mut other) = device(Arch::Sm90a, None) else { return };
        let [expected] = case.outputs(&mut other, [plain]);
        for seed in [None, Some(3), Some(8)] {
            let mut device = device(Arch::Sm100a, seed).unwrap();
            if tcgen05.fits(device.arch()) {
                let [got] = case.outputs(&mut device, [tcgen05]);
                assert!(got == expected, "{stored:?} [{rows}, {out:?}, {columns}] {seed:?}");
                if columns == 160 && seed.is_none() {
                    device.set_panels(Buffer::NONE);
                    assert!(case.outputs(&mut device, [tcgen05]) == [expected.clone()], "without room");
                }
            }
        }
    }
}

/// Faults of those products, each of which is found by a race, a value never written, other bits or a wait without end.
#[test]
fn faults_of_products_by_tcgen05_are_found() {
    // A GPU has no compiler beside it, and a strong memory.
    if on_gpu() {
        return;
    }
    let plants = [
        ("nothing", "", ""),
        (
            "rows that are not there are multiplied",
            "wait(&shared.filled[turn.stage], turn.round);\n            if",
            "if",
        ),
        (
            "a stage is written while this block multiplies it",
            "                wait(&shared.multiplied[turn.stage], turn.round ^ 1);\n",
            "",
        ),
        (
            "a stage is written while the other block multiplies it",
            "                wait_for_cluster(emptied, turn.round ^ 1);\n",
            "",
        ),
        ("the same part of rows by both blocks", "+ rank * PART;\n    Turn", ";\n    Turn"),
        (
            "weights that are not there are multiplied",
            "        wait(&shared.stored[weight_turn.stage], weight_turn.round);\n",
            "",
        ),
        (
            "weights are written while they are multiplied",
            "            wait(&shared.taken[turn.stage], turn.round ^ 1);\n",
            "",
        ),
        (
            "lanes of another tile",
            "store_fragments(to + m * TILE_LANES,",
            "store_fragments(to + (1 - m) * TILE_LANES,",
        ),
        ("sums are read before they are there", "        wait(&shared.summed[half], parity);\n", ""),
        (
            "sums are written before they were read",
            "                wait(&shared.added[half], chunk_parity ^ 1);\n",
            "",
        ),
        ("chunks are one", "step > 0 || !begins", "step > 0 || u > 0"),
        ("the last units are no chunk", "|| u + 1 == params.weight.units", ""),
    ];
    let tcgen05 = Variant::named("tcgen32x256").unwrap();
    // Four chunks of two units and one of one, two halves of each in six stages; one of two blocks has outputs.
    let (rows, out, columns) = (140, 20, 1096);
    let mut rng = fastrand::Rng::with_seed(39);
    let weight = Weight::random(&mut rng, Stored::Bf16, [out, columns]);
    let x = rounded(&mut rng, rows * columns);
    let run = |seed: Option<u64>, right: &str, wrong: &str| -> Option<Vec<u8>> {
        let mut driver = TestDriver::new(Arch::Sm100a, seed)?;
        driver.set_options(|options| (options.races, options.uninitialized) = (true, true));
        let mut program = Program::new(&tcgen05_bf16_linear::KERNEL, Arch::Sm100a).unwrap();
        let (all, one) = (
            "TCGEN05_FORMATS(tcgen05_bf16_linear, Linear)",
            "TCGEN05_PANELS(tcgen05_bf16_linear_bf16, TileBf16, Linear)",
        );
        for (from, to) in [(all, one), (right, wrong)] {
            assert!(program.text.contains(from), "{from}");
            program.text = program.text.replacen(from, to, 1);
        }
        program.functions = vec!["tcgen05_bf16_linear_bf16".into()];
        program.limits.registers = 255;
        let mut device = Stream::new(driver).unwrap();
        device.load_program(&program).unwrap();
        let panels = device.allocate("panels", 4 << 20).unwrap();
        device.set_panels(panels);
        let mut packer = Packer::default();
        let matrix = packer.pack(&mut device, "rows", &[&weight.view()], None).unwrap();
        let x = stored_rows(&mut device, &x, columns);
        let y = Rows { address: device.zeros("y", 4 * rows * out).unwrap().address, stride: out };
        let part = Part { matrix: &matrix, slots: Slots::Rows(rows, 0), x, y };
        tiled_linear::launch(&mut device, tcgen05, &[part], false).ok()?;
        device.read(y.address, 4 * rows * out).ok()
    };
    let mut expected = None;
    for (name, right, wrong) in plants {
        let seeds = std::iter::once(None).chain((3..40).map(Some));
        let mut got = seeds.map(|seed| run(seed, right, wrong));
        if right.is_empty() {
            expected = got.next().flatten();
            let Some(expected) = &expected else { return };
            assert!(got.take(2).all(|got| got.as_ref() == Some(expected)), "{name}");
        } else {
            let runs = got.position(|got| got != expected);
            println!("{name}: found after {runs:?} runs");
            assert!(runs.is_some(), "{name}: not found");
        }
    }
}

/// The block that ends last normalises what all of them have added to.
#[test]
fn norms_of_a_few_rows_behind_their_product() {
    let (mut rng, out, columns, eps) = (fastrand::Rng::with_seed(33), 200, 160, 1e-5);
    for (stored, rows) in formats().zip([1, 8, 3].into_iter().cycle()) {
        let weight = Weight::random(&mut rng, stored, [out, columns]);
        let x = rounded(&mut rng, rows * columns);
        let (before, gain) = (floats(&mut rng, rows * out), floats(&mut rng, out));
        let mut ops = ReferenceBackend;
        let matrix = HostOps::load_matrix(&mut ops, &weight.view()).unwrap();
        let mut sum = buffer(&mut ops, &before, out);
        let input = buffer(&mut ops, &x, columns);
        ops.project_add(&input, &matrix, &mut sum).unwrap();
        let mut normed = ops.allocate(rows, out).unwrap();
        HostOps::norm(&mut ops, &sum, &gain, eps, &mut normed).unwrap();
        let label = format!("{stored:?} {rows} rows");
        let mut sums =
            Outputs::of_tensor_cores(label.clone(), ReferenceBackend::values(&sum), allowed(stored));
        let mut norms =
            Outputs::of_tensor_cores(label, ReferenceBackend::values(&normed), 4.0 * allowed(stored));
        for (name, mut device) in devices() {
            let matrix = Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap();
            let x = stored_rows(&mut device, &x, columns);
            for variant in Variant::ALL.iter().filter(|variant| variant.normalises(rows)) {
                let name = format!("{name} {}", variant.name);
                let hidden = device.store("hidden", &before).unwrap().address;
                let normed = device.allocate("normed", 4 * rows * out).unwrap().address;
                let behind = RowNorms {
                    norm: rms_norm::Params {
                        hidden,
                        gain: device.store("gain", &gain).unwrap().address,
                        normed,
                        rounded: device.allocate("rounded", 2 * rows * out).unwrap().address,
                        columns: out as i32,
                        eps,
                    },
                    blocks_done: device.zeros("counter", 4).unwrap().address,
                    num_rows: rows as i32,
                    padding: 0,
                };
                let y = Rows { address: hidden, stride: out };
                let part = Part { matrix: &matrix, slots: Slots::Rows(rows, 0), x, y };
                tiled_linear::launch_with_norms(&mut device, variant, &part, &behind).unwrap();
                assert_eq!(device.read::<u32>(behind.blocks_done, 1).unwrap(), [0]);
                sums.check(&name, &device.read(hidden, rows * out).unwrap());
                norms.check(&name, &device.read(normed, rows * out).unwrap());
            }
        }
    }
}

/// The block that ends last computes the bits that a launch behind the products does: rows of every type, with a query latent and
/// without, a row that is stored nowhere.
#[test]
fn latents_of_a_few_rows_behind_their_projections() {
    let (mut rng, columns, latent, rope) = (fastrand::Rng::with_seed(35), 160, 36, 8);
    let fp8 = Stored::Packed(PackedFormat::Fp8Block, Dtype::F32, TensorScale::None);
    let dtypes = [CacheDtype::F32, CacheDtype::Bf16].into_iter().chain(
        [false, true]
            .map(|rope_codes| CacheDtype::Fp8(CachedRowFormat { row_scales: rope_codes, rope_codes })),
    );
    for (dtype, (stored, rows)) in dtypes.zip([(Stored::Bf16, 1), (fp8, 4), (Stored::Bf16, 3), (fp8, 2)]) {
        for (queries, has_latent) in [(90, true), (400, false)] {
            let weights =
                [queries, latent + rope].map(|out| Weight::random(&mut rng, stored, [out, columns]));
            let x = rounded(&mut rng, rows * columns);
            let (q_gain, kv_gain) = (floats(&mut rng, queries), floats(&mut rng, latent));
            let rotations = floats(&mut rng, rows * rope);
            let slots: Vec<u32> =
                (0..rows).map(|row| if row == 1 { u32::MAX } else { 3 - row as u32 }).collect();
            let shape = CacheShape {
                num_layers: 1,
                num_blocks: 1,
                block_size: 4,
                latent_dim: latent + rope,
                rope_dim: rope,
                dtype,
            };
            for (name, mut device) in devices() {
                let matrices = weights.each_ref().map(|weight| {
                    Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap()
                });
                let x = stored_rows(&mut device, &x, columns);
                let [q_gain, kv_gain, rotations] = [&q_gain, &kv_gain, &rotations]
                    .map(|values| device.store("values", values).unwrap().address);
                let slots = device.store("slots", &slots).unwrap().address;
                let mut run = |variant: &Variant, behind: bool| {
                    let [query, kv_a] = [queries, latent + rope].map(|width| Rows {
                        address: device.zeros("y", 4 * rows * width).unwrap().address,
                        stride: width,
                    });
                    let rounded = device.zeros("rounded", 2 * rows * queries).unwrap().address;
                    let cache = device.zeros("cache", shape.bytes()).unwrap().address;
                    let params = latent::Params {
                        q_latent: if has_latent { query.address } else { 0 },
                        q_rounded: rounded,
                        q_gain,
                        kv_a: kv_a.address,
                        kv_gain,
                        rotations,
                        slots,
                        cache,
                        q_columns: queries as i32,
                        columns: latent as i32,
                        rope: rope as i32,
                        row_bytes: shape.row_bytes() as i32,
                        row_scales: 0,
                        exponent: -2,
                        eps: 1e-5,
                        padding: 0,
                    };
                    let [first, second] = &matrices;
                    let part = |matrix, y| Part { matrix, slots: Slots::Rows(rows, 0), x, y };
                    let parts = [part(first, query), part(second, kv_a)];
                    if behind {
                        let function = tiled_latent::function(variant, [first, second], rows).unwrap();
                        let blocks_done = device.zeros("counter", 4).unwrap().address;
                        let latents = tiled_latent::Latents { params, dtype, rows, blocks_done };
                        tiled_latent::launch(&mut device, function, variant, &parts, &latents).unwrap();
                        assert_eq!(device.read::<u32>(blocks_done, 1).unwrap(), [0]);
                    } else {
                        tiled_linear::launch(&mut device, variant, &parts, false).unwrap();
                        latent::launch(&mut device, rows, dtype, params, Ahead::NONE).unwrap();
                    }
                    let mut all: Vec<u8> = device.read(query.address, 4 * rows * queries).unwrap();
                    all.extend(device.read::<u8>(rounded, 2 * rows * queries).unwrap());
                    all.extend(device.read::<u8>(cache, shape.bytes()).unwrap());
                    all
                };
                for variant in Variant::ALL.iter().filter(|variant| variant.normalises(rows)) {
                    let apart = run(variant, false);
                    assert!(apart.iter().any(|byte| *byte != 0));
                    assert!(run(variant, true) == apart, "{name} {} {dtype:?}", variant.name);
                }
            }
        }
    }
}

#[test]
fn experts_of_every_variant() {
    let mut rng = fastrand::Rng::with_seed(32);
    for stored in formats() {
        check_experts(&mut rng, stored, [64, 32, 5, 2, 21]);
    }
    check_experts(&mut rng, Stored::Bf16, [40, 8, 1, 1, 1]);
    check_experts(&mut rng, Stored::Bf16, [144, 24, 3, 1, 70]);
}

/// Hidden size, inner units, experts, experts per row, rows.
fn check_experts(rng: &mut fastrand::Rng, stored: Stored, sizes: [usize; 5]) {
    let [hidden, inner, num_experts, top_k, rows] = sizes;
    let mut list = |shape| (0..num_experts).map(|_| Weight::random(rng, stored, shape)).collect();
    let lists: [Vec<Weight>; 3] = [list([inner, hidden]), list([inner, hidden]), list([hidden, inner])];
    let x = rounded(rng, rows * hidden);
    // The first expert is chosen by every row, the last by none unless it is the only one.
    let others = num_experts.saturating_sub(2).max(1);
    let chosen: Vec<u32> = (0..rows * top_k)
        .map(|slot| if slot % top_k == 0 { 0 } else { (1 + slot % others).min(num_experts - 1) as u32 })
        .collect();
    let mut ops = ReferenceBackend;
    let mut expected = Vec::new();
    for (slot, expert) in chosen.iter().enumerate() {
        let row = &x[slot / top_k * hidden..][..hidden];
        let input = buffer(&mut ops, row, hidden);
        let mut product = |w: usize, input: &_, out: usize| {
            let matrix = HostOps::load_matrix(&mut ops, &lists[w][*expert as usize].view()).unwrap();
            let mut y = ops.allocate(1, out).unwrap();
            ops.project(input, &matrix, &mut y).unwrap();
            ReferenceBackend::values(&y).to_vec()
        };
        let (gate, up) = (product(0, &input, inner), product(1, &input, inner));
        let swiglu: Vec<f32> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        let input = buffer(&mut ReferenceBackend, &swiglu, inner);
        expected.extend(product(2, &input, hidden));
    }
    let label = format!("{stored:?} {sizes:?}");
    let mut outputs = Outputs::of_tensor_cores(label, &expected, SWIGLU.bf16_activations);
    for (name, mut device) in devices() {
        let views = lists.each_ref().map(|list| list.iter().map(Weight::view).collect::<Vec<_>>());
        let [gate, up, down] = views.each_ref().map(|list| list.iter().collect::<Vec<&StoredMatrix<'_>>>());
        let mut packer = Packer::default();
        let gate_up = packer.pack(&mut device, "experts", &gate, Some(&up)).unwrap();
        let down = packer.pack(&mut device, "experts", &down, None).unwrap();
        packer.check(&mut device).unwrap();
        let x = stored_rows(&mut device, &x, hidden);
        for variant in variants(&device, gate_up.format) {
            let (slots, chosen) = (chosen.len(), device.store("chosen", &chosen).unwrap().address);
            let max_tiles = route::max_tiles(slots, num_experts, TILE_ROWS);
            let list = Worklist {
                num_tiles: device.allocate("tiles", 4).unwrap().address,
                tiles: device.allocate("tiles", 12 * max_tiles).unwrap().address,
                slots: device.allocate("tiles", 4 * slots).unwrap().address,
                tile_rows: variant.rows,
                max_tiles: route::max_tiles(slots, num_experts, variant.rows),
                held: Held::all(num_experts),
            };
            route::launch_tiles(&mut device, slots, chosen, &list).unwrap();
            let middle = device.allocate("inner", 2 * slots * inner).unwrap().address;
            let middle = Rows { address: middle, stride: inner };
            let y =
                Rows { address: device.allocate("y", 4 * slots * hidden).unwrap().address, stride: hidden };
            let (first, second) = (Slots::Routed(&list, top_k), Slots::RoutedBefore(&list, 1));
            let part = Part { matrix: &gate_up, slots: first, x, y: middle };
            tiled_swiglu::launch(&mut device, variant, &[part]).unwrap();
            let part = Part { matrix: &down, slots: second, x: middle, y };
            tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
            outputs
                .check(&format!("{name} {}", variant.name), &device.read(y.address, expected.len()).unwrap());
        }
    }
}

/// The second products of routed experts and of a shared one in bf16, in one launch: the bits of two.
#[test]
fn second_products_of_two_formats() {
    let (mut rng, inner, hidden, top_k, num_experts) = (fastrand::Rng::with_seed(36), 288, 72, 2, 3);
    for stored in formats() {
        let routed: Vec<Weight> =
            (0..num_experts).map(|_| Weight::random(&mut rng, stored, [hidden, inner])).collect();
        let shared = Weight::random(&mut rng, Stored::Bf16, [hidden, inner]);
        for (name, mut device) in devices() {
            let views: Vec<_> = routed.iter().map(Weight::view).collect();
            let mut packer = Packer::default();
            let down = packer.pack(&mut device, "experts", &views.iter().collect::<Vec<_>>(), None).unwrap();
            let shared = packer.pack(&mut device, "shared", &[&shared.view()], None).unwrap();
            packer.check(&mut device).unwrap();
            for rows in [1, 5] {
                let slots = rows * top_k;
                let chosen: Vec<u32> = (0..slots as u32).map(|slot| slot % 2).collect();
                let chosen = device.store("chosen", &chosen).unwrap().address;
                let max_tiles = route::max_tiles(slots, num_experts, 8);
                let list = Worklist {
                    num_tiles: device.allocate("tiles", 4).unwrap().address,
                    tiles: device.allocate("tiles", 12 * max_tiles).unwrap().address,
                    slots: device.allocate("tiles", 4 * slots).unwrap().address,
                    tile_rows: 8,
                    max_tiles,
                    held: Held::all(num_experts),
                };
                route::launch_tiles(&mut device, slots, chosen, &list).unwrap();
                let [x, shared_x] = [slots, rows]
                    .map(|rows| stored_rows(&mut device, &rounded(&mut rng, rows * inner), inner));
                for variant in &Variant::ALL {
                    let Some(function) = tiled_down::function(variant, down.format, shared.format) else {
                        continue;
                    };
                    let mut run = |together: bool| {
                        let [y, shared_y] = [slots, rows].map(|rows| Rows {
                            address: device.zeros("y", 4 * rows * hidden).unwrap().address,
                            stride: hidden,
                        });
                        let parts = [
                            Part { matrix: &down, slots: Slots::RoutedBefore(&list, 1), x, y },
                            Part { matrix: &shared, slots: Slots::Rows(rows, 0), x: shared_x, y: shared_y },
                        ];
                        if together {
                            tiled_down::launch(&mut device, function, variant, &parts).unwrap();
                        } else {
                            tiled_linear::launch(&mut device, variant, &parts, false).unwrap();
                        }
                        let mut all: Vec<f32> = device.read(y.address, slots * hidden).unwrap();
                        all.extend(device.read::<f32>(shared_y.address, rows * hidden).unwrap());
                        assert!(all.iter().all(|value| *value != 0.0));
                        all
                    };
                    assert!(run(true) == run(false), "{name} {stored:?} {} {rows} rows", variant.name);
                }
            }
        }
    }
    let taken = |variant: &Variant, routed| tiled_down::function(variant, routed, Format::Bf16).is_some();
    assert_eq!(Variant::ALL.iter().filter(|variant| taken(variant, Format::Int4)).count(), 2);
    assert!(!Variant::ALL.iter().any(|variant| taken(variant, Format::Fp8)));
}

/// The router of a few rows, and the first product of the shared expert in its launch: the bits of two launches, and counters that are 0
/// again for the next one.
#[test]
fn routes_beside_the_shared_expert() {
    let mut rng = fastrand::Rng::with_seed(52);
    let (columns, num_experts, top_k, inner) = (544, 40, 4, 36);
    let shape = RouterShape {
        num_experts,
        top_k,
        n_group: 1,
        topk_group: 1,
        norm_topk_prob: true,
        routed_scaling_factor: 2.5,
    };
    for stored in formats() {
        let router = Weight::random(&mut rng, Stored::Bf16, [num_experts, columns]);
        let (gate, up) = (
            Weight::random(&mut rng, stored, [inner, columns]),
            Weight::random(&mut rng, stored, [inner, columns]),
        );
        let (x, bias) = (rounded(&mut rng, 8 * columns), floats(&mut rng, num_experts));
        for (name, mut device) in devices() {
            let weight = Matrix::load(&mut device, "router", &[&router.view()]).unwrap();
            let mut packer = Packer::default();
            let gate_up = packer.pack(&mut device, "shared", &[&gate.view()], Some(&[&up.view()])).unwrap();
            packer.check(&mut device).unwrap();
            let exact = linear::Rows { address: device.store("x", &x).unwrap().address, stride: columns };
            let x = stored_rows(&mut device, &x, columns);
            let bias = device.store("bias", &bias).unwrap().address;
            let blocks_done = device.zeros("counter", 4).unwrap().address;
            for rows in [1, 3, 8] {
                let num_rows = device.store("rows", &[rows as u32]).unwrap().address;
                let slots = rows * top_k;
                let mut launch = |together: bool| {
                    let mut allocate = |values: usize| device.zeros("route", 4 * values).unwrap().address;
                    let list = Worklist {
                        num_tiles: allocate(1),
                        tiles: allocate(3 * slots),
                        slots: allocate(slots),
                        tile_rows: 8,
                        max_tiles: slots,
                        held: Held::all(num_experts),
                    };
                    let (logits, y) = (allocate(rows * num_experts), allocate(rows * inner));
                    let choice = Choice { chosen: allocate(slots), weights: allocate(slots), blocks_done };
                    let route = FusedRoute {
                        shape: &shape,
                        padded_rows: rows,
                        weight: &weight,
                        x: exact,
                        addresses: [logits, bias, num_rows],
                        choice,
                        list: &list,
                    };
                    let part = Part {
                        matrix: &gate_up,
                        slots: Slots::Rows(rows, 0),
                        x,
                        y: Rows { address: y, stride: inner },
                    };
                    if together {
                        let function = route_swiglu::function(&route, &gate_up).unwrap();
                        route_swiglu::launch(&mut device, function, &route, &part).unwrap();
                    } else {
                        let function = route::fused_function(&weight, &shape).unwrap();
                        route::launch_fused(&mut device, function, &route, Ahead::NONE).unwrap();
                        tiled_swiglu::launch(&mut device, &Variant::ALL[0], &[part]).unwrap();
                    }
                    assert_eq!(device.read::<u32>(blocks_done, 1).unwrap(), [0]);
                    let mut read = |address, values| device.read::<u32>(address, values).unwrap();
                    [
                        read(y, rows * inner / 2),
                        read(choice.chosen, slots),
                        read(choice.weights, slots),
                        read(list.num_tiles, 1),
                        read(list.tiles, 3),
                        read(list.slots, slots),
                    ]
                };
                assert_eq!(launch(true), launch(false), "{name} {stored:?}, {rows} rows");
            }
        }
    }
}

/// Every code under every scale: subnormal, zero, negative and infinite ones.
#[test]
fn every_code_under_every_scale() {
    let nvfp4 = Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(1.0));
    let mxfp4 = Stored::Packed(PackedFormat::Mxfp4, Dtype::U8, TensorScale::None);
    let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    let mut device = Stream::new(driver).unwrap();
    // Row n has scale n everywhere and the codes 0, 1, 2, ...; x picks the first 16 columns one after the other.
    for (stored, group, scales) in [(nvfp4, 16, 256), (mxfp4, 32, 143)] {
        let columns = 32;
        let mut weight = Weight::random(&mut fastrand::Rng::new(), stored, [scales, columns]);
        for n in 0..scales {
            for i in 0..columns / 2 {
                weight.set(false, n * columns / 2 + i, (2 * i % 16 + (2 * i + 1) % 16 * 16) as u8);
            }
            for i in 0..columns / group {
                weight.set(true, n * columns / group + i, n as u8);
            }
        }
        let x: Vec<f32> =
            (0..16 * columns).map(|i| f32::from(u8::from(i % columns == i / columns))).collect();
        let matrix = Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap();
        let x = stored_rows(&mut device, &x, columns);
        let y = Rows { address: device.allocate("y", 4 * 16 * scales).unwrap().address, stride: scales };
        let variant = &Variant::ALL[0];
        let part = Part { matrix: &matrix, slots: Slots::Rows(16, 0), x, y };
        tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
        let got: Vec<f32> = device.read(y.address, 16 * scales).unwrap();
        let expected = weight.view().to_f32();
        for n in 0..scales {
            for code in 0..16 {
                let (got, expected) = (got[code * scales + n], expected[n * columns + code]);
                // Sums begin at +0, so a product of -0 becomes +0. Below 2^-112 bf16 has no room for the scale.
                let same = (got - expected).abs() < 2.0f32.powi(-110) * f32::from(u8::from(stored == mxfp4))
                    || got == expected
                    || got.is_nan() && expected.is_nan();
                assert!(same, "{stored:?} scale {n:#x} code {code:#x}: {got} and not {expected}");
            }
        }
    }
}

#[test]
fn a_code_that_is_no_number_is_refused() {
    let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    let mut device = Stream::new(driver).unwrap();
    let stored = Stored::Packed(PackedFormat::Fp8Row, Dtype::F32, TensorScale::None);
    let mut weight = Weight::random(&mut fastrand::Rng::with_seed(1), stored, [20, 48]);
    let mut packer = Packer::default();
    packer.pack(&mut device, "project", &[&weight.view()], None).unwrap();
    packer.check(&mut device).unwrap();
    weight.set(false, 20 * 48 - 1, 0xff);
    packer.pack(&mut device, "project", &[&weight.view()], None).unwrap();
    let error = packer.check(&mut device).unwrap_err().to_string();
    assert!(error.contains("not a number"), "{error}");
}

/// What decides the speed of a decode step and can be counted: instructions per weight, 16-byte loads of adjacent bytes, and
/// no bank conflicts. An SM of an H200 must turn over about 33 weights of four bits per clock and issues 128 lanes.
#[test]
fn decode_products_stay_within_the_issue_budget() {
    const ISSUED_PER_WEIGHT: f64 = 128.0 / 33.0;
    let nvfp4 = Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(1.0));
    let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    let mut device = Stream::new(driver).unwrap();
    if !device.driver().set_options(|options| options.profile = true) {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(35);
    let [rows, out, columns] = [8, 64, 7168];
    let weight = Weight::random(&mut rng, nvfp4, [out, columns]);
    let matrix = Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap();
    let x = stored_rows(&mut device, &rounded(&mut rng, rows * columns), columns);
    let y = Rows { address: device.allocate("y", 4 * rows * out).unwrap().address, stride: out };
    for variant in ["split16x8", "split32x8", "wide16x8"].map(|name| Variant::named(name).unwrap()) {
        let part = Part { matrix: &matrix, slots: Slots::Rows(rows, 0), x, y };
        tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
        let report = device.driver().report().unwrap();
        let per_weight = report.lane_instructions() as f64 / (out * columns) as f64;
        println!("{}: {per_weight:.2} PTX instructions per weight", variant.name);
        assert!(per_weight < ISSUED_PER_WEIGHT, "{}: {per_weight}", variant.name);
        let (mut streamed, mut conflicts) = (0, 0);
        for count in report.instructions() {
            let Some(traffic) = count.traffic else { continue };
            conflicts += traffic.excess_wavefronts();
            if count.opcode.starts_with("ld.global.cs") {
                assert_eq!(traffic.excess_sectors(), 0, "{} line {}", variant.name, count.line);
                // Four bytes of scales are read for 32 of codes.
                let wide = count.opcode.contains("v4")
                    || count.opcode.ends_with("b32")
                    || count.opcode.ends_with("u32");
                assert!(wide, "{}", count.opcode);
                streamed += traffic.bytes;
            }
        }
        // The inner loop does not touch shared memory; the sum over the chunks after it does, once.
        assert!(100 * conflicts < report.warp_instructions(), "{}: {conflicts} bank conflicts", variant.name);
        // Codes and scales, each once.
        assert_eq!(streamed, (out * columns * 9 / 16) as u64, "{}", variant.name);
    }
}

/// What decides the speed of a prompt and can be counted: instructions that are issued for each product of 16 x 8 x 16, and no
/// bank conflicts where rows and totals are in shared memory.
#[test]
fn prompt_products_read_rows_once_and_without_bank_conflicts() {
    // One of these products takes Hopper 1.6 clocks by mma.sync, in which a multiprocessor issues 6.4 instructions of a warp.
    const MOST_PER_PRODUCT: f64 = 6.4;
    let nvfp4 = Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(1.0));
    let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    let mut device = Stream::new(driver).unwrap();
    if !device.driver().set_options(|options| options.profile = true) {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(36);
    let [most, out, columns] = [128, 256, 4096];
    let x = stored_rows(&mut device, &rounded(&mut rng, most * columns), columns);
    let y = Rows { address: device.allocate("y", 4 * most * out).unwrap().address, stride: out };
    for stored in [Stored::Bf16, nvfp4] {
        let weight = Weight::random(&mut rng, stored, [out, columns]);
        let matrix = Packer::default().pack(&mut device, "project", &[&weight.view()], None).unwrap();
        let of_prompts = |variant: &&Variant| {
            !matches!(variant.schedule, Schedule::Split | Schedule::Wide | Schedule::Cluster)
        };
        for variant in variants(&device, matrix.format).filter(of_prompts) {
            let rows = variant.rows;
            let part = Part { matrix: &matrix, slots: Slots::Rows(rows, 0), x, y };
            tiled_linear::launch(&mut device, variant, &[part], false).unwrap();
            let report = device.driver().report().unwrap();
            let products = (rows * out * columns / (8 * 16 * 16)) as f64;
            let counted = report.warp_instructions() as f64 / products;
            let sum = |opcode: &str, of: fn(&Traffic) -> u64| -> u64 {
                let all = report.instructions().filter(|count| count.opcode.starts_with(opcode));
                all.filter_map(|count| Some(of(count.traffic.as_ref()?))).sum()
            };
            let [from_rows, loaded] = ["cp.async", "ld.global"].map(|opcode| sum(opcode, |t| t.bytes));
            println!(
                "{stored:?} {}: {counted:.2} PTX instructions per product, {loaded} bytes loaded, {from_rows} copied",
                variant.name
            );
            let conflicts =
                ["ld.shared", "st.shared", "cp.async"].map(|opcode| sum(opcode, Traffic::excess_wavefronts));
            assert_eq!(conflicts, [0; 3], "{}", variant.name);
            assert_eq!(from_rows, (2 * rows * columns) as u64);
            assert!(counted < MOST_PER_PRODUCT, "{stored:?} {}: {counted}", variant.name);
        }
    }
}
