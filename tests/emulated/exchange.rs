//! What ranks with a part of every block each give one another for attention: whole, in any order, and merged as one softmax is.

use perigee_cuda::kernels::all_reduce::{self, Link, LinkState, MAX_RANKS};
use perigee_cuda::kernels::exchange::{self, Exchange, Layout, Rows};
use perigee_cuda::kernels::mla_decode::RowEntry;
use perigee_cuda::{Arch, CudaBackend, Program, Stream};
use perigee_ops::host::{Group, Share};
use perigee_ops::{Activations, AttentionExchange, AttentionForm, CacheDtype, MlaShape};

use super::ranks::parts;
use super::{TestDriver, on_gpu};
use crate::golden::{golden_folder, golden_prompts, largest_difference, load_folder, step};

/// Five heads: three ranks do not have the same number of them.
const SHAPE: MlaShape = MlaShape {
    num_heads: 5,
    qk_nope_head_dim: 8,
    qk_rope_head_dim: 4,
    v_head_dim: 132,
    kv_lora_rank: 260,
    scale: 1.0,
};

/// Most rows of a pass, and rows of a step.
const ROWS: usize = 6;

/// Values of a head in both exchanges.
fn widths(form: AttentionExchange) -> [usize; 2] {
    match form {
        AttentionExchange::Heads => [12, 132],
        AttentionExchange::Latents => [264, 260],
    }
}

/// Ranks with an exchange each.
struct Ranks {
    form: AttentionExchange,
    streams: Vec<Stream<TestDriver>>,
    exchanges: Vec<Exchange>,
}

/// A pass of each rank: what it gives, and where it gets the others'.
struct Pass {
    /// Rows of the step.
    rows: Vec<u32>,
    /// By rank `[ROWS, h * W]`.
    queries: Vec<Vec<f32>>,
    /// By rank `[A, H * V]`.
    values: Vec<Vec<f32>>,
    /// By rank `[A, H, 2]`.
    statistics: Vec<Vec<f32>>,
    /// By rank: both exchanges in device memory.
    memory: Vec<[Rows; 2]>,
}

fn heads(rank: usize, world: usize) -> std::ops::Range<usize> {
    Share { rank, world }.of(SHAPE.num_heads, 1)
}

impl Ranks {
    fn new(world: usize, arch: Arch, seed: u64, form: AttentionExchange) -> Option<Self> {
        let drivers = TestDriver::several(world, arch, Some(seed))?;
        let mut streams: Vec<_> = drivers.into_iter().map(|driver| Stream::new(driver).unwrap()).collect();
        let layout = Layout::new(world, &SHAPE, ROWS, form);
        let mut areas = [0; MAX_RANKS];
        for (area, stream) in areas.iter_mut().zip(&mut streams) {
            *area = all_reduce::new_area(stream, layout.bytes(), layout.meeting_bytes()).unwrap().address;
        }
        let exchange = |(rank, stream): (usize, &mut Stream<TestDriver>)| Exchange {
            link: Link {
                areas,
                state: stream.store("state", &[LinkState::default()]).unwrap().address,
                world: world as u32,
                rank: rank as u32,
                patience: 3,
                padding: 0,
            },
            layout,
            places: 0,
            meeting_places: layout.bytes() as u64,
            meetings: stream.zeros("meetings", 4).unwrap().address,
        };
        let exchanges = streams.iter_mut().enumerate().map(exchange).collect();
        let set = |options: &mut perigee_emulator::machine::Options| {
            (options.races, options.late_stores) = (seed.is_multiple_of(3), seed % 2 == 1);
        };
        streams[0].driver().set_options(set);
        Some(Self { form, streams, exchanges })
    }

