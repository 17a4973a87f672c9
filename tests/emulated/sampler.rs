//! The device's sampler against the host's: equal tokens, flags, ranks and ids, logprobs within 1e-5.

use std::collections::VecDeque;
use std::ops::Range;

use perigee_cuda::kernels::all_reduce::{Link, LinkState, MAX_RANKS};
use perigee_cuda::kernels::embed;
use perigee_cuda::kernels::sampler_shards::{Board, Inputs, board_bytes};
use perigee_cuda::{Arch, Buffer, Driver, Matrix, Program, Sampler, Stream, kernels};
use perigee_decoding::guard::is_flat;
use perigee_decoding::sampling::{self, Draw, History, Logprobs, TokenMask};
use perigee_ops::host::Share;
use perigee_ops::{
    OpError, Outcomes, Row, RowFlags, RowOutcome, Rule, SampleRow, SampleRows, SeqSlot, SlotSpec, Ticket,
    TokenId, TokenSource,
};

use super::weights::{Stored, Weight};
use super::{TestDriver, compilations};

const MOST_ROWS: usize = 8;
const NUM_SLOTS: usize = 6;

/// A row's outcome with its most likely ids.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    token: u32,
    flags: RowFlags,
    rank: u32,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

impl Found {
    fn bits(&self) -> (u32, u32, u32, u32, Vec<(u32, u32)>) {
        let top = self.top.iter().map(|&(id, logprob)| (id, logprob.to_bits())).collect();
        (self.token, self.flags.0, self.rank, self.logprob.to_bits(), top)
    }
}

/// The semantics of `ops/host/sampler.rs`, from the public parts of `sampling`.
#[derive(Default)]
struct Host {
    slots: Vec<HostSlot>,
    sampler: sampling::Sampler,
    logprobs: Logprobs,
}

#[derive(Default, Clone)]
struct HostSlot {
    history: History,
    counts: bool,
    logit_bias: Vec<(u32, f32)>,
    stops: Vec<u32>,
    last: u32,
}

impl Host {
    fn open(&mut self, slot: usize, spec: &SlotSpec<'_>) {
        let mut history = History::new(if spec.counts { spec.prompt } else { &[] });
        if spec.counts {
            spec.reply.iter().for_each(|&token| history.add(token));
        }
        self.slots[slot] = HostSlot {
            history,
            counts: spec.counts,
            logit_bias: spec.logit_bias.to_vec(),
            stops: spec.stops.to_vec(),
            last: spec.reply.last().copied().unwrap_or(0),
        };
    }

    fn sample(&mut self, logits: &[f32], vocab: usize, rows: &SampleRows<'_>) -> Vec<Found> {
        let found: Vec<Found> = rows.rows.iter().map(|row| self.row(logits, vocab, row, rows)).collect();
        for (row, found) in rows.rows.iter().zip(&found) {
            let slot = &mut self.slots[row.slot.at()];
            if matches!(row.rule, Rule::Score(_)) {
                continue;
            }
            slot.last = found.token;
            if slot.counts {
                slot.history.add(found.token);
            }
        }
        found
    }

    fn row(&mut self, logits: &[f32], vocab: usize, row: &SampleRow, rows: &SampleRows<'_>) -> Found {
        let slot = &self.slots[row.slot.at()];
        let logits = &logits[row.row.at() * vocab..][..vocab];
        let survey = self.sampler.survey(logits);
        let mut flags = RowFlags::default();
        if !survey.sound || survey.max.is_none() {
            flags = flags.with(RowFlags::NON_FINITE);
        }
        if is_flat(logits) {
            flags = flags.with(RowFlags::FLAT);
        }
        let end = match row.rule {
            Rule::EndIfRankBelow(rank) => likely_end(logits, &slot.stops, rank as usize),
            _ => None,
        };
        let draw = Draw {
            temperature: row.temperature,
            top_p: row.top_p,
            min_p: row.min_p,
            top_k: row.top_k,
            repetition_penalty: row.repetition,
            presence_penalty: row.presence,
            frequency_penalty: row.frequency,
            seed: row.seed,
            position: row.position,
            logit_bias: &slot.logit_bias,
            forbidden: &rows.forbidden[row.forbidden.0 as usize..row.forbidden.1 as usize],
            history: &slot.history,
            mask: rows.masks.get(row.mask as usize).copied(),
        };
        let token = match (row.rule, end) {
            (Rule::Forced(token) | Rule::Score(token), _) => token.0,
            (_, Some(end)) => {
                flags = flags.with(RowFlags::ENDED);
                end
            }
            _ => self.sampler.draw(logits, survey, &draw).unwrap_or(0),
        };
        if row.top == SampleRow::NO_LOGPROBS {
            return Found { token, flags, rank: 0, logprob: 0.0, top: Vec::new() };
        }
        // An id beyond the vocabulary, which a mask can lead to, has no logit and ranks last.
        let inside = token.min(vocab as u32 - 1);
        let mut scored = self.logprobs.of(logits, inside, row.top as usize);
        if inside != token {
            (scored.logprob, scored.rank) = (f32::NEG_INFINITY, vocab as u32 + 1);
        }
        Found { token, flags, rank: scored.rank, logprob: scored.logprob, top: scored.top }
    }
}

fn likely_end(logits: &[f32], stops: &[u32], rank: usize) -> Option<u32> {
    let logit = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let best = stops.iter().copied().max_by(|a, b| logit(a).total_cmp(&logit(b)))?;
    let better = logits.iter().filter(|&&other| other > logit(&best)).count();
    (better < rank && logit(&best).is_finite()).then_some(best)
}

