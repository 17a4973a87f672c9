//! Constrained sequences beside the step: their threads compute masks while the model computes
//! logits.
//!
//! Invariant: a sequence is sampled only under the mask of its present state. A sequence whose mask
//! is late is left out of the step and delays no other sequence: the next step computes its last
//! token again, and its mask is ready by then.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use perigee_decoding::sampling::{ConstraintBroken, Taken, TokenConstraint, TokenMask};

/// Longest wait of a step for a mask after its logits are computed. Most masks are ready before.
const MASK_WAIT: Duration = Duration::from_millis(2);
/// Upper bound on the number of threads that compute masks.
const MAX_THREADS: usize = 4;

/// A constraint returned by a mask thread, with the result of its mask's computation.
type Prepared = (Box<dyn TokenConstraint>, Result<(), ConstraintBroken>);

struct Job {
    constraint: Box<dyn TokenConstraint>,
    left: usize,
    back: SyncSender<Prepared>,
}

/// Location of a sequence's constraint: on the engine's thread, on a mask thread, or lost.
enum ConstraintState {
    Here(Box<dyn TokenConstraint>),
    Away(Receiver<Prepared>),
    /// The constraint broke, or its thread ended while it was there.
    Lost(ConstraintBroken),
}

/// The constraint of one sequence.
pub(super) struct Constrained(ConstraintState);

pub(super) enum Ready {
    /// The mask is ready: [`Constrained::mask`].
    Here,
    /// The mask is not ready: the sequence is left out of this step.
    Late,
    /// The constraint is lost: the sequence ends.
    Broken(ConstraintBroken),
}

impl Constrained {
    pub(super) fn new(constraint: Box<dyn TokenConstraint>) -> Self {
        Self(ConstraintState::Here(constraint))
    }

    /// Hands the constraint to a mask thread; no effect while a mask thread has it.
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

    /// State of the mask, after a wait of at most `MASK_WAIT`.
    pub(super) fn ready(&mut self) -> Ready {
        self.fetch(Some(MASK_WAIT));
        match &self.0 {
            ConstraintState::Here(constraint) if constraint.mask().is_some() => Ready::Here,
            ConstraintState::Here(_) => Ready::Broken(ConstraintBroken("it computed no mask".into())),
            ConstraintState::Away(_) => Ready::Late,
            ConstraintState::Lost(why) => Ready::Broken(why.clone()),
        }
    }

    /// `None` while a mask thread has the constraint.
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

    /// Whether a path to the end of the reply is known; false while a mask thread has the
    /// constraint.
    pub(super) fn knows_end(&self) -> bool {
        matches!(&self.0, ConstraintState::Here(constraint) if constraint.knows_end())
    }

    /// Appends tokens of the known path to the end of the reply, see [`TokenConstraint::way`]; none
    /// while a mask thread has the constraint.
    pub(super) fn way(&self, limit: usize, tokens: &mut Vec<u32>) {
        if let ConstraintState::Here(constraint) = &self.0 {
            constraint.way(limit, tokens);
        }
    }

    /// Removes the last `tokens` tokens. Waits for a mask that is being computed; the grammar's
    /// limits bound the wait.
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

    /// Receives the constraint from its mask thread within `wait`; `None` waits without limit.
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

/// Threads that compute masks; they end when the value is dropped.
pub(super) struct MaskThreads {
    jobs: mpsc::Sender<Job>,
}

impl MaskThreads {
    /// Starts the threads. The queue is bounded by the running sequences: each has at most one mask
    /// under way.
    pub(super) fn new() -> std::io::Result<Self> {
        let (jobs, arriving) = mpsc::channel::<Job>();
        let arriving = Arc::new(Mutex::new(arriving));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
        for number in 0..threads {
            let arriving = arriving.clone();
            std::thread::Builder::new().name(format!("perigee-mask-{number}")).spawn(move || {
                loop {
                    // A waiting thread holds the lock. The other threads wait for the lock instead
                    // of the queue, which has the same effect.
                    let job = arriving.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { mut constraint, left, back }) = job else { return };
                    // A panic must not end the thread. The closed channel reports it to the
                    // sequence.
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
