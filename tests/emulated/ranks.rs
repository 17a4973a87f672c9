//! What ranks exchange on devices that run side by side: sums in the order of the ranks, to the bit, whichever device is ahead.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use perigee::boot::engine::{
    Devices, EngineError, EngineOptions, EngineProgress, GivenDevices, StartedEngine, start_on, start_on_gpus,
};
use perigee::boot::equipped::{Equipped, EquippedGpus};
use perigee::config::{self, Environment, FlagValue, LoadRequest};
use perigee_cpu::{CpuBackend, CpuOptions};
use perigee_cuda::kernels::all_reduce::{self, Layout, Link, LinkState, Operation, Rows, Variant, Wire};
use perigee_cuda::{Arch, Buffer, CudaBackend, Program, Stream};
use perigee_decoding::sampling::SamplingParams;
use perigee_decoding::speculation;
use perigee_engine::scheduler::FinishReason;
use perigee_model::Blueprint;
use perigee_model::checkpoint::Checkpoint;
use perigee_ops::host::Group;
use perigee_ops::{
    Activations, AttentionExchange, AttentionForm, Backend, BlockId, CacheDtype, ContextSplit, Outcomes,
    Parallelism, SampleRow, SampleRows, SeqSlot, SlotSpec, StepPlan, TokenSource,
};
use perigee_telemetry::Metrics;

use super::{Counts, TestDriver, on_gpu, sampler};
use crate::eagle3;
use crate::engine::{Reply, finish, options, prompt, request, run_all, runtime};
use crate::golden::{
    BLOCK_SIZE, check_typical, golden_folder, golden_prompts, largest_difference, load_folder, step,
};
use crate::mtp;
use crate::ranks;

const EPS: f32 = 1e-5;

/// Devices with an area each.
struct Ranks {
    streams: Vec<Stream<TestDriver>>,
    links: Vec<Link>,
    layout: Layout,
    gain: Vec<Buffer>,
    columns: usize,
}

/// One sum: rows of each rank, and what is on the device.
struct Sum {
    partial: Vec<Vec<f32>>,
    hidden: Vec<f32>,
    rows: Vec<Rows>,
    adds: bool,
    normalises: bool,
    wire: Wire,
}

/// Ticks of emulated waits: the clock counts the instructions of a warp.
const PATIENCE: u32 = 3;

impl Ranks {
    fn new(world: usize, arch: Arch, seed: Option<u64>, columns: usize, rows: usize) -> Option<Self> {
        let drivers = TestDriver::several(world, arch, seed)?;
        let mut streams: Vec<_> = drivers.into_iter().map(|driver| Stream::new(driver).unwrap()).collect();
        let layout = Layout::new(world, columns, rows);
        let areas: Vec<Buffer> = streams
            .iter_mut()
            .map(|stream| all_reduce::new_area(stream, layout.bytes(), 0).unwrap())
            .collect();
        let mut addresses = [0; all_reduce::MAX_RANKS];
        addresses.iter_mut().zip(&areas).for_each(|(address, area)| *address = area.address);
        let links = streams
            .iter_mut()
            .enumerate()
            .map(|(rank, stream)| Link {
                areas: addresses,
                state: stream.store("state", &[LinkState::default()]).unwrap().address,
                world: world as u32,
                rank: rank as u32,
                patience: PATIENCE,
                padding: 0,
            })
            .collect();
        let gains: Vec<f32> = (0..columns).map(|i| 1.0 + (i % 7) as f32 / 8.0).collect();
        let gain = streams.iter_mut().map(|stream| stream.store("gain", &gains).unwrap()).collect();
        Some(Self { streams, links, layout, gain, columns })
    }

    /// Values that a sum in another order would change, with both zeros, subnormals and numbers that are none.
    fn sum(&mut self, rng: &mut fastrand::Rng, num_rows: usize, adds: bool, normalises: bool) -> Sum {
        let count = num_rows * self.columns;
        let mut value = |special: bool| match rng.u32(0..if special { 12 } else { 1000 }) {
            0 => -0.0,
            1 => f32::from_bits(rng.u32(1..0x0080_0000)),
            _ => (rng.f32() - 0.5) * 2f32.powi(rng.i32(-12..12)),
        };
        let partial: Vec<Vec<f32>> =
            (0..self.streams.len()).map(|_| (0..count).map(|_| value(true)).collect()).collect();
        let hidden: Vec<f32> = (0..count).map(|_| value(false)).collect();
        let rows = self
            .streams
            .iter_mut()
            .zip(&partial)
            .zip(&self.gain)
            .map(|((stream, partial), gain)| Rows {
                partial: stream.store("partial", partial).unwrap().address,
                hidden: stream.store("hidden", &hidden).unwrap().address,
                adds,
                gain: if normalises { gain.address } else { 0 },
                normed: stream.zeros("normed", 4 * count).unwrap().address,
                rounded: stream.zeros("rounded", 2 * count).unwrap().address,
                eps: EPS,
            })
            .collect();
        let wire = if rng.u32(0..3) == 0 { Wire::Bf16 } else { Wire::F32 };
        Sum { partial, hidden, rows, adds, normalises, wire }
    }

    fn launch(&mut self, sum: &Sum, variant: Variant) {
        let num_rows = sum.hidden.len() / self.columns;
        for ((stream, link), rows) in self.streams.iter_mut().zip(&self.links).zip(&sum.rows) {
            let variant = (variant, sum.wire);
            all_reduce::launch(stream, link, &self.layout, variant, Operation::Ffn, num_rows, rows).unwrap();
        }
    }