/// Both samplers, with the expected outcomes of the calls in flight.
struct Pair {
    vocab: usize,
    stream: Stream<TestDriver>,
    device: Sampler,
    logits: Buffer,
    /// The ids of the device, and the ranks behind the first one with theirs.
    ids: Range<usize>,
    others: Vec<Shard>,
    host: Host,
    in_flight: VecDeque<Call>,
}

/// A rank that has some of the ids.
struct Shard {
    ids: Range<usize>,
    stream: Stream<TestDriver>,
    device: Sampler,
    logits: Buffer,
}

/// A call whose outcomes are not compared.
struct Call {
    ticket: Ticket,
    expected: Vec<Found>,
    /// The rows whose most likely ids the host finds.
    whole: Vec<Vec<f32>>,
}

/// Makes a row of the logits from a rank's part, which has to be its own.
fn whole_rows(rows: &[Vec<f32>], ids: &Range<usize>) -> impl FnMut(Vec<f32>) -> Result<Vec<f32>, OpError> {
    let mut rows = rows.iter();
    move |part| {
        let row = rows.next().unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&part), bits(&row[ids.clone()]));
        Ok(row.clone())
    }
}

impl Pair {
    fn new(arch: Arch, seed: Option<u64>, vocab: usize) -> Option<Self> {
        let mut stream = Stream::new(TestDriver::new(arch, seed)?).unwrap();
        let device = Sampler::new(&mut stream, vocab, MOST_ROWS, NUM_SLOTS).unwrap();
        let logits = stream.allocate("logits", MOST_ROWS * vocab * 4).unwrap();
        let host = Host { slots: vec![HostSlot::default(); NUM_SLOTS], ..Host::default() };
        let (ids, others) = (0..vocab, Vec::new());
        Some(Self { vocab, stream, device, logits, ids, others, host, in_flight: VecDeque::new() })
    }

    /// The device's sampler on so many ranks, with boards of two rows.
    fn ranks(world: usize, arch: Arch, seed: Option<u64>, vocab: usize) -> Option<Self> {
        const BOARD_ROWS: usize = 2;
        let drivers = TestDriver::several(world, arch, seed)?;
        let mut streams: Vec<_> = drivers.into_iter().map(|driver| Stream::new(driver).unwrap()).collect();
        let mut areas = [0; MAX_RANKS];
        for (area, stream) in areas.iter_mut().zip(&mut streams) {
            *area = stream.zeros("board", board_bytes(world, BOARD_ROWS)).unwrap().address;
        }
        let mut shards: Vec<Shard> = streams
            .into_iter()
            .enumerate()
            .map(|(rank, mut stream)| {
                let link = Link {
                    areas,
                    state: stream.store("state", &[LinkState::default()]).unwrap().address,
                    world: world as u32,
                    rank: rank as u32,
                    patience: 8,
                    padding: 0,
                };
                let rounds = stream.zeros("rounds", 4 * BOARD_ROWS).unwrap().address;
                let board = Board { link, offset: 0, rounds, rows: BOARD_ROWS, inputs: Inputs::default() };
                let ids = Share { rank, world }.of(vocab, 1);
                let (some, slots) = (ids.clone(), NUM_SLOTS);
                let device =
                    Sampler::of_shard(&mut stream, vocab, some, Some(board), MOST_ROWS, slots).unwrap();
                let logits = stream.allocate("logits", MOST_ROWS * ids.len() * 4).unwrap();
                Shard { ids, stream, device, logits }
            })
            .collect();
        let host = Host { slots: vec![HostSlot::default(); NUM_SLOTS], ..Host::default() };
        let Shard { ids, stream, device, logits } = shards.remove(0);
        Some(Self { vocab, stream, device, logits, ids, others: shards, host, in_flight: VecDeque::new() })
    }

    fn open(&mut self, slot: usize, spec: &SlotSpec<'_>) {
        self.host.open(slot, spec);
        self.device.open(&mut self.stream, SeqSlot(slot as u32), spec).unwrap();
        for Shard { stream, device, .. } in &mut self.others {
            device.open(stream, SeqSlot(slot as u32), spec).unwrap();
        }
    }

    /// Opens a slot without bias and stops.
    fn open_counting(&mut self, slot: usize, prompt: &[u32], reply: &[u32]) {
        self.open(slot, &SlotSpec { prompt, reply, counts: true, logit_bias: &[], stops: &[] });
    }

    fn rewind(&mut self, slot: usize, removed: &[u32], last: u32) {
        let state = &mut self.host.slots[slot];
        state.last = last;
        if state.counts {
            removed.iter().for_each(|&token| state.history.remove(token));
        }
        let removed: Vec<TokenId> = removed.iter().map(|&id| TokenId(id)).collect();
        self.device.rewind(&mut self.stream, SeqSlot(slot as u32), &removed, TokenId(last)).unwrap();
        for Shard { stream, device, .. } in &mut self.others {
            device.rewind(stream, SeqSlot(slot as u32), &removed, TokenId(last)).unwrap();
        }
    }

    /// Samples with both; returns what the host found.
    fn sample(&mut self, logits: &[f32], rows: &SampleRows<'_>) -> Vec<Found> {
        let expected = self.host.sample(logits, self.vocab, rows);
        let part = |ids: &Range<usize>| -> Vec<f32> {
            logits.chunks(self.vocab).flat_map(|row| row[ids.clone()].to_vec()).collect()
        };
        let own = part(&self.ids);
        self.stream.driver().upload(self.logits.address, bytemuck::cast_slice(&own)).unwrap();
        let ticket = self.device.sample(&mut self.stream, rows, self.logits.address).unwrap();
        for Shard { ids, stream, device, logits } in &mut self.others {
            stream.driver().upload(logits.address, bytemuck::cast_slice(&part(ids))).unwrap();
            assert_eq!(device.sample(stream, rows, logits.address).unwrap(), ticket);
        }
        let is_whole =
            |row: &&SampleRow| row.top != SampleRow::NO_LOGPROBS && row.top.min(self.vocab as u32) > 256;
        let whole = rows.rows.iter().filter(is_whole);
        let whole = whole.map(|row| logits[row.row.at() * self.vocab..][..self.vocab].to_vec()).collect();
        self.in_flight.push_back(Call { ticket, expected: expected.clone(), whole });
        expected
    }

