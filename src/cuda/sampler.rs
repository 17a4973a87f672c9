//! Sampling on the device: state by slot, calls in flight.
//!
//! A call uploads its rows with the lists that they refer to, launches one kernel that draws and one that adds the tokens to
//! the slots, and downloads the outcomes. No call but [`Sampler::wait`] waits, and all memory is allocated at the start:
//! the areas are used again by the next call, which the stream orders after this one.
//!
//! The outcomes are those of the host's sampler (`ops/host/sampler.rs`).

use std::collections::VecDeque;
use std::ops::Range;

use bytemuck::AnyBitPattern;

use super::driver::ALIGNMENT;
use super::kernels::sampler::{self as kernels, Change, CommitParams, CountParams, DrawParams, Row, RowRule};
use super::kernels::sampler_cluster;
use super::kernels::sampler_shards::{self, Board, Inputs};
use super::{Buffer, Driver, DriverError, Stream, Transfer};
use perigee_decoding::sampling::{Logprobs, MAX_LOGIT_BIAS};
use perigee_ops::{
    OpError, Outcomes, RowFlags, RowOutcome, Rule, SampleRow, SampleRows, SeqSlot, SlotSpec, Ticket, TokenId,
};

/// Place of a mask that is not uploaded yet.
const NOT_PLACED: u32 = u32::MAX;

/// Sampling state of the slots, on host and device, and the calls whose outcomes are not fetched.
#[derive(Debug)]
pub struct Sampler {
    /// Ids of all ranks.
    vocab: usize,
    /// Ids of this device.
    ids: Range<usize>,
    /// Of several ranks.
    board: Option<Board>,
    max_rows: usize,
    slots: Vec<Slot>,
    /// `[max_rows, ids]` f32: logits after bias and penalties, then weights.
    work: Buffer,
    /// `[max_num_seqs, ids]` u32: bit 31 marks a token of the prompt, the rest is its number in the reply. A slot's
    /// counts are written when it opens, and read only if it counts.
    counts: Buffer,
    /// `[max_num_seqs]` u32.
    last_tokens: Buffer,
    /// Rows, then the words of their lists. Tokens to count.
    upload: Buffer,
    /// Outcomes of a call, then its most likely ids.
    outcomes: Buffer,
    group: Group,
    in_flight: VecDeque<InFlight>,
    next: u64,
    logprobs: Logprobs,
    /// Bytes of a download.
    fetched: Vec<u8>,
}

/// Input of the draws of one slot that is fixed while it is open.
#[derive(Debug, Default)]
struct Slot {
    counts: bool,
    /// Pairs (id, f32 bits) by id; the order of equal ids is kept, since sums depend on it.
    bias: Vec<u32>,
    /// Without ids beyond the vocabulary; the one that wins a tie is first.
    stops: Vec<u32>,
    /// The last call with a row that adds to the slot, plus 1.
    last_call: u64,
}

/// Rows of one upload and the words of their lists; memory that is kept between calls.
#[derive(Debug, Default)]
struct Group {
    rows: Vec<Row>,
    words: Vec<u32>,
    /// First word of each mask of the call.
    masks: Vec<u32>,
    bytes: Vec<u8>,
}

/// A call whose outcomes are not fetched.
#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    /// `None` for a call without rows.
    outcomes: Option<Transfer>,
    wanted: Vec<Wanted>,
    /// Downloads of the rows whose most likely ids the host finds, in order.
    logits: Vec<Transfer>,
}

/// What a row reports beside its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Nothing.
    Token,
    /// The logprob and so many of the most likely ids, found on the device.
    Listed(u32),
    /// More of them than the kernel lists.
    Whole(u32),
}

impl Wanted {
    fn of(row: &SampleRow, vocab: usize) -> Self {
        match row.top.min(vocab as u32) {
            _ if row.top == SampleRow::NO_LOGPROBS => Self::Token,
            top @ 0..=kernels::MAX_TOP => Self::Listed(top),
            top => Self::Whole(top),
        }
    }

