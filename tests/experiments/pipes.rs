//! Rates of instructions that the kernels' bounds are made of, by clocks of a full multiprocessor.

use bytemuck::{Pod, Zeroable};
use perigee_cuda::{LaunchShape, Program};

use super::{device, on_gpu, written};

/// Warps of a block, one on a multiprocessor: eight for each scheduler.
const WARPS: u32 = 32;
/// Instructions of a turn of a warp's loop, and independent registers among them.
const UNROLLED: usize = 64;
const REGISTERS: usize = 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    to: u64,
    turns: u32,
    y: u32,
}

/// Name, and the statement of one instruction on register `x`. Loads follow words that hold their own address, so that none can be left
/// out: in shared memory, and in that of the other block of a cluster.
const PIPES: [(&str, &str); 7] = [
    (
        "f2fp_e4m3",
        r#"asm volatile("{.reg .b16 c; cvt.u16.u32 c, %0; cvt.rn.f16x2.e4m3x2 %0, c;}" : "+r"(x));"#,
    ),
    ("lop3", r#"asm volatile("lop3.b32 %0, %0, %1, 0x55555555, 0x6a;" : "+r"(x) : "r"(y));"#),
    ("shf", r#"asm volatile("shf.l.wrap.b32 %0, %0, %1, 5;" : "+r"(x) : "r"(y));"#),
    ("imad", r#"asm volatile("mad.lo.u32 %0, %0, %1, %1;" : "+r"(x) : "r"(y));"#),
    ("hfma2_bf16", r#"asm volatile("fma.rn.bf16x2 %0, %0, %1, %1;" : "+r"(x) : "r"(y));"#),
    ("lds", r#"asm volatile("ld.shared.b32 %0, [%0];" : "+r"(x));"#),
    ("lds_remote", r#"asm volatile("ld.shared::cluster.b32 %0, [%0];" : "+r"(x));"#),
];

/// The kernel of a pipe, in place of FUNCTION, REGISTERS, BODY and SUM.
const TEXT: &str = r#"
extern "C" __global__ void __cluster_dims__(2, 1, 1) FUNCTION(const __grid_constant__ Params params) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    __shared__ unsigned own[1024], cluster[1024];
    const unsigned y = params.y, near = static_cast<unsigned>(__cvta_generic_to_shared(&own[threadIdx.x]));
    const unsigned there = static_cast<unsigned>(__cvta_generic_to_shared(&cluster[threadIdx.x]));
    unsigned far, here;
    asm volatile(
        "{.reg .b32 rank;\nmov.u32 rank, %%cluster_ctarank;\nmapa.shared::cluster.u32 %1, %2, rank;\n"
        "xor.b32 rank, rank, 1;\nmapa.shared::cluster.u32 %0, %2, rank;}"
        : "=&r"(far), "=&r"(here)
        : "r"(there));
    own[threadIdx.x] = near;
    cluster[threadIdx.x] = here;
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    REGISTERS
    const unsigned begun = clock();
#pragma unroll 1
    for (unsigned turn = 0; turn < params.turns; ++turn) {
        BODY
    }
    __syncthreads();
    const unsigned ended = clock();
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        params.to[0] = ended - begun;
    }
    if ((SUM) == 0x12345678u + far + near) {
        params.to[1] = y;
    }
}
"#;

pub(super) fn program() -> Program {
    let mut text = String::from("struct Params { unsigned* to; unsigned turns; unsigned y; };\n");
    let mut functions = Vec::new();
    let register = |i: usize| format!("x{}", i % REGISTERS);
    for (name, statement) in PIPES {
        let function = format!("experiment_pipe_{name}");
        let first = match name {
            "lds" => "near",
            "lds_remote" => "far",
            _ => "threadIdx.x + y",
        };
        let body: String =
            (0..UNROLLED).map(|i| statement.replace("(x)", &format!("({})", register(i))) + "\n").collect();
        let registers: String =
            (0..REGISTERS).map(|i| format!("unsigned {} = {first};\n", register(i))).collect();
        let sum = (0..REGISTERS).map(register).collect::<Vec<_>>().join(" ^ ");
        let kernel = TEXT.replace("FUNCTION", &function).replace("REGISTERS", &registers);
        text += &kernel.replace("BODY", &body).replace("SUM", &sum);
        functions.push(function);
    }
    written("experiment_pipes", text, functions, 0)
}

pub(super) fn run() -> Option<String> {
    let mut stream = device(&[program()])?;
    let to = stream.zeros("clocks", 8).unwrap().address;
    let turns: u32 = if on_gpu() { 64 } else { 1 };
    let names = [
        "experiment_pipe_f2fp_e4m3",
        "experiment_pipe_lop3",
        "experiment_pipe_shf",
        "experiment_pipe_imad",
        "experiment_pipe_hfma2_bf16",
        "experiment_pipe_lds",
        "experiment_pipe_lds_remote",
    ];
    let shape = LaunchShape { grid: [2, 1, 1], threads: 32 * WARPS, shared_bytes: 0 };
    let mut found = Vec::new();
    for (name, (pipe, _)) in names.into_iter().zip(PIPES) {
        // The first run brings the code.
        for _ in 0..2 {
            stream.launch(name, shape, &Params { to, turns, y: 3 }).unwrap();
        }
        let clocks = stream.read::<u32>(to, 1).unwrap()[0].max(1);
        let lanes = f64::from(32 * WARPS) * f64::from(turns) * UNROLLED as f64;
        found.push(format!("{pipe} {:.1}", lanes / f64::from(clocks)));
    }
    Some(format!("lanes of a multiprocessor a clock: {}", found.join(", ")))
}
