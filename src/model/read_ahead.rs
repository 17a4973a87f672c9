//! Reads a checkpoint ahead of its upload, on several threads, within a bounded window of memory.
//!
//! Uploads copy from the mapped shards. Without reading ahead, the uploading thread takes every page
//! fault itself, and the disk is idle while it copies. Here the tensors are brought into memory in
//! the order of the upload, in portions, and released behind it. The window only decides on speed
//! and memory: bytes that are not there yet, or not any more, come from the file at their access.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use super::blueprint::Blueprint;
use super::checkpoint::{Checkpoint, Span};
use super::weight_names::WeightNames;
use perigee_numbers::threads::UploadMeter;

/// Bytes of the checkpoint that are read and not released. Far below 2 GB, which with 64 MiB of
/// pinned memory bounds the load's host memory; a fast disk fills it in some 50 ms.
const WINDOW_BYTES: u64 = 512 << 20;
/// Bytes that a thread reads at a time.
const PORTION_BYTES: u64 = 8 << 20;
/// Checkpoints below this are read by the upload itself: threads would cost more than they save.
const MIN_BYTES: u64 = 64 << 20;
/// Threads wait for the disk most of the time, and several requests at once are what makes it fast.
const MIN_THREADS: usize = 4;
const MAX_THREADS: usize = 16;
/// Bytes between two tensors in a file that are read with them.
const MAX_GAP: usize = 4096;

/// Order in which a backend copies the experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertOrder {
    /// Gate, up and down of an expert, then the next expert.
    ByExpert,
    /// Gates of all experts, then ups, then downs.
    ByProjection,
    /// Gate and up of an expert, then of the next expert; then all downs.
    ByPair,
}
/// Order and progress of a backend's uploads, for threads that read the checkpoint ahead of them.
#[derive(Debug, Clone)]
pub struct Uploads {
    /// Meter that the backend reports to; without reports a whole layer counts at its end.
    pub meter: Arc<UploadMeter>,
    /// Order of a layer's experts.
    pub order: ExpertOrder,
    /// Groups that have whole experts each and upload theirs side by side.
    pub expert_groups: usize,
}

impl Default for Uploads {
    fn default() -> Self {
        Self { meter: Arc::default(), order: ExpertOrder::ByExpert, expert_groups: 1 }
    }
}

/// The tensors of a checkpoint in the order of their upload.
pub(super) struct ReadAhead<'a> {
    checkpoint: &'a Checkpoint,
    spans: Vec<Span>,
    /// Of each portion: the number of spans up to its end, and of tensor bytes.
    portions: Vec<(usize, u64)>,
    /// Bytes up to the end of each section: embedding, layers, head.
    sections: Vec<u64>,
}

impl<'a> ReadAhead<'a> {
    /// Lists the tensors of a checkpoint that was checked.
    pub(super) fn plan(
        checkpoint: &'a Checkpoint,
        names: &WeightNames,
        blueprint: &Blueprint,
        uploads: &Uploads,
    ) -> Self {
        let experts = Experts {
            order: uploads.order,
            of_group: blueprint.router.num_experts.div_ceil(uploads.expert_groups.max(1)).max(1),
        };
        let mut plan = Self { checkpoint, spans: Vec::new(), portions: Vec::new(), sections: Vec::new() };
        let mut bytes = 0;
        bytes = plan.section(bytes, checkpoint.span(&names.embed_tokens()));
        for layer in 0..blueprint.num_layers {
            let stem = names.layer_stem(layer);
            let mut tensors: Vec<_> =
                checkpoint.spans_under(&stem).map(|(name, span)| (place(name, experts), span)).collect();
            tensors.sort_by_key(|(place, _)| *place);
            bytes = plan.section(bytes, tensors.into_iter().map(|(_, span)| span));
        }
        let head = checkpoint.spans_under(&names.head()).map(|(_, span)| span);
        let head = head.filter(|_| !blueprint.tie_word_embeddings);
        plan.section(bytes, checkpoint.span(&names.final_norm()).into_iter().chain(head));
        plan
    }

