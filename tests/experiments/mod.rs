//! Experiments for a GPU that is at hand for minutes: each prints one line, and `scripts/gpu-check --experiments` runs them in the
//! order of their value. `docs/measurements/next-gpu.md` has what is predicted and what each decides.
//!
//! Over the emulator they run with small sizes, which shows that they run to their end and that the kernels that they change are
//! still the ones that they were written for; its numbers mean nothing. With TEST_GPU they run over the machine's first GPU, a Hopper,
//! with the sizes of Kimi K2; what they compile is in the folder that TEST_GPU names, put there by `every_program_compiles` with
//! EXPERIMENTS_CACHE.

mod absorb;
mod attention;
mod bits;
mod code;
mod exchange;
mod latents;
mod pipes;
mod products;
mod prompts;
mod router;
mod sampler;

use std::env;
use std::sync::Arc;

use perigee_cuda::{Arch, CacheSettings, Driver, Kernel, KernelCache, Limits, Program, Stream};

use crate::emulated::{TestDriver, compilations, on_gpu};
use crate::kernels::nvrtc;

/// A test for each experiment, which prints its line.
macro_rules! experiments {
    ($($name:ident => $run:path;)*) => {$(
        #[test]
        fn $name() {
            match $run() {
                Some(line) => println!("{}: {line}", stringify!($name)),
                None => println!("{}: left out: no Hopper, or no NVRTC for the emulator", stringify!($name)),
            }
        }
    )*};
}

experiments! {
    bits_of_mma_and_wgmma => bits::run;
    attention_by_split => attention::splits;
    attention_by_role => attention::roles;
    attention_of_drafts => attention::drafts;
    products_from_cache_and_memory => products::run;
    sampler_of_rows => sampler::run;
    router_beside_shared => router::run;
    latents_behind_projections => latents::run;
    absorb_by_tensor_cores => absorb::run;
    combine_by_tensor_cores => absorb::combine;
    pipe_rates => pipes::run;
    cold_code => code::run;
    expand_by_wgmma => prompts::run;
    exchange_of_two_ranks => exchange::run;
    exchange_through_host_memory => exchange::through_host;
    exchange_of_attention => exchange::attention;
}

/// What the experiments compile beside the kernels that ship.
fn programs() -> Vec<Program> {
    let mut all = vec![bits::program(), code::program(), pipes::program(), sampler::program()];
    all.extend(attention::programs());
    all
}

/// Compiles all programs, and leaves them in the kernel cache that EXPERIMENTS_CACHE names.
#[test]
fn every_program_compiles() {
    let Some(folder) = env::var_os("EXPERIMENTS_CACHE") else {
        let Some(compilations) = compilations() else { return };
        for program in programs() {
            compilations.code(&program).unwrap_or_else(|error| panic!("{error}"));
        }
        return;
    };
    let settings = CacheSettings { dir: Some(folder.into()), max_bytes: 1 << 30, create: true };
    let cache = KernelCache::open(&settings, Ok(Arc::new(nvrtc(None).expect("NVRTC"))));
    std::thread::scope(|scope| {
        for program in programs() {
            let cache = &cache;
            scope.spawn(move || cache.get(&program).map(drop).unwrap_or_else(|error| panic!("{error}")));
        }
    });
}

/// A device with these programs beside the kernels that ship, or in their place where functions have the same names; `None`: no
/// Hopper, or no NVRTC for the emulator.
fn device(programs: &[Program]) -> Option<Stream<TestDriver>> {
    let driver = TestDriver::new(Arch::Sm90a, None)?;
    if driver.arch() != Arch::Sm90a {
        return None;
    }
    let mut stream = Stream::new(driver).unwrap();
    programs.iter().try_for_each(|program| stream.load_program(program)).unwrap();
    Some(stream)
}

/// A kernel that ships, with changes to its text; each `from` is in it once.
fn edited(kernel: &Kernel, changes: &[(&str, &str)]) -> Program {
    let mut program = Program::new(kernel, Arch::Sm90a).unwrap();
    for (from, to) in changes {
        assert_eq!(program.text.matches(from).count(), 1, "{}: {from}", kernel.name);
        program.text = program.text.replacen(from, to, 1);
    }
    program
}

/// A program of its own text.
fn written(name: &'static str, text: String, functions: Vec<String>, shared_bytes: u32) -> Program {
    let kernel = Kernel {
        name,
        text: "",
        functions: &[],
        archs: &[Arch::Sm90a],
        options: |_| &[],
        limits: Limits { registers: 255, local_memory: false },
        shared_bytes: |_| 0,
    };
    let mut program = Program::new(&kernel, Arch::Sm90a).unwrap();
    (program.text, program.functions, program.shared_bytes) = (text, functions, shared_bytes);
    program
}

/// Median time in microseconds of one of `count` calls of `enqueue`, which are recorded and replayed.
fn micros(
    stream: &mut Stream<TestDriver>,
    count: usize,
    mut enqueue: impl FnMut(&mut Stream<TestDriver>, usize),
) -> f64 {
    stream.driver().begin_capture().unwrap();
    (0..count).for_each(|call| enqueue(stream, call));
    let graph = stream.driver().end_capture().unwrap();
    let replays = if on_gpu() { 9 } else { 1 };
    let mut times = Vec::new();
    // The first one is not counted.
    for replay in 0..=replays {
        stream.driver().begin_timing().unwrap();
        stream.driver().replay(&graph).unwrap();
        let time = stream.driver().end_timing().unwrap();
        if replay > 0 {
            times.push(time.as_secs_f64() * 1e6 / count as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
