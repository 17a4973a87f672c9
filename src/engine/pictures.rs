//! Pictures of the waiting sequences: which of them the tower encodes next, a block at a time between
//! two steps, so that the replies under way go on; and where their rows are.
//!
//! A sequence with pictures is held by the scheduler. Its pictures get rows of the tower's memory, all
//! at once or none; when all are written, the sequence is released. A picture whose tokens lie wholly
//! in a cached prefix is not encoded. The rows are given back once the prompt's tokens that need them
//! are computed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kept_rows::{KeptRows, Lease, Taken};
use super::request::Media;
use super::sequences::Sequences;
use crate::scheduler::{FinishReason, MediaHash, SeqId};
use perigee_model::Model;
use perigee_ops::{Backend, OpError, Picture, TokenId, TokenSource};
use perigee_telemetry::Metrics;

/// Sizes of a tower, as the engine needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionFacts {
    /// Rows that are kept of finished pictures, one a token.
    pub num_rows: usize,
    /// Upper bound on the patches of the pictures under way.
    pub max_patches: usize,
    /// Id of the token that stands for a row.
    pub media_token_id: u32,
}

impl VisionFacts {
    /// Whether pictures of so many tokens each can be at hand together.
    pub fn hold(&self, tokens: impl Iterator<Item = usize>) -> bool {
        KeptRows::rows_of(tokens) <= self.num_rows
    }
}

/// Pictures under way and kept.
pub(super) struct Pictures {
    max_patches: usize,
    kept: KeptRows,
    /// Sequences that use pictures.
    users: Vec<SeqId>,
    job: Option<Job>,
    metrics: Arc<Metrics>,
}

/// Pictures that a sequence uses.
pub(super) struct PictureUses {
    /// Each with the end of its tokens.
    pictures: Vec<(Lease, usize)>,
    /// The sequence was released. If it is held again, it needs other pictures.
    released: bool,
}

/// Pictures in the tower.
struct Job {
    pictures: Vec<InTower>,
    /// Sequences that wait for them.
    seqs: Vec<SeqId>,
    next_block: usize,
    began: Instant,
    spent: Duration,
}

/// A picture in the tower. It is in use until its rows are written, though its sequences may have ended.
struct InTower {
    hash: MediaHash,
    picture: Arc<Picture>,
    _lease: Lease,
}

impl Job {
    fn new() -> Self {
        Self {
            pictures: Vec::new(),
            seqs: Vec::new(),
            next_block: 0,
            began: Instant::now(),
            spent: Duration::ZERO,
        }
    }

    /// Adds pictures that a sequence waits for, as far as the tower has room for them.
    fn add(&mut self, seq: SeqId, absent: Vec<(&Media, Lease)>, max_patches: usize) {
        let mut patches = self.num_patches();
        let mut waits = false;
        for (media, lease) in absent {
            if self.pictures.iter().any(|known| known.hash == media.hash) {
                waits = true;
                continue;
            }
            patches += media.picture.num_patches();
            if patches > max_patches && !self.pictures.is_empty() {
                break;
            }
            let (hash, picture) = (media.hash, media.picture.clone());
            self.pictures.push(InTower { hash, picture, _lease: lease });
            waits = true;
        }
        if waits {
            self.seqs.push(seq);
        }
    }

    fn num_patches(&self) -> usize {
        self.pictures.iter().map(|known| known.picture.num_patches()).sum()
    }

    /// Runs the tower's next block of `num_blocks`, or stores the rows of the pictures behind the last.
    fn run<B: Backend>(
        &mut self,
        num_blocks: usize,
        kept: &KeptRows,
        model: &mut Model<B>,
    ) -> Result<(), OpError> {
        let began = Instant::now();
        match self.next_block {
            0 => {
                let pictures: Vec<&Picture> = self.pictures.iter().map(|known| &*known.picture).collect();
                model.begin_pictures(&pictures)?;
                model.tower_block(0)?;
            }
            block if block < num_blocks => model.tower_block(block)?,
            _ => {
                let rows = self.pictures.iter().flat_map(|InTower { hash, picture, .. }| {
                    (0..picture.num_tokens()).map(|token| kept.row(hash, token).expect("its rows are taken"))
                });
                model.project_pictures(&rows.collect::<Vec<_>>())?;
            }
        }
        self.next_block += 1;
        self.spent += began.elapsed();
        Ok(())
    }
}