    /// Adds the tensors of a section behind `bytes`; returns the bytes up to its end.
    fn section(&mut self, mut bytes: u64, tensors: impl IntoIterator<Item = Span>) -> u64 {
        for tensor in tensors {
            let mut rest = tensor;
            while rest.start < rest.end {
                let filled = self.last_portion_bytes();
                let open = filled > 0 && filled < PORTION_BYTES;
                let room = if open { PORTION_BYTES - filled } else { PORTION_BYTES };
                let part = Span { end: rest.end.min(rest.start.saturating_add(room as usize)), ..rest };
                rest.start = part.end;
                bytes += part.bytes() as u64;
                let follows = |last: &Span| {
                    last.shard == part.shard && (last.end..=last.end + MAX_GAP).contains(&part.start)
                };
                match self.spans.last_mut() {
                    Some(last) if open && follows(last) => last.end = part.end,
                    _ => self.spans.push(part),
                }
                if open {
                    self.portions.pop();
                }
                self.portions.push((self.spans.len(), bytes));
            }
        }
        self.sections.push(bytes);
        bytes
    }

    fn last_portion_bytes(&self) -> u64 {
        match &self.portions[..] {
            [] => 0,
            [(_, end)] => *end,
            [.., (_, start), (_, end)] => end - start,
        }
    }

    /// Bytes of all tensors.
    pub(super) fn total(&self) -> u64 {
        self.sections.last().copied().unwrap_or(0)
    }

    /// Bytes up to the end of a section: 0 is the embedding, then the layers, then the head.
    pub(super) fn end_of(&self, section: usize) -> u64 {
        self.sections[section]
    }

    /// Runs `upload` while other threads read ahead of `meter`, which counts the bytes that are
    /// uploaded.
    pub(super) fn run<T>(&self, meter: &UploadMeter, upload: impl FnOnce() -> T) -> T {
        match self.total() < MIN_BYTES {
            true => upload(),
            false => self.run_within(WINDOW_BYTES, meter, upload),
        }
    }

    fn run_within<T>(&self, limit: u64, meter: &UploadMeter, upload: impl FnOnce() -> T) -> T {
        let ends = self.portions.iter().map(|(_, end)| *end).collect();
        let window = Mutex::new(Window::new(ends, limit));
        std::thread::scope(|scope| {
            // Also after an error or a panic: the threads wait for the meter.
            let _end = EndOnDrop(meter);
            self.start(scope, &window, meter);
            upload()
        })
    }

    fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, window: &'s Mutex<Window>, meter: &'s UploadMeter) {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        for number in 0..cores.clamp(MIN_THREADS, MAX_THREADS) {
            let builder = std::thread::Builder::new().name(format!("read-ahead-{number}"));
            // A refused thread makes the load slower, not wrong.
            if builder.spawn_scoped(scope, move || self.work(window, meter)).is_err() {
                break;
            }
        }
    }

    fn work(&self, window: &Mutex<Window>, meter: &UploadMeter) {
        let lock = || window.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let taken = meter.taken();
            let job = lock().next(taken);
            let portion = match job {
                Job::Read(portion) => {
                    self.spans_of(portion).iter().for_each(|span| self.checkpoint.read_ahead(*span));
                    portion
                }
                Job::Release(portion) => {
                    self.spans_of(portion).iter().for_each(|span| self.checkpoint.release_span(*span));
                    portion
                }
                // The upload is over and moves no more; who is at work still does the rest.
                Job::Wait if taken == u64::MAX => return,
                Job::Wait => {
                    meter.wait(taken);
                    continue;
                }
                Job::End => return,
            };
            lock().finish(portion);
        }
    }

    fn spans_of(&self, portion: usize) -> &[Span] {
        let first = if portion == 0 { 0 } else { self.portions[portion - 1].0 };
        &self.spans[first..self.portions[portion].0]
    }
}

/// Lets the threads that wait for a meter come to their end.
struct EndOnDrop<'a>(&'a UploadMeter);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.begin(u64::MAX, u64::MAX);
    }
}

