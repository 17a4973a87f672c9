//! The vendor's products, which `kernels.cublaslt` lets the engine use: on a GPU, where the library is installed; in the emulator one
//! that adds in another order than ours.

use std::fs;

use half::bf16;
use perigee_cuda::kernels::repack;
use perigee_cuda::tuner::{Bucket, Candidate, Choices, Effort, Measurement, Product, Table, TunedOp, tune};
use perigee_cuda::{Arch, CudaBackend, Driver, Format, Packer, Stream};
use perigee_model::Blueprint;
use perigee_numbers::tensor::{Dtype, TensorView};
use perigee_ops::{Activations, AttentionForm, CacheDtype};

use super::tuner::{EFFORT, identity, made_up, op};
use super::{Change, TestDriver};
use crate::golden::{golden_folder, golden_prompts, largest_difference, load_for, step};

/// Small integers, whose sums are exact in any order.
fn values(count: usize, seed: u64) -> Vec<bf16> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| bf16::from_f32(rng.i32(-4..5) as f32)).collect()
}

#[test]
fn the_vendors_products_are_products() {
    let Some(mut driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    if !driver.open_vendor().unwrap() {
        println!("skipped: no cuBLASLt");
        return;
    }
    for [m, n, k] in [[1, 256, 512], [8, 1536, 384], [67, 576, 1024]] {
        let (w, x) = (values(n * k, 1), values(m * k, 2));
        let at = [2 * n * k, 2 * m * k, 4 * m * n].map(|bytes| driver.allocate(bytes).unwrap());
        driver.upload(at[0], bytemuck::cast_slice(&w)).unwrap();
        driver.upload(at[1], bytemuck::cast_slice(&x)).unwrap();
        for times in [1.0, 2.0] {
            driver.vendor_product([m, n, k], at, times > 1.0).unwrap();
            let transfer = driver.download(at[2], 4 * m * n).unwrap();
            let mut bytes = Vec::new();
            driver.finish(transfer, &mut bytes).unwrap();
            let got: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
            for (row, x) in x.chunks_exact(k).enumerate() {
                for (column, w) in w.chunks_exact(k).enumerate() {
                    let want: f32 = x.iter().zip(w).map(|(x, w)| x.to_f32() * w.to_f32()).sum();
                    assert_eq!(got[row * n + column], times * want, "[{m}, {n}, {k}] at {row}, {column}");
                }
            }
        }
    }
}

#[test]
fn tiles_of_bf16_are_unpacked_into_the_rows_they_were_made_of() {
    for arch in [Arch::Sm80, Arch::Sm90a] {
        let Some(driver) = TestDriver::new(arch, Some(1)) else { return };
        let mut stream = Stream::new(driver).unwrap();
        for shape in [[16, 128], [40, 264], [7, 8], [129, 1032]] {
            let rows = values(shape[0] * shape[1], 3);
            let view = TensorView { dtype: Dtype::BF16, shape: &shape, bytes: bytemuck::cast_slice(&rows) };
            let tiled = Packer::default().pack(&mut stream, "test", &[&view.into()], None).unwrap();
            let unpacked = stream.allocate("rows", 2 * rows.len()).unwrap();
            repack::unpack(&mut stream, &tiled, unpacked.address).unwrap();
            let got = stream.read::<u16>(unpacked.address, rows.len()).unwrap();
            assert!(got == bytemuck::cast_slice::<_, u16>(&rows), "{arch} {shape:?}");
        }
    }
}

/// The measurement of a product with `rows` rows of BF16, and the vendor's changed by `change`.
fn tuned(rows: Bucket, vendor: bool, change: Change) -> Option<Measurement> {
    TestDriver::new(Arch::Sm90a, None)?;
    let mut open = || {
        let mut driver = TestDriver::new(Arch::Sm90a, None).unwrap();
        driver.open_vendor()?;
        driver.change_vendor(change);
        Stream::new(driver)
    };
    let ops = [op(Product::Linear, Format::Bf16, [40, 128], 1, rows)];
    let few = |op: &TunedOp| Candidate::shipped(op).into_iter().take(1).collect();
    let effort = Effort { vendor, ..EFFORT };
    let tuned = tune(&mut open, &ops, &few, &effort, None, 0, &mut |_, _| ()).unwrap();
    Some(tuned.measurements[0].clone())
}

#[test]
fn the_vendors_product_is_tuned_where_it_is_asked_for_and_pays() {
    let Some(measurement) = tuned(Bucket::Above, true, |_| ()) else { return };
    let vendor = measurement.vendor.as_ref().unwrap();
    assert!(vendor.micros.unwrap() > 0.0 && vendor.refused.is_none(), "{vendor:?}");
    if !super::on_gpu() {
        assert!(measurement.vendor_wins(), "{measurement:?}");
    }
    assert_eq!(tuned(Bucket::Above, false, |_| ()).unwrap().vendor, None);
    assert_eq!(tuned(Bucket::UpTo96, true, |_| ()).unwrap().vendor, None);
}

#[test]
fn a_wrong_product_of_the_vendor_is_refused() {
    if super::on_gpu() {
        // That is the vendor's own.
        return;
    }
    let cases: [(Change, &str); 3] = [
        (|sums| sums[3] += 0.5, "differs from the f32 kernel"),
        (|sums| sums[7] = f32::INFINITY, "it gives inf at row 0, output 7"),
        (|sums| sums.last_mut().into_iter().for_each(|sum| *sum = f32::from_bits(u32::MAX)), "unwritten"),
    ];
    for (change, reason) in cases {
        let Some(measurement) = tuned(Bucket::Above, true, change) else { return };
        let vendor = measurement.vendor.as_ref().unwrap();
        let refused = vendor.refused.as_deref().unwrap();
        assert!(refused.contains(reason), "{refused}");
        assert!(vendor.micros.is_none() && !measurement.vendor_wins());
    }
}

/// A prompt's rows are the vendor's where the table says so; a recorded step's stay ours, to the bit.
#[test]
fn steps_with_rows_of_prompts_are_the_vendors_where_that_is_faster() {
    let config = fs::read(golden_folder("kimi").join("config.json")).unwrap();
    let b = Blueprint::parse(&config).unwrap();
    let (d, values) = (b.hidden_size, b.mla.num_heads * b.mla.v_head_dim);
    let latent = b.mla.latent_dim();
    let run = |vendor: bool, form: AttentionForm, num_tokens: usize| {
        let driver = TestDriver::new(Arch::Sm90a, None)?;
        let counts = driver.counts.clone();
        let mut backend = CudaBackend::new(driver, Activations::Bf16).unwrap();
        if vendor {
            if !backend.use_vendor().unwrap() {
                println!("skipped: no cuBLASLt");
                return None;
            }
            let mut table = Table::new(identity());
            for shape in [[d, values], [latent, d]] {
                let mut one =
                    made_up(op(Product::Linear, Format::Bf16, shape, 1, Bucket::Above), "split16x8");
                one.vendor = Some(perigee_cuda::tuner::Tried {
                    variant: "cuBLASLt".into(),
                    micros: Some(1.0),
                    refused: None,
                });
                table.add(vec![one]);
            }
            backend.set_choices(Choices::of(&table));
        }
        let mut model = load_for(backend, &golden_folder("kimi"), CacheDtype::Bf16, 128);
        let prompt = &golden_prompts("kimi")[1].token_ids;
        let tokens: Vec<u32> = prompt.iter().copied().cycle().take(num_tokens).collect();
        let logits = step(&mut model, &tokens, 0, form);
        let products = counts.lock().unwrap().vendor_products;
        Some((logits, products))
    };
    let expanded = AttentionForm::Expanded;
    let Some((ours, 0)) = run(false, expanded, 100) else { return };
    let Some((theirs, products)) = run(true, expanded, 100) else { return };
    assert_eq!(products, 2 * b.num_layers as u64);
    let difference = largest_difference(&ours, &theirs);
    assert!(difference > 0.0 && difference < 0.2, "{difference}");
    // Few rows, and rows of a recording.
    for (form, tokens) in [(expanded, 96), (AttentionForm::Absorbed, 100)] {
        let (ours, _) = run(false, form, tokens).unwrap();
        let (with, products) = run(true, form, tokens).unwrap();
        assert!(ours == with && products == 0, "{form:?}, {tokens} tokens");
    }
}