    /// Compares the oldest call in flight; returns what the device found.
    fn settle(&mut self) -> Vec<Found> {
        let Call { ticket, expected, whole } = self.in_flight.pop_front().expect("a call is in flight");
        let mut out = Outcomes::default();
        self.device.wait(&mut self.stream, ticket, whole_rows(&whole, &self.ids), &mut out).unwrap();
        let all_of = |out: &Outcomes| -> Vec<Found> { out.rows.iter().map(|row| found(out, row)).collect() };
        let found = all_of(&out);
        for Shard { ids, stream, device, .. } in &mut self.others {
            let mut out = Outcomes::default();
            device.wait(stream, ticket, whole_rows(&whole, ids), &mut out).unwrap();
            let theirs: Vec<_> = all_of(&out).iter().map(Found::bits).collect();
            assert_eq!(theirs, found.iter().map(Found::bits).collect::<Vec<_>>(), "ids {ids:?}");
        }
        assert_eq!(found.len(), expected.len());
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let place = format!("row {index} of {ticket:?}, {} ids", self.vocab);
            let whole = |f: &Found| (f.token, f.flags, f.rank, ids(f));
            assert_eq!(whole(found), whole(expected), "{place}");
            let own = [((0, found.logprob), (0, expected.logprob))];
            for (got, wanted) in found.top.iter().copied().zip(expected.top.iter().copied()).chain(own) {
                assert!(got.1 == wanted.1 || (got.1 - wanted.1).abs() < 1e-5, "{place}: {got:?} {wanted:?}");
            }
            // The token's logprob is that of its entry, but for the sign of a zero.
            for &(id, logprob) in found.top.iter().filter(|entry| entry.0 == found.token) {
                assert_eq!(logprob, found.logprob, "{place}: {id}");
            }
        }
        found
    }

    /// Samples, compares, returns what the device found.
    fn check(&mut self, logits: &[f32], rows: &SampleRows<'_>) -> Vec<Found> {
        self.sample(logits, rows);
        self.settle()
    }

    fn check_last_tokens(&mut self) {
        let last: Vec<u32> = self.stream.read(self.device.last_tokens(), NUM_SLOTS).unwrap();
        let expected: Vec<u32> = self.host.slots.iter().map(|slot| slot.last).collect();
        assert_eq!(last, expected);
        for Shard { stream, device, .. } in &mut self.others {
            assert_eq!(stream.read::<u32>(device.last_tokens(), NUM_SLOTS).unwrap(), expected);
        }
    }
}

fn found(out: &Outcomes, row: &RowOutcome) -> Found {
    let top = out.top_of(row).iter().map(|&(id, logprob)| (id.0, logprob)).collect();
    Found { token: row.token.0, flags: row.flags, rank: row.rank, logprob: row.logprob, top }
}

fn ids(found: &Found) -> Vec<u32> {
    found.top.iter().map(|entry| entry.0).collect()
}

/// A greedy row.
pub(crate) fn plain(row: usize) -> SampleRow {
    SampleRow {
        seed: 7,
        position: 0,
        row: Row(row as u32),
        slot: SeqSlot(row as u32 % NUM_SLOTS as u32),
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        mask: SampleRow::NO_MASK,
        forbidden: (0, 0),
        rule: Rule::Draw,
        top: SampleRow::NO_LOGPROBS,
    }
}

fn only(row: SampleRow) -> SampleRows<'static> {
    SampleRows { rows: vec![row], ..SampleRows::default() }
}

/// Logits of one of several kinds: smooth, steep, on a coarse grid with many ties, sprinkled with broken values, flat.
fn logits(rng: &mut fastrand::Rng, vocab: usize) -> Vec<f32> {
    let normal = |rng: &mut fastrand::Rng| (0..6).map(|_| rng.f32() - 0.5).sum::<f32>();
    let kind = rng.usize(0..12);
    let mut row: Vec<f32> = match kind {
        0..=3 => (0..vocab).map(|_| normal(rng) * 4.0).collect(),
        4 | 5 => (0..vocab).map(|_| normal(rng) * 40.0).collect(),
        6..=8 => (0..vocab).map(|_| rng.i32(-8..8) as f32 * 0.5).collect(),
        9 | 10 => (0..vocab).map(|_| rng.f32() * 1e-3).collect(),
        _ => vec![normal(rng); vocab],
    };
    if matches!(kind, 3 | 8) {
        for _ in 0..rng.usize(1..4) {
            row[rng.usize(0..vocab)] =
                [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX][rng.usize(0..6)];
        }
    }
    row
}

fn some_ids(rng: &mut fastrand::Rng, vocab: usize, most: usize) -> Vec<u32> {
    (0..rng.usize(0..=most)).map(|_| rng.u32(0..vocab as u32 + 3)).collect()
}

fn open_at_random(pair: &mut Pair, rng: &mut fastrand::Rng, slot: usize) {
    let vocab = pair.vocab;
    let (prompt, reply) = (some_ids(rng, vocab, 40), some_ids(rng, vocab, 20));
    let mut bias: Vec<(u32, f32)> = Vec::new();
    if rng.bool() {
        // Duplicates too: the order of their sum matters.
        for id in some_ids(rng, vocab, 12) {
            let value = if rng.usize(0..4) == 0 { f32::NEG_INFINITY } else { rng.f32() * 20.0 - 10.0 };
            bias.extend(vec![(id, value); rng.usize(1..3)]);
        }
        rng.shuffle(&mut bias);
    }
    let stops = some_ids(rng, vocab, 4);
    let spec = SlotSpec {
        prompt: &prompt,
        reply: &reply,
        counts: rng.usize(0..3) > 0,
        logit_bias: &bias,
        stops: &stops,
    };
    pair.open(slot, &spec);
}