    /// Values with both zeros and subnormals, and ranks without keys of a row.
    fn pass(&mut self, rng: &mut fastrand::Rng, num_rows: usize) -> Pass {
        let world = self.streams.len();
        let mut rows: Vec<u32> = (0..ROWS as u32).collect();
        rng.shuffle(&mut rows);
        rows.truncate(num_rows);
        let mut values = |count: usize| -> Vec<f32> {
            let value = |rng: &mut fastrand::Rng| match rng.u32(0..12) {
                0 => -0.0,
                1 => f32::from_bits(rng.u32(1..0x0080_0000)),
                _ => rng.f32() - 0.5,
            };
            (0..count).map(|_| value(rng)).collect()
        };
        let [width, value] = widths(self.form);
        let queries: Vec<_> =
            (0..world).map(|rank| values(ROWS * heads(rank, world).len() * width)).collect();
        let count = num_rows * SHAPE.num_heads;
        let mut parts: Vec<_> = (0..world).map(|_| values(count * value)).collect();
        let mut statistics: Vec<Vec<f32>> = Vec::new();
        for part in &mut parts {
            let mut all = Vec::new();
            for values in part.chunks_exact_mut(value) {
                match rng.u32(0..4) {
                    0 => {
                        all.extend([f32::NEG_INFINITY, 0.0]);
                        values.fill(0.0);
                    }
                    _ => all.extend([rng.f32() * 8.0 - 4.0, 1.0 + rng.f32()]),
                }
            }
            statistics.push(all);
        }
        let mut list = vec![num_rows as u32, 0];
        for row in &rows {
            let entry = RowEntry { row: *row, first_item: 0, num_keys: 1, table: 0, group: 1 };
            list.extend_from_slice(bytemuck::cast_slice(&[entry]));
        }
        let memory = (0..world)
            .map(|rank| {
                let stream = &mut self.streams[rank];
                let pass = stream.store("pass", &list).unwrap().address;
                let mut store =
                    |values: &[f32]| stream.store("rows", if values.is_empty() { &[0.0] } else { values });
                let (from, part) =
                    (store(&queries[rank]).unwrap().address, store(&parts[rank]).unwrap().address);
                let statistics = store(&statistics[rank]).unwrap().address;
                let mut zeros = |bytes: usize| stream.zeros("rows", bytes.max(4)).unwrap().address;
                let gathered = zeros(4 * count * width);
                let own = ROWS * heads(rank, world).len() * value;
                let (attended, rounded) = (zeros(4 * own), zeros(2 * own));
                [
                    Rows { pass, from, statistics: 0, to: gathered, rounded: 0 },
                    Rows { pass, from: part, statistics, to: attended, rounded },
                ]
            })
            .collect();
        Pass { rows, queries, values: parts, statistics, memory }
    }

    fn launch(&mut self, pass: &Pass) {
        for ((stream, exchange), [queries, attended]) in
            self.streams.iter_mut().zip(&self.exchanges).zip(&pass.memory)
        {
            exchange.queries(stream, queries).unwrap();
            exchange.meet(stream).unwrap();
            exchange.attended(stream, attended).unwrap();
        }
    }

    fn check(&mut self, pass: &Pass, about: &str) {
        let world = self.streams.len();
        let [width, value] = widths(self.form);
        // Where a rank has row `at` of the pass.
        let own_row = |at: usize| match self.form {
            AttentionExchange::Heads => pass.rows[at] as usize,
            AttentionExchange::Latents => at,
        };
        let mut gathered = Vec::new();
        for at in 0..pass.rows.len() {
            for (rank, queries) in pass.queries.iter().enumerate() {
                let own = heads(rank, world).len() * width;
                gathered.extend_from_slice(&queries[own_row(at) * own..][..own]);
            }
        }
        for (rank, stream) in self.streams.iter_mut().enumerate() {
            let [queries, attended] = &pass.memory[rank];
            let got: Vec<f32> = stream.read(queries.to, gathered.len().max(1)).unwrap();
            let same = got.iter().zip(&gathered).all(|(got, wanted)| got == wanted);
            assert!(same, "{about}: queries of rank {rank}");
            let own = heads(rank, world);
            let count = ROWS * own.len() * value;
            let got: Vec<f32> = stream.read(attended.to, count).unwrap();
            let rounded: Vec<half::bf16> = stream.read(attended.rounded, count).unwrap();
            assert!(got.iter().zip(&rounded).all(|(x, y)| half::bf16::from_f32(*x).to_bits() == y.to_bits()));
            for (at, row) in pass.rows.iter().enumerate() {
                for head in own.clone() {
                    let place = at * SHAPE.num_heads + head;
                    let part = |rank: usize| {
                        (
                            [0, 1].map(|i| f64::from(pass.statistics[rank][2 * place + i])),
                            &pass.values[rank][place * value..][..value],
                        )
                    };
                    let peak = (0..world).map(|rank| part(rank).0[0]).fold(f64::NEG_INFINITY, f64::max);
                    let weight = |rank: usize| match part(rank).0 {
                        [_, 0.0] => 0.0,
                        [largest, sum] => sum * (largest - peak).exp(),
                    };
                    let total: f64 = (0..world).map(weight).sum();
                    let first = (own_row(at) * own.len() + head - own.start) * value;
                    for (i, got) in got[first..][..value].iter().enumerate() {
                        let sum: f64 = (0..world).map(|rank| weight(rank) * f64::from(part(rank).1[i])).sum();
                        let wanted = if total == 0.0 { 0.0 } else { sum / total };
                        let off = (f64::from(*got) - wanted).abs();
                        assert!(
                            off <= 1e-6,
                            "{about}: rank {rank}, row {row}, head {head}: {got} for {wanted}"
                        );
                    }
                }
            }
        }
    }

    fn states(&mut self) -> Vec<LinkState> {
        let states = self.streams.iter_mut().zip(&self.exchanges);
        states
            .map(|(stream, exchange)| stream.read::<LinkState>(exchange.link.state, 1).unwrap()[0])
            .collect()
    }
}