    /// Number of ids that the kernel lists.
    fn listed(self) -> u32 {
        match self {
            Self::Listed(top) => top,
            Self::Token | Self::Whole(_) => 0,
        }
    }
}

/// Bytes of the buffers, in the order of [`Sampler`]'s fields, where the device has so many of the ids.
fn sizes(max_rows: usize, max_num_seqs: usize, vocab: usize, ids: usize) -> [usize; 5] {
    [
        max_rows * ids * size_of::<f32>(),
        max_num_seqs * ids * size_of::<u32>(),
        max_num_seqs * size_of::<u32>(),
        max_rows * size_of::<Row>() + list_words(max_rows, vocab) * size_of::<u32>(),
        max_rows * (size_of::<kernels::Outcome>() + kernels::MAX_TOP as usize * size_of::<kernels::Top>()),
    ]
}

/// Words of the lists of an upload: a mask for each row, and the largest bias, stops and bans of one row. More words
/// make more uploads of a call.
fn list_words(max_rows: usize, vocab: usize) -> usize {
    max_rows * vocab.div_ceil(32) + 2 * (MAX_LOGIT_BIAS + vocab) + 2 * vocab
}

impl Sampler {
    /// Bytes of device memory of [`Sampler::new`], of a device that has so many of the ids.
    pub fn bytes(max_rows: usize, max_num_seqs: usize, vocab: usize, ids: usize) -> u64 {
        sizes(max_rows, max_num_seqs, vocab, ids)
            .iter()
            .map(|&bytes| (bytes.max(1) as u64).next_multiple_of(ALIGNMENT))
            .sum()
    }

    /// State of `max_num_seqs` slots, and memory for calls of up to `max_rows` rows of `vocab` logits.
    pub fn new<D: Driver>(
        stream: &mut Stream<D>,
        vocab: usize,
        max_rows: usize,
        max_num_seqs: usize,
    ) -> Result<Self, OpError> {
        Self::of_shard(stream, vocab, 0..vocab, None, max_rows, max_num_seqs)
    }

    /// Of a rank: compares the rows that the logits of the next call are products of with those of the other ranks.
    pub fn compare(&mut self, inputs: Inputs) {
        if let Some(board) = &mut self.board {
            board.inputs = inputs;
        }
    }

    /// The same of a rank, which has the logits of the ids `ids`.
    pub fn of_shard<D: Driver>(
        stream: &mut Stream<D>,
        vocab: usize,
        ids: Range<usize>,
        board: Option<Board>,
        max_rows: usize,
        max_num_seqs: usize,
    ) -> Result<Self, OpError> {
        if !kernels::takes(vocab) {
            return Err(refused(format!("a vocabulary of {vocab} ids")));
        }
        let [work, counts, last_tokens, upload, outcomes] = sizes(max_rows, max_num_seqs, vocab, ids.len());
        Ok(Self {
            vocab,
            ids,
            board,
            max_rows,
            slots: (0..max_num_seqs).map(|_| Slot::default()).collect(),
            work: stream.allocate("adjusted logits", work)?,
            counts: stream.allocate("token counts", counts)?,
            last_tokens: stream.zeros("last tokens", last_tokens)?,
            upload: stream.allocate("sampling parameters", upload)?,
            outcomes: stream.allocate("sampling outcomes", outcomes)?,
            group: Group::default(),
            in_flight: VecDeque::new(),
            next: 0,
            logprobs: Logprobs::default(),
            fetched: Vec::new(),
        })
    }

    /// Device address of the last token of each slot, `[max_num_seqs]` u32.
    pub fn last_tokens(&self) -> u64 {
        self.last_tokens.address
    }