    /// Every rank has the sum in the order of the ranks, and its norm.
    fn check(&mut self, sum: &Sum, about: &str) {
        let count = sum.hidden.len();
        let mut expected = vec![0f32; count];
        let crossing = |value: f32| match sum.wire {
            Wire::F32 => value,
            Wire::Bf16 => half::bf16::from_f32(value).to_f32(),
        };
        for partial in &sum.partial {
            expected.iter_mut().zip(partial).for_each(|(sum, value)| *sum += crossing(*value));
        }
        expected.iter_mut().for_each(|sum| *sum = crossing(*sum));
        if sum.adds {
            expected.iter_mut().zip(&sum.hidden).for_each(|(sum, hidden)| *sum += hidden);
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let mut norms = Vec::new();
        for (rank, stream) in self.streams.iter_mut().enumerate() {
            let rows = &sum.rows[rank];
            let hidden = stream.read::<f32>(rows.hidden, count).unwrap();
            // Of two sums that are 0 the sign may differ: the host begins with the first value.
            let same = hidden
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.to_bits() == b.to_bits() || (*a == 0.0 && *b == 0.0));
            assert!(same, "{about}: rank {rank}");
            let normed = stream.read::<f32>(rows.normed, count).unwrap();
            let rounded = stream.read::<half::bf16>(rows.rounded, count).unwrap();
            if sum.normalises {
                assert!(
                    rounded
                        .iter()
                        .zip(&normed)
                        .all(|(a, b)| a.to_bits() == half::bf16::from_f32(*b).to_bits())
                );
            }
            norms.push((bits(&normed), bits(&hidden)));
        }
        assert!(norms.windows(2).all(|pair| pair[0] == pair[1]), "{about}: ranks differ");
        let (row, gain) = (&expected[..self.columns], 1.0);
        let square = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / self.columns as f64;
        let first = f64::from(row[0]) * gain / (square + f64::from(EPS)).sqrt();
        let got = f64::from(f32::from_bits(norms[0].0[0]));
        let expected = if sum.normalises { first } else { 0.0 };
        assert!((got - expected).abs() <= 1e-5 * expected.abs().max(1e-3), "{about}: {got} for {expected}");
    }

    /// What the ranks say of waits that did not end.
    fn states(&mut self) -> Vec<LinkState> {
        let states = self.streams.iter_mut().zip(&self.links);
        states.map(|(stream, link)| stream.read::<LinkState>(link.state, 1).unwrap()[0]).collect()
    }

    fn set_options(&mut self, races: bool, late_stores: bool) {
        let set = |options: &mut perigee_emulator::machine::Options| {
            (options.races, options.late_stores) = (races, late_stores);
        };
        self.streams[0].driver().set_options(set);
    }
}

/// A row of sums of all variants, one behind the other without a wait between, as many times as `rounds`.
fn run(world: usize, arch: Arch, seed: Option<u64>, races: bool, columns: usize, sizes: &[usize]) -> bool {
    let Some(mut ranks) = Ranks::new(world, arch, seed, columns, 24) else { return false };
    ranks.set_options(races, seed.is_some_and(|seed| seed % 2 == 1));
    let mut rng = fastrand::Rng::with_seed(seed.unwrap_or(0));
    // What they need first: the launches then have nothing between them that all devices come to.
    let sums: Vec<_> = (0..)
        .zip(sizes)
        .map(|(at, num_rows)| {
            let variant = Variant::ALL[rng.usize(0..Variant::ALL.len())];
            let sum = ranks.sum(&mut rng, *num_rows, at % 3 != 0, at % 4 != 3);
            let about =
                format!("{arch}, {world} ranks, seed {seed:?}, sum {at} of {num_rows} rows, {variant:?}");
            (sum, variant, about)
        })
        .collect();
    sums.iter().for_each(|(sum, variant, _)| ranks.launch(sum, *variant));
    for (sum, _, about) in &sums {
        ranks.check(sum, about);
    }
    let num_sums = ranks.states()[0].epoch;
    assert!(num_sums >= sizes.len() as u32);
    for state in ranks.states() {
        assert_eq!(state, LinkState { epoch: num_sums, busy: state.busy, ..LinkState::default() });
    }
    true
}

/// Equal to the sum in the order of the ranks on all ranks, in all variants, whoever is ahead and however late stores come.
#[test]
fn sums_go_by_rank_to_the_bit() {
    let mut seed = 0;
    for (arch, world) in [(Arch::Sm80, 2), (Arch::Sm90a, 4), (Arch::Sm100a, 8), (Arch::Sm120a, 4)] {
        for races in [true, false, false, false, false, false] {
            seed += 1;
            if !run(world, arch, Some(seed), races, 64, &[1, 5, 3, 17, 1, 1, 2, 9, 40, 4]) {
                return;
            }
        }
    }
    // Whole rows of the family: every thread has columns, some of them three times.
    run(4, Arch::Sm90a, Some(77), false, 7168, &[1, 6, 2]);
}

/// The same in ten thousand orders: minutes, for who changes the protocol.
#[test]
#[ignore = "a measurement of minutes"]
fn sums_go_by_rank_in_ten_thousand_orders() {
    let kinds = [(Arch::Sm80, 2), (Arch::Sm90a, 4), (Arch::Sm100a, 8), (Arch::Sm120a, 4)];
    for seed in 0..10_000 {
        let (arch, world) = kinds[seed as usize % kinds.len()];
        let rows = 1 + seed as usize % 5;
        assert!(run(world, arch, Some(1000 + seed), seed % 8 == 1, 64, &[rows, 1, 3, rows + 7, 2]));
        if seed % 500 == 499 {
            println!("{} orders", seed + 1);
        }
    }
}