/// A row with parameters of every kind; `forbidden` and the masks are extended.
fn row_at_random(
    rng: &mut fastrand::Rng,
    vocab: usize,
    place: usize,
    num_masks: usize,
    forbidden: &mut Vec<u32>,
) -> SampleRow {
    let first = forbidden.len() as u32;
    if rng.usize(0..3) == 0 {
        forbidden.extend(some_ids(rng, vocab, 6));
    }
    let penalises = rng.bool();
    let mut choose = |values: &[f32]| values[rng.usize(0..values.len())];
    let (temperature, top_p, min_p) = (
        choose(&[0.0, 0.01, 0.004, 0.7, 1.0, 1.0, 2.0]),
        choose(&[1.0, 1.0, 0.95, 0.9, 0.5, 0.01]),
        choose(&[0.0, 0.0, 0.05, 0.3, 1.0]),
    );
    let (repetition, presence, frequency) = match penalises {
        true => (choose(&[1.0, 1.3, 0.8, 2.0]), choose(&[0.0, 1.5, -0.5]), choose(&[0.0, 0.3, -0.2])),
        false => (1.0, 0.0, 0.0),
    };
    let token = TokenId(rng.u32(0..vocab as u32));
    SampleRow {
        seed: rng.u64(..),
        position: rng.u64(0..1000),
        row: Row(place as u32),
        slot: SeqSlot(place as u32 % NUM_SLOTS as u32),
        temperature,
        top_p,
        min_p,
        top_k: [0, 0, 1, 2, 5, 50, 1000, u32::MAX][rng.usize(0..8)],
        repetition,
        presence,
        frequency,
        mask: if rng.bool() { rng.u32(0..num_masks as u32) } else { SampleRow::NO_MASK },
        forbidden: (first, forbidden.len() as u32),
        rule: match rng.usize(0..10) {
            0 => Rule::Forced(token),
            1 => Rule::Score(token),
            2 | 3 => Rule::EndIfRankBelow([0, 1, 3, 20, u32::MAX][rng.usize(0..5)]),
            _ => Rule::Draw,
        },
        top: [SampleRow::NO_LOGPROBS, SampleRow::NO_LOGPROBS, 0, 1, 5, 20, 256, 257, SampleRow::MAX_TOP]
            [rng.usize(0..9)],
    }
}

fn masks_at_random(rng: &mut fastrand::Rng, vocab: usize) -> Vec<TokenMask> {
    let many: Vec<u32> = (0..vocab as u32).filter(|_| rng.bool()).collect();
    vec![
        TokenMask::of(&some_ids(rng, vocab, 5)),
        TokenMask::of(&many),
        TokenMask::default(),
        TokenMask::from_words(vec![u32::MAX; vocab / 32 + 4]),
        // Beyond the vocabulary alone.
        TokenMask::of(&[vocab as u32 + 40]),
    ]
}

/// Random calls, up to three in flight, with slots opened and rewound between them; what the device found.
fn at_random(pair: &mut Pair, seed: u64, num_calls: usize) -> Vec<Found> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let vocab = pair.vocab;
    (0..NUM_SLOTS).for_each(|slot| open_at_random(pair, &mut rng, slot));
    let mut all = Vec::new();
    for _ in 0..num_calls {
        let num_rows = rng.usize(0..=MOST_ROWS);
        let logits: Vec<f32> = (0..num_rows).flat_map(|_| logits(&mut rng, vocab)).collect();
        let masks = masks_at_random(&mut rng, vocab);
        let mut rows = SampleRows { masks: masks.iter().collect(), ..SampleRows::default() };
        for place in 0..num_rows {
            let row = row_at_random(&mut rng, vocab, place, masks.len(), &mut rows.forbidden);
            rows.rows.push(row);
        }
        rng.shuffle(&mut rows.rows);
        let expected = pair.sample(&logits, &rows);
        match rng.usize(0..4) {
            0 => {
                let slot = rng.usize(0..NUM_SLOTS);
                open_at_random(pair, &mut rng, slot);
            }
            1 if num_rows > 0 && num_rows <= NUM_SLOTS && !matches!(rows.rows[0].rule, Rule::Score(_)) => {
                pair.rewind(rows.rows[0].slot.at(), &[expected[0].token], rng.u32(0..vocab as u32));
            }
            _ => {}
        }
        while pair.in_flight.len() > 2 {
            all.extend(pair.settle());
        }
    }
    while !pair.in_flight.is_empty() {
        all.extend(pair.settle());
    }
    pair.check_last_tokens();
    all
}

#[test]
fn outcomes_are_those_of_the_host() {
    let mut all = Vec::new();
    for (vocab, num_calls) in [(1, 8), (5, 40), (31, 40), (512, 30), (1000, 25), (5000, 12)] {
        for (arch, seed) in [(Arch::Sm80, None), (Arch::Sm90a, Some(vocab as u64))] {
            let Some(mut pair) = Pair::new(arch, seed, vocab) else {
                return;
            };
            all.extend(at_random(&mut pair, vocab as u64 + seed.unwrap_or(99), num_calls));
        }
    }
    // The cases are not all of one kind.
    for flag in [RowFlags::NON_FINITE, RowFlags::FLAT, RowFlags::ENDED] {
        let count = all.iter().filter(|found| found.flags.has(flag)).count();
        assert!(count > 10, "{count} rows with {flag:?}");
    }
}

