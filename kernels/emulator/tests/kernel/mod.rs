//! Small kernels for the tests: a body of PTX with its declarations, run on a machine of its own.

// Each test file takes what it needs.
#![allow(dead_code)]

use perigee_emulator::case::LaunchShape;
use perigee_emulator::machine::{Machine, Options};

/// Registers that every body may use.
const REGISTERS: &str = ".reg .pred %p<8>, %q<8>;
.reg .b16 %h<16>;
.reg .b32 %r<64>, %f<16>;
.reg .b64 %rd<32>;
.reg .b128 %v<4>;
";

/// A module with one kernel `k` with 64-bit parameters `p0`, `p1`, ... `head` stands before the kernel.
pub(crate) fn module(head: &str, parameters: usize, body: &str) -> String {
    let names: Vec<String> = (0..parameters).map(|index| format!(".param .u64 p{index}")).collect();
    format!(
        ".version 8.8\n.target sm_120a\n.address_size 64\n{head}\n.visible .entry k({})\n{{\n{REGISTERS}{body}\nret;\n}}\n",
        names.join(", ")
    )
}

/// A launch of so many blocks and threads.
pub(crate) fn shape(blocks: u32, threads: u32) -> LaunchShape {
    LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], cluster: [1; 3], dynamic_shared_bytes: 0 }
}

/// A launch of one cluster.
pub(crate) fn cluster(blocks: u32, threads: u32) -> LaunchShape {
    LaunchShape { cluster: [blocks, 1, 1], ..shape(blocks, threads) }
}

/// Options under which a test kernel ends soon, whatever it does.
pub(crate) fn limited() -> Options {
    Options { max_instructions: 5_000_000, ..Options::default() }
}

/// Runs the kernel of a module with these parameters.
pub(crate) fn launch(
    machine: &mut Machine,
    text: &str,
    shape: LaunchShape,
    parameters: &[u64],
) -> Result<(), String> {
    let module = machine.load(0, text)?;
    let kernel = module.kernel("k")?;
    let block: Vec<u8> = parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
    machine.launch(&kernel, shape, &block).map_err(|fault| fault.to_string())?;
    machine.unload(module);
    Ok(())
}

/// New memory with these 32-bit words.
pub(crate) fn words(machine: &mut Machine, words: &[u32]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes_at(machine, &bytes)
}

/// New memory with these bytes.
pub(crate) fn bytes_at(machine: &mut Machine, bytes: &[u8]) -> u64 {
    let address = machine.allocate(0, bytes.len() as u64, 256);
    machine.write(address, bytes).unwrap();
    address
}

/// The 32-bit words at an address.
pub(crate) fn read_words(machine: &mut Machine, address: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    machine.read(address, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Runs a body whose parameter `p0` is an output of `count` words, preset to 0xcccccccc, and returns the words.
/// The registers `%rd0` (output), `%rd1` (output + 4 * thread), `%r0` (thread) are set.
pub(crate) fn run_with(
    options: Options,
    head: &str,
    shape: LaunchShape,
    count: usize,
    body: &str,
) -> Result<Vec<u32>, String> {
    let mut machine = Machine::new(1, options);
    let out = words(&mut machine, &vec![0xcccc_cccc; count]);
    let prologue = "ld.param.u64 %rd0, [p0];
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r1, %r1, %r2, %r0;
mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %rd0;\n";
    let text = module(head, 1, &format!("{prologue}{body}"));
    launch(&mut machine, &text, shape, &[out])?;
    Ok(read_words(&mut machine, out, count))
}

/// [`run_with`] limited options; faults fail the test.
pub(crate) fn run(head: &str, shape: LaunchShape, count: usize, body: &str) -> Vec<u32> {
    run_with(limited(), head, shape, count, body).unwrap_or_else(|error| panic!("{error}\n{body}"))
}

/// A generator of test values: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
