//! How kernels are launched: in clusters, and behind each other.

use perigee_cuda::kernels::tiled::{Part, Rows, Slots, Variant};
use perigee_cuda::kernels::{repack, rms_norm, tiled_linear};
use perigee_cuda::{Arch, LaunchShape, Packer, Program, Stream};

use super::TestDriver;
use super::weights::{Stored, Weight};

/// Each block takes a value from the shared memory of the next one of its cluster.
const EXCHANGE: &str = r#"
struct Params {
    unsigned* y;
};

extern "C" __global__ void __cluster_dims__(4, 1, 1) exchange(const __grid_constant__ Params params) {
    __shared__ unsigned value;
    unsigned rank, size, value_of_next;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    if (threadIdx.x == 0) {
        value = 100 * size + blockIdx.x;
    }
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(&value));
    asm volatile(
        "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.u32 %0, [at];\n}"
        : "=r"(value_of_next)
        : "r"(own), "r"((rank + 1) % size)
        : "memory");
    if (threadIdx.x == 0) {
        params.y[blockIdx.x] = value_of_next;
    }
    // The value stays until it is read.
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
"#;

/// The cluster is the kernel's own: its launches are like any other, also when they are recorded.
#[test]
fn a_kernel_of_clusters_is_launched_in_them() {
    for order in [None, Some(1), Some(2)] {
        let Some(mut driver) = TestDriver::new(Arch::Sm90a, order) else { return };
        // A machine with a GPU may have no compiler.
        if !driver.set_options(|options| options.races = true) {
            return;
        }
        let mut program = Program::new(&rms_norm::KERNEL, Arch::Sm90a).unwrap();
        (program.text, program.functions) = (EXCHANGE.into(), vec!["exchange".into()]);
        let mut stream = Stream::new(driver).unwrap();
        stream.load_program(&program).unwrap();
        let y = stream.zeros("y", 4 * 8).unwrap();
        let launch = |stream: &mut Stream<TestDriver>, blocks| {
            let shape = LaunchShape { grid: [blocks, 1, 1], threads: 32, shared_bytes: 0 };
            stream.launch("exchange", shape, &y.address)
        };
        launch(&mut stream, 8).unwrap();
        let expected = [401, 402, 403, 400, 405, 406, 407, 404];
        assert_eq!(stream.read::<u32>(y.address, 8).unwrap(), expected);
        let refused = launch(&mut stream, 6).unwrap_err().to_string();
        assert!(refused.contains("exchange") && refused.contains("clusters of [4, 1, 1]"), "{refused}");
    }
}

/// A product may load weights before the launch in front of it has ended, and repack writes them: nothing begins early behind it.
#[test]
fn no_launch_begins_early_behind_one_that_packs_weights() {
    const SIZES: [usize; 2] = [32, 256];
    let Some(driver) = TestDriver::new(Arch::Sm90a, None) else { return };
    let counts = driver.counts.clone();
    let mut stream = Stream::new(driver).unwrap();
    let weight = Weight::random(&mut fastrand::Rng::with_seed(61), Stored::Bf16, SIZES);
    let matrix = Packer::default().pack(&mut stream, "test", &[&weight.view()], None).unwrap();
    let rows = stream.store("rows", weight.view().codes()).unwrap();
    let half = |first| repack::Half { codes: rows.address, scales: 0, first, rows: SIZES[0] as i32 };
    let params = repack::Params {
        lower: half(0),
        upper: half(8),
        codes: matrix.weight.codes,
        scales: matrix.weight.scales,
        not_numbers: stream.zeros("flag", 4).unwrap().address,
        tile_rows: 16,
        tiles: matrix.weight.tiles,
        columns: matrix.weight.columns,
        units: matrix.weight.units,
    };
    let [x, y] = [2, 4].map(|bytes| stream.zeros("rows", bytes * SIZES[1]).unwrap().address);
    let part = Part {
        matrix: &matrix,
        slots: Slots::Rows(1, 0),
        x: Rows { address: x, stride: SIZES[1] },
        y: Rows { address: y, stride: SIZES[0] },
    };
    let early = || counts.lock().unwrap().early;
    let before = early();
    repack::launch(&mut stream, matrix.format, &params).unwrap();
    tiled_linear::launch(&mut stream, &Variant::ALL[0], &[part], false).unwrap();
    assert_eq!(early() - before, 0, "behind repack");
    tiled_linear::launch(&mut stream, &Variant::ALL[0], &[part], false).unwrap();
    assert_eq!(early() - before, 1, "behind a product");
}