/// Ranks that have some of the ids each choose what one device chooses that has all of them.
#[test]
fn ranks_choose_what_the_host_chooses() {
    let mut all = Vec::new();
    for (world, arch, vocab, num_calls) in [
        (2, Arch::Sm80, 5, 12),
        (4, Arch::Sm90a, 31, 12),
        (8, Arch::Sm120a, 512, 4),
        (4, Arch::Sm100a, 3000, 3),
    ] {
        for seed in [None, Some(vocab as u64)] {
            let Some(mut pair) = Pair::ranks(world, arch, seed, vocab) else { return };
            pair.stream.driver().set_options(|options| options.races = world == 2);
            all.extend(at_random(&mut pair, vocab as u64 + seed.unwrap_or(99), num_calls));
        }
    }
    for flag in [RowFlags::NON_FINITE, RowFlags::FLAT, RowFlags::ENDED] {
        assert!(all.iter().any(|found| found.flags.has(flag)), "{flag:?}");
    }
}

#[test]
fn the_whole_vocabulary() {
    the_whole_vocabulary_of(Pair::new(Arch::Sm90a, Some(3), VOCAB));
}

#[test]
fn the_whole_vocabulary_by_ranks() {
    the_whole_vocabulary_of(Pair::ranks(2, Arch::Sm90a, Some(3), VOCAB));
}

const VOCAB: usize = 163_840;

fn the_whole_vocabulary_of(pair: Option<Pair>) {
    let Some(mut pair) = pair else { return };
    let mut rng = fastrand::Rng::with_seed(5);
    let row = |place: usize| SampleRow { temperature: 1.0, position: place as u64, ..plain(place) };
    let prompt: Vec<u32> = (0..3000).map(|_| rng.u32(0..VOCAB as u32)).collect();
    pair.open_counting(2, &prompt, &prompt[..50]);
    let mask = TokenMask::of(&(0..VOCAB as u32).filter(|_| rng.bool()).collect::<Vec<_>>());
    let rows = SampleRows {
        rows: vec![
            SampleRow { top_p: 0.95, top: 20, ..row(0) },
            SampleRow { top_k: 50, temperature: 2.0, ..row(1) },
            SampleRow { repetition: 1.2, frequency: 0.1, mask: 0, top_p: 0.999, ..row(2) },
            SampleRow { top: 300, ..row(3) },
        ],
        masks: vec![&mask],
        forbidden: Vec::new(),
    };
    let normal = |rng: &mut fastrand::Rng| (0..6).map(|_| rng.f32() - 0.5).sum::<f32>();
    let logits: Vec<f32> = (0..4 * VOCAB).map(|_| normal(&mut rng) * 5.0).collect();
    let found = pair.check(&logits, &rows);
    assert_eq!(found.iter().map(|found| found.top.len()).collect::<Vec<_>>(), [20, 0, 0, 300]);
}

#[test]
fn every_draw_of_many_positions_is_the_hosts() {
    // Other tests compare few draws of each distribution; here one row meets many noises.
    let Some(mut pair) = Pair::new(Arch::Sm80, None, 97) else {
        return;
    };
    let mut rng = fastrand::Rng::with_seed(21);
    let logits: Vec<f32> = (0..MOST_ROWS * 97).map(|_| rng.f32() * 6.0).collect();
    let mut drawn = std::collections::HashSet::new();
    for position in 0..60 {
        let row = |place| SampleRow {
            temperature: 1.0,
            position,
            seed: place as u64,
            top_p: if place % 2 == 0 { 1.0 } else { 0.8 },
            ..plain(place)
        };
        let rows = SampleRows { rows: (0..MOST_ROWS).map(row).collect(), ..SampleRows::default() };
        drawn.extend(pair.check(&logits, &rows).iter().map(|found| found.token));
    }
    assert!(drawn.len() > 60, "{} ids drawn", drawn.len());
}

#[test]
fn broken_rows() {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    let Some(mut pair) = Pair::new(Arch::Sm90a, Some(1), 5) else {
        return;
    };
    pair.open(
        0,
        &SlotSpec { prompt: &[1], reply: &[2], counts: true, logit_bias: &[(3, 5.0)], stops: &[4, 1] },
    );
    let (finite, flat) = (RowFlags::default(), RowFlags::FLAT);
    let broken = RowFlags::NON_FINITE;
    let cases: &[([f32; 5], RowFlags)] = &[
        ([NAN; 5], broken),
        ([INF; 5], broken.with(flat)),
        ([-INF; 5], broken.with(flat)),
        ([NAN, INF, -INF, NAN, INF], broken),
        ([NAN, 1.0, 2.0, 0.0, 1.5], broken),
        ([0.0, 1.0, INF, 0.0, 1.5], broken),
        ([0.0, INF, 3.0, INF, -NAN], broken),
        ([0.0, 1.0, -INF, 2.0, -INF], finite),
        ([f32::MAX, 1.0, 2.0, 3.0, f32::MIN], finite),
        ([f32::MAX; 5], flat),
        ([-0.0, 0.0, -0.0, 0.0, 0.0], flat),
        ([-2.0, -0.0, 0.0, -1e-30, 1e-40], finite),
    ];
    let rules = [
        Rule::Draw,
        Rule::Forced(TokenId(3)),
        Rule::Score(TokenId(2)),
        Rule::EndIfRankBelow(2),
        Rule::EndIfRankBelow(5),
    ];
    for (row, flags) in cases {
        for rule in rules {
            for (temperature, repetition) in [(0.0, 1.0), (1.0, 1.0), (1.0, 0.5)] {
                let sampled =
                    SampleRow { rule, temperature, repetition, top: 5, top_p: 0.99, seed: 3, ..plain(0) };
                let found = pair.check(row, &only(sampled));
                let ended = RowFlags(found[0].flags.0 & RowFlags::ENDED.0);
                assert_eq!(found[0].flags, flags.with(ended), "{row:?} {rule:?}");
            }
        }
    }
    pair.check_last_tokens();
}