impl Pictures {
    pub(super) fn new(facts: Option<VisionFacts>, metrics: Arc<Metrics>) -> Self {
        Self {
            max_patches: facts.map_or(0, |facts| facts.max_patches),
            kept: facts.map(|facts| KeptRows::new(facts.num_rows)).unwrap_or_default(),
            users: Vec::new(),
            job: None,
            metrics,
        }
    }

    /// Whether the tower has work.
    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// The token at `position` of a sequence's prompt: a row, if it stands for one. The rows of a
    /// planned chunk are at hand.
    pub(super) fn token(&self, media: &[Media], position: usize, id: u32) -> TokenSource {
        let token = TokenId(id);
        let picture = media.iter().find(|media| (media.start..media.end()).contains(&position));
        match picture {
            None => TokenSource::Known(token),
            Some(media) => {
                let row = self.kept.row(&media.hash, position - media.start);
                TokenSource::Media { token, row: row.expect("a sequence runs when its pictures are at hand") }
            }
        }
    }

    /// Advances the tower by a block, and releases the sequences whose pictures are at hand. No effect
    /// without held sequences.
    pub(super) fn advance<B: Backend>(
        &mut self,
        sequences: &mut Sequences,
        model: &mut Model<B>,
    ) -> Result<(), OpError> {
        let Some(num_blocks) = model.tower_blocks() else { return Ok(()) };
        // A use ends with the rows' last reader, which is enqueued before the tower's next write.
        self.give_back(sequences);
        self.prepare(sequences);
        let Some(job) = &mut self.job else { return Ok(()) };
        if !job.seqs.iter().any(|seq| sequences.scheduler.contains(*seq)) {
            self.fail(sequences);
            return Ok(());
        }
        job.run(num_blocks, &self.kept, model)?;
        if job.next_block > num_blocks
            && let Some(job) = self.job.take()
        {
            self.metrics.record_encoded(job.num_patches(), job.spent, job.began.elapsed());
            job.pictures.iter().for_each(|known| self.kept.set_ready(&known.hash));
            self.prepare(sequences);
        }
        Ok(())
    }

    /// Gives back pictures whose tokens are computed.
    fn give_back(&mut self, sequences: &mut Sequences) {
        let Sequences { scheduler, live, .. } = sequences;
        self.users.retain(|seq| {
            let Some(live) = live.get_mut(seq) else { return false };
            let Some(uses) = &mut live.pictures else { return false };
            if scheduler.is_running(*seq) {
                let computed = scheduler.computed(*seq);
                uses.pictures.retain(|(_, end)| *end > computed);
            }
            let all_given_back = uses.released && uses.pictures.is_empty();
            if all_given_back {
                live.pictures = None;
            }
            !all_given_back
        });
    }

    /// Takes rows for the pictures of held sequences, in their order; releases the sequences whose
    /// pictures are written, and gives the others' to the tower if it is free.
    fn prepare(&mut self, sequences: &mut Sequences) {
        let Sequences { scheduler, live, .. } = sequences;
        let held: Vec<SeqId> = scheduler.held().collect();
        let mut job: Option<Job> = None;
        let mut full = false;
        for seq in held {
            let Some(live) = live.get_mut(&seq) else { continue };
            if live.pictures.as_ref().is_some_and(|uses| uses.released) {
                live.pictures = None;
            }
            if live.pictures.is_none() && !full {
                live.pictures = self.take_rows(&live.media, scheduler.cached_prefix(seq));
                // Later ones that have rows go on: they give them back.
                full = live.pictures.is_none();
                if !full && !self.users.contains(&seq) {
                    self.users.push(seq);
                }
            }
            let Some(uses) = &mut live.pictures else { continue };
            let lease_of = |media: &Media| uses.pictures.iter().find(|(_, end)| *end == media.end());
            let needed = live.media.iter().filter_map(|media| Some((media, lease_of(media)?.0.clone())));
            let absent: Vec<_> = needed.filter(|(media, _)| !self.kept.is_ready(&media.hash)).collect();
            if absent.is_empty() {
                let cached = live.media.iter().filter(|media| lease_of(media).is_none());
                let from = cached.map(Media::end).max().unwrap_or(0);
                uses.released = true;
                scheduler.release(seq, from);
            } else if self.job.is_none() {
                // Pictures of several sequences go through the tower together, as far as it has room.
                job.get_or_insert_with(Job::new).add(seq, absent, self.max_patches);
            }
        }
        if job.as_ref().is_some_and(|job| !job.pictures.is_empty()) {
            self.job = job;
        }
    }

