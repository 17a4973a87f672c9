//! Rows and weights in 4-bit floats on block-scaled tensor cores: bytes of rows against the host's, products against their definition, with
//! the same bits for every number of slots of a block, order of warps and company of rows.

use perigee_cuda::kernels::fp4::{self, Part};
use perigee_cuda::kernels::route::{self, Held, Worklist};
use perigee_cuda::kernels::tiled::{Rows, Slots};
use perigee_cuda::kernels::{fp4_linear, fp4_rows, fp4_swiglu, tcgen05_linear};
use perigee_cuda::{Arch, Kernel, Packer, Program, Stream};
use perigee_numbers::quant::{ActivationForm, PackedFormat, StoredMatrix, TensorScale};
use perigee_numbers::tensor::Dtype;

use super::operations::{Device, floats};
use super::weights::{Stored, Weight};
use super::{TestDriver, on_gpu};

/// Devices with such tensor cores: in the order of their warps, and in others, of which one looks for races.
fn devices() -> impl Iterator<Item = (String, Device)> {
    let runs = [
        (Arch::Sm120a, None),
        (Arch::Sm100a, None),
        (Arch::Sm120a, Some(3)),
        (Arch::Sm100a, Some(3)),
        (Arch::Sm120a, Some(5)),
        (Arch::Sm103a, Some(6)),
    ];
    let count = if on_gpu() { 1 } else { runs.len() };
    runs.into_iter().take(count).filter_map(|(arch, seed)| {
        let mut driver = TestDriver::new(arch, seed)?;
        driver.set_options(|options| options.races = seed == Some(3));
        Some((format!("{arch} {seed:?}"), Stream::new(driver).unwrap()))
    })
}

/// A GPU without these kernels is not asked for them.
fn has_products(device: &Device) -> bool {
    device.arch().multiplies_fp4()
}

const FORMS: [ActivationForm; 4] = [
    ActivationForm::Nvfp4 { scale: 0.0007, terms: 1 },
    ActivationForm::Nvfp4 { scale: 0.0004, terms: 2 },
    ActivationForm::Nvfp4 { scale: 0.0004, terms: 3 },
    ActivationForm::Mxfp4,
];

fn stored_in(form: ActivationForm) -> Stored {
    match form {
        ActivationForm::Nvfp4 { .. } => {
            Stored::Packed(PackedFormat::Nvfp4, Dtype::F8_E4M3, TensorScale::Multiply(0.037))
        }
        ActivationForm::Mxfp4 => Stored::Packed(PackedFormat::Mxfp4, Dtype::U8, TensorScale::None),
    }
}

/// Codes and scales of a row as the host has them, in the device's order.
fn expected_row(form: ActivationForm, row: &[f32]) -> Vec<u8> {
    let (terms, block) = (form.num_terms(), form.block());
    let mut codes = vec![0; terms * row.len() / 2];
    let mut scales = vec![0; terms * row.len() / block];
    form.encode(row, &mut codes, &mut scales);
    let mut bytes = vec![0; fp4_rows::row_bytes(row.len(), terms)];
    let stages = row.len().div_ceil(256);
    for term in 0..terms {
        for stage in 0..stages {
            let column = &mut bytes[(term * stages + stage) * 144..][..144];
            let inputs = 256 * stage..(256 * (stage + 1)).min(row.len());
            let from = |per: usize| term * row.len() / per + inputs.start / per;
            let (num_codes, num_scales) = (inputs.len() / 2, inputs.len() / block);
            column[..num_codes].copy_from_slice(&codes[from(2)..][..num_codes]);
            column[128..128 + num_scales].copy_from_slice(&scales[from(block)..][..num_scales]);
        }
    }
    bytes
}

