//! What bounds decode products of NVFP4: their time per byte of weights that lie in the second cache, beside that of weights in memory.
//! Where both are alike, the memory is not it.

use perigee_cuda::tuner::{BenchSizes, Effort, KernelTimes, Product, TunedOp, kernel_times};
use perigee_cuda::{Driver, Format};

use super::{device, on_gpu};
use crate::emulated::tuner::EFFORT;

/// One matrix, or a pair, of so many outputs.
fn op(product: Product, [out_features, in_features]: [usize; 2]) -> TunedOp {
    TunedOp {
        rows: perigee_cuda::tuner::Bucket::UpTo8,
        product,
        format: Format::Nvfp4,
        out_features,
        in_features,
        count: 1,
        terms: 0,
    }
}

pub(super) fn run() -> Option<String> {
    // Two sizes, so that their difference has no launch in it; the larger one fits into the second cache of a Hopper.
    let sizes = match on_gpu() {
        true => [(Product::Swiglu, 7168, [1024, 2048]), (Product::Linear, 2048, [7168, 14_336])],
        false => [(Product::Swiglu, 256, [32, 64]), (Product::Linear, 128, [32, 64])],
    };
    let all = match on_gpu() {
        true => Effort::GPU,
        false => EFFORT,
    };
    device(&[])?;
    let mut found = Vec::new();
    for (product, in_features, outputs) in sizes {
        let products = outputs.map(|outputs| op(product, [outputs, in_features])).to_vec();
        let sizes = BenchSizes { products, mla: None, ..BenchSizes::kimi_k2() };
        let mut line = Vec::new();
        for (place, copies) in [("second cache", 1), ("memory", all.max_copies)] {
            let effort = Effort { max_copies: copies, ..all };
            let mut open = || Ok(device(&[]).expect("as before"));
            let times = kernel_times(&mut open, &sizes, &[8], 1, (&effort, &[]), &mut |_| ());
            let times = times.unwrap();
            for variant in ["split16x8", "wide16x8"] {
                line.push(format!("{variant} {place} {:.2} us/MB", slope(&times, variant)));
            }
        }
        found.push(format!("{}: {}", product.name(), line.join(", ")));
    }
    let mut stream = device(&[])?;
    Some(format!("8 rows, {} multiprocessors: {}", stream.driver().multiprocessors(), found.join("; ")))
}

/// Microseconds of a megabyte of weights.
fn slope(times: &KernelTimes, variant: &str) -> f64 {
    let of = times.times.iter().filter(|time| time.variant.as_deref() == Some(variant));
    let of: Vec<(f64, f64)> = of.map(|time| (time.bytes as f64 / 1e6, time.micros)).collect();
    assert_eq!(of.len(), 2, "{variant}");
    (of[1].1 - of[0].1) / (of[1].0 - of[0].0)
}