    /// Resets the state of a slot.
    pub fn open<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        slot: SeqSlot,
        spec: &SlotSpec<'_>,
    ) -> Result<(), OpError> {
        self.check_slot(slot)?;
        let vocab = self.vocab;
        let inside = |id: u32| (id as usize) < vocab;
        let mut bias: Vec<(u32, f32)> =
            spec.logit_bias.iter().copied().filter(|&(id, _)| inside(id)).collect();
        bias.sort_by_key(|&(id, _)| id);
        // Of stops with equal logits the host takes the last one.
        let mut stops: Vec<u32> = Vec::new();
        for &stop in spec.stops.iter().rev() {
            if inside(stop) && !stops.contains(&stop) {
                stops.push(stop);
            }
        }
        self.slots[slot.at()] = Slot {
            counts: spec.counts,
            bias: bias.iter().flat_map(|&(id, bias)| [id, bias.to_bits()]).collect(),
            stops,
            last_call: 0,
        };
        self.set_last(stream, slot, spec.reply.last().copied().unwrap_or(0))?;
        if spec.counts {
            stream.driver().zero(self.counts_of(slot), self.ids.len() * size_of::<u32>())?;
            self.count(stream, slot, spec.prompt, Change::Prompt)?;
            self.count(stream, slot, spec.reply, Change::Reply)?;
        }
        Ok(())
    }

    /// Removes tokens from a slot's counts; `last` is the token before them.
    pub fn rewind<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        slot: SeqSlot,
        removed: &[TokenId],
        last: TokenId,
    ) -> Result<(), OpError> {
        self.check_slot(slot)?;
        self.set_last(stream, slot, last.0)?;
        if self.slots[slot.at()].counts {
            self.count(stream, slot, bytemuck::cast_slice(removed), Change::Removed)?;
        }
        Ok(())
    }

    /// Samples from rows of `logits`, the device address of `[S, ids]` f32, and adds the tokens to the slots. The logits
    /// must not change before later work of the stream.
    pub fn sample<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        rows: &SampleRows<'_>,
        logits: u64,
    ) -> Result<Ticket, OpError> {
        self.check(rows)?;
        let ticket = Ticket(self.next);
        self.next += 1;
        let commits = self.commits(&rows.rows, self.next);
        let wanted: Vec<Wanted> = rows.rows.iter().map(|row| Wanted::of(row, self.vocab)).collect();
        let mut num_top = 0;
        self.group.clear(rows.masks.len());
        for (index, row) in rows.rows.iter().enumerate() {
            let forbidden = self.forbidden(row, rows);
            if !self.has_room(row, rows, &forbidden)? {
                self.draw(stream, index, rows.rows.len(), logits)?;
                self.group.clear(rows.masks.len());
            }
            let packed = self.group.pack(row, rows, &self.slots[row.slot.at()], &forbidden, self.vocab);
            let (commit, top) = (commits[index], wanted[index].listed());
            self.group.rows.push(Row { commit, top, top_first: num_top, ..packed });
            num_top += top;
        }
        let mut call = InFlight { ticket, outcomes: None, wanted, logits: Vec::new() };
        if !rows.rows.is_empty() {
            self.draw(stream, rows.rows.len(), rows.rows.len(), logits)?;
            self.commit(stream, rows.rows.len())?;
            self.download(stream, &rows.rows, logits, num_top as usize, &mut call)?;
        }
        self.in_flight.push_back(call);
        Ok(ticket)
    }

    /// Waits for a call and appends its outcomes. Outcomes of earlier calls that were not fetched are dropped. `whole` makes a row of
    /// the logits of all ranks from this one's.
    pub fn wait<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        ticket: Ticket,
        mut whole: impl FnMut(Vec<f32>) -> Result<Vec<f32>, OpError>,
        out: &mut Outcomes,
    ) -> Result<(), OpError> {
        while self.in_flight.front().is_some_and(|call| call.ticket < ticket) {
            self.in_flight.pop_front();
        }
        let call = match self.in_flight.pop_front_if(|call| call.ticket == ticket) {
            Some(call) => call,
            None => return Err(refused(format!("{ticket:?} is not in flight"))),
        };
        let Some(transfer) = call.outcomes else { return Ok(()) };
        self.fetched.clear();
        stream.driver().finish(transfer, &mut self.fetched)?;
        let (outcomes, top) = self.fetched.split_at(call.wanted.len() * size_of::<kernels::Outcome>());
        let mut top = values_of::<kernels::Top>(top);
        let mut transfers = call.logits.into_iter();
        for (outcome, wanted) in values_of::<kernels::Outcome>(outcomes).zip(call.wanted) {
            let log_sum = f64::from(outcome.max) + outcome.sum.ln();
            // A sum with 0 has no negative zero, whichever of the two a logit was.
            let logprob = |logit: f32| (f64::from(logit) - log_sum + 0.0) as f32;
            let first = out.top.len() as u32;
            let (own, rank) = match wanted {
                Wanted::Token => (0.0, 0),
                Wanted::Listed(count) => {
                    let listed = top.by_ref().take(count as usize);
                    out.top.extend(listed.map(|top| (TokenId(top.id), logprob(top.logit))));
                    (logprob(outcome.logit), outcome.rank)
                }
                Wanted::Whole(count) => {
                    let mut bytes = Vec::new();
                    let transfer = transfers.next().expect("one download for each such row");
                    stream.driver().finish(transfer, &mut bytes)?;
                    let logits = whole(values_of(&bytes).collect())?;
                    let inside = outcome.token.min(self.vocab as u32 - 1);
                    let scored = self.logprobs.of(&logits, inside, count as usize);
                    out.top.extend(scored.top.iter().map(|&(id, logprob)| (TokenId(id), logprob)));
                    match inside == outcome.token {
                        true => (scored.logprob, scored.rank),
                        false => (logprob(outcome.logit), outcome.rank),
                    }
                }
            };
            out.rows.push(RowOutcome {
                token: TokenId(outcome.token),
                logprob: own,
                rank,
                flags: RowFlags(outcome.flags),
                top: (first, out.top.len() as u32),
            });
        }
        Ok(())
    }

    /// Refuses what the kernels could not read.
    fn check(&self, rows: &SampleRows<'_>) -> Result<(), OpError> {
        if rows.rows.len() > self.max_rows {
            return Err(refused(format!("{} rows, at most {}", rows.rows.len(), self.max_rows)));
        }
        for row in &rows.rows {
            self.check_slot(row.slot)?;
            if row.row.at() >= self.max_rows {
                return Err(refused(format!("row {} of at most {}", row.row.0, self.max_rows)));
            }
            let (first, end) = row.forbidden;
            if rows.forbidden.get(first as usize..end as usize).is_none() {
                return Err(refused(format!("forbidden ids {first}..{end} of {}", rows.forbidden.len())));
            }
        }
        Ok(())
    }

    fn check_slot(&self, slot: SeqSlot) -> Result<(), OpError> {
        if slot.at() < self.slots.len() {
            return Ok(());
        }
        Err(refused(format!("slot {} of {}", slot.0, self.slots.len())))
    }

    /// What each row adds to its slot. Of several rows of a slot the last one sets the last token.
    fn commits(&mut self, rows: &[SampleRow], call: u64) -> Vec<u32> {
        let mut commits = vec![0; rows.len()];
        for (row, commit) in rows.iter().zip(&mut commits).rev() {
            let slot = &mut self.slots[row.slot.at()];
            if matches!(row.rule, Rule::Score(_)) {
                continue;
            }
            if slot.counts {
                *commit |= kernels::COUNTS;
            }
            if slot.last_call != call {
                *commit |= kernels::SETS_LAST;
                slot.last_call = call;
            }
        }
        commits
    }

    /// The forbidden ids of a row that are in the vocabulary; no more than that has.
    fn forbidden(&self, row: &SampleRow, rows: &SampleRows<'_>) -> Vec<u32> {
        let (first, end) = row.forbidden;
        let listed = rows.forbidden[first as usize..end as usize].iter().copied();
        let mut ids: Vec<u32> = listed.filter(|&id| (id as usize) < self.vocab).collect();
        if ids.len() > self.vocab {
            ids.sort_unstable();
            ids.dedup();
        }
        ids
    }

    /// Whether the lists of a row fit behind those of the group.
    fn has_room(&self, row: &SampleRow, rows: &SampleRows<'_>, forbidden: &[u32]) -> Result<bool, OpError> {
        let slot = &self.slots[row.slot.at()];
        let mask = rows.masks.get(row.mask as usize).map_or(&[][..], |mask| mask.words());
        let mask_words = mask.len().min(self.vocab.div_ceil(32));
        let words = slot.bias.len() + slot.stops.len() + forbidden.len() + mask_words;
        let capacity = list_words(self.max_rows, self.vocab);
        if words > capacity {
            return Err(refused(format!("a row with lists of {words} words, at most {capacity}")));
        }
        Ok(self.group.words.len() + words <= capacity)
    }

    /// Uploads the group and draws its rows, which end before row `end` of the call's `num_rows`.
    fn draw<D: Driver>(
        &mut self,
        stream: &mut Stream<D>,
        end: usize,
        num_rows: usize,
        logits: u64,
    ) -> Result<(), OpError> {
        let Group { rows, words, bytes, .. } = &mut self.group;
        bytes.clear();
        bytes.extend_from_slice(bytemuck::cast_slice(rows));
        bytes.extend_from_slice(bytemuck::cast_slice(words));
        stream.driver().upload(self.upload.address, bytes)?;
        let first = end - rows.len();
        let outcome_bytes = size_of::<kernels::Outcome>();
        let params = DrawParams {
            logits,
            work: self.work.address,
            counts: self.counts.address,
            rows: self.upload.address,
            lists: self.upload.address + size_of_val(&rows[..]) as u64,
            outcomes: self.outcomes.address + (first * outcome_bytes) as u64,
            top: self.outcomes.address + (num_rows * outcome_bytes) as u64,
            vocab: self.vocab as u32,
            first: self.ids.start as u32,
            ids: self.ids.len() as u32,
            stride: self.ids.len() as u32,
        };
        match &self.board {
            None if sampler_cluster::takes(self.ids.len(), stream.arch()) => {
                sampler_cluster::draw(stream, rows.len(), &params)
            }
            None => kernels::draw(stream, rows.len(), &params),
            Some(board) => sampler_shards::launch(stream, rows.len(), &params, board),
        }
    }

    fn commit<D: Driver>(&self, stream: &mut Stream<D>, num_rows: usize) -> Result<(), OpError> {
        let params = CommitParams {
            outcomes: self.outcomes.address,
            counts: self.counts.address,
            last_tokens: self.last_tokens.address,
            num_rows: num_rows as u32,
            first: self.ids.start as u32,
            ids: self.ids.len() as u32,
            padding: 0,
        };
        kernels::commit(stream, &params)
    }

    /// Starts the download of the outcomes, and of the rows whose most likely ids the host finds.
    fn download<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        rows: &[SampleRow],
        logits: u64,
        num_top: usize,
        call: &mut InFlight,
    ) -> Result<(), OpError> {
        let bytes = size_of::<kernels::Outcome>() * rows.len() + size_of::<kernels::Top>() * num_top;
        call.outcomes = Some(stream.driver().download(self.outcomes.address, bytes)?);
        let row_bytes = self.ids.len() * size_of::<f32>();
        for (row, wanted) in rows.iter().zip(&call.wanted) {
            if let Wanted::Whole(_) = wanted {
                let address = logits + (row.row.at() * row_bytes) as u64;
                call.logits.push(stream.driver().download(address, row_bytes)?);
            }
        }
        Ok(())
    }

    fn set_last<D: Driver>(&self, stream: &mut Stream<D>, slot: SeqSlot, last: u32) -> Result<(), OpError> {
        let address = self.last_tokens.address + (slot.at() * size_of::<u32>()) as u64;
        Ok(stream.driver().upload(address, bytemuck::bytes_of(&last))?)
    }

    fn count<D: Driver>(
        &self,
        stream: &mut Stream<D>,
        slot: SeqSlot,
        tokens: &[u32],
        change: Change,
    ) -> Result<(), OpError> {
        for tokens in tokens.chunks(self.upload.bytes / size_of::<u32>()) {
            stream.driver().upload(self.upload.address, bytemuck::cast_slice(tokens))?;
            let params = CountParams {
                tokens: self.upload.address,
                counts: self.counts_of(slot),
                num_tokens: tokens.len() as u32,
                first: self.ids.start as u32,
                ids: self.ids.len() as u32,
                change: change as u32,
            };
            kernels::count(stream, &params)?;
        }
        Ok(())
    }

    fn counts_of(&self, slot: SeqSlot) -> u64 {
        self.counts.address + (slot.at() * self.ids.len() * size_of::<u32>()) as u64
    }
}