#[test]
fn rows_have_the_hosts_bytes() {
    let mut rng = fastrand::Rng::with_seed(71);
    for form in FORMS {
        for columns in [32, 256, 288, 1056] {
            let mut rows = floats(&mut rng, 3 * columns);
            // Blocks of magnitudes that scales have, have no more, and have not; ties; zeros of both signs.
            for (block, values) in rows.chunks_mut(32).enumerate() {
                let size = [1.0, 1e-3, 1e-6, 1e-20, 1e-39, 300.0, 1e20, 0.0][block % 8];
                values.iter_mut().for_each(|value| *value *= size);
            }
            for (at, value) in [0.25, -0.25, 0.75, 1.25, 1.75, -2.5, 3.5, 5.0, -6.0].into_iter().enumerate() {
                rows[columns + at] = value;
            }
            let got = |device: &mut Device, rows: &[f32]| {
                let count = rows.len() / columns;
                let x = Rows { address: device.store("x", rows).unwrap().address, stride: columns };
                let bytes = count * fp4_rows::row_bytes(columns, form.num_terms());
                let to = device.allocate("rows", bytes).unwrap().address;
                fp4_rows::launch(device, &[form.into()], count, columns, x, &[to]).unwrap();
                device.read::<u8>(to, bytes).unwrap()
            };
            let expected: Vec<u8> = rows.chunks(columns).flat_map(|row| expected_row(form, row)).collect();
            for (name, mut device) in devices().filter(|(_, device)| has_products(device)) {
                assert!(got(&mut device, &rows) == expected, "{form:?} {columns} {name}");
                // What is not finite is its block's scale.
                let mut bad = rows[..columns].to_vec();
                (bad[3], bad[17]) = (f32::NAN, f32::INFINITY);
                let (bytes, like) = (got(&mut device, &bad), expected_row(form, &bad));
                assert_eq!(bytes[128..144], like[128..144], "{form:?} {columns} {name}");
                assert!([0x7f, 0xff].contains(&bytes[128]));
            }
        }
    }
}

/// The values of rows in 4-bit floats as the device has them.
fn decoded(form: ActivationForm, bytes: &[u8], columns: usize) -> Vec<f64> {
    let e2m1 = |code: u8| {
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)]
            * if code & 8 == 0 { 1.0 } else { -1.0 }
    };
    let block = form.block();
    let stages = columns.div_ceil(256);
    let scales: Vec<f64> = form.term_scales().map(|term| f64::from(term.scale)).collect();
    let of_row = |row: &[u8]| {
        (0..columns)
            .map(|k| {
                let of_term = |(term, tensor): (usize, &f64)| {
                    let column = &row[(term * stages + k / 256) * 144..][..144];
                    let code = column[k % 256 / 2] >> (4 * (k % 2)) & 15;
                    let byte = column[128 + k % 256 / block];
                    let scale = match form {
                        ActivationForm::Nvfp4 { .. } => {
                            let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
                            match exponent {
                                0 => mantissa / 8.0 * 2f64.powi(-6),
                                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
                            }
                        }
                        ActivationForm::Mxfp4 => 2f64.powi(i32::from(byte) - 127),
                    };
                    e2m1(code) * scale * tensor
                };
                scales.iter().enumerate().map(of_term).sum()
            })
            .collect::<Vec<f64>>()
    };
    bytes.chunks(fp4_rows::row_bytes(columns, form.num_terms())).flat_map(of_row).collect()
}

/// `W x`, exactly.
fn product(weight: &[f32], x: &[f64]) -> Vec<f64> {
    let row = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    weight.chunks(x.len()).map(row).collect()
}

/// Largest difference, relative to the largest value.
fn difference(got: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0f64, |most, value| most.max(value.abs()));
    got.iter().zip(expected).fold(0f64, |most, (a, b)| most.max((a - b).abs())) / largest.max(1e-30)
}

#[test]
fn experts_of_every_form() {
    let mut rng = fastrand::Rng::with_seed(72);
    for form in FORMS {
        // Ragged K and units, an expert that nobody chooses, more slots than a block has.
        check_experts(&mut rng, form, [288, 96, 4, 2, 11]);
        check_experts(&mut rng, form, [64, 320, 2, 1, 1]);
    }
    check_experts(&mut rng, FORMS[0], [288, 64, 2, 1, 270]);
    check_experts(&mut rng, FORMS[2], [96, 160, 3, 1, 70]);
}

/// Hidden size, inner units, experts, experts per row, rows.
fn check_experts(rng: &mut fastrand::Rng, form: ActivationForm, sizes: [usize; 5]) {
    check_experts_on(devices(), rng, form, sizes);
}