/// Faults in the protocol, one at a time: each is found, as a race, as a wait that does not end or as a wrong sum.
#[test]
fn faults_of_the_protocol_are_found() {
    // A GPU has no compiler beside it, and a strong memory.
    if on_gpu() {
        return;
    }
    const ALL_FOUR: &str =
        "while (words.x == EMPTY || words.y == EMPTY || words.z == EMPTY || words.w == EMPTY) {";
    use Variant::{PullOneShot, PullTwoShot, PushOneShot, PushTwoShot};
    const PUSHED: [Variant; 4] = [PushOneShot, PushOneShot, PushTwoShot, PushTwoShot];
    const PULLED: [Variant; 4] = [PullOneShot, PullOneShot, PullTwoShot, PullTwoShot];
    const FENCE: &str = "    if (threadIdx.x == 0) {\n        system_fence();\n        raise();";
    type Plant<'a> = (&'a str, [Variant; 4], &'a [(&'a str, &'a str)]);
    let plants: [Plant<'_>; 10] = [
        // A reader that takes what it finds without looking whether it has come.
        ("does not wait", PUSHED, &[(ALL_FOUR, "while (false) {")]),
        // The next but one sum finds what this one left.
        ("places are not emptied", PUSHED, &[("    put(at, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));\n", "")]),
        // A rank that is ahead overwrites what another one has not read.
        ("one generation", PUSHED, &[("epoch % 2 *", "epoch % 1 *"), ("(epoch % 2)", "(epoch % 1)")]),
        ("-0 is sent", PUSHED, &[("return bits == EMPTY ? 0 : bits;", "return bits;")]),
        ("weak stores", PUSHED, &[("st.relaxed.sys.global.v4.u32", "st.global.v4.u32")]),
        ("does not wait for a flag", PULLED, &[("if (static_cast<u32>(pair) == RAISED &&", "if (true ||")]),
        ("one generation of rows", PULLED, &[("(epoch % 2)", "(epoch % 1)")]),
        ("a flag without a fence", PULLED, &[(FENCE, "    if (threadIdx.x == 0) {\n        raise();")]),
        ("a flag of an earlier sum", PULLED, &[("- (epoch + 1) <= 1", "- (epoch + 1) <= 1 || true")]),
        (
            "a flag before the rows",
            PULLED,
            &[(
                "    __syncwarp();\n    __syncthreads();\n    if (threadIdx.x == 0) {\n        system_fence();\n        raise",
                "    if (threadIdx.x == 0) {\n        system_fence();\n        raise",
            )],
        ),
    ];
    for (name, variants, changes) in plants {
        let found = (1..=12).any(|seed| {
            // Threads of several warps have columns.
            let Some(mut ranks) = Ranks::new(3, Arch::Sm90a, Some(seed), 512, 24) else { return true };
            let mut program = Program::new(&all_reduce::KERNEL, Arch::Sm90a).unwrap();
            for (right, wrong) in changes {
                assert!(program.text.contains(right), "{name}: {right}");
                program.text = program.text.replace(right, wrong);
            }
            ranks.streams.iter_mut().for_each(|stream| stream.load_program(&program).unwrap());
            ranks.set_options(seed % 2 == 0, seed % 2 == 1);
            let run = std::panic::AssertUnwindSafe(|| {
                let mut rng = fastrand::Rng::with_seed(seed);
                let sums: Vec<_> =
                    (0..8).map(|at| ranks.sum(&mut rng, [3, 5, 9][at % 3], true, true)).collect();
                for (at, sum) in sums.iter().enumerate() {
                    ranks.launch(sum, variants[at % 4]);
                }
                sums.iter().for_each(|sum| ranks.check(sum, name));
                assert!(ranks.states().iter().all(|state| state.failed == 0), "{name}: a wait");
            });
            std::panic::catch_unwind(run).is_err()
        });
        assert!(found, "{name} is not found");
    }
}

/// A rank that never comes: the wait ends, says for whom it was, and no later one waits again.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let Some(mut ranks) = Ranks::new(4, Arch::Sm90a, Some(3), 64, 24) else { return };
    let mut rng = fastrand::Rng::with_seed(1);
    let first = ranks.sum(&mut rng, 2, true, true);
    ranks.launch(&first, Variant::PushOneShot);
    for variant in [Variant::PushOneShot, Variant::PushTwoShot, Variant::PullOneShot, Variant::PullTwoShot] {
        let sum = ranks.sum(&mut rng, 8, true, true);
        for rank in [0, 1, 3] {
            let (stream, link) = (&mut ranks.streams[rank], &ranks.links[rank]);
            let variant = (variant, Wire::F32);
            all_reduce::launch(
                stream,
                link,
                &ranks.layout,
                variant,
                Operation::Attention,
                8,
                &sum.rows[rank],
            )
            .unwrap();
        }
    }
    ranks.check(&first, "before");
    for (rank, state) in ranks.states().into_iter().enumerate() {
        match rank {
            2 => assert_eq!((state.failed, state.epoch), (0, 1)),
            _ => assert_eq!(
                (state.failed, state.peer, state.at, state.epoch),
                (Operation::Attention as u32 + 1, 2, 1, 5),
                "rank {rank}"
            ),
        }
    }
}

/// The backend on devices that share a model; `None` without NVRTC.
fn group(
    world: usize,
    arch: Arch,
    seed: Option<u64>,
    arithmetic: Activations,
    parallelism: Parallelism,
) -> Option<Group<CudaBackend<TestDriver>>> {
    let drivers = TestDriver::several(world, arch, seed)?;
    let ranks = drivers.into_iter().map(|driver| CudaBackend::new(driver, arithmetic).unwrap()).collect();
    Some(Group::with(ranks, parallelism).unwrap())
}