/// How a layer's experts are uploaded.
#[derive(Debug, Clone, Copy)]
struct Experts {
    order: ExpertOrder,
    /// Experts of a group.
    of_group: usize,
}

/// Most groups whose experts are told apart.
const MAX_GROUPS: usize = 64;

/// Place of a layer's tensor in the order of the upload, which [`super::weights`] defines; `name` is
/// behind the layer's.
fn place(name: &str, experts: Experts) -> (u8, usize, usize) {
    let projection = |rest: &str| {
        ["gate_proj", "up_proj", "down_proj"].iter().position(|proj| rest.starts_with(proj)).unwrap_or(0)
    };
    let Some(ffn) = name.strip_prefix("mlp.") else { return (0, 0, 0) };
    let Some((first, rest)) = ffn.split_once('.') else { return (0, 0, 0) };
    match first {
        "gate" => (1, 0, 0),
        "experts" => {
            let (expert, rest) = rest.split_once('.').unwrap_or((rest, ""));
            let (expert, projection): (usize, _) = (expert.parse().unwrap_or(0), projection(rest));
            // Groups come to their first expert at once, then to their second one.
            let (group, of_group) = (expert / experts.of_group, expert % experts.of_group);
            let expert = of_group * MAX_GROUPS + group.min(MAX_GROUPS - 1);
            match experts.order {
                ExpertOrder::ByExpert => (2, expert, projection),
                ExpertOrder::ByProjection => (2, projection, expert),
                ExpertOrder::ByPair => (2, projection / 2, 2 * expert + projection),
            }
        }
        "shared_experts" => (3, 0, projection(rest)),
        _ => (1, 0, projection(ffn)),
    }
}

/// Next work of a thread.
#[derive(Debug, PartialEq, Eq)]
enum Job {
    Read(usize),
    Release(usize),
    /// Nothing until the upload has moved, or another thread has finished its job.
    Wait,
    End,
}

/// State of a portion that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    Read,
    Releasing,
}

/// The portions that are read and not released, and whose turn is next.
///
/// Invariant: their bytes are at most `limit`. Portions are read and released in their order, each
/// once; a portion that the upload has passed before its turn is not read.
struct Window {
    /// Bytes up to the end of each portion.
    ends: Vec<u64>,
    limit: u64,
    held: u64,
    /// Portions `..next` are read or being read, `..kept` released or being released.
    next: usize,
    kept: usize,
    /// Of the portions that are not released, by number.
    states: std::collections::BTreeMap<usize, State>,
}

impl Window {
    /// `ends` rises; no portion is larger than the limit.
    fn new(ends: Vec<u64>, limit: u64) -> Self {
        Self { ends, limit, held: 0, next: 0, kept: 0, states: Default::default() }
    }

    fn bytes(&self, portion: usize) -> u64 {
        self.ends[portion] - if portion == 0 { 0 } else { self.ends[portion - 1] }
    }

    /// The next job, where `taken` bytes are uploaded. [`Window::finish`] follows each portion.
    fn next(&mut self, taken: u64) -> Job {
        loop {
            if self.kept == self.ends.len() {
                return Job::End;
            }
            if self.states.get(&self.kept) == Some(&State::Read) && self.ends[self.kept] <= taken {
                self.kept += 1;
                self.states.insert(self.kept - 1, State::Releasing);
                return Job::Release(self.kept - 1);
            }
            if self.next == self.ends.len() || self.held + self.bytes(self.next) > self.limit {
                return Job::Wait;
            }
            let portion = self.next;
            self.next += 1;
            self.held += self.bytes(portion);
            let passed = self.ends[portion] <= taken;
            self.states.insert(portion, if passed { State::Read } else { State::Reading });
            if !passed {
                return Job::Read(portion);
            }
        }
    }