fn check_experts_on(
    devices: impl Iterator<Item = (String, Device)>,
    rng: &mut fastrand::Rng,
    form: ActivationForm,
    sizes: [usize; 5],
) {
    let [hidden, inner, num_experts, top_k, rows] = sizes;
    let stored = stored_in(form);
    let mut list = |shape| (0..num_experts).map(|_| Weight::random(rng, stored, shape)).collect();
    let lists: [Vec<Weight>; 3] = [list([inner, hidden]), list([inner, hidden]), list([hidden, inner])];
    let x = floats(rng, rows * hidden);
    // The first expert is chosen by every row, the last by none.
    let others = num_experts.saturating_sub(2).max(1) as u32;
    let choice = |slot: usize| if slot.is_multiple_of(top_k) { 0 } else { 1 + slot as u32 % others };
    let chosen: Vec<u32> = (0..rows * top_k).map(choice).collect();
    let views = lists.each_ref().map(|list| list.iter().map(Weight::view).collect::<Vec<_>>());
    let values = views.each_ref().map(|list| list.iter().map(StoredMatrix::to_f32).collect::<Vec<_>>());
    let exact_x: Vec<Vec<f64>> = x
        .chunks(hidden)
        .map(|row| {
            let mut row = row.to_vec();
            form.round(&mut row);
            row.into_iter().map(f64::from).collect()
        })
        .collect();
    let expected_inner: Vec<f64> = chosen
        .iter()
        .enumerate()
        .flat_map(|(slot, expert)| {
            let [gate, up] = [0, 1].map(|w| product(&values[w][*expert as usize], &exact_x[slot / top_k]));
            gate.into_iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<_>>()
        })
        .collect();
    let mut first: Option<(Vec<u8>, Vec<u32>)> = None;
    for (name, mut device) in devices.filter(|(_, device)| has_products(device)) {
        let [gate, up, down] = views.each_ref().map(|list| list.iter().collect::<Vec<&StoredMatrix<'_>>>());
        let mut packer = Packer::default();
        let gate_up = packer.pack_panels(&mut device, "experts", &gate, Some(&up)).unwrap();
        let down = packer.pack_panels(&mut device, "experts", &down, None).unwrap();
        let x = Rows { address: device.store("x", &x).unwrap().address, stride: hidden };
        let to = device.allocate("rows", rows * fp4_rows::row_bytes(hidden, form.num_terms())).unwrap();
        let x = fp4_rows::launch(&mut device, &[form.into()], rows, hidden, x, &[to.address]).unwrap()[0];
        for tile_rows in [1, 1000].map(|slots| fp4::tile_rows(device.arch(), form, slots)) {
            let name = format!("{form:?} {sizes:?} {name} {tile_rows}");
            let (slots, chosen) = (chosen.len(), device.store("chosen", &chosen).unwrap().address);
            let max_tiles = route::max_tiles(slots, num_experts, tile_rows);
            let list = Worklist {
                num_tiles: device.allocate("tiles", 4).unwrap().address,
                tiles: device.allocate("tiles", 12 * max_tiles).unwrap().address,
                slots: device.allocate("tiles", 4 * slots).unwrap().address,
                tile_rows,
                max_tiles,
                held: Held::all(num_experts),
            };
            route::launch_tiles(&mut device, slots, chosen, &list).unwrap();
            let stride = fp4_rows::row_bytes(inner, form.num_terms());
            let middle = Rows { address: device.allocate("inner", slots * stride).unwrap().address, stride };
            let y = device.allocate("y", 4 * slots * hidden).unwrap().address;
            let y = Rows { address: y, stride: hidden };
            let (of_x, of_inner) = (Slots::Routed(&list, top_k), Slots::RoutedBefore(&list, 1));
            let y_form = Some(form.into());
            let part = Part { matrix: &gate_up, slots: of_x, tile_rows, x, form, y: middle, y_form };
            fp4_swiglu::launch(&mut device, &[part]).unwrap();
            let part = Part { matrix: &down, slots: of_inner, tile_rows, x: middle, form, y, y_form: None };
            fp4_linear::launch(&mut device, &[part]).unwrap();
            let bytes = device.read::<u8>(middle.address, slots * stride).unwrap();
            let out: Vec<f32> = device.read(y.address, slots * hidden).unwrap();
            // Rows between the products are rounded as the host rounds them, but for values that lie at an edge.
            let got_inner = decoded(form, &bytes, inner);
            let mut rounded: Vec<f32> = expected_inner.iter().map(|value| *value as f32).collect();
            rounded.chunks_mut(inner).for_each(|row| form.round(row));
            let equal = got_inner
                .iter()
                .zip(&rounded)
                .filter(|(a, b)| (**a - f64::from(**b)).abs() <= 1e-5 * a.abs() + 1e-9);
            assert!(equal.count() * 100 >= 98 * got_inner.len(), "{name}: rows between the products");
            // The second product of what the device has.
            let slots = got_inner.chunks(inner).enumerate();
            let expected: Vec<f64> =
                slots.flat_map(|(slot, row)| product(&values[2][choice(slot) as usize], row)).collect();
            let out64: Vec<f64> = out.iter().map(|value| f64::from(*value)).collect();
            let off = difference(&out64, &expected);
            assert!(off < 2e-6, "{name}: {off}");
            let bits: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
            let first = first.get_or_insert_with(|| (bytes.clone(), bits.clone()));
            assert!(first.0 == bytes && first.1 == bits, "{name}: other bits");
        }
    }
}

/// A fault of a kernel: what it is, where, and the text in whose place another one stands.
type Plant<'a> = (&'a str, Arch, &'a Kernel, &'a str, &'a str);

/// Faults of the kernels, each of which is found.
#[test]
fn faults_of_the_kernels_are_found() {
    let (mma, tcgen05) = (Arch::Sm120a, Arch::Sm100a);
    let plants: [Plant<'_>; 9] = [
        (
            "a stage is written while it is multiplied",
            mma,
            &fp4_linear::KERNEL,
            "wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);",
            "",
        ),
        (
            "a stage is multiplied before it is there",
            mma,
            &fp4_linear::KERNEL,
            "wait(&shared.filled[stage], u / Shared::STAGES & 1);",
            "",
        ),
        (
            "columns beside the last slot are left as they are",
            mma,
            &fp4_linear::KERNEL,
            "i < missing * TERMS * WORDS",
            "i < 0",
        ),
        ("another swizzle", mma, &fp4_linear::KERNEL, "(row & 7)", "(row & 3)"),
        ("scales of other outputs", mma, &fp4_linear::KERNEL, "lane / 4 + lane % 2 * 8", "lane / 4"),
        (
            "units are written over weights",
            mma,
            &fp4_swiglu::KERNEL,
            "        // All warps have multiplied the last stage.\n        meet<WARPS * WARP>(1);\n",
            "",
        ),
        (
            "the rest of a stage is not filled",
            mma,
            &fp4_swiglu::KERNEL,
            "const bool is_last = panel + 1 == params.weight.num_panels;",
            "const bool is_last = false;",
        ),
        (
            "columns are written while they are multiplied",
            tcgen05,
            &tcgen05_linear::KERNEL,
            "wait(&shared.emptied[stage], (u / Shared::STAGES & 1) ^ 1);\n        const u64 at",
            "const u64 at",
        ),
        (
            "sums are read before they are there",
            tcgen05,
            &tcgen05_linear::KERNEL,
            "wait(&shared.done, 0);",
            "",
        ),
    ];
    // More stages of the second product than a block has, and a ragged last one.
    find(&plants, [544, 1312, 1, 1, 3]);
}

/// Faults of the protocol between the blocks of a pair.
#[test]
fn faults_of_pairs_are_found() {
    let both = "constexpr u16 BOTH = 3;";
    let plants: [(&str, &str, &str); 6] = [
        ("products are told to the even block alone", both, "constexpr u16 BOTH = 1;"),
        ("products are told to the odd block alone", both, "constexpr u16 BOTH = 2;"),
        (
            "blocks begin before the other one has barriers and tensor memory",
            "    meet_blocks<Shared::BLOCKS>();\n    after_meeting();",
            "    __syncthreads();\n    after_meeting();",
        ),
        ("both blocks have the first half of the columns", "first = rank * half;", "first = 0;"),
        (
            "the odd block tells of a stage before it is there",
            "        wait(&shared.filled[stage], u / Shared::STAGES & 1);\n        // Copies of columns were made by other threads, behind whose arrival this one is.\n        publish_stores();\n        arrive_in",
            "        arrive_in",
        ),
        ("the even block does not wait for the odd one", "(rank == 0 ? Shared::BLOCKS : 1)", "1"),
    ];
    let plants =
        plants.map(|(name, right, wrong)| (name, Arch::Sm100a, &tcgen05_linear::KERNEL, right, wrong));
    find(&plants, [64, 1312, 1, 1, 19]);
}

/// Fails unless each fault is found by products of these sizes in some order.
fn find(plants: &[Plant<'_>], sizes: [usize; 5]) {
    // A GPU has no compiler beside it, and a strong memory.
    if on_gpu() {
        return;
    }
    let form = FORMS[1];
    for &(name, arch, kernel, right, wrong) in plants {
        let found = [Some(3), Some(4), None, Some(5)].into_iter().any(|seed| {
            let Some(mut driver) = TestDriver::new(arch, seed) else { return true };
            driver.set_options(|options| (options.races, options.uninitialized) = (true, true));
            let mut program = Program::new(kernel, arch).unwrap();
            assert!(program.text.contains(right), "{name}: {right}");
            program.text = program.text.replace(right, wrong);
            (program.limits.registers, program.limits.local_memory) = (255, true);
            let mut device = Stream::new(driver).unwrap();
            device.load_program(&program).unwrap();
            let run = std::panic::AssertUnwindSafe(|| {
                let mut rng = fastrand::Rng::with_seed(73);
                let device = std::iter::once((format!("{arch} {seed:?}"), device));
                check_experts_on(device, &mut rng, form, sizes);
            });
            std::panic::catch_unwind(run).is_err()
        });
        assert!(found, "{name}: not found");
    }
}