/// Passes of any number of rows, one behind the other without a wait between, in any order of the devices.
fn run(
    world: usize,
    arch: Arch,
    seed: u64,
    form: AttentionExchange,
    change: Option<(&str, &str)>,
) -> Option<()> {
    let mut ranks = Ranks::new(world, arch, seed, form)?;
    if let Some((right, wrong)) = change {
        let mut program = Program::new(&exchange::KERNEL, arch).unwrap();
        assert!(program.text.contains(right), "{right}");
        program.text = program.text.replace(right, wrong);
        ranks.streams.iter_mut().for_each(|stream| stream.load_program(&program).unwrap());
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let passes: Vec<_> = [1, 3, 0, 6, 2, 1].map(|rows| ranks.pass(&mut rng, rows)).into();
    passes.iter().for_each(|pass| ranks.launch(pass));
    for (at, pass) in passes.iter().enumerate() {
        ranks.check(pass, &format!("{arch}, {world} ranks, seed {seed}, pass {at}"));
    }
    for state in ranks.states() {
        assert_eq!(
            state,
            LinkState { epoch: 10, busy: state.busy, ..LinkState::default() },
            "a pass without rows is no exchange"
        );
    }
    Some(())
}

#[test]
fn parts_of_attention_come_together_in_any_order() {
    use AttentionExchange::{Heads, Latents};
    for (arch, world, form) in [
        (Arch::Sm80, 2, Heads),
        (Arch::Sm90a, 3, Heads),
        (Arch::Sm100a, 4, Heads),
        (Arch::Sm120a, 5, Heads),
        (Arch::Sm90a, 2, Latents),
        (Arch::Sm120a, 3, Latents),
    ] {
        for seed in 0..6 {
            if run(world, arch, 10 * world as u64 + seed, form, None).is_none() {
                return;
            }
        }
    }
}

/// Faults in the protocol, one at a time: each is found, as a race, as a wait that does not end or as a wrong result.
#[test]
fn faults_of_the_exchange_are_found() {
    // A GPU has no compiler beside it.
    if on_gpu() {
        return;
    }
    for change in [
        // The next pass finds what this one left.
        ("    put(at, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));\n", ""),
        ("st.relaxed.sys.global.v4.u32", "st.global.v4.u32"),
        ("return bits == EMPTY ? 0 : bits;", "return bits;"),
        (
            "while (words.x == EMPTY || words.y == EMPTY || words.z == EMPTY || words.w == EMPTY) {",
            "while (false) {",
        ),
        // The rank that has most keys of a row is taken for all.
        (
            "const float weight = sum == 0.0f ? 0.0f : sum * expf(largest - peak);",
            "const float weight = sum;",
        ),
    ] {
        let found = (0..12).any(|seed| {
            std::panic::catch_unwind(|| {
                run(3, Arch::Sm90a, seed, AttentionExchange::Heads, Some(change)).is_none()
            })
            .unwrap_or(true)
        });
        assert!(found, "{} is not found", change.1);
    }
}

/// Logits of a prompt in expanded form, whose keys every rank reads from the memory of the others.
fn expanded(change: Option<(&'static str, &'static str)>, seed: u64) -> Option<f32> {
    let mut drivers = TestDriver::several(2, Arch::Sm90a, Some(seed))?;
    drivers[0].set_options(|options| options.races = true);
    for driver in &mut drivers {
        driver.plant = match change {
            None => None,
            Some(NO_WAIT) => Some(|program: &mut Program| {
                program.text = program.text.replace(NO_WAIT.0, NO_WAIT.1);
            }),
            Some(_) => Some(|program: &mut Program| {
                program.text = program.text.replace(NO_RELEASE.0, NO_RELEASE.1);
            }),
        };
    }
    let ranks = drivers.into_iter().map(|driver| CudaBackend::new(driver, Activations::F32).unwrap());
    let group = Group::with(ranks.collect(), parts(1)).unwrap();
    let mut model = load_folder(group, &golden_folder("kimi"), CacheDtype::F32);
    let prompt = &golden_prompts("kimi")[0];
    let logits = step(&mut model, &prompt.token_ids, 0, AttentionForm::Expanded);
    Some(largest_difference(&logits, &prompt.logits))
}

const NO_WAIT: (&str, &str) =
    ("while (static_cast<int>(static_cast<u32>(look_pair(here) >> 32) - meeting) < 0) {", "while (false) {");
const NO_RELEASE: (&str, &str) =
    ("        system_fence();\n        put_pair(link.areas[other]", "        put_pair(link.areas[other]");

#[test]
fn keys_of_other_ranks_are_read_behind_a_meeting() {
    if on_gpu() {
        return;
    }
    let Some(difference) = expanded(None, 3) else { return };
    assert!(difference <= 1e-3, "{difference}");
    for change in [NO_WAIT, NO_RELEASE] {
        assert!(exchange::KERNEL.text.contains(change.0));
        let found = (1..6).any(|seed| {
            std::panic::catch_unwind(|| expanded(Some(change), seed).is_none_or(|off| off > 1e-3))
                .unwrap_or(true)
        });
        assert!(found, "{} is not found", change.1);
    }
}
