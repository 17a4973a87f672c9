//! Pictures of the waiting sequences: which of them the tower encodes next, a block at a time between two steps, so that the replies
//! under way go on; and where their rows are.
//!
//! A sequence with pictures is held by the scheduler. Its pictures get rows of the tower's memory, all at once or none; when all are
//! written, the sequence is released. A picture whose tokens lie wholly in a cached prefix is not encoded. The rows are given back once
//! the prompt's tokens that need them are computed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kept_rows::KeptRows;
use super::request::Media;
use super::step_state::StepLoop;
use crate::scheduler::{FinishReason, MediaHash, Scheduler, SeqId};
use perigee_ops::{Backend, OpError, Picture, TokenId, TokenSource};

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
#[derive(Default)]
pub(super) struct Pictures {
    max_patches: usize,
    kept: KeptRows,
    uses: HashMap<SeqId, Uses, ahash::RandomState>,
    job: Option<Job>,
}

/// Pictures that a sequence uses.
#[derive(Default)]
struct Uses {
    /// Each with the end of its tokens.
    pictures: Vec<(MediaHash, usize)>,
    /// The sequence was released. If it is held again, it needs other pictures.
    released: bool,
}

/// Pictures in the tower.
struct Job {
    pictures: Vec<(MediaHash, Arc<Picture>)>,
    /// Sequences that wait for them.
    seqs: Vec<SeqId>,
    next_block: usize,
    began: Instant,
    spent: Duration,
}

impl Pictures {
    pub(super) fn new(facts: Option<VisionFacts>) -> Self {
        match facts {
            None => Self::default(),
            Some(facts) => Self {
                max_patches: facts.max_patches,
                kept: KeptRows::new(facts.num_rows),
                ..Self::default()
            },
        }
    }

    /// Whether the tower has work.
    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// The token at `position` of a sequence's prompt: a row, if it stands for one. The rows of a planned chunk are at hand.
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

    /// Gives back all that a sequence uses.
    pub(super) fn end(&mut self, seq: SeqId) {
        for (hash, _) in self.uses.remove(&seq).unwrap_or_default().pictures {
            self.kept.release(&hash);
        }
    }

    /// Gives back pictures whose tokens are computed.
    pub(super) fn give_back(&mut self, scheduler: &Scheduler) {
        for (seq, uses) in &mut self.uses {
            if !scheduler.is_running(*seq) {
                continue;
            }
            let computed = scheduler.computed(*seq);
            uses.pictures.retain(|(hash, end)| {
                let needed = *end > computed;
                if !needed {
                    self.kept.release(hash);
                }
                needed
            });
        }
        self.uses.retain(|_, uses| !(uses.released && uses.pictures.is_empty()));
    }

    /// Takes the job out, and forgets those of its pictures that no other sequence uses; returns the sequences that wait for them.
    pub(super) fn fail(&mut self) -> Vec<SeqId> {
        let Some(job) = self.job.take() else { return Vec::new() };
        job.seqs.iter().for_each(|seq| self.end(*seq));
        job.pictures.iter().for_each(|(hash, _)| self.kept.remove_unused(hash));
        job.seqs
    }
}

impl<B: Backend> StepLoop<B> {
    /// Advances the tower by a block, and releases the sequences whose pictures are at hand. No effect without held sequences.
    pub(super) fn see(&mut self) -> Result<(), OpError> {
        let Some(num_blocks) = self.model.tower_blocks() else { return Ok(()) };
        // A use ends with the rows' last reader, which is enqueued before the tower's next write.
        self.pictures.give_back(&self.scheduler);
        self.prepare();
        let Some(job) = &mut self.pictures.job else { return Ok(()) };
        if !job.seqs.iter().any(|seq| self.scheduler.contains(*seq)) {
            self.pictures.fail();
            return Ok(());
        }
        let began = Instant::now();
        match job.next_block {
            0 => {
                let pictures: Vec<&Picture> = job.pictures.iter().map(|(_, picture)| &**picture).collect();
                self.model.begin_pictures(&pictures)?;
                self.model.tower_block(0)?;
            }
            block if block < num_blocks => self.model.tower_block(block)?,
            _ => {
                let kept = &self.pictures.kept;
                let rows = job.pictures.iter().flat_map(|(hash, picture)| {
                    (0..picture.num_tokens()).map(|token| kept.row(hash, token).expect("its rows are taken"))
                });
                self.model.project_pictures(&rows.collect::<Vec<_>>())?;
            }
        }
        job.next_block += 1;
        job.spent += began.elapsed();
        if job.next_block > num_blocks
            && let Some(job) = self.pictures.job.take()
        {
            let patches = job.pictures.iter().map(|(_, picture)| picture.num_patches()).sum();
            self.metrics.record_encoded(patches, job.spent, job.began.elapsed());
            job.pictures.iter().for_each(|(hash, _)| self.pictures.kept.set_ready(hash));
            self.prepare();
        }
        Ok(())
    }