#[test]
fn bans_and_masks_that_leave_nothing() {
    const INF: f32 = f32::INFINITY;
    let Some(mut pair) = Pair::new(Arch::Sm80, Some(2), 5) else {
        return;
    };
    let all = [0, 1, 2, 3, 4];
    let banned: Vec<(u32, f32)> = all.iter().map(|&id| (id, -INF)).collect();
    pair.open(1, &SlotSpec { prompt: &[], reply: &[], counts: false, logit_bias: &banned, stops: &[] });
    let masks = [TokenMask::of(&[0, 3]), TokenMask::of(&[4, 9]), TokenMask::of(&[70]), TokenMask::default()];
    let logits = [1.0, 5.0, 5.0, 1.0, -INF, 1.0, INF, f32::MAX, f32::NAN, -INF];
    for temperature in [0.0, 1.0] {
        // Drawn of row 0, then of row 1, without a mask and with each.
        let expected = [[1, 1], [0, 0], [4, 4], [70, 70], [0, 0]];
        for (mask, expected) in (0..5).map(|at: u32| at.wrapping_sub(1)).zip(expected) {
            let row = |place, slot| SampleRow { temperature, mask, slot: SeqSlot(slot), ..plain(place) };
            let rows = SampleRows {
                // Bans of the call, and those of the slot's bias.
                rows: vec![SampleRow { forbidden: (1, 6), ..row(0, 0) }, row(1, 1)],
                masks: masks.iter().collect(),
                forbidden: vec![9, 0, 1, 2, 3, 4, 7],
            };
            let tokens: Vec<u32> = pair.check(&logits, &rows).iter().map(|found| found.token).collect();
            assert_eq!(tokens, expected, "mask {mask}");
        }
        // A mask and bans that leave one id.
        let rows = SampleRows {
            rows: vec![SampleRow { temperature, mask: 0, forbidden: (0, 2), slot: SeqSlot(0), ..plain(0) }],
            masks: masks.iter().collect(),
            forbidden: vec![0, 1],
        };
        assert_eq!(pair.check(&logits[..5], &rows)[0].token, 3);
    }
}

/// Nothing that a mask can lead to makes the next step read beside the table.
#[test]
fn a_token_beyond_the_vocabulary_is_embedded_within_the_table() {
    const SIZES: [usize; 2] = [1000, 8];
    let Some(mut pair) = Pair::new(Arch::Sm90a, None, SIZES[0]) else { return };
    pair.open_counting(0, &[1], &[]);
    let mask = TokenMask::of(&[1010]);
    let rows = SampleRows { masks: vec![&mask], ..only(SampleRow { mask: 0, ..plain(0) }) };
    assert_eq!(pair.check(&vec![1.0; SIZES[0]], &rows)[0].token, 1010);
    let weight = Weight::random(&mut fastrand::Rng::with_seed(62), Stored::Bf16, SIZES);
    let table = Matrix::load(&mut pair.stream, "embed", &[&weight.view()]).unwrap();
    let word = embed::word(TokenSource::LastSampled(SeqSlot(0)));
    let tokens = pair.stream.store("tokens", &[word]).unwrap().address;
    let hidden = pair.stream.allocate("hidden", 4 * SIZES[1]).unwrap().address;
    embed::launch(
        &mut pair.stream,
        1,
        &table,
        embed::Ids::all_of(&table),
        [tokens, pair.device.last_tokens(), hidden],
    )
    .unwrap();
    let embedded: Vec<f32> = pair.stream.read(hidden, SIZES[1]).unwrap();
    assert_eq!(embedded, weight.view().to_f32()[(SIZES[0] - 1) * SIZES[1]..]);
}

#[test]
fn rewound_counts_are_those_of_a_reply_that_never_had_the_tokens() {
    let Some(mut pair) = Pair::new(Arch::Sm90a, Some(4), 31) else {
        return;
    };
    let logits = vec![1.0; 31];
    // Greedy with a frequency penalty: the first of the ids with the smallest count.
    let row = SampleRow { frequency: 1.0, ..plain(0) };
    let all: Vec<u32> = (0..31).collect();
    pair.open_counting(0, &[3, 3, 40], &all);
    for expected in [0, 1, 2] {
        assert_eq!(pair.check(&logits, &only(row))[0].token, expected);
    }
    pair.rewind(0, &[1, 2], 0);
    pair.check_last_tokens();
    for expected in [1, 2, 3] {
        assert_eq!(pair.check(&logits, &only(row))[0].token, expected);
    }
    // The prompt's mark survives, and a token that was not counted leaves it and the neighbours alone.
    pair.open_counting(0, &[0, 1, 2], &[5]);
    pair.rewind(0, &[5], 9);
    let removed = [TokenId(5), TokenId(0), TokenId(1000)];
    pair.device.rewind(&mut pair.stream, SeqSlot(0), &removed, TokenId(9)).unwrap();
    let row = SampleRow { repetition: 2.0, presence: 1.0, ..plain(0) };
    assert_eq!(pair.check(&logits, &only(row))[0].token, 3);
    // A slot that is opened again has no counts of the sequence before.
    pair.open_counting(0, &[], &[]);
    assert_eq!(pair.check(&logits, &only(row))[0].token, 0);
    pair.check_last_tokens();
}