/// So many devices with a part of every block and whole experts each.
pub(crate) fn in_parts(world: usize, seed: Option<u64>) -> Option<Group<CudaBackend<TestDriver>>> {
    group(world, Arch::Sm120a, seed, Activations::F32, parts(world))
}

/// So many devices with a part of every expert and head each.
pub(crate) fn whole(world: usize, arch: Arch, seed: Option<u64>) -> Option<Group<CudaBackend<TestDriver>>> {
    group(world, arch, seed, Activations::F32, WHOLE)
}

/// Every expert and every head in parts, all positions on every device.
const WHOLE: Parallelism = Parallelism { expert_groups: 1, context: ContextSplit::Whole };

/// A part of every block on each device, and so many groups of experts.
pub(super) const fn parts(expert_groups: usize) -> Parallelism {
    Parallelism { expert_groups, context: ContextSplit::Split(AttentionExchange::Heads) }
}

/// As [`parts`], with latents as what is exchanged.
const fn latents(expert_groups: usize) -> Parallelism {
    Parallelism { expert_groups, context: ContextSplit::Split(AttentionExchange::Latents) }
}

/// A golden checkpoint on so many devices, with the emulator's seed and the way they share it.
type Shared = (&'static str, usize, Arch, Option<u64>, Parallelism);

/// Logits of devices that share a network are those of an independent implementation, in both forms, whole and in chunks; and so is
/// what is written.
fn check_golden_logits(all: &[Shared]) {
    let mut rng = fastrand::Rng::with_seed(53);
    for (name, world, arch, seed, parallelism) in all.iter().copied() {
        let folder = tempfile::tempdir().unwrap();
        ranks::write_with_doubled_heads(name, folder.path());
        let Some(group) = group(world, arch, seed, Activations::F32, parallelism) else { return };
        let mut model = load_folder(group, folder.path(), CacheDtype::F32);
        let about = format!("{name} on {world} devices, {parallelism:?}");
        ranks::check(&about, &mut model, (name, 1), &mut rng);
    }
}

#[test]
fn devices_that_share_a_model_give_golden_logits() {
    check_golden_logits(&[
        ("kimi", 2, Arch::Sm90a, Some(2), WHOLE),
        ("moonlight", 4, Arch::Sm120a, None, WHOLE),
        ("kimi", 2, Arch::Sm120a, Some(3), parts(2)),
        ("moonlight", 4, Arch::Sm90a, Some(4), parts(2)),
        ("thinking", 8, Arch::Sm100a, None, parts(8)),
        ("grouped", 4, Arch::Sm80, Some(6), parts(4)),
        ("moonlight", 2, Arch::Sm120a, Some(9), latents(1)),
    ]);
}

/// More of them: what shares code with those above.
#[test]
#[ignore = "a minute"]
fn devices_that_share_a_model_give_golden_logits_in_more_ways() {
    check_golden_logits(&[
        ("thinking", 8, Arch::Sm80, None, WHOLE),
        ("grouped", 4, Arch::Sm100a, Some(5), WHOLE),
        ("kimi", 4, Arch::Sm90a, Some(8), latents(2)),
    ]);
}

/// Sums that cross in bf16: near the golden logits, with the same bits whole and in chunks, whichever way their rows are summed.
#[test]
fn sums_in_bf16_stay_near_golden_logits() {
    let Some(drivers) = TestDriver::several(4, Arch::Sm120a, Some(7)) else { return };
    let backend = |driver| {
        let mut backend = CudaBackend::new(driver, Activations::F32).unwrap();
        backend.set_wire(Wire::Bf16);
        backend
    };
    let group = Group::with(drivers.into_iter().map(backend).collect(), parts(1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    ranks::write_with_doubled_heads("kimi", folder.path());
    let mut model = load_folder(group, folder.path(), CacheDtype::F32);
    let prompt = &golden_prompts("kimi")[1];
    let whole = step(&mut model, &prompt.token_ids, 0, AttentionForm::Expanded);
    let vocab = model.blueprint().vocab_size;
    let rows = whole.chunks(vocab).zip(prompt.logits.chunks(vocab));
    let differences: Vec<f32> = rows.map(|(a, b)| largest_difference(a, b)).collect();
    assert!(differences.iter().any(|difference| *difference > 1e-3), "nothing was rounded");
    check_typical(differences);
    let mut chunked = Vec::new();
    for (at, chunk) in prompt.token_ids.chunks(7).enumerate() {
        chunked.extend(step(&mut model, chunk, 7 * at, AttentionForm::Expanded));
    }
    assert!(whole == chunked, "chunks change bits");
}

/// Replies of an engine on this backend: requests of every kind together, then some of them again, which find their prompts in the
/// prefix cache. A step is small, so that prompts come in chunks, and blocks are few, so that sequences are preempted.
fn replies<B: Backend>(backend: B) -> Vec<Reply> {
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = options();
    options.scheduler.max_num_seqs = 4;
    options.scheduler.max_num_batched_tokens = 32;
    options.scheduler.max_model_len = 128;
    options.num_blocks = 12;
    options.speculation = speculation::Config { adaptive: false, ..speculation::Config::default() };
    let equipped = Equipped::new(backend, CacheDtype::F32);
    let metrics = Arc::new(Metrics::new("golden", true));
    let engine = start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ()).unwrap();
    let base = SamplingParams { max_tokens: 12, logprobs: Some(5), ..Default::default() };
    let wanted = |i: u64| {
        let params = match i % 5 {
            0 => SamplingParams { temperature: 0.0, ..base.clone() },
            1 => SamplingParams { temperature: 1.0, seed: i, ..base.clone() },
            2 => SamplingParams { temperature: 0.8, top_p: 0.9, seed: i, ..base.clone() },
            3 => SamplingParams { temperature: 1.2, top_k: 20, min_p: 0.02, seed: i, ..base.clone() },
            _ => SamplingParams {
                temperature: 0.7,
                repetition_penalty: 1.3,
                presence_penalty: 0.5,
                seed: i,
                ..base.clone()
            },
        };
        request(&prompt(8 + 11 * (i as usize % 4), i), params)
    };
    let mut all = Vec::new();
    for wave in [0..7, 2..5] {
        all.extend(runtime().block_on(run_all(&engine.handle, wave.map(wanted).collect())));
    }
    finish(engine);
    all
}

/// What two and four devices write is what one backend of the host writes: greedy, drawn, filtered, penalised, with logprobs and drafts.
#[test]
fn devices_that_share_a_model_write_what_one_writes() {
    let cpu = CpuBackend::new(CpuOptions { activations: Activations::F32, threads: 1, ..Default::default() });
    let expected = replies(cpu);
    for (world, arch, parallelism) in
        [(2, Arch::Sm90a, WHOLE), (4, Arch::Sm120a, parts(2)), (2, Arch::Sm100a, latents(2))]
    {
        let Some(group) = group(world, arch, None, Activations::F32, parallelism) else { return };
        for (at, (got, wanted)) in replies(group).iter().zip(&expected).enumerate() {
            assert_eq!(got.tokens, wanted.tokens, "{world} devices, request {at}");
            for ((id, got), (wanted_id, wanted)) in got.bits().1.into_iter().zip(wanted.bits().1) {
                let off = (f32::from_bits(got) - f32::from_bits(wanted)).abs();
                assert!(id == wanted_id && off < 1e-3, "{world} devices, request {at}: {id} {off}");
            }
        }
    }
}

/// Drafts of devices that share a model are the golden ones, and a prediction layer is what it is on one.
#[test]
fn drafts_of_devices_that_share_a_model_match() {
    if group(2, Arch::Sm90a, None, Activations::F32, WHOLE).is_none() {
        return;
    }
    eagle3::check(|| group(2, Arch::Sm90a, None, Activations::F32, parts(2)).unwrap(), &eagle3::DRAFTS);
    mtp::check(|| group(2, Arch::Sm120a, None, Activations::F32, parts(2)).unwrap());
}

/// What a recorded step of ranks is: two sums a layer and one for the table, and with parts of the keys two exchanges a layer more, in one
/// replay; what the host does for it is what it does for one device, and asking whether all waits have ended.
#[test]
fn a_recorded_step_of_ranks_has_two_exchanges_a_layer_and_four_with_parts_of_the_keys() {
    // Three layers of ten launches and two sums, a dense one of one launch less; the table with its sum, and the first norm.
    check_recorded_step(WHOLE, 38);
    check_recorded_step(parts(2), 38 + 3 * 2);
    // Merging and projecting are two launches.
    check_recorded_step(latents(2), 38 + 3 * 3);
}

fn check_recorded_step(parallelism: Parallelism, num_launches: u64) {
    let Some(drivers) = TestDriver::several(2, Arch::Sm90a, None) else { return };
    let counts: Vec<_> = drivers.iter().map(|driver| driver.counts.clone()).collect();
    let ranks = drivers.into_iter().map(|driver| CudaBackend::new(driver, Activations::Bf16).unwrap());
    let group = Group::with(ranks.collect(), parallelism).unwrap();
    let mut model = load_folder(group, &golden_folder("kimi"), CacheDtype::Bf16);
    let decode = |model: &mut _, at: u32| step(model, &[7 + at], at as usize, AttentionForm::Absorbed);
    (0..3).for_each(|at| drop(decode(&mut model, at)));
    let before: Vec<Counts> = counts.iter().map(|counts| *counts.lock().unwrap()).collect();
    decode(&mut model, 3);
    for (counts, before) in counts.iter().zip(before) {
        let after = *counts.lock().unwrap();
        assert!(after.recorded == 0 || after.recorded == num_launches, "{} are recorded", after.recorded);
        assert_eq!(after.replays - before.replays, 1);
        assert_eq!(after.uploads - before.uploads, 1, "the plan");
        assert_eq!(after.allocations, before.allocations);
    }
}

/// The rows that logits are products of are in a plan, which the next one replaces: a draw behind that compares none with the other ranks.
#[test]
fn a_draw_behind_a_step_without_logits_reads_none_of_its_plan() {
    let Some(group) = group(2, Arch::Sm90a, None, Activations::F32, WHOLE) else { return };
    let mut model = load_folder(group, &golden_folder("kimi"), CacheDtype::F32);
    let slot = SeqSlot(0);
    let spec = SlotSpec { prompt: &[], reply: &[], counts: false, logit_bias: &[], stops: &[] };
    model.open_slot(slot, &spec).unwrap();
    step(&mut model, &[7], 0, AttentionForm::Absorbed);
    let mut plan = StepPlan::default();
    let tokens = (0..8).map(TokenSource::from);
    plan.add(tokens, 1, 0, &[BlockId(0)], BLOCK_SIZE);
    model.forward(&plan).unwrap();
    let rows = vec![SampleRow { slot, ..sampler::plain(0) }];
    let ticket = model.sample(&SampleRows { rows, ..SampleRows::default() }).unwrap();
    model.wait(ticket, &mut Outcomes::default()).unwrap();
}

/// A link that loses what is stored through it ends the start with the ranks' numbers.
#[test]
fn a_link_that_loses_words_is_found_at_the_start() {
    if on_gpu() {
        return;
    }
    let Some(mut drivers) = TestDriver::several(2, Arch::Sm90a, None) else { return };
    drivers[1].plant = Some(|program| {
        let right = "return bits == EMPTY ? 0 : bits;";
        assert!(program.kernel != "all_reduce" || program.text.contains(right));
        program.text = program.text.replace(right, "return bits == EMPTY ? 0 : bits & 0xffbfffffu;");
    });
    let ranks = drivers.into_iter().map(|driver| CudaBackend::new(driver, Activations::F32).unwrap());
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = options();
    (options.scheduler.max_num_seqs, options.scheduler.max_num_batched_tokens) = (4, 32);
    let metrics = Arc::new(Metrics::new("golden", true));
    let equipped = EquippedGpus::new(ranks.collect()).as_ranks(WHOLE).unwrap();
    let error =
        start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ()).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("what rank 1 has stored for rank 0 has not arrived as it was"), "{text}");
}