    fn finish(&mut self, portion: usize) {
        match self.states.remove(&portion) {
            Some(State::Reading) => drop(self.states.insert(portion, State::Read)),
            Some(State::Releasing) => self.held -= self.bytes(portion),
            state => unreachable!("portion {portion} is {state:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{ShardWriter, TensorSpec};
    use perigee_numbers::tensor::Dtype;

    /// Threads and an uploader in random turns: which job is done when depends on the seed alone.
    #[test]
    fn the_window_never_holds_more_than_its_limit_and_every_portion_is_released() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut ends = Vec::new();
            (0..random.usize(1..60)).fold(0, |end, _| {
                ends.push(end + random.u64(1..=8));
                ends[ends.len() - 1]
            });
            let (total, limit) = (ends[ends.len() - 1], random.u64(8..40));
            let mut window = Window::new(ends.clone(), limit);
            let size = |portion: usize| ends[portion] - if portion == 0 { 0 } else { ends[portion - 1] };
            let (mut taken, mut running, mut released) = (0, Vec::new(), 0);
            let (mut resident, mut read) = (0, vec![false; ends.len()]);
            for turn in 0.. {
                assert!(turn < 100_000, "seed {seed}: the window stands still");
                if random.bool() {
                    taken = total.min(taken + random.u64(0..10));
                }
                match window.next(taken) {
                    Job::End => break,
                    Job::Wait => {
                        assert!(taken < total || !running.is_empty(), "seed {seed}: waits without a reason")
                    }
                    job => running.push(job),
                }
                if !running.is_empty() && random.bool() {
                    match running.swap_remove(random.usize(..running.len())) {
                        Job::Read(portion) => {
                            assert!(!std::mem::replace(&mut read[portion], true));
                            window.finish(portion);
                        }
                        Job::Release(portion) => {
                            assert!(ends[portion] <= taken, "seed {seed}: released before its upload");
                            released += 1;
                            window.finish(portion);
                        }
                        Job::Wait | Job::End => unreachable!(),
                    }
                }
                resident = resident.max(window.held);
                let states: u64 = window.states.keys().map(|portion| size(*portion)).sum();
                assert_eq!(window.held, states);
                assert!(window.held <= limit, "seed {seed}: {} of {limit}", window.held);
            }
            released += running.len();
            assert_eq!(released, ends.len(), "seed {seed}");
            assert!(resident > 0);
        }
    }

    #[test]
    fn reading_runs_ahead_until_the_window_is_full() {
        let mut window = Window::new(vec![4, 8, 12, 16], 8);
        assert_eq!([window.next(0), window.next(0)], [Job::Read(0), Job::Read(1)]);
        assert_eq!(window.next(0), Job::Wait);
        window.finish(1);
        // The second is read, but the first is still being read.
        assert_eq!(window.next(8), Job::Wait);
        window.finish(0);
        assert_eq!(window.next(3), Job::Wait);
        assert_eq!(window.next(4), Job::Release(0));
        assert_eq!(window.next(4), Job::Wait);
        window.finish(0);
        assert_eq!(window.next(4), Job::Read(2));
        window.finish(2);
        assert_eq!([window.next(12), window.next(12)], [Job::Release(1), Job::Release(2)]);
        window.finish(1);
        window.finish(2);
        // The upload has passed the last one: it is released without having been read.
        assert_eq!(window.next(16), Job::Release(3));
        window.finish(3);
        assert_eq!(window.next(16), Job::End);
    }

    #[test]
    fn bytes_stay_the_same_and_the_threads_end_with_the_upload() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c"];
        let specs: Vec<_> = names.iter().map(|name| TensorSpec::new(*name, Dtype::U8, [50_000])).collect();
        let mut shard = ShardWriter::create(dir.path(), "model.safetensors", &specs).unwrap();
        for (i, name) in names.iter().enumerate() {
            shard.write(name, &[i as u8 + 1; 50_000]).unwrap();
        }
        shard.finish().unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let spans: Vec<Span> = names.iter().map(|name| checkpoint.span(name).unwrap()).collect();
        let mut plan =
            ReadAhead { checkpoint: &checkpoint, spans: vec![], portions: vec![], sections: vec![] };
        for (i, span) in spans.iter().enumerate() {
            assert_eq!(plan.section(50_000 * i as u64, [*span]), 50_000 * (i as u64 + 1));
        }
        // One portion, as they are small and follow each other in the file.
        assert_eq!((plan.spans.len(), &plan.portions[..]), (1, &[(1, 150_000)][..]));
        plan.spans.clone_from(&spans);
        plan.portions = vec![(1, 50_000), (2, 100_000), (3, 150_000)];
        // The window holds one of three: reading waits for the upload, and its end for neither.
        for reports in [true, false] {
            let meter = UploadMeter::default();
            plan.run_within(50_000, &meter, || {
                for (i, name) in names.iter().enumerate() {
                    meter.begin(50_000 * i as u64, 50_000 * (i as u64 + 1));
                    let bytes = checkpoint.tensor(name).unwrap().bytes;
                    assert!(bytes.iter().all(|byte| *byte == i as u8 + 1));
                    if reports {
                        meter.add(bytes.len());
                    }
                }
            });
        }
        let failed = std::panic::catch_unwind(|| {
            plan.run_within(50_000, &UploadMeter::default(), || panic!("the upload failed"))
        });
        assert!(failed.is_err());
    }

