//! The vendor's products, which `perigee bench kernels` measures beside ours: on a GPU, where the library is installed.

use half::bf16;
use perigee::cuda::{Arch, Driver};

use super::TestDriver;

/// Small integers, whose sums are exact in any order.
fn values(count: usize, seed: u64) -> Vec<bf16> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| bf16::from_f32(rng.i32(-4..5) as f32)).collect()
}

#[test]
fn the_vendors_products_are_products() {
    let Some(mut driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    for [m, n, k] in [[1, 256, 512], [8, 1536, 384], [67, 576, 1024]] {
        let (w, x) = (values(n * k, 1), values(m * k, 2));
        let at = [2 * n * k, 2 * m * k, 4 * m * n].map(|bytes| driver.allocate(bytes).unwrap());
        driver.upload(at[0], bytemuck::cast_slice(&w)).unwrap();
        driver.upload(at[1], bytemuck::cast_slice(&x)).unwrap();
        if !driver.vendor_product([m, n, k], at).unwrap() {
            println!("skipped: no cuBLASLt");
            return;
        }
        let transfer = driver.download(at[2], 4 * m * n).unwrap();
        let mut bytes = Vec::new();
        driver.finish(transfer, &mut bytes).unwrap();
        let got: Vec<f32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        for (row, x) in x.chunks_exact(k).enumerate() {
            for (column, w) in w.chunks_exact(k).enumerate() {
                let want: f32 = x.iter().zip(w).map(|(x, w)| x.to_f32() * w.to_f32()).sum();
                assert_eq!(got[row * n + column], want, "[{m}, {n}, {k}] at {row}, {column}");
            }
        }
    }
}