/// Why an engine on two devices ends that shares a model so, with what is done to the programs of the second one.
fn ends_with(parallelism: Parallelism, plant: fn(&mut Program)) -> Option<String> {
    let mut drivers = TestDriver::several(2, Arch::Sm90a, None)?;
    drivers[1].plant = Some(plant);
    let backend = |driver| {
        let mut backend = CudaBackend::new(driver, Activations::F32).unwrap();
        // A tick: a million instructions of a warp.
        backend.set_wait(Duration::from_millis(2));
        backend
    };
    let equipped =
        EquippedGpus::new(drivers.into_iter().map(backend).collect()).as_ranks(parallelism).unwrap();
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = options();
    (options.scheduler.max_num_seqs, options.scheduler.max_num_batched_tokens) = (1, 16);
    options.scheduler.max_model_len = 256;
    options.num_blocks = 32;
    let metrics = Arc::new(Metrics::new("golden", true));
    let engine = match start_on(equipped, &checkpoint, blueprint, &options, metrics, &mut |_| ()) {
        Ok(engine) => engine,
        Err(error) => return Some(error.to_string()),
    };
    let params = SamplingParams { temperature: 0.0, max_tokens: 60, ..Default::default() };
    let reply = runtime().block_on(run_all(&engine.handle, vec![request(&prompt(8, 1), params)])).remove(0);
    assert_eq!(reply.finish, FinishReason::Error, "{} tokens", reply.tokens.len());
    let reason = engine.thread.join().unwrap().unwrap_err();
    assert!(!engine.handle.snapshot().alive);
    Some(reason)
}