    /// Takes rows for the pictures of held sequences, in their order; releases the sequences whose pictures are written, and gives the
    /// others' to the tower if it is free.
    fn prepare(&mut self) {
        let held: Vec<SeqId> = self.scheduler.held().collect();
        let mut job: Option<Job> = None;
        let mut full = false;
        for seq in held {
            let Some(live) = self.live.get(&seq) else { continue };
            if self.pictures.uses.get(&seq).is_some_and(|uses| uses.released) {
                self.pictures.end(seq);
            }
            if !self.pictures.uses.contains_key(&seq) {
                if full {
                    continue;
                }
                let cached = self.scheduler.cached_prefix(seq);
                let needed = live.media.iter().filter(|media| media.end() > cached);
                let wanted: Vec<_> =
                    needed.clone().map(|media| (media.hash, media.picture.num_tokens())).collect();
                let Some(missing) = self.pictures.kept.take(&wanted) else {
                    // Later ones that have rows go on: they give them back.
                    full = true;
                    continue;
                };
                let hits = wanted.iter().filter(|(hash, _)| !missing.contains(hash)).count();
                self.metrics.record_image_uses(hits, wanted.len() - hits, live.media.len() - wanted.len());
                let pictures = needed.map(|media| (media.hash, media.end())).collect();
                self.pictures.uses.insert(seq, Uses { pictures, released: false });
            }
            let Pictures { uses, kept, .. } = &mut self.pictures;
            let Some(uses) = uses.get_mut(&seq) else { continue };
            let needed = |media: &&Media| uses.pictures.iter().any(|(_, end)| *end == media.end());
            let absent: Vec<&Media> =
                live.media.iter().filter(needed).filter(|media| !kept.is_ready(&media.hash)).collect();
            if absent.is_empty() {
                let from = live.media.iter().filter(|media| !needed(media)).map(Media::end).max();
                uses.released = true;
                self.scheduler.release(seq, from.unwrap_or(0));
                continue;
            }
            if self.pictures.job.is_some() {
                continue;
            }
            // Pictures of several sequences go through the tower together, as far as it has room.
            let mut next = job.take().unwrap_or_else(|| Job {
                pictures: Vec::new(),
                seqs: Vec::new(),
                next_block: 0,
                began: Instant::now(),
                spent: Duration::ZERO,
            });
            let mut patches: usize = next.pictures.iter().map(|(_, picture)| picture.num_patches()).sum();
            let mut waits = false;
            for media in absent {
                if next.pictures.iter().any(|(hash, _)| *hash == media.hash) {
                    waits = true;
                    continue;
                }
                patches += media.picture.num_patches();
                if patches > self.pictures.max_patches && !next.pictures.is_empty() {
                    break;
                }
                next.pictures.push((media.hash, media.picture.clone()));
                waits = true;
            }
            if waits {
                next.seqs.push(seq);
            }
            job = Some(next);
        }
        if job.as_ref().is_some_and(|job| !job.pictures.is_empty()) {
            self.pictures.job = job;
        }
    }

    /// Ends the sequences that wait for the pictures under way.
    pub(super) fn fail_pictures(&mut self) {
        for seq in self.pictures.fail() {
            let finished = self.scheduler.finish(seq, FinishReason::Error);
            self.end(finished);
        }
    }
}