#[test]
fn rows_of_one_slot_are_drawn_from_the_state_before_the_call() {
    let Some(mut pair) = Pair::new(Arch::Sm80, Some(9), 31) else {
        return;
    };
    pair.open_counting(0, &[], &[]);
    let row = |place| SampleRow { presence: 1.0, slot: SeqSlot(0), ..plain(place) };
    let forced = SampleRow { rule: Rule::Forced(TokenId(8)), ..row(2) };
    let score = SampleRow { rule: Rule::Score(TokenId(4)), ..row(3) };
    let rows = SampleRows { rows: vec![row(0), row(1), forced, score], ..SampleRows::default() };
    let found = pair.check(&[1.0; 4 * 31], &rows);
    assert_eq!(found.iter().map(|found| found.token).collect::<Vec<_>>(), [0, 0, 8, 4]);
    pair.check_last_tokens();
    assert_eq!(pair.host.slots[0].last, 8);
    assert_eq!(pair.check(&[1.0; 31], &only(row(0)))[0].token, 1);
}

#[test]
fn the_bits_do_not_depend_on_the_order_of_warps_or_on_the_rows_of_a_call() {
    let mut rng = fastrand::Rng::with_seed(12);
    const VOCAB: usize = 1000;
    let logits: Vec<f32> = (0..MOST_ROWS).flat_map(|_| logits(&mut rng, VOCAB)).collect();
    let masks = masks_at_random(&mut rng, VOCAB);
    let mut rows = SampleRows { masks: masks.iter().collect(), ..SampleRows::default() };
    for place in 0..MOST_ROWS {
        let row = row_at_random(&mut rng, VOCAB, place, masks.len(), &mut rows.forbidden);
        let top = if place % 2 == 0 { 20 } else { row.top };
        rows.rows.push(SampleRow { top, ..row });
    }
    let bits = |found: Vec<Found>| found.iter().map(Found::bits).collect::<Vec<_>>();
    let mut expected = None;
    for (arch, seed) in [
        (Arch::Sm80, None),
        (Arch::Sm80, Some(1)),
        (Arch::Sm90a, Some(2)),
        (Arch::Sm120a, Some(3)),
        (Arch::Sm90a, Some(4)),
    ] {
        let Some(mut pair) = Pair::new(arch, seed, VOCAB) else {
            return;
        };
        let together = bits(pair.check(&logits, &rows));
        assert_eq!(expected.get_or_insert_with(|| together.clone()), &together, "{arch} {seed:?}");
    }
    // Alone and in another row of the logits, with the slots as they were.
    let Some(mut pair) = Pair::new(Arch::Sm90a, Some(5), VOCAB) else {
        return;
    };
    for (place, expected) in expected.unwrap().iter().enumerate() {
        let alone = SampleRows { rows: vec![SampleRow { row: Row(0), ..rows.rows[place] }], ..rows.clone() };
        let own = &logits[place * VOCAB..][..VOCAB];
        assert_eq!(&bits(pair.check(own, &alone))[0], expected, "row {place}");
    }
}

#[test]
fn no_race() {
    let Some(mut pair) = Pair::new(Arch::Sm90a, Some(6), 1100) else {
        return;
    };
    pair.stream.driver().set_options(|options| options.races = true);
    at_random(&mut pair, 77, 8);
    // Lists that several warps apply, to the same ids.
    let bias: Vec<(u32, f32)> = (0..200).map(|id| (id, 1.0)).collect();
    pair.open(0, &SlotSpec { prompt: &[], reply: &[], counts: false, logit_bias: &bias, stops: &[] });
    let rows = SampleRows {
        rows: vec![SampleRow { temperature: 1.0, forbidden: (0, 150), ..plain(0) }],
        forbidden: (0..150).rev().collect(),
        masks: Vec::new(),
    };
    let expected = pair.check(&vec![1.0; 1100], &rows);
    assert!(expected[0].token >= 150);
}

#[test]
fn no_product_is_fused_with_a_sum() {
    // A weight that is rounded once instead of twice differs from the host's in one of a hundred cases or fewer.
    let Some(compilations) = compilations() else { return };
    let both = [&kernels::sampler::KERNEL, &kernels::sampler_shards::KERNEL];
    for (arch, kernel) in Arch::ALL.into_iter().flat_map(|arch| both.map(|kernel| (arch, kernel))) {
        let ptx = compilations.ptx(&Program::new(kernel, arch).unwrap()).unwrap();
        assert!(ptx.contains("mul.rn.f32") && ptx.contains("add.rn.f32"), "{arch}");
        assert!(!ptx.contains("fma.rn.f32") && !ptx.contains("mad.f32"), "{arch}");
    }
}

#[test]
fn weights_have_the_bits_of_the_hosts() {
    // With two ids, the weight of the second one is the largest `min_p` that keeps it.
    let Some(mut pair) = Pair::new(Arch::Sm90a, None, 2) else { return };
    let mut rng = fastrand::Rng::with_seed(15);
    let row = SampleRow { temperature: 1.0, slot: SeqSlot(0), ..plain(0) };
    let mut host = Host { slots: vec![HostSlot::default()], ..Host::default() };
    let mut keeps = |logits: &[f32], row: SampleRow| host.sample(logits, 2, &only(row))[0].token == 1;
    for _ in 0..60 {
        let (mut logits, mut rows) = (Vec::new(), SampleRows::default());
        while rows.rows.len() < MOST_ROWS {
            let pair = [0.0, -3.0 * rng.f32()];
            // A seed whose noise prefers the second id.
            let seed =
                (0..1000).find(|&seed| keeps(&pair, SampleRow { seed, ..row })).expect("a likely draw");
            let with = |bits: u32| SampleRow { seed, min_p: f32::from_bits(bits), ..row };
            let (mut kept, mut dropped) = (0, 1f32.to_bits());
            while dropped - kept > 1 {
                let middle = kept + (dropped - kept) / 2;
                *(if keeps(&pair, with(middle)) { &mut kept } else { &mut dropped }) = middle;
            }
            for bits in [kept, dropped] {
                rows.rows.push(SampleRow { row: Row(rows.rows.len() as u32), ..with(bits) });
                logits.extend(pair);
            }
        }
        let tokens: Vec<u32> = pair.check(&logits, &rows).iter().map(|found| found.token).collect();
        assert_eq!(tokens, [1, 0].repeat(MOST_ROWS / 2));
    }
}