/// A rank that stops to give in the middle of a reply: the other one's wait ends, the request ends with an error, and the engine ends and
/// says which rank did not answer in which exchange.
#[test]
fn a_rank_that_stops_ends_the_engine_with_its_name() {
    if on_gpu() {
        return;
    }
    // The check of the links and the warm-up take a hundred exchanges.
    let stops = ends_with(WHOLE, |program| {
        if program.kernel == "all_reduce" {
            stop_at::<200>(program);
        }
    });
    let Some(reason) = stops else { return };
    assert!(reason.contains("for rank 1 in the sum behind") && reason.contains("exchange 2"), "{reason}");
    let stops = ends_with(parts(1), |program| {
        if program.kernel == "exchange" {
            stop_at::<300>(program);
        }
    });
    let reason = stops.unwrap();
    assert!(reason.contains("for rank 1 in the exchange of") && reason.contains("exchange 3"), "{reason}");
}

/// A rank that computes something else than the others, in the last bits of a norm: found before a token of it is used.
#[test]
fn ranks_that_diverge_end_the_engine() {
    if on_gpu() {
        return;
    }
    let reason = ends_with(WHOLE, |program| {
        let right = "sums[step][i] = __fadd_rn(own[i], sums[step][i]);";
        assert!(program.kernel != "all_reduce" || program.text.contains(right));
        program.text =
            program.text.replace(right, "sums[step][i] = 1.0000002f * __fadd_rn(own[i], sums[step][i]);");
    });
    let Some(reason) = reason else { return };
    assert!(reason.contains("has computed other rows than rank"), "{reason}");
}

/// What the memory plan says that a device takes is what it takes. In f32, whose weights are not in tiles, which small matrices do not
/// fill.
#[test]
fn the_memory_plan_is_what_devices_allocate() {
    let folder = tempfile::tempdir().unwrap();
    ranks::write_with_doubled_heads("kimi", folder.path());
    for (world, parallelism) in [(1, WHOLE), (2, WHOLE), (4, parts(2)), (8, parts(1))] {
        check_plan(folder.path(), None, world, parallelism);
    }
    let draft = eagle3::oracle().join("draft-mla");
    for world in [1, 2] {
        check_plan(&eagle3::oracle().join("target"), Some(&draft), world, WHOLE);
    }
}