    #[test]
    fn large_tensors_are_cut_into_portions() {
        let checkpoint =
            Checkpoint::from_embedded(&[("model.safetensors", b"\x02\0\0\0\0\0\0\0{}")]).unwrap();
        let mut plan =
            ReadAhead { checkpoint: &checkpoint, spans: vec![], portions: vec![], sections: vec![] };
        let portion = PORTION_BYTES as usize;
        let span = |shard, start, bytes| Span { shard, start, end: start + bytes };
        plan.section(
            0,
            [span(0, 0, 100), span(0, 100, 2 * portion), span(1, 0, portion), span(1, 9 * portion, 5)],
        );
        let total = 3 * PORTION_BYTES + 105;
        assert_eq!(plan.total(), total);
        let ends: Vec<u64> = plan.portions.iter().map(|(_, end)| *end).collect();
        assert_eq!(ends, [PORTION_BYTES, 2 * PORTION_BYTES, 3 * PORTION_BYTES, total]);
        assert_eq!(plan.spans_of(0), [span(0, 0, portion)]);
        assert_eq!(plan.spans_of(2), [span(0, 2 * portion, 100), span(1, 0, portion - 100)]);
        assert_eq!(plan.spans_of(3), [span(1, portion - 100, 100), span(1, 9 * portion, 5)]);
    }

    #[test]
    fn tensors_of_a_layer_are_placed_as_they_are_loaded() {
        let names = [
            "self_attn.o_proj.weight",
            "mlp.gate.weight",
            "mlp.experts.0.gate_proj.weight",
            "mlp.experts.0.up_proj.weight",
            "mlp.experts.2.gate_proj.weight_scale",
            "mlp.experts.10.gate_proj.weight",
            "mlp.experts.10.down_proj.weight",
            "mlp.shared_experts.gate_proj.weight",
            "mlp.shared_experts.down_proj.weight",
        ];
        let sorted = |order| {
            let mut places: Vec<_> = names
                .iter()
                .enumerate()
                .map(|(i, name)| (place(name, Experts { order, of_group: 1 << 20 }), i))
                .collect();
            places.sort();
            places.into_iter().map(|(_, i)| i).collect::<Vec<_>>()
        };
        assert_eq!(sorted(ExpertOrder::ByExpert), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(sorted(ExpertOrder::ByProjection), [0, 1, 2, 4, 5, 3, 6, 7, 8]);
        assert_eq!(sorted(ExpertOrder::ByPair), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let by_pair = |of_group| Experts { order: ExpertOrder::ByPair, of_group };
        let in_groups = |name| place(name, by_pair(8));
        assert!(in_groups("mlp.experts.8.up_proj.weight") < in_groups("mlp.experts.1.gate_proj.weight"));
        assert!(in_groups("mlp.experts.1.up_proj.weight") < in_groups("mlp.experts.9.gate_proj.weight"));
        let place = |name| place(name, by_pair(1 << 20));
        assert!(place("mlp.experts.9.up_proj.weight") < place("mlp.experts.0.down_proj.weight"));
        assert!(place("mlp.up_proj.weight") < place("mlp.down_proj.weight"));
    }
}