#[test]
fn a_call_is_one_upload_two_launches_and_one_download() {
    let Some(mut pair) = Pair::new(Arch::Sm80, None, 31) else {
        return;
    };
    pair.open_counting(0, &[1, 2], &[3]);
    let counts = pair.stream.driver().counts.clone();
    let mask = TokenMask::of(&[4, 5]);
    let rows = SampleRows {
        rows: (0..MOST_ROWS)
            .map(|place| SampleRow { top: 20, mask: 0, forbidden: (0, 2), presence: 1.0, ..plain(place) })
            .collect(),
        masks: vec![&mask],
        forbidden: vec![4, 6],
    };
    pair.stream.driver().upload(pair.logits.address, &[0; MOST_ROWS * 31 * 4]).unwrap();
    let before = *counts.lock().unwrap();
    let ticket = pair.device.sample(&mut pair.stream, &rows, pair.logits.address).unwrap();
    let mut out = Outcomes::default();
    pair.device.wait(&mut pair.stream, ticket, Ok, &mut out).unwrap();
    assert_eq!(out.rows.len(), MOST_ROWS);
    let after = *counts.lock().unwrap();
    assert_eq!(after.uploads - before.uploads, 1);
    assert_eq!(after.launches - before.launches, 2);
    assert_eq!(after.downloads - before.downloads, 1);
    assert_eq!(after.allocations, before.allocations);
}

#[test]
fn lists_beyond_the_upload_area_are_drawn_in_several_groups() {
    let Some(mut pair) = Pair::new(Arch::Sm80, Some(8), 5) else {
        return;
    };
    // Sums of many biases, whose order is kept.
    let bias: Vec<(u32, f32)> = (0..150_000).map(|i| (i % 2, (i % 7) as f32 * 0.001)).collect();
    for slot in 0..3 {
        let spec = SlotSpec { prompt: &[], reply: &[], counts: true, logit_bias: &bias, stops: &[] };
        pair.open(slot, &spec);
    }
    let counts = pair.stream.driver().counts.clone();
    let row = |place| SampleRow { temperature: 1.0, top: 2, frequency: 1.0, ..plain(place) };
    let rows = SampleRows {
        rows: vec![row(0), row(1), SampleRow { slot: SeqSlot(0), ..row(2) }],
        forbidden: vec![],
        masks: vec![],
    };
    let before = counts.lock().unwrap().launches;
    pair.check(&[400.0, 0.0, 800.0, 0.0, 1.0].repeat(3), &rows);
    assert_eq!(counts.lock().unwrap().launches - before, 4, "three draws, one commit");
    pair.check_last_tokens();
}

#[test]
fn what_the_kernels_could_not_read_is_refused() {
    let Some(mut pair) = Pair::new(Arch::Sm80, None, 31) else {
        return;
    };
    let logits = pair.logits.address;
    let mut refuse = |rows: SampleRows<'_>, expected: &str| {
        let error = pair.device.sample(&mut pair.stream, &rows, logits).unwrap_err();
        assert!(error.to_string().contains(expected) && !error.is_fatal(), "{error}");
    };
    refuse(only(SampleRow { slot: SeqSlot(NUM_SLOTS as u32), ..plain(0) }), "slot 6 of 6");
    refuse(only(SampleRow { row: Row(MOST_ROWS as u32), ..plain(0) }), "row 8 of at most 8");
    refuse(only(SampleRow { forbidden: (0, 1), ..plain(0) }), "forbidden ids 0..1 of 0");
    refuse(only(SampleRow { forbidden: (1, 0), ..plain(0) }), "forbidden ids 1..0 of 0");
    refuse(SampleRows { rows: vec![plain(0); MOST_ROWS + 1], ..SampleRows::default() }, "9 rows, at most 8");
    let spec = SlotSpec { prompt: &[], reply: &[], counts: false, logit_bias: &[], stops: &[] };
    assert!(pair.device.open(&mut pair.stream, SeqSlot(6), &spec).is_err());
    assert!(pair.device.rewind(&mut pair.stream, SeqSlot(6), &[], TokenId(0)).is_err());
    let mut out = Outcomes::default();
    assert!(pair.device.wait(&mut pair.stream, Ticket(5), Ok, &mut out).is_err());
    for vocab in [0, 262_145] {
        assert!(Sampler::new(&mut pair.stream, vocab, 1, 1).is_err(), "{vocab}");
    }
    // A token beyond the vocabulary has no logit; a call after refused ones is as any other.
    pair.open_counting(0, &[], &[]);
    for top in [SampleRow::NO_LOGPROBS, 0, 9] {
        let rows = only(SampleRow { rule: Rule::Forced(TokenId(1000)), top, ..plain(0) });
        assert_eq!(pair.check(&[0.5; 31], &rows)[0].token, 1000);
    }
    pair.check_last_tokens();
    // Outcomes that are not fetched are dropped.
    pair.sample(&[0.5; 31], &only(plain(0)));
    pair.sample(&[0.5; 31], &only(SampleRow { temperature: 1.0, ..plain(0) }));
    pair.in_flight.pop_front();
    pair.settle();
}