fn check_plan(folder: &Path, draft: Option<&Path>, world: usize, parallelism: Parallelism) {
    let Some(drivers) = TestDriver::several(world, Arch::Sm90a, None) else { return };
    let checkpoint = Checkpoint::open(folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let counts: Vec<_> = drivers.iter().map(|driver| driver.counts.clone()).collect();
    let backends = drivers.into_iter().map(|driver| CudaBackend::new(driver, Activations::F32).unwrap());
    let mut options = options();
    (options.scheduler.max_num_seqs, options.scheduler.max_num_batched_tokens) = (4, 32);
    (options.scheduler.max_model_len, options.num_blocks) = (256, 512);
    options.parallelism = parallelism;
    if let Some(draft) = draft {
        options.speculation = speculation::Config {
            method: speculation::Method::Eagle3,
            draft: Some(draft.into()),
            ..speculation::Config::default()
        };
    }
    let metrics = Arc::new(Metrics::new("golden", true));
    let mut planned = None;
    let mut note = |at| {
        if let EngineProgress::Planned(plan) = at {
            planned = Some(plan);
        }
    };
    let gpus = EquippedGpus::new(backends.collect());
    finish(start_on_gpus(gpus, &checkpoint, blueprint, &options, metrics, &mut note).unwrap());
    let plan = planned.unwrap();
    let bytes = (plan.weights_bytes + plan.workspace_bytes + plan.cache_bytes) / world as u64;
    for counts in &counts {
        let allocated = counts.lock().unwrap().allocated_bytes;
        let ratio = allocated as f64 / bytes as f64;
        println!(
            "{world} devices, {parallelism:?}, draft {}: {allocated} of {bytes}, {ratio:.3}",
            draft.is_some()
        );
        assert!((0.98..=1.02).contains(&ratio), "{world}, {parallelism:?}: {allocated} for {bytes}");
    }
}

/// Where a cache that is whole on each device has no room for the longest sequence, the devices divide it, unless they may not.
#[test]
fn devices_divide_a_cache_that_is_too_small_whole() {
    let checkpoint = Checkpoint::open(&golden_folder("kimi")).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let start = |cache_bytes: u64, divides_if_small| {
        let drivers = TestDriver::several(2, Arch::Sm90a, None)?;
        let backends = drivers.into_iter().map(|driver| CudaBackend::new(driver, Activations::F32).unwrap());
        let mut options = options();
        (options.scheduler.max_num_seqs, options.scheduler.max_num_batched_tokens) = (1, 16);
        (options.scheduler.max_model_len, options.block_size) = (64, 8);
        (options.num_blocks, options.cache_bytes) = (if cache_bytes == 0 { 8 } else { 0 }, cache_bytes);
        (options.parallelism, options.divides_if_small) = (WHOLE, divides_if_small);
        let metrics = Arc::new(Metrics::new("golden", true));
        let mut planned = None;
        let mut note = |at| {
            if let EngineProgress::Planned(plan) = at {
                planned = Some((plan.cache_bytes, plan.num_blocks));
            }
        };
        let gpus = EquippedGpus::new(backends.collect());
        let started = start_on_gpus(gpus, &checkpoint, blueprint.clone(), &options, metrics, &mut note);
        Some((started, planned))
    };
    let Some((whole, Some((bytes, blocks)))) = start(0, None) else { return };
    finish(whole.unwrap());
    // Room for three quarters of it.
    let bytes = bytes / blocks as u64 * 6;
    let refused = start(bytes, None).unwrap().0.map(drop).unwrap_err().to_string();
    assert!(refused.contains("holds 48 tokens, less than one sequence"), "{refused}");
    let (divided, planned) = start(bytes, Some(AttentionExchange::Heads)).unwrap();
    let divided = divided.unwrap();
    assert_eq!(planned, Some((bytes, 12)));
    let params = SamplingParams { temperature: 0.0, max_tokens: 4, ..Default::default() };
    let reply = runtime().block_on(run_all(&divided.handle, vec![request(&prompt(50, 1), params)])).remove(0);
    assert_eq!(reply.tokens.len(), 4);
    finish(divided);
}

/// An engine on devices of which one is lost at a random call, or whose exchanges stop at a random one: whatever it was doing, the start or
/// the requests end, and so does the engine, with a reason. Returns the reason; `None`: all was over before.
fn lose_a_device(seed: u64) -> Option<String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let world = [2, 4][rng.usize(0..2)];
    let parallelism = [WHOLE, parts(1), parts(2)][rng.usize(0..3)];
    let mut drivers = TestDriver::several(world, Arch::Sm90a, Some(seed))?;
    let lost = rng.usize(0..world);
    // What an exchange that stops does not write is read.
    drivers[0].set_options(|options| options.uninitialized = false);
    match rng.bool() {
        true => drivers[lost].calls_left = Some(rng.u64(0..1200)),
        false => {
            // Each of the exchange kernels ends before it gives anything, from some exchange on.
            const LIMITS: [fn(&mut Program); 4] =
                [stop_at::<0>, stop_at::<60>, stop_at::<170>, stop_at::<280>];
            drivers[lost].plant = Some(LIMITS[rng.usize(0..LIMITS.len())]);
        }
    }
    let backend = |driver| {
        let mut backend = CudaBackend::new(driver, Activations::F32)?;
        backend.set_wait(Duration::from_millis(2));
        Ok::<_, perigee_ops::OpError>(backend)
    };
    let backends = match drivers.into_iter().map(backend).collect::<Result<Vec<_>, _>>() {
        Ok(backends) => backends,
        Err(error) => return Some(error.to_string()),
    };
    let folder = golden_folder("kimi");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let mut options = options();
    (options.scheduler.max_num_seqs, options.scheduler.max_num_batched_tokens) = (2, 16);
    (options.scheduler.max_model_len, options.num_blocks) = (128, 16);
    options.parallelism = parallelism;
    let metrics = Arc::new(Metrics::new("golden", true));
    let gpus = EquippedGpus::new(backends);
    let engine = match start_on_gpus(gpus, &checkpoint, blueprint, &options, metrics, &mut |_| ()) {
        Ok(engine) => engine,
        Err(error) => return Some(error.to_string()),
    };
    let params = |seed| SamplingParams { temperature: 1.0, seed, max_tokens: 10, ..Default::default() };
    let requests = (0..3).map(|i| request(&prompt(6 + 5 * i as usize, i), params(i))).collect();
    let replies = runtime().block_on(run_all(&engine.handle, requests));
    engine.handle.shutdown();
    let ended = engine.thread.join().unwrap().err();
    let failed = replies.iter().any(|reply| reply.finish == FinishReason::Error);
    assert!(!failed || ended.is_some(), "seed {seed}: a request failed, and the engine did not");
    ended
}

