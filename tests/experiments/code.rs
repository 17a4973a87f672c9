//! Cold code: how long instructions take that a multiprocessor has not run before, as most of a step's are at batch 1.

use bytemuck::{Pod, Zeroable};
use perigee_cuda::{LaunchShape, Program};

use super::{device, on_gpu, written};

/// Straight instructions between two clocks.
const LENGTHS: [usize; 4] = [500, 1000, 2000, 4000];
/// Instructions of the kernel in between: 40 KB.
const FILLER: usize = 2560;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    to: u64,
    y: f32,
    padding: u32,
}

/// One warp runs instructions that do not depend on each other; a kernel of a filler takes their place in the caches of every
/// multiprocessor.
pub(super) fn program() -> Program {
    // Not integers: the compiler makes one instruction of several.
    let straight = |count: usize| -> String {
        let one =
            |i| format!("asm volatile(\"fma.rn.f32 %0, %0, %1, %1;\" : \"+f\"(x{}) : \"f\"(y));\n", i % 8);
        (0..count).map(one).collect()
    };
    let registers = (0..8).map(|i| format!("float x{i} = threadIdx.x + {i};\n")).collect::<String>();
    let sum = "x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7";
    let mut text = String::from("struct Params { unsigned* to; float y; unsigned padding; };\n");
    let mut functions = Vec::new();
    for (name, count) in LENGTHS
        .map(|length| (format!("cold_{length}"), length))
        .into_iter()
        .chain([("filler".into(), FILLER)])
    {
        let function = format!("experiment_{name}");
        text += &format!(
            "extern \"C\" __global__ void {function}(const __grid_constant__ Params params) {{\n\
             asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n\
             const float y = params.y;\n{registers}const unsigned begun = clock();\n{}const unsigned ended = clock();\n\
             if (threadIdx.x == 0 && blockIdx.x == 0) {{ params.to[0] = ended - begun; params.to[1] = __float_as_uint({sum}); }}\n}}\n",
            straight(count)
        );
        functions.push(function);
    }
    written("experiment_code", text, functions, 0)
}

pub(super) fn run() -> Option<String> {
    let mut stream = device(&[program()])?;
    let to = stream.zeros("clocks", 8).unwrap().address;
    let params = Params { to, y: 0.5, padding: 0 };
    let shape = |blocks| LaunchShape { grid: [blocks, 1, 1], threads: 32, shared_bytes: 0 };
    let rounds = if on_gpu() { 9 } else { 1 };
    let names =
        ["experiment_cold_500", "experiment_cold_1000", "experiment_cold_2000", "experiment_cold_4000"];
    let mut found = Vec::new();
    for (name, length) in names.into_iter().zip(LENGTHS) {
        let mut clocks = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            stream.launch("experiment_filler", shape(1024), &params).unwrap();
            for clocks in &mut clocks {
                stream.launch(name, shape(1), &params).unwrap();
                clocks.push(stream.read::<u32>(to, 1).unwrap()[0]);
            }
        }
        let [cold, warm] = clocks.map(|mut clocks| {
            clocks.sort_unstable();
            f64::from(clocks[clocks.len() / 2]) / length as f64
        });
        found.push(format!("{length}: {cold:.2} and {warm:.2}"));
    }
    Some(format!(
        "clocks of an instruction, first and second launch behind 40 KB of others: {}",
        found.join("; ")
    ))
}
