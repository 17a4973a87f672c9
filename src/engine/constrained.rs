//! Constrained sequences beside the step: masks are computed on their own threads while the model computes logits.
//!
//! Invariant: a sequence is only ever sampled under the mask of its present state. One whose mask is late is left out of the step, which
//! the others do not notice: its last token is computed again in the next one, and by then the mask is there.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use crate::sampling::{ConstraintBroken, Taken, TokenConstraint, TokenMask};

/// How long a step waits for a mask after its logits are there. Most are ready long before.
const MASK_WAIT: Duration = Duration::from_millis(2);
/// Most threads that compute masks.
const MAX_THREADS: usize = 4;

/// A constraint on its way back, with what became of its mask.
type Prepared = (Box<dyn TokenConstraint>, Result<(), ConstraintBroken>);

/// A mask to compute.
struct Job {
    constraint: Box<dyn TokenConstraint>,
    left: usize,
    back: SyncSender<Prepared>,
}

/// Where a sequence's constraint is.
enum ConstraintState {
    Here(Box<dyn TokenConstraint>),
    Away(Receiver<Prepared>),
    /// It broke, or its thread died with it.
    Lost(ConstraintBroken),
}

/// The constraint of one sequence.
pub(super) struct Constrained(ConstraintState);

/// What the sampler may do with a constrained sequence in this step.
pub(super) enum Ready {
    /// Sample under [`Constrained::mask`].
    Here,
    /// Not in this step.
    Late,
    /// Never again.
    Broken(ConstraintBroken),
}

impl Constrained {
    pub(super) fn new(constraint: Box<dyn TokenConstraint>) -> Self {
        Self(ConstraintState::Here(constraint))
    }

    /// Sends the constraint away to compute its mask, unless it is away already.
    pub(super) fn send(&mut self, threads: &MaskThreads, left: usize) {
        let gone = ConstraintState::Lost(ConstraintBroken("its thread has ended".into()));
        self.0 = match std::mem::replace(&mut self.0, gone) {
            ConstraintState::Here(constraint) => {
                let (back, arriving) = sync_channel(1);
                match threads.jobs.send(Job { constraint, left, back }) {
                    Ok(()) => ConstraintState::Away(arriving),
                    Err(_) => ConstraintState::Lost(ConstraintBroken("the mask threads have ended".into())),
                }
            }
            other => other,
        };
    }

    /// Whether the mask of the present state is there, waiting for it a little.
    pub(super) fn ready(&mut self) -> Ready {
        self.fetch(Some(MASK_WAIT));
        match &self.0 {
            ConstraintState::Here(constraint) if constraint.mask().is_some() => Ready::Here,
            ConstraintState::Here(_) => Ready::Broken(ConstraintBroken("it computed no mask".into())),
            ConstraintState::Away(_) => Ready::Late,
            ConstraintState::Lost(why) => Ready::Broken(why.clone()),
        }
    }

    /// The mask of the present state, if it is here.
    pub(super) fn mask(&self) -> Option<&TokenMask> {
        match &self.0 {
            ConstraintState::Here(constraint) => constraint.mask(),
            ConstraintState::Away(_) | ConstraintState::Lost(_) => None,
        }
    }

    /// Takes a token that the mask of this step allowed.
    pub(super) fn take(&mut self, sampled: u32, left: usize) -> Result<Taken, ConstraintBroken> {
        self.home()?.take(sampled, left)
    }

    /// Whether a way to the reply's end is known. Not while its mask is being computed.
    pub(super) fn knows_end(&self) -> bool {
        matches!(&self.0, ConstraintState::Here(constraint) if constraint.knows_end())
    }

    /// Takes the last tokens back. Waits for a mask under way, which is bounded by the grammar's own limits.
    pub(super) fn rewind(&mut self, tokens: usize) -> Result<(), ConstraintBroken> {
        self.home()?.rewind(tokens)
    }

    fn home(&mut self) -> Result<&mut Box<dyn TokenConstraint>, ConstraintBroken> {
        self.fetch(None);
        match &mut self.0 {
            ConstraintState::Here(constraint) => Ok(constraint),
            ConstraintState::Lost(why) => Err(why.clone()),
            ConstraintState::Away(_) => Err(ConstraintBroken("its mask is still being computed".into())),
        }
    }

    /// Takes the constraint back if it comes within `wait` (`None`: however long it takes).
    fn fetch(&mut self, wait: Option<Duration>) {
        let ConstraintState::Away(arriving) = &self.0 else { return };
        let came = match wait {
            Some(wait) => arriving.recv_timeout(wait),
            None => arriving.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        self.0 = match came {
            Ok((constraint, Ok(()))) => ConstraintState::Here(constraint),
            Ok((_, Err(why))) => ConstraintState::Lost(why),
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                ConstraintState::Lost(ConstraintBroken("computing its mask panicked".into()))
            }
        };
    }
}

/// Threads that compute masks; they end when this is dropped.
pub(super) struct MaskThreads {
    jobs: mpsc::Sender<Job>,
}

impl MaskThreads {
    /// Starts the threads. The queue is bounded by the running sequences: each has at most one mask under way.
    pub(super) fn new() -> std::io::Result<Self> {
        let (jobs, arriving) = mpsc::channel::<Job>();
        let arriving = Arc::new(Mutex::new(arriving));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
        for number in 0..threads {
            let arriving = arriving.clone();
            std::thread::Builder::new().name(format!("perigee-mask-{number}")).spawn(move || {
                loop {
                    // The lock is held while waiting: the others wait for it, which is the same.
                    let job = arriving.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { mut constraint, left, back }) = job else { return };
                    // A panic must not take the thread: the sequence learns of it from the closed channel.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                        let outcome = constraint.prepare(left);
                        let _ = back.send((constraint, outcome));
                    }));
                }
            })?;
        }
        Ok(Self { jobs })
    }
}