/// Lets the exchanges of a device end at once from a number of them on.
fn stop_at<const EXCHANGES: u32>(program: &mut Program) {
    let begin = "    const Exchange exchange = begin_exchange(link);\n";
    let is_exchange = ["all_reduce", "exchange"].contains(&program.kernel.as_str());
    assert_eq!(program.text.contains(begin), is_exchange, "{}", program.kernel);
    let stop = format!("{begin}    if (exchange.epoch > {EXCHANGES}) {{\n        return;\n    }}\n");
    program.text = program.text.replace(begin, &stop);
}

/// So many random losses. None hangs, or this would not end; each says what was lost, or who was waited for.
fn lose_devices(seeds: std::ops::Range<u64>) {
    if on_gpu() || TestDriver::several(2, Arch::Sm90a, None).is_none() {
        return;
    }
    let mut ended = 0;
    for seed in seeds.clone() {
        if let Some(reason) = lose_a_device(seed) {
            let known =
                ["the device is lost", "has waited", "has not arrived as it was", "other rows than rank"];
            assert!(known.iter().any(|known| reason.contains(known)), "seed {seed}: {reason}");
            ended += 1;
        }
    }
    println!("{ended} of {} engines ended", seeds.end - seeds.start);
    assert!(ended > 0);
}

#[test]
fn a_device_that_is_lost_anywhere_ends_the_engine() {
    lose_devices(0..8);
}

/// The same a thousand times, or those of LOSSES, as in 200..300: hours.
#[test]
#[ignore = "a measurement of hours"]
fn devices_are_lost_a_thousand_times() {
    let losses = std::env::var("LOSSES").unwrap_or("0..1000".into());
    let (first, end) = losses.split_once("..").expect("LOSSES as in 200..300");
    lose_devices(1000 + first.parse::<u64>().unwrap()..1000 + end.parse::<u64>().unwrap());
}

/// Devices that nobody starts: options name them.
struct Named;

impl Devices for Named {
    fn name(&self) -> String {
        "emulated".into()
    }

    fn start(
        &self,
        _: Activations,
        _: &Checkpoint,
        _: Blueprint,
        _: &EngineOptions,
        _: Arc<Metrics>,
        _: &mut dyn FnMut(EngineProgress),
    ) -> Result<StartedEngine, EngineError> {
        unreachable!("the test starts the engine")
    }
}

/// Every shipped profile of several GPUs starts an engine on as many emulated devices, with the steps, cache and splits that it
/// names, on a small checkpoint of the family's layout.
#[test]
fn profiles_of_several_gpus_start() {
    let mut rng = fastrand::Rng::with_seed(5);
    let folder = tempfile::tempdir().unwrap();
    ranks::write_with_doubled_heads("kimi", folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let blueprint = Blueprint::parse(&checkpoint.file("config.json").unwrap()).unwrap();
    let (mut sharded, mut kinds) = (0, HashSet::new());
    for profile in [
        "kimi-k26-reap192-4x-rtx-pro-6000",
        "kimi-k26-mxfp4",
        "kimi-k26-nvfp4-8x-b200",
        "kimi-k26-nvfp4-8x-b300",
        "kimi-k27-code-nvfp4",
    ] {
        let flag = |key: &str, value: String| FlagValue { key: key.into(), value, flag: "--set".into() };
        let flags = vec![
            flag("model.path", folder.path().display().to_string()),
            flag("speculation.method", "off".into()),
        ];
        let load = LoadRequest { config: None, profile: Some(profile.into()), flags };
        let mut settings = config::load(&load, &Environment::of(&[])).unwrap().settings;
        // The small network has fewer positions, and this machine less memory.
        settings.scheduler.max_model_len = 256;
        settings.kv_cache.num_blocks = 64;
        // Recordings of 256 rows would take most of the test's time.
        settings.scheduler.max_num_seqs = settings.scheduler.max_num_seqs.min(16);
        let world = settings.device.ranks;
        assert!(world > 1, "{profile}");
        // Two of one kind differ in what is not the devices' concern.
        let kind = (world, &settings.kv_cache, &settings.scheduler, &settings.parallel);
        if !kinds.insert(format!("{kind:?}")) {
            continue;
        }
        let arch = [Arch::Sm100a, Arch::Sm120a][usize::from(profile.contains("rtx"))];
        let Some(drivers) = TestDriver::several(world, arch, None) else { return };
        let devices = GivenDevices(Arc::new(Named));
        let options = EngineOptions::on_devices(&settings, &blueprint, devices);
        sharded += usize::from(options.parallelism.context != ContextSplit::Whole);
        let backend = |driver| CudaBackend::new(driver, Activations::Bf16).unwrap();
        let gpus = EquippedGpus::new(drivers.into_iter().map(backend).collect());
        let metrics = Arc::new(Metrics::new("profiles", true));
        let engine =
            start_on_gpus(gpus, &checkpoint, blueprint.clone(), &options, metrics, &mut |_| ()).unwrap();
        let prompt = prompt(rng.usize(3..40), 1);
        let params = SamplingParams { temperature: 0.0, max_tokens: 3, ..Default::default() };
        let reply = runtime().block_on(run_all(&engine.handle, vec![request(&prompt, params)])).remove(0);
        assert_eq!(reply.tokens.len(), 3, "{profile}");
        finish(engine);
    }
    assert_eq!(sharded, 1, "one profile has a cache in parts");
}