    /// Takes rows for those pictures that do not lie wholly in the first `cached` tokens; `None` if
    /// there are too few.
    fn take_rows(&mut self, media: &[Media], cached: usize) -> Option<PictureUses> {
        let needed = media.iter().filter(|media| media.end() > cached);
        let wanted: Vec<_> = needed.clone().map(|media| (media.hash, media.picture.num_tokens())).collect();
        let Taken { leases, missing } = self.kept.take(&wanted)?;
        let hits = wanted.iter().filter(|(hash, _)| !missing.contains(hash)).count();
        self.metrics.record_image_uses(hits, wanted.len() - hits, media.len() - wanted.len());
        let pictures = leases.into_iter().zip(needed.map(Media::end)).collect();
        Some(PictureUses { pictures, released: false })
    }

    /// Ends the sequences that wait for the pictures under way, and forgets those of the pictures that
    /// no other sequence uses.
    pub(super) fn fail(&mut self, sequences: &mut Sequences) {
        let Some(job) = self.job.take() else { return };
        job.seqs.iter().for_each(|seq| sequences.finish(*seq, FinishReason::Error));
        for InTower { hash, _lease, .. } in job.pictures {
            drop(_lease);
            self.kept.remove_unused(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::delivery::Outbox;
    use crate::handle::{EventSender, Submission};
    use crate::place::Places;
    use crate::request::{EngineRequest, Speculation};
    use crate::scheduler::{Limits, Scheduler};
    use perigee_decoding::sampling::SamplingParams;
    use perigee_ops::PATCH_VALUES;

    const LIMITS: Limits = Limits {
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_prefill_tokens: 64,
        target_step: Duration::ZERO,
        max_model_len: 64,
        block_size: 4,
        num_blocks: 64,
        prefix_caching: true,
        expand_min_prompt_tokens: 1000,
    };

    /// Adds a sequence with a picture of its own, of one token.
    fn add(sequences: &mut Sequences, number: u8) {
        let picture = Arc::new(Picture::new(2, 2, vec![0; 4 * PATCH_VALUES]).unwrap());
        let request = EngineRequest {
            prompt: Arc::from([7, 7]),
            sampling: SamplingParams::default(),
            priority: 0,
            share: None,
            deadline: None,
            cache_salt: None,
            guard: None,
            constraint: None,
            speculation: Speculation::default(),
            media: vec![Media { start: 0, hash: [number; 32], picture }],
        };
        let (id, arrived) = (SeqId(number.into()), Instant::now());
        let place = Places::new(1, 0).take(2, None, |_| 1).unwrap();
        let events = EventSender(tokio::sync::mpsc::unbounded_channel().0);
        let submission = Submission { id, request, arrived, place, events };
        assert!(sequences.add(submission, None, &Clock::new()));
    }

    #[test]
    fn a_picture_in_the_tower_keeps_its_rows_though_its_sequence_ends() {
        let metrics = Arc::new(Metrics::new("m", false));
        // Rows for two pictures.
        let facts = VisionFacts { num_rows: 32, max_patches: 100, media_token_id: 7 };
        let mut pictures = Pictures::new(Some(facts), metrics.clone());
        let mut sequences = Sequences::new(Scheduler::new(LIMITS).unwrap(), Outbox::new().unwrap(), metrics);
        (1..=2).for_each(|number| add(&mut sequences, number));
        pictures.prepare(&mut sequences);
        sequences.finish(SeqId(1), FinishReason::Aborted);
        add(&mut sequences, 3);
        pictures.prepare(&mut sequences);
        assert!(pictures.kept.row(&[1; 32], 0).is_some(), "the tower is going to write it");
        pictures.fail(&mut sequences);
        let is_kept = |pictures: &Pictures| [1, 2, 3].map(|number| pictures.kept.contains(&[number; 32]));
        assert_eq!(is_kept(&pictures), [false; 3], "nothing was written");
        pictures.prepare(&mut sequences);
        assert_eq!(is_kept(&pictures), [false, false, true]);
    }
}