impl Group {
    fn clear(&mut self, num_masks: usize) {
        self.rows.clear();
        self.words.clear();
        self.masks.clear();
        self.masks.resize(num_masks, NOT_PLACED);
    }

    /// A row with its lists, without commit and most likely ids.
    fn pack(
        &mut self,
        row: &SampleRow,
        rows: &SampleRows<'_>,
        slot: &Slot,
        forbidden: &[u32],
        vocab: usize,
    ) -> Row {
        let (rule, value) = match row.rule {
            Rule::Draw => (RowRule::Draw, 0),
            Rule::Forced(token) | Rule::Score(token) => (RowRule::Given, token.0),
            Rule::EndIfRankBelow(rank) => (RowRule::EndIfRankBelow, rank),
        };
        let mut packed = Row {
            seed: row.seed,
            position: row.position,
            row: row.row.0,
            slot: row.slot.0,
            temperature: row.temperature,
            top_p: row.top_p,
            min_p: row.min_p,
            top_k: row.top_k,
            repetition: row.repetition,
            presence: row.presence,
            frequency: row.frequency,
            rule: rule as u32,
            value,
            ..Row::default()
        };
        if row.top != SampleRow::NO_LOGPROBS {
            packed.options |= kernels::SCORES;
        }
        if rule == RowRule::Given {
            return packed;
        }
        if slot.counts && (row.repetition != 1.0 || row.presence != 0.0 || row.frequency != 0.0) {
            packed.options |= kernels::PENALISES;
        }
        (packed.bias, packed.num_biases) = (self.list(&slot.bias), slot.bias.len() as u32 / 2);
        (packed.forbidden, packed.num_forbidden) = (self.list(forbidden), forbidden.len() as u32);
        if rule == RowRule::EndIfRankBelow {
            (packed.stops, packed.num_stops) = (self.list(&slot.stops), slot.stops.len() as u32);
        }
        if let Some(mask) = rows.masks.get(row.mask as usize) {
            let words = mask.words();
            let words = &words[..words.len().min(vocab.div_ceil(32))];
            if self.masks[row.mask as usize] == NOT_PLACED {
                self.masks[row.mask as usize] = self.list(words);
            }
            packed.options |= kernels::MASKED;
            (packed.mask, packed.num_mask_words) = (self.masks[row.mask as usize], words.len() as u32);
            packed.mask_first = mask.first().unwrap_or(0);
        }
        packed
    }

    /// Appends a list; returns its first word.
    fn list(&mut self, words: &[u32]) -> u32 {
        let first = self.words.len() as u32;
        self.words.extend_from_slice(words);
        first
    }
}

/// The values in bytes of a download, which have no alignment.
fn values_of<T: AnyBitPattern>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// An error that leaves the device as it was.
fn refused(text: String) -> OpError {
    DriverError { call: "sample", code: 0, text, fatal: false }.into()
}
